"""Where the data of a task are, as somebody has said it: a folder, or the name of a data set of the hub."""

import os
from pathlib import Path


def data_env(kind: str) -> str:
    """Return the variable in which a user may say where the data of a task are."""
    return f"ETTSWEEP_{kind.upper()}"


def said(kind: str, data: str | None) -> str | None:
    """Return where the data of a task are: as was asked for, else as the user's variable says; None for neither."""
    return data or os.environ.get(data_env(kind)) or None


def resolve(data: str) -> str:
    """Return what `--data` says so that it holds in any folder; data sets of the hub have no path."""
    return data if data.startswith("hfds/") else str(Path(data).expanduser().resolve())
