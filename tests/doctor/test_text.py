"""What the doctor says of tokenised text that is whole, changed, or not finished."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.texts import TOPICS, small_tokenizer

from ettsweep.doctor.data_check import DataRequirement, examine_data, resolve_requirement
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.text.corpus import open_corpus
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.preparation import CorpusRequest, tokenise
from ettsweep.trainer.tasks.text.text_task import DenoisingTask


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tokenizer.json").write_text(small_tokenizer().to_json())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    tokenise(CorpusRequest((str(tmp_path / "a.jsonl"),), tmp_path / "out", tmp_path, shard_mib=0.2, workers=1))
    return tmp_path / "out"


def test_tokenised_text_is_recognised_and_found_good(corpus: Path) -> None:
    resolve_requirement_result = resolve_requirement(str(corpus), None, [], None)
    assert resolve_requirement_result == (DenoisingTask(kind="text"), None)
    rows = examine_data(resolve_requirement_result, str(corpus))
    assert {row.state for row in rows} == {"ok"}
    manifest = read_manifest(corpus)
    train, val = manifest.train, manifest.val
    assert train.long_sentences > 1
    size = sum(shard.size for shard in manifest.shards) / 1e6
    assert [(row.name, row.detail) for row in rows] == [
        ("form", f"tokenised text, {corpus}"),
        ("text", manifest.digest),
        (
            "training text",
            f"{train.documents} documents, {train.sentences} sentences, {train.long_sentences} of them longer than 512 "
            f"tokens, {train.tokens} tokens, {train.blocks} blocks of up to 512",
        ),
        (
            "validation text",
            f"1 document, {val.sentences} sentences, {val.tokens} tokens, 1 block of up to 512",
        ),
        ("vocabulary", "408"),
        ("tokenizer", "byte-level BPE with 400 tokens, the one that the shards were made with"),
        ("shards", f"{len(manifest.shards)} shards of {size:.1f} MB in all, with the checksums of the manifest"),
    ]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    stat_result = path.stat()
    path.write_bytes(data)

    os.utime(path, ns=(stat_result.st_atime_ns, stat_result.st_mtime_ns))  # as a bad disk would


@pytest.mark.parametrize(
    ("harm", "subject", "message"),
    [
        (
            lambda out: flip(next(out.glob("shards/*.bin"))),
            "shards",
            "was changed after tokenisation (its checksum differs); run",
        ),
        (lambda out: (out / "tokenizer.json").unlink(), "tokenizer", "is not the tokenizer of these shards"),
        (lambda out: (out / "manifest.json").unlink(), "form", "tokenisation is not finished"),
    ],
)
def test_what_was_changed_is_named(corpus: Path, harm: Callable[[Path], object], subject: str, message: str) -> None:
    open_corpus(corpus)  # the doctor compares all, whether they were compared before or not
    harm(corpus)
    assert [(name, message in detail) for name, detail in failures(corpus, 408)] == [(subject, True)]


def failures(corpus: Path, vocabulary: int, text: str | None = None) -> list[tuple[str, str]]:
    model = model_spec("encdec-tiny").model_copy(update={"vocabulary": vocabulary})
    rows = examine_data(DataRequirement(DenoisingTask(kind="text", corpus=text), model), str(corpus))
    return [(row.name, row.detail) for row in rows if row.state == "failed"]


def test_text_that_a_grid_is_not_for_is_told_with_what_to_set(corpus: Path) -> None:
    remedy = "--set model.vocabulary=408, or tokenise with another --tokenizer"
    assert failures(corpus, 999, "0" * 12) == [
        ("text", f"the grid is for the text {'0' * 12}, this is {read_manifest(corpus).digest}"),
        ("vocabulary", f"the text has 408 tokens, the model 999: {remedy}"),
    ]
