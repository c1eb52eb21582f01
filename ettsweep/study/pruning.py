"""Pruning: a search stops suggested runs with hopeless curves, by a pruner of Optuna.

A decision is a function of the curves on disk. Runs that a grid requested or a verdict compares are never stopped.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from zlib import crc32

from ettsweep.errors import InputError, unknown_name
from ettsweep.metric import Metric
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.result import recorded_counts
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.runs.trainable import Trainable
from ettsweep.study.study import Study

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.pruners import BasePruner

PRUNERS = ("none", "median", "hyperband")

MEDIAN_START_DIVISOR = 4
"""`median` judges no run in the first quarter of its steps: the ranking of runs still changes there."""

STARTUP_TRIALS = 5
"""Finished runs before `median` judges any, and that many evaluated at its step; Optuna's default."""

REDUCTION_FACTOR = 3
"""`hyperband` promotes the best third at each rung, and rungs are this factor apart; Optuna's default."""

RUNGS = 2
"""Rungs of `hyperband` before the end of a run: at a ninth and at a third of its steps."""

COMPARED_STATES = (State.DONE, State.DIVERGED, State.PRUNED, State.RUNNING)
"""States of runs whose curves are compared."""

WORST_SCORE = 1e300
"""A loss worse than any. It is finite, since NumPy has no percentile of infinite values."""


@dataclass(frozen=True)
class PrunerCurve:
    """The best score so far of one run.

    Attributes:
        run_id: id of the run.
        state: state of the run.
        best_by_step: best score up to and including each evaluation, by step.
    """

    run_id: str
    state: State
    best_by_step: Mapping[int, float]

    @property
    def step(self) -> int:
        """Step of the last evaluation; 0 before the first."""
        return max(self.best_by_step, default=0)

    @property
    def score(self) -> float | None:
        """Best score so far; None before the first evaluation."""
        return self.best_by_step.get(self.step)


def prune_reason(
    rule: str, curve: PrunerCurve, family: Iterable[PrunerCurve], metric: Metric, recipe: Trainable
) -> str:
    """Return why a run in training should be stopped; empty if it should continue.

    It is judged at its last evaluation. A run that is at least as good as the best finished one continues, as does one
    at its last step; before any run is finished, the best of all continues.

    Args:
        rule: `median` or `hyperband`.
        curve: curve of the run.
        family: curves of all runs of its family.
        metric: metric of the scores.
        recipe: of the run.
    """
    family = list(family)
    steps = {step for member in family for step in member.best_by_step}
    others = [_extend_diverged(other, metric, steps) for other in family if other.run_id != curve.run_id]
    finished = [other for other in others if other.state.finished and other.best_by_step]
    # A run that may become the optimum must not be lost to a rule of thumb.
    best = min((metric.sort_key(other.score) for other in finished or others), default=math.inf)
    is_judged = first_judged_step(rule, recipe) <= curve.step < last_step(recipe)
    if not is_judged or metric.sort_key(curve.score) <= best:
        return ""
    if rule == "median":
        reason = _median_reason(curve, finished, metric)
    else:
        reason = _hyperband_reason(curve, others, metric, recipe)
    return f"{rule} pruner: {metric.name} {curve.score:.4g}, {reason}" if reason else ""


def idle_reason(rule: str, family: Iterable[PrunerCurve]) -> str:
    """Return why a pruner can judge none of a family's runs, or one of them, by those that have finished; else nothing.

    Runs whose recipe states how often they are evaluated are checked before, see `check_pruner`.
    """
    family = list(family)
    finished = [curve for curve in family if curve.state is State.DONE and curve.best_by_step]
    if finished and all(len(curve.best_by_step) == 1 for curve in finished):
        return f"the {rule} pruner stops no run: those that have finished were evaluated once"
    steps = {step for curve in finished for step in curve.best_by_step}
    if rule == "median" and len(finished) >= STARTUP_TRIALS:
        for curve in family:
            if curve.state is State.RUNNING and curve.best_by_step and steps.isdisjoint(curve.best_by_step):
                return (
                    f"the median pruner does not judge run {curve.run_id}: it is evaluated at other steps (such as "
                    f"{curve.step}) than those that have finished"
                )
    return ""


def first_judged_step(rule: str, recipe: Trainable) -> int:
    """Return the first step at which runs are judged, never during warm-up."""
    share = REDUCTION_FACTOR**RUNGS if rule == "hyperband" else MEDIAN_START_DIVISOR
    return max(1, recipe.warmup_steps, last_step(recipe) // share)


def last_step(recipe: Trainable) -> int:
    """Return the last step of the runs of a recipe.

    Raises:
        InputError: the recipe does not say.
    """
    if recipe.steps is None:
        raise InputError("--pruner needs the number of steps of a run, which its `run:` block states as `steps`")
    return recipe.steps


def _extend_diverged(curve: PrunerCurve, metric: Metric, steps: Iterable[int]) -> PrunerCurve:
    """Return the curve of a diverged run with the worst scores at later steps of others; other curves are unchanged."""
    if curve.state is not State.DIVERGED:
        return curve
    worst = WORST_SCORE if metric.mode == "min" else -WORST_SCORE
    return replace(curve, best_by_step={step: worst for step in steps if step > curve.step} | dict(curve.best_by_step))


def _median_reason(curve: PrunerCurve, finished: Sequence[PrunerCurve], metric: Metric) -> str:
    # Imported here, as in the functions below: Optuna is slow to import, and most commands need none.
    from optuna.pruners import MedianPruner
    from optuna.trial import create_trial

    study = _optuna_study(MedianPruner(n_startup_trials=STARTUP_TRIALS, n_min_trials=STARTUP_TRIALS), metric)
    for other in finished:
        study.add_trial(create_trial(value=other.score, intermediate_values=dict(other.best_by_step)))
    if not _is_stopped(study, curve):
        return ""
    scores = [other.best_by_step[curve.step] for other in finished if curve.step in other.best_by_step]
    return f"the median of {len(scores)} others {median(scores):.4g}"


def _hyperband_reason(curve: PrunerCurve, others: Sequence[PrunerCurve], metric: Metric, recipe: Trainable) -> str:
    """Return why a run is not promoted at the rung that it has just reached; empty if it is.

    Optuna's HyperbandPruner derives the bracket from the trial number, which changes with the runs on disk. Here it is
    derived from the run id; the bracket itself is a SuccessiveHalvingPruner of Optuna.
    """
    from optuna.pruners import SuccessiveHalvingPruner

    first_rung, bracket = first_judged_step("hyperband", recipe), hyperband_bracket(curve.run_id, recipe)
    at_rungs = _restrict_to_rungs(curve, first_rung)
    if curve.step not in at_rungs.best_by_step:  # between rungs
        return ""
    rung = first_rung
    while rung * REDUCTION_FACTOR <= curve.step:
        rung *= REDUCTION_FACTOR
    rivals = [
        _restrict_to_rungs(other, first_rung)
        for other in others
        if hyperband_bracket(other.run_id, recipe) == bracket
        # One that is evaluated more rarely would be compared by what it had much later.
        and any(rung <= step < rung * REDUCTION_FACTOR for step in other.best_by_step)
    ]
    study = _optuna_study(
        SuccessiveHalvingPruner(first_rung, REDUCTION_FACTOR, min_early_stopping_rate=bracket), metric
    )
    for rival in rivals:
        _is_stopped(study, rival)  # records in the study which rungs the rival has reached
    if not _is_stopped(study, at_rungs):
        return ""
    reached = 1 + sum(rival.step >= curve.step for rival in rivals)
    return f"not among the best {max(1, reached // REDUCTION_FACTOR)} of {reached} of its bracket"


def hyperband_bracket(run_id: str, recipe: Trainable) -> int:
    """Return the Hyperband bracket of a run, a function of its id; each bracket starts to judge one rung later.

    There is a bracket for each rung, counting the end of a run as one; shares of runs are as in the paper of Hyperband
    and in Optuna.
    """
    first_rung, n_brackets = first_judged_step("hyperband", recipe), 1
    while first_rung * REDUCTION_FACTOR**n_brackets <= last_step(recipe):
        n_brackets += 1
    sizes = [math.ceil(n_brackets * REDUCTION_FACTOR**rungs / (rungs + 1)) for rungs in reversed(range(n_brackets))]
    slot = crc32(run_id.encode()) % sum(sizes)  # not `hash`, which differs between processes
    return next(bracket for bracket in range(n_brackets) if slot < sum(sizes[: bracket + 1]))


def _restrict_to_rungs(curve: PrunerCurve, first_rung: int) -> PrunerCurve:
    """Return a curve with only the first evaluation at or after each rung."""
    scores, rung = dict[int, float](), first_rung
    while rung <= curve.step:
        # There is one: the rung is not beyond the last evaluation.
        step_at_rung = min(step for step in curve.best_by_step if step >= rung)
        scores[step_at_rung] = curve.best_by_step[step_at_rung]
        rung *= REDUCTION_FACTOR
    return replace(curve, best_by_step=scores)


def _optuna_study(pruner: "BasePruner", metric: Metric) -> "OptunaStudy":
    """Return an empty in-memory study of Optuna."""
    import optuna

    from ettsweep.study.samplers import quiet_optuna  # numpy: commands that prune nothing start without it

    with quiet_optuna():
        return optuna.create_study(direction="minimize" if metric.mode == "min" else "maximize", pruner=pruner)


def _is_stopped(study: "OptunaStudy", curve: PrunerCurve) -> bool:
    """Report a curve to a study, evaluation by evaluation; `True` if its pruner would stop the run at the last one."""
    trial, stops = study.ask(), False
    for step in sorted(curve.best_by_step):
        trial.report(curve.best_by_step[step], step)
        stops = trial.should_prune()
    return stops


# --- stopping runs ----------------------------------------------------------------------------------------------------


@dataclass
class Pruner:
    """Stops hopeless runs while a search follows them.

    Attributes:
        results: the results folder.
        rule: one of `PRUNERS`, other than `none`.
        others: ids of runs that are never stopped: another sweep needs their final scores.
    """

    results: Path
    rule: str
    others: Collection[str] = ()
    _families: dict[str, str] = field(default_factory=dict, repr=False)
    _curves: dict[str, tuple[object, PrunerCurve]] = field(default_factory=dict, repr=False)
    _compared_curves: dict[str, list[PrunerCurve]] = field(default_factory=dict, repr=False)
    _explained: set[str] = field(default_factory=set, repr=False)

    def prune(
        self,
        specs: Mapping[str, RunSpec],
        statuses: Mapping[str, Status],
        run_index: RunIndex,
        prunable_ids: Collection[str],
    ) -> list[str]:
        """Ask hopeless runs in training to stop; return a line on each.

        A run that was pruned and resumed is not asked again: a verdict, a grid or a person needs it.

        Args:
            specs: specs of the runs of this command, by id.
            statuses: their current statuses, by id.
            run_index: all runs before this command, which are compared with as well.
            prunable_ids: ids of the runs that may be stopped.

        Raises:
            StorageError: a run folder cannot be written.
        """
        candidates = (statuses.keys() & set(prunable_ids)) - set(self.others)
        judged_ids = {run for run in candidates if statuses[run].state is State.RUNNING and not self._was_pruned(run)}
        if not judged_ids:
            return []
        said = list[str]()
        families = self._families  # cached: a family id takes a while to compute, and this is called twice a second
        families |= {run: spec.family_id for run, spec in specs.items() if run not in families}
        for family in {families[run] for run in judged_ids}:
            states = {run.id: run.state for run in run_index.family_runs(family)}
            states |= {run: status.state for run, status in statuses.items() if families[run] == family}
            spec = next(specs[run] for run in judged_ids if families[run] == family)
            metric = spec.metric
            # Sorted by id: a decision must not depend on the order in which runs were found.
            curves = [
                self._curve(run, state, metric) for run, state in sorted(states.items()) if state in COMPARED_STATES
            ]
            if curves == self._compared_curves.get(family):  # no new evaluation, so no new decision
                continue
            self._compared_curves[family] = curves
            if family not in self._explained and (why := idle_reason(self.rule, curves)):
                self._explained.add(family)
                said.append(why)
            for curve in curves:
                reason = prune_reason(self.rule, curve, curves, metric, spec) if curve.run_id in judged_ids else ""
                if reason and RunDir(runs_dir(self.results) / curve.run_id).prune(curve.step, reason):
                    said.append(f"run {curve.run_id} will be pruned at step {curve.step}: {reason}")
        return said

    def _was_pruned(self, run_id: str) -> bool:
        run = RunDir(runs_dir(self.results) / run_id)
        # The newest attempt is the one in training.
        failures = (run.attempt(number).failure() or {} for number in run.attempt_numbers()[:-1])
        return any(failure.get("reason") == "pruned" for failure in failures)

    def _curve(self, run_id: str, state: State, metric: Metric) -> PrunerCurve:
        """Return the curve of a run, which is read again only once its metrics file has grown."""
        run = RunDir(runs_dir(self.results) / run_id)
        latest = run.latest_attempt()
        growing = latest if latest and not state.finished and latest.metrics_path.exists() else None
        # The state is part of the key: a curve carries it, and a finished run is read for good.
        mark = state, growing and (growing.number, growing.metrics_path.stat().st_size)
        if run_id not in self._curves or self._curves[run_id][0] != mark:
            self._curves[run_id] = mark, PrunerCurve(run_id, state, metric.best_so_far(run.evaluations(metric.column)))
        return self._curves[run_id][1]


def check_evaluations(name: str, study: Study, finished: Iterable[Run]) -> None:
    """Check that runs of a study which have finished were evaluated before their end, as far as they say.

    Raises:
        InputError: there are some, and all were evaluated once.
    """
    column = study.metric.column
    results = [run.result for run in finished if run.state is State.DONE]  # a diverged one may have ended before
    counts = [counts[column] for each in results if (counts := recorded_counts(each)) and column in counts]
    if name != "none" and counts and max(counts) == 1:
        runs = "run that has finished" if len(counts) == 1 else f"{len(counts)} runs that have finished"
        raise InputError(
            f"--pruner {name} judges runs by their curves, but the {runs} of {study.title} recorded {column} once; "
            "record it more often, or leave out --pruner"
        )


def check_pruner(name: str, recipe: Trainable) -> None:
    """Check that a pruner exists, and that runs are evaluated early enough to be stopped by it.

    Raises:
        InputError: there is no such pruner, or no evaluation between its first judged step and the end of a run.
    """
    if name not in PRUNERS:
        raise unknown_name("pruner", name, PRUNERS)
    if name == "none":
        return
    first, last, eval_every = first_judged_step(name, recipe), last_step(recipe), recipe.eval_every

    def is_evaluated_in_time(eval_every: int) -> bool:
        # The last evaluation before the end: no run is stopped at its last step.
        return (last - 1) // eval_every * eval_every >= first

    if recipe.metric.take != "best":
        raise InputError(f"--pruner {name} compares the best values so far, but the score is not the best of a run")
    if eval_every is None or is_evaluated_in_time(eval_every):
        return
    working_spacing = next((spacing for spacing in range(last // 2, 0, -1) if is_evaluated_in_time(spacing)), None)
    remedy = f"{working_spacing} works" if working_spacing else "use a longer run or a shorter warm-up"
    requirement = f"an evaluation from step {first} on, before the end at step {last}"
    raise InputError(f"schedule.eval_every: {eval_every}: --pruner {name} needs {requirement}; {remedy}")
