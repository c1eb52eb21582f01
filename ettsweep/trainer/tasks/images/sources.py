"""Random access to images in class folders, tar files, tables of `datasets` and CIFAR's own files."""

import io
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ettsweep.errors import DataMissingError, UndecodableError, short_message
from ettsweep.seeding import derive_seed
from ettsweep.trainer.tasks.images.image_data import CIFAR_FOLDERS, SPLITS, Contents, StoredSide, locate, mismatches
from ettsweep.trainer.tasks.images.image_task import ImageTask
from ettsweep.trainer.tasks.images.tar_index import encode_names, number_classes, tar_index


class ImageSource(Protocol):
    """Images of one side of a data set, in a fixed order.

    Attributes:
        classes: names of the classes; a label is an index into them.
        labels: label of each image [N].
    """

    classes: list[str]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """Return a name to find the image by: a path, or file and row."""
        ...

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """Return an image as it is stored: encoded, or as pixels [H, W, 3].

        Raises:
            OSError: it cannot be read.
        """
        ...


Crop = Callable[[Image.Image], Image.Image]
"""Decodes an opened image, and returns the used part of it, in RGB."""


def decode_rgb(image: Image.Image) -> Image.Image:
    """Return the full image in RGB."""
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")  # convert always copies


def decode_reduced(image: Image.Image) -> Image.Image:
    """Return the image in RGB at reduced size, the fastest check of a complete file."""
    image.draft("RGB", (1, 1))  # JPEGs are decoded at an eighth of their size; other formats ignore it
    return image.convert("RGB")


def decode(stored: bytes | NDArray[np.uint8], crop: Crop = decode_rgb) -> Image.Image:
    """Return an image in RGB, as `crop` decodes it.

    Raises:
        UndecodableError: the bytes are truncated, or not an image.
    """
    if isinstance(stored, np.ndarray):
        return crop(Image.fromarray(stored))
    try:
        with Image.open(io.BytesIO(stored)) as image:
            return crop(image)
    except MemoryError:  # says nothing about the image
        raise
    except UnidentifiedImageError:
        raise UndecodableError("not an image of a known format" if stored else "an empty file") from None
    except Exception as error:  # decoders raise errors of many types on damaged bytes
        raise UndecodableError(str(error) or type(error).__name__) from None


def open_sources(task: ImageTask, classes: int, data: str | None) -> tuple[ImageSource, ImageSource]:
    """Return the training and the validation images, whose classes and numbers were compared with task and model.

    Raises:
        DataMissingError: they are missing, or differ from the task; the message says what would work.
    """
    train, val = open_sides(task, locate(task, data))
    if problems := mismatches(task, classes, contents(train), contents(val)):
        raise DataMissingError("\n".join(f"task {task.name}: {line}" for line in problems))
    return train, val


def contents(source: ImageSource) -> Contents:
    """Return classes and number of images of a source."""
    return Contents(source.classes, len(source))


def open_sides(task: ImageTask, sides: tuple[StoredSide, StoredSide]) -> tuple[ImageSource, ImageSource]:
    """Return the images of both sides, or those of one that is split for the task.

    Raises:
        DataMissingError: there are none, or they cannot be read in this format.
    """
    if task.split_seed is None:
        train, val = (open_source(side, task.kind) for side in sides)
        return train, val
    images = open_source(sides[0], task.kind)
    held_out = hold_out(images.labels, task.val_size, task.split_seed)
    rest = np.setdiff1d(np.arange(len(images)), held_out)
    return Subset(images, rest), Subset(images, held_out)


def hold_out(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of `count` images [count], ascending: a random choice with all classes in proportion."""
    shuffled = np.random.default_rng(derive_seed(seed, "held-out images")).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # Evenly spaced in an order by class, each class has its share, to one image.
    count = min(count, len(labels))
    return np.sort(by_class[(2 * np.arange(count) + 1) * len(labels) // (2 * max(1, count))])


def open_source(location: StoredSide, kind: str) -> ImageSource:
    """Return the images of one side of a data set; the list of images is shared by all runs of this process.

    Raises:
        DataMissingError: there are none, or they cannot be read in this format.
    """
    stats = [Path(path).stat() for path in location.paths if Path(path).exists()]
    return _open_cached_source(location, kind, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


# Both sides of two data sets.
@lru_cache(maxsize=4)
def _open_cached_source(location: StoredSide, kind: str, stamps: tuple[tuple[int, int], ...]) -> ImageSource:
    """Open a source; `stamps` are part of the cache's key, so changed files are listed again."""
    match location.format:
        case "class folders":
            return FolderSource(location)
        case "tar files":
            return TarSource(location)
        case "CIFAR's own files":
            return CifarSource(location, kind)
        case "parquet files" | "WebDataset shards" | "hub data set":
            return TableSource(location)


class FolderSource(ImageSource):
    """One folder of images per class, as timm lists them."""

    def __init__(self, location: StoredSide) -> None:
        from timm.data.dataset_factory import create_dataset

        try:
            reader = create_dataset("", root=location.paths[0], search_split=False).reader
        except RuntimeError as error:
            raise DataMissingError(str(error)) from None
        paths, labels = zip(*reader.samples, strict=True)
        # Not timm's list of paths, which each forked worker would copy.
        self._paths, self.labels = encode_names(paths), np.array(labels, np.int64)
        self.classes: list[str] = list(reader.class_to_idx)

    def name(self, index: int) -> str:
        return os.fsdecode(self._paths[index])

    def read(self, index: int) -> bytes:
        return Path(self.name(index)).read_bytes()


class Subset(ImageSource):
    """Some of the images of a source, with all of its classes."""

    def __init__(self, source: ImageSource, indices: NDArray[np.int64]) -> None:
        self._source, self._indices = source, indices
        self.classes, self.labels = source.classes, source.labels[indices]

    def name(self, index: int) -> str:
        return self._source.name(int(self._indices[index]))

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        return self._source.read(int(self._indices[index]))


class TarSource(ImageSource):
    """Images in tar files. No file stays open: forked loader processes would share its position."""

    def __init__(self, location: StoredSide) -> None:
        self._tars = location.paths
        self.classes, self.labels, self._names, self._positions = tar_index(location.paths)

    def name(self, index: int) -> str:
        return f"{self._tars[self._positions[index, 0]]}: {os.fsdecode(self._names[index])}"

    def read(self, index: int) -> bytes:
        tar, start, size = self._positions[index].tolist()
        with Path(self._tars[tar]).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, start)


class CifarSource(ImageSource):
    """CIFAR's own files, held in memory as pixels.

    They are pickles, which run code when they are opened. torchvision compares their MD5 before.
    """

    def __init__(self, location: StoredSide, kind: str) -> None:
        from timm.data.dataset_factory import create_dataset

        split = {"train": "train", "val": "test"}[location.side]
        folder = str(Path(location.paths[0]) / CIFAR_FOLDERS[kind])
        try:
            data = create_dataset(f"torch/{kind}", root=location.paths[0], split=split, download=False)
        except RuntimeError:
            raise DataMissingError(
                f"{folder}: files are missing, or differ from the published ones (by MD5), and are not opened; "
                f"download them again from https://www.cs.toronto.edu/~kriz/cifar.html"
            ) from None
        self.classes: list[str] = list(data.classes)
        self.labels = np.array(data.targets, dtype=np.int64)
        self._pixels_NHWC: NDArray[np.uint8] = data.data
        self._location = f"{folder} ({split})"

    def name(self, index: int) -> str:
        return f"{self._location}: image {index}"

    def read(self, index: int) -> NDArray[np.uint8]:
        pixels_HWC: NDArray[np.uint8] = self._pixels_NHWC[index]
        return pixels_HWC


# Names that data sets on the hub commonly give to these columns, and the files of WebDataset samples.
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls", "json")


class TableSource(ImageSource):
    """Rows of parquet files, of WebDataset shards or of a data set on the hub, in the order of its files.

    `datasets` copies them to its own cache, since none of them has random access. Images stay encoded until `decode`,
    which treats a damaged one as in any other source.
    """

    def __init__(self, location: StoredSide) -> None:
        name, builder, files = location.paths[0], location.paths[0], None
        if location.format == "WebDataset shards":
            name, builder, files = str(Path(name).parent), "webdataset", {location.side: list(location.paths)}
        try:
            import datasets

            splits = datasets.load_dataset(builder, data_files=files)
            split = _first_available(f"{name}: split", SPLITS[location.side], list(splits))
            table = splits[split]
            image, label = (
                _first_available(f"{name}: column", expected, table.column_names)
                for expected in (IMAGE_COLUMNS, LABEL_COLUMNS)
            )
            # Only the needed columns, else each row would decode all.
            columns = [image, "__url__"] if files else [image]
            rows = table.select_columns(columns).cast_column(image, datasets.Image(decode=False))
            labels, names = table[label][:], getattr(table.features[label], "names", None)
            if label == "json":
                labels = [content["label"] for content in labels]
        except DataMissingError:
            raise
        except Exception as error:  # network, hub and pyarrow raise errors of many types
            reason = f"{type(error).__name__}: {short_message(error)}"
            raise DataMissingError(f"{name}: cannot be opened as a data set ({reason})") from error
        if not labels:
            raise DataMissingError(f"{name}: split {split} has no rows")
        if None in labels:
            raise DataMissingError(
                f"{name}: split {split} has rows without a label; the first is row {labels.index(None)}"
            )
        if min(labels) == -1:  # test sets whose labels are secret
            raise DataMissingError(f"{name}: split {split} has no labels (they are -1)")
        if names:
            self.classes, self.labels = list(names), np.array(labels, np.int64)
        else:
            # Without names in the table, the values of the labels are the classes.
            self.classes, self.labels = number_classes(list(map(str, labels)))
        self._rows, self._image, self._location = rows, image, f"{name}, {split}"

    def name(self, index: int) -> str:
        """Return the shard or the row, and the file name in the table if it has any."""
        row = self._rows[index]
        place, path = row.get("__url__", f"{self._location}, row {index}"), (row[self._image] or {}).get("path")
        return f"{place}: {path}" if path else place

    def read(self, index: int) -> bytes:
        """Return the bytes in the row, or those of the file that it refers to."""
        stored = self._rows[index][self._image] or {}
        content, path = stored.get("bytes"), stored.get("path")
        return Path(path).read_bytes() if content is None and path else content or b""


def _first_available(label: str, expected: tuple[str, ...], available: list[str]) -> str:
    names = [name for name in expected if name in available]
    if not names:
        raise DataMissingError(f"{label}: expected one of {', '.join(expected)}, it has {', '.join(available)}")
    return names[0]
