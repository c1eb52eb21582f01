"""What runs will cost, and what they did cost: only from what was measured of runs of their kind on such devices."""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ettsweep.console import count, device_hours
from ettsweep.errors import InputError
from ettsweep.files import Json, number
from ettsweep.launch.gpus import gpu_names
from ettsweep.launch.profile import AnyProfile, LocalProfile
from ettsweep.launch.progress import format_duration
from ettsweep.launch.time_left import until_free
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State
from ettsweep.study.lattice import Point
from ettsweep.study.plan import Plan, PlannedRun
from ettsweep.study.run_index import Run, RunIndex, cost_s, count_states
from ettsweep.study.sweep_store import Searches

# --- measured -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Devices:
    """What a run trains on, as far as it changes how long that takes.

    Attributes:
        kind: cpu or cuda.
        each: how many train a run together.
        threads: of each on the CPU.
        names: what the GPUs are; empty where that is not known.
        slots: of this machine; 0 where a scheduler has the devices.
        fewer: whether a run may take fewer threads.
    """

    kind: str
    each: int
    threads: int
    names: frozenset[str] = frozenset()
    slots: int = 0
    fewer: bool = False

    @classmethod
    def of(cls, profile: AnyProfile) -> "Devices":
        """Return what a profile trains a run on.

        Raises:
            InputError: it is for this machine, and there are no such devices.
        """
        if not isinstance(profile, LocalProfile):
            return cls("cuda" if profile.gpus else "cpu", profile.devices_per_run, profile.cpus, fewer=True)
        slots = profile.resolve()
        names_by_uuid = gpu_names() if slots[0].device == "cuda" else {}
        names = frozenset(names_by_uuid.get(slot.gpu or "", "") for slot in slots)
        first_fields = slots[0].device, profile.devices_per_run, slots[0].threads
        return cls(*first_fields, names if all(names) else frozenset(), len(slots), fewer=profile.threads == "auto")

    def trained(self, result: Json) -> bool:
        """Say whether a result says that it is of such devices."""
        environment, execution = result.get("environment") or {}, result.get("execution") or {}
        if str(environment.get("device")).partition(":")[0] != self.kind or execution.get("processes") != self.each:
            return False
        if self.kind == "cpu":
            threads = environment.get("threads")  # `auto` gives small models fewer
            return threads == self.threads or (self.fewer and isinstance(threads, int) and threads < self.threads)
        return not self.names or environment.get("device_name") in self.names


@dataclass
class MeasuredTime:
    """Finished runs of a kind: how many, their device seconds, and the shares of their steps that these took."""

    runs: int = 0
    device_s: float = 0.0
    shares: float = 0.0

    def add(self, device_s: float, fraction: float) -> None:
        """Count one more."""
        self.runs, self.device_s, self.shares = self.runs + 1, self.device_s + device_s, self.shares + fraction


class TrainingTimes:
    """How many device seconds runs take by kind, from the finished ones of a ledger; with `devices`, those of such."""

    def __init__(self, run_index: RunIndex, devices: Devices | None = None) -> None:
        self._timed: dict[Hashable, MeasuredTime] = defaultdict(MeasuredTime)
        for run in run_index.runs.values():
            device_s, fraction = cost_s(run), _share_trained(run)
            if run.result and device_s and fraction and (devices is None or devices.trained(run.result)):
                self._timed[run.spec.recipe_key].add(device_s, fraction)

    def of(self, planned: PlannedRun, fraction: float = 1.0) -> float | None:
        """Return the device seconds of a share of a run's steps; None where none of its kind was timed."""
        timed = self._timed.get(planned.spec.recipe_key)
        return None if timed is None else fraction * timed.device_s / timed.shares

    def total_s(self, planned: Iterable[PlannedRun]) -> float | None:
        """Return the device seconds of some whole runs; None where one is of a kind that was not timed."""
        device_seconds = [self.of(p) for p in planned]
        return None if None in device_seconds else sum(seconds or 0.0 for seconds in device_seconds)

    def runs(self, planned: Iterable[PlannedRun]) -> int:
        """Return how many finished runs were timed that are of the kind of one of these."""
        return sum(self._timed[kind].runs for kind in {p.spec.recipe_key for p in planned})


def _share_trained(run: Run) -> float:
    """Return the share of its steps that a finished run has trained: one that diverged ends early."""
    if run.state is State.DONE:
        return 1.0
    steps = number(run.result.get("steps")) if run.result else None
    return (steps or 0) / run.spec.schedule.last_step


def share_left(run: RunDir) -> float:
    """Return the share of its steps that a run has yet to train, after the last attempt that has saved."""
    saved = _last_saved(run)
    return 1 - saved.progress() if saved else 1.0


def _last_saved(run: RunDir) -> Attempt | None:
    """Return the attempt that a run would go on from."""
    attempts = map(run.attempt, reversed(run.numbers()))
    return next((attempt for attempt in attempts if attempt.has_checkpoint()), None)


TRAINED = (State.DONE, State.DIVERGED)
STOPPED = (State.PRUNED, State.FAILED, State.CANCELLED)
"""States of runs that have had device time, and get no more of it by themselves."""

MIXED = "began in pack_mode exact and may go on fast, rounded otherwise from there on; pack_mode=exact keeps them exact"
"""What is said of interrupted runs before they do; their logs say where they have."""

# --- before and after -----------------------------------------------------------------------------------------------


@dataclass
class CostEstimator:
    """What the runs of a command will cost, as each plan of it is carried out, and what they have cost at its end.

    Attributes:
        profile: that they train by.
        rounds: whether the plan is one round of several.
    """

    profile: AnyProfile
    rounds: bool = False
    clock: Callable[[], float] = time.monotonic
    _left: dict[str, float] = field(default_factory=dict)  # of each run, the share that was to be trained
    _there: tuple[Run, ...] | None = None

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def _cost_s(self, run: Run) -> float:
        """Return the device seconds that a run without a result has had since it was planned."""
        latest = run.dir.latest()
        progress, fraction_before = run.status.progress, 1 - self._left[run.id]
        return latest.spent().device_s * max(0.0, 1 - fraction_before / progress) if latest and progress else 0.0

    def before(self, plan: Plan) -> str:
        """Return a line on the runs of a plan that no earlier one has started; empty where there are none."""
        runs = plan.run_index.runs
        is_first = self._there is None
        if self._there is None:
            self._there = tuple(runs[p.id] for p in plan.keep if p.state.finished)
        new = [p for p in plan.to_launch if p.id not in self._left]
        if not new:
            return ""
        self._left |= {p.id: share_left(runs[p.id].dir) if p.id in runs else 1.0 for p in new}
        head = f"{count(len(new), 'run')} to train"
        if self.rounds:
            head = f"{'this round' if is_first else 'the next'} trains {count(len(new), 'run')}"
        line = ": ".join(filter(None, [head, self._price(new, plan.run_index, tersely=not is_first)]))
        switching = [p for p in new if p.id in runs and self._mixes(runs[p.id].dir)]
        return f"{line}; {len(switching)} of them {MIXED}" if switching else line

    def _mixes(self, run: RunDir) -> bool:
        """Say whether a run was begun exact and may go on in a stack that need not be."""
        saved = _last_saved(run) if self.profile.pack_mode == "fast" else None
        return saved is not None and saved.execution().get("pack_mode") != "fast"

    def _price(self, planned: Sequence[PlannedRun], run_index: RunIndex, *, tersely: bool) -> str:
        """Return the device hours of some runs, their wall time where it is known, and how many were timed."""
        try:
            devices = Devices.of(self.profile)
        except InputError:
            return ""  # it is for another machine
        training_times = TrainingTimes(run_index, devices)
        estimates = {p.id: s for p in planned if (s := training_times.of(p, self._left[p.id])) is not None}
        if not estimates:
            return ""
        text = f"about {device_hours(sum(estimates.values()))}"
        if len(estimates) < len(planned):
            text += f" for {len(estimates)} of them"
        else:
            text += self._wall(list(estimates.values()), devices)
        if tersely:
            return text
        timed = training_times.runs(planned)
        return f"{text} ({count(timed, 'run')} of the kind {'was' if timed == 1 else 'were'} timed)"

    def _wall(self, device_s: Sequence[float], devices: Devices) -> str:
        """Return how long some runs take one beside the other; a scheduler without a bound decides it itself."""
        profile = self.profile
        if isinstance(profile, LocalProfile):
            at_once = min(len(device_s), devices.slots)
            placement = f"on {count(at_once, 'slot')}"
        elif profile.max_parallel:
            jobs = min(profile.max_parallel, -(-len(device_s) // profile.runs_per_job))
            at_once = jobs * profile.runs_at_once
            placement = f"with {count(jobs, 'job')} at a time"
        else:
            return ""
        wall_s = until_free([], [seconds / profile.devices_per_run for seconds in device_s], at_once)
        return f", {format_duration(wall_s)} {placement}"

    def after(self, run_index: RunIndex) -> str:
        """Return a line on what the runs have cost, and on what those saved that were finished before."""
        ended = [run for run_id in self._left if (run := run_index.runs.get(run_id))]
        trained, stopped = ([run for run in ended if run.state in states] for states in (TRAINED, STOPPED))
        sentences = []
        if trained or stopped:
            device_s = sum(self._left[run.id] * cost_s(run) for run in trained) + sum(map(self._cost_s, stopped))
            label = count(len(self._left), "run")
            label = label if len(trained) == len(self._left) else f"{len(trained)} of {label}"
            states = count_states(run.state for run in stopped)
            label = ", ".join([f"{label} trained", *(f"{number} {state}" for state, number in states.items())])
            label += _packed(trained)
            sentences.append(f"{label}: {device_hours(device_s)} in {format_duration(self.clock() - self._began_s)}")
        if self._there and not self.rounds:  # of a round, its candidate's are there, which saves nothing
            kept_runs = f"{count(len(self._there), 'run')} {'was' if len(self._there) == 1 else 'were'} there already"
            sentences.append(f"{kept_runs}: {device_hours(sum(map(cost_s, self._there)))} saved")
        return "; ".join(sentences)


def _packed(trained: Iterable[Run]) -> str:
    """Return how many of finished runs were trained together with others, and with how many; "" for none."""
    executions = [run.result.get("execution") or {} for run in trained if run.result]
    packs = [size for execution in executions if (size := execution.get("pack") or 1) > 1]
    fast = ", fast" if any(execution.get("pack_mode") == "fast" for execution in executions) else ""
    return f", {len(packs)} of them in packs of up to {max(packs)}{fast}" if packs else ""


# --- saved ----------------------------------------------------------------------------------------------------------


def cost_so_far(runs: Iterable[Run], searches: Searches) -> str:
    """Return a line on what finished runs have cost, and on what those saved that several sweeps ask for.

    They would have been trained once for each. `searches` are those of all sweeps, by family.
    """
    trained = [run for run in runs if run.result or run.state is State.PRUNED]
    finished = [run for run in trained if run.result]
    pruned = f", {len(trained) - len(finished)} pruned" if len(trained) > len(finished) else ""
    line = f"{count(len(finished), 'finished run')}{pruned}: {device_hours(sum(map(cost_s, trained)))}"
    shared = [(run, sweeps) for run in finished if (sweeps := asking(run, searches)) > 1]
    if shared:
        saved_s = sum((sweeps - 1) * cost_s(run) for run, sweeps in shared)
        line += f"; {len(shared)} of them for several sweeps: {device_hours(saved_s)} saved"
    return line


def asking(run: Run, searches: Searches) -> int:
    """Return how many sweeps ask for a run."""
    return len({s.sweep for s in searches.get(run.family, ()) if s.asks(run.point, run.spec.seed)})


def saved_by_racing(counted: Mapping[Point, int], compared: Iterable[Point]) -> int:
    """Return how many more runs a family would have taken with one number of seeds for all of its points.

    That number is the most that a compared point got; where other points got more, the answer may be negative.

    Args:
        counted: number of runs that count, by point.
        compared: the candidate and its neighbours.
    """
    seeds = max((counted.get(point, 0) for point in compared), default=0)
    return seeds * len(counted) - sum(counted.values())
