"""Tasks: one table, an entry says everything of one; what needs torch or the data is named, and imported at use."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, TypeVar

from ettsweep.errors import InputError, unknown_name
from ettsweep.files import Json, number
from ettsweep.runs.spec import ModelSpec, TaskSpec
from ettsweep.trainer.tasks.data_location import digits_file, said
from ettsweep.trainer.tasks.images import image_data as images
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, Cifar100Task, DigitsTask, ImageNetTask, ImageTask
from ettsweep.trainer.tasks.images.image_task import misfits as image_misfits
from ettsweep.trainer.tasks.text import text_data as text
from ettsweep.trainer.tasks.text.text_task import PydocTask, TextTask
from ettsweep.trainer.tasks.text.text_task import misfits as text_misfits

SomeTask = TypeVar("SomeTask", bound=TaskSpec)


def evaluated(metric: str) -> str:
    """Return the column of evaluations that a metric of result.json is the best of."""
    return metric.replace("best_", "val_")


@dataclass(frozen=True)
class Metric:
    """The column of result.json that a verdict compares, and whether less or more is better."""

    metric: Literal["best_loss", "best_accuracy"]
    mode: Literal["min", "max"]

    def best_so_far(self, evaluations: Iterable[Json]) -> dict[int, float]:
        """Return the best score so far after each evaluation of a run, by step, given lines of metrics.jsonl."""
        column = evaluated(self.metric)
        best_by_step: dict[int, float] = {}
        best = None
        for line in evaluations:
            value = number(line.get(column))
            best = value if value is not None and self.better(value, best) else best
            if best is not None and isinstance(step := line.get("step"), int):
                best_by_step[step] = best
        return best_by_step

    def better(self, a: float | None, b: float | None) -> bool:
        """Say whether score `a` beats `b`; None (diverged) is the worst there is."""
        return self.rank(a) < self.rank(b)

    def worse_by(self, a: float, b: float) -> float:
        """Return by how much score `a` is worse than `b`; negative where it is better."""
        return a - b if self.mode == "min" else b - a

    def format_share(self, share: float) -> str:
        """Return for people a share of a loss, or of all samples where accuracies differ by it.

        It is rounded up to two digits, for a bound holds up to it.
        """
        percent = 100 * share
        digits = 1 - math.floor(math.log10(abs(percent))) if percent else 0
        rounded_up = math.ceil(round(percent * 10.0**digits, 6)) / 10.0**digits
        return f"{rounded_up:g}%" if self.mode == "min" else f"{rounded_up:g} points"

    def rank(self, score: float | None) -> float:
        """Return what sorts scores, the best first and diverged ones last."""
        return math.inf if score is None else self.worse_by(score, 0.0)


LOWEST_LOSS = Metric("best_loss", "min")
"""The lowest validation loss along the trajectory."""

BEST_ACCURACY = Metric("best_accuracy", "max")
"""The best top-1 validation accuracy along the trajectory."""


@dataclass(frozen=True)
class TaskKind:
    """All that is to be said of a task. Functions are given a task: an instance of `spec`.

    `data` is where its data are: None where nobody has said so, or where they come with a package.

    Attributes:
        spec: its schema; with its defaults it is the task of this name.
        sample: what one sample is called.
        score: what verdicts compare.
        misfits: why a model cannot be trained on it at a batch size; nothing where it can.
        check: raises DataMissingError where the data of a run, for a model that may not be known, are not there.
        found: what there is of data, in words, once `check` has passed.
        load: `module:name` of what returns the tasks.base.Task of a run, once `check` has passed, given task, model,
            seed, device, Share and Loading.
        doctor: `module:function` that examines all of the data, given task, model or None, `data`, and how many samples
            to read or None; it returns rows of `ettsweep doctor`. None where the data come with a package.
        train_size: samples of an epoch; None where only the data say, and curves are drawn over steps.
        check_counts: compares at a glance how many data there are with what a run needs.
        fitted: task and model with what the data decide, such as the number of classes, as far as a glance tells.
        digest: of the data at hand; None where a run is not bound to them by the digits in `spec.corpus`.
        changed: why a run cannot go on where its data have another fingerprint; None where it can.
    """

    spec: type[TaskSpec]
    sample: Literal["image", "text"]
    score: Metric
    misfits: Callable[[Any, ModelSpec, int], list[str]]
    check: Callable[[Any, ModelSpec | None, str | None], object]
    found: Callable[[Any, str | None], str]
    load: str
    doctor: str | None = None
    train_size: Callable[[Any], int] | None = None
    check_counts: Callable[[Any, ModelSpec, str | None], None] = lambda task, model, data: None
    fitted: Callable[[Any, ModelSpec, str], tuple[TaskSpec, ModelSpec]] = lambda task, model, data: (task, model)
    digest: Callable[[Any, str | None], str] | None = None
    changed: str | None = None

    @property
    def packaged(self) -> bool:
        """Whether the data come with a package, so that nobody has to say where they are."""
        return self.doctor is None


def _images(spec: type[ImageTask]) -> TaskKind:
    """Return the entry of a set of images on a disk: judged by top-1 accuracy, as in fig:hyper-ViT."""
    return TaskKind(
        spec=spec,
        sample="image",
        score=BEST_ACCURACY,
        misfits=image_misfits,
        check=lambda task, model, data: images.locate(task, data),
        check_counts=images.check_counts,
        fitted=images.fitted,
        found=lambda task, data: f"found: {images.locate(task, data)[0].format}",
        load="ettsweep.trainer.tasks.images.classification:Images",
        doctor="ettsweep.doctor.image_check:examine_images",
        train_size=lambda task: int(task.samples or task.train_size),
    )


_TEXT_CHANGED = (
    "the text has other tokens than when the run began, made by another version of `tokenizers` perhaps; "
    "train it there, or remove the run's folder to begin anew"
)

TASKS: dict[str, TaskKind] = {
    "digits": TaskKind(
        spec=DigitsTask,
        sample="image",
        score=LOWEST_LOSS,  # accuracies on 1,000 images tie
        misfits=image_misfits,
        check=lambda task, model, data: digits_file(),
        found=lambda task, data: f"comes with scikit-learn {version('scikit-learn')}",
        load="ettsweep.trainer.tasks.images.digits:Digits",
        train_size=lambda task: int(task.samples or task.train_size),
    ),
    "imagenet": _images(ImageNetTask),
    "cifar10": _images(Cifar10Task),
    "cifar100": _images(Cifar100Task),
    "pydoc": TaskKind(
        spec=PydocTask,
        sample="text",
        score=LOWEST_LOSS,  # as in fig:hyper-BART
        misfits=text_misfits,
        check=text.check_pydoc,
        found=lambda task, data: f"comes with Python, {text.pydoc_digest(task, data)}",
        load="ettsweep.trainer.tasks.text.denoising:load_denoising",
        digest=text.pydoc_digest,
        changed=_TEXT_CHANGED,
    ),
    "text": TaskKind(
        spec=TextTask,
        sample="text",
        score=LOWEST_LOSS,
        misfits=text_misfits,
        check=text.check_text,
        found=lambda task, data: f"found: {text.text_folder(data)}, {text.text_digest(task, data)}",
        load="ettsweep.trainer.tasks.text.denoising:load_denoising",
        doctor="ettsweep.doctor.text_check:examine_text",
        fitted=text.with_data,
        digest=text.text_digest,
        changed=_TEXT_CHANGED,
    ),
}


def task_kind(task: TaskSpec) -> TaskKind:
    return TASKS[task.kind]


def task_spec(name: str) -> TaskSpec:
    """Return the task of this name with its defaults.

    Raises:
        InputError: there is none.
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name].spec(kind=name)


def task_label(task: TaskSpec) -> str:
    """Return the task's name, with the digits of the data that its runs are bound to."""
    corpus = getattr(task, "corpus", None)
    return f"{task.kind} {corpus}" if corpus else task.kind


def steps_per_epoch(task: TaskSpec, batch_size: int) -> int:
    """Return the optimizer steps of one pass over the training set; the incomplete last batch is dropped.

    Raises:
        InputError: how many samples there are, only the data say.
    """
    if (train_size := task_kind(task).train_size) is None:
        raise InputError(f"schedule: the epochs of task {task.kind} are as long as its data; give steps instead")
    return max(1, train_size(task) // batch_size)


def curve_unit(task: TaskSpec, batch_size: int) -> tuple[Literal["epoch", "step"], int]:
    """Return what curves are drawn over, and how many steps it has."""
    return ("step", 1) if task_kind(task).train_size is None else ("epoch", steps_per_epoch(task, batch_size))


def check_fits(task: TaskSpec, model: ModelSpec, batch_size: int) -> None:
    """Check that a model can be trained on a task, and is not for images where this is text, say.

    Raises:
        InputError: it cannot, for one is for images and the other for text, say; all reasons at once.
    """
    if problems := task_kind(task).misfits(task, model, batch_size):
        raise InputError.of(problems)


# --- data: `data` says where they are, where that is known ------------------------------------------------------------


def check_data(task: TaskSpec, model: ModelSpec | None = None, data: str | None = None) -> None:
    """Check that the data set is where a worker will look for it, for a model where that is known.

    Raises:
        DataMissingError: it is not; the message says how to point at it.
        CorruptError: it is there, and was edited.
    """
    task_kind(task).check(task, model, said(task.kind, data))


def bound(task: SomeTask, data: str | None = None) -> SomeTask:
    """Return the task with the digest of the data at hand, where its runs are bound to them and it states none.

    Raises:
        DataMissingError: there are no data.
    """
    if (digest := task_kind(task).digest) is None or getattr(task, "corpus", None) is not None:
        return task
    return task.model_copy(update={"corpus": digest(task, said(task.kind, data))})
