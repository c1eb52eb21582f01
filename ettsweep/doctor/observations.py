"""Eight observations of a trial, each with facts and advice."""

import math
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.doctor.trial import Record, TrialRun
from ettsweep.launch.cost import describe_runs
from ettsweep.launch.launcher import Launcher
from ettsweep.processes import GIB, memory_bytes
from ettsweep.quantities import score_text
from ettsweep.report.score_digits import ScoreDigits
from ettsweep.runs.spec import TRAINING_LOSSES, RunSpec, kind_of
from ettsweep.runs.state import State
from ettsweep.study.criterion import Criterion
from ettsweep.study.tried import Observation, Outcome, ResumeClass, TrialState

Seen = tuple[TrialState, str, str]
"""State, facts and advice; empty without advice."""

ROUNDING, MAX_RATIO = 1e-4, 3.0
"""Two seeds count as one if a repeat of a seed differs by less than the first, a share of the score that rounding may
cause, and another seed by at most the second times that."""

MAX_NAMED = 5
"""Most files of the code listed by name."""

FREE_SHARE = 0.8
"""Share of free space or memory above which to warn."""


def conclude(record: Record, family: str, runs: int, criterion: Criterion, profile: Launcher, results: Path) -> Outcome:
    """Return the observations of a trial.

    Args:
        record: of the trial.
        family: of the runs of the sweep.
        runs: of the sweep.
        criterion: of the sweep.
        profile: their launch profile.
        results: their results folder.
    """
    seen = {
        "start": _start(record),
        "score": _score(record, criterion),
        "seeds": _seeds(record),
        "repeat": _repeat(record),
        "resume": _resume(record),
        "stop": _stop(record),
        "processes": _processes(record),
        "cost": _cost(record, runs, profile, results),
    }
    return Outcome(
        family=family,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seeds_differ=seeds_differ(record),
        repeats=repeats_itself(record),
        resume=resume_class(record),
        observations=tuple(
            Observation(observation=name, state=state, seen=text, advice=advice)
            for name, (state, text, advice) in seen.items()
        ),
    )


# --- what holds -------------------------------------------------------------------------------------------------------


def seeds_differ(record: Record) -> bool | None:
    """Return whether two seeds gave different scores.

    None if unknown, or without seeds; also if only the score is identical: in a short trial it may not have moved yet.
    """
    if not (record.base.info.seeded and _all_done(record.alone, record.other)):
        return None
    differing = _differing(record)
    return True if record.base.info.metric.column in differing else None if differing else False


def repeats_itself(record: Record) -> bool | None:
    """Return whether a seed recorded identical numbers twice; None if unknown."""
    return not _unrepeated(record) if _all_done(record.alone, record.again) else None


def resume_class(record: Record) -> ResumeClass | None:
    """Return how a killed run resumed; None if unknown."""
    if record.base.info.resume == "none":
        return "restarts"
    resumed = record.resumed
    if resumed is None or not resumed.run.is_done:
        return None
    if resumed.from_step is None or (resumed.first_step is not None and resumed.first_step <= resumed.from_step):
        return "restarts"
    return "resumes" if _unlike_alone(record) else "exact"


def _all_done(*runs: TrialRun | None) -> bool:
    return all(run and run.is_done for run in runs)


def _differing(record: Record) -> list[str]:
    """Return the metrics that differ between two seeds by more than rounding, the score first."""
    has_twin, found = _all_done(record.alone, record.again), []
    for name in _recorded(record.alone, record.other):
        apart = _distance(record.alone, record.other, name)
        rounding = _distance(record.alone, record.again, name) if has_twin else 0.0
        if apart > 0 and not (0 < rounding < ROUNDING and apart <= MAX_RATIO * rounding):
            found.append(name)
    return found


def _unrepeated(record: Record) -> list[str]:
    """Return the metrics that a seed did not repeat, the score first."""
    return [name for name in _recorded(record.alone, record.again) if _distance(record.alone, record.again, name)]


def _unlike_alone(record: Record) -> list[str]:
    """Return the metrics that differ between a killed and an uninterrupted run, the score first.

    Ignore metrics that a seed does not repeat, except the score. A training loss may be a mean since the program
    started, which the kill cut: ignore it beside a moving score that is identical.
    """
    resumed, alone, score, unlike = record.resumed, record.alone, record.base.info.metric.column, list[str]()
    assert resumed is not None
    assert alone is not None
    unrepeated, vouches = _unrepeated(record) if _all_done(alone, record.again) else [], False
    for name in _recorded(alone, resumed.run):
        ours, theirs = (
            {step: value for step, value in run.curve_of(name).items() if step > (resumed.from_step or 0)}
            for run in (resumed.run, alone)
        )
        if name == score:
            unlike += [name] if ours != theirs or not ours else []
            vouches = not unlike and len(set(ours.values())) > 1
            continue
        first = min({*ours, *theirs}, default=0)  # its first value may be a mean since before the checkpoint
        is_mean = vouches and name in TRAINING_LOSSES and ours.keys() == theirs.keys()
        if ours | {first: None} != theirs | {first: None} and not is_mean and name not in unrepeated:
            unlike.append(name)
    return unlike


def _recorded(one: TrialRun | None, other: TrialRun | None) -> list[str]:
    """Return the metrics of two runs, the score first, without times."""
    assert one is not None
    assert other is not None
    return [one.spec.info.metric.column, *sorted({*one.other_metrics, *other.other_metrics})]


def _distance(one: TrialRun | None, other: TrialRun | None, name: str) -> float:
    """Return the largest difference of two curves, as a share of the largest value; infinity if steps differ."""
    assert one is not None
    assert other is not None
    ours, theirs = one.curve_of(name), other.curve_of(name)
    if ours == theirs:
        return 0.0
    if ours.keys() != theirs.keys():
        return math.inf
    pairs = [(a, theirs[step]) for step, a in ours.items()]
    differences = [abs(a - b) if a is not None and b is not None else math.inf for a, b in pairs if a != b]
    return max(differences) / (max((abs(a) for a, _ in pairs if a is not None), default=0.0) or 1.0)


# --- the observations -------------------------------------------------------------------------------------------------


def _start(record: Record) -> Seen:
    """Does it train in the environment of a job, alone and two at once?"""
    alone, both = record.alone, [run for run in (record.again, record.other) if run and not run.is_done]
    if alone is None:
        return "failed", record.problems.get("alone", "no run"), ""
    if not alone.is_done and alone.status.state is not State.DIVERGED and alone.end.get("code") != 0:
        advice = "run the command in the same shell; for a job's shell, see `setup` of a launch profile"
        return "failed", alone.status.reason, advice
    if both:
        seen = f"one run trains, but of two at once, one is {both[0].status.state}: {both[0].status.reason}"
        return "failed", seen, "give each run its own files, below {out}, and its own ports"
    return "ok", f"it trains in {alone.wall_s:.1f} s{_code(record.whole)}", ""


def _code(spec: RunSpec) -> str:
    """Return the files of the runs' code, as the end of a sentence; empty without own code."""
    project = kind_of(spec).project_code(spec)
    if project is None:
        return ""
    names = sorted(project.files)
    return f"; its code: {', '.join(names) if len(names) <= MAX_NAMED else format_count(len(names), 'file')}"


def _score(record: Record, criterion: Criterion) -> Seen:
    """Is there a score, with enough digits?"""
    alone, metric = record.alone, record.base.info.metric
    if alone and alone.status.state is State.DIVERGED:
        return "failed", f"the centre diverges {alone.status.reason}", "lower the lr of the centre"
    if alone is None or not alone.is_done:
        if alone is None or alone.end.get("code") != 0:
            return "absent", "no run has ended", ""
        advice = "change `reader:` or `score:` in the grid file; `ettsweep read FOLDER` lists metrics by reader"
        return "failed", alone.status.reason, advice
    values = [value for value in alone.curve.values() if value is not None]
    best = (min if metric.mode == "min" else max)(values)
    digits = ScoreDigits.of(values, best, metric, criterion)
    seen = f"{metric.column} at {format_count(len(values), 'step')}, {score_text(best, metric)} at best"
    if note := alone.end.get("score_note"):
        return "warning", f"{seen}; {note}", "print it once a step, from one process"
    if digits.are_too_few:
        return "warning", f"{seen}, {digits}", "print more digits, or widen the margin"
    return "ok", seen if digits.is_fine else f"{seen}, {digits}", ""


def _seeds(record: Record) -> Seen:
    """Do two seeds differ? Else each repeat is a copy."""
    alone, other, name = record.alone, record.other, record.base.info.metric.column
    if not record.base.info.seeded:
        return "ok", "none, by the grid file: one run a point, and no bound", ""
    if alone is None or other is None or not _all_done(alone, other):
        return _untried(record, "again", record.other)
    if differing := _differing(record):
        if name in differing:
            by = _percent(_distance(alone, other, name))
            return "ok", f"{alone.spec.seed} and {other.spec.seed} differ, by up to {by} of the score", ""
        why = "is too coarse" if len(set(alone.curve.values())) > 1 else "has not moved yet"
        seen = f"two seeds differ in {_listed(differing)}, but not in {name}: it {why} in so short a trial"
        return "warning", seen, "make the runs of `try` longer, or print more digits of the score"
    advice = "pass {seed} to the program, or write `seeds: none` for one run a point"
    if not alone.other_metrics:
        advice += f"; if {name} has not moved yet, record the training loss too"
    return "failed", "two seeds give identical numbers: repeats would be copies, and the bound would be wrong", advice


def _repeat(record: Record) -> Seen:
    """Does a seed agree with itself? If not, that is fine."""
    if not _all_done(record.alone, record.again):
        return _untried(record, "again", record.again)
    if not (unrepeated := _unrepeated(record)):
        return "ok", "one seed gives identical numbers twice", ""
    by = _percent(_distance(record.alone, record.again, unrepeated[0]))
    return (
        "ok",
        f"one seed gives different numbers twice ({_listed(unrepeated)}, by up to {by}), which is fine",
        "",
    )


def _resume(record: Record) -> Seen:
    """Does a run resume after a kill?"""
    if record.base.info.resume == "none":
        return "ok", "restarts: an interrupted run starts over, without `resume`", "set `resume` if it has checkpoints"
    resumed, alone = record.resumed, record.alone
    if resumed is None or alone is None:
        return _untried(record, "resumed")
    kind, at = resume_class(record), f"resumed at step {resumed.from_step}"
    if kind is None:
        seen = f"after a kill and a resume, the run is {resumed.run.status.state}: {resumed.run.status.reason}"
        advice = "if its checkpoint was incomplete, let `resume` match the file that is written last, as in "
        advice += "'{out}/(?P<checkpoint>checkpoint-(?P<step>\\d+))/trainer_state.json'; the trial's folder has the log"
        return "failed", seen, advice
    if kind == "restarts":
        where = "killed after a checkpoint" if resumed.from_step is None else at
        again = "" if resumed.first_step is None else f" at step {resumed.first_step}"
        return "warning", f"restarts: {where}, it starts over{again}", "load the checkpoint, or leave out `resume`"
    if kind == "exact":
        return "ok", f"exact: {at}, it matches an uninterrupted run", ""
    if repeats_itself(record) is False:
        return "ok", f"resumes: {at}; a seed does not repeat its numbers, so `exact` cannot be checked", ""
    unlike = _listed(_unlike_alone(record))
    seen = f"resumes: {at}, its numbers differ from an uninterrupted run ({unlike})"
    return "warning", seen, "save random state, optimizer and position in the data with the weights"


def _stop(record: Record) -> Seen:
    """After a request to stop, does it save within its grace?"""
    if (stopped := record.stopped) is None:
        return _untried(record, "stopped")
    info = record.base.info
    name = info.stop_signal or ("`run.should_stop`" if info.code else "a stop")
    if stopped.was_killed and info.stop_signal:
        advice = "save and exit at the signal, or once $ETTSWEEP_STOP exists; or set a longer `stop: {grace:}`"
        return (
            "warning",
            f"{name} does not stop it within {info.stop_grace_s:g} s of grace: ettsweep kills it",
            advice,
        )
    if stopped.has_saved is False:
        seen = f"{name} stops it in {stopped.stop_s:.1f} s, without a checkpoint: steps since the last one are lost"
        return "warning", seen, "save at the signal"
    return "ok", f"{name} stops it in {stopped.stop_s:.1f} s{', with a checkpoint' if stopped.has_saved else ''}", ""


def _processes(record: Record) -> Seen:
    """Do all processes end?"""
    if record.alone is None:
        return _untried(record, "alone")
    if record.still_there:
        return (
            "failed",
            f"still running after their runs: {_listed(record.still_there)}",
            "end its processes",
        )
    ended = [run for run in (record.alone, record.again, record.other) if run]
    if left := sorted({str(name) for run in ended for name in run.end.get("left") or ()}):
        advice = "wait for processes that the program starts: their last output may be lost"
        return "warning", f"it leaves {_listed(left)} running, which ettsweep kills", advice
    return "ok", "all processes end", ""


def _cost(record: Record, runs: int, profile: Launcher, results: Path) -> Seen:
    """Seconds, memory and disk of a run, and the cost of the sweep."""
    done = [run for run in (record.alone, record.again, record.other) if run and run.is_done]
    if not done:
        return _untried(record, "alone", record.alone)
    alone, whole_s, advice = done[0], _whole_s(record, done[0]), list[str]()
    state: TrialState = "ok"
    at_most = "at most " if alone.step_s is None and record.base != record.whole else ""
    if whole_s is None:
        parts = [f"this short run takes {alone.wall_s:.3g} s; the time of a whole one is unknown"]
        advice.append("set `steps:` in the grid file for an estimate")
    else:
        parts = [f"a run takes {at_most}{whole_s:.3g} s"]
        if record.base != record.whole:
            parts[0] += f", by {alone.last_step} of its {record.whole.info.steps} steps"
        if at_most:
            advice.append("record twice in the trial, half a second apart: then start-up counts once")
    if memory := max(run.memory_bytes for run in done):
        parts.append(f"{_size(memory)} of memory")
        at_once = min(runs, len(profile.resolve_slots()))
        if at_once * memory > FREE_SHARE * memory_bytes():
            state = "warning"
            need = f"{at_once} at once need {_size(at_once * memory)} of {_size(memory_bytes())}"
            advice.append(f"{need}: pass --launch-set slots=N")
    if whole_s is not None:
        device_s = whole_s * alone.device_s / (alone.wall_s or 1.0)
        parts.append(f"{format_count(runs, 'run')} {at_most}{describe_runs(profile, [device_s] * runs, 0.0)}")
    disk, free = max(run.disk_bytes for run in done), shutil.disk_usage(results).free
    parts.append(f"disk: {_size(disk)} a run, {_size(disk * runs)} for all, of {_size(free)} free")
    if disk * runs > FREE_SHARE * free:
        state = "warning"
        advice.append("make space with `keep:` and `ettsweep clean --outputs`, or write fewer checkpoints")
    return state, "; ".join(parts), "; ".join(advice)


def _whole_s(record: Record, run: TrialRun) -> float | None:
    """Return the seconds of a whole run; None if unknown.

    The start of the program counts once or, if it is unknown, with each step.
    """
    if record.base == record.whole:
        return run.wall_s
    if not (record.whole.info.steps and run.last_step):
        return None
    step_s = run.wall_s / run.last_step if run.step_s is None else run.step_s
    return run.wall_s + step_s * max(0, record.whole.info.steps - run.last_step)


def _untried(record: Record, part: str, run: TrialRun | None = None) -> Seen:
    """Return the observation of a check that could not be made, with the reason."""
    ended = f"a run is {run.status.state}: {run.status.reason}" if run and not run.is_done else "the first run failed"
    return "absent", record.problems.get(part, ended), ""


def _percent(share: float) -> str:
    return "more than its whole" if math.isinf(share) else f"{100 * share:.2g}%"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _size(number: float) -> str:
    """Return bytes as GiB, or MiB below a tenth of one."""
    return f"{number / GIB:.3g} GiB" if number >= GIB / 10 else f"{number / 2**20:.3g} MiB"
