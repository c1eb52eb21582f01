"""Location and format of image data sets, found by listing a few folders. Imports no torch, and opens no image."""

import os
import re
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from ettsweep.errors import DataMissingError
from ettsweep.extras import check_installed
from ettsweep.runs.data_location import data_env, resolve_data
from ettsweep.trainer.specs import ImageModel, ModelSpec
from ettsweep.trainer.tasks.data_location import Side
from ettsweep.trainer.tasks.images.image_task import ImageTask

CIFAR_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
"""The folder in which each data set is distributed."""

SPLITS: dict[Side, tuple[str, ...]] = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}
"""Names of the folders or splits of both sides; of several that exist, the first is used."""

HUB_NAME = re.compile(r"hfds/[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

LAYOUTS = (
    "a folder with train/ and val/, and in them a folder of images per class or tar files; with tar or WebDataset "
    "files called *train*.tar and *val*.tar; or with parquet files; or hfds/OWNER/NAME, a data set of the hub "
    "(docs/data.md)"
)

Format = Literal[
    "class folders", "tar files", "WebDataset shards", "parquet files", "hub data set", "CIFAR's own files"
]

TABLES = ("WebDataset shards", "parquet files", "hub data set")
"""Formats that `datasets` reads."""


@dataclass(frozen=True)
class StoredSide:
    """Location and format of one side of a data set.

    Attributes:
        paths: the folder of class folders; all tar files or shards; for other formats, the folder or hub name of the
            data set, which is the same for both sides.
    """

    side: Side
    format: Format
    paths: tuple[str, ...]


def guess_task(data: str) -> str:
    """Return the name of the task for a data set: cifar10 or cifar100 for CIFAR's own files, else images."""
    folder = Path(data)
    names = [folder.name, *(os.listdir(folder) if folder.is_dir() else [])]
    return next((kind for kind, name in CIFAR_FOLDERS.items() if name in names), "images")


def locate(task: ImageTask, data: str | None) -> tuple[StoredSide, StoredSide]:
    """Return the locations of a task's training and validation images.

    Both are the same if validation images are to be held out (`split_seed`).

    Raises:
        DataMissingError: no location was given, or there are no images in a supported layout.
    """
    if data is None:
        variable = data_env(task.kind)
        raise DataMissingError(
            f"task {task.name}: no data set given; pass --data PATH or set {variable}=PATH\nPATH is {LAYOUTS}"
        )
    try:
        sides = _locate_sides(resolve_data(data), task)
    except OSError as error:
        raise DataMissingError(f"task {task.name}: {error.filename}: {error.strerror}") from None
    for side in sides:
        if side.format in TABLES:  # before jobs are submitted, each of which would fail
            check_installed(f"{side.paths[0]}: reading {side.format}", "datasets")
    return sides


def _locate_sides(data: str, task: ImageTask) -> tuple[StoredSide, StoredSide]:
    if data.startswith("hfds/"):
        if not HUB_NAME.fullmatch(data):
            raise DataMissingError(
                f"task {task.name}: {data!r} is not the name of a data set on the hub: expected hfds/OWNER/NAME"
            )
        return _both_sides("hub data set", data.removeprefix("hfds/"))
    root, takes = Path(data), f"--data takes {LAYOUTS}"
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise DataMissingError(f"task {task.name}: {root} {problem}; {takes}")
    # Users may name the folder itself, or its parent.
    for original in (root / CIFAR_FOLDERS[task.kind], root) if task.kind in CIFAR_FOLDERS else ():
        if original.name == CIFAR_FOLDERS[task.kind] and original.is_dir():
            return _both_sides("CIFAR's own files", str(original.parent))
    folders, files = _list_folder(root)
    train, val = (_find_side(root, side, folders, files) for side in SPLITS)
    if train and val and task.split_seed is None:
        return train, val
    unsplit = train or _find_classes(root, folders)
    if unsplit and task.split_seed is not None:
        return unsplit, replace(unsplit, side="val")
    if _has_parquet(root, folders, files):
        return _both_sides("parquet files", data)
    missing = " and ".join(f"no {side}/" for side, location in zip(SPLITS, (train, val), strict=True) if not location)
    contents = ", ".join([*(f"{name}/" for name in folders), *files][:6]) or "nothing"
    if unsplit and unsplit.format == "class folders" and not val and task.accepts_any_images:
        hint = "--set task.split_seed=0 holds out task.val_size of its images, the same ones in every run"
        raise DataMissingError(f"task {task.name}: {root} has no validation images; {hint}")
    raise DataMissingError(f"task {task.name}: {root} has {missing}: it holds {contents}; {takes}")


def _find_classes(root: Path, folders: list[str]) -> StoredSide | None:
    """Return a folder itself as the training images if two of its first ten folders hold images; else None."""
    classes = (name for name in folders[:10] if any(map(_is_image, _list_folder(root / name)[1])))
    return StoredSide("train", "class folders", (str(root),)) if len(list(islice(classes, 2))) == 2 else None


def _both_sides(form: Format, name: str) -> tuple[StoredSide, StoredSide]:
    return StoredSide("train", form, (name,)), StoredSide("val", form, (name,))


def _list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the files in a folder, without hidden ones."""
    with os.scandir(folder) as entries:
        named_kinds = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    return [name for name, is_dir in named_kinds if is_dir], [name for name, is_dir in named_kinds if not is_dir]


def _find_side(root: Path, side: Side, folders: list[str], files: list[str]) -> StoredSide | None:
    """Return the location of a side with a folder of its own, or with tar files named after it; else None."""
    for name in SPLITS[side]:
        if name in folders:
            inner_folders, inner_files = _list_folder(root / name)
            if inner_folders:
                return StoredSide(side, "class folders", (str(root / name),))
            if tars := [str(root / name / file) for file in inner_files if file.endswith(".tar")]:
                return StoredSide(side, _tar_format(tars[0]), tuple(tars))
    for name in SPLITS[side]:
        # As a whole word: "retrain" is not "train".
        if tars := [str(root / f) for f in files if f.endswith(".tar") and name in re.findall("[a-z]+", f.lower())]:
            return StoredSide(side, _tar_format(tars[0]), tuple(tars))
    return None


def _tar_format(path: str) -> Format:
    """Return whether a tar has labels beside its first images, as a WebDataset shard has them."""
    with suppress(tarfile.TarError), tarfile.open(path, "r:") as tar:  # its reader reports a damaged one
        if any(Path(entry.name).suffix in (".cls", ".json") for entry in islice(tar, SAMPLE_FILES)):
            return "WebDataset shards"
    return "tar files"


SAMPLE_FILES = 10
"""More files than the first sample of a WebDataset shard has."""


def _has_parquet(root: Path, folders: list[str], files: list[str]) -> bool:
    """Return `True` if a folder or one of its first ten subfolders has parquet files."""
    return any(f.endswith(".parquet") for f in files) or any(
        f.endswith(".parquet") for folder in folders[:10] for f in _list_folder(root / folder)[1]
    )


COUNT_LIMIT_S = 2.0
"""Time limit for counting images before jobs are submitted, in seconds: enough for all but large data sets."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
"""Suffixes of the files that timm reads as images, in lower or upper case."""


VALIDATION_SHARE = 0.2
"""Share of the images that `with_own_counts` holds out if there are no validation images."""


class Contents(NamedTuple):
    """Names of the classes of one side, and its number of images."""

    classes: Sequence[str]
    images: int


def mismatches(task: ImageTask, classes: int | None, train: Contents, val: Contents) -> list[str]:
    """Return how images differ from the spec of a task; empty if they do not.

    `classes` is the number of classes of the model; None does not compare it.
    """
    problems = []
    if train.classes != val.classes:
        for side, other, name in ((train, val, "training"), (val, train, "validation")):
            others = set(other.classes)
            if unmatched := [label for label in side.classes if label not in others]:
                problems.append(f"{len(unmatched)} classes are in the {name} images only: {', '.join(unmatched[:20])}")
        problems = problems or ["training and validation images have their classes in different orders"]
    if classes is not None and len(train.classes) != classes:
        data_classes = len(train.classes)
        problems.append(
            f"the data have {data_classes} classes, the model has {classes}: --set model.classes={data_classes}"
        )
    # The length of an epoch, and so the schedule, depends on these sizes.
    for key, found in (("train_size", train.images), ("val_size", val.images)):
        expected = getattr(task, key)
        if found != expected:
            hint = f"{'complete them, or ' if found < expected else ''}--set task.{key}={found}"
            problems.append(f"found {found} images, task.{key} is {expected}: {hint}")
    return problems


def check_counts(task: ImageTask, model: ModelSpec, data: str | None) -> None:
    """Compare the numbers of classes and images with task and model, if class folders can be counted quickly.

    Raises:
        DataMissingError: they differ, so every run would fail.
    """
    assert isinstance(model, ImageModel)
    train, val = _count(locate(task, data))
    if train is None or val is None:  # each run compares them when it opens the data
        return
    if task.split_seed is not None:
        held_out = min(task.val_size, train.images)
        train, val = train._replace(images=train.images - held_out), val._replace(images=held_out)
    if problems := mismatches(task, model.classes, train, val):
        raise DataMissingError("\n".join(f"task {task.name}: {data}: {line}" for line in problems))


def with_own_counts(task: ImageTask, data: str) -> ImageTask:
    """Return a task that accepts any images with the numbers of images in the data.

    If there are training images only, a fifth of them is held out for validation. The task is returned unchanged if
    counting takes too long.

    Raises:
        DataMissingError: there are no images in a supported layout.
    """
    try:
        train, val = _count(locate(task, data))
    except DataMissingError:
        # Raises again unless there are images to hold out.
        train, _ = _count(locate(task.model_copy(update={"split_seed": 0}), data))
        if train is None or not train.images:
            raise
        val_size = max(1, round(VALIDATION_SHARE * train.images))
        sizes = {"train_size": max(1, train.images - val_size), "val_size": val_size, "split_seed": 0}
        return task.model_copy(update=sizes)
    return task.model_copy(update={"train_size": train.images, "val_size": val.images}) if train and val else task


def _count(sides: tuple[StoredSide, StoredSide]) -> list[Contents | None]:
    """Return the contents of both sides; None for other formats than class folders, and after `COUNT_LIMIT_S`."""
    deadline_s = time.monotonic() + COUNT_LIMIT_S
    return [
        _count_per_class(Path(side.paths[0]), deadline_s) if side.format == "class folders" else None for side in sides
    ]


def _count_per_class(folder: Path, deadline_s: float) -> Contents | None:
    """Return the contents of class folders; None if a class has subfolders, or at the deadline."""
    counts = dict[str, int]()
    for name in _list_folder(folder)[0]:
        inner_folders, files = _list_folder(folder / name)
        if inner_folders or time.monotonic() > deadline_s:
            return None
        if count := sum(map(_is_image, files)):  # folders without images are no classes
            counts[name] = count
    return Contents(list(counts), sum(counts.values()))


def _is_image(file: str) -> bool:
    return file.lower().endswith(IMAGE_SUFFIXES)
