"""Runs that failed alike: a wrong path fails all runs of a sweep, an lr that is too large a few."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import digits

from ettsweep.files import Json

FAILURES = 3
"""Runs that fail alike before one has finished, after which no more begin: one fails by its lr, or by chance."""


@dataclass(frozen=True)
class Failure:
    """A run that failed.

    Attributes:
        reason: why, for people.
        exit_code: of its command; None of other runs.
    """

    run_id: str
    reason: str
    exit_code: object = None

    @classmethod
    def of(cls, run_id: str, failure: Json | None, status_reason: str) -> "Failure":
        """Return the failure of an attempt, by its failure.json; without one, by the reason for the run's state."""
        failure = failure or {}
        return cls(run_id, str(failure.get("reason") or status_reason), failure.get("exit_code"))

    @property
    def likeness(self) -> tuple[object, str]:
        """What runs that failed alike have in common."""
        # What a program prints last may have its seed, its lr, a time or a process.
        text = self.reason.replace(self.run_id, "").translate(dict.fromkeys(map(ord, digits)))
        return self.exit_code, text


def most_alike(failures: Iterable[Failure]) -> Sequence[Failure]:
    """Return the most failures that are alike, in order."""
    by_likeness: dict[tuple[object, str], list[Failure]] = {}
    for failure in failures:
        by_likeness.setdefault(failure.likeness, []).append(failure)
    return max(by_likeness.values(), key=len, default=[])


def held_back_text(alike: Sequence[Failure]) -> str:
    """Return why no more runs begin, for people."""
    first = alike[0]
    return (
        f"held back: the first {len(alike)} runs failed alike: {first.reason}; see `ettsweep logs {first.run_id}`, "
        "then `ettsweep retry`"
    )
