"""Which runs have no hope left, by a pruner of Optuna's: a function of the curves of a family, and of nothing else."""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING
from zlib import crc32

from ettsweep.errors import InputError, unknown_name
from ettsweep.output import count
from ettsweep.runs.state import State
from ettsweep.spec import ScheduleSpec
from ettsweep.tasks.kinds import Score

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner

PRUNERS = ("none", "median", "hyperband", "wilcoxon")

FIRST_SHARE = 4
"""`median` and `wilcoxon` judge no run in the first quarter of its steps: orders are still wrong there."""

STARTUP = 5
"""Runs that must be finished before `median` judges one; Optuna's default."""

ETA = 3
"""`hyperband` lets the best third pass a rung, and rungs are this factor apart; Optuna's default."""

RUNGS = 2
"""Rungs of `hyperband` before the end: a ninth and a third of the steps."""

P_VALUE = 0.05
"""`wilcoxon` stops a run that is worse than the best one with less than this probability of chance."""

PAIRS = math.ceil(-math.log2(P_VALUE))
"""Evaluations that a signed-rank test needs at the least for that."""

WORST = 1e300
"""A loss that is worse than any: of infinite ones, NumPy finds no percentile."""


@dataclass(frozen=True)
class Curve:
    """What one run of a family has shown so far.

    Attributes:
        run: its id.
        best: the best score so far after each evaluation, by step.
        state: done, diverged, pruned or running.
        judged: whether it may be stopped.
    """

    run: str
    best: Mapping[int, float]
    state: State
    judged: bool = False

    @property
    def step(self) -> int:
        """The step of its last evaluation; 0 before the first."""
        return max(self.best, default=0)

    @property
    def score(self) -> float | None:
        """The best score so far."""
        return self.best.get(self.step)


@dataclass(frozen=True)
class Hopeless:
    """A run to stop, the step by which it is judged, and why, for people."""

    run: str
    step: int
    reason: str


def hopeless(pruner: str, curves: Iterable[Curve], measure: Score, schedule: ScheduleSpec) -> list[Hopeless]:
    """Return the runs that are to be stopped, of those that may be, given all curves of their family.

    Each is judged by its last evaluation. None is stopped that is as good as the best finished run already, or the best
    of all before one is finished; nor one that has come to its end.
    """
    full = [_to_the_end(curve, measure, schedule) for curve in sorted(curves, key=lambda curve: curve.run)]
    found = []
    for curve in full:
        others = [other for other in full if other is not curve]
        best = min((measure.rank(other.score) for other in _finished(others) or others), default=math.inf)
        if not curve.judged or curve.state is not State.RUNNING or measure.rank(curve.score) <= best:
            continue
        if not first_step(pruner, schedule) <= curve.step < schedule.last_step:
            continue
        if why := RULES[pruner](curve, others, measure, schedule):
            found.append(Hopeless(curve.run, curve.step, f"{pruner} pruner: {measure.metric} {curve.score:.4g}, {why}"))
    return found


def first_step(pruner: str, schedule: ScheduleSpec) -> int:
    """Return the step from which on runs are judged: never while the learning rate still warms up."""
    share = ETA**RUNGS if pruner == "hyperband" else FIRST_SHARE
    return max(1, schedule.warmup_steps, schedule.last_step // share)


def _to_the_end(curve: Curve, measure: Score, schedule: ScheduleSpec) -> Curve:
    """Return the curve of a diverged run as the worst there is after what it has shown; others as they are."""
    if curve.state is not State.DIVERGED:
        return curve
    worst = WORST if measure.mode == "min" else -WORST
    steps = [*range(schedule.eval_every, schedule.last_step, schedule.eval_every), schedule.last_step]
    return replace(curve, best={step: worst for step in steps if step > curve.step} | dict(curve.best))


# --- what the pruners differ in ---------------------------------------------------------------------------------------


def _median(curve: Curve, others: Sequence[Curve], measure: Score, schedule: ScheduleSpec) -> str:
    """Say that the best score of a run is worse than the median of the finished ones at the same step."""
    from optuna.pruners import MedianPruner

    finished = _finished(others)
    if not _stops(MedianPruner(n_startup_trials=STARTUP), curve, finished, measure):
        return ""
    there = [other.best[curve.step] for other in finished if curve.step in other.best]
    return f"the median of {len(there)} others {median(there):.4g}"


def _wilcoxon(curve: Curve, others: Sequence[Curve], measure: Score, schedule: ScheduleSpec) -> str:
    """Say that a run is surely worse than the best finished one, evaluation by evaluation."""
    from optuna.pruners import WilcoxonPruner

    finished = _finished(others)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental, and of evaluations that only one of the two has
        if not _stops(WilcoxonPruner(p_threshold=P_VALUE, n_startup_steps=PAIRS), curve, finished, measure):
            return ""
    best = min(finished, key=lambda other: measure.rank(other.score))
    pairs = len(curve.best.keys() & best.best.keys())
    return f"worse than the best run, {best.run}, over {pairs} evaluations (p < {P_VALUE:g})"


def _hyperband(curve: Curve, others: Sequence[Curve], measure: Score, schedule: ScheduleSpec) -> str:
    """Say that a run is not among the best third of its bracket at a rung that it has just reached.

    Optuna's HyperbandPruner draws a bracket from the number of a trial, and numbers change with the runs that are
    known. Here it is drawn from the run's id; the bracket itself is Optuna's, a SuccessiveHalvingPruner.
    """
    from optuna.pruners import SuccessiveHalvingPruner

    least = first_step("hyperband", schedule)
    bracket = bracket_of(curve.run, schedule)
    seen = _at_rungs(curve, least)
    if curve.step not in seen.best:
        return ""
    rivals = [_at_rungs(other, least) for other in others if bracket_of(other.run, schedule) == bracket]
    pruner = SuccessiveHalvingPruner(least, ETA, min_early_stopping_rate=bracket)
    study = _study(pruner, measure)
    for one in (*rivals, seen):
        trial, stops = study.ask(), False
        for step in sorted(one.best):
            trial.report(one.best[step], step)
            stops = trial.should_prune()  # which takes note of the rungs that it has reached
    reached = 1 + sum(other.step >= curve.step for other in rivals)
    return f"not among the best {max(1, reached // ETA)} of {reached} of its bracket" if stops else ""


RULES: dict[str, Callable[[Curve, Sequence[Curve], Score, ScheduleSpec], str]] = {
    "median": _median,
    "hyperband": _hyperband,
    "wilcoxon": _wilcoxon,
}


def bracket_of(run: str, schedule: ScheduleSpec) -> int:
    """Return the bracket of Hyperband that a run is in, by its id: the later ones begin to judge a rung later.

    Of as many brackets as rungs there are, each gets the share of runs that it has in the paper, and in Optuna.
    """
    least, number = first_step("hyperband", schedule), 1
    while least * ETA**number <= schedule.last_step:
        number += 1
    sizes = [math.ceil(number * ETA**more / (more + 1)) for more in reversed(range(number))]
    place = crc32(run.encode()) % sum(sizes)
    return next(bracket for bracket in range(number) if place < sum(sizes[: bracket + 1]))


def _at_rungs(curve: Curve, least: int) -> Curve:
    """Return a curve with the first evaluations at or after each rung alone."""
    kept, rung = dict[int, float](), least
    while rung <= curve.step:
        first = min(step for step in curve.best if step >= rung)
        kept[first] = curve.best[first]
        rung *= ETA
    return replace(curve, best=kept)


def _finished(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if curve.state.finished and curve.best]


# --- Optuna -----------------------------------------------------------------------------------------------------------


def _study(pruner: "BasePruner", measure: Score) -> "Study":
    """Return an empty study, kept in memory."""
    import optuna

    from ettsweep.sweep.samplers import quiet  # numpy: commands that prune nothing start without it

    with quiet():
        return optuna.create_study(direction="minimize" if measure.mode == "min" else "maximize", pruner=pruner)


def _stops(pruner: "BasePruner", curve: Curve, finished: Sequence[Curve], measure: Score) -> bool:
    """Say whether a pruner would stop a run, given those that are finished."""
    from optuna.trial import create_trial

    study = _study(pruner, measure)
    for other in finished:
        study.add_trial(create_trial(value=other.score, intermediate_values=dict(other.best)))
    trial = study.ask()
    for step in sorted(curve.best):
        trial.report(curve.best[step], step)
    return trial.should_prune()


# --- what is asked for ------------------------------------------------------------------------------------------------


def check_pruner(name: str, schedules: Collection[ScheduleSpec]) -> None:
    """Check that there is such a pruner, and that runs show something before their end by which it can stop them.

    Raises:
        InputError: there is none, or they do not.
    """
    if name not in PRUNERS:
        raise unknown_name("pruner", name, PRUNERS)
    if name != "none" and (problems := [why for schedule in schedules if (why := _blind(name, schedule))]):
        raise InputError.of(dict.fromkeys(problems))


def _blind(name: str, schedule: ScheduleSpec) -> str:
    """Return why a pruner could never stop a run of this schedule, and what would do; nothing where it could."""
    first, last, every = first_step(name, schedule), schedule.last_step, schedule.eval_every
    needed = PAIRS if name == "wilcoxon" else 1

    def tells(every: int) -> bool:
        evaluations = (last - 1) // every
        return evaluations >= needed and evaluations * every >= first

    if tells(every):
        return ""
    fitting = next((spacing for spacing in range(last // (needed + 1), 0, -1) if tells(spacing)), None)
    wanted = f"{count(needed, 'evaluation')} before its end at step {last}, the last at step {first} or later"
    would_do = f"{fitting} would do" if fitting else "a longer run or a shorter warm-up would do"
    return f"schedule.eval_every: {every}: --pruner {name} stops a run by {wanted}; {would_do}"
