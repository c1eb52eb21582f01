"""A verdict on a family: what is said of its candidate, and all that it is said from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from ettsweep.runs.state import State
from ettsweep.study.compatibility import unlike
from ettsweep.study.lattice import Point
from ettsweep.study.run_index import Run
from ettsweep.study.study import Study
from ettsweep.trainer.tasks.registry import Metric

if TYPE_CHECKING:
    from ettsweep.study.posterior import Difference, NoiseEstimate, Posterior

FINAL = frozenset({"optimal", "tie", "unsearched"})
"""Verdicts that more runs of the same plan cannot change."""

COMPARED = frozenset({"optimal", "tie", "refuted"})
"""What the comparison of means says where it has all scores."""

MOST = 2000
"""Runs beyond which nobody asks how many it would take."""

MOST_SURE = 0.999
"""Probability beyond which draws of a posterior tell no more."""


@dataclass(frozen=True)
class ScoredPoint:
    """A point with the mean of its scores that count; None where one diverged, or none is finished.

    Attributes:
        runs: the scores that it is the mean of.
    """

    point: Point
    score: float | None
    state: State
    runs: int = 0


@dataclass(frozen=True)
class Bound:
    """What is known of a candidate, all of whose neighbours are known. Shares are of its loss, or of all samples.

    Attributes:
        value: what no neighbour is better by, with the confidence; None where the noise is unknown.
        confidence, margin: of the sweep's criterion.
        best: the probability that the candidate beats all its neighbours.
        differences: by how much each neighbour is worse, in their order; None where it diverged.
        noise: of one run.
        caveat: why points are compared pair by pair, and not by a surface; else nothing.
        plateau: other points that, with the confidence, are no worse than the candidate by more than the margin.
        recommended: of these and the candidate the one in their middle.
        paper: the verdict of the paper's rule on the same point; None where it lacks scores.
        more: runs that it would still take, as things look; None where it is more than `MOST`, or none are needed.
        evidence: the posterior that all this is read from; None in what is made by hand.
    """

    value: float | None
    confidence: float
    margin: float
    best: float
    differences: "tuple[Difference | None, ...]"
    noise: "NoiseEstimate"
    caveat: str
    plateau: tuple[Point, ...]
    recommended: Point
    paper: str | None
    more: int | None = None
    posterior: "Posterior | None" = field(default=None, compare=False, repr=False)

    @property
    def wide(self) -> bool:
        """Whether the bound is there, and beyond the margin."""
        return self.value is not None and self.value > self.margin

    @property
    def needed(self) -> int:
        """Runs that it would still take: at least so many, where that is `MOST`; none where nobody can tell."""
        return (self.more or MOST) if self.wide else 0


@dataclass(frozen=True)
class Verdict:
    """The answer for one family.

    Attributes:
        search: what was asked for.
        verdict: optimal, unresolved, edge, incomplete, refuted or unsearched; tie by the paper's rule.
        reason: what stands in the way, and what to type.
        candidate: the point that is judged; None while no point is finished.
        neighbours: those that it must beat.
        fresh: scores of reruns of the candidate over other seeds; they never move the verdict.
        outside: points reached beyond the ranges that were asked for.
        path: candidates that a climb passed through, first to last.
        runs: the finished ones that were compared, of candidate and neighbours over the seeds that count.
        bound: what is known by the rule of the bound, once all neighbours are known.
        stuck: ids of the runs that a person must decide about, of which the reason says what to type.
    """

    study: Study
    verdict: str
    reason: str
    candidate: ScoredPoint | None
    neighbours: tuple[ScoredPoint, ...] = ()
    fresh: Mapping[int, float | None] = field(default_factory=dict)
    outside: tuple[Point, ...] = ()
    path: tuple[Point, ...] = ()
    runs: tuple[Run, ...] = field(default=(), compare=False)
    stuck: tuple[str, ...] = field(default=(), compare=False)
    bound: Bound | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Sweep and family, to which a verdict belongs."""
        return self.study.key

    @property
    def family(self) -> str:
        return self.study.family

    @property
    def strategy(self) -> str:
        return self.study.strategy

    @property
    def statement(self) -> str:
        """What is claimed, in a few words: the verdict, and how far it holds."""
        if self.study.criterion.rule == "paper":
            by = " by the paper's comparison of means" if self.verdict in COMPARED else ""
            return self.verdict + by
        if self.verdict not in ("optimal", "unresolved"):
            return self.verdict
        if self.bound is None or self.bound.value is None:
            return f"{self.verdict}: {'all diverged' if self.score is None else 'noise unknown'}"
        said = self.study.metric.format_share
        within = f"within {said(self.bound.value)} ({100 * self.bound.confidence:.10g}%)"
        if self.verdict == "optimal":
            return f"optimal {within}"
        return f"unresolved: {within}, {said(self.bound.margin)} asked"

    @property
    def compared(self) -> tuple[ScoredPoint, ...]:
        """The candidate, if there is one, and its neighbours."""
        return (self.candidate, *self.neighbours) if self.candidate else self.neighbours

    @property
    def point(self) -> Point | None:
        return self.candidate.point if self.candidate else None

    @property
    def lr(self) -> float | None:
        return self.candidate.point.lr if self.candidate else None

    @property
    def wd(self) -> float | None:
        return self.candidate.point.wd if self.candidate else None

    @property
    def score(self) -> float | None:
        return self.candidate.score if self.candidate else None

    @property
    def rival(self) -> ScoredPoint | None:
        """The best neighbour."""
        return best(self.neighbours, self.study.metric)

    @property
    def lead(self) -> float | None:
        """How much worse the best neighbour is; negative where it is better."""
        if self.score is None or self.rival is None or self.rival.score is None:
            return None
        return self.study.metric.worse_by(self.rival.score, self.score)

    @property
    def counted(self) -> dict[Point, int]:
        """How many runs were compared, by point."""
        return dict(Counter(run.point for run in self.runs))

    @property
    def missing(self) -> list[Point]:
        """Neighbours without a finished score."""
        return [n.point for n in self.neighbours if not n.state.finished]

    @property
    def way(self) -> tuple[Point, ...]:
        """The path, with the candidate at its end."""
        return self.path if self.point is None or self.point in self.path[-1:] else (*self.path, self.point)


def side_by_side(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, Verdict, list[str]]]:
    """Yield each two verdicts on one family, of two sweeps, that say different things, and what the sweeps ask."""
    for verdict, other in combinations(verdicts, 2):
        said, else_said = ((v.verdict, v.point, v.score) for v in (verdict, other))
        if verdict.family == other.family and said != else_said:
            yield verdict, other, unlike(verdict.study, other.study)


def best(scored: Iterable[ScoredPoint], metric: Metric) -> ScoredPoint | None:
    """Return the best of some points, the first of equal ones."""
    return min(scored, key=lambda scored_point: metric.rank(scored_point.score), default=None)
