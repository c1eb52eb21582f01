"""What the planner must know of each task, without torch: names, scores, sizes, and whether the data are there."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ettsweep.errors import DataMissingError, InputError, unknown_name
from ettsweep.spec import Cifar10Task, Cifar100Task, DigitsTask, ImageNetTask, ImageTask, TaskSpec, VitSpec
from ettsweep.tasks.location import locate

TASKS: dict[str, TaskSpec] = {
    "digits": DigitsTask(),
    "imagenet": ImageNetTask(),
    "cifar10": Cifar10Task(),
    "cifar100": Cifar100Task(),
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
    """
    if isinstance(task, DigitsTask):
        return Score("best_loss", "min")
    return Score("best_accuracy", "max")


def steps_per_epoch(task: TaskSpec, batch_size: int) -> int:
    """Return the optimizer steps of one pass over the training set; the incomplete last batch is dropped."""
    return max(1, task.train_size // batch_size)


def check_fits(task: TaskSpec, model: VitSpec, batch_size: int) -> None:
    """Check that a model can be trained on a task.

    Raises:
        InputError: the image size, channels or classes differ, a batch is larger than the training set, or Mixup
            cannot pair its images.
    """
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
    if problems:
        raise InputError.of(problems)


def wanted(task: TaskSpec) -> dict[str, int]:
    """Return what the data say of a model."""
    match task:
        case DigitsTask():
            return {"image_size": 8, "channels": 1, "classes": 10}
        case Cifar10Task():
            return {"channels": 3, "classes": 10}
        case Cifar100Task():
            return {"channels": 3, "classes": 100}
        case ImageNetTask() if task.train_size == ImageNetTask().train_size:
            return {"channels": 3, "classes": 1000}
        case ImageNetTask():  # another set of images; how many classes it has, only the data say
            return {"channels": 3}


def _own(task: TaskSpec, key: str) -> str:
    """Return what to do where the images are meant to be others."""
    other = isinstance(task, ImageNetTask) and key == "classes"
    return "; for images of your own, state task.train_size and task.val_size" if other else ""


def check_data(task: TaskSpec) -> None:
    """Check that the data set is where a worker will look for it.

    Raises:
        DataMissingError: it is not; the message says how to point at it.
    """
    if isinstance(task, ImageTask):
        locate(task)
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
