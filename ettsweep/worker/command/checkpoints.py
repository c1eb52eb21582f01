"""The checkpoints that a command leaves: the newest of them, and whether it is whole."""

import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAFETENSORS_HEADER_BYTES = 8
"""Bytes at the beginning of a .safetensors file that hold the length of its header."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a command.

    Attributes:
        path: a file or folder.
        step: its step; None if its name does not tell.
    """

    path: Path
    step: int | None


def newest_checkpoint(out: Path, pattern: str) -> Checkpoint | None:
    """Return the checkpoint with the highest step, or else the latest one, that is whole.

    Args:
        out: the folder of a run.
        pattern: a regular expression of paths relative to it, with a group `step` if they tell the step. A group
            `checkpoint` is the part that is the checkpoint, where the whole path is of a file that is written last.
    """
    expression, found = re.compile(pattern), list[tuple[int, int, Path]]()
    for path in _entries(out):
        if match := expression.fullmatch(path.relative_to(out).as_posix()):
            groups = match.groupdict()
            step, name = groups.get("step"), groups.get("checkpoint")
            path = out / name if name else path
            number = int(step) if step is not None and step.isdecimal() else -1
            found.append((number, path.stat().st_mtime_ns, path))
    for number, _, path in sorted(found, reverse=True):
        if _is_whole(path):
            return Checkpoint(path, number if number >= 0 else None)
    return None


def _entries(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            if path.exists():
                yield path


def _is_whole(path: Path) -> bool:
    """Whether a file, or all files of a folder, are as long as their own format says; those of others are."""
    if path.is_dir():
        files = [each for each in _entries(path) if each.is_file() and each.stat().st_size]  # empty ones are marks
        return bool(files) and all(map(_is_whole, files))
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(SAFETENSORS_HEADER_BYTES)
        if path.suffix == ".safetensors":
            header = int.from_bytes(first, "little")
            ends = [int(end) for end in re.findall(rb'"data_offsets":\s*\[\d+,\s*(\d+)\]', file.read(header))]
            return size == SAFETENSORS_HEADER_BYTES + header + max(ends, default=0)
    if first[:4] == b"PK\x03\x04":  # torch.save
        return zipfile.is_zipfile(path)
    return size > 0
