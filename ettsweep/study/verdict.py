"""Verdict on a study: whether its candidate is optimal, with the scores and the bound that decided."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from ettsweep.metric import Metric
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.state import State
from ettsweep.study.compatibility import study_differences
from ettsweep.study.reason import Reason
from ettsweep.study.study import Study

if TYPE_CHECKING:  # imports NumPy, which is slow
    from ettsweep.study.posterior import Difference, NoiseEstimate, Posterior
    from ettsweep.study.stability import Stability

VerdictWord = Literal["optimal", "tie", "unresolved", "refuted", "edge", "incomplete", "unsearched"]
"""Words of verdicts; `tie` is only of the paper's rule."""

FINAL_VERDICTS = frozenset({"optimal", "tie", "unsearched"})
"""Verdicts that further runs of the same plan cannot change."""

MEANS_VERDICTS = frozenset({"optimal", "tie", "refuted"})
"""Verdicts of the paper's rule, the comparison of means, once it has all scores."""


@dataclass(frozen=True)
class ScoredPoint:
    """A point with its mean score.

    Attributes:
        point: position on the lattice.
        score: mean over the runs that count; None if one diverged, or none is finished.
        state: of the point as a whole.
        runs: number of scores in the mean.
    """

    point: Point
    score: float | None
    state: State
    runs: int = 0


@dataclass(frozen=True)
class RunsNeeded:
    """A forecast of how many further runs decide a verdict: the median, and the range of eight in ten races."""

    likely: int
    low: int
    high: int


@dataclass(frozen=True)
class Bound:
    """Bound on how much better a neighbour of the candidate can be; exists once all neighbours have scores.

    Numbers without a unit of their own are in that of margins.

    Attributes:
        value: with the given confidence, no neighbour is better by more than this, which is at least the margin; 0 if
            no neighbour has a score, None if the noise is unknown.
        confidence, margin: of the sweep's criterion.
        best_probability: posterior probability that the candidate beats all its neighbours.
        differences: by how much each neighbour is worse, in their order; None if it diverged.
        noise: estimate of the noise of one run.
        stability: the edge of stability beside the candidate, if any.
        plateau: other points that, with the given confidence, are worse than the candidate by at most the margin.
        recommended: the central one of the candidate and the plateau; beside an edge of stability, a step of lr below.
        recommended_value: the bound of that point against its own neighbours; None unless all of them were run.
        paper: verdict of the paper's rule on the candidate; None if it lacks scores.
        further_runs: forecast of the runs that decide it; None if none are needed or allowed.
        finest: the smallest bound that these runs allow, if no margin is stated; else None.
        posterior: the posterior behind these numbers; None in examples made by hand.
    """

    value: float | None
    confidence: float
    margin: float
    best_probability: float
    differences: "tuple[Difference | None, ...]"
    noise: "NoiseEstimate"
    stability: "Stability | None"
    plateau: tuple[Point, ...]
    recommended: Point
    recommended_value: float | None
    paper: str | None
    further_runs: RunsNeeded | None = None
    finest: float | None = None
    posterior: "Posterior | None" = field(default=None, compare=False, repr=False)

    @property
    def is_noise_known(self) -> bool:
        """`True` if the noise of a run was measured or inferred, so probabilities mean something."""
        return self.noise.source != "unknown"

    @property
    def is_too_wide(self) -> bool:
        """`True` if the bound exists and exceeds the margin."""
        return self.value is not None and self.value > self.margin


@dataclass(frozen=True)
class Verdict:
    """Verdict on the candidate of a study.

    Attributes:
        study: the family and sweep.
        verdict: in a word.
        reason: why, and which commands help, as data.
        candidate: best point of the study; None while no point is finished.
        neighbours: points that it must beat.
        fresh_scores: scores of reruns of the candidate with other seeds, by seed; they never change the verdict.
        outside: points beyond the requested ranges.
        path: earlier candidates that a climb passed through, in order.
        runs: the compared, finished runs: of candidate and neighbours, with the seeds that count.
        blocked_run_ids: ids of runs that a person must decide about; the reason has the commands.
        bound: bound by the `bound` rule; None until all neighbours have scores.
        runs_under_way: number of queued and running runs of the study, of any seed.
        extra_runs: number of runs that were not requested: those of climbs and races.
    """

    study: Study
    verdict: VerdictWord
    reason: Reason
    candidate: ScoredPoint | None
    neighbours: tuple[ScoredPoint, ...] = ()
    fresh_scores: Mapping[int, float | None] = field(default_factory=dict)
    outside: tuple[Point, ...] = ()
    path: tuple[Point, ...] = ()
    runs: tuple[Run, ...] = field(default=(), compare=False)
    blocked_run_ids: tuple[str, ...] = field(default=(), compare=False)
    bound: Bound | None = field(default=None, compare=False)
    runs_under_way: int = field(default=0, compare=False)
    extra_runs: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """(sweep, family) of the study."""
        return self.study.key

    @property
    def family(self) -> str:
        return self.study.family

    @property
    def strategy(self) -> str:
        return self.study.strategy

    @property
    def label(self) -> str:
        return self.study.label

    @property
    def compared_points(self) -> tuple[ScoredPoint, ...]:
        """The candidate, if any, followed by its neighbours."""
        return (self.candidate, *self.neighbours) if self.candidate else self.neighbours

    @property
    def point(self) -> Point | None:
        return self.candidate.point if self.candidate else None

    @property
    def score(self) -> float | None:
        return self.candidate.score if self.candidate else None

    @property
    def best_neighbour(self) -> ScoredPoint | None:
        """The best neighbour."""
        return best_point(self.neighbours, self.study.metric)

    @property
    def lead_over_neighbours(self) -> float | None:
        """Score difference by which the best neighbour is worse than the candidate; negative if it is better."""
        if self.score is None or self.best_neighbour is None or self.best_neighbour.score is None:
            return None
        return self.study.metric.worse_by(self.best_neighbour.score, self.score)

    @property
    def candidate_runs(self) -> list[Run]:
        """The compared runs of the candidate, lowest seed first."""
        point = self.point
        of = self.study.point_of
        return [run for run in self.runs if snap_point(of(run), [point]) == point] if point else []

    @property
    def run_counts(self) -> dict[Point, int]:
        """Number of compared runs by point."""
        return dict(Counter(map(self.study.point_of, self.runs)))

    @property
    def missing_points(self) -> list[Point]:
        """Neighbours without a finished score."""
        return [n.point for n in self.neighbours if not n.state.finished]

    @property
    def full_path(self) -> tuple[Point, ...]:
        """The path of the climb including the candidate at its end."""
        return self.path if self.point is None or self.point in self.path[-1:] else (*self.path, self.point)


def conflicting_verdicts(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, Verdict, list[str]]]:
    """Yield pairs of conflicting verdicts on one family, by two sweeps, with the differences of the two studies."""
    for verdict, other in combinations(verdicts, 2):
        outcome, other_outcome = ((v.verdict, v.point, v.score) for v in (verdict, other))
        if verdict.family == other.family and outcome != other_outcome:
            yield verdict, other, study_differences(verdict.study, other.study)


def best_point(scored: Iterable[ScoredPoint], metric: Metric) -> ScoredPoint | None:
    """Return the point with the best score, the first of equals; None if there is no point."""
    return min(scored, key=lambda scored_point: metric.sort_key(scored_point.score), default=None)
