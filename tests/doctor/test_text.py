"""What the doctor says of tokenised text that is whole, changed, or not finished."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.texts import TOPICS, small_tokenizer

from ettsweep.doctor.checks import DoctorCheck
from ettsweep.doctor.data_check import DataRequirement, examine_data, resolve_requirement
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.inputs import CorpusRequest
from ettsweep.trainer.tasks.text.preparation import tokenise
from ettsweep.trainer.tasks.text.text_task import DenoisingTask


@pytest.fixture(scope="module")
def tokenised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "tokenizer.json").write_text(small_tokenizer().to_json())
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    tokenise(CorpusRequest((str(folder / "a.jsonl"),), folder / "out", folder))
    return folder / "out"


@pytest.fixture
def corpus(tokenised: Path, tmp_path: Path) -> Path:
    """Return a copy of tokenised text."""
    return Path(shutil.copytree(tokenised, tmp_path / "out"))


def test_tokenised_text_is_recognised_and_found_good(corpus: Path) -> None:
    requirement = resolve_requirement(str(corpus), None, [], None)
    assert requirement == (DenoisingTask(kind="text"), None)
    rows = examine_data(requirement, str(corpus))
    assert {row.state for row in rows} == {"ok"}
    manifest = read_manifest(corpus)
    train = manifest.train
    assert train.long_sentences > 1
    details = {row.name: row.detail for row in rows}
    assert details["text"] == manifest.digest
    assert details["training text"] == (
        f"{train.documents} documents, {train.sentences} sentences, {train.long_sentences} of them longer than 512 "
        f"tokens, {train.tokens} tokens, {train.blocks} blocks of up to 512"
    )
    assert details["tokenizer"] == "byte-level BPE with 400 tokens, that of the text"
    assert details["shards"].startswith("2 files of ")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def unfinish(out: Path) -> None:
    (out / "manifest.json").unlink()
    (out / ".ettsweep-cache").mkdir()


@pytest.mark.parametrize(
    ("harm", "subject", "message"),
    [
        (lambda out: flip(next(out.glob("*/train/*.arrow"))), "shards", "was changed after tokenisation; run"),
        (lambda out: (out / "tokenizer.json").unlink(), "tokenizer", "is not the tokenizer of this text"),
        (unfinish, "form", "tokenisation is not finished"),
    ],
)
def test_what_was_changed_is_named(corpus: Path, harm: Callable[[Path], object], subject: str, message: str) -> None:
    harm(corpus)
    model = model_spec("encdec-tiny").model_copy(update={"vocabulary": 408})
    rows: list[DoctorCheck] = examine_data(DataRequirement(DenoisingTask(kind="text"), model), str(corpus))
    failed = [row for row in rows if row.state == "failed"]
    assert failed[0].name == subject
    assert message in failed[0].detail
