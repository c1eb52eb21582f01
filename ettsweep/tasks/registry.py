"""What the planner must know of each task, without torch: names, scores, sizes, and whether the data are there."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ettsweep.errors import DataMissingError, InputError, unknown_name
from ettsweep.spec import DigitsTask, ImageNetTask, TaskSpec, VitSpec

TASKS: dict[str, TaskSpec] = {"digits": DigitsTask(), "imagenet": ImageNetTask()}

IMAGENET_TRAIN_SIZE = 1_281_167
IMAGENET_ENV = "ETTSWEEP_IMAGENET"


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
    ImageNet: the best top-1 validation accuracy along the trajectory (fig:hyper-ViT).
    """
    match task:
        case DigitsTask():
            return Score("best_loss", "min")
        case ImageNetTask():
            return Score("best_accuracy", "max")


def steps_per_epoch(task: TaskSpec, batch_size: int) -> int:
    """Return the optimizer steps of one pass over the training set; the incomplete last batch is dropped."""
    size = task.train_size if isinstance(task, DigitsTask) else IMAGENET_TRAIN_SIZE
    return max(1, size // batch_size)


def check_fits(task: TaskSpec, model: VitSpec, batch_size: int) -> None:
    """Check that a model can be trained on a task.

    Raises:
        InputError: the image size, channels or classes differ, a batch is larger than the training set, or Mixup
            cannot pair its images.
    """
    shape = (8, 1, 10) if isinstance(task, DigitsTask) else (None, 3, 1000)
    wanted = dict(zip(("image_size", "channels", "classes"), shape, strict=True))
    problems = [
        f"model.{key}: task {task.kind} has {value}, got {getattr(model, key)}"
        for key, value in wanted.items()
        if value is not None and getattr(model, key) != value
    ]
    if isinstance(task, DigitsTask) and batch_size > task.train_size:
        problems.append(f"batch_size: {batch_size} is more than the {task.train_size} training images")
    if isinstance(task, ImageNetTask) and (task.mixup or task.cutmix) and batch_size % 2:
        problems.append(f"batch_size: Mixup pairs images, so an even number is needed, got {batch_size}")
    if problems:
        raise InputError.of(problems)


def check_data(task: TaskSpec) -> None:
    """Check that the data set is where a worker will look for it.

    Raises:
        DataMissingError: it is not; the message says how to point at it.
    """
    if isinstance(task, ImageNetTask):
        imagenet_folder()
    else:
        digits_file()


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


def imagenet_folder() -> Path:
    """Return the ImageNet folder, which holds train/ and val/ with a folder per class.

    Raises:
        DataMissingError: it is not given, or is not such a folder.
    """
    hint = (
        f"pass --data PATH or set {IMAGENET_ENV}=PATH, where PATH holds train/ and val/ "
        f"with one folder of images per class"
    )
    value = os.environ.get(IMAGENET_ENV)
    if not value:
        raise DataMissingError(f"task imagenet: no data set given; {hint}")
    folder = Path(value)
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise DataMissingError(f"task imagenet: {folder / part} is not a folder; {hint}")
    return folder
