"""The reason of a verdict, as data: `report/reason_text` has its words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ettsweep.runs.point import Point

Code = Literal[
    "candidate_to_come",
    "single_point",
    "points_to_come",
    "neighbours_to_come",
    "neighbours_not_requested",
    "out_of_reach",
    "diverged",
    "all_diverged",
    "better_neighbour",
    "better_means",
    "equal_mean",
    "best_mean",
    "around_zero",
    "noise_unknown",
    "beyond_margin",
    "edge_above",
    "too_few_seeds",
    "within_margin",
]
"""Codes of reasons.

    candidate_to_come         the candidate (`point`, in `state`) is not finished, or there is none: null
    single_point              both axes are fixed
    points_to_come            requested points are missing: `pending` of `requested`
    neighbours_to_come        `count` neighbours are not finished
    neighbours_not_requested  `count` of `neighbours` were not requested
    out_of_reach              a neighbour is more than `steps` beyond the requested ranges
    diverged                  the candidate diverged, and a neighbour did not
    all_diverged              the candidate and all its neighbours diverged
    better_neighbour          `point` is better, with a `probability`
    better_means              the means of `count` neighbours are better
    equal_mean, best_mean     a neighbour has the same mean; the candidate's is better than those of `neighbours`
    around_zero               the candidate's scores are around zero, and `margin` is a share of the score
    noise_unknown             for want of `lack` (shared_seeds, seeds, repeats); `seeds` more seeds of candidate and
                              neighbours, in `runs` of `device_s`, measure it; null for shared_seeds
    beyond_margin             the bound (`value` at `confidence`) is beyond the `margin`; about `runs` more, of
                              `device_s`, decide (`runs_range`: eight of ten races); null if none is allowed
    edge_above                the same, for a share of seeds that may be unstable at the candidate: `stable` of
                              `of_seeds` were not, and `may_be_unstable` is the share that may be (95%)
    too_few_seeds             it is within the margin, but the candidate and the deciding neighbour, the likeliest to be
                              better by more, share fewer than so many `seeds`; `runs`, of `device_s`, are missing
    within_margin             it is within the margin
"""

Command = tuple[str, ...]
"""The words of a command."""


@dataclass(frozen=True)
class StuckRun:
    """A run that needs a person."""

    run: str
    state: str


@dataclass(frozen=True)
class Reason:
    """The reason of a verdict.

    Attributes:
        code: of the reason.
        facts: the numbers behind it, see `Code`.
        stuck: runs that a person must decide about.
        stopped: why some of these did not start although they were not cancelled; else empty.
        next: commands for these, the most useful first.
    """

    code: Code
    facts: Mapping[str, object] = field(default_factory=dict)
    stuck: Sequence[StuckRun] = ()
    stopped: str = ""
    next: Sequence[Command] = ()

    def to_json(self) -> dict[str, object]:
        """Return the reason as plain data; a point is a list of its values."""
        facts = {name: [*fact] if isinstance(fact, Point) else fact for name, fact in self.facts.items()}
        stuck = [{"run": run.run, "state": run.state} for run in self.stuck]
        return {"code": self.code, **facts, "stuck": stuck, "next": [list(command) for command in self.next]}
