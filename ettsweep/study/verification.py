"""Verification: families are judged, and what their verdicts lack is planned, round after round, within a budget."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ettsweep.console import device_hours
from ettsweep.errors import InputError
from ettsweep.powers import power
from ettsweep.runs.spec import RunSpec
from ettsweep.study.lattice import Point
from ettsweep.study.means_rule import MeansRule
from ettsweep.study.plan import Plan, PlannedRun, make_plan
from ettsweep.study.run_index import Run, RunIndex, cost_s
from ettsweep.study.study import Study, titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import MOST, Verdict

ROUND_S = 5.0
"""Seconds that a round of racing has workers busy, who take about as long to start."""

AHEAD = 4
"""Proposals, for each run that trains at a time, that a round of short runs may have: each knows less than the last."""

VERDICT = 10
"""Runs of a family that a budget keeps for its verdict, six neighbours and some seeds, while points are proposed."""

HOPE = 8
"""How many times too high the number of runs that a verdict would take may be: racing goes on while there is hope."""


def evaluate(study: Study, runs: Iterable[Run]) -> StudyState:
    """Return a family as it is, to be judged by the rule of its sweep."""
    if study.criterion.rule == "paper":
        return MeansRule(study, runs)
    from ettsweep.study.bound_rule import BoundRule  # numpy: commands that judge nothing start without it

    return BoundRule(study, runs)


def evaluate_all(studies: Sequence[Study], run_index: RunIndex) -> list[StudyState]:
    """Return each family as it is on disk."""
    return [evaluate(study, run_index.family(study.family)) for study in studies]


def judge(studies: Sequence[Study], run_index: RunIndex) -> list[Verdict]:
    """Return the verdict of each family of each sweep on what is on disk."""
    return [study_state.verdict() for study_state in evaluate_all(studies, run_index)]


@dataclass(frozen=True)
class Budget:
    """What a verification may train; None is no limit.

    Attributes:
        runs: in all.
        seeds: of one point.
        hours: of devices, in all.
    """

    runs: int | None = None
    seeds: int | None = None
    hours: float | None = None

    @property
    def stated(self) -> bool:
        """Whether somebody said when to stop; else a family is trained up to twice what was asked for."""
        return self != NO_BUDGET

    def __str__(self) -> str:
        stated = (("--max-runs", self.runs), ("--max-seeds", self.seeds), ("--max-hours", self.hours))
        return " ".join(f"{option} {most:g}" for option, most in stated if most is not None)

    def checked(self, studies: Sequence[Study]) -> "Budget":
        """Return it.

        Raises:
            InputError: a sweep asks for more seeds a point than it allows.
        """
        for study in studies:
            if self.seeds is not None and self.seeds < len(study.seeds):
                raise InputError(
                    f"--max-seeds {self.seeds}: {study.title} asks for {len(study.seeds)} seeds a point already"
                )
        return self


NO_BUDGET = Budget()


class SuggestionSource(Protocol):
    """What names points of families, round after round.

    Attributes:
        cut_short: whether the budget allowed no further point of a family.
    """

    cut_short: bool

    def names_more(self, study: Study) -> bool:
        """Say whether points may still be named for a family."""
        ...

    def further(self, studies: Sequence[Study], run_index: RunIndex, at_once: int, most: int) -> Sequence[Study]:
        """Return the searches with the points that are to be run next, of `most` new runs in all."""
        ...


@dataclass
class Verification:
    """Families, each climbing and racing until its verdict stands; each look at what is on disk takes that on.

    Attributes:
        at: the point at which the climb of each family begins; None for its best.
        tell: takes a line for each step of a climb.
        agree: asked, with what the next round would cost, whether a family may go on that far; None: no.
        device_s: of some planned runs, the seconds that they will take, where that is known.
        at_once: runs that can train at a time: so many are raced in a round.
        follows: race, and go on from better neighbours of `at`.
        searching: names points of families, which are judged once it names no more; None where nobody does.
        verdicts: one for each family, of the last look.
        planned: runs planned so far.
        beyond: those of them that were not asked for, of each sweep and family.
        held_back: runs that the budget kept out of the last plan.
        stopped: a line for each family that does not go on, and why.
    """

    studies: Sequence[Study]
    at: Point | None = None
    budget: Budget = NO_BUDGET
    tell: Callable[[str], None] | None = None
    agree: Callable[[str], bool] | None = None
    device_s: Callable[[RunIndex, Sequence[PlannedRun]], float | None] = lambda ledger, planned: None
    at_once: int = 1
    follows: bool = False
    searching: SuggestionSource | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    planned: int = 0
    beyond: dict[tuple[str, str], list[RunSpec]] = field(default_factory=dict)
    held_back: int = 0
    stopped: list[str] = field(default_factory=list)
    _patience: dict[tuple[str, str], int] = field(default_factory=dict)
    _declined: set[tuple[str, str]] = field(default_factory=set)
    _trained: set[str] = field(default_factory=set)

    def plan(self, run_index: RunIndex) -> Plan:
        """Climb as far as what is on disk allows, and return the plan for what the verdicts lack.

        Raises:
            InputError: a point that is compared has more seeds than the budget allows before anything is trained.
        """
        if self.searching:
            batch = min(self._batch([study.base for study in self.studies], run_index), AHEAD * self.at_once)
            self.studies = self.searching.further(self.studies, run_index, batch, self._new_runs(run_index))
        found = evaluate_all(self.studies, run_index)
        first = not self.verdicts
        before: Sequence[Verdict | None] = self.verdicts or [None] * len(found)
        self.verdicts = [self._climb(study_state, last) for study_state, last in zip(found, before, strict=True)]
        if first:
            self._check_seeds()
        self.stopped = []
        judged = [self._judges(study_state.study) for study_state in found]
        lacking = [
            (study_state, v, study_state.wanted(v) if stands else study_state.pending())
            for study_state, v, stands in zip(found, self.verdicts, judged, strict=True)
        ]
        racing = [
            (study_state, v)
            for (study_state, v, _), stands in zip(lacking, judged, strict=True)
            if self.follows and stands and v.verdict == "unresolved"
        ]
        points = [spec for study_state, v in racing if v.point for spec in study_state.specs([v.point])]
        each = math.ceil(self._batch(points, run_index) / max(1, len(racing)))
        lacking += [(study_state, v, self._further(study_state, v, each)) for study_state, v in racing]
        chosen = [
            (study_state, v, self._affordable(study_state, v, wanted, run_index)) for study_state, v, wanted in lacking
        ]
        whole = make_plan((spec for _, _, specs in chosen for spec in specs), run_index)
        plan = whole.limited(self._room(whole, run_index))
        self.held_back = len(whole.to_launch) - len(plan.to_launch)
        self.planned += len(plan.to_launch)
        launched = {p.id for p in plan.to_launch}
        self._trained |= launched
        for study_state, v, specs in chosen:
            new = [s for s in specs if s.run_id in launched and not study_state.study.asks(Point(s.lr, s.wd), s.seed)]
            self.beyond[v.key] = [*self.beyond.get(v.key, ()), *new]
        return plan

    @property
    def unproposed(self) -> bool:
        """Whether the budget ended a search."""
        return bool(self.searching and self.searching.cut_short)

    def proposals(self) -> set[str]:
        """Return the ids of runs that were merely proposed: no grid asked for them, and no verdict compares them."""
        found = set()
        for v in self.verdicts:
            compared = {scored_point.point for scored_point in v.compared}
            for point in set(v.study.proposed) - set(v.study.points) - compared:
                found |= {v.study.base.with_point(point.lr, point.wd, seed).run_id for seed in v.study.asked[point]}
        return found

    def _judges(self, study: Study) -> bool:
        """Say whether a family is looked at for its verdict: it is not while points are named for it."""
        return not (self.searching and self.searching.names_more(study))

    def _spent_s(self, run_index: RunIndex) -> float:
        return sum(cost_s(run_index.runs[run]) for run in self._trained if run in run_index.runs)

    def _check_seeds(self) -> None:
        if (most := self.budget.seeds) is None:
            return
        for v in self.verdicts:
            for scored_point in v.compared:
                if scored_point.runs > most:
                    title = titles(self.studies)[v.key]
                    raise InputError(
                        f"--max-seeds {most}: {title} has {scored_point.runs} seeds at {scored_point.point} already"
                    )

    def _batch(self, specs: Sequence[RunSpec], run_index: RunIndex) -> int:
        """Return how many runs like some a round has: those at once or, of short ones, as many as are worth a round."""
        timed = self.device_s(run_index, make_plan(specs, run_index).wanted) if specs else None
        return self.at_once * max(1, math.ceil(ROUND_S * len(specs) / timed) if timed else 1)

    def _climb(self, study_state: StudyState, last: Verdict | None) -> Verdict:
        """Return the verdict that a climb has come to; say so where it is farther than at the look before."""
        at = self.at and study_state.snap(self.at)
        verdict = study_state.verdict(at) if at and not self.follows else study_state.climb(at)
        if self.tell and verdict.point and (last is None or verdict.way != last.way):
            self.tell(f"{titles(self.studies)[verdict.key]}: {_candidate(verdict)}")
        return verdict

    def _further(self, study_state: StudyState, verdict: Verdict, number: int) -> list[RunSpec]:
        """Return the next runs of a race, up to a number, no more than it needs or may have; say why there are none."""
        left, needed = self._left(study_state, verdict), verdict.bound.needed if verdict.bound else 0
        specs = study_state.further(verdict, max(1, int(min(number, needed or number, left))), self.budget.seeds)
        if 0 < left < len(specs):
            specs = specs[: int(left)]
        if not specs and verdict.score is not None:
            most = f"--max-seeds {self.budget.seeds} allows no further seed" if self.budget.seeds else ""
            why = most or "no further run would tell"
            self.stopped.append(f"{titles(self.studies)[verdict.key]}: {why}")
        return specs

    def _affordable(
        self, study_state: StudyState, verdict: Verdict, wanted: list[RunSpec], run_index: RunIndex
    ) -> list[RunSpec]:
        """Return the runs that a family lacks; none where they would lead beyond the budget."""
        if not self.follows or not (self.budget.stated or verdict.path or verdict.bound):
            return wanted  # the neighbours of the best point that was asked for are always trained
        asked = {spec.run_id for spec in study_state.asked()}
        more = make_plan((spec for spec in wanted if spec.run_id not in asked), run_index).to_launch
        needed = max(len(more), verdict.bound.needed if verdict.bound else 0)
        if not more or max(len(more), needed // HOPE) <= self._left(study_state, verdict):
            return wanted
        some = f"{'more than' if needed >= MOST else 'some'} {needed} would be needed"
        further = f"the next round is {len(more)}" if needed == len(more) else some
        told = f"{len(asked)} runs were asked for, {self._more(study_state, verdict)} more are trained, and {further}"
        if seconds := self.device_s(run_index, more):
            told += f", about {device_hours(seconds * needed / len(more))}"
        if self.budget.runs is not None:
            told += f"; of --max-runs {self.budget.runs}, {max(0, self.budget.runs - self.planned)} are left"
        told = f"{titles(self.studies)[verdict.key]}: {told}"
        if not self.budget.stated and verdict.key not in self._declined and self.agree and self.agree(told):
            self._patience[verdict.key] = 2 * self._patience.get(verdict.key, 1)
            return wanted
        self._declined.add(verdict.key)
        self.stopped.append(told)
        ids = {planned.id for planned in more}
        return [spec for spec in wanted if spec.run_id not in ids]  # what is under way is waited for

    def _new_runs(self, run_index: RunIndex) -> int:
        """Return how many new runs may be proposed: what the budget leaves once those are trained that are named.

        Some runs are kept for verdicts, where that leaves as many for the search.
        """
        if not self.budget.stated:
            return MOST
        named = [spec for study_state in evaluate_all(self.studies, run_index) for spec in study_state.pending()]
        kept = VERDICT * len(self.studies)
        waiting, allowed = len(make_plan(named, run_index).to_launch), MOST
        if self.budget.runs is not None:
            allowed = self.budget.runs - self.planned - (kept if self.budget.runs >= 2 * kept else 0)
        if self.budget.hours is not None:
            bases = [study.base for study in self.studies]
            each_s = (self.device_s(run_index, make_plan(bases, run_index).wanted) or 0.0) / len(bases)
            allowed = min(allowed, self._affordable_runs(each_s, run_index))
        return max(0, allowed - waiting)

    def _affordable_runs(self, each_s: float, run_index: RunIndex) -> int:
        """Return how many runs of some seconds the hours allow; as long as nobody knows how long they take, `MOST`."""
        assert self.budget.hours is not None
        left_s = 3600 * self.budget.hours - self._spent_s(run_index)
        return 0 if left_s <= 0 else int(left_s / each_s) if each_s else MOST

    def _left(self, study_state: StudyState, verdict: Verdict) -> float:
        """Return how many runs a family may still train: without a budget, as many as were asked for."""
        if self.budget.stated:
            return math.inf if self.budget.runs is None else self.budget.runs - self.planned
        asked = len(study_state.asked())
        return self._patience.get(verdict.key, 1) * asked - self._more(study_state, verdict)

    def _more(self, study_state: StudyState, verdict: Verdict) -> int:
        """Return how many runs a family has beyond what was asked for: of points that it reached, or trained here."""
        return len(
            {run.id for run in study_state.beyond(verdict)} | {spec.run_id for spec in self.beyond.get(verdict.key, ())}
        )

    def _room(self, plan: Plan, run_index: RunIndex) -> int:
        """Return how many runs of a plan the whole budget allows."""
        room = len(plan.to_launch) if self.budget.runs is None else max(0, self.budget.runs - self.planned)
        if self.budget.hours is None:
            return room
        each_s = (self.device_s(run_index, plan.to_launch) or 0.0) / max(1, len(plan.to_launch))
        return min(room, self._affordable_runs(each_s, run_index))


def _candidate(verdict: Verdict) -> str:
    assert verdict.point is not None
    score = "diverged" if verdict.score is None else f"{verdict.study.metric.metric} {verdict.score:.4g}"
    return f"candidate lr {power(verdict.point.lr)} wd {power(verdict.point.wd)}, {score}"
