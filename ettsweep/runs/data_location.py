"""Location of data: given by `--data` or an environment variable, by kind of task."""

import os
from pathlib import Path

from ettsweep.errors import with_source
from ettsweep.files import expand_home


def data_env(kind: str) -> str:
    """Return the name of the environment variable for the location of a task's data."""
    return f"ETTSWEEP_{kind.upper()}"


def configured_data(kind: str, data: str | None) -> str | None:
    """Return the location of a task's data: `data` if given, else the environment variable; None if both are unset."""
    if data:
        return expand_home(data)
    with with_source(data_env(kind)):
        return expand_home(os.environ.get(data_env(kind), "")) or None


def resolve_data(data: str) -> str:
    """Return a value of `--data` as an absolute path; names of data sets on the hub (hfds/...) stay."""
    return data if data.startswith("hfds/") else str(Path(expand_home(data)).resolve())
