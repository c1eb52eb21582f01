"""What is known of runs that were trained elsewhere, whatever source it is from."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.powers import parse_number
from ettsweep.runs.result import Origin

COLUMNS = ("lr", "wd", "seed", "score")
"""Columns of a table of scores; wd and seed may be missing."""

STANDARD_INPUT = "-"

OF_AN_END = ("min", "final", "end", "start", "init", "initial")
"""Words before a name by which it is another one: min_lr is no lr, where vit_lr is one."""

OF_ANOTHER = (*OF_AN_END, "warmup", "decay", "data", "split", "eval")
"""Words by which it is another one in `warmup_lr=1e-6`; `no_warmup_lr1e-3` has the lr beside what is no part of it."""

SHOWN = 4
"""Names that a note lists one by one."""


@dataclass(frozen=True)
class Reading:
    """How scores are read.

    Attributes:
        names: of columns, metrics or parameters by those of `COLUMNS`, where they differ.
        mode: whether lower or higher is better, which tells the best of a curve.
        take: what the score of a curve is: its best value, its last, or that at a step.
        reader: of a folder of runs: a name, a pattern, or a YAML file.
        study: of a storage of Optuna with several: the name of one.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    mode: Literal["min", "max"] = "min"
    take: Literal["best", "last"] | int = "best"
    reader: str | None = None
    study: str | None = None

    def name(self, key: str) -> str:
        """Return the name of a column."""
        return self.names.get(key, key)

    def metric(self, column: str) -> Metric:
        """Return the metric that takes the score of a curve."""
        return Metric(column, self.mode, column, self.take)

    def score_of(self, history: Sequence[Json], column: str) -> float | None:
        """Return the score of a curve; None if a value of it is not finite: the run has diverged."""
        return None if _has_diverged(history, column) else self.metric(column).score(history)

    def has_score(self, history: Sequence[Json], column: str) -> bool:
        """Return whether a curve has a score, or has diverged: one that ended before the step to take has neither."""
        return _has_diverged(history, column) or self.metric(column).score(history) is not None

    def wanted(self, column: str) -> str:
        """Return which score of a curve is taken, as a run that has none lacks it."""
        return f"{column} at step {self.take}" if isinstance(self.take, int) else column


def _has_diverged(history: Sequence[Json], column: str) -> bool:
    return not all(math.isfinite(line[column]) for line in history if column in line)


class Row(NamedTuple):
    """What is known of a run.

    Attributes:
        values: by column, as they were read.
        place: where in the source it stands, such as line 3.
        history: its metrics, as lines of metrics.jsonl; empty where the score alone is known.
        sha256: of its own files, where the source has no file for all.
    """

    values: Mapping[str, Any]
    place: str
    history: Sequence[Json] = ()
    sha256: str | None = None


@dataclass(frozen=True)
class Rows:
    """All runs of a source.

    Attributes:
        source: its name, for people.
        rows: the runs.
        score: name of the column with scores.
        sha256: of the file; None if it is none.
        notes: what there is to say of them.
        mode: whether lower or higher is better, where the source says so.
    """

    source: str
    rows: Sequence[Row]
    score: str
    sha256: str | None = None
    notes: Sequence[str] = ()
    mode: Literal["min", "max"] | None = None

    def origin(self, row: Row) -> Origin:
        """Return where a row is from."""
        return Origin(self.source, row.place, row.sha256 or self.sha256)

    def has(self, name: str) -> bool:
        """Whether any row has a column."""
        return any(name in row.values for row in self.rows)


def value_in(text: str, name: str) -> str | None:
    """Return the number that follows a name in a text, such as 1e-3 in `lr=1e-3,seed=0` or `lr1e-3_seed0`.

    Where the name stands by itself, as part of a longer one it says nothing: lr is 0.2 in `lr=0.2_min_lr=0.02`. Behind
    a word of `OF_AN_END` it never does, nor does `name=value` behind one of `OF_ANOTHER`: of `min_lr=0.02` alone, lr is
    not known.

    Raises:
        InputError: several numbers follow it.
    """
    number = r"(2\^-?\d+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    stated, plain = (rf"{re.escape(name)}{by}?{number}(?![A-Za-z0-9])" for by in ("[=_: -]", "[_ -]"))
    found = (
        re.findall(rf"(?<![A-Za-z0-9])(?<![A-Za-z][_.-]){stated}", text)
        or re.findall(rf"{_behind_none_of(OF_ANOTHER)}(?<![A-Za-z0-9]){stated}", text)  # vit_lr1e-3
        or re.findall(rf"{_behind_none_of(OF_AN_END)}(?<![A-Za-z0-9]){plain}", text)  # cosine_decay_lr1e-3
    )
    if len({parse_number(each) for each in found}) > 1:
        raise InputError(
            f"{text}: which one is {name}, {' or '.join(dict.fromkeys(found))}? One is expected in the name of a run, "
            "or a column of its own"
        )
    return found[-1] if found else None


def _behind_none_of(words: Sequence[str]) -> str:
    return "(?i:" + "".join(rf"(?<!\b{word}[_.-])(?<!_{word}[_.-])" for word in words) + ")"


def shown(names: Collection[str]) -> str:
    """Return some names with commas between; of many, the first."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
