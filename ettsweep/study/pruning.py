"""Pruning: a search stops suggested runs with hopeless curves, by a pruner of Optuna.

A decision is a function of the curves on disk. Runs that a grid requested or a verdict compares are never stopped.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from zlib import crc32

from ettsweep.errors import InputError, unknown_name
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import RunSpec, ScheduleSpec
from ettsweep.runs.state import State, Status
from ettsweep.study.run_index import RunIndex
from ettsweep.trainer.tasks.registry import Metric, task_kind

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner

PRUNERS = ("none", "median", "hyperband")

FIRST_SHARE = 4
"""`median` judges no run in the first quarter of its steps: the ranking of runs still changes there."""

STARTUP = 5
"""Finished runs before `median` judges any; Optuna's default."""

ETA = 3
"""`hyperband` promotes the best third at each rung, and rungs are this factor apart; Optuna's default."""

RUNGS = 2
"""Rungs of `hyperband` before the end of a run: at a ninth and at a third of its steps."""

COMPARED = (State.DONE, State.DIVERGED, State.PRUNED, State.RUNNING)
"""States of runs whose curves are compared."""

WORST = 1e300
"""A loss worse than any. It is finite, since NumPy has no percentile of infinite values."""


@dataclass(frozen=True)
class PrunerCurve:
    """The best score so far of one run.

    Attributes:
        run_id: id of the run.
        state: state of the run.
        best_by_step: best score up to and including each evaluation, by step.
    """

    run: str
    state: State
    best: Mapping[int, float]

    @property
    def step(self) -> int:
        """Step of the last evaluation; 0 before the first."""
        return max(self.best, default=0)

    @property
    def score(self) -> float | None:
        """Best score so far; None before the first evaluation."""
        return self.best.get(self.step)


def hopeless(
    rule: str, curve: PrunerCurve, family: Iterable[PrunerCurve], metric: Metric, schedule: ScheduleSpec
) -> str:
    """Return why a run in training should be stopped; empty if it should continue.

    It is judged at its last evaluation. A run that is at least as good as the best finished one continues, as does one
    at its last step; before any run is finished, the best of all continues.

    Args:
        rule: `median` or `hyperband`.
        curve: curve of the run.
        family: curves of all runs of its family.
        metric: metric of the scores.
        schedule: schedule of the run.
    """
    others = [_to_the_end(other, metric, schedule) for other in family if other.run != curve.run]
    finished = [other for other in others if other.state.finished and other.best]
    # A run that may become the optimum must not be lost to a rule of thumb.
    best = min((metric.rank(other.score) for other in finished or others), default=math.inf)
    is_judged = first_step(rule, schedule) <= curve.step < schedule.last_step
    if not is_judged or metric.rank(curve.score) <= best:
        return ""
    if rule == "median":
        reason = _worse_than_the_median(curve, finished, metric)
    else:
        reason = _not_promoted(curve, others, metric, schedule)
    return f"{rule} pruner: {metric.metric} {curve.score:.4g}, {reason}" if reason else ""


def first_step(rule: str, schedule: ScheduleSpec) -> int:
    """Return the first step at which runs are judged, never during warm-up."""
    share = ETA**RUNGS if rule == "hyperband" else FIRST_SHARE
    return max(1, schedule.warmup_steps, schedule.last_step // share)


def _to_the_end(curve: PrunerCurve, metric: Metric, schedule: ScheduleSpec) -> PrunerCurve:
    """Return the curve of a diverged run with the worst scores up to its end; other curves are unchanged."""
    if curve.state is not State.DIVERGED:
        return curve
    worst = WORST if metric.mode == "min" else -WORST
    steps = [*range(schedule.eval_every, schedule.last_step, schedule.eval_every), schedule.last_step]
    return replace(curve, best={step: worst for step in steps if step > curve.step} | dict(curve.best))


def _worse_than_the_median(curve: PrunerCurve, finished: Sequence[PrunerCurve], metric: Metric) -> str:
    # Imported here, as in the functions below: Optuna is slow to import, and most commands need none.
    from optuna.pruners import MedianPruner
    from optuna.trial import create_trial

    study = _study(MedianPruner(n_startup_trials=STARTUP), metric)
    for other in finished:
        study.add_trial(create_trial(value=other.score, intermediate_values=dict(other.best)))
    if not _stops(study, curve):
        return ""
    scores = [other.best[curve.step] for other in finished if curve.step in other.best]
    return f"the median of {len(scores)} others {median(scores):.4g}"


def _not_promoted(curve: PrunerCurve, others: Sequence[PrunerCurve], metric: Metric, schedule: ScheduleSpec) -> str:
    """Return why a run is not promoted at the rung that it has just reached; empty if it is.

    Optuna's HyperbandPruner derives the bracket from the trial number, which changes with the runs on disk. Here it is
    derived from the run id; the bracket itself is a SuccessiveHalvingPruner of Optuna.
    """
    from optuna.pruners import SuccessiveHalvingPruner

    first_rung, bracket = first_step("hyperband", schedule), bracket_of(curve.run, schedule)
    at_rungs = _at_rungs(curve, first_rung)
    if curve.step not in at_rungs.best:  # between rungs
        return ""
    rivals = [_at_rungs(other, first_rung) for other in others if bracket_of(other.run, schedule) == bracket]
    study = _study(SuccessiveHalvingPruner(first_rung, ETA, min_early_stopping_rate=bracket), metric)
    for rival in rivals:
        _stops(study, rival)  # records in the study which rungs the rival has reached
    if not _stops(study, at_rungs):
        return ""
    reached = 1 + sum(rival.step >= curve.step for rival in rivals)
    return f"not among the best {max(1, reached // ETA)} of {reached} of its bracket"


def bracket_of(run: str, schedule: ScheduleSpec) -> int:
    """Return the Hyperband bracket of a run, a function of its id; each bracket starts to judge one rung later.

    There are as many brackets as rungs, with shares of runs as in the paper of Hyperband and in Optuna.
    """
    first_rung, n_brackets = first_step("hyperband", schedule), 1
    while first_rung * ETA**n_brackets <= schedule.last_step:
        n_brackets += 1
    sizes = [math.ceil(n_brackets * ETA**rungs / (rungs + 1)) for rungs in reversed(range(n_brackets))]
    slot = crc32(run.encode()) % sum(sizes)  # not `hash`, which differs between processes
    return next(bracket for bracket in range(n_brackets) if slot < sum(sizes[: bracket + 1]))


def _at_rungs(curve: PrunerCurve, first_rung: int) -> PrunerCurve:
    """Return a curve with only the first evaluation at or after each rung."""
    scores, rung = dict[int, float](), first_rung
    while rung <= curve.step:
        step_at_rung = min(step for step in curve.best if step >= rung)
        scores[step_at_rung] = curve.best[step_at_rung]
        rung *= ETA
    return replace(curve, best=scores)


def _study(pruner: "BasePruner", metric: Metric) -> "Study":
    """Return an empty in-memory study of Optuna."""
    import optuna

    from ettsweep.study.samplers import quiet  # numpy: commands that prune nothing start without it

    with quiet():
        return optuna.create_study(direction="minimize" if metric.mode == "min" else "maximize", pruner=pruner)


def _stops(study: "Study", curve: PrunerCurve) -> bool:
    """Report a curve to a study, evaluation by evaluation; `True` if its pruner would stop the run at the last one."""
    trial, stops = study.ask(), False
    for step in sorted(curve.best):
        trial.report(curve.best[step], step)
        stops = trial.should_prune()
    return stops


# --- stopping runs ----------------------------------------------------------------------------------------------------


@dataclass
class Pruner:
    """Stops hopeless runs while a search follows them.

    Attributes:
        results: the results folder.
        rule: one of `PRUNERS`, other than `none`.
        prunable_ids: returns the ids of the runs that may be stopped.
        notify: called with a line for each run that is stopped.
    """

    results: Path
    rule: str
    proposed: Callable[[], Collection[str]]
    tell: Callable[[str], None] = lambda text: None
    _families: dict[str, str] = field(default_factory=dict, repr=False)
    _curves: dict[str, tuple[object, PrunerCurve]] = field(default_factory=dict, repr=False)
    _compared: dict[str, list[PrunerCurve]] = field(default_factory=dict, repr=False)

    def prune(self, specs: Mapping[str, RunSpec], statuses: Mapping[str, Status], run_index: RunIndex) -> None:
        """Ask hopeless runs in training to stop.

        A run that was pruned and resumed is not asked again: a verdict, a grid or a person needs it.

        Args:
            specs: specs of the runs of this command, by id.
            statuses: their current statuses, by id.
            run_index: all runs before this command, which are compared with as well.

        Raises:
            StorageError: a run folder cannot be written.
        """
        candidates = statuses.keys() & set(self.proposed())
        judged_ids = {
            run for run in candidates if statuses[run].state is State.RUNNING and not self._pruned_before(run)
        }
        if not judged_ids:
            return
        families = self._families  # cached: a family id takes a while to compute, and this is called twice a second
        families |= {run: spec.family_id for run, spec in specs.items() if run not in families}
        for family in {families[run] for run in judged_ids}:
            states = {run.id: run.state for run in run_index.family(family)}
            states |= {run: status.state for run, status in statuses.items() if families[run] == family}
            spec = next(specs[run] for run in judged_ids if families[run] == family)
            metric = task_kind(spec.task).score
            curves = [self._curve(run, state, metric) for run, state in sorted(states.items()) if state in COMPARED]
            if curves == self._compared.get(family):  # no new evaluation, so no new decision
                continue
            self._compared[family] = curves
            for curve in curves:
                reason = hopeless(self.rule, curve, curves, metric, spec.schedule) if curve.run in judged_ids else ""
                if reason and RunDir(runs_dir(self.results) / curve.run).prune(curve.step, reason):
                    self.tell(f"run {curve.run} will be pruned at step {curve.step}: {reason}")

    def _pruned_before(self, run_id: str) -> bool:
        run = RunDir(runs_dir(self.results) / run_id)
        # The newest attempt is the one in training.
        failures = (run.attempt(number).failure() or {} for number in run.numbers()[:-1])
        return any(failure.get("reason") == "pruned" for failure in failures)

    def _curve(self, run_id: str, state: State, metric: Metric) -> PrunerCurve:
        """Return the curve of a run, which is read again only once its metrics file has grown."""
        run = RunDir(runs_dir(self.results) / run_id)
        latest = run.latest()
        growing = latest if latest and not state.finished and latest.metrics_path.exists() else None
        # The state is part of the key: a curve carries it, and a finished run is read for good.
        mark = state, growing and (growing.number, growing.metrics_path.stat().st_size)
        if run_id not in self._curves or self._curves[run_id][0] != mark:
            self._curves[run_id] = mark, PrunerCurve(run_id, state, metric.best_so_far(run.evaluations()))
        return self._curves[run_id][1]


def check_pruner(name: str, schedule: ScheduleSpec) -> None:
    """Check that a pruner exists, and that runs are evaluated early enough to be stopped by it.

    Raises:
        InputError: there is no such pruner, or no evaluation between its first judged step and the end of a run.
    """
    if name not in PRUNERS:
        raise unknown_name("pruner", name, PRUNERS)
    first, last, eval_every = first_step(name, schedule), schedule.last_step, schedule.eval_every

    def is_evaluated_in_time(eval_every: int) -> bool:
        return (last - 1) // eval_every * eval_every >= first

    if name == "none" or is_evaluated_in_time(eval_every):
        return
    working_spacing = next((spacing for spacing in range(last // 2, 0, -1) if is_evaluated_in_time(spacing)), None)
    remedy = f"{working_spacing} works" if working_spacing else "use a longer run or a shorter warm-up"
    requirement = f"an evaluation from step {first} on, before the end at step {last}"
    raise InputError(f"schedule.eval_every: {eval_every}: --pruner {name} needs {requirement}; {remedy}")
