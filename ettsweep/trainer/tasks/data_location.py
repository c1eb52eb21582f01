"""The data of tasks: where somebody has said that they are, those that come with packages, and their two sides."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ettsweep.errors import DataMissingError

Side = Literal["train", "val"]

SIDES: tuple[Side, ...] = ("train", "val")


def data_env(kind: str) -> str:
    """Return the variable in which a user may say where the data of a task are."""
    return f"ETTSWEEP_{kind.upper()}"


def said(kind: str, data: str | None) -> str | None:
    """Return where the data of a task are: as was asked for, else as the user's variable says; None for neither."""
    return data or os.environ.get(data_env(kind)) or None


def resolve(data: str) -> str:
    """Return what `--data` says so that it holds in any folder; data sets of the hub have no path."""
    return data if data.startswith("hfds/") else str(Path(data).expanduser().resolve())


def pydoc_file() -> Path:
    """Return the file of Python's documentation, without which some distributions come.

    Raises:
        DataMissingError: this Python comes without it.
    """
    package = find_spec("pydoc_data.topics")
    if package is None or not package.origin or not Path(package.origin).is_file():
        raise DataMissingError(
            "task pydoc: this Python has no pydoc_data/topics.py; install its standard library whole "
            "(Debian: libpython3-stdlib)"
        )
    return Path(package.origin)


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
