"""The paper's rule: a point is optimal if the mean of its scores is better than that of each neighbour."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from ettsweep.runs.index import Run
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.reason import Reason
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import ScoredPoint, Verdict, VerdictWord


class MeansRule(StudyState):
    """The state of a family, judged by means over the sweep's seeds; noise plays no role."""

    def __init__(self, study: Study, runs: Iterable[Run]) -> None:
        super().__init__(study, runs)
        self.initial_seeds = study.seeds

    def is_verdict_seed(self, seed: int) -> bool:
        return seed in self.study.seeds

    def racing_specs(self, verdict: Verdict, limit: int, max_seeds: int | None = None) -> list[RunSpec]:
        """Return no runs: this rule decides once the neighbours are finished."""
        return []

    def score_point(self, point: Point) -> ScoredPoint:
        """Return the mean score of a point; if it is not finished, the foremost state of its runs."""
        point = snap_point(point, self._known_points)
        if unfinished := self._unfinished_state(point, self.study.seeds):
            return ScoredPoint(point, None, unfinished)
        scores = [run.score for run in self._finished_runs(point)]
        finished = [score for score in scores if score is not None]
        if len(finished) < len(scores):  # a diverged run is finished, but has no score
            return ScoredPoint(point, None, State.DIVERGED, len(scores))
        return ScoredPoint(point, fmean(finished), State.DONE, len(scores))

    def climb(self, point: Point | None = None) -> Verdict:
        """Climb from a point, by default the best requested one, to the best neighbour while one is better.

        No step is taken before all neighbours are finished. So the end of a climb depends only on the requested points
        and their scores, not on who trained them or when.
        """
        if point is None and not self.study.has_free_axis:  # a single point, perhaps without a score
            point = self.study.centre
        verdict = self._verdict(self._best_requested() if point is None else self.score_point(point), ())
        passed: list[Point] = []
        while verdict.verdict == "refuted" and verdict.best_neighbour and self._neighbours_are_known(verdict):
            passed += [scored_point.point for scored_point in verdict.neighbours]
            verdict = self._verdict(self.score_point(verdict.best_neighbour.point), verdict.full_path, passed)
        return verdict

    def _neighbours_are_known(self, verdict: Verdict) -> bool:
        """`True` if no neighbour is pending, or one is out of reach: then none is trained."""
        awaited = [n.point for n in verdict.neighbours if n.state.pending]
        return not awaited or self._any_out_of_reach(point for point in awaited if not self._is_requested(point))

    def _refutation(self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]) -> Reason | None:
        metric = self.study.metric
        rivals = sum(n.state.finished and metric.is_better(n.score, candidate.score) for n in scored_neighbours)
        return Reason("better_means", {"count": rivals}) if rivals else None

    def _conclusion(
        self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]
    ) -> tuple[VerdictWord, Reason, None]:
        # Also None == None: candidate and neighbour diverged.
        if any(n.score == candidate.score for n in scored_neighbours):
            return "tie", Reason("all_diverged" if candidate.score is None else "equal_mean"), None
        return "optimal", Reason("best_mean", {"neighbours": len(scored_neighbours)}), None
