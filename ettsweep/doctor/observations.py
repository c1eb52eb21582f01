"""What a trial shows: eight observations, each with what was seen and what to do."""

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
"""State, what was seen, and what to do; empty for nothing."""

ROUNDING, MAX_RATIO = 1e-4, 3.0
"""Two seeds are one where one seed differs from itself by less than the first, a share of the score as rounding may
leave it, and another seed from it by no more than the second times that."""

MAX_NAMED = 5
"""Files of the code that are named one by one."""

FREE_SHARE = 0.8
"""Share of the free space, or memory, above which a sweep is too large for comfort."""


def conclude(record: Record, family: str, runs: int, criterion: Criterion, profile: Launcher, results: Path) -> Outcome:
    """Return what a trial shows.

    Args:
        record: what happened in it.
        family: of the runs of the sweep.
        runs: that the sweep asks for.
        criterion: of the sweep.
        profile: where they would train.
        results: where they would be kept.
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

    None if that is not known, or there are none; also if only the score is the same, of all that was recorded: in a
    short trial it may not have moved yet.
    """
    if not (record.base.info.seeded and _all_done(record.alone, record.other)):
        return None
    differing = _differing(record)
    return True if record.base.info.metric.column in differing else None if differing else False


def repeats_itself(record: Record) -> bool | None:
    """Return whether one seed gave the same numbers twice, of all that was recorded; None if that is not known."""
    return not _unrepeated(record) if _all_done(record.alone, record.again) else None


def resume_class(record: Record) -> ResumeClass | None:
    """Return how a killed run resumed; None if that is not known."""
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
    """Return the names of what differs between two seeds by more than rounding, the score first."""
    has_twin, found = _all_done(record.alone, record.again), []
    for name in _recorded(record.alone, record.other):
        apart = _distance(record.alone, record.other, name)
        rounding = _distance(record.alone, record.again, name) if has_twin else 0.0
        if apart > 0 and not (0 < rounding < ROUNDING and apart <= MAX_RATIO * rounding):
            found.append(name)
    return found


def _unrepeated(record: Record) -> list[str]:
    """Return the names of what one seed did not repeat, the score first."""
    return [name for name in _recorded(record.alone, record.again) if _distance(record.alone, record.again, name)]


def _unlike_alone(record: Record) -> list[str]:
    """Return the names of what a killed run recorded otherwise than one that never was, the score first.

    What one seed does not repeat tells nothing, unless it is the score. A training loss may be a mean since the program
    has started, which the kill has cut: beside a score that moves, and is the same, it tells nothing either.
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
    """Return the names of what two runs recorded, the score first, without times."""
    assert one is not None
    assert other is not None
    return [one.spec.info.metric.column, *sorted({*one.other_metrics, *other.other_metrics})]


def _distance(one: TrialRun | None, other: TrialRun | None, name: str) -> float:
    """Return by how much curves of a metric differ at most, as a share of its largest value; infinity if steps do."""
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
        advice = "run the command by hand in the same shell; `setup` of a launch profile prepares the job's"
        return "failed", alone.status.reason, advice
    if both:
        seen = f"one run alone trains; of two at once, one is {both[0].status.state}: {both[0].status.reason}"
        return "failed", seen, "each run needs its own files, below {out}, and its own ports"
    return "ok", f"it trains in {alone.wall_s:.1f} s{_code(record.whole)}", ""


def _code(spec: RunSpec) -> str:
    """Return which files are the code of the runs, as the end of a sentence; empty without own code."""
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
        advice = "change `reader:` or `score:` in the grid file; `ettsweep read FOLDER` shows what each reader sees"
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
        return "ok", "none, as the grid file says: one run a point, and no bound", ""
    if alone is None or other is None or not _all_done(alone, other):
        return _untried(record, "again", record.other)
    if differing := _differing(record):
        if name in differing:
            by = _percent(_distance(alone, other, name))
            return "ok", f"{alone.spec.seed} and {other.spec.seed} differ, by up to {by} of the score", ""
        why = "is too coarse" if len(set(alone.curve.values())) > 1 else "has not moved yet"
        seen = f"two seeds differ in {_listed(differing)}, but give the same {name}: it {why} in so short a trial"
        return "warning", seen, "make the runs of `try` longer, or print more digits of the score"
    advice = "pass {seed} to the program, or write `seeds: none` for one run a point"
    if not alone.other_metrics:
        advice += f"; if {name} has not moved yet, record the training loss too"
    return "failed", "two seeds give the same numbers: repeats would be copies, and the bound would be wrong", advice


def _repeat(record: Record) -> Seen:
    """Does one seed agree with itself? If not, that is fine."""
    if not _all_done(record.alone, record.again):
        return _untried(record, "again", record.again)
    if not (unrepeated := _unrepeated(record)):
        return "ok", "one seed gives the same numbers twice", ""
    by = _percent(_distance(record.alone, record.again, unrepeated[0]))
    return (
        "ok",
        f"one seed gives other numbers the second time ({_listed(unrepeated)}, by up to {by}), which is fine",
        "",
    )


def _resume(record: Record) -> Seen:
    """How does a run resume that was killed after a checkpoint?"""
    if record.base.info.resume == "none":
        return "ok", "restarts: without `resume`, an interrupted run starts over", "set `resume` if it has checkpoints"
    resumed, alone = record.resumed, record.alone
    if resumed is None or alone is None:
        return _untried(record, "resumed")
    kind, at = resume_class(record), f"resumed at step {resumed.from_step}"
    if kind is None:
        seen = f"killed after a checkpoint and resumed, it is {resumed.run.status.state}: {resumed.run.status.reason}"
        advice = "if its checkpoint was not whole yet, let `resume` match the file that is written last, as in "
        advice += "'{out}/(?P<checkpoint>checkpoint-(?P<step>\\d+))/trainer_state.json'; the trial's folder has the log"
        return "failed", seen, advice
    if kind == "restarts":
        where = "killed after a checkpoint" if resumed.from_step is None else at
        again = "" if resumed.first_step is None else f" at step {resumed.first_step}"
        return "warning", f"restarts: {where}, it starts over{again}", "load the checkpoint, or leave out `resume`"
    if kind == "exact":
        return "ok", f"exact: {at}, it goes as an uninterrupted run", ""
    if repeats_itself(record) is False:
        return "ok", f"resumes: {at}; one seed does not repeat itself, so `exact` cannot be told", ""
    unlike = _listed(_unlike_alone(record))
    seen = f"resumes: {at}, it has other numbers than an uninterrupted run ({unlike})"
    return "warning", seen, "save random state, optimizer and position in the data with the weights"


def _stop(record: Record) -> Seen:
    """Told to stop, does it save within its grace?"""
    if (stopped := record.stopped) is None:
        return _untried(record, "stopped")
    info = record.base.info
    name = info.stop_signal or ("`run.should_stop`" if info.code else "a stop")
    if stopped.was_killed and info.stop_signal:
        advice = "save and exit at the signal, or once $ETTSWEEP_STOP exists; or set a longer `stop: {grace:}`"
        return "warning", f"{name} does not end it within its grace of {info.stop_grace_s:g} s, so it is killed", advice
    if stopped.has_saved is False:
        seen = f"{name} ends it in {stopped.stop_s:.1f} s, without a checkpoint: steps since the last one are lost"
        return "warning", seen, "save at the signal"
    return "ok", f"{name} ends it in {stopped.stop_s:.1f} s{', with a checkpoint' if stopped.has_saved else ''}", ""


def _processes(record: Record) -> Seen:
    """Is nothing left running?"""
    if record.alone is None:
        return _untried(record, "alone")
    if record.still_there:
        return "failed", f"still running after their runs: {_listed(record.still_there)}", "end what the program starts"
    ended = [run for run in (record.alone, record.again, record.other) if run]
    if left := sorted({str(name) for run in ended for name in run.end.get("left") or ()}):
        advice = "wait for what the program starts: its last output may be cut short"
        return "warning", f"it leaves {_listed(left)} running at its end, and ettsweep kills that", advice
    return "ok", "nothing is left running", ""


def _cost(record: Record, runs: int, profile: Launcher, results: Path) -> Seen:
    """Seconds, memory and disk of a run, and so what the sweep will cost."""
    done = [run for run in (record.alone, record.again, record.other) if run and run.is_done]
    if not done:
        return _untried(record, "alone", record.alone)
    alone, whole_s, advice = done[0], _whole_s(record, done[0]), list[str]()
    state: TrialState = "ok"
    at_most = "at most " if alone.step_s is None and record.base != record.whole else ""
    if whole_s is None:
        parts = [f"this short run takes {alone.wall_s:.3g} s; a whole one is not known"]
        advice.append("with `steps:` in the grid file, `try` can tell what the sweep will cost")
    else:
        parts = [f"a run takes {at_most}{whole_s:.3g} s"]
        if record.base != record.whole:
            parts[0] += f", by {alone.last_step} of its {record.whole.info.steps} steps"
        if at_most:
            advice.append("let the trial record twice, half a second apart: then start-up counts once")
    if memory := max(run.memory_bytes for run in done):
        parts.append(f"{_size(memory)} of memory")
        at_once = min(runs, len(profile.resolve_slots()))
        if at_once * memory > FREE_SHARE * memory_bytes():
            state = "warning"
            need = f"{at_once} at once need {_size(at_once * memory)} of {_size(memory_bytes())}"
            advice.append(f"{need}: --launch-set slots=N")
    if whole_s is not None:
        device_s = whole_s * alone.device_s / (alone.wall_s or 1.0)
        parts.append(f"{format_count(runs, 'run')} {at_most}{describe_runs(profile, [device_s] * runs, 0.0)}")
    disk, free = max(run.disk_bytes for run in done), shutil.disk_usage(results).free
    parts.append(f"disk: {_size(disk)} a run, {_size(disk * runs)} for all, of {_size(free)} free")
    if disk * runs > FREE_SHARE * free:
        state = "warning"
        advice.append("`keep:` and `ettsweep clean --outputs` make space, or fewer checkpoints")
    return state, "; ".join(parts), "; ".join(advice)


def _whole_s(record: Record, run: TrialRun) -> float | None:
    """Return the seconds that a whole run takes; None if that is not known.

    The start of the program counts once, or for each step if it cannot be told from them.
    """
    if record.base == record.whole:
        return run.wall_s
    if not (record.whole.info.steps and run.last_step):
        return None
    step_s = run.wall_s / run.last_step if run.step_s is None else run.step_s
    return run.wall_s + step_s * max(0, record.whole.info.steps - run.last_step)


def _untried(record: Record, part: str, run: TrialRun | None = None) -> Seen:
    """Return what stands for something that could not be looked at, with the reason."""
    ended = f"a run is {run.status.state}: {run.status.reason}" if run and not run.is_done else "the first run failed"
    return "absent", record.problems.get(part, ended), ""


def _percent(share: float) -> str:
    return "more than its whole" if math.isinf(share) else f"{100 * share:.2g}%"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _size(number: float) -> str:
    """Return bytes as GiB, or MiB below a tenth of one."""
    return f"{number / GIB:.3g} GiB" if number >= GIB / 10 else f"{number / 2**20:.3g} MiB"
