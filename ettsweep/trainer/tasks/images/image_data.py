"""Location and format of image data sets, found by listing a few folders. Imports no torch, and opens no image."""

import os
import re
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

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

Format = Literal["class folders", "tar files", "parquet files", "hub data set", "CIFAR's own files"]


@dataclass(frozen=True)
class StoredSide:
    """Location and format of one side of a data set.

    Attributes:
        paths: the folder of class folders; all tar files; for other formats, the folder or hub name of the data set,
            which is the same for both sides.
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
        return _locate_sides(resolve_data(data), task)
    except OSError as error:
        raise DataMissingError(f"task {task.name}: {error.filename}: {error.strerror}") from None


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
    # Users may name the folder itself, or the one that contains it.
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
    # Before jobs are submitted, each of which would fail.
    if form in ("parquet files", "hub data set"):
        check_installed(f"{name}: reading {form}", "datasets")
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
            if tars := [file for file in inner_files if file.endswith(".tar")]:
                return StoredSide(side, "tar files", tuple(str(root / name / tar) for tar in tars))
    for name in SPLITS[side]:
        # As a whole word, so that "retrain" is not "train".
        if tars := [f for f in files if f.endswith(".tar") and name in re.findall("[a-z]+", f.lower())]:
            return StoredSide(side, "tar files", tuple(str(root / tar) for tar in tars))
    return None


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
"""Share of the images that `with_own_counts` holds out for validation where there are no others."""


def check_counts(task: ImageTask, model: ModelSpec, data: str | None) -> None:
    """Compare the numbers of classes and images with task and model, if class folders can be counted quickly.

    Raises:
        DataMissingError: they differ, so every run would fail.
    """
    assert isinstance(model, ImageModel)
    for (location, counts), expected_size in zip(
        _count_both_sides(task, data), (task.train_size, task.val_size), strict=True
    ):
        if counts is None:  # not counted: each run compares them when it opens the data
            continue
        key = f"task.{location.side}_size"
        held_out = task.val_size if task.split_seed is not None else 0
        if len(counts) != model.classes:
            problem = f"{len(counts)} classes, the model has {model.classes}: --set model.classes={len(counts)}"
        elif held_out and sum(counts) != task.train_size + held_out:
            remaining = max(1, sum(counts) - held_out)
            problem = (
                f"{sum(counts)} images, task.train_size and task.val_size are {task.train_size} and {held_out}: "
                f"--set task.train_size={remaining}"
            )
        elif not held_out and sum(counts) != expected_size:
            problem = f"{sum(counts)} images, {key} is {expected_size}: --set {key}={sum(counts)}"
        else:
            continue
        raise DataMissingError(f"task {task.name}: {location.paths[0]} has {problem}")


def with_own_counts(task: ImageTask, data: str) -> ImageTask:
    """Return a task that accepts any images with the numbers of images in the data.

    If there are training images only, a fifth of them is held out for validation. The task is returned unchanged if
    counting takes too long.

    Raises:
        DataMissingError: there are no images in a supported layout.
    """
    try:
        (_, train), (_, val) = _count_both_sides(task, data)
    except DataMissingError:
        # Raises again unless there are images to hold out.
        (_, total), _ = _count_both_sides(task.model_copy(update={"split_seed": 0}), data)
        if not total:
            raise
        val_size = max(1, round(VALIDATION_SHARE * sum(total)))
        sizes = {"train_size": max(1, sum(total) - val_size), "val_size": val_size, "split_seed": 0}
        return task.model_copy(update=sizes)
    return task.model_copy(update={"train_size": sum(train), "val_size": sum(val)}) if train and val else task


def _count_both_sides(task: ImageTask, data: str | None) -> list[tuple[StoredSide, list[int] | None]]:
    """Return both sides, each with the number of images per class; None if it is unknown or takes too long to count."""
    deadline_s = time.monotonic() + COUNT_LIMIT_S
    return [
        (
            location,
            _count_per_class(Path(location.paths[0]), deadline_s) if location.format == "class folders" else None,
        )
        for location in locate(task, data)
    ]


def _count_per_class(folder: Path, deadline_s: float) -> list[int] | None:
    """Return the number of images of each class folder; None if a class has subfolders, or at the deadline."""
    counts = []
    for name in _list_folder(folder)[0]:
        inner_folders, files = _list_folder(folder / name)
        if inner_folders or time.monotonic() > deadline_s:
            return None
        counts.append(sum(map(_is_image, files)))
    return [count for count in counts if count]  # folders without images are no classes


def _is_image(file: str) -> bool:
    return file.lower().endswith(IMAGE_SUFFIXES)
