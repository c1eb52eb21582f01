"""Files that ship with the package: grids and launch profiles."""

from pathlib import Path


def shipped(folder: str) -> Path:
    """Return the folder `grids` or `launch`: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    installed = package / "_data" / folder
    return installed if installed.is_dir() else package.parent / folder
