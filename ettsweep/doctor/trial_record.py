"""What happened in a trial: its runs as they ended, what they wrote, what could not be tried."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ettsweep.files import Json
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status

# fmt: off
OF_THE_MACHINE = {
    "time", "times", "timestamp", "elapsed", "eta", "runtime", "duration", "dt", "latency", "clock", "wallclock",
    "walltime", "s", "sec", "secs", "second", "seconds", "ms", "hours", "speed", "throughput", "fps", "tps", "mfu",
    "flops", "tflops", "util", "mem", "memory",
}
# fmt: on
"""Words in names of metrics that differ from run to run, whatever is trained: `samplesPerSecond`, `step_time`."""


@dataclass(frozen=True)
class TrialRun:
    """A run of a trial, as it ended.

    Attributes:
        spec: the run.
        status: its state, with the reason.
        history: its metrics.
        end: how the program of its last attempt ended, see `Attempt.end`.
        output: the last lines that it printed.
        wall_s, device_s: seconds that it took.
        memory_bytes: peak of its largest process; 0 if unknown.
        disk_bytes: size of its folder.
        gpu_bytes: peak of what its processes had on GPUs, as far as it was looked at; 0 if unknown.
    """

    spec: RunSpec
    status: Status
    history: Sequence[Json]
    end: Json
    output: Sequence[str]
    wall_s: float
    device_s: float
    memory_bytes: int
    disk_bytes: int
    gpu_bytes: int = 0

    @property
    def curve(self) -> dict[int, float | None]:
        """The score at each step at which it was recorded."""
        return self.curve_of(self.spec.metric.column)

    def curve_of(self, name: str) -> dict[int, float | None]:
        """Return a metric at each step at which it was recorded."""
        return {line["step"]: line[name] for line in self.history if name in line}

    @property
    def other_metrics(self) -> list[str]:
        """The names of what was recorded besides the score, but for times, speeds and memory."""
        names = {name for line in self.history for name in line} - {"step", self.spec.metric.column}
        return sorted(name for name in names if OF_THE_MACHINE.isdisjoint(_words(name)))

    @property
    def is_done(self) -> bool:
        return self.status.state is State.DONE


def _words(name: str) -> list[str]:
    """Return the words of a name, in small letters: of `eval/step_time_s` and of `evalStepTimeS`, four.

    What `TFLOPs` is in one is a word, too.
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return re.findall(r"[^\W\d_]+", f"{name} {apart}".lower())


@dataclass(frozen=True)
class Resumed:
    """A run that was killed and taken up again.

    Attributes:
        run: as it ended.
        from_step: step of the checkpoint that it went on from; 0 for the start.
        first_step: first step that it recorded then; None if none.
    """

    run: TrialRun
    from_step: int
    first_step: int | None


@dataclass(frozen=True)
class Stopped:
    """A run that was told to stop.

    Attributes:
        run: as it ended.
        stop_s: seconds that it took to leave.
        was_killed: whether its grace was over before.
        has_saved: whether it left a checkpoint that was not there before; None if it has none at all.
    """

    run: TrialRun
    stop_s: float
    was_killed: bool
    has_saved: bool | None


@dataclass(frozen=True)
class Written:
    """Files that were written outside of the folder of a run, {out}, while it trained.

    Attributes:
        by_runs: in a copy of the project, as paths in the project: nobody but runs of the trial knows the copy.
        by_any: elsewhere, be it by a run or by another process of this user.
    """

    by_runs: frozenset[str] = frozenset()
    by_any: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        return self.by_runs | self.by_any


@dataclass(frozen=True)
class Imported:
    """Files that the Python programs of a run imported, of which edits go unnoticed; installed packages aside.

    Attributes:
        unknown: of the project, that are not part of the code of its id; relative to the grid file, as in `code:`.
        uncopied: of the project itself, relative to it, though the run trains in a copy of it.
        elsewhere: of no project.
    """

    unknown: Sequence[str] = ()
    uncopied: Sequence[str] = ()
    elsewhere: Sequence[str] = ()


@dataclass
class Record:
    """What happened in a trial; what is None was not tried, or `problems` says why not.

    Attributes:
        base: the run at the centre, shortened for the trial.
        whole: the same as the sweep asks for it.
        alone: the first run.
        again, other: of the same seed, and of another one, at once.
        resumed: killed and taken up again.
        stopped: told to stop.
        written: files written outside of the runs' folders: during the first run, and during the two at once.
        imported: what the first run imported.
        still_there: names of processes of runs that are still there after all.
        problems: why something could not be tried, by the name of the field.
    """

    base: RunSpec
    whole: RunSpec
    alone: TrialRun | None = None
    again: TrialRun | None = None
    other: TrialRun | None = None
    resumed: Resumed | None = None
    stopped: Stopped | None = None
    written: tuple[Written, Written] = (Written(), Written())
    imported: Imported = Imported()
    still_there: Sequence[str] = ()
    problems: dict[str, str] = field(default_factory=dict)
