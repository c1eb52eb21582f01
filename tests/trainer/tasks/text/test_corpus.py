"""A corpus on disk beside one in memory and beside what `datasets` reads; and what is said of one that was changed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
from support.texts import TOPICS, small_tokenizer

from ettsweep.errors import CorruptError, DataMissingError, EttsweepError
from ettsweep.trainer.tasks.text.corpus import corpus_from_texts, open_corpus
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.inputs import CorpusRequest
from ettsweep.trainer.tasks.text.preparation import tokenise
from ettsweep.trainer.tasks.text.tokenizer import Tokenizer, split_sentences, train_bpe


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def made(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus on disk, in several batches of arrow."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    texts = [*TOPICS, *(f"Text {k}." for k in range(1500))]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenise(CorpusRequest((str(folder / "a.jsonl"),), folder / "out", folder / "tokenizer.json", val_fraction=0.2))
    return folder / "out"


def test_a_corpus_on_disk_is_that_in_memory_and_what_datasets_reads(made: Path, tokenizer: Tokenizer) -> None:
    disk, manifest = open_corpus(made), read_manifest(made)
    sides = datasets.load_from_disk(str(made / manifest.digest))
    texts = {side: [tokenizer.decode(row["tokens"]) for row in sides[side]] for side in ("train", "val")}
    flags = [False] * len(texts["train"]) + [True] * len(texts["val"])
    memory = corpus_from_texts([*texts["train"], *texts["val"]], tokenizer, flags)
    assert memory.digest == disk.digest == manifest.digest
    assert len(disk._sides["train"]) > 1, "batches of arrow"
    for side in ("train", "val"):
        counts = getattr(manifest, side)
        lengths = [len(tokenizer.encode([each])[0]) for text in texts[side] for each in split_sentences(text)]
        blocks, same = (corpus.blocks(side, 512) for corpus in (disk, memory))  # type: ignore[arg-type]
        tokens = [blocks.block(k).tokens_T.tolist() for k in range(len(blocks))]
        assert tokens == [same.block(k).tokens_T.tolist() for k in range(len(same))]
        assert tokenizer.decode([token for block in tokens for token in block]) == "".join(texts[side])
        pieces = [int(n) for k in range(len(blocks)) for n in blocks.block(k).lengths_S]
        assert set(np.cumsum(lengths).tolist()) <= set(np.cumsum(pieces).tolist()), "no sentence end is lost"
        assert (counts.documents, counts.tokens, counts.blocks) == (len(texts[side]), sum(lengths), len(blocks))
        assert counts.tokens + counts.documents == len(disk.windows(side, 1)) + 1  # type: ignore[arg-type]
        assert counts.text_bytes == sum(len(text.encode()) for text in texts[side])
        assert (counts.sentences, counts.long_sentences) == (len(lengths), sum(n > 512 for n in lengths))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the corpus."""
    return Path(shutil.copytree(made, tmp_path / "corpus"))


def arrow(folder: Path) -> Path:
    return next(folder.glob("*/train/*.arrow"))


def edit(folder: Path, key: str, value: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


@pytest.mark.parametrize(
    ("harm", "kind", "message"),
    [
        (lambda f: arrow(f).write_bytes(b"x"), CorruptError, ".arrow: has 1 bytes, "),
        (lambda f: arrow(f).write_bytes(bytes(arrow(f).stat().st_size)), CorruptError, ".arrow: cannot be read ("),
        (
            lambda f: (f / "tokenizer.json").write_text(train_bpe(TOPICS[30:50], 300).to_json()),
            CorruptError,
            "tokenizer.json: is not the tokenizer of this text (it has 300",
        ),
        (
            lambda f: edit(f, "shards", [{"side": "train", "name": "../../etc/passwd", "size": 1}]),
            CorruptError,
            "manifest.json: shards",
        ),
        (lambda f: (f / "manifest.json").unlink(), DataMissingError, "is not tokenised text: it has no manifest.json"),
        (shutil.rmtree, DataMissingError, "does not exist; `ettsweep data text --input FILES --out DIR` creates one"),
    ],
)
def test_a_corpus_that_was_changed_is_refused(
    folder: Path, harm: Callable[[Path], object], kind: type[EttsweepError], message: str
) -> None:
    open_corpus(folder)
    harm(folder)
    with pytest.raises(kind, match=re.escape(message)) as caught:
        open_corpus(folder)
    assert str(folder) in str(caught.value)
