"""Checkpoints of a command, newest first, with a check that each is complete."""

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ettsweep.files import open_regular
from ettsweep.patterns import time_limit

SAFETENSORS_LENGTH_BYTES = 8
"""Bytes at the beginning of a .safetensors file that hold the length of its header."""

MAX_HEADER_BYTES = 100_000_000
"""Longest header of a .safetensors file by its format in bytes; also of JSON to check."""

NEVER_EMPTY = (".json", ".safetensors", ".npz", ".pt", ".pth", ".bin", ".ckpt")
"""Suffixes of files that are truncated if empty; other empty files are marks."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a command.

    Attributes:
        path: a file or folder.
        step: its step; None if its name has none.
    """

    path: Path
    step: int | None


def checkpoints(out: Path, pattern: str) -> Iterator[tuple[Checkpoint, str]]:
    """Yield the checkpoints with the reasons why they are incomplete, by highest step or else latest first.

    Args:
        out: the folder of a run.
        pattern: a regular expression of paths relative to it, with a group `step` if they have one. A group
            `checkpoint` is the checkpoint's part, if the whole path is of the file written last.
    """
    expression, found = re.compile(pattern), list[tuple[int, int, Path]]()
    names = [(path, path.relative_to(out).as_posix()) for path in _entries(out)]
    with time_limit(lambda: pattern):
        matches = [(path, expression.fullmatch(name)) for path, name in names]
    for path, match in matches:
        if match:
            groups = match.groupdict()
            step, name = groups.get("step"), groups.get("checkpoint")
            path = out / name if name else path
            number = int(step) if step is not None and step.isdecimal() else -1
            found.append((number, path.stat().st_mtime_ns, path))
    steps = {path: number for number, _, path in sorted(found, reverse=True)}  # once each, even if several files match
    for path, before in zip_longest(steps, list(steps)[1:]):
        problem = _damage(path) or _missing_files(path, before)
        yield Checkpoint(path, steps[path] if steps[path] >= 0 else None), problem


def newest_checkpoint(out: Path, pattern: str) -> Checkpoint | None:
    """Return the first complete checkpoint of `checkpoints`."""
    return next((checkpoint for checkpoint, problem in checkpoints(out, pattern) if not problem), None)


def _entries(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            if os.path.exists(path):  # noqa: PTH110  never raises
                yield path


def _missing_files(path: Path, before: Path | None) -> str:
    """Return why a folder seems incomplete, compared with the previous checkpoint; empty if complete."""
    if before is None or not (path.is_dir() and before.is_dir()):
        return ""
    own, others = sum(1 for _ in _entries(path)), sum(1 for _ in _entries(before))
    return f"it has only {own} of the {others} files of {before.name}" if own < others else ""


def _damage(path: Path) -> str:
    """Return why a file, or a file of a folder, is incomplete by its format; empty if complete."""
    try:
        if not path.is_dir():
            _check_file(path)
            return "" if path.stat().st_size else "it has no content"
        files = [each for each in _entries(path) if not each.is_dir()]
        for each in files:
            _check_file(each)
        return "" if any(each.stat().st_size for each in files) else "it has no content"
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror}"
    except ValueError as error:
        return str(error)


def _check_file(path: Path) -> None:
    """Check that a file is complete by its format, reading as little as possible.

    Raises:
        ValueError: it is not.
        OSError: it cannot be read, or is no file.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(SAFETENSORS_LENGTH_BYTES)
        try:
            if path.suffix == ".safetensors":
                header_bytes = int.from_bytes(first, "little")
                is_whole = header_bytes <= min(size, MAX_HEADER_BYTES)
                is_whole = is_whole and size == len(first) + header_bytes + _tensor_bytes(file.read(header_bytes))
            elif path.suffix == ".json" and size <= MAX_HEADER_BYTES:
                _first_document(first + file.read())
                is_whole = True
            elif first[:4] == b"PK\x03\x04":  # torch.save
                is_whole = zipfile.is_zipfile(file)
            else:
                is_whole = size > 0 or path.suffix not in NEVER_EMPTY
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            is_whole = False
    if not is_whole:
        raise ValueError(f"{path.name} is truncated")


def _tensor_bytes(header: bytes) -> int:
    """Return how many bytes follow the header of a .safetensors file."""
    entries: Any = _first_document(header)
    return max((int(each["data_offsets"][1]) for name, each in entries.items() if name != "__metadata__"), default=0)


def _first_document(data: bytes) -> object:
    """Return the JSON document at the beginning of some bytes."""
    return json.JSONDecoder().raw_decode(data.decode("utf-8-sig", "replace").lstrip())[0]
