"""Indexes of the images in class folders and tar files, cached on disk and built again after a change."""

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
"""Version of the format of cached indexes."""

STABLE_AFTER_S = 2.0
"""A folder that changed less than this many seconds before it was listed may change again without a new modification
time, so its index is not reused."""


class ImageIndex(NamedTuple):
    """Classes in timm's order; label, name and position of each image.

    Attributes:
        labels: [N].
        names: paths in the folder or in the tar, as bytes [N].
        offsets: for images in tars [N, 3]: index of the tar, first byte, length in bytes; for folders [N, 0].
    """

    classes: list[str]
    labels: NDArray[np.int64]
    names: NDArray[np.bytes_]
    offsets: NDArray[np.int64]


class Listing(NamedTuple):
    """An index, the paths of the files or folders it was built from, and their stamps (mtime in ns, size) [paths, 2].

    The stamps were taken before the listing, so a change during the listing is noticed at the next use.
    """

    images: ImageIndex
    paths: Sequence[str]
    stamps: NDArray[np.int64]


def folder_index(root: str) -> ImageIndex:
    """Return the index of the images in class folders.

    A cached index is reused if no folder has changed, which takes one `stat` per folder.

    Raises:
        DataMissingError: there are no images.
    """
    # By the real path, so that links to a data set share its index.
    return _cached_index([os.path.realpath(root)], lambda: _list_folders(root))


def tar_index(paths: Sequence[str]) -> ImageIndex:
    """Return the index of the images in tar files; a cached one is reused if no tar has changed.

    Raises:
        DataMissingError: there are no images, or a tar cannot be read.
    """
    return _cached_index(paths, lambda: _list_tars(paths))


def number_classes(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct names in timm's order, which are the classes, and the index of each name in them [N]."""
    from timm.utils.misc import natural_key

    classes = sorted(set(names), key=natural_key)
    position = {name: k for k, name in enumerate(classes)}
    return classes, np.array([position[name] for name in names], np.int64)


def _list_folders(root: str) -> Listing:
    from timm.data.dataset_factory import create_dataset

    start_ns = time.time_ns()
    # As timm walks them: class folders may be links.
    folders = [folder for folder, _, _ in os.walk(root, followlinks=True)]
    stamps = _file_stamps(folders)
    try:
        reader = create_dataset("", root=root, search_split=False).reader
    except RuntimeError as error:
        raise DataMissingError(str(error)) from None
    labels = np.array([label for _, label in reader.samples], np.int64)
    start = len(root.rstrip(os.sep)) + 1
    names = _encode_names([path[start:] for path, _ in reader.samples])
    index = ImageIndex(list(reader.class_to_idx), labels, names, np.empty((len(labels), 0), np.int64))
    # File systems with coarse times may give two changes in a row the same time.
    is_stable = stamps[:, 0].max() < start_ns - 1e9 * STABLE_AFTER_S
    return Listing(index, folders, stamps if is_stable else np.zeros_like(stamps))  # zeros never match


def _list_tars(paths: Sequence[str]) -> Listing:
    from timm.data.readers.img_extensions import get_img_extensions

    stamps, extensions = _file_stamps(paths), get_img_extensions(as_set=True)
    images = [(tar, image) for tar, path in enumerate(paths) for image in images_in(path, extensions)]
    if not images:
        raise DataMissingError(f"{paths[0]}: no images in it, nor in the other {len(paths) - 1} tar files")
    classes, labels = number_classes([image.class_name for _, image in images])
    offsets = np.array([(tar, image.offset, image.size) for tar, image in images], np.int64)
    return Listing(
        ImageIndex(classes, labels, _encode_names([image.name for _, image in images]), offsets), paths, stamps
    )


def _encode_names(names: Sequence[str]) -> NDArray[np.bytes_]:
    """Return the names as one array.

    Reference counts of a million strings would be written by each forked worker, which copies the memory of all.
    """
    return np.array([os.fsencode(name) for name in names])


def _file_stamps(paths: Sequence[str]) -> NDArray[np.int64]:
    return np.array([(stat.st_mtime_ns, stat.st_size) for stat in map(os.stat, paths)], np.int64)


# --- cache on disk ----------------------------------------------------------------------------------------------------


def _cached_index(paths: Sequence[str], list_images: Callable[[], Listing]) -> ImageIndex:
    """Return the cached index if it is readable and nothing has changed, else build and cache it."""
    try:
        path = cache_folder() / f"images-{hashlib.sha256(repr((VERSION, paths)).encode()).hexdigest()[:24]}.npz"
    except OSError as error:
        raise DataMissingError(f"{error.filename}: {error.strerror}") from None
    with contextlib.suppress(Exception):  # a cache that cannot be read is built again
        listing = _load_listing(path)
        if np.array_equal(_file_stamps(listing.paths), listing.stamps):
            return listing.images
    listing = list_images()
    with contextlib.suppress(OSError, EttsweepError):  # without a cache, the index is built each time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda temporary: _save_listing(temporary, listing))
    return listing.images


def _save_listing(path: Path, listing: Listing) -> None:
    index = listing.images
    columns = {"classes": _join_names(index.classes), "listed": _join_names(listing.paths), "stamps": listing.stamps}
    # An open file, since savez appends .npz to any other path.
    with path.open("wb") as file:
        np.savez(file, **columns, labels=index.labels, names=index.names, places=index.offsets)  # type: ignore[arg-type]


def _load_listing(path: Path) -> Listing:
    """Return a saved listing.

    Raises:
        Exception: of any type, if the file is damaged.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as columns:
        labels, offsets, stamps = (columns[key].astype(np.int64) for key in ("labels", "places", "stamps"))
        index = ImageIndex(_split_names(columns["classes"]), labels, columns["names"].astype(np.bytes_), offsets)
        paths = _split_names(columns["listed"])
    # A damaged file must fail here, not give wrong labels.
    if not (len(labels) == len(index.names) == len(offsets) and labels.max() < len(index.classes)):
        raise ValueError(f"{path}: the lengths of its columns differ")
    return Listing(index, paths, stamps)


def _join_names(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return texts joined as bytes: an array of strings would take the size of the longest for each."""
    return np.frombuffer("\0".join(texts).encode("utf-8", "surrogateescape"), dtype=np.uint8)


def _split_names(column: NDArray[np.generic]) -> list[str]:
    return column.tobytes().decode("utf-8", "surrogateescape").split("\0")
