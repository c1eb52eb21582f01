"""What images there are in class folders and in tars: listed once, kept on disk, and listed anew after a change."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError, EttsweepError
from ettsweep.files import cache_folder, write_atomic
from ettsweep.trainer.tasks.images.tars import images_in

VERSION = 1
"""Of a list on disk."""

SETTLED_S = 2.0
"""A folder that has changed so recently may change while it is listed, or again without a new time."""


class Index(NamedTuple):
    """Classes in timm's order, and of each image its label and where it is.

    Attributes:
        labels: [N].
        names: [N], as bytes: the path in the folder, or in the tar.
        places: which tar, first byte and length of images in tars [N, 3]; of those in folders nothing [N, 0].
    """

    classes: list[str]
    labels: NDArray[np.int64]
    names: NDArray[np.bytes_]
    places: NDArray[np.int64]


class Listing(NamedTuple):
    """An index, the files and folders that it was read from, and their times and sizes before that [N, 2]."""

    images: Index
    listed: Sequence[str]
    stamps: NDArray[np.int64]


def folder_index(root: str) -> Index:
    """Return the images in the class folders of a root as they are now: a look at each folder, if none has changed.

    Raises:
        DataMissingError: there are none.
    """
    return _kept([os.path.realpath(root)], lambda: _list_folders(root))


def tar_index(paths: Sequence[str]) -> Index:
    """Return the images in tars as they are now: a look at each tar, if none has changed.

    Raises:
        DataMissingError: there are none, or a tar cannot be read.
    """
    return _kept(paths, lambda: _list_tars(paths))


def numbered(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return classes in timm's order, and as labels [N] the positions of names among them."""
    from timm.utils.misc import natural_key

    classes = sorted(set(names), key=natural_key)
    position = {name: k for k, name in enumerate(classes)}
    return classes, np.array([position[name] for name in names], np.int64)


def _list_folders(root: str) -> Listing:
    from timm.data.dataset_factory import create_dataset

    start_ns = time.time_ns()
    folders = [folder for folder, _, _ in os.walk(root, followlinks=True)]
    stamps = _stamps(folders)
    try:
        reader = create_dataset("", root=root, search_split=False).reader
    except RuntimeError as error:
        raise DataMissingError(str(error)) from None
    labels = np.array([label for _, label in reader.samples], np.int64)
    start = len(root.rstrip(os.sep)) + 1
    names = _as_bytes([path[start:] for path, _ in reader.samples])
    index = Index(list(reader.class_to_idx), labels, names, np.empty((len(labels), 0), np.int64))
    is_stable = stamps[:, 0].max() < start_ns - 1e9 * SETTLED_S
    return Listing(index, folders, stamps if is_stable else np.zeros_like(stamps))


def _list_tars(paths: Sequence[str]) -> Listing:
    from timm.data.readers.img_extensions import get_img_extensions

    stamps, extensions = _stamps(paths), get_img_extensions(as_set=True)
    images = [(tar, image) for tar, path in enumerate(paths) for image in images_in(path, extensions)]
    if not images:
        raise DataMissingError(f"{paths[0]}: no images in it, nor in the {len(paths) - 1} tar files beside it")
    classes, labels = numbered([image.class_name for _, image in images])
    offsets = np.array([(tar, image.offset, image.size) for tar, image in images], np.int64)
    return Listing(Index(classes, labels, _as_bytes([image.name for _, image in images]), offsets), paths, stamps)


def _as_bytes(names: Sequence[str]) -> NDArray[np.bytes_]:
    """Return names as one array, since workers that count references to a million texts would each copy all of them."""
    return np.array([os.fsencode(name) for name in names])


def _stamps(paths: Sequence[str]) -> NDArray[np.int64]:
    return np.array([(stat.st_mtime_ns, stat.st_size) for stat in map(os.stat, paths)], np.int64)


# --- on disk ----------------------------------------------------------------------------------------------------------


def _kept(paths: Sequence[str], list_images: Callable[[], Listing]) -> Index:
    """Return an index from the cache where it is sound and nothing has changed, else a new one."""
    try:
        path = cache_folder() / f"images-{hashlib.sha256(repr((VERSION, paths)).encode()).hexdigest()[:24]}.npz"
    except OSError as error:
        raise DataMissingError(f"{error.filename}: {error.strerror}") from None
    with contextlib.suppress(Exception):  # whatever is wrong with it, it can be made again
        listing = _load(path)
        if np.array_equal(_stamps(listing.listed), listing.stamps):
            return listing.images
    listing = list_images()
    with contextlib.suppress(OSError, EttsweepError):  # without a cache, it is made each time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda temporary: _save(temporary, listing))
    return listing.images


def _save(path: Path, listing: Listing) -> None:
    index = listing.images
    columns = {"classes": _packed(index.classes), "listed": _packed(listing.listed), "stamps": listing.stamps}
    with path.open("wb") as file:
        np.savez(file, **columns, labels=index.labels, names=index.names, places=index.places)  # type: ignore[arg-type]


def _load(path: Path) -> Listing:
    """Return a listing that was saved.

    Raises:
        Exception: of any kind, where it is none.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as columns:
        labels, offsets, stamps = (columns[key].astype(np.int64) for key in ("labels", "places", "stamps"))
        index = Index(_unpacked(columns["classes"]), labels, columns["names"].astype(np.bytes_), offsets)
        paths = _unpacked(columns["listed"])
    if not (len(labels) == len(index.names) == len(offsets) and labels.max() < len(index.classes)):
        raise ValueError(f"{path}: the lengths of its columns differ")
    return Listing(index, paths, stamps)


def _packed(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return texts one after the other: an array of texts would give each the room of the longest."""
    return np.frombuffer("\0".join(texts).encode("utf-8", "surrogateescape"), dtype=np.uint8)


def _unpacked(column: NDArray[np.generic]) -> list[str]:
    return column.tobytes().decode("utf-8", "surrogateescape").split("\0")
