"""What was found out about a set of images, kept on disk as columns of numbers and texts: it can be made again."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError, EttsweepError
from ettsweep.files import cache_folder, write_atomic

Columns = dict[str, NDArray[np.generic]]


def kept(name: str, make: Callable[[], Columns], fits: Callable[[Columns], bool]) -> Columns:
    """Return the columns of that name from the cache where they are sound and fit, else newly made ones.

    Raises:
        DataMissingError: there is no place for a cache.
    """
    try:
        path = cache_folder() / f"{name}.npz"
    except OSError as error:
        raise DataMissingError(f"{error.filename}: {error.strerror}") from None
    with contextlib.suppress(Exception), path.open("rb") as stored:  # whatever is wrong with it, it can be made again
        with np.load(stored, allow_pickle=False) as file:
            columns = dict(file)
        if fits(columns):
            return columns
    columns = make()
    with contextlib.suppress(OSError, EttsweepError):  # without a cache, it is made each time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda temporary: _save(temporary, columns))
    return columns


def _save(path: Path, columns: Columns) -> None:
    with path.open("wb") as file:
        np.savez(file, **columns)  # type: ignore[arg-type]


def packed(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return texts one after the other: an array of texts would give each the room of the longest."""
    return np.frombuffer("\0".join(texts).encode("utf-8", "surrogateescape"), dtype=np.uint8)


def unpacked(column: NDArray[np.generic]) -> list[str]:
    """Return the texts that were packed."""
    return column.tobytes().decode("utf-8", "surrogateescape").split("\0")
