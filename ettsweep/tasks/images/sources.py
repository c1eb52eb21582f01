"""Sets of images with random access, from what lies on a disk: one source each for training and validation."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError
from ettsweep.tasks.images.hub import open_hub
from ettsweep.tasks.images.location import ORIGINAL, Place, locate
from ettsweep.tasks.images.spec import ImageTask
from ettsweep.tasks.images.stored import ImageSource
from ettsweep.tasks.images.tars import TarSource


def open_sources(task: ImageTask, classes: int, data: str | None) -> tuple[ImageSource, ImageSource]:
    """Return the images of training and validation, after checks of what a run relies on.

    Raises:
        DataMissingError: they are not there, or not those of the task; the message says what would work.
    """
    train, val = (open_source(place, task.kind) for place in locate(task, data))
    wrong = mismatches(task, classes, train, val)
    if wrong:
        raise DataMissingError("\n".join(f"task {task.kind}: {line}" for line in wrong))
    return train, val


def mismatches(task: ImageTask, classes: int | None, train: ImageSource, val: ImageSource) -> list[str]:
    """Return in what the images are not those that a task names; `classes` of the model, None for any."""
    wrong = []
    if train.classes != val.classes:
        for here, there, part in ((train, val, "training"), (val, train, "validation")):
            only = [name for name in here.classes if name not in set(there.classes)]
            if only:
                wrong.append(f"{len(only)} classes are in the {part} images only: {', '.join(only[:20])}")
        wrong = wrong or ["training and validation images number their classes differently"]
    if classes is not None and len(train.classes) != classes:
        wrong.append(
            f"{len(train.classes)} classes are there, the model has {classes}: --set model.classes={len(train.classes)}"
        )
    for key, source in (("train_size", train), ("val_size", val)):
        wanted = getattr(task, key)
        if len(source) != wanted:
            cure = f"{'complete them, or ' if len(source) < wanted else ''}--set task.{key}={len(source)}"
            wrong.append(f"{len(source)} images are there, task.{key} is {wanted}: {cure}")
    return wrong


def open_source(place: Place, kind: str) -> ImageSource:
    """Return the images of one part of a data set; a process that trains many runs lists them once.

    Raises:
        DataMissingError: there are none, or they are not what they seem to be.
    """
    stats = [Path(path).stat() for path in place.paths if Path(path).exists()]
    return _listed(place, kind, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=4)
def _listed(place: Place, kind: str, stamps: tuple[tuple[int, int], ...]) -> ImageSource:
    """List images; `stamps` tell whether what was listed is what is there."""
    match place.format:
        case "class folders":
            return FolderSource(place)
        case "tar files":
            return TarSource(place.paths)
        case "CIFAR's own files":
            return _original(place, kind)
        case "parquet files" | "hub data set":
            return open_hub(place)


class FolderSource:
    """A folder with a folder of images per class, in timm's order."""

    def __init__(self, place: Place) -> None:
        from timm.data.dataset_factory import create_dataset

        self._root = Path(place.paths[0])
        try:
            reader = create_dataset("", root=place.paths[0], search_split=False).reader
        except RuntimeError as error:
            raise DataMissingError(str(error)) from None
        self.classes: list[str] = list(reader.class_to_idx)
        self.labels = np.array([label for _, label in reader.samples], np.int64)
        # One array, since workers that count references to a million texts would each copy all of them.
        start = len(place.paths[0].rstrip(os.sep)) + 1
        self._paths = np.array([os.fsencode(path[start:]) for path, _ in reader.samples])

    def __len__(self) -> int:
        return len(self.labels)

    def _path(self, index: int) -> Path:
        return self._root / os.fsdecode(self._paths[index])

    def name(self, index: int) -> str:
        """Return the path."""
        return str(self._path(index))

    def read(self, index: int) -> bytes:
        """Return the content of the file."""
        return self._path(index).read_bytes()


class ArraySource:
    """Images that are in memory as pixels."""

    def __init__(self, data: Any, where: str) -> None:
        self.classes = list(data.classes)
        self.labels = np.array(data.targets, dtype=np.int64)
        self._pixels_NHWC: NDArray[np.uint8] = data.data
        self._where = where

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """Return the place in the file."""
        return f"{self._where}: image {index}"

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels."""
        pixels_HWC: NDArray[np.uint8] = self._pixels_NHWC[index]
        return pixels_HWC


def _original(place: Place, kind: str) -> ImageSource:
    """Return CIFAR as it is distributed; torchvision unpickles nothing whose MD5 is not the right one."""
    from timm.data.dataset_factory import create_dataset

    split = {"train": "train", "val": "test"}[place.side]
    folder = str(Path(place.paths[0]) / ORIGINAL[kind])
    try:
        data = create_dataset(f"torch/{kind}", root=place.paths[0], split=split, download=False)
    except RuntimeError:
        raise DataMissingError(
            f"{folder}: files are missing, or are not the published ones (their MD5 differs), and are not opened; "
            f"get them again from https://www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    return ArraySource(data, f"{folder} ({split})")
