"""A corpus beside the documents that it was made of: for any cut, after any change of the input, and on a small disk."""

import gzip
import json
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.texts import TOPICS, paragraphs, small_tokenizer, write_gpt2

from ettsweep.errors import (
    CorruptError,
    DataMissingError,
    EttsweepError,
    FailedError,
    InputError,
    StoppedError,
    StorageError,
)
from ettsweep.trainer.tasks.data_location import Side
from ettsweep.trainer.tasks.text import corpus_folder as folders
from ettsweep.trainer.tasks.text import preparation as making
from ettsweep.trainer.tasks.text.corpus import open_corpus, verify_shards
from ettsweep.trainer.tasks.text.corpus_folder import lock_corpus_folder
from ettsweep.trainer.tasks.text.corpus_manifest import Manifest, read_manifest
from ettsweep.trainer.tasks.text.documents import document_hash
from ettsweep.trainer.tasks.text.preparation import (
    CorpusOutcome,
    CorpusRequest,
    corpus_summary,
    find_unique_sources,
    split_threshold_and_sample,
    tokenise,
)


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoding")
    (folder / "tokenizer.json").write_text(small_tokenizer().to_json())
    return folder


@pytest.fixture
def make(tmp_path: Path, encoding: Path) -> Callable[..., CorpusOutcome]:
    """Return a function that makes tmp_path/out from inputs."""

    def made(*inputs: object, **options: Any) -> CorpusOutcome:
        order = CorpusRequest(tuple(map(str, inputs)), tmp_path / "out", encoding, shard_mib=0.02, workers=1)
        return tokenise(order._replace(**options))

    return made


def documents(folder: Path, section: Side) -> list[str]:
    """Return the documents of a corpus, as blocks that hold any of them."""
    corpus = open_corpus(folder)
    blocks = corpus.blocks(section, 10**6)
    return [corpus.tokenizer.decode(blocks.block(k).tokens_T) for k in range(len(blocks))]


def write_paragraphs(path: Path, size: int = 120_000, seed: int = 0) -> list[str]:
    path.write_text(paragraphs(size, seed))
    return [section.strip() for section in re.split(r"\n(?:[ \t]*\n)+", path.read_text()) if section.strip()]


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_all_documents_are_there_once_on_the_side_that_their_hash_says(
    tmp_path: Path, make: Callable[..., CorpusOutcome]
) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    manifest = make(tmp_path / "a.txt", val_fraction=0.1).manifest
    assert len(manifest.shards) > 3
    for section, requested in (("train", False), ("val", True)):
        expected = [text for text in texts if (document_hash(text.encode()) < 0.1 * 2**64) is requested]
        assert documents(tmp_path / "out", section) == expected  # type: ignore[arg-type]
        assert manifest.counts(section).documents == len(expected)  # type: ignore[arg-type]
        assert manifest.counts(section).text_bytes == sum(len(text.encode()) for text in expected)  # type: ignore[arg-type]
    assert 0.05 < manifest.val.documents / len(texts) < 0.15


@pytest.mark.slow
def test_forms_cuts_and_processes_do_not_change_the_documents(
    tmp_path: Path, make: Callable[..., CorpusOutcome]
) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    (tmp_path / "b.jsonl").write_text(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    collected = []
    for name, settings in [
        ("a.txt", {}),
        ("a.txt", {"shard_mib": 0.005}),
        ("a.txt", {"shard_mib": 64.0}),
        ("b.jsonl", {"text_field": "body"}),
        ("c.jsonl.gz", {"text_field": "body", "shard_mib": 0.005}),
    ]:
        manifest = make(tmp_path / name, **settings).manifest
        collected.append((documents(tmp_path / "out", "train"), documents(tmp_path / "out", "val")))
    assert all(item == collected[0] for item in collected)
    assert sorted(collected[0][0] + collected[0][1]) == sorted(texts)
    assert len(manifest.shards) > 1, "a packed file, which is one unit, is written in several shards"


@pytest.mark.slow
def test_the_digest_depends_on_the_text_not_on_processes_paths_or_times(
    tmp_path: Path, make: Callable[..., CorpusOutcome]
) -> None:
    write_paragraphs(tmp_path / "a.txt")
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(tmp_path / "a.txt", tmp_path / "elsewhere" / "b.txt")
    digests = {make(tmp_path / "a.txt", workers=n, out=tmp_path / f"out{n}").manifest.digest for n in (1, 2, 4)}
    digests.add(make(tmp_path / "elsewhere").manifest.digest)
    assert len(digests) == 1
    everything_result = everything(tmp_path / "out1")
    assert everything_result == everything(tmp_path / "out4")
    (tmp_path / "a.txt").write_text((tmp_path / "a.txt").read_text().replace("the", "The", 1))
    assert make(tmp_path / "a.txt").manifest.digest not in digests


@pytest.mark.slow
def test_an_encoding_is_trained_on_the_text_and_the_same_each_time(
    tmp_path: Path, make: Callable[..., CorpusOutcome]
) -> None:
    texts = write_paragraphs(tmp_path / "a.txt")
    first = make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=500)
    assert (first.manifest.bpe_tokens, first.manifest.n_vocab) == (500, 508)
    other = make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=500, workers=1, out=tmp_path / "other")
    assert everything(tmp_path / "out") == everything(tmp_path / "other")
    assert (other.new_shards, other.reused_shards) == (first.new_shards, 0)
    assert make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=500).new_shards == 0
    documents_result = documents(tmp_path / "out", "train") + documents(tmp_path / "out", "val")
    assert sorted(documents_result) == sorted(texts)
    with pytest.raises(InputError, match="--bpe-tokens: the text is too short for 100000 byte-pair tokens: "):
        make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=100_000, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_sample_for_an_encoding_is_bounded_and_from_all_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(40):
        (tmp_path / f"{k:02}.txt").write_text("\n\n".join(f"file {k} {section:04}" for section in range(100)))
    monkeypatch.setattr(making, "BPE_SAMPLE_BYTES", 4000)
    order = CorpusRequest((str(tmp_path),), tmp_path, bpe_tokens=300)
    (sources,) = find_unique_sources(order.inputs)
    _, sample = split_threshold_and_sample(order, sources)
    assert 3950 <= sum(map(len, sample)) <= 4000
    assert len({text.split()[1] for text in sample}) > 35
    assert sample == split_threshold_and_sample(order, sources[::-1])[1], "the same whatever order files have"
    hashes = [document_hash(text.encode()) for text in sample]
    assert min(hashes) > 0.8 * 2**64, "documents that validate, whose hashes are low, are the last to be in it"
    assert split_threshold_and_sample(order._replace(bpe_tokens=None), sources)[1] == []


@pytest.mark.slow
def test_gpt2s_vocabulary_is_that_of_the_models(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    texts = write_paragraphs(tmp_path / "a.txt", 20_000)
    manifest = make(tmp_path / "a.txt", tokenizer=write_gpt2(tmp_path / "gpt2")).manifest
    assert manifest.n_vocab == 50265
    assert sum(shard.size for shard in manifest.shards) < 2.5 * (manifest.train.tokens + manifest.val.tokens)
    documents_result = documents(tmp_path / "out", "train") + documents(tmp_path / "out", "val")
    assert sorted(documents_result) == sorted(texts)


def test_the_same_text_twice_is_there_twice(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    texts = write_paragraphs(tmp_path / "a.txt", 30_000)
    shutil.copyfile(tmp_path / "a.txt", tmp_path / "b.txt")
    once, twice = make(tmp_path / "a.txt"), make(tmp_path / "a.txt", tmp_path / "b.txt")
    assert twice.manifest.shards == 2 * once.manifest.shards
    documents_result = documents(tmp_path / "out", "train") + documents(tmp_path / "out", "val")
    assert sorted(documents_result) == sorted(2 * texts)
    assert make(tmp_path / "a.txt", tmp_path / "b.txt").new_shards == 0


# --- again, with more, and after damage -------------------------------------------------------------------------------


def test_only_what_is_new_is_tokenised(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    first = write_paragraphs(tmp_path / "a.txt")
    make_result = make(tmp_path / "a.txt")
    before = everything(tmp_path / "out")
    make_value = make(tmp_path / "a.txt")
    assert (make_value.new_shards, make_value.reused_shards, make_value.tokens, make_value.manifest) == (
        0,
        make_result.new_shards,
        0,
        make_result.manifest,
    )
    assert everything(tmp_path / "out") == before
    second = write_paragraphs(tmp_path / "b.txt", 30_000, seed=5000)
    extra = make(tmp_path / "a.txt", tmp_path / "b.txt")
    assert extra.reused_shards == make_result.new_shards
    assert extra.new_shards > 0
    documents_result = documents(tmp_path / "out", "train") + documents(tmp_path / "out", "val")
    assert sorted(documents_result) == sorted(first + second)
    assert make(tmp_path / "a.txt").manifest == make_result.manifest
    assert everything(tmp_path / "out") == before, "shards that no corpus has are gone"


def test_a_changed_shard_is_made_again_and_no_other(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    write_paragraphs(tmp_path / "a.txt")
    make_result = make(tmp_path / "a.txt")
    before = everything(tmp_path / "out")
    shards = [tmp_path / "out" / "shards" / shard.name for shard in make_result.manifest.shards]
    data = bytearray(shards[1].read_bytes())
    data[7] ^= 255
    shards[1].write_bytes(data)
    shards[2].unlink()
    (tmp_path / "out" / "tokenizer.json").unlink()
    left = f".{make_result.manifest.shards[0].name}.{'0' * 32}.tmp"
    (tmp_path / "out" / "shards" / left).write_text("left by a kill")
    make_value = make(tmp_path / "a.txt")
    assert (make_value.new_shards, make_value.reused_shards) == (2, make_result.new_shards - 2)
    assert everything(tmp_path / "out") == before


@pytest.mark.slow
def test_another_tokenizer_or_rule_makes_all_of_it_again(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    write_paragraphs(tmp_path / "a.txt", 30_000)
    for options in ({"documents": "line"}, {"val_fraction": 0.3}, {"tokenizer": None, "bpe_tokens": 300}):
        make_result = make(tmp_path / "a.txt")
        other = make(tmp_path / "a.txt", **options)
        assert (other.reused_shards, other.new_shards) == (0, len(other.manifest.shards))
        assert open_corpus(tmp_path / "out").digest == other.manifest.digest != make_result.manifest.digest


def test_another_corpus_in_the_folder_is_said_to_be_replaced(
    tmp_path: Path, make: Callable[..., CorpusOutcome]
) -> None:
    write_paragraphs(tmp_path / "a.txt", 30_000)
    write_paragraphs(tmp_path / "b.txt", 3000, seed=5000)
    first = make(tmp_path / "a.txt")
    make_result = make(tmp_path / "a.txt")
    make_value = make(tmp_path / "a.txt", tmp_path / "b.txt")
    assert (first.replaced, make_result.replaced, make_value.replaced) == (None, None, first.manifest.digest)
    other = make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=300)
    assert other.replaced == make_value.manifest.digest
    text = f"\nreplaces corpus {make_value.manifest.digest}: runs that were trained on it cannot resume; another --out keeps both\n"
    order = CorpusRequest((), tmp_path / "out")
    assert text in corpus_summary(order, other)
    assert "replaces" not in corpus_summary(order, make_result)


def test_what_was_made_just_now_is_not_read_again(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    write_paragraphs(tmp_path / "a.txt", 30_000)
    manifest = make(tmp_path / "a.txt").manifest
    read = list[int]()
    verify_shards(tmp_path / "out", manifest, on_bytes_read=read.append)
    assert read == []
    path = tmp_path / "out" / "shards" / manifest.shards[0].name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match="its checksum differs"):
        open_corpus(tmp_path / "out")


# --- which documents validate -----------------------------------------------------------------------------------------


def test_equal_documents_are_on_one_side(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    texts = [*(f"document {k}" for k in range(50))] * 4
    random.Random(0).shuffle(texts)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    make(tmp_path / "a.txt", val_fraction=0.3, shard_mib=0.0002)
    train, val = (documents(tmp_path / "out", section) for section in ("train", "val"))
    assert not set(train) & set(val)
    assert sorted(train + val) == sorted(texts)
    assert len(set(val)) in range(8, 25)


@pytest.mark.parametrize(("fraction", "lonely"), [(1e-9, "val"), (1 - 1e-9, "train")])
def test_of_two_documents_one_validates(
    tmp_path: Path, make: Callable[..., CorpusOutcome], fraction: float, lonely: Side
) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(["one text", "another text", "a third", "one text"]))
    manifest = make(tmp_path / "a.txt", val_fraction=fraction).manifest
    hashes = sorted(document_hash(text.encode()) for text in ("one text", "another text", "a third"))
    (text,) = set(documents(tmp_path / "out", lonely))
    assert document_hash(text.encode()) == hashes[0 if lonely == "val" else -1]
    assert manifest.train.documents + manifest.val.documents == 4
    assert make(tmp_path / "a.txt", val_fraction=fraction).new_shards == 0


def test_a_large_input_is_read_beforehand_only_until_both_sides_have_a_document(
    tmp_path: Path, make: Callable[..., CorpusOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {k}"}) + "\n" for k in range(3000)) + "broken")
    with pytest.raises(FailedError, match=r"a\.jsonl:3001: no valid JSON"):
        make(tmp_path / "a.jsonl")
    assert not (tmp_path / "out").exists(), "a small input is read to its end before anything is written"
    monkeypatch.setattr(making, "PRECHECK_BYTES", 0)
    with pytest.raises(
        FailedError, match=r"a\.jsonl:3001: no valid JSON.*\n[3-9] shards are finished and kept"
    ) as caught:
        make(tmp_path / "a.jsonl", workers=1, shard_mib=0.006)
    records = [path for path in (tmp_path / "out" / "shards").glob("*.json") if "tokenizer" not in path.name]
    assert f"\n{len(records)} shards are finished" in str(caught.value)
    (tmp_path / "b.txt").write_text("one\n\ntwo\n\nthree")
    assert make(tmp_path / "b.txt", val_fraction=1e-9, out=tmp_path / "b").manifest.val.documents == 1


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "options", "kind", "message"),
    [
        ("", {}, DataMissingError, "a.txt: has no text"),
        (" \n\n\t\n", {}, DataMissingError, "a.txt: has no text"),
        ("one", {}, DataMissingError, "a.txt: only one distinct document"),
        ("one\n\none", {}, DataMissingError, "--documents line, which splits a text file into more documents"),
        ("a\n\nb", {"documents": "file"}, DataMissingError, "--documents blank-line or line"),
        ("a\n\nb", {"tokenizer": None}, InputError, "no tokenizer, or two: give either --tokenizer DIR"),
        ("a\n\nb", {"bpe_tokens": 300}, InputError, "no tokenizer, or two: give either"),
        ("a\n\nb", {"tokenizer": None, "bpe_tokens": 3}, InputError, "--bpe-tokens: at least 256 are needed"),
        ("a\n\nb", {"tokenizer": Path("/nowhere")}, DataMissingError, "tokenizer /nowhere: No such file or directory"),
        ("a\n\nb", {"val_fraction": 1.0, "shard_mib": 0}, InputError, "--val-fraction: expected a number between 0 and 1, got 1.0\n--shard-mib: expected a number above 0 and up to 64"),
        ("a\n\nb", {"inputs": ("/nowhere",)}, DataMissingError, "--input /nowhere: does not exist"),
        ("a\n\nb", {"inputs": ()}, InputError, "no text given; pass --input FILES"),
        ("a\n\nb\xff", {}, FailedError, "not UTF-8 at byte 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_leaves_nothing(
    tmp_path: Path,
    make: Callable[..., CorpusOutcome],
    content: str,
    options: dict[str, Any],
    kind: type[EttsweepError],
    message: str,
) -> None:
    (tmp_path / "a.txt").write_text(content, encoding="latin-1")
    for out in (tmp_path / "out", tmp_path / "a" / "b" / "out"):
        with pytest.raises(kind, match=re.escape(message)):
            make(tmp_path / "a.txt", out=out, **options)
        assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"mine: is not empty and not tokenised text \(it holds thesis\.tex\)"):
        make(tmp_path / "a.txt", out=tmp_path / "mine")
    with pytest.raises(InputError, match="expected a folder, got a file"):
        make(tmp_path / "a.txt", out=tmp_path / "a.txt")
    assert everything(tmp_path / "mine") == {"thesis.tex": b"x"}
    (tmp_path / "empty").mkdir()
    assert make(tmp_path / "a.txt", out=tmp_path / "empty").manifest.train.documents > 0


@pytest.mark.parametrize("name", ["shards/precious.tar", "shards/more/x.bin", "notes.txt", "shards/.precious.tmp"])
@pytest.mark.parametrize("finished", [False, True])
def test_a_folder_that_holds_anything_else_too_is_left_alone(
    tmp_path: Path, make: Callable[..., CorpusOutcome], name: str, finished: bool
) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    if finished:
        make(tmp_path / "a.txt")
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = everything(tmp_path / "out")
    text = "shards/more" if "more" in name else name
    with pytest.raises(InputError, match=rf"out: is not empty and not tokenised text \(it holds .*{text}"):
        make(tmp_path / "a.txt", val_fraction=0.3)
    assert everything(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json"])
def test_a_file_of_a_common_name_makes_no_corpus(tmp_path: Path, make: Callable[..., CorpusOutcome], name: str) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("{}")
    for _ in range(2):
        with pytest.raises(InputError, match=rf"out: is not empty and not tokenised text \(it holds {name}\)"):
            make(tmp_path / "a.txt")
        (tmp_path / "out" / "shards").mkdir(exist_ok=True)
    assert everything(tmp_path / "out") == {name: b"{}"}


def test_a_corpus_that_has_lost_all_shards_is_mended(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    make(tmp_path / "a.txt")
    before = everything(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "shards")
    make(tmp_path / "a.txt")
    assert everything(tmp_path / "out") == before


def test_what_comes_into_a_folder_meanwhile_stays(
    tmp_path: Path, make: Callable[..., CorpusOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    make(tmp_path / "a.txt")
    others = {"shards/precious.tar": b"mine", "shards/.mine.tmp": b"mine", ".mine.tmp": b"mine"}
    for name, data in others.items():
        (tmp_path / "out" / name).write_bytes(data)
    monkeypatch.setattr(folders, "foreign_files", lambda folder: [])
    make(tmp_path / "a.txt", val_fraction=0.3)
    assert others.items() <= everything(tmp_path / "out").items()


def test_a_wrong_input_leaves_a_finished_corpus_as_it_was(
    tmp_path: Path, make: Callable[..., CorpusOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_paragraphs(tmp_path / "a.txt")
    make(tmp_path / "a.txt")
    manifest = read_manifest(tmp_path / "out")
    monkeypatch.setattr(making, "PRECHECK_BYTES", 0)
    (tmp_path / "b.txt").write_bytes(b"text\n\n" * 9000 + b"\xff")
    with pytest.raises(FailedError, match="not UTF-8 at byte 54000"):
        make(tmp_path / "a.txt", tmp_path / "b.txt")
    assert open_corpus(tmp_path / "out").digest == manifest.digest
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_two_commands_do_not_write_to_one_folder(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    write_paragraphs(tmp_path / "a.txt", 1000)
    with (
        lock_corpus_folder(tmp_path / "out"),
        pytest.raises(StorageError, match="out: another `ettsweep data text` is writing there"),
    ):
        make(tmp_path / "a.txt")
    assert not (tmp_path / "out").exists()
    make(tmp_path / "a.txt")


def test_a_full_disk_is_said_and_what_is_finished_kept(
    tmp_path: Path, make: Callable[..., CorpusOutcome], small_disk: Callable[[str], Path]
) -> None:
    write_paragraphs(tmp_path / "a.txt", 400_000)
    disk = small_disk("150k")
    with pytest.raises(StorageError, match=r"the disk is full.*\n\d+ shards are finished and kept"):
        make(tmp_path / "a.txt", out=disk / "out", workers=1)
    assert not list(disk.rglob("*.tmp"))
    assert list(disk.rglob("*-0.bin"))
    subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
    mended = make(tmp_path / "a.txt", out=disk / "out", workers=1)
    assert mended.reused_shards > 0
    make(tmp_path / "a.txt")
    assert everything(disk / "out") == everything(tmp_path / "out")


def test_processes_are_gone_after_the_command_and_after_an_error(
    tmp_path: Path, make: Callable[..., CorpusOutcome]
) -> None:
    write_paragraphs(tmp_path / "a.txt", 30_000)
    make(tmp_path / "a.txt")
    with pytest.raises(InputError):
        make(tmp_path / "a.txt", tokenizer=None, bpe_tokens=10**6)
    assert multiprocessing.active_children() == []


def test_what_is_kept_is_counted_once_nobody_adds_to_it(
    tmp_path: Path, make: Callable[..., CorpusOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_paragraphs(tmp_path / "a.txt")
    working = list[int]()

    @contextmanager
    def interrupted(*_: object) -> Iterator[Callable[[float], None]]:
        def advance(size: float) -> None:
            working.append(len(multiprocessing.active_children()))
            if len(working) == 6:
                raise KeyboardInterrupt

        yield advance

    def count(number: int, noun: str) -> str:
        working.append(len(multiprocessing.active_children()))
        return f"{number} {noun}s"

    monkeypatch.setattr(making, "progress", interrupted)
    monkeypatch.setattr(making, "format_count", count)
    with pytest.raises(StoppedError, match=r"^interrupted; \d shards are finished and kept"):
        make(tmp_path / "a.txt", workers=2)
    assert working[-2] > 0
    assert working[-1] == 0


BUSY = """
import signal, time
from pathlib import Path
from ettsweep.process_pool import open_pool

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as the command line has it
    try:
        with open_pool(1, "spawn", bool) as pool:
            pool.submit(Path("begun").touch)
            pool.submit(time.sleep, 60)
            pool.submit(len, bytes(10**7))  # more than a pipe holds: it stays on its way
            while not Path("begun").exists():
                time.sleep(0.01)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGPIPE).name)
"""


def test_ctrl_c_is_told_even_while_work_is_on_its_way_to_a_process(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    completed = subprocess.run([sys.executable, "busy.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "interrupted SIG_DFL\n", "")


# --- memory -----------------------------------------------------------------------------------------------------------

MEASURE = """
import json, resource, sys
from pathlib import Path
from ettsweep.trainer.tasks.text.preparation import CorpusRequest, tokenise

if __name__ == "__main__":
    source, out, encoding = sys.argv[1:]
    tokenise(CorpusRequest((source,), Path(out), Path(encoding), shard_mib=0.25, workers=1))
    # Not RUSAGE_SELF, which begins with the memory of the process that started this one.
    own = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(json.dumps([int(own[0]) / 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, encoding: Path, packed: bool) -> None:
    (tmp_path / "measure.py").write_text(MEASURE)

    def peak_mib(name: str, size: int) -> list[float]:
        data = paragraphs(size).encode()
        path = tmp_path / f"{name}.txt{'.gz' * packed}"
        path.write_bytes(gzip.compress(data, 1) if packed else data)
        command = [sys.executable, tmp_path / "measure.py", path, tmp_path / name, encoding]
        completed = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        content: list[float] = json.loads(completed.stdout)
        return content

    # Buffers are full with two megabytes: of less text, more still takes more memory, up to those.
    small, large = peak_mib("small", 2_000_000), peak_mib("large", 6_400_000)
    for a, b in zip(small, large, strict=True):
        assert b < a + 12, "4.4 MB more text, and its tokens, would be more than that"


def test_a_manifest_says_how_the_corpus_was_made(tmp_path: Path, make: Callable[..., CorpusOutcome]) -> None:
    texts = [*TOPICS[:6], " ", ""]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    manifest: Manifest = make(tmp_path / "a.jsonl", text_field="body", val_fraction=0.4).manifest
    assert manifest == read_manifest(tmp_path / "out")
    assert manifest.inputs == (str(tmp_path / "a.jsonl"),)
    assert (manifest.settings.text_field, manifest.settings.val_fraction, manifest.skipped) == ("body", 0.4, 2)
    names = {"manifest.json", "tokenizer.json", *(f"shards/{shard.name}" for shard in manifest.shards)}
    assert names <= set(everything(tmp_path / "out"))
    assert len(everything(tmp_path / "out")) == len(names) + len({shard.name[:24] for shard in manifest.shards}) + 1
