from pathlib import Path

import pytest

from ettsweep.errors import DataMissingError, InputError
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.images.image_task import DigitsTask, ImageNetTask
from ettsweep.trainer.tasks.registry import LOWEST_LOSS, check_compatible, check_data, steps_per_epoch, task_kind
from ettsweep.trainer.tasks.text import text_data
from ettsweep.trainer.tasks.text.text_data import pydoc_digest
from ettsweep.trainer.tasks.text.text_task import DenoisingTask


def refusal(*arguments: object) -> str:
    with pytest.raises(InputError) as error:
        check_compatible(*arguments)  # type: ignore[arg-type]
    return str(error.value)


def test_models_read_what_they_were_made_for() -> None:
    text, vit = model_spec("encdec-tiny"), model_spec("vit-digits")
    check_compatible(DenoisingTask(kind="pydoc"), text, 16)
    check_compatible(DigitsTask(), vit, 16)
    assert (
        refusal(DenoisingTask(kind="pydoc"), vit, 16)
        == "model: task pydoc needs a model that reads a source, such as kind encdec, got vit"
    )
    assert refusal(ImageNetTask(), text, 16) == ("model: task imagenet needs an image model (kind vit), got encdec")


def test_vocabulary_must_have_room_for_all_bytes() -> None:
    model = model_spec("encdec-tiny")
    check_compatible(DenoisingTask(kind="text"), model.model_copy(update={"vocabulary": 264}), 1)
    assert refusal(DenoisingTask(kind="text"), model.model_copy(update={"vocabulary": 263}), 1) == (
        "model.vocabulary: 263 is below 264: 256 bytes and the special tokens"
    )


def test_a_batch_has_no_more_texts_than_are_used() -> None:
    check_compatible(DenoisingTask(kind="pydoc", samples=16), model_spec("encdec-tiny"), 16)
    text = "batch_size: 16 is more than the 15 training texts"
    assert refusal(DenoisingTask(kind="pydoc", samples=15), model_spec("encdec-tiny"), 16) == text


def test_text_is_judged_by_its_lowest_loss() -> None:
    assert {task_kind(task).metric for task in (DenoisingTask(kind="pydoc"), DenoisingTask(kind="text"))} == {
        LOWEST_LOSS
    }
    assert task_kind(ImageNetTask()).metric.name == "best_accuracy"


def test_epochs_of_text_are_not_known_beforehand() -> None:
    with pytest.raises(InputError, match="the length of an epoch of task text depends on its data; give steps instead"):
        steps_per_epoch(DenoisingTask(kind="text"), 512)


def test_documentation_of_another_python_is_another_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pydoc_digest_result = pydoc_digest()
    check_data(DenoisingTask(kind="pydoc", corpus=pydoc_digest_result))
    other = tmp_path / "topics.py"
    other.write_text("topics = {}")
    monkeypatch.setattr(text_data, "pydoc_file", lambda: other)
    with pytest.raises(
        DataMissingError, match=f"needs the text {pydoc_digest_result}, but the documentation of this Python is"
    ):
        check_data(DenoisingTask(kind="pydoc", corpus=pydoc_digest_result))


def test_nobody_has_said_where_the_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ETTSWEEP_TEXT", raising=False)
    with pytest.raises(DataMissingError, match="pass --data DIR or set ETTSWEEP_TEXT=DIR"):
        check_data(DenoisingTask(kind="text"))
