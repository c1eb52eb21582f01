"""Where images lie in class folders: a list of them, made once and kept, as long as no folder has changed."""

import hashlib
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError
from ettsweep.tasks.images.index import Columns, kept, packed, unpacked

VERSION = 1
"""Of the list on disk."""

SETTLED_S = 2.0
"""A folder that has changed so recently may change while it is listed, or again without a new time."""


class Listing(NamedTuple):
    """Classes in timm's order; of each image [N] its label and its path in the data set, as bytes."""

    classes: list[str]
    labels: NDArray[np.int64]
    paths: NDArray[np.bytes_]


def folder_index(root: str) -> Listing:
    """Return the images in the class folders of a root as they are now: a look at each folder, if none has changed.

    Raises:
        DataMissingError: there are none.
    """
    name = hashlib.sha256(repr((VERSION, os.path.realpath(root))).encode()).hexdigest()[:24]
    columns = kept(f"folders-{name}", lambda: _build(root), lambda columns: _unchanged(root, columns))
    classes, paths = unpacked(columns["classes"]), columns["paths"].astype(np.bytes_)
    return Listing(classes, columns["labels"].astype(np.int64), paths)


def _build(root: str) -> Columns:
    from timm.data.dataset_factory import create_dataset

    began_ns = time.time_ns()
    folders = [os.path.relpath(folder, root) for folder, _, _ in os.walk(root, followlinks=True)]
    stamps = _stamps(root, folders)
    try:
        reader = create_dataset("", root=root, search_split=False).reader
    except RuntimeError as error:
        raise DataMissingError(str(error)) from None
    start = len(root.rstrip(os.sep)) + 1
    return {
        "folders": packed(folders),
        "stamps": stamps if stamps.max() < began_ns - 1e9 * SETTLED_S else np.zeros_like(stamps),
        "classes": packed(list(reader.class_to_idx)),
        "labels": np.array([label for _, label in reader.samples], np.int64),
        # One array, since workers that count references to a million texts would each copy all of them.
        "paths": np.array([os.fsencode(path[start:]) for path, _ in reader.samples]),
    }


def _unchanged(root: str, columns: Columns) -> bool:
    """Say whether no folder has had a file or a folder come or go since a list was made, and the list is whole."""
    labels, paths = columns["labels"].astype(np.int64), columns["paths"]
    whole = len(labels) == len(paths) and int(labels.max()) < len(unpacked(columns["classes"]))
    return whole and bool(np.array_equal(_stamps(root, unpacked(columns["folders"])), columns["stamps"]))


def _stamps(root: str, folders: list[str]) -> NDArray[np.int64]:
    return np.array([Path(root, folder).stat().st_mtime_ns for folder in folders], np.int64)
