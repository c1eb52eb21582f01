"""The budget of a verification, in equal shares of studies, and a forecast of its runs in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.study.study import Study, StudyKey

EXTRA_RUNS = 100
"""Runs beyond the requested ones without a stated budget: so many for each study, shared by those of a command."""

MAX_TRIALS = 2000
"""Most suggested points without another limit: `surface` stops by itself, long before."""


@dataclass(frozen=True)
class Budget:
    """Limits of a verification; None is no limit.

    Attributes:
        runs: new runs in total.
        seeds: seeds per point.
        hours: device hours in total.
    """

    runs: int | None = None
    seeds: int | None = None
    hours: float | None = None

    @property
    def is_limited(self) -> bool:
        """`True` if any limit is set; without one, studies share `EXTRA_RUNS` for each, beyond those requested."""
        return self != NO_BUDGET

    def __str__(self) -> str:
        options = (("--max-runs", self.runs), ("--max-seeds", self.seeds), ("--max-hours", self.hours))
        return " ".join(f"{option} {limit:g}" for option, limit in options if limit is not None)

    def check(self, studies: Sequence[Study]) -> "Budget":
        """Return this budget if the seeds of all studies are within it.

        Raises:
            InputError: a sweep requests more seeds per point than the budget allows.
        """
        for study in studies:
            if self.seeds is not None and self.seeds < len(study.seeds):
                raise InputError(
                    f"--max-seeds {self.seeds}: {study.title} already requests {len(study.seeds)} seeds per point"
                )
        return self


NO_BUDGET = Budget()


@dataclass(frozen=True)
class Forecast:
    """Runs left until all verdicts stand: predicted, and allowed by the budget."""

    likely: int = 0
    at_most: float = 0.0

    def __str__(self) -> str:
        if self.at_most <= self.likely:
            return f"{format_count(self.likely, 'run')} left"
        limit = f", at most {int(self.at_most)}" if self.at_most < math.inf else ""
        return f"about {format_count(self.likely, 'run')} left{limit}"


def equal_shares(left: int, wanted: Mapping[StudyKey, float]) -> dict[StudyKey, float]:
    """Divide the runs that are left equally between studies; a study leaves the others what it does not need.

    Args:
        left: runs that are left.
        wanted: the most runs that each study can use.
    """
    shares, left = dict[StudyKey, float](), max(0, left)
    modest_first = sorted(wanted, key=lambda key: (wanted[key], key))
    for n_waiting, key in zip(range(len(wanted), 0, -1), modest_first, strict=True):
        shares[key] = min(wanted[key], math.ceil(left / n_waiting))
        left -= int(shares[key])
    return shares


def ample_runs(runs: int) -> int:
    """Return a limit with room for about `runs` predicted runs: twice as many, in hundreds."""
    return 100 * max(1, math.ceil(2 * runs / 100))
