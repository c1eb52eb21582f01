"""The registry of readers: shipped ones, and those of grid files."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from ettsweep.config import read_yaml
from ettsweep.errors import InputError, unknown_name
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.schema import Source, validate

DATA = Path(__file__).parent / "data"
"""Folder of shipped readers: NAME.yaml."""

PRIMITIVES = ("csv", "jsonl", "json", "stdout", "tensorboard")
"""Readers of forms of files, not of trainers."""


def reader_names() -> tuple[str, ...]:
    """Return the names of all readers: of trainers, then of forms."""
    shipped = sorted(path.stem for path in DATA.glob("*.yaml"))
    trainers = [name for name in shipped if name not in PRIMITIVES]
    return (*trainers, *PRIMITIVES)


@cache
def named_reader(name: str) -> Reader:
    """Return a reader by name.

    Raises:
        InputError: the name is unknown.
    """
    if name not in reader_names():
        raise InputError(
            f"{unknown_name('reader', name, reader_names())}; a pattern has named groups, such as "
            "'step (?P<step>\\d+).*val loss (?P<val_loss>\\S+)'"
        )
    path = DATA / f"{name}.yaml"
    return _validated(read_yaml(path) | {"name": name}, str(path))


def reader_of(value: object, folder: Path = Path(), source: str | Source = "reader") -> Reader:
    r"""Return the reader of a grid file or an option.

    Args:
        value: name of a reader; pattern with named groups for the output, such as `step (?P<step>\d+).*val loss
            (?P<val_loss>\S+)`; name of a file (.yaml) with the fields of a reader; or a mapping of them.
        folder: of the file's name.
        source: of the value, for messages.

    Raises:
        InputError: all problems of it.
    """
    if isinstance(value, Reader):
        return value
    if isinstance(value, str) and "(?P<" in value:
        return _validated({"kind": "regex", "files": OUTPUT, "patterns": [value]}, source)
    if isinstance(value, str) and value.endswith((".yaml", ".yml")):
        path = folder / value
        return _validated({"name": path.stem} | read_yaml(path), str(path))
    if isinstance(value, str):
        if re.search(r"[\\()*+?\[\]]", value):
            raise InputError(
                f"{value!r} is not the name of a reader, and as a pattern it needs named groups, such as "
                "(?P<val_loss>\\S+)"
            )
        return named_reader(value)
    if isinstance(value, dict):
        return _validated(value, source)
    raise InputError(f"must be the name of a reader, a pattern or a mapping, got {value!r}")


def _validated(data: dict[str, Any], source: str | Source) -> Reader:
    return validate(Reader, data, source)
