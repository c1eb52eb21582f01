"""Blocks of a corpus beside the documents that it was made of, and what is said of one that was changed."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import support
from support.texts import TOPICS, small_tokenizer

from ettsweep.errors import CorruptError, DataMissingError, EttsweepError, InputError
from ettsweep.files import write_atomic
from ettsweep.trainer.tasks.text import corpus as corpus_module
from ettsweep.trainer.tasks.text.corpus import Corpus, corpus_from_texts, open_corpus, verify_shards
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.preparation import CorpusRequest, tokenise
from ettsweep.trainer.tasks.text.text_data import text_digest
from ettsweep.trainer.tasks.text.text_task import DenoisingTask
from ettsweep.trainer.tasks.text.tokenizer import Tokenizer, split_sentences, train_bpe


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def corpus_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus on disk, in several shards."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(tokenizer.to_json())
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    order = CorpusRequest(
        (str(folder / "a.jsonl"),), folder / "out", folder / "tokenizer", shard_mib=0.1, val_fraction=0.2
    )
    tokenise(order)
    return folder / "out"


@pytest.fixture
def folder(corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, and an empty cache of what was verified."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(corpus_folder, tmp_path / "corpus"))


def text_of(corpus: Corpus, section: str, block_tokens: int) -> str:
    blocks = corpus.blocks(section, block_tokens)  # type: ignore[arg-type]
    return corpus.tokenizer.decode([token for k in range(len(blocks)) for token in blocks.block(k).tokens_T])


FROZEN = Path(support.__file__).parents[1] / "frozen"
"""`corpus` there was made by the first `ettsweep data text`, which cut its input otherwise, of `corpus.txt` and more."""


def test_a_folder_made_before_is_read_with_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = open_corpus(FROZEN / "corpus")
    assert (corpus.digest, corpus.n_vocab) == ("b5203c1addf1", 288)
    assert text_digest(DenoisingTask(kind="text"), str(FROZEN / "corpus")) == "b5203c1addf1"
    verify_shards(FROZEN / "corpus", read_manifest(FROZEN / "corpus"), force=True)
    sides = {}
    for side in ("train", "val"):
        blocks = corpus.blocks(side, 16)  # type: ignore[arg-type]
        rows = [[array.tolist() for array in blocks.block(k)] for k in range(len(blocks))]
        sides[side] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    assert sides == {
        "train": "acc6d24a00db016efb255b0920972c147a82f98b42194c313311d2e23436814d",
        "val": "5e93d336a61e219ffd6f5496a98ba743d2bb9acc6673a7939113959a7d4ec770",
    }
    texts = {text_of_block(corpus, side, k) for side, n in (("train", 11), ("val", 6)) for k in range(n)}
    assert {section.strip() for section in (FROZEN / "corpus.txt").read_text().split("\n\n")} <= texts


def text_of_block(corpus: Corpus, side: str, k: int) -> str:
    return corpus.tokenizer.decode(corpus.blocks(side, 512).block(k).tokens_T)  # type: ignore[arg-type]


def test_a_folder_made_before_is_replaced_by_another_corpus_whole(tmp_path: Path) -> None:
    out = Path(shutil.copytree(FROZEN / "corpus", tmp_path / "out"))
    order = CorpusRequest((str(FROZEN / "corpus.txt"),), out, bpe_tokens=300, val_fraction=0.3)
    assert tokenise(order).replaced == "b5203c1addf1"
    tokenise(order._replace(out=tmp_path / "new"))
    names = [sorted(str(path.relative_to(item)) for path in item.rglob("*")) for item in (out, tmp_path / "new")]
    assert names[0] == names[1]
    assert open_corpus(out).digest == read_manifest(tmp_path / "new").digest != "b5203c1addf1"


@pytest.mark.parametrize("block_tokens", [16, 100, 512])
def test_blocks_are_the_documents_in_order(tokenizer: Tokenizer, block_tokens: int) -> None:
    is_val = [k % 4 == 1 for k in range(20)]
    corpus = corpus_from_texts(TOPICS[:20], tokenizer, is_val)
    for section, expected in (("train", False), ("val", True)):
        documents = [text.strip() for text, val in zip(TOPICS, is_val, strict=False) if val is expected]
        assert text_of(corpus, section, block_tokens) == "".join(documents)
        blocks = corpus.blocks(section, block_tokens)  # type: ignore[arg-type]
        sizes = [len(blocks.block(k).tokens_T) for k in range(len(blocks))]
        assert blocks.sizes(np.arange(len(blocks))).tolist() == sizes
        assert max(sizes) <= block_tokens
        lengths = [
            len(tokenizer.encode([split_sentence])[0]) for text in documents for split_sentence in split_sentences(text)
        ]
        ints = [int(n) for k in range(len(blocks)) for n in blocks.block(k).lengths_S]
        assert (max(lengths) > block_tokens) == (block_tokens < 512), "some have to be cut"
        assert sum(ints) == sum(lengths)
        ends = set(np.cumsum(ints).tolist())
        assert set(np.cumsum(lengths).tolist()) <= ends, "no sentence end is lost"
        long = sum(-(-n // block_tokens) - 1 for n in lengths if n > block_tokens)
        assert len(ints) == len(lengths) + long


@pytest.mark.slow
def test_a_corpus_on_disk_is_that_in_memory(corpus_folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    disk = open_corpus(corpus_folder)
    assert len(read_manifest(corpus_folder).shards) > 3
    for section in ("train", "val"):
        blocks = disk.blocks(section, 64)  # type: ignore[arg-type]
        manifest = read_manifest(corpus_folder)
        assert sum(len(blocks.block(k).tokens_T) for k in range(len(blocks))) == manifest.counts(section).tokens  # type: ignore[arg-type]
        assert len(disk.blocks(section, 512)) == manifest.counts(section).blocks  # type: ignore[arg-type]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    item = tokenise(CorpusRequest((str(tmp_path / "a.jsonl"),), tmp_path / "out", corpus_folder)).manifest
    in_val = open_corpus(tmp_path / "out")
    validation = text_of(in_val, "val", 512)
    memory = corpus_from_texts(TOPICS, tokenizer, [text.strip() in validation for text in TOPICS])
    assert memory.digest == item.digest
    assert text_of(memory, "train", 512) == text_of(in_val, "train", 512)
    assert (memory.n_vocab, memory.leads_with_space.sum()) == (in_val.n_vocab, in_val.leads_with_space.sum())


def test_more_shards_than_may_be_open(corpus_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_of_result = text_of(open_corpus(corpus_folder), "train", 100)
    monkeypatch.setattr(corpus_module, "OPEN_SHARDS", 1)
    corpus = open_corpus(corpus_folder)
    blocks = corpus.blocks("train", 100)
    order = np.random.default_rng(0).permutation(len(blocks))
    mapping = {int(k): blocks.block(int(k)).tokens_T for k in order}
    assert corpus.tokenizer.decode([token for k in range(len(blocks)) for token in mapping[k]]) == text_of_result
    for wrong in (-1, len(blocks)):
        with pytest.raises(IndexError):
            blocks.block(wrong)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def shard(folder: Path, k: int = 1) -> Path:
    return folder / "shards" / read_manifest(folder).shards[k].name


def edit(path: Path, key: str, value: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def another_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(train_bpe(TOPICS[30:50], 400).to_json())


AGAIN = "run the same `ettsweep data text` again: it repairs only these"


@pytest.mark.parametrize(
    ("harm", "kind", "message"),
    [
        (
            lambda f: flip(shard(f)),
            CorruptError,
            "-0.bin: was changed after tokenisation (its checksum differs); " + AGAIN,
        ),
        (lambda f: shard(f).write_bytes(b"x"), CorruptError, "-0.bin: has 1 bytes, "),
        (lambda f: shard(f).unlink(), CorruptError, "-0.bin: No such file or directory; " + AGAIN),
        (
            another_tokenizer,
            CorruptError,
            "tokenizer.json: is not the tokenizer that the shards were made with (it has 400",
        ),
        (
            lambda f: (f / "tokenizer.json").unlink(),
            CorruptError,
            "tokenizer.json: is not the tokenizer of these shards: No",
        ),
        (lambda f: (f / "tokenizer.json").write_text("{"), CorruptError, "no valid JSON"),
        (lambda f: (f / "manifest.json").unlink(), DataMissingError, "tokenisation is not finished: run the same"),
        (
            lambda f: ((f / "manifest.json").unlink(), (f / "manifest.json").mkdir()),
            DataMissingError,
            "manifest.json: cannot be read (Is a directory)",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), CorruptError, "manifest.json: no valid JSON"),
        (lambda f: (f / "manifest.json").write_text("[" * 100_000), CorruptError, "no valid JSON: nested too deeply"),
        (lambda f: (f / "tokenizer.json").write_text("[" * 100_000), CorruptError, "no valid JSON: nested too deeply"),
        (
            lambda f: edit(f / "manifest.json", "version", 9),
            CorruptError,
            "has version 9, this ettsweep reads version 1",
        ),
        (lambda f: edit(f / "manifest.json", "digest", "0" * 12), CorruptError, "manifest.json: was edited"),
        (lambda f: edit(f / "manifest.json", "val", {"documents": 3}), CorruptError, "manifest.json: was edited"),
        (lambda f: edit(f / "manifest.json", "n_vocab", "x"), CorruptError, "manifest.json: n_vocab: "),
        (lambda f: edit(f / "manifest.json", "more", 1), CorruptError, "manifest.json: more: unknown key"),
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


def test_a_corpus_without_validation_text_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    nothing = dict.fromkeys(data["val"], 0)
    data["val"] = nothing
    data["shards"] = [item | {"val": nothing} for item in data["shards"]]
    path.write_text(json.dumps(data))
    with pytest.raises(DataMissingError, match=f"{folder}: has no validation document; create it again"):
        read_manifest(folder)


def test_a_folder_of_something_else_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=r"is not tokenised text: it has no manifest\.json"):
        open_corpus(tmp_path)


def test_checksums_of_the_same_files_are_compared_once(folder: Path) -> None:
    manifest = read_manifest(folder)
    read = list[int]()
    verify_shards(folder, manifest, on_bytes_read=read.append)
    assert read == [item.size for item in manifest.shards]
    verify_shards(folder, manifest, on_bytes_read=read.append)
    assert len(read) == len(manifest.shards), "not read again"
    verify_shards(folder, manifest, force=True, on_bytes_read=read.append)
    assert len(read) == 2 * len(manifest.shards)
    write_atomic(shard(folder), shard(folder).read_bytes())
    verify_shards(folder, manifest, on_bytes_read=read.append)
    assert len(read) == 3 * len(manifest.shards), "another file of the same content is another file"


def test_blocks_of_no_tokens_are_refused(corpus_folder: Path) -> None:
    with pytest.raises(InputError, match="blocks of 0 tokens"):
        open_corpus(corpus_folder).blocks("train", 0)
