"""Shipped grids and launch profiles, and the user's grid files, which take precedence."""

import os
import re
from pathlib import Path

# Not a YAML parser: files beside grid files may be anything.
_MODEL = re.compile(r"""^model:[ \t]*["']?([\w.-]+)""", re.MULTILINE)
_GRID_KEY = re.compile(r"^(recipe|centre):", re.MULTILINE)


def shipped(folder: str) -> Path:
    """Return the folder `grids` or `launch`: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    installed = package / "_data" / folder
    return installed if installed.is_dir() else package.parent / folder


def shipped_grids() -> list[Path]:
    """Return the shipped grid files."""
    return sorted(shipped("grids").glob("*.yaml"))


def own_grids() -> list[Path]:
    """Return the user's grid files: those in ./grids, and YAML files in . that look like grid files."""
    # YAML files of other programs may have a key `model` too.
    here = [path for path in sorted(Path().glob("*.yaml")) if grid_model(path) and _GRID_KEY.search(_read(path))]
    # By their real paths: links count once, and in a checkout ./grids has the shipped files.
    paths = {os.path.realpath(path): path for path in (*here, *sorted(Path("grids").glob("*.yaml")))}
    for path in shipped_grids():
        paths.pop(os.path.realpath(path), None)
    return list(paths.values())


def grid_model(path: Path) -> str:
    """Return the name of a grid file's model; "" if the file describes the model in full, or cannot be read."""
    match = _MODEL.search(_read(path))
    return match[1] if match else ""


def describe_choice(kind: str, path: Path, shipped_path: Path | None) -> str:
    """Return a line that names the file in use, for people who may expect another one.

    Args:
        kind: of the file.
        path: the file in use.
        shipped_path: the shipped file that it could have been; None without one.
    """
    if shipped_path is None:
        return f"{kind}: {path}"
    if os.path.realpath(path) == os.path.realpath(shipped_path):
        return f"{kind}: {path}, which ettsweep ships"
    return f"{kind}: {path}; it takes precedence over the shipped {shipped_path.name}"


def _read(path: Path) -> str:
    try:
        # Not a pipe, whose reader would wait.
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
