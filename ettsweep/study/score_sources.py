"""Where scores that somebody has already may be: in a table, a folder of runs, a storage of Optuna."""

import re
from collections.abc import Sequence
from pathlib import Path

from ettsweep.errors import InputError, nearest_name
from ettsweep.study.score_rows import COLUMNS, Reading, Rows
from ettsweep.study.score_tables import read_table


def read_rows(source: str, reading: Reading, columns: Sequence[str] = COLUMNS, needed: Sequence[str] = ()) -> Rows:
    """Read the runs of a source: the file or folder of this path, standard input for `-`, or a storage of Optuna.

    Args:
        source: as it was typed.
        reading: how.
        columns: those that may be looked up, the score last.
        needed: those that have to be there, beside the score.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    path = Path(source)
    if is_storage(source):
        from ettsweep.study.optuna_trials import read_trials  # a second of imports

        found = read_trials(source, reading)
    elif path.is_dir():
        from ettsweep.study.run_folders import read_folder

        found = read_folder(path, reading, columns)
    elif reading.reader is not None:
        raise InputError(f"--reader: {source} is no folder of runs")
    else:
        found = read_table(path, reading, columns)
    _check_columns(found, reading, columns, needed)
    return found


def is_storage(source: str) -> bool:
    """Return whether a source is a storage of Optuna: an address such as sqlite:///study.db, or a journal."""
    if "://" in source:
        return True
    try:
        with Path(source).open("rb") as file:
            return re.match(rb'\{"op_code": *\d', file.read(64)) is not None
    except OSError:
        return False


def _check_columns(found: Rows, reading: Reading, columns: Sequence[str], needed: Sequence[str]) -> None:
    known = tuple(dict.fromkeys(key for row in found.rows for key in row.values))
    names = {key: reading.name(key) for key in columns if key != "score"} | {"score": found.score}
    for key, name in names.items():
        if name not in known and (key in reading.names or key in (*needed, "score")):
            near = nearest_name(name, known)
            hint = f"; did you mean {near}?" if near else "."
            raise InputError(
                f"{found.source}: no column {name}{hint} It has {', '.join(known)}; --column {key}=NAME says which is "
                f"{key}"
            )
