"""Progress of runs: a status that any process can take, and its display in the terminal."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import Row, filled, format_cell, format_count, styled, table_lines
from ettsweep.launch.liveness import NO_ANSWER, SchedulerLiveness
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import VacantSlot
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.index import RunReader, count_states
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.runs.timing import RunTimes
from ettsweep.study.sweep_store import StudiesByFamily, run_cells, run_strategy, run_sweeps_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

POLL_S = 0.4
"""Seconds between polls at least."""
POLL_REST_FACTOR = 5
"""After a poll, wait at least this many times as long as it took, to spare a slow file system."""

RELAUNCH_S = 20.0
"""Seconds that a run without a job or worker waits, while others train, until ettsweep submits it again."""

MAX_ROWS = 16
"""Most runs in the table."""

LINE_EVERY_S = 10.0
"""Seconds between progress lines if the output is not a terminal."""


@dataclass(frozen=True)
class SweepStatus:
    """Status of runs at one instant.

    Attributes:
        statuses: by run id; finished runs may only be counted.
        remaining_s: estimated seconds until all are finished; None without running or timed runs.
        slurm_error: why SLURM does not answer; empty if it does or has no part.
        vacant_slots: slots of this machine whose workers died while runs wait for them.
        is_undecided: whether a watched heart will decide who has a run.
        finished: number of finished runs that `statuses` leaves out, by state.
    """

    statuses: dict[str, Status]
    remaining_s: float | None
    slurm_error: str = ""
    vacant_slots: Sequence[VacantSlot] = ()
    is_undecided: bool = False
    finished: Mapping[State, int] = field(default_factory=dict)

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return len(self.statuses) + sum(self.finished.values())

    @property
    def is_over(self) -> bool:
        """`True` if certainly no run is queued or running."""
        # While SLURM is silent or hearts are being watched, an unknown run may be training.
        is_open = self.slurm_error or self.is_undecided
        active_states = (State.QUEUED, State.RUNNING, *([State.UNKNOWN] if is_open else []))
        return not any(s.state in active_states for s in self.statuses.values())

    @property
    def needs_worker(self) -> bool:
        """`True` if a run waits for a worker, and none will come."""
        return any(s.state in (State.INTERRUPTED, State.MISSING) for s in self.statuses.values())

    @property
    def finished_count(self) -> int:
        """Number of finished runs."""
        return sum(s.state.finished for s in self.statuses.values()) + sum(self.finished.values())

    @property
    def unfinished_count(self) -> int:
        """Number of runs that are not finished."""
        return sum(not s.state.finished for s in self.statuses.values())

    @property
    def wait_reason(self) -> str:
        """Why no run trains; empty if one does, or none is queued."""
        states = [s.state for s in self.statuses.values()]
        if State.RUNNING in states:
            return ""
        waiting = [s for s in self.statuses.values() if s.state in (State.QUEUED, State.HELD)]
        reasons = list(dict.fromkeys(s.reason for s in waiting if s.reason))
        return " ".join([*reasons[:1], *([f"(and {len(reasons) - 1} more reasons)"] if len(reasons) > 1 else [])])

    @property
    def stop_reason(self) -> str:
        """Why runs do not start, without a cancellation; empty if all do."""
        return next((s.reason for s in self.statuses.values() if s.is_stopped), "")

    @property
    def idle_slots(self) -> str:
        """Text on slots whose workers died; empty without any."""
        slots = ", ".join(v.slot for v in self.vacant_slots if v.died)
        return f"no worker in {slots}: it died" if slots else ""

    def state_counts(self) -> list[str]:
        """Return the number of runs in each state that occurs, in words."""
        states = chain((s.state for s in self.statuses.values()), Counter(self.finished).elements())
        return [f"{number} {state}" for state, number in count_states(states).items()]

    def summary(self) -> str:
        """Return a line with the number of finished runs, the states, and the remaining time."""
        states = ", ".join(self.state_counts())
        left = f"; about {format_duration(self.remaining_s)} left" if self.remaining_s else ""
        wait_reasons = "".join(
            f"; {reason}" for reason in (self.wait_reason, self.idle_slots, self.stop_reason) if reason
        )
        slurm_note = f"; {NO_ANSWER}: {self.slurm_error}" if self.slurm_error else ""
        finished = f"{self.finished_count}/{format_count(self.run_count, 'run')} finished ({states})"
        return f"{finished}{left}{wait_reasons}{slurm_note}"


def format_duration(seconds: float) -> str:
    """Format seconds: 75 as `1 min 15 s`."""
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60} s"
    return f"{whole_s // 3600} h {whole_s % 3600 // 60} min"


class ProgressMonitor:
    """Polls the status of runs; reads the result of a finished run only once.

    Args:
        results: the results folder.
        specs: specs of the runs to watch.
        studies_by_family: studies by family, which name the sweeps of each run.
        reader: reads the runs; by default one of its own.
    """

    def __init__(
        self,
        results: Path,
        specs: Sequence[RunSpec] = (),
        studies_by_family: StudiesByFamily | None = None,
        reader: RunReader | None = None,
    ) -> None:
        self._results = results
        self.studies = studies_by_family or StudiesByFamily(())
        self.has_several_sweeps = len({study.sweep for study in self.studies.studies}) > 1
        self._reader = reader or RunReader(results)
        self._finished: dict[str, Status] = {}
        self.slurm_cache = SlurmCache()
        self._times = RunTimes()
        self.watch(specs)

    def watch(self, specs: Sequence[RunSpec]) -> None:
        """Watch these runs from now on."""
        self.specs = {spec.run_id: spec for spec in specs}

    def poll(self) -> SweepStatus:
        """Return the present status."""
        liveness = SchedulerLiveness(self._results, self.slurm_cache)
        statuses = {}
        for run_id in self.specs:
            # Polls of large sweeps are cheap: they do not look at finished runs.
            status = self._finished.get(run_id)
            if status is None:
                run = self._reader.read_run(run_id, liveness)
                status = run.status if run else RunDir(runs_dir(self._results) / run_id).status(liveness)
                if run and status.state.finished:
                    self._finished[run_id] = status
                    self._times.add(run)
            statuses[run_id] = status
        self._reader.keep()
        unfinished = statuses.keys() - self._finished.keys()
        remaining_s = None
        # Without SLURM the number of workers is unknown, and so is the remaining time.
        if unfinished and not liveness.slurm_error:
            remaining_s = self._times.remaining_s(self.specs, statuses, liveness.count_active_workers(unfinished))
        queued = [run_id for run_id, s in statuses.items() if s.state is State.QUEUED]
        unknown = [run_id for run_id, s in statuses.items() if s.state is State.UNKNOWN]
        is_undecided = bool(unknown and liveness.undecided_hearts(unknown))
        return SweepStatus(statuses, remaining_s, liveness.slurm_error, liveness.vacant_slots(queued), is_undecided)

    def sweep_names(self, spec: RunSpec) -> str:
        """Return the names of the sweeps that contain a run."""
        return run_sweeps_text(self.studies, spec)


def _progress_row(monitor: ProgressMonitor, sweep_status: SweepStatus, run_id: str) -> Row:
    spec, status = monitor.specs[run_id], sweep_status.statuses[run_id]
    is_timed = status.remaining_s is not None and status.state is State.RUNNING
    reason = status.reason if status.reason != sweep_status.wait_reason else ""  # which stands below the table
    return {
        "run": run_id,
        "sweep": monitor.sweep_names(spec) if monitor.has_several_sweeps else "",
        "model": spec.info.labels.model,
        "strategy": run_strategy(monitor.studies, spec),
        **run_cells(monitor.studies, spec),
        "seed": spec.seed,
        "state": status.state.value,
        "step": spec.info.progress_text(status.progress),
        "left": format_duration(status.remaining_s) if is_timed and status.remaining_s is not None else "",
        "where": " ".join(filter(None, [status.host, status.job, reason])),
    }


def render_progress(monitor: ProgressMonitor, sweep_status: SweepStatus, title: str, width: int) -> "RenderableType":
    """Return the display of `--follow` at a terminal: a progress bar with the remaining time, and a table of runs."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    statuses = sweep_status.statuses
    header = Table.grid(padding=(0, 1))
    progress = sum(s.progress for s in statuses.values())
    left = f"about {format_duration(sweep_status.remaining_s)} left" if sweep_status.remaining_s else ""
    progress_bar = ProgressBar(total=max(1, len(statuses)), completed=progress, width=40)
    header.add_row(
        Text(format_cell(title), style="bold"),
        progress_bar,
        f"{sweep_status.finished_count}/{format_count(len(statuses), 'run')}",
        Text(left, style="cyan"),
    )
    row_ids = [run_id for run_id, s in statuses.items() if s.state is State.RUNNING]
    row_ids += [run_id for run_id, s in statuses.items() if s.state in (State.FAILED, State.HELD, State.UNKNOWN)]
    if len(row_ids) < MAX_ROWS:  # room for the reasons of waiting runs
        # One row per reason, for the first run that has it: `reversed` lets the first win.
        queued = {s.reason: run_id for run_id, s in reversed(statuses.items()) if s.state is State.QUEUED and s.reason}
        row_ids += reversed(queued.values())
    rows = [_progress_row(monitor, sweep_status, run_id) for run_id in row_ids[:MAX_ROWS]]
    several_models = len({spec.info.labels.model for spec in monitor.specs.values()}) > 1
    names = [name for name in (rows[0] if rows else ()) if name != "model" or several_models]
    table = styled(table_lines(rows, filled(rows, names), width))
    footer = Text("  ".join(sweep_status.state_counts()), style="dim")
    for reason in filter(None, (sweep_status.wait_reason, sweep_status.idle_slots, sweep_status.stop_reason)):
        footer.append(f"  {format_cell(reason)}", style="yellow")
    if sweep_status.slurm_error:
        footer.append(f"  {NO_ANSWER}: {format_cell(sweep_status.slurm_error)}", style="magenta")
    return Group(header, table, footer) if rows else Group(header, footer)


def follow_progress(
    monitor: ProgressMonitor,
    title: str,
    console: "Console",
    relaunch: bool = True,
    on_poll: Callable[[SweepStatus], None] = lambda sweep_status: None,
) -> SweepStatus:
    """Show the progress of runs until none is queued or running: live on a terminal, else as lines.

    Args:
        monitor: polls the runs.
        title: shown before the progress.
        console: for the display.
        relaunch: return early if a run has waited for a worker for `RELAUNCH_S`, to submit it again.
        on_poll: called with each status; may stop runs or start workers.

    Returns:
        The last status.
    """
    from rich.live import Live

    printed_s, printed, busy_s = 0.0, "", time.monotonic()
    # Refresh after polls only: rich's thread would redraw the same numbers.
    screen = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    with screen or contextlib.nullcontext():
        while True:
            began_s = time.monotonic()
            sweep_status = monitor.poll()
            poll_s = time.monotonic() - began_s
            if screen:
                screen.update(render_progress(monitor, sweep_status, title, console.width), refresh=True)
            elif sweep_status.is_over or time.monotonic() - printed_s >= LINE_EVERY_S:
                if (line := format_cell(f"{title}: {sweep_status.summary()}")) != printed:
                    console.out(line, highlight=False)
                printed_s, printed = time.monotonic(), line
            if sweep_status.is_over:
                return sweep_status
            on_poll(sweep_status)
            if not sweep_status.needs_worker:
                busy_s = time.monotonic()
            # Not at once: another worker may still claim the waiting run.
            elif relaunch and time.monotonic() - busy_s >= RELAUNCH_S:
                return sweep_status
            time.sleep(max(POLL_S, POLL_REST_FACTOR * poll_s))
