"""Estimated and actual cost of runs, from measured times of runs of the same recipe only."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ettsweep.console import format_count, format_device_hours
from ettsweep.errors import InputError
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.progress import format_duration
from ettsweep.launch.submissions import try_read_submission
from ettsweep.processes import Process, process_identity
from ettsweep.runs.folder import RunDir, jobs_dir
from ettsweep.runs.index import Run, RunIndex, count_states
from ettsweep.runs.state import State
from ettsweep.runs.timing import RunTimes, makespan_s
from ettsweep.study.budget import Forecast
from ettsweep.study.plan import Plan, PlannedRun
from ettsweep.study.sweep_store import StudiesByFamily


def fraction_left(run: RunDir) -> float:
    """Return the fraction of its steps that a run still has to train after its last checkpoint."""
    # The latest attempt may have died before its first checkpoint: then an earlier one is resumed.
    attempts = map(run.attempt, reversed(run.attempt_numbers()))
    return next((1 - attempt.progress() for attempt in attempts if attempt.has_checkpoint()), 1.0)


def describe_runs(profile: Launcher, device_s: Sequence[float], start_s: float) -> str:
    """Return the device hours of runs, and their wall time on workers that take `start_s` to start.

    The wall time is left out if only the scheduler decides how many run at once.
    """
    text = f"about {format_device_hours(sum(device_s))}"
    if not (placed := profile.at_once(len(device_s))):
        return text
    at_once, placement = placed
    # Device seconds count each of a run's parallel devices.
    wall_s = start_s + makespan_s([], [seconds / profile.devices_per_run for seconds in device_s], at_once)
    return f"{text}, {format_duration(wall_s)} {placement}"


TRAINED_STATES = (State.DONE, State.DIVERGED)
STOPPED_STATES = (State.FAILED, State.CANCELLED)
"""States of runs that used device time and will not continue by themselves."""

# --- before and after -----------------------------------------------------------------------------------------------


@dataclass
class CostEstimator:
    """Describes the cost of a command's runs: estimated before each plan, actual at the end.

    Attributes:
        profile: launch profile of the runs.
        in_rounds: each plan is one of several rounds.
        clock: monotonic seconds.
    """

    profile: Launcher
    in_rounds: bool = False
    clock: Callable[[], float] = time.monotonic
    _fraction_left: dict[str, float] = field(default_factory=dict)  # by run id: fraction of its steps to train
    _already_finished: tuple[Run, ...] | None = None
    _announced_runs: int = 0  # in all, when a cost was last announced

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def _device_s_since_planned(self, run: Run) -> float:
        """Return the device seconds that an unfinished run has used since it was planned."""
        latest = run.dir.latest_attempt()
        progress, fraction_before = run.status.progress, 1 - self._fraction_left[run.id]
        # Progress counts from step 0: an earlier command paid for the part before the plan.
        return latest.time_spent().device_s * max(0.0, 1 - fraction_before / progress) if latest and progress else 0.0

    def describe_estimate(self, plan: Plan, forecast: Forecast | None = None) -> str:
        """Return a line on the cost of a plan's runs that no earlier plan launched; empty if there are none.

        With a forecast, it covers all future runs, and has their cost only if these have doubled since the last line.
        """
        runs = plan.run_index.runs
        is_first = self._already_finished is None
        # Only the first plan counts: later ones keep runs of this command.
        if self._already_finished is None:
            self._already_finished = tuple(runs[p.id] for p in plan.keep if p.state.finished)
        new = [p for p in plan.to_launch if p.id not in self._fraction_left]
        if not new:
            return ""
        # Recorded before training, while the checkpoint still has the step at which the run begins.
        self._fraction_left |= {p.id: fraction_left(runs[p.id].dir) if p.id in runs else 1.0 for p in new}
        head = f"{format_count(len(new), 'run')} {'in this round' if self.in_rounds else 'to train'}"
        count = len(new)
        if forecast:
            launched_before = len(self._fraction_left) - len(new)
            if launched_before + forecast.likely < 2 * self._announced_runs:
                return ""
            self._announced_runs = launched_before + forecast.likely
            head, count = str(forecast), forecast.likely
        cost = self._describe_device_hours(new, plan.run_index, count, terse=not is_first)
        return ": ".join(filter(None, [head, cost]))

    def _describe_device_hours(
        self, planned: Sequence[PlannedRun], run_index: RunIndex, count: int, *, terse: bool
    ) -> str:
        """Return the device hours of runs, their wall time if known, and the number of runs behind the estimate.

        If `count` is larger than their number, it is for that many such runs.
        """
        try:
            devices = self.profile.run_devices()
        except InputError:
            return ""  # a local profile of another machine
        times = RunTimes.of(run_index, devices.match)
        estimates = {p.id: s for p in planned if (s := times.device_s(p.spec, self._fraction_left[p.id])) is not None}
        if not estimates:
            return ""
        device_s = list(estimates.values())
        if len(device_s) == len(planned):
            device_s += [fmean(device_s)] * (count - len(planned))
            text = describe_runs(self.profile, device_s, times.start_s)
        else:
            text = f"about {format_device_hours(sum(device_s))} for {len(device_s)} of them"
        if terse:
            return text
        timed = times.count(p.spec for p in planned)
        return f"{text} (measured on {format_count(timed, 'run')} of the same kind)"

    def describe_cost(self, run_index: RunIndex) -> str:
        """Return a line on the cost of the launched runs, and on savings by runs that were finished before.

        Runs that another command trained meanwhile are part of its cost, not of this one's.
        """
        ended = [run for run_id in self._fraction_left if (run := run_index.runs.get(run_id))]
        others = _runs_of_others(run for run in ended if run.state in TRAINED_STATES + STOPPED_STATES)
        trained, stopped = (
            [run for run in ended if run.state in states and run.id not in others]
            for states in (TRAINED_STATES, STOPPED_STATES)
        )
        sentences = []
        if trained or stopped:
            device_s = sum(self._fraction_left[run.id] * run.device_s for run in trained) + sum(
                map(self._device_s_since_planned, stopped)
            )
            label = format_count(len(self._fraction_left), "run")
            label = label if len(trained) == len(self._fraction_left) else f"{len(trained)} of {label}"
            states = count_states(run.state for run in stopped)
            label = ", ".join([f"{label} trained", *(f"{number} {state}" for state, number in states.items())])
            sentences.append(
                f"{label}: {format_device_hours(device_s)} in {format_duration(self.clock() - self._began_s)}"
            )
        if others:
            sentences.append(f"another command trained {format_count(len(others), 'run')}")
        # Each round keeps the runs of its candidate, which saves nothing.
        if (reused := self._already_finished) and not self.in_rounds:
            subject = f"{format_count(len(reused), 'run')} {'was' if len(reused) == 1 else 'were'} finished already"
            sentences.append(f"{subject}: {format_device_hours(sum(run.device_s for run in reused))} saved")
        return "; ".join(sentences)


def _runs_of_others(runs: Iterable[Run]) -> set[str]:
    """Return the ids of runs whose latest attempt is by another command or its workers."""
    submitters: dict[Path, Process | None] = {}  # read each submission once: it has the ids of all its runs
    others = set()
    for run in runs:
        if (latest := run.dir.latest_attempt()) is None:
            continue
        owner = latest.owner()
        if name := latest.claim().get("submission"):
            folder = jobs_dir(run.dir.path.parents[1]) / Path(str(name)).name
            if folder not in submitters:
                submission = try_read_submission(folder)
                submitters[folder] = submission.submitter if submission else None
            owner = submitters[folder]
        if owner is not None and owner != process_identity():
            others.add(run.id)
    return others


# --- saved ----------------------------------------------------------------------------------------------------------


def cost_so_far(runs: Iterable[Run], studies_by_family: StudiesByFamily) -> str:
    """Return a line on the cost of finished runs, and on savings by sharing runs between sweeps.

    Without sharing, each sweep would have trained its own copy of a run.

    Args:
        runs: the runs to sum over.
        studies_by_family: studies of all sweeps, by family.
    """
    finished = [run for run in runs if run.state.finished]
    device_hours = format_device_hours(sum(run.device_s for run in finished))
    line = f"{format_count(len(finished), 'finished run')}: {device_hours}"
    shared = [(run, sweeps) for run in finished if (sweeps := _count_sweeps(run, studies_by_family)) > 1]
    if shared:
        saved_s = sum((sweeps - 1) * run.device_s for run, sweeps in shared)
        line += f"; sweeps share {len(shared)} of them, which saved {format_device_hours(saved_s)}"
    return line


def _count_sweeps(run: Run, studies_by_family: StudiesByFamily) -> int:
    """Return the number of sweeps that requested a run."""
    return len({study.sweep for study in studies_by_family.of(run) if study.has(run)})
