"""Trials of a study of Optuna as rows of scores: parameters are lr, wd and seed, the value is the score."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from ettsweep.console import format_count
from ettsweep.errors import InputError, error_line, unknown_name
from ettsweep.files import Json, sha256_of
from ettsweep.study.samplers import quiet_optuna
from ettsweep.study.score_rows import Reading, Row, Rows

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

SQLITE = "sqlite:///"


def read_trials(source: str, reading: Reading) -> Rows:
    """Read the complete trials of a study; nothing is written into its storage.

    Args:
        source: address of a storage, such as sqlite:///study.db, or path of a journal.
        reading: may name one of several studies.

    Raises:
        InputError: the storage cannot be read, or has several studies, and none was named.
    """
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    path = Path(source.removeprefix(SQLITE)) if source.startswith(SQLITE) else Path(source)
    is_file = source.startswith(SQLITE) or "://" not in source
    if is_file and not path.is_file():
        raise InputError(f"{source}: there is no file {path}")
    shown = source if is_file else _without_password(source)
    try:
        with quiet_optuna():
            storage = _storage(source, path, is_file)
            studies = {each.study_name: each for each in storage.get_all_studies()}
            chosen = _choose(shown, list(studies), reading.study)
            trials: Sequence[FrozenTrial] = storage.get_all_trials(studies[chosen]._study_id, deepcopy=False)
    except InputError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy, and drivers of databases
        raise InputError(f"{shown}: cannot be read as a storage of Optuna: {error_line(error)}") from None
    directions = studies[chosen].directions
    if len(directions) > 1:
        raise InputError(f"{shown}: study {chosen} has {len(directions)} objectives: one score is expected")
    mode: Literal["min", "max"] = "max" if directions[0] is StudyDirection.MAXIMIZE else "min"
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if not complete:
        raise InputError(f"{shown}: study {chosen} has no complete trial")
    score = reading.name("score")
    rows = [
        Row(
            {**trial.user_attrs, **trial.params, score: trial.value},
            f"trial {trial.number}",
            _history(trial, score, reading, mode),
        )
        for trial in complete
    ]
    left_out = len(trials) - len(complete)
    notes = [f"study {chosen}: {format_count(left_out, 'trial')} left out, not complete"] * bool(left_out)
    return Rows(shown, rows, score, sha256_of(path) if is_file else None, notes, mode)


def _history(trial: "FrozenTrial", score: str, reading: Reading, mode: Literal["min", "max"]) -> list[Json]:
    """Return the intermediate values of a trial, if these are what its value was taken from."""
    lines = [{"step": step, score: value} for step, value in sorted(trial.intermediate_values.items()) if step >= 0]
    values = [line[score] for line in lines]
    taken = {"best": min(values) if mode == "min" else max(values), "last": values[-1]} if values else {}
    return lines if trial.value in taken.values() else []


def _choose(shown: str, names: Sequence[str], stated: str | None) -> str:
    if stated is not None:
        if stated not in names:
            raise unknown_name("study", stated, names)
        return stated
    if len(names) != 1:
        which = f"--study NAME chooses one of {', '.join(names)}" if names else "there is none"
        raise InputError(f"{shown}: one study is expected; {which}")
    return names[0]


def _storage(source: str, path: Path, is_file: bool) -> "BaseStorage":
    """Open a storage, a file for reading alone: Optuna would make its tables in any database."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if "://" not in source:
        return JournalStorage(JournalFileBackend(str(path)))
    address = f"sqlite:///file:{quote(str(path.resolve()))}?mode=ro&uri=true" if is_file else source
    return RDBStorage(address, skip_table_creation=True)


def _without_password(source: str) -> str:
    from sqlalchemy.engine import make_url

    try:
        return make_url(source).render_as_string(hide_password=True)
    except Exception:
        raise InputError("no address of a storage, such as sqlite:///study.db") from None
