"""A folder of runs that were trained by hand, as rows of scores: metrics by a reader, lr, wd and seed by name."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ettsweep.config import read_yaml
from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.files import Json, sha256_of
from ettsweep.readers.looking import LOGS, Look, look, looks
from ettsweep.readers.registry import reader_of
from ettsweep.study.score_rows import Reading, Row, Rows, shown, value_in

CONFIGURATIONS = (
    *("args.json", "config.json", "hparams.json", "args.yaml", "config.yaml", "hparams.yaml"),
    *(".hydra/config.yaml", "files/config.yaml"),
)
"""Files in which trainers leave what they were called with."""


def read_folder(folder: Path, reading: Reading, columns: Sequence[str]) -> Rows:
    """Read the runs of a folder: each of its folders is one, or each of its logs where it has no folders.

    Folders whose own folders' names state lr, wd or seed are looked into: `lr1e-3/seed0`.

    Args:
        folder: of the runs.
        reading: its reader sees the metrics.
        columns: those that names or configurations of runs may state, and the score.

    Raises:
        InputError: there is no reader or no score, or what the reader sees is in conflict.
    """
    score = reading.name("score")
    keys = [key for key in columns if key != "score"]
    names = [reading.name(key) for key in keys]
    paths = list(_runs(folder, names))
    if not paths:
        raise InputError(f"{folder}: no runs: a folder or a log for each run is expected")
    if reading.reader is None:
        raise InputError(f"{folder}: which reader sees its runs? --reader NAME{_readers_of(paths[0], score)}")
    reader = reader_of(reading.reader, source="--reader")
    rows, without, seen = [], list[str](), ""
    for path in paths:
        found = look(reader, path)
        place = path.relative_to(folder).as_posix()
        history = _history(found, score, path)
        if not reading.has_score(history, score):
            without.append(place)
            seen = seen or f"{place}: {found.problem or _seen(found, score)}"
            continue
        values = {name: value for name in names if (value := _stated(path, place, name)) is not None}
        values[score] = reading.score_of(history, score)
        rows.append(Row(values, place, history, _digest(path, found)))
    if not rows:
        raise InputError(
            f"{folder}: no run has {reading.wanted(score)} by the reader {reading.reader}: {seen}; --column score=NAME "
            "says which metric is the score"
        )
    _check_stated(folder, rows, keys, reading)
    notes = [
        f"{folder}: {format_count(len(without), 'run')} left out, without {reading.wanted(score)}: {shown(without)}"
    ]
    return Rows(str(folder), rows, score, None, notes * bool(without))


def _check_stated(folder: Path, rows: Sequence[Row], keys: Sequence[str], reading: Reading) -> None:
    """Check that a value that some runs state is stated by all: no default is guessed."""
    for key in keys:
        name = reading.name(key)
        silent = [row.place for row in rows if name not in row.values]
        if silent and (len(silent) < len(rows) or key == "lr"):
            raise InputError(
                f"{folder}: {name} of {shown(silent)} is neither in the name of the run, such as {name}0.1, nor in its "
                f"{', '.join(CONFIGURATIONS[:3])} ...; --column {key}=NAME says how it is called there"
            )


def _readers_of(run: Path, score: str) -> str:
    """Return which readers see a score in a run, as the end of a sentence."""
    found = [each.reader.name for each in looks(run) if score in each.metrics]
    return f"; {score} is seen in {run} by {', '.join(found)}" if found else ", of `ettsweep read`"


def _runs(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in paths if path.is_dir()]
    if not folders:
        yield from (path for path in paths if any(path.match(pattern) for pattern in LOGS))
    for path in folders:
        inner = [each.name for each in path.iterdir() if each.is_dir()]
        is_parent = any(value_in(each, name) is not None for each in inner for name in names)
        yield from _runs(path, names) if is_parent else [path]


def _history(found: Look, score: str, path: Path) -> list[Json]:
    """Return the metrics that a reader sees as lines of metrics.jsonl, of a step that comes twice the later values."""
    if problem := found.problem or found.conflicts.get(score):
        raise InputError(f"{path}: {problem}")
    by_step: dict[int, Json] = {}
    for name, values in found.metrics.items():
        for step, value in values.items():
            by_step.setdefault(step, {"step": step})[name] = value
    return [by_step[step] for step in sorted(by_step)]


def _seen(found: Look, score: str) -> str:
    return f"seen: {', '.join(sorted(found.metrics))}" if found.metrics else f"no {score}, {found.seen}"


def _stated(path: Path, place: str, name: str) -> object:
    """Return the value of a name in a run's path, else in a file with what it was called with; None if neither has."""
    if (value := value_in(place, name)) is not None:
        return value
    for file in CONFIGURATIONS:
        if (path / file).is_file():
            value = _nested(_configuration(path / file), name)
            if value is not None:
                return value
    return None


def _configuration(path: Path) -> object:
    """Return what a file has; nothing where it is of a form that is not read, such as objects of Python in YAML."""
    try:
        return json.loads(path.read_bytes()) if path.suffix == ".json" else read_yaml(path)
    except (OSError, ValueError, RecursionError, InputError):
        return None


def _nested(data: object, name: str) -> Any:
    """Return the value of a name, `optim.lr` where mappings are nested; of Weights & Biases, its `value`."""
    head, _, rest = name.partition(".")
    if not isinstance(data, Mapping):
        return None
    if name in data:
        value = data[name]
        return value.get("value") if isinstance(value, Mapping) else value
    return _nested(data.get(head), rest) if rest else None


def _digest(path: Path, found: Look) -> str:
    """Return the SHA-256 over the files that a reader has read."""
    if path.is_file():
        return sha256_of(path)
    files = [path / name for name in found.files if (path / name).is_file()]
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()
