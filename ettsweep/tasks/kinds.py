"""What the planner must know of each task, without torch: names, scores, sizes, and whether the data are there."""

import hashlib
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ettsweep.errors import DataMissingError, InputError, unknown_name
from ettsweep.spec import (
    Cifar10Task,
    Cifar100Task,
    CorpusTask,
    DenoisingTask,
    DigitsTask,
    EncDecSpec,
    ImageNetTask,
    ImageSetTask,
    ImageTask,
    ModelSpec,
    PydocTask,
    TaskSpec,
    TextTask,
    VitSpec,
)
from ettsweep.tasks.images.location import data_env, locate
from ettsweep.tasks.text.manifest import Manifest, read_manifest
from ettsweep.vocabulary import vocabulary_size

TASKS: dict[str, TaskSpec] = {
    "digits": DigitsTask(),
    "imagenet": ImageNetTask(),
    "cifar10": Cifar10Task(),
    "cifar100": Cifar100Task(),
    "pydoc": PydocTask(),
    "text": TextTask(),
}


@dataclass(frozen=True)
class Score:
    """The column of result.json that a verdict compares, and whether less or more is better."""

    metric: Literal["best_loss", "best_accuracy"]
    mode: Literal["min", "max"]

    def better(self, a: float | None, b: float | None) -> bool:
        """Say whether score `a` beats `b`; None (diverged) is the worst there is."""
        if a is None or b is None:
            return a is not None
        return a < b if self.mode == "min" else a > b


def task_spec(name: str) -> TaskSpec:
    """Return the task of this name with its defaults.

    Raises:
        InputError: there is none.
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name]


def score(task: TaskSpec) -> Score:
    """Return what is compared.

    Digits: the lowest validation loss along the trajectory, since accuracies on 1,000 images tie.
    Images: the best top-1 validation accuracy along the trajectory (fig:hyper-ViT).
    Text: the lowest validation loss along it (fig:hyper-BART).
    """
    if isinstance(task, DigitsTask | DenoisingTask):
        return Score("best_loss", "min")
    return Score("best_accuracy", "max")


def steps_per_epoch(task: TaskSpec, batch_size: int) -> int:
    """Return the optimizer steps of one pass over the training set; the incomplete last batch is dropped.

    Raises:
        InputError: how many samples there are, only the data say.
    """
    if isinstance(task, DenoisingTask):
        raise InputError(f"schedule: the epochs of task {task.kind} are as long as its data; give steps instead")
    return max(1, task.train_size // batch_size)


def check_fits(task: TaskSpec, model: ModelSpec, batch_size: int) -> None:
    """Check that a model can be trained on a task.

    Raises:
        InputError: one is for images and the other for text; the image size, channels or classes differ, the vocabulary
            is too small, a batch is larger than the training set, or Mixup cannot pair its images.
    """
    if isinstance(task, DenoisingTask):
        problems = _misfits(task, model)
    elif isinstance(model, VitSpec):
        problems = _image_misfits(task, model, batch_size)
    else:
        problems = [f"model: task {task.kind} has images, which {model.kind} cannot read; a vit is expected"]
    if problems:
        raise InputError.of(problems)


def _misfits(task: CorpusTask, model: ModelSpec) -> list[str]:
    if not isinstance(model, EncDecSpec):
        return [f"model: task {task.kind} has text, which {model.kind} cannot read; an encdec is expected"]
    least = vocabulary_size(BYTES)
    if model.vocabulary < least:
        return [f"model.vocabulary: {model.vocabulary} is below {least}, the {BYTES} bytes and special tokens"]
    return []


def _image_misfits(task: ImageSetTask, model: VitSpec, batch_size: int) -> list[str]:
    problems = [
        f"model.{key}: task {task.kind} has {value}, got {getattr(model, key)}{_own(task, key)}"
        for key, value in wanted(task).items()
        if getattr(model, key) != value
    ]
    if batch_size > task.train_size:
        problems.append(f"batch_size: {batch_size} is more than the {task.train_size} training images")
    if isinstance(task, ImageTask):
        if (task.mixup or task.cutmix) and batch_size % 2:
            problems.append(
                f"batch_size: Mixup pairs images, so an even number is needed, got {batch_size}; "
                "or --set task.mixup=0 --set task.cutmix=0"
            )
        if task.resize < model.image_size:
            problems.append(f"task.resize: {task.resize} is below model.image_size {model.image_size}")
    return problems


def wanted(task: ImageSetTask) -> dict[str, int]:
    """Return what images say of a model."""
    match task:
        case DigitsTask():
            return {"image_size": 8, "channels": 1, "classes": 10}
        case Cifar10Task():
            return {"channels": 3, "classes": 10}
        case Cifar100Task():
            return {"channels": 3, "classes": 100}
        case ImageNetTask() if task.train_size == ImageNetTask().train_size:
            return {"channels": 3, "classes": 1000}
        case _:  # another set of images; how many classes it has, only the data say
            return {"channels": 3}


def _own(task: ImageSetTask, key: str) -> str:
    """Return what to do where the images are meant to be others."""
    other = isinstance(task, ImageNetTask) and key == "classes"
    return "; for images of your own, state task.train_size and task.val_size" if other else ""


def check_data(task: TaskSpec, model: ModelSpec | None = None) -> None:
    """Check that the data set is where a worker will look for it.

    Args:
        task: what the data are for.
        model: what is to read them, where that is known.

    Raises:
        DataMissingError: it is not; the message says how to point at it.
        CorruptError: it is there, and was edited.
    """
    match task:
        case ImageTask():
            locate(task)
        case DigitsTask():
            digits_file()
        case _:
            check_corpus(task, model)


BYTES = 256
"""Tokens of the smallest byte-level encoding."""


def check_corpus(task: CorpusTask, model: ModelSpec | None) -> None:
    """Check that the text at hand is the one that a run was made for, and that a model knows its tokens.

    Raises:
        DataMissingError: it is not there, or is another one.
    """
    found = corpus_at_hand(task)
    if task.corpus not in (None, found):
        where = "the documentation of this Python" if isinstance(task, PydocTask) else str(text_folder())
        raise DataMissingError(
            f"task {task.kind}: the run was made for the text {task.corpus}, and {where} is {found}: "
            "other text, or tokenised otherwise"
        )
    if isinstance(task, TextTask) and isinstance(model, EncDecSpec):
        tokens = text_manifest().n_vocab
        if tokens != model.vocabulary:
            raise DataMissingError(
                f"task {task.kind}: {text_folder()} was tokenised with a vocabulary of {tokens}, the model has "
                f"{model.vocabulary}: --set model.vocabulary={tokens}, or tokenise with another --tokenizer"
            )


PYDOC_RULES = 1
"""Counts how Python's documentation has become tokens: raise it with any change of tasks/pydoc.py, or of the sentences
and the encoding in tasks/tokenizer.py. Runs made for other tokens are other runs."""


def corpus_at_hand(task: CorpusTask) -> str:
    """Return the 12 hex digits of the text at hand, as they are in the id of its runs.

    Raises:
        DataMissingError: there is none.
    """
    if isinstance(task, PydocTask):
        return hashlib.sha256(f"{PYDOC_RULES} ".encode() + pydoc_file().read_bytes()).hexdigest()[:12]
    return text_manifest().digest


def text_folder() -> Path:
    """Return the folder of tokenised text that --data or the environment names.

    Raises:
        DataMissingError: neither does.
    """
    variable = data_env("text")
    value = os.environ.get(variable)
    if not value:
        raise DataMissingError(
            f"task text: no text given; pass --data DIR or set {variable}=DIR, the folder that "
            "`ettsweep data text --input FILES --out DIR` has written"
        )
    return Path(value)


def text_manifest() -> Manifest:
    """Return what the folder of tokenised text says of itself.

    Raises:
        DataMissingError: there is none, or it is not finished.
        CorruptError: it was edited.
    """
    return read_manifest(text_folder())


def pydoc_file() -> Path:
    """Return the file of Python's documentation.

    Raises:
        DataMissingError: this Python comes without it.
    """
    package = find_spec("pydoc_data.topics")
    if package is None or not package.origin or not Path(package.origin).is_file():
        raise DataMissingError(
            "task pydoc: this Python has no pydoc_data/topics.py; install its standard library whole "
            "(Debian: libpython3-stdlib)"
        )
    return Path(package.origin)


def digits_file() -> Path:
    """Return the file of digits that comes with scikit-learn, without importing it.

    Raises:
        DataMissingError: scikit-learn is not installed, or no longer keeps the file there.
    """
    package = find_spec("sklearn")
    folder = Path(package.origin).parent if package and package.origin else Path("sklearn")
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataMissingError(f"task digits: {path} is missing; pip install scikit-learn")
    return path
