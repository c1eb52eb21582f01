"""What a trial shows: nine observations, each with what was seen and what to do."""

import math
import shutil
import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import correlation

from ettsweep.console import format_count
from ettsweep.doctor.trial_record import Record, TrialRun
from ettsweep.errors import EttsweepError, InputError
from ettsweep.launch.cost import Devices, describe_runs
from ettsweep.launch.gpus import gpu_bytes
from ettsweep.launch.profile import AnyProfile, LocalProfile
from ettsweep.processes import GIB, memory_bytes
from ettsweep.quantities import score_text
from ettsweep.report.score_digits import ScoreDigits
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.runs.trainable import TRAINING_LOSSES
from ettsweep.study.criterion import Criterion
from ettsweep.study.tried import Observation, Outcome, ResumeClass, TrialState
from ettsweep.worker.command.recipe import CommandRecipe

MAX_NAMED = 3
"""Files, or processes, that are named one by one."""

MIN_DIFFERENCES = 10
"""Steps from which ups and downs of two curves are compared."""

ALIKE, UNLIKE = 0.8, 0.5
"""Correlations of ups and downs: from the first on they are of the same batches, below the second of others. Of
`MIN_DIFFERENCES` independent ones, 3 in 1,000 reach the first."""

NOT_TRIED = "not looked at, since the first run has no score"

ROUNDING, MAX_RATIO = 1e-4, 3.0
"""Two seeds are one where one seed differs from itself by less than the first, a share of the score as rounding may
leave it, and another seed from it by no more than the second times that."""

FREE_SHARE = 0.8
"""Share of the free space, or memory, above which a sweep is too large for comfort."""


def conclude(
    record: Record, family: str, runs: int, criterion: Criterion, profile: AnyProfile, results: Path
) -> Outcome:
    """Return what a trial shows.

    Args:
        record: what happened in it.
        family: of the runs of the sweep.
        runs: that the sweep asks for.
        criterion: of the sweep.
        profile: where they would train.
        results: where they would be kept.
    """
    differ, repeats, resume = seeds_differ(record), repeats_itself(record), resume_class(record)
    observations = (
        _start(record),
        _score(record, criterion),
        _seeds(record, differ),
        _repeat(record, repeats),
        _side_by_side(record),
        _resume(record, resume, repeats),
        _stop(record),
        _processes(record),
        _cost(record, runs, profile, results),
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Outcome(
        family=family, made=made, seeds_differ=differ, repeats=repeats, resume=resume, observations=observations
    )


def seeds_differ(record: Record) -> bool | None:
    """Return whether two seeds gave different scores.

    None if that is not known, or there are none; also if only the score is the same, of all that was recorded: in a
    short trial it may not have moved yet.
    """
    if not (_both_done(record.alone, record.other) and record.base.is_seeded):
        return None
    if _differs(record, record.base.metric.column):
        return True
    return None if _differing_metrics(record) else False


def _differing_metrics(record: Record) -> list[str]:
    """Return the names of what differs between two seeds, besides the score."""
    assert record.alone is not None
    assert record.other is not None
    names = {*record.alone.other_metrics, *record.other.other_metrics}
    return [name for name in sorted(names) if _differs(record, name)]


def _differs(record: Record, name: str) -> bool:
    """Whether a metric differs between two seeds, by more than rounding."""
    from_other = _distance(record.alone, record.other, name)
    from_itself = _distance(record.alone, record.again, name) if _both_done(record.alone, record.again) else 0.0
    return from_other > 0 and not (0 < from_itself < ROUNDING and from_other <= MAX_RATIO * from_itself)


def repeats_itself(record: Record) -> bool | None:
    """Return whether one seed gave the same numbers twice, of all that was recorded; None if that is not known."""
    if not _both_done(record.alone, record.again):
        return None
    return not _unrepeated(record)


def _unrepeated(record: Record) -> list[str]:
    """Return the names of what one seed did not repeat, the score first."""
    assert record.alone is not None
    assert record.again is not None
    others = {*record.alone.other_metrics, *record.again.other_metrics}
    names = [record.base.metric.column, *sorted(others)]
    return [name for name in names if _distance(record.alone, record.again, name)]


def resume_class(record: Record) -> ResumeClass | None:
    """Return how a killed run went on; None if that is not known."""
    if isinstance(record.base, CommandRecipe) and record.base.resume is None:
        return "restarts"
    resumed, alone = record.resumed, record.alone
    if resumed is None or alone is None or not resumed.run.is_done:
        return None
    if resumed.from_step == 0 or (resumed.first_step is not None and resumed.first_step <= resumed.from_step):
        return "restarts"
    unlike = _unlike_alone(record)
    return "resumes" if unlike and not _may_be_means(record, unlike) else "exact"


def _unlike_alone(record: Record) -> list[str]:
    """Return the names of what a killed run recorded otherwise than one that never was, the score first.

    What one seed does not repeat tells nothing, unless it is the score.
    """
    resumed, alone, score = record.resumed, record.alone, record.base.metric.column
    assert resumed is not None
    assert alone is not None
    unrepeated = _unrepeated(record) if _both_done(alone, record.again) else []
    others = sorted({*alone.other_metrics, *resumed.run.other_metrics} - {*unrepeated})
    unlike = []
    for name in [score, *others]:
        ours, theirs = (
            {step: value for step, value in run.curve_of(name).items() if step > resumed.from_step}
            for run in (resumed.run, alone)
        )
        if name != score:  # the first may be a mean since some step before the checkpoint; if alone, one over all steps
            first = min({*ours, *theirs}, default=0)
            ours, theirs = ({step: v for step, v in each.items() if step > first} for each in (ours, theirs))
        if ours != theirs or (name == score and not ours):
            unlike.append(name)
    return unlike


def _may_be_means(record: Record, unlike: Sequence[str]) -> bool:
    """Whether what a killed run recorded otherwise may be means since a program has started, which the kill has cut.

    A score that moves, and is that of a run which was never killed at each step, vouches for all but training losses.
    """
    resumed, alone = record.resumed, record.alone
    assert resumed is not None
    assert alone is not None
    scores = {value for step, value in resumed.run.curve.items() if step > resumed.from_step}
    return (
        len(scores) > 1
        and set(unlike) <= {*TRAINING_LOSSES} - {record.base.metric.column}
        and all(resumed.run.curve_of(name).keys() == alone.curve_of(name).keys() for name in unlike)
    )


def repeats_batches(
    undisturbed: Sequence[Mapping[str, float]], resumed: Sequence[Mapping[str, float]], step: int
) -> bool:
    """Whether the training loss after a checkpoint goes up and down as at the beginning: with the same batches.

    Args:
        undisturbed: metrics of a run that was never killed.
        resumed: of the other.
        step: by how much the first step after the checkpoint is beyond the first of all, be that 0 or 1.
    """
    for name in TRAINING_LOSSES:
        first, second = (
            {line["step"]: line[name] for line in lines if name in line} for lines in (undisturbed, resumed)
        )
        steps = sorted(s for s in first if s + step in second and s + step in first)
        steps = steps[len(steps) // 2 :]  # at the very beginning losses fall by more than batches differ
        if len(steps) <= MIN_DIFFERENCES or any(None in (first[s], second[s + step], first[s + step]) for s in steps):
            continue
        at_start, here, there = (
            [curve[s + by] for s in steps] for curve, by in ((first, 0), (second, step), (first, step))
        )
        start_like, there_like = _alike(at_start, here), _alike(there, here)
        if start_like >= ALIKE and there_like < UNLIKE:
            return True
    return False


def _alike(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of the ups and downs of two curves."""
    ups, downs = ([b - a for a, b in pairwise(curve)] for curve in (one, other))
    if len(set(ups)) < 2 or len(set(downs)) < 2:
        return 0.0
    return correlation(ups, downs)


# --- the observations -------------------------------------------------------------------------------------------------


def _start(record: Record) -> Observation:
    """(1) The command starts in the environment of a job."""
    crlf = [path.name for path in _code(record.base) if _has_crlf(path)]
    unix = f"line ends of {_listed(crlf)} are those of Windows (CRLF): `sed -i 's/\\r$//' {crlf[0]}`" if crlf else ""
    alone = record.alone
    if alone is None:
        return _of("start", "failed", record.problems.get("alone", "no run"), unix)
    if alone.status.state is State.FAILED and not alone.curve:
        last = next((line.strip() for line in reversed(alone.output) if line.strip()), "")
        seen = alone.status.reason + (f"; it printed: {last[:200]}" if last and last not in alone.status.reason else "")
        advice = unix or "run the command by hand in the same shell; `setup` of a launch profile prepares the job's"
        if alone.end.get("code") == 0:  # it ran, and left no score
            return _of("start", "warning" if unix else "ok", "it starts and ends", unix)
        return _of("start", "failed", seen, advice)
    seen, imports, todo = f"it trains in {alone.wall_s:.1f} s", record.imported, [unix] * bool(unix)
    if imports.uncopied:
        seen += f"; it imports {_listed(imports.uncopied)} of the project itself, not of the copy that it trains in"
        todo.append("no absolute path of the project in sys.path or PYTHONPATH: edits would change runs that wait")
    if imports.unknown:
        seen += f"; it imports {_listed(imports.unknown)}, of which its id knows nothing"
        todo.append(f"`code: [{', '.join(imports.unknown[:MAX_NAMED])}]`, so that edits of these make new runs")
    if imports.elsewhere:
        seen += f"; it imports {_listed(imports.elsewhere)}, outside of the project"
        todo.append("edits of what lies outside make no new runs, and change those that wait: copy it into the project")
    return _of("start", "warning" if todo else "ok", seen, "; ".join(todo))


def _score(record: Record, criterion: Criterion) -> Observation:
    """(2) A score is found, with its resolution."""
    alone, name = record.alone, record.base.metric.column
    if alone is None or (not alone.is_done and alone.status.state is not State.DIVERGED):
        ran = alone is not None and alone.end.get("code") == 0
        seen = alone.status.reason if ran and alone else "no run has ended"
        advice = (
            "`reader:` or `score:` of the grid file; `ettsweep read FOLDER` tells which readers see what" if ran else ""
        )
        return _of("score", "failed" if ran else "absent", seen, advice)
    if not alone.is_done:
        return _of(
            "score",
            "failed",
            f"the centre diverges {alone.status.reason}",
            "a lower lr at the centre",
        )
    values = [value for value in alone.curve.values() if value is not None]
    metric = record.base.metric
    best = (min if metric.mode == "min" else max)(values)
    digits = ScoreDigits.of(values, best, metric, criterion)
    seen = f"{name} at {format_count(len(values), 'step')}, {score_text(best, metric)} at best"
    if digits.is_fine:
        return _of("score", "ok", seen)
    if digits.are_too_few:
        return _of("score", "warning", f"{seen}, {digits}", "print more digits of it, or state a wider margin")
    return _of("score", "ok", f"{seen}, {digits}")


def _seeds(record: Record, differ: bool | None) -> Observation:
    """(3) Two seeds differ: else each repeat is a copy, and each bound a lie."""
    if not record.base.is_seeded:
        return _of(
            "seeds",
            "ok",
            "none, as the grid file says: one run a point, so that luck is not told from merit, without a bound",
        )
    if not _both_done(record.alone, record.other):
        return _untried("seeds", record, "again")
    assert record.alone is not None
    assert record.other is not None
    name = record.base.metric.column
    if differ is None:
        has_moved = len(set(record.alone.curve.values())) > 1
        return _of(
            "seeds",
            "warning",
            f"two seeds give the same {name}, and differ in {_listed(_differing_metrics(record))}: "
            + ("it is too coarse for so short a trial" if has_moved else "it has not moved yet in so short a trial"),
            "longer runs would tell: `try`, or a score with more digits",
        )
    distance = _distance(record.alone, record.other, name)
    if differ:
        seeds = f"{record.base.seed} and {record.other.spec.seed}"
        return _of("seeds", "ok", f"{seeds} differ, by up to {_percent(distance)} of the score")
    but = " but for rounding" if distance else ""
    return _of(
        "seeds",
        "failed",
        f"two seeds give the same numbers{but}: repeats would be copies of one run, and any bound a lie",
        "have the program use {seed}, or write `seeds: none` for one run a point"
        + ("" if record.alone.other_metrics else f"; if {name} has not moved yet, have it record its loss too"),
    )


def _repeat(record: Record, repeats: bool | None) -> Observation:
    """(4) One seed agrees with itself, or is not deterministic, which is fine."""
    if repeats is None:
        return _untried("repeat", record, "again")
    if repeats:
        return _of("repeat", "ok", "one seed gives the same numbers twice")
    unrepeated, score = _unrepeated(record), record.base.metric.column
    by = _percent(_distance(record.alone, record.again, unrepeated[0]))
    what = "other numbers" if score in unrepeated else f"the same {score}, but other numbers of {_listed(unrepeated)},"
    seen = f"one seed gives {what} the second time, by up to {by}: it is not deterministic, which is fine"
    return _of("repeat", "ok", seen)


def _side_by_side(record: Record) -> Observation:
    """(5) Two at once write apart."""
    two = (record.again, record.other)
    if record.alone is None or not record.alone.is_done or not all(two):
        return _untried("side by side", record, "again")
    if failed := [run for run in two if run and not run.is_done]:
        return _of(
            "side by side",
            "failed",
            f"a run alone is well, of two at once one is {failed[0].status.state}: {failed[0].status.reason}",
            "all that it writes, and each port that it opens, is to be its own: {out} is the place",
        )
    alone, both = record.written
    if shared := _shared(alone.by_runs, both.by_runs):
        return _of(
            "side by side",
            "failed",
            f"each run writes {_listed(shared)}: runs at once overwrite each other's",
            "have it written below {out}",
        )
    if shared := _shared(alone.by_any, both.by_any):
        return _of(
            "side by side",
            "warning",
            f"outside of {{out}} there changed {_listed(shared)}, each time: by runs, which then overwrite each "
            "other's, or by another process",
            "if runs write it, have it written below {out}",
        )
    if written := sorted(alone.all | both.all):
        return _of(
            "side by side",
            "warning",
            f"two at once write apart; outside of {{out}} there changed {_listed(written)}",
            "what a run writes is kept with it below {out}",
        )
    return _of("side by side", "ok", "two at once write apart, all below {out}")


def _shared(alone: frozenset[str], both: frozenset[str]) -> list[str]:
    """Return the files of a run alone that each of two at once has written, too.

    Of `best-0.txt` beside a `best-1.txt` that only the two have written, each has one: the seed is in the name.
    """
    apart = {_without_digits(name) for name in both - alone}
    return sorted(name for name in alone & both if _without_digits(name) not in apart)


def _without_digits(name: str) -> str:
    return name.translate(dict.fromkeys(map(ord, string.digits)))


def _resume(record: Record, resume: ResumeClass | None, repeats: bool | None) -> Observation:
    """(6) Killed after a checkpoint and taken up again."""
    if isinstance(record.base, CommandRecipe) and record.base.resume is None:
        return _of(
            "resume",
            "ok",
            "restarts: without `resume` a run that is interrupted starts from the beginning",
            "state `resume` if it has checkpoints",
        )
    resumed, alone = record.resumed, record.alone
    if resumed is None or alone is None:
        return _untried("resume", record, "resumed")
    if resume is None:
        return _of(
            "resume",
            "failed",
            f"killed after a checkpoint and taken up again, it is {resumed.run.status.state}: "
            f"{resumed.run.status.reason}",
            "see `resume` in docs/own-code.md: the folder of the trial has its log",
        )
    at = f"taken up again at step {resumed.from_step}"
    if resume == "exact":
        seen = f"exact: {at}, its numbers are those of a run that was never killed"
        if unlike := _unlike_alone(record):
            seen += f", but for {_listed(unlike)}, which may be a mean since the program has started"
        return _of("resume", "ok", seen)
    if resume == "restarts":
        first = "" if resumed.first_step is None else f" at step {resumed.first_step}"
        where = (
            f"killed after a checkpoint, it starts again{first}"
            if resumed.from_step == 0
            else f"{at}, it starts again{first}"
        )
        return _of(
            "resume",
            "warning",
            f"restarts: {where}",
            "what was trained is lost: have it load its checkpoint, or leave out `resume`",
        )
    if repeats is False:
        return _of(
            "resume",
            "ok",
            f"resumes: {at}, its curve goes on; whether exactly cannot be told, as one seed does not repeat itself",
        )
    again = resumed.from_step + 1 if resumed.first_step is None else resumed.first_step
    if repeats_batches(alone.history, resumed.run.history, again - min(line["step"] for line in alone.history)):
        return _of(
            "resume",
            "warning",
            f"resumes: {at}, its curve goes on, but it restarts its batches: those of the first steps come again",
            "store the position in the data and the state of random numbers with the weights",
        )
    unlike = _unlike_alone(record)
    same = f", though its {alone.spec.metric.column} is the same: {_listed(unlike)} differ"
    return _of(
        "resume",
        "warning",
        f"resumes: {at}, its curve goes on with other numbers than those of a run that was never killed"
        + (_ends(alone, resumed.run) if alone.spec.metric.column in unlike else same),
        "store the state of random numbers, the optimizer and the position in the data with the weights",
    )


def _ends(alone: TrialRun, resumed: TrialRun) -> str:
    last, other = (list(run.curve.values())[-1] if run.curve else None for run in (alone, resumed))
    if last is None or other is None or last == other:
        return ""
    metric = alone.spec.metric
    return f": {score_text(other, metric)} at its end, not {score_text(last, metric)}"


def _stop(record: Record) -> Observation:
    """(7) Told to stop, it saves within its grace."""
    stopped = record.stopped
    if stopped is None:
        return _untried("stop", record, "stopped")
    stop = record.base.stop if isinstance(record.base, CommandRecipe) else None
    name = stop.signal if stop else "`run.stop`" if record.base.own_code() else "a stop"
    if stopped.was_killed and stop:
        return _of(
            "stop",
            "warning",
            f"{name} does not end it within its grace of {stop.grace:g} s, after which it is killed",
            "have it save and leave at the signal, or as soon as $ETTSWEEP_STOP exists; a longer `stop: {grace:}`",
        )
    if stopped.has_saved is None:
        return _of("stop", "ok", f"{name} ends it in {stopped.stop_s:.1f} s")
    if stopped.has_saved:
        return _of("stop", "ok", f"{name} has it save and leave in {stopped.stop_s:.1f} s")
    return _of(
        "stop",
        "warning",
        f"{name} ends it in {stopped.stop_s:.1f} s, without a checkpoint: what it trained since the last one is lost",
        "have it save at the signal",
    )


def _processes(record: Record) -> Observation:
    """(8) Nothing is left running."""
    if record.alone is None:
        return _untried("processes", record, "alone")
    if record.still_there:
        return _of(
            "processes",
            "failed",
            f"still running after their runs: {_listed(record.still_there)}",
            "have the program end what it starts",
        )
    runs = [run for run in (record.alone, record.again, record.other) if run]
    if left := [str(name) for run in runs for name in run.end.get("left") or ()]:
        names = sorted(set(left))
        return _of(
            "processes",
            "warning",
            f"it leaves {_listed(names)} running at its end: they are killed, and nothing is left",
            "have it wait for what it starts: what they write last may be cut short",
        )
    return _of("processes", "ok", "nothing is left running")


def _cost(record: Record, runs: int, profile: AnyProfile, results: Path) -> Observation:
    """(9) Memory, disk and seconds of a run, and so what the sweep will cost."""
    done = [run for run in (record.alone, record.again, record.other) if run and run.is_done]
    if not done:
        return _untried("cost", record, "alone")
    share = _share_of_whole(record, done[0])
    alone = done[0]
    parts, advice = [f"a run takes {alone.wall_s / (share or 1):.3g} s"], list[str]()
    state: TrialState = "ok"
    if share is None:
        parts = [f"this short run takes {alone.wall_s:.3g} s; a whole one is not known"]
        advice.append("`steps:` of a run, in the grid file, would tell what the sweep will cost")
    elif share < 1:
        parts[0] += f", by {alone.wall_s:.3g} s of {100 * share:.2g}% of its steps"
    memory = max(run.memory_bytes for run in done)
    try:
        devices = Devices.from_profile(profile)
    except InputError:
        devices = None
    if memory:
        parts.append(f"{_size(memory)} of memory")
        at_once = min(runs, devices.slots) if devices and isinstance(profile, LocalProfile) else 0
        if at_once * memory > FREE_SHARE * memory_bytes():
            state = "warning"
            advice.append(
                f"{at_once} at once need {_size(at_once * memory)} of {_size(memory_bytes())}: --launch-set slots=N"
            )
    if gpu_memory := max(run.gpu_bytes for run in done):
        parts.append(f"{_size(gpu_memory)} on GPUs of {_size(gpu_bytes())}, as the driver has it")
    if devices and share:
        parts.append(
            f"{format_count(runs, 'run')} {describe_runs(profile, devices, [alone.device_s / share] * runs, 0.0)}"
        )
    disk, free = max(run.disk_bytes for run in done), shutil.disk_usage(results).free
    parts.append(f"disk: {_size(disk)} a run, {_size(disk * runs)} for all, of {_size(free)} that are free")
    if disk * runs > FREE_SHARE * free:
        state = "warning"
        advice.append("`keep:` and `ettsweep clean --outputs` make space, or fewer checkpoints")
    return _of("cost", state, "; ".join(parts), "; ".join(advice))


# --- helpers ----------------------------------------------------------------------------------------------------------


def _of(name: str, state: TrialState, seen: str, advice: str = "") -> Observation:
    return Observation(observation=name, state=state, seen=seen, advice=advice)


def _distance(one: TrialRun | None, other: TrialRun | None, name: str) -> float:
    """Return by how much curves of a metric differ at most, as a share of its largest value; infinity if steps do."""
    assert one is not None
    assert other is not None
    ours, theirs = one.curve_of(name), other.curve_of(name)
    if ours == theirs:
        return 0.0
    pairs = [(a, theirs.get(step)) for step, a in ours.items()]
    if len(ours) != len(theirs):
        return math.inf
    differences = [abs(a - b) if a is not None and b is not None else math.inf for a, b in pairs]
    return max(differences) / (max((abs(a) for a, _ in pairs if a is not None), default=0.0) or 1.0)


def _percent(share: float) -> str:
    return "more than its whole" if math.isinf(share) else f"{100 * share:.2g}%"


def _both_done(one: TrialRun | None, other: TrialRun | None) -> bool:
    return bool(one and other and one.is_done and other.is_done)


def _untried(name: str, record: Record, part: str) -> Observation:
    """Return what stands for something that could not be looked at, with the reason."""
    failed = {"again": (record.again, record.other), "alone": (record.alone,)}.get(part, ())
    ended = next((run for run in failed if run and not run.is_done), None)
    why = record.problems.get(part) or (f"a run is {ended.status.state}: {ended.status.reason}" if ended else NOT_TRIED)
    return _of(name, "absent", why)


def _share_of_whole(record: Record, run: TrialRun) -> float | None:
    """Return which share of the steps of a whole run one of the trial has trained; None if that is not known."""
    if record.base == record.whole:
        return 1.0
    last = max((line["step"] for line in run.history), default=0)
    return min(1.0, last / record.whole.steps) if record.whole.steps and last else None


def _code(spec: RunSpec) -> Sequence[Path]:
    try:
        return spec.code_paths()
    except EttsweepError:
        return ()


def _has_crlf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\r\n" in file.read(2**16)
    except OSError:
        return False


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _size(number: float) -> str:
    """Return bytes as GB, or MB below a tenth of one."""
    return f"{number / GIB:.3g} GiB" if number >= GIB / 10 else f"{number / 2**20:.3g} MiB"
