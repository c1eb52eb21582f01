"""One round: from runs on disk to verdicts, the next runs, and notes.

`next_round` is a pure function: it returns suggested points, verdicts, and the neighbours and seeds that these lack,
within a budget. Following, racing, climbing and searching repeat it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ettsweep.console import format_count, format_device_hours
from ettsweep.errors import InputError
from ettsweep.powers import axis_text
from ettsweep.quantities import score_text
from ettsweep.runs.index import RunIndex
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.runs.timing import RunTimes
from ettsweep.study.budget import EXTRA_RUNS, MAX_TRIALS, NO_BUDGET, Budget, Forecast, equal_shares
from ettsweep.study.judgement import evaluate_all
from ettsweep.study.plan import Plan, PlannedRun, make_plan
from ettsweep.study.study import Study, StudyKey, study_titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.suggesting import Search, Suggested
from ettsweep.study.sweep import Suggestion
from ettsweep.study.verdict import Verdict

RunsLeft = Mapping[StudyKey, float]
"""How many runs each study may still train."""

MIN_ROUND_S = 10.0
"""Seconds that a round should keep workers busy: starting takes half as long, so shorter rounds waste time."""

SUGGESTIONS_PER_WORKER = 4
"""Most suggestions per worker in a round of short runs: none knows the scores of those before it."""

RUNS_PER_VERDICT = 10
"""Runs per study that a search leaves for the verdict: six neighbours and some seeds."""


@dataclass
class StudyNeeds:
    """Next needs of the verdict on a study.

    Attributes:
        specs: runs to finish; those that racing chose come last.
        is_racing: racing chooses the runs.
    """

    study_state: StudyState
    verdict: Verdict
    specs: list[RunSpec]
    is_racing: bool

    @property
    def key(self) -> StudyKey:
        """Sweep and family of the study."""
        return self.verdict.key

    def new_runs(self, run_index: RunIndex) -> Sequence[PlannedRun]:
        """Return the runs to launch that were not requested."""
        return make_plan((spec for spec in self.specs if not self.study_state.is_requested(spec)), run_index).to_launch

    def predicted_runs(self, run_index: RunIndex) -> int:
        """Return how many further runs the verdict is predicted to need: at least those of the next round."""
        return max(len(make_plan(self.specs, run_index).to_launch), self.racing_runs)

    @property
    def racing_runs(self) -> int:
        """Forecast of further runs of racing; 0 if there is no bound, or no run is allowed."""
        forecast = self.verdict.bound.further_runs if self.is_racing and self.verdict.bound else None
        return forecast.likely if forecast else 0


@dataclass(frozen=True)
class Aim:
    """Aim of a verification, the same in all of its rounds.

    Attributes:
        start: point where each climb starts; None for the study's best point.
        capacity: runs that can train at the same time; racing adds that many per round.
        follows: race, and climb on from better neighbours of `start`.
        search: suggests points of studies, which are judged after it; None without a search.
        other_studies: of sweeps that are not verified; runs that they request are not extra runs.
    """

    start: Point | None = None
    capacity: int = 1
    follows: bool = False
    search: Search | None = None
    other_studies: Sequence[Study] = ()


@dataclass(frozen=True)
class Spent:
    """Runs, notes and limits used up by earlier rounds.

    Attributes:
        rounds: their number.
        planned_ids: ids of all runs that they planned.
        extra_ids: ids of those that were not requested or suggested, by sweep and family.
        paths: the climbs that they reported.
        exhausted: studies that get no further suggestions.
        is_search_cut_short: whether the budget ended the search of one of them.
    """

    rounds: int = 0
    planned_ids: frozenset[str] = frozenset()
    extra_ids: Mapping[StudyKey, frozenset[str]] = field(default_factory=dict)
    paths: Mapping[StudyKey, Sequence[Point]] = field(default_factory=dict)
    exhausted: frozenset[StudyKey] = frozenset()
    is_search_cut_short: bool = False


@dataclass(frozen=True)
class Round:
    """Result of a round: verdicts, next runs, and notes.

    Attributes:
        studies: with the points that were suggested for them.
        suggestions: to be recorded in the sweeps of these names before anything is submitted.
        verdicts: one per study.
        plan: the runs that the verdicts need next.
        forecast: remaining runs, this plan included.
        notes: a line for each suggestion and climb.
        stop_reasons: a line for each study that stops.
        over_budget: runs that the budget kept out of the plan.
        runs_short: forecast of the runs that the budget denies studies.
        spent: for the next round.
    """

    studies: Sequence[Study]
    suggestions: Mapping[str, Sequence[Suggestion]]
    verdicts: Sequence[Verdict]
    plan: Plan
    forecast: Forecast
    notes: Sequence[str]
    stop_reasons: Sequence[str]
    over_budget: Sequence[PlannedRun]
    runs_short: int
    spent: Spent


def next_round(
    studies: Sequence[Study], run_index: RunIndex, budget: Budget = NO_BUDGET, spent: Spent = Spent(), aim: Aim = Aim()
) -> Round:
    """Judge studies from the runs on disk, and plan the next runs of their verdicts.

    Args:
        studies: as recorded, with the suggestions of earlier rounds.
        run_index: the runs on disk.
        budget: of the verification.
        spent: by earlier rounds.
        aim: of the verification.

    Raises:
        InputError: a compared point had more seeds than the budget allows before the first round.
    """
    return _RoundMaker(studies, run_index, budget, spent, aim).make()


@dataclass
class _RoundMaker:
    """Makes one round, and collects the fields of `Round`."""

    studies: Sequence[Study]
    run_index: RunIndex
    budget: Budget
    spent: Spent
    aim: Aim
    over_budget: list[PlannedRun] = field(default_factory=list)
    stop_reasons: list[str] = field(default_factory=list)
    runs_short: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._times = RunTimes.of(self.run_index)

    def make(self) -> Round:
        suggested = Suggested(self.studies, exhausted=self.spent.exhausted)
        if self.aim.search:
            batch = min(
                self._batch_size([study.base for study in self.studies]), SUGGESTIONS_PER_WORKER * self.aim.capacity
            )
            suggested = self.aim.search.suggest(
                self.studies, self.run_index, batch, self._suggestion_limit(), self.spent.exhausted
            )
            self.studies = suggested.studies
            self.notes += suggested.notes
        study_states = evaluate_all(self.studies, self.run_index)
        verdicts = [self._climb(study_state) for study_state in study_states]
        if not self.spent.rounds:  # later rounds may go up to the limit themselves
            self._check_seeds(verdicts)
        needs = [
            self._needs(study_state, verdict, suggested.exhausted)
            for study_state, verdict in zip(study_states, verdicts, strict=True)
        ]
        runs_left = self._stop_unaffordable(needs)
        racing = [need for need in needs if need.is_racing]
        specs = [spec for need in racing if need.verdict.point for spec in need.study_state.specs([need.verdict.point])]
        n_racing = sum(runs_left[need.key] > 0 for need in racing)
        runs_per_study = math.ceil(self._batch_size(specs) / max(1, n_racing))
        for need in racing:
            need.specs += self._racing_specs(need, runs_per_study, runs_left[need.key])
        for need in needs:
            self._cut(need, runs_left[need.key])
        forecast = self._forecast(needs, runs_left)
        plan = make_plan((spec for need in needs for spec in need.specs), self.run_index)
        return Round(
            self.studies,
            suggested.suggestions,
            verdicts,
            plan,
            forecast,
            self.notes,
            self.stop_reasons,
            self.over_budget,
            self.runs_short,
            self._spent_now(needs, plan, verdicts, suggested),
        )

    def _needs(self, study_state: StudyState, verdict: Verdict, exhausted: Collection[StudyKey]) -> StudyNeeds:
        """Return the next needs of a verdict, without the runs that racing will choose."""
        # While a search suggests points, only requested runs are planned: the candidate may still change.
        is_judged = self.aim.search is None or study_state.study.key in exhausted
        specs = study_state.needed_specs(verdict) if is_judged else study_state.pending_specs()
        # Racing starts last: an unresolved verdict has all of its neighbours.
        # Without seeds each further run would be identical.
        can_race = self.aim.follows and is_judged and study_state.study.base.info.seeded
        return StudyNeeds(study_state, verdict, specs, can_race and verdict.verdict == "unresolved")

    def _spent_now(
        self, needs: Sequence[StudyNeeds], plan: Plan, verdicts: Sequence[Verdict], suggested: Suggested
    ) -> Spent:
        """Return the sums after this round: only launched runs use the budget."""
        launched, extra_ids = frozenset(p.id for p in plan.to_launch), dict(self.spent.extra_ids)
        for need in needs:
            new = {run_id: spec for spec in need.specs if (run_id := spec.run_id) in launched}
            study = need.study_state.study
            extra = {i for i, spec in new.items() if not study.has(spec)}
            extra_ids[need.key] = extra_ids.get(need.key, frozenset()) | extra
        paths = {verdict.key: tuple(verdict.full_path) for verdict in verdicts}
        return Spent(
            self.spent.rounds + 1,
            self.spent.planned_ids | launched,
            extra_ids,
            paths,
            suggested.exhausted,
            self.spent.is_search_cut_short or suggested.is_cut_short,
        )

    def _budget_left(self, max_runs: int) -> int:
        """Return how many runs may still be launched; an interrupted run counts again when it is resumed."""
        states = (self.run_index.status_of(run_id).state for run_id in self.spent.planned_ids)
        return max_runs - sum(state is not State.INTERRUPTED for state in states)

    def _device_s_left(self, hours: float) -> float:
        runs = self.run_index.runs
        used = (runs[run_id].device_s for run_id in self.spent.planned_ids if run_id in runs)
        return 3600 * hours - sum(used)

    def _check_seeds(self, verdicts: Sequence[Verdict]) -> None:
        if (max_seeds := self.budget.seeds) is None:
            return
        for v in verdicts:
            for scored_point in v.compared_points:
                if scored_point.runs > max_seeds:
                    title = study_titles(self.studies)[v.key]
                    number = f"{scored_point.runs} seeds at {scored_point.point}"
                    raise InputError(f"--max-seeds {max_seeds}: {title} already has {number}")

    def _batch_size(self, specs: Sequence[RunSpec]) -> int:
        """Return the runs of a round, given some like them: one per worker, or more if they are short."""
        timed = self._times.total_device_s(specs) if specs else None
        return self.aim.capacity * max(1, math.ceil(MIN_ROUND_S * len(specs) / timed) if timed else 1)

    def _climb(self, study_state: StudyState) -> Verdict:
        """Return the verdict at the end of a climb, and note the candidate if the climb has moved on."""
        start = self.aim.start and study_state.resolve_point(self.aim.start)
        # Without following, a given point is judged itself.
        verdict = study_state.verdict(start) if start and not self.aim.follows else study_state.climb(start)
        if self.aim.follows and verdict.point and tuple(verdict.full_path) != self.spent.paths.get(verdict.key):
            self.notes.append(f"{study_titles(self.studies)[verdict.key]}: {_describe_candidate(verdict)}")
        return verdict

    def _racing_specs(self, need: StudyNeeds, limit: int, runs_left: float) -> list[RunSpec]:
        """Return the runs under way and about `limit` that racing chooses; record a reason if there are none.

        If the study may train no further run, those under way are still awaited.
        """
        verdict = need.verdict
        limit = max(1, int(min(limit, need.racing_runs or limit, runs_left)))
        specs = need.study_state.racing_specs(verdict, limit, self.budget.seeds)
        if not specs and verdict.score is not None and runs_left:
            seed_limit = f"--max-seeds {self.budget.seeds} allows no further seed" if self.budget.seeds else ""
            reason = seed_limit or "no further run would help"
            self.stop_reasons.append(f"{study_titles(self.studies)[verdict.key]}: {reason}")
        return specs

    # --- the budget ---

    def _stop_unaffordable(self, needs: Sequence[StudyNeeds]) -> RunsLeft:
        """Return how many runs each study may still train; 0 stops a study whose share is too small.

        Its share goes to the others, as does that of a study without needs, so the order of studies does not matter.
        """
        active = [need for need in needs if need.is_racing or make_plan(need.specs, self.run_index).is_unfinished]
        while True:
            runs_left = self._shares(active, needs)
            stopping = [need for need in active if self._least_runs(need) > runs_left[need.key]]
            if not stopping or not self.aim.follows:
                break
            stopped = max(stopping, key=lambda need: (self._least_runs(need), need.key))
            active.remove(stopped)
            self._stop(stopped, runs_left[stopped.key])
        return {need.key: runs_left.get(need.key, 0.0) for need in needs}

    def _shares(self, needs: Sequence[StudyNeeds], all_needs: Sequence[StudyNeeds]) -> RunsLeft:
        """Return how many runs each of some studies may still train."""
        if not self.aim.follows and not self.budget.is_limited:
            return dict.fromkeys([need.key for need in needs], math.inf)
        if not self.budget.is_limited:
            left = EXTRA_RUNS * len(all_needs) - sum(map(self._count_extra_runs, all_needs))
            return equal_shares(left, {need.key: math.inf for need in needs})
        # Later rounds may need more than this one.
        wanted = {
            need.key: math.inf if self.aim.follows else float(len(make_plan(need.specs, self.run_index).to_launch))
            for need in needs
        }
        runs_left = dict.fromkeys(wanted, math.inf)
        if self.budget.runs is not None:
            runs_left = equal_shares(self._budget_left(self.budget.runs), wanted)
        if self.budget.hours is not None:
            # Untimed runs are not limited, unless nothing is left.
            share_s = max(0.0, self._device_s_left(self.budget.hours)) / max(1, len(needs))
            for need in needs:
                each_s = self._run_s(need.study_state.study)
                # Rounded: 3 runs are not 2.9999999999999996.
                affordable = round(share_s / each_s, 6) if each_s else math.inf if share_s > 0 else 0.0
                runs_left[need.key] = min(runs_left[need.key], affordable)
        return runs_left

    def _least_runs(self, need: StudyNeeds) -> int:
        """Return the fewest runs with which a study can continue: its next round must be affordable."""
        return max(len(need.new_runs(self.run_index)), int(need.is_racing))

    def _stop(self, need: StudyNeeds, runs_left: float) -> None:
        """Record why a study stops; its runs under way stay."""
        verdict, study, runs = need.verdict, need.study_state.study, need.predicted_runs(self.run_index)
        self.runs_short += runs
        n_requested = sum(map(len, study.seeds_by_point.values()))
        message = (
            f"{format_count(n_requested, 'run')} {'was' if n_requested == 1 else 'were'} requested, "
            f"{self._count_extra_runs(need)} more were added, and about {runs} more are needed"
        )
        if each_s := self._run_s(study):
            message += f", about {format_device_hours(runs * each_s)}"
        if self.budget.is_limited:
            message += f"; {self.budget} leaves {format_count(int(runs_left), 'run')} for it"
        self.stop_reasons.append(f"{study_titles(self.studies)[verdict.key]}: {message}")

    def _cut(self, need: StudyNeeds, runs_left: float) -> None:
        """Drop launches beyond the share of a study; runs under way stay, and are awaited."""
        # Only a stated budget limits requested runs too.
        to_launch = need.new_runs(self.run_index)
        if self.budget.is_limited:
            to_launch = make_plan(need.specs, self.run_index).to_launch
        cut = to_launch[int(min(runs_left, len(to_launch))) :]
        self.over_budget += cut
        cut_ids = {p.id for p in cut}
        need.specs = [spec for spec in need.specs if spec.run_id not in cut_ids]

    def _forecast(self, needs: Sequence[StudyNeeds], runs_left: RunsLeft) -> Forecast:
        expected, at_most = 0, 0.0
        for need in needs:
            launches = len(make_plan(need.specs, self.run_index).to_launch)
            # Those of the next round, or more if racing needs more.
            expected += max(launches, int(min(need.predicted_runs(self.run_index), runs_left[need.key])))
            requested = launches - len(need.new_runs(self.run_index)) if not self.budget.is_limited else 0
            at_most += runs_left[need.key] + requested
        return Forecast(expected, at_most)

    def _run_s(self, study: Study) -> float:
        """Return the device seconds of a run of a study; 0 if none was timed."""
        return self._times.device_s(study.base) or 0.0

    def _suggestion_limit(self) -> int:
        """Return how many new runs may be suggested: the budget, less pending runs and a reserve for verdicts.

        There is no reserve if it would take more than half of the budget.
        """
        if not self.budget.is_limited:
            return MAX_TRIALS
        pending_specs = [
            spec for study_state in evaluate_all(self.studies, self.run_index) for spec in study_state.pending_specs()
        ]
        reserved = RUNS_PER_VERDICT * len(self.studies)
        waiting, allowed = len(make_plan(pending_specs, self.run_index).to_launch), MAX_TRIALS
        if self.budget.runs is not None:
            allowed = self._budget_left(self.budget.runs)
            allowed -= reserved if self.budget.runs >= 2 * reserved else 0
        if self.budget.hours is not None:
            each_s = fmean(self._run_s(study) for study in self.studies)
            left_s = self._device_s_left(self.budget.hours)
            allowed = min(allowed, 0 if left_s <= 0 else int(left_s / each_s) if each_s else MAX_TRIALS)
        return max(0, allowed - waiting)

    def _count_extra_runs(self, need: StudyNeeds) -> int:
        """Return how many runs of a study were not requested: on disk, or planned here."""
        return len(
            # By id: a run planned here may be on disk by now, and would count twice.
            {run.id for run in need.study_state.extra_runs([*self.studies, *self.aim.other_studies])}
            | self.spent.extra_ids.get(need.key, frozenset())
        )


def _describe_candidate(verdict: Verdict) -> str:
    assert verdict.point is not None
    metric = verdict.study.metric
    score = "diverged" if verdict.score is None else f"{metric.name} {score_text(verdict.score, metric)}"
    at = " ".join(f"{name} {axis_text(name, value)}" for name, value in verdict.point.values.items())
    return f"candidate {at}, {score}"
