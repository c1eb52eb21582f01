"""Find the files of a run for a reader, by globs inside the run's folder."""

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ettsweep.files import open_regular

MAX_ENTRIES = 50_000
"""Most files and folders of a search."""


def found_files(out: Path, globs: Sequence[str]) -> dict[str, Path]:
    """Return the files that match globs, by their paths relative to `out`.

    They come in natural order: version_2 before version_10.
    It leaves out links that lead outside of `out`, and second names of a file.
    """
    patterns = [_pattern(glob) for glob in globs]
    depth = max((10_000 if "**" in glob else glob.count("/") for glob in globs), default=0)
    root = os.path.realpath(out)
    real_paths = dict[str, str]()
    for name in _names(root, depth):
        if any(pattern.fullmatch(name) for pattern in patterns):
            real = os.path.realpath(os.path.join(root, name))  # noqa: PTH118 (many names)
            if real.startswith(root.rstrip("/") + "/") and Path(real).is_file():
                real_paths.setdefault(real, name)
    return {name: Path(real) for real, name in sorted(real_paths.items(), key=lambda pair: natural_key(pair[1]))}


def _names(root: str, depth: int) -> Iterator[str]:
    """Yield the relative paths in a folder, without following links."""
    count, folders = 0, [("", 0)]
    while folders:
        folder, level = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:  # noqa: PTH118
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue  # gone by now, or unreadable
        for entry in listed:
            count += 1
            if count > MAX_ENTRIES:
                return
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if level < depth:
                    folders.append((name, level + 1))
            else:
                yield name


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    """Return a regular expression for a glob, in which `*` stops at `/` and `**/` is any number of folders."""
    special = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob.removeprefix("./"))
    return re.compile("".join(special.get(part) or _class(part) or re.escape(part) for part in parts))


def _class(part: str) -> str:
    """Return the regular expression of `[a-z]` or `[!a-z]`; empty for other text."""
    if not (part.startswith("[") and part.endswith("]")):
        return ""
    excluded = part[1] == "!" and len(part) > 3
    characters = part[2 if excluded else 1 : -1]
    return f"[{'^' if excluded else ''}{characters.translate(_ESCAPED)}]"


_ESCAPED = str.maketrans({mark: f"\\{mark}" for mark in "[^\\"})


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names by the numbers in them."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def is_match(glob: str, name: str) -> bool:
    """Return whether a relative path matches a glob."""
    return _pattern(glob).fullmatch(name) is not None


def open_found(path: Path) -> int:
    """Open a file, and return its descriptor; do not follow a link.

    Raises:
        OSError: it cannot be opened, or is not a file.
    """
    return open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
