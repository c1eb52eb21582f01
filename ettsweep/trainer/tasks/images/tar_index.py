"""Positions of the images in tar files: listed once by timm, then cached. No tar is unpacked."""

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError, EttsweepError
from ettsweep.files import cache_folder, write_atomic

VERSION = 1
"""Version of the format of cached indexes."""


class TarIndex(NamedTuple):
    """Classes in timm's order; class, name and position of each image.

    Attributes:
        names: paths in the tar, as bytes [N].
        positions: number of the tar, first byte, length in bytes [N, 3].
    """

    classes: list[str]
    labels: NDArray[np.int64]
    names: NDArray[np.bytes_]
    positions: NDArray[np.int64]


def tar_index(paths: Sequence[str]) -> TarIndex:
    """Return the index of the images in tar files; a cached one is reused if no tar has changed.

    Raises:
        DataMissingError: a tar cannot be read, or has no images.
    """
    stamps = [(path, stat.st_mtime_ns, stat.st_size) for path, stat in zip(paths, map(os.stat, paths), strict=True)]
    key = hashlib.sha256(repr((VERSION, stamps)).encode("utf-8", "surrogateescape")).hexdigest()
    cached = cache_folder() / f"tars-{key[:24]}.npz"
    with contextlib.suppress(Exception):  # without a readable cache, the tars are listed
        return _load(cached)
    index = _list_tars(paths)
    with contextlib.suppress(OSError, EttsweepError):  # without a cache, they are listed each time
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(cached, lambda temporary: _save(temporary, index))
    return index


def number_classes(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct names in timm's order, which are the classes, and the index of each name in them [N]."""
    from timm.utils.misc import natural_key

    classes = sorted(set(names), key=natural_key)
    position = {name: k for k, name in enumerate(classes)}
    return classes, np.array([position[name] for name in names], np.int64)


def encode_names(names: Sequence[str]) -> NDArray[np.bytes_]:
    """Return names as one array, which forked workers share.

    They would write the reference counts of a million strings, and so copy the memory of all: 220 MB per worker.
    """
    return np.array([os.fsencode(name) for name in names])


def _list_tars(paths: Sequence[str]) -> TarIndex:
    images = [(tar, *image) for tar, path in enumerate(paths) for image in _list_images(path)]
    tars, names, class_names, starts, sizes = zip(*images, strict=True)
    classes, labels = number_classes(class_names)
    return TarIndex(classes, labels, encode_names(names), np.array([tars, starts, sizes], np.int64).T)


def _list_images(path: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, class, first byte and length of each image of a tar, and of the tars in it."""
    from timm.data.readers.reader_image_in_tar import extract_tarinfos

    try:
        # Not timm's cache: it lies beside the data, and is used even if a tar has changed.
        images, _, _, _ = extract_tarinfos(path, cache_tarinfo=False, sort=False)
    except ValueError:  # timm unpacks an empty list
        raise DataMissingError(f"{path}: no images in it") from None
    except (tarfile.TarError, EOFError) as error:
        raise DataMissingError(f"{path}: cannot be read as an uncompressed tar ({error}); see docs/data.md") from None
    except OSError as error:
        raise DataMissingError(f"{path}: {error.strerror or error}") from None
    for image, _, inner in images:
        # Not timm's class, which is "." for ./x.jpg.
        class_name = Path(image.name).parent.name or Path(inner.name if inner else path).stem
        # An inner tar is stored as it is, so its start is added to positions in it.
        start, name = (inner.offset_data, f"{inner.name}/{image.name}") if inner else (0, image.name)
        yield name, class_name, start + image.offset_data, image.size


def _save(path: Path, index: TarIndex) -> None:
    # An open file, since savez appends .npz to any other path.
    with path.open("wb") as file:
        np.savez(file, **index._asdict() | {"classes": encode_names(index.classes)})


def _load(path: Path) -> TarIndex:
    """Return a saved index.

    Raises:
        Exception: of any type, if there is none, or the file is damaged.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as columns:
        index = TarIndex(**columns)
    return index._replace(classes=[os.fsdecode(name) for name in index.classes])
