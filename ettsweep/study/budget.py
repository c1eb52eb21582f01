"""The budget of a verification: limits on what it may train, shared fairly between studies; predicted runs in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.study.study import Study, StudyKey

EXTRA_RUNS = 100
"""Runs beyond the requested ones that studies may have if no budget is stated: so many for each, shared by all of a
command, as one may need more and another fewer."""

MAX_TRIALS = 2000
"""Points that are suggested at most where nothing else limits them: `surface` stops by itself, long before."""


@dataclass(frozen=True)
class Budget:
    """Limits on what a verification may train; None is no limit.

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
    """Runs to come until all verdicts stand: as predicted, and as far as the budget allows."""

    at_least: int = 0
    at_most: float = 0.0

    def __str__(self) -> str:
        if self.at_most <= self.at_least:
            return f"{format_count(self.at_least, 'run')} to come"
        limit = f", at most {int(self.at_most)}" if self.at_most < math.inf else ""
        return f"at least {format_count(self.at_least, 'run')} to come{limit}"


def fair_shares(left: float, used: Mapping[StudyKey, float], wanted: Mapping[StudyKey, float]) -> dict[StudyKey, float]:
    """Return how much more of a budget each study may use, so that in the end all have used as much, if they want it.

    Args:
        left: what is left of the budget.
        used: what each study has used.
        wanted: the most that each can still use; what it does not want goes to the others.
    """
    shares, waiting = dict[StudyKey, float](), dict(used)
    while True:
        level = _level(left, waiting)
        even = {key: max(0.0, level - amount) for key, amount in waiting.items()}
        content = [key for key, share in even.items() if wanted[key] <= share]
        if not content:
            return shares | even
        for key in content:
            shares[key] = wanted[key]
            left -= wanted[key]
            del waiting[key]


def _level(left: float, used: Mapping[StudyKey, float]) -> float:
    """Return how much each study has used once those that have used least have caught up, with what is left."""
    level, lowest = math.inf, sorted(used.values())
    for count in range(1, len(lowest) + 1):
        level = (max(0.0, left) + sum(lowest[:count])) / count
        if count < len(lowest) and level <= lowest[count]:
            break  # those that have used more get nothing
    return level


def whole_shares(left: int, used: Mapping[StudyKey, float], wanted: Mapping[StudyKey, float]) -> dict[StudyKey, float]:
    """Return `fair_shares` in whole runs; those left over go to studies that have used least, then by their keys."""
    # 1e-9 absorbs the rounding of a whole number.
    shares = {key: float(math.floor(share + 1e-9)) for key, share in fair_shares(left, used, wanted).items()}
    open_keys = [key for key, share in shares.items() if share < wanted[key]]
    open_keys.sort(key=lambda key: (used[key] + shares[key], key))
    for key in open_keys[: max(0, left - int(sum(shares.values())))]:
        shares[key] += 1
    return shares


def ample_runs(runs: int) -> int:
    """Return a limit on runs that leaves room where at least `runs` are predicted: twice as many, in hundreds."""
    return 100 * max(1, math.ceil(2 * runs / 100))
