"""The registry of tasks. Code that needs torch or the data is given by name, and imported at first use."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, TypeVar

from ettsweep.errors import InputError, unknown_name
from ettsweep.metric import Metric
from ettsweep.runs.data_location import configured_data
from ettsweep.trainer.specs import ModelSpec, TaskSpec
from ettsweep.trainer.tasks.data_location import digits_file
from ettsweep.trainer.tasks.images import image_data as images
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, Cifar100Task, DigitsTask, ImageNetTask, ImageTask
from ettsweep.trainer.tasks.images.image_task import incompatibilities as image_incompatibilities
from ettsweep.trainer.tasks.text import text_data as text
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, NextTokenTask, TextTask
from ettsweep.trainer.tasks.text.text_task import incompatibilities as text_incompatibilities

SomeTask = TypeVar("SomeTask", bound=TaskSpec)


LOWEST_LOSS = Metric("best_loss", "min", "val_loss", unit="nats", loss_unit="nats")
"""The lowest validation loss along the trajectory."""

BEST_ACCURACY = Metric(
    "best_accuracy", "max", "val_accuracy", loss_unit="nats", is_fraction=True, margin_is="difference"
)
"""The best top-1 validation accuracy along the trajectory."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of task. The functions take a task: an instance of `spec`.

    Their argument `data` is the location of the data: None if unknown, or if the data come with a package.

    Attributes:
        spec: schema of the task; its defaults are the task of this name.
        sample: noun for one sample.
        metric: metric that verdicts compare.
        incompatibilities: (task, model, batch size) -> reasons why the model cannot be trained on the task; empty if it
            can.
        check_data: (task, model or None, data) -> raises DataMissingError if the data of a run are missing.
        describe_data: (task, data) -> one line on the data; call it after `check_data`.
        load: `module:name` of (task, model, seed, device, BatchShare, LoaderSettings) -> Task; used after `check_data`.
        doctor: `module:function` of (task, model or None, data, number of samples to read or None) -> rows of
            `ettsweep doctor`; None without data to locate.
        train_size: task -> samples of an epoch; None if only the data tell, and curves are then drawn over steps.
        check_counts: (task, model, data) -> raises DataMissingError if a quick count contradicts the spec.
        data_digest: (task, data) -> digest of the data at hand, which binds a run to them as `spec.corpus`; None if
            runs are not bound to data.
        data_changed_message: message of the error if a run resumes on data with another fingerprint; None if it may.
        data_kind: task -> name of the data to locate, and of its environment variable; empty if they come with a
            package.
    """

    spec: type[TaskSpec]
    sample: Literal["image", "text"]
    metric: Metric
    incompatibilities: Callable[[Any, ModelSpec, int], list[str]]
    check_data: Callable[[Any, ModelSpec | None, str | None], object]
    describe_data: Callable[[Any, str | None], str]
    load: str
    doctor: str | None = None
    train_size: Callable[[Any], int] | None = None
    check_counts: Callable[[Any, ModelSpec, str | None], None] = lambda task, model, data: None
    data_digest: Callable[[Any, str | None], str] | None = None
    data_changed_message: str | None = None
    data_kind: Callable[[Any], str] = lambda task: str(task.kind)


def _image_kind(spec: type[ImageTask]) -> TaskKind:
    """Return the entry of an image data set on disk, judged by top-1 accuracy as in fig:hyper-ViT."""
    return TaskKind(
        spec=spec,
        sample="image",
        metric=BEST_ACCURACY,
        incompatibilities=image_incompatibilities,
        check_data=lambda task, model, data: images.locate(task, data),
        check_counts=images.check_counts,
        describe_data=lambda task, data: f"found: {images.locate(task, data)[0].format}",
        load="ettsweep.trainer.tasks.images.classification:Images",
        doctor="ettsweep.doctor.image_check:examine_images",
        train_size=lambda task: int(task.samples or task.train_size),
    )


_TEXT_CHANGED = (
    "the text has other tokens than when the run started, perhaps because of another version of `tokenizers`; "
    "resume with that version, or remove the run's folder to start over"
)


def _text_kind(spec: type[TextTask], load: str) -> TaskKind:
    """Return the entry of an objective on text, judged by its lowest loss as in fig:hyper-BART."""
    return TaskKind(
        spec=spec,
        sample="text",
        metric=LOWEST_LOSS,
        incompatibilities=text_incompatibilities,
        check_data=text.check_text,
        describe_data=text.describe_text,
        load=load,
        doctor="ettsweep.doctor.text_check:examine_text",
        data_digest=text.text_digest,
        data_changed_message=_TEXT_CHANGED,
        data_kind=text.data_kind,
    )


_DENOISING = _text_kind(DenoisingTask, "ettsweep.trainer.tasks.text.denoising:load_denoising")

# Names are part of the ids of runs: entries may be added, never renamed.
TASKS: dict[str, TaskKind] = {
    "digits": TaskKind(
        spec=DigitsTask,
        sample="image",
        metric=LOWEST_LOSS,  # accuracies on 1,000 validation images often tie
        incompatibilities=image_incompatibilities,
        check_data=lambda task, model, data: digits_file(),
        describe_data=lambda task, data: f"comes with scikit-learn {version('scikit-learn')}",
        load="ettsweep.trainer.tasks.images.digits:Digits",
        train_size=lambda task: int(task.samples or task.train_size),
        data_kind=lambda task: "",
    ),
    "images": _image_kind(ImageNetTask),  # another name of imagenet, for images of the user's own
    "imagenet": _image_kind(ImageNetTask),
    "cifar10": _image_kind(Cifar10Task),
    "cifar100": _image_kind(Cifar100Task),
    "pydoc": _DENOISING,  # names that span denoising had before it was called so, by its text
    "text": _DENOISING,
    "denoise": _DENOISING,
    "next_token": _text_kind(NextTokenTask, "ettsweep.trainer.tasks.text.next_token:load_next_token"),
}


def task_kind(task: TaskSpec) -> TaskKind:
    return TASKS[task.kind]


def task_spec(name: str) -> TaskSpec:
    """Return the task of this name with default values.

    Raises:
        InputError: there is no task of this name.
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name].spec.model_validate({"kind": name})


def steps_per_epoch(task: TaskSpec, batch_size: int) -> int:
    """Return the number of optimizer steps of one epoch; the incomplete last batch is dropped.

    Raises:
        InputError: the length of an epoch depends on the data.
    """
    if (train_size := task_kind(task).train_size) is None:
        raise InputError(
            f"schedule: the length of an epoch of task {task.kind} depends on its data; give steps instead of epochs"
        )
    return max(1, train_size(task) // batch_size)


def check_compatible(task: TaskSpec, model: ModelSpec, batch_size: int) -> None:
    """Check that a model can be trained on a task at this batch size.

    Raises:
        InputError: it cannot; the message lists all reasons.
    """
    if problems := task_kind(task).incompatibilities(task, model, batch_size):
        raise InputError.of(problems)


# --- the data of a task -----------------------------------------------------------------------------------------------


def located_data(task: TaskSpec, data: str | None) -> str | None:
    """Return the location of a task's data: `data` if given, else that of the environment; None if it needs none."""
    kind = task_kind(task).data_kind(task)
    return configured_data(kind, data) if kind else None


def check_data(task: TaskSpec, model: ModelSpec | None = None, data: str | None = None) -> None:
    """Check that workers can find the data of a task, and that they fit the model if one is given.

    Raises:
        DataMissingError: they are missing or do not fit; the message explains how to give their location.
        CorruptError: they were edited.
    """
    task_kind(task).check_data(task, model, located_data(task, data))


def bind_to_data(task: SomeTask, data: str | None = None) -> SomeTask:
    """Return the task bound to the data at hand by their digest; unchanged if it is bound, or never is.

    Raises:
        DataMissingError: the data are missing.
    """
    if (digest := task_kind(task).data_digest) is None or getattr(task, "corpus", None) is not None:
        return task
    return task.model_copy(update={"corpus": digest(task, located_data(task, data))})
