"""Which task, model and text fit together, and what is said of those that do not."""

from pathlib import Path

import pytest

from ettsweep.errors import DataMissingError, InputError
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import ModelSpec, TaskSpec
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.tasks.registry import LOWEST_LOSS, check_compatible, check_data, steps_per_epoch, task_kind
from ettsweep.trainer.tasks.text import text_data
from ettsweep.trainer.tasks.text.text_data import pydoc_digest
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, NextTokenTask

VIT, ENCDEC, DECODER = model_spec("vit-digits"), model_spec("encdec-tiny"), model_spec("gpt-tiny")
PYDOC, TEXT, NEXT = DenoisingTask(kind="pydoc"), DenoisingTask(kind="text"), NextTokenTask(text="pydoc")
A_SOURCE = "model: task pydoc needs a model that reads a source, such as kind encdec, got "
A_DECODER = "model: task next_token needs a decoder, such as kind gpt, got "


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (PYDOC, ENCDEC, None),
        (NEXT, DECODER, None),
        (PYDOC, VIT, A_SOURCE + "vit"),
        (NEXT, ENCDEC, A_DECODER + "encdec"),
        (ImageNetTask(), ENCDEC, "model: task imagenet needs an image model (kind vit), got encdec"),
        (TEXT, ENCDEC.model_copy(update={"vocabulary": 264}), None),
        (
            TEXT,
            ENCDEC.model_copy(update={"vocabulary": 263}),
            "model.vocabulary: 263 is below 264: 256 bytes and the special tokens",
        ),
        (DenoisingTask(kind="pydoc", samples=15), ENCDEC, "batch_size: 16 is more than the 15 training texts"),
    ],
)
def test_models_read_what_they_were_made_for(task: TaskSpec, model: ModelSpec, message: str | None) -> None:
    if message is None:
        check_compatible(task, model, 16)  # type: ignore[arg-type]
        return
    with pytest.raises(InputError) as error:
        check_compatible(task, model, 16)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_text_is_judged_by_its_lowest_loss_and_its_epochs_are_not_known_beforehand() -> None:
    assert task_kind(PYDOC).metric == task_kind(TEXT).metric == LOWEST_LOSS
    assert task_kind(ImageNetTask()).metric.name == "best_accuracy"
    with pytest.raises(InputError, match="the length of an epoch of task text depends on its data; give steps instead"):
        steps_per_epoch(TEXT, 512)


def test_missing_text_is_told_and_documentation_of_another_python_is_another_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(DataMissingError, match="pass --data DIR or set ETTSWEEP_TEXT=DIR"):
        check_data(TEXT)
    digest = pydoc_digest()
    check_data(DenoisingTask(kind="pydoc", corpus=digest))
    (tmp_path / "topics.py").write_text("topics = {}")
    monkeypatch.setattr(text_data, "pydoc_file", lambda: tmp_path / "topics.py")
    message = f"needs the text {digest}, but the documentation of this Python is"
    with pytest.raises(DataMissingError, match=message):
        check_data(DenoisingTask(kind="pydoc", corpus=digest))
