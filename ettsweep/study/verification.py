"""Verification: judge studies and plan the runs that their verdicts need, round after round, within a budget."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ettsweep.console import format_device_hours
from ettsweep.errors import InputError
from ettsweep.powers import format_power
from ettsweep.quantities import score_text
from ettsweep.runs.spec import RunSpec
from ettsweep.study.lattice import Point
from ettsweep.study.means_rule import MeansRule
from ettsweep.study.plan import Plan, PlannedRun, make_plan
from ettsweep.study.run_index import Run, RunIndex, spent_device_s
from ettsweep.study.study import Study, study_titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import MAX_NEEDED_RUNS, Verdict

MIN_ROUND_S = 5.0
"""Seconds that a round should keep workers busy: they take about as long to start, so shorter rounds waste time."""

SUGGESTIONS_PER_WORKER = 4
"""Most suggestions per worker in a round of short runs: each one is made without the scores of those before it."""

RUNS_PER_VERDICT = 10
"""Runs per study that a search leaves for the verdict: six neighbours and a few more seeds."""

OVERESTIMATE = 8
"""Factor by which the predicted number of runs may exceed the budget before racing stops: predictions run high."""


def evaluate(study: Study, runs: Iterable[Run]) -> StudyState:
    """Return the state of a study, which judges it by the rule of its sweep; `runs` are those of its family."""
    if study.criterion.rule == "paper":
        return MeansRule(study, runs)
    from ettsweep.study.bound_rule import BoundRule  # numpy: commands that judge nothing start without it

    return BoundRule(study, runs)


def evaluate_all(studies: Sequence[Study], run_index: RunIndex) -> list[StudyState]:
    """Return the state of each study from the runs on disk."""
    return [evaluate(study, run_index.family_runs(study.family)) for study in studies]


def judge(studies: Sequence[Study], run_index: RunIndex) -> list[Verdict]:
    """Return the verdict on each study from the runs on disk."""
    return [study_state.verdict() for study_state in evaluate_all(studies, run_index)]


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
        """Whether any limit is set; without one, a study may train as many runs again as were requested."""
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


class SuggestionSource(Protocol):
    """A source of suggested points for studies, round after round.

    Attributes:
        budget_exhausted: whether the budget kept a study from getting another point.
    """

    budget_exhausted: bool

    def can_suggest(self, study: Study) -> bool:
        """`True` if further points may be suggested for a study."""
        ...

    def suggest(self, studies: Sequence[Study], run_index: RunIndex, capacity: int, max_runs: int) -> Sequence[Study]:
        """Return the studies with further suggestions: `capacity` points under way, at most `max_runs` new runs."""
        ...


@dataclass
class Verification:
    """Studies that climb and race until their verdicts are final; each call of `plan` is one round.

    Attributes:
        start: point where each climb starts; None for the study's best point.
        notify: called with a line for each step of a climb.
        confirm: called with the cost of the next round of a study without a budget, returns whether to train it; None
            stands for no.
        estimate_device_s: predicts the device seconds of planned runs; None if unknown.
        capacity: runs that can train at the same time; racing adds that many per round.
        follows: race, and climb on from better neighbours of `start`.
        suggester: suggests points of studies, which are judged once it is done; None without a search.
        verdicts: one per study, from the last round.
        planned: number of runs planned so far.
        other_studies: of sweeps that are not verified; the runs that they request are not counted as extra runs.
        extra_specs: planned runs that were neither requested nor suggested, by sweep and family.
        runs_over_budget: runs that the budget kept out of the last plan.
        stop_reasons: a line for each study that does not go on.
    """

    studies: Sequence[Study]
    start: Point | None = None
    budget: Budget = NO_BUDGET
    notify: Callable[[str], None] | None = None
    confirm: Callable[[str], bool] | None = None
    estimate_device_s: Callable[[RunIndex, Sequence[PlannedRun]], float | None] = lambda run_index, planned: None
    capacity: int = 1
    follows: bool = False
    suggester: SuggestionSource | None = None
    other_studies: Sequence[Study] = ()
    verdicts: list[Verdict] = field(default_factory=list)
    planned: int = 0
    extra_specs: dict[tuple[str, str], list[RunSpec]] = field(default_factory=dict)
    runs_over_budget: int = 0
    stop_reasons: list[str] = field(default_factory=list)
    _allowance: dict[tuple[str, str], int] = field(default_factory=dict)
    _declined: set[tuple[str, str]] = field(default_factory=set)
    _planned_ids: set[str] = field(default_factory=set)

    def plan(self, run_index: RunIndex) -> Plan:
        """Judge all studies from the runs on disk, and return the plan of the runs that their verdicts need next.

        Raises:
            InputError: a compared point had more seeds than the budget allows before the first round.
        """
        if self.suggester:
            batch = min(
                self._batch_size([study.base for study in self.studies], run_index),
                SUGGESTIONS_PER_WORKER * self.capacity,
            )
            self.studies = self.suggester.suggest(self.studies, run_index, batch, self._suggestion_limit(run_index))
        study_states = evaluate_all(self.studies, run_index)
        is_first = not self.verdicts
        last_verdicts: Sequence[Verdict | None] = self.verdicts or [None] * len(study_states)
        self.verdicts = [
            self._climb(study_state, last) for study_state, last in zip(study_states, last_verdicts, strict=True)
        ]
        if is_first:  # later rounds may go up to the limit themselves
            self._check_seeds()
        self.stop_reasons = []
        # While points are suggested for a study, only requested runs are planned: its candidate may still change.
        is_judged = [self._is_judged(study_state.study) for study_state in study_states]
        lacking_specs = [
            (study_state, v, study_state.needed_specs(v) if has_verdict else study_state.pending_specs())
            for study_state, v, has_verdict in zip(study_states, self.verdicts, is_judged, strict=True)
        ]
        # Racing starts once nothing else is missing: an unresolved verdict has all of its neighbours.
        racing = [
            (study_state, v)
            for (study_state, v, _), has_verdict in zip(lacking_specs, is_judged, strict=True)
            if self.follows and has_verdict and v.verdict == "unresolved"
        ]
        points = [spec for study_state, v in racing if v.point for spec in study_state.specs([v.point])]
        runs_per_study = math.ceil(self._batch_size(points, run_index) / max(1, len(racing)))
        lacking_specs += [
            (study_state, v, self._racing_specs(study_state, v, runs_per_study)) for study_state, v in racing
        ]
        affordable = [
            (study_state, v, self._affordable_specs(study_state, v, needed_specs, run_index))
            for study_state, v, needed_specs in lacking_specs
        ]
        full_plan = make_plan((spec for _, _, specs in affordable for spec in specs), run_index)
        plan = full_plan.limited(self._launch_limit(full_plan, run_index))
        self.runs_over_budget = len(full_plan.to_launch) - len(plan.to_launch)
        self.planned += len(plan.to_launch)
        # Only what is launched is recorded: the budget may have cut off the end of the plan.
        launched = {p.id for p in plan.to_launch}
        self._planned_ids |= launched
        for study_state, v, specs in affordable:
            new = [
                s for s in specs if s.run_id in launched and not study_state.study.requests(Point(s.lr, s.wd), s.seed)
            ]
            self.extra_specs[v.key] = [*self.extra_specs.get(v.key, ()), *new]
        return plan

    @property
    def search_over_budget(self) -> bool:
        """Whether the budget ended the search for suggestions."""
        return bool(self.suggester and self.suggester.budget_exhausted)

    def prunable_ids(self) -> set[str]:
        """Return the ids of runs that may be pruned: suggested ones that no grid requested and no verdict compares."""
        run_ids = set()
        for v in self.verdicts:
            compared = {scored_point.point for scored_point in v.compared_points}
            for point in set(v.study.suggested_points) - set(v.study.grid_points) - compared:
                run_ids |= {
                    v.study.base.with_point(point.lr, point.wd, seed).run_id for seed in v.study.seeds_by_point[point]
                }
        return run_ids

    def _is_judged(self, study: Study) -> bool:
        """`True` if a study is verified now: not while points are suggested for it."""
        return not (self.suggester and self.suggester.can_suggest(study))

    def _used_device_s(self, run_index: RunIndex) -> float:
        return sum(spent_device_s(run_index.runs[run]) for run in self._planned_ids if run in run_index.runs)

    def _check_seeds(self) -> None:
        if (max_seeds := self.budget.seeds) is None:
            return
        for v in self.verdicts:
            for scored_point in v.compared_points:
                if scored_point.runs > max_seeds:
                    title = study_titles(self.studies)[v.key]
                    number = f"{scored_point.runs} seeds at {scored_point.point}"
                    raise InputError(f"--max-seeds {max_seeds}: {title} already has {number}")

    def _batch_size(self, specs: Sequence[RunSpec], run_index: RunIndex) -> int:
        """Return how many runs like `specs` make up a round: one per worker, or more if they are short."""
        timed = self.estimate_device_s(run_index, make_plan(specs, run_index).all_runs) if specs else None
        return self.capacity * max(1, math.ceil(MIN_ROUND_S * len(specs) / timed) if timed else 1)

    def _climb(self, study_state: StudyState, last: Verdict | None) -> Verdict:
        """Return the verdict at the end of a climb, and report the candidate if the climb has moved on."""
        start = self.start and study_state.resolve_point(self.start)
        # Without following, a given point is judged itself, whatever is better nearby.
        verdict = study_state.verdict(start) if start and not self.follows else study_state.climb(start)
        if self.notify and verdict.point and (last is None or verdict.full_path != last.full_path):
            self.notify(f"{study_titles(self.studies)[verdict.key]}: {_describe_candidate(verdict)}")
        return verdict

    def _racing_specs(self, study_state: StudyState, verdict: Verdict, limit: int) -> list[RunSpec]:
        """Return up to `limit` racing runs, within what the verdict needs and the budget allows; record why if none."""
        runs_left, runs_needed = (
            self._runs_left(study_state, verdict),
            verdict.bound.needed_runs if verdict.bound else 0,
        )
        # At least 1, even if the budget is spent: an empty answer then means that no run would help.
        specs = study_state.racing_specs(
            verdict, max(1, int(min(limit, runs_needed or limit, runs_left))), self.budget.seeds
        )
        if 0 < runs_left < len(specs):  # racing may exceed its limit, see `next_runs`
            specs = specs[: int(runs_left)]
        if not specs and verdict.score is not None:
            seed_limit = f"--max-seeds {self.budget.seeds} allows no further seed" if self.budget.seeds else ""
            reason = seed_limit or "no further run would help"
            self.stop_reasons.append(f"{study_titles(self.studies)[verdict.key]}: {reason}")
        return specs

    def _affordable_specs(
        self, study_state: StudyState, verdict: Verdict, specs: list[RunSpec], run_index: RunIndex
    ) -> list[RunSpec]:
        """Return those of a study's needed runs that the budget allows; ask or record a reason if it stops here."""
        if not self.follows or not (self.budget.is_limited or verdict.path or verdict.bound):
            return specs  # the neighbours of the best requested point are always trained: nothing can be said without
        requested_ids = {spec.run_id for spec in study_state.requested_specs()}
        new_runs = make_plan((spec for spec in specs if spec.run_id not in requested_ids), run_index).to_launch
        runs_needed = max(len(new_runs), verdict.bound.needed_runs if verdict.bound else 0)
        if not new_runs or max(len(new_runs), runs_needed // OVERESTIMATE) <= self._runs_left(study_state, verdict):
            return specs
        estimate = f"{'more than' if runs_needed >= MAX_NEEDED_RUNS else 'some'} {runs_needed} would be needed"
        cost = f"the next round is {len(new_runs)}" if runs_needed == len(new_runs) else estimate
        n_extra = self._count_extra_runs(study_state, verdict)
        message = f"{len(requested_ids)} runs were requested, {n_extra} more were added, and {cost}"
        if seconds := self.estimate_device_s(run_index, new_runs):
            message += f", about {format_device_hours(seconds * runs_needed / len(new_runs))}"
        if self.budget.runs is not None:
            message += f"; of --max-runs {self.budget.runs}, {max(0, self.budget.runs - self.planned)} are left"
        message = f"{study_titles(self.studies)[verdict.key]}: {message}"
        if not self.budget.is_limited and verdict.key not in self._declined and self.confirm and self.confirm(message):
            self._allowance[verdict.key] = 2 * self._allowance.get(
                verdict.key, 1
            )  # doubles, so few questions are asked
            return specs
        self._declined.add(verdict.key)
        self.stop_reasons.append(message)
        ids = {planned.id for planned in new_runs}
        return [spec for spec in specs if spec.run_id not in ids]  # runs under way stay in the plan and are awaited

    def _suggestion_limit(self, run_index: RunIndex) -> int:
        """Return how many new runs may be suggested: the budget, less pending runs and a reserve for verdicts.

        The reserve is dropped if it would take more than half of the budget.
        """
        if not self.budget.is_limited:
            return MAX_NEEDED_RUNS
        pending_specs = [
            spec for study_state in evaluate_all(self.studies, run_index) for spec in study_state.pending_specs()
        ]
        reserved = RUNS_PER_VERDICT * len(self.studies)
        waiting, allowed = len(make_plan(pending_specs, run_index).to_launch), MAX_NEEDED_RUNS
        if self.budget.runs is not None:
            allowed = self.budget.runs - self.planned - (reserved if self.budget.runs >= 2 * reserved else 0)
        if self.budget.hours is not None:
            bases = [study.base for study in self.studies]
            each_s = (self.estimate_device_s(run_index, make_plan(bases, run_index).all_runs) or 0.0) / len(bases)
            allowed = min(allowed, self._affordable_runs(each_s, run_index))
        return max(0, allowed - waiting)

    def _affordable_runs(self, each_s: float, run_index: RunIndex) -> int:
        """Return how many runs of `each_s` seconds the remaining hours allow; `MAX_NEEDED_RUNS` if unknown."""
        assert self.budget.hours is not None  # callers check
        left_s = 3600 * self.budget.hours - self._used_device_s(run_index)
        return 0 if left_s <= 0 else int(left_s / each_s) if each_s else MAX_NEEDED_RUNS

    def _runs_left(self, study_state: StudyState, verdict: Verdict) -> float:
        """Return how many runs a study may still train: without a budget, as many again as were requested."""
        if self.budget.is_limited:
            return math.inf if self.budget.runs is None else self.budget.runs - self.planned
        n_requested = len(study_state.requested_specs())
        return self._allowance.get(verdict.key, 1) * n_requested - self._count_extra_runs(study_state, verdict)

    def _count_extra_runs(self, study_state: StudyState, verdict: Verdict) -> int:
        """Return how many runs a study has that nobody requested: on disk, or planned here."""
        return len(
            # By id: a run planned here may be on disk by now, and would count twice.
            {run.id for run in study_state.extra_runs([*self.studies, *self.other_studies])}
            | {spec.run_id for spec in self.extra_specs.get(verdict.key, ())}
        )

    def _launch_limit(self, plan: Plan, run_index: RunIndex) -> int:
        """Return how many runs of a plan the budget allows, of all studies together."""
        limit = len(plan.to_launch) if self.budget.runs is None else max(0, self.budget.runs - self.planned)
        if self.budget.hours is None:
            return limit
        each_s = (self.estimate_device_s(run_index, plan.to_launch) or 0.0) / max(1, len(plan.to_launch))
        return min(limit, self._affordable_runs(each_s, run_index))


def _describe_candidate(verdict: Verdict) -> str:
    assert verdict.point is not None
    metric = verdict.study.metric.name
    score = "diverged" if verdict.score is None else f"{metric} {score_text(verdict.score, metric)}"
    return f"candidate lr {format_power(verdict.point.lr)} wd {format_power(verdict.point.wd)}, {score}"
