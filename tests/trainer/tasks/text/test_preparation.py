"""A corpus beside the documents that it was made of: by any number of processes, after kills, and on a small disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.texts import paragraphs, small_tokenizer

from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError, StorageError
from ettsweep.trainer.tasks.data_location import Side
from ettsweep.trainer.tasks.text import inputs as finding
from ettsweep.trainer.tasks.text import preparation as making
from ettsweep.trainer.tasks.text.corpus import open_corpus
from ettsweep.trainer.tasks.text.inputs import CorpusRequest, find_portions
from ettsweep.trainer.tasks.text.preparation import CorpusOutcome, document_hash, draw_sample, locked_folder, tokenise

Make = Callable[..., CorpusOutcome]


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoding")
    (folder / "tokenizer.json").write_text(small_tokenizer().to_json())
    return folder


@pytest.fixture
def make(tmp_path: Path, encoding: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes tmp_path/out from inputs, in small units."""
    monkeypatch.setattr(finding, "UNIT_BYTES", 20_000)

    def made(*inputs: object, **options: Any) -> CorpusOutcome:
        order = CorpusRequest(tuple(map(str, inputs)), tmp_path / "out", encoding, workers=1)
        return tokenise(order._replace(**options))

    return made


def documents(folder: Path, side: Side) -> list[str]:
    """Return the documents of a corpus, as blocks that hold any of them."""
    corpus = open_corpus(folder)
    blocks = corpus.blocks(side, 10**6)
    return [corpus.tokenizer.decode(blocks.block(k).tokens_T) for k in range(len(blocks))]


def write_paragraphs(path: Path, size: int = 120_000) -> list[str]:
    path.write_text(paragraphs(size))
    return [section.strip() for section in path.read_text().split("\n\n") if section.strip()]


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, but for those of `datasets` that name a cache."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "state.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_all_documents_are_there_once_on_the_side_that_their_hash_says(tmp_path: Path, make: Make) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    (tmp_path / "b.jsonl").write_text('{"text": "in a line"}\n{"text": " "}\n{"text": null}\n')
    outcome = make(tmp_path / "a.txt", tmp_path / "b.jsonl", val_fraction=0.1)
    manifest = outcome.manifest
    assert outcome.new_units > 5
    for side, is_val in (("train", False), ("val", True)):
        expected = [text for text in [*texts, "in a line"] if (document_hash(text) < 0.1 * 2**64) is is_val]
        assert documents(tmp_path / "out", side) == expected  # type: ignore[arg-type]
    assert 0.05 < manifest.val.documents / len(texts) < 0.15
    assert (manifest.skipped, manifest.inputs) == (2, (f"{tmp_path}/a.txt", f"{tmp_path}/b.jsonl"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"manifest.json", "tokenizer.json", manifest.digest}, "the cache is gone"


@pytest.mark.slow
def test_the_digest_depends_on_the_text_not_on_processes_paths_or_units(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    first = make(tmp_path / "a.txt", workers=2).manifest
    before = everything(tmp_path / "out")
    monkeypatch.setattr(finding, "UNIT_BYTES", 50_000)
    other = make(tmp_path / "b.jsonl", out=tmp_path / "other", text_field="body").manifest
    assert other.digest == first.digest
    arrow = {name: data for name, data in before.items() if name.endswith(".arrow")}
    assert arrow.items() <= everything(tmp_path / "other").items()
    (tmp_path / "a.txt").write_text((tmp_path / "a.txt").read_text().replace("the", "The", 1))
    assert make(tmp_path / "a.txt").manifest.digest != first.digest


def test_an_encoding_is_trained_on_the_text_and_the_same_each_time(tmp_path: Path, make: Make) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    first = make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=500).manifest
    assert (first.bpe_tokens, first.n_vocab) == (500, 508)
    assert make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=500, out=tmp_path / "b").manifest.digest == first.digest
    assert sorted(documents(tmp_path / "out", "train") + documents(tmp_path / "out", "val")) == sorted(texts)
    with pytest.raises(InputError, match="--bpe-tokens: the text is too short for 100000 byte-pair tokens: "):
        make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=100_000, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_sample_for_an_encoding_is_bounded_and_from_all_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(20):
        (tmp_path / f"{k:02}.txt").write_text("\n\n".join(f"file {k} {section:04}" for section in range(100)))
    monkeypatch.setattr(making, "SAMPLE_BYTES", 4000)
    monkeypatch.setattr(making, "SAMPLE_PORTIONS", 10)
    monkeypatch.setattr(finding, "UNIT_BYTES", 1)
    request = CorpusRequest((str(tmp_path),), tmp_path, bpe_tokens=300, val_fraction=0.3)
    sample = draw_sample(request, find_portions(request))
    assert 1500 < sum(map(len, sample)) <= 4000
    files, places = ({text.split()[word] for text in sample} for word in (1, 2))
    assert (len(files), len(places) > 20) == (10, True)
    assert min(map(document_hash, sample)) >= 0.3 * 2**64, "documents that validate are not in it"


# --- again, and after a kill ------------------------------------------------------------------------------------------


def test_what_is_there_is_not_made_again_but_mended(tmp_path: Path, make: Make) -> None:
    write_paragraphs(tmp_path / "a.txt")
    first = make(tmp_path / "a.txt")
    before = everything(tmp_path / "out")
    again = make(tmp_path / "a.txt")
    assert (again.new_units, again.kept_units, again.manifest) == (0, 0, first.manifest)
    path = next((tmp_path / "out").glob("*/train/*.arrow"))
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    assert make(tmp_path / "a.txt").new_units == first.new_units
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert make(tmp_path / "a.txt").new_units == first.new_units
    assert everything(tmp_path / "out") == before


def test_finished_units_are_kept_after_an_error(tmp_path: Path, make: Make) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(b"one\n\ntwo \xff")
    with pytest.raises(FailedError, match=r"b\.txt: not UTF-8; .*\n\d of \d parts are finished and kept: run the same"):
        make(tmp_path / "a.txt", tmp_path / "b.txt")
    with pytest.raises(DataMissingError, match="tokenisation is not finished"):
        open_corpus(tmp_path / "out")
    (tmp_path / "b.txt").write_text("one")
    outcome = make(tmp_path / "a.txt", tmp_path / "b.txt")
    assert (outcome.new_units, outcome.kept_units > 5) == (1, True)
    assert sorted(documents(tmp_path / "out", "train") + documents(tmp_path / "out", "val")) == sorted([*texts, "one"])


# --- which documents validate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "lonely"), [(1e-9, "val"), (1 - 1e-9, "train")])
def test_of_few_documents_one_is_on_each_side(tmp_path: Path, make: Make, fraction: float, lonely: Side) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(["one text", "another text", "a third", "one text"]))
    outcome = make(tmp_path / "a.txt", val_fraction=fraction)
    hashes = sorted(document_hash(text) for text in ("one text", "another text", "a third"))
    (text,) = set(documents(tmp_path / "out", lonely))
    assert document_hash(text) == hashes[0 if lonely == "val" else -1]
    assert outcome.moved
    assert outcome.manifest.train.documents + outcome.manifest.val.documents == 4


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ("", DataMissingError, "a.txt: it contains no text"),
        ("one\n\none", DataMissingError, "--documents line, which splits a text file into more documents"),
        ("a\n\nb\xff", FailedError, "a.txt: not UTF-8"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(
    tmp_path: Path, make: Make, content: str, kind: type[EttsweepError], message: str
) -> None:
    (tmp_path / "a.txt").write_text(content, encoding="latin-1")
    with pytest.raises(kind, match=message):
        make(tmp_path / "a.txt", out=tmp_path / "a" / "b" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, make: Make) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    for name in ("thesis.tex", "manifest.json"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("{}")
        with pytest.raises(InputError, match=r"with .*: is not empty and not tokenised text \(it holds "):
            make(tmp_path / "a.txt", out=folder)
        assert everything(folder) == {name: b"{}"}
    make(tmp_path / "a.txt")
    for name in ("notes", "0123456789ab"):
        (tmp_path / "out" / name).mkdir()
        (tmp_path / "out" / name / "mine.txt").write_text("mine")
    make(tmp_path / "a.txt", val_fraction=0.3)
    assert all((tmp_path / "out" / name / "mine.txt").exists() for name in ("notes", "0123456789ab"))


def test_two_commands_do_not_write_to_one_folder(tmp_path: Path, make: Make) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    with (
        locked_folder(CorpusRequest((), tmp_path / "out")),
        pytest.raises(StorageError, match="out: another `ettsweep data text` is writing there"),
    ):
        make(tmp_path / "a.txt")
    assert not (tmp_path / "out").exists()
