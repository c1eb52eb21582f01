"""Location of data that come with a package."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ettsweep.errors import DataMissingError
from ettsweep.extras import check_installed

Side = Literal["train", "val"]

SIDES: tuple[Side, ...] = ("train", "val")
"""The order in which both sides are stored in files: never change it."""


def pydoc_file() -> Path:
    """Return the file with Python's documentation, which some distributions leave out.

    Raises:
        DataMissingError: this Python does not have it.
    """
    package = find_spec("pydoc_data.topics")
    if package is None or not package.origin or not Path(package.origin).is_file():
        raise DataMissingError(
            "task pydoc: this Python has no pydoc_data/topics.py; install its full standard library "
            "(Debian: libpython3-stdlib)"
        )
    return Path(package.origin)


def digits_file() -> Path:
    """Return the file of digits that comes with scikit-learn, found without importing the package.

    Raises:
        PackageMissingError: scikit-learn is not installed.
        DataMissingError: it no longer keeps the file there.
    """
    check_installed("task digits", "sklearn")
    package = find_spec("sklearn")
    folder = Path(package.origin).parent if package and package.origin else Path("sklearn")
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataMissingError(f"task digits: {path} is missing: reinstall scikit-learn")
    return path
