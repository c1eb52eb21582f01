"""How far runs are: a snapshot that any process can take, and its picture in the terminal."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import STYLES, cell, count
from ettsweep.launch.liveness import NO_ANSWER, SchedulerLiveness
from ettsweep.launch.running_packs import pack_of, pack_sizes, told_states
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import VacantSlot
from ettsweep.launch.time_left import TimeLeftEstimator
from ettsweep.powers import power
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.sweep_store import Searches, held_by
from ettsweep.trainer.models.registry import model_name

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

POLL_S = 0.4
LOOK_SHARE = 5
"""A look at many runs on a slow file system is followed by a rest of this many times as long as it took."""

RELAUNCH_S = 20.0
"""Seconds that a run whose job is gone waits, while others train, before it gets another one."""

SHOWN = 16
"""Runs that the picture has room for."""

LINE_EVERY_S = 10.0
"""Seconds between lines where the output is no terminal."""


@dataclass(frozen=True)
class SweepStatus:
    """States of some runs at one instant.

    Attributes:
        statuses: by run id.
        remaining_s: estimated seconds until all are finished; None while nothing runs, or before there is a rate.
        silence: why SLURM does not answer; empty if it does, or is not needed.
        vacancies: slots of this machine whose workers are gone, while runs wait for them.
    """

    statuses: dict[str, Status]
    remaining_s: float | None
    slurm_error: str = ""
    vacancies: Sequence[VacantSlot] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing is queued or running any more, and that is certain."""
        moving = (State.QUEUED, State.RUNNING, *([State.UNKNOWN] if self.slurm_error else []))
        return not any(s.state in moving for s in self.statuses.values())

    @property
    def idle(self) -> bool:
        """Whether a run waits for a worker that nobody will send."""
        return any(s.state in (State.INTERRUPTED, State.MISSING) for s in self.statuses.values())

    @property
    def done(self) -> int:
        """Number of finished runs."""
        return sum(s.state.finished for s in self.statuses.values())

    @property
    def left(self) -> int:
        """Number of runs that are neither finished nor pruned."""
        return sum(not (s.state.finished or s.state is State.PRUNED) for s in self.statuses.values())

    @property
    def waits(self) -> str:
        """Why nothing is in training; empty where something is, or nothing is to be."""
        states = [s.state for s in self.statuses.values()]
        if State.RUNNING in states:
            return ""
        waiting = [s for s in self.statuses.values() if s.state in (State.QUEUED, State.HELD)]
        told = list(dict.fromkeys(s.reason for s in waiting if s.reason))
        return " ".join([*told[:1], *([f"(and {len(told) - 1} more reasons)"] if len(told) > 1 else [])])

    @property
    def idles(self) -> str:
        """Which slots idle, since their workers died; empty where none does."""
        slots = ", ".join(v.slot for v in self.vacancies if v.died)
        return f"no worker in {slots}: it died" if slots else ""

    def summary(self) -> str:
        """Return one line: how many of all are finished, the states, and how long still."""
        states = ", ".join(told_states(self.statuses))
        left = f"; about {format_duration(self.remaining_s)} left" if self.remaining_s else ""
        waits = "".join(f"; {why}" for why in (self.waits, self.idles) if why)
        silence = f"; {NO_ANSWER}: {self.slurm_error}" if self.slurm_error else ""
        return f"{self.done}/{count(len(self.statuses), 'run')} finished ({states}){left}{waits}{silence}"


def format_duration(seconds: float) -> str:
    """Return 75 s as `1 min 15 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class ProgressMonitor:
    """Looks at the same runs again and again; finished ones are read once. `searches`, by family, name their sweeps."""

    def __init__(self, results: Path, specs: Sequence[RunSpec] = (), searches: Searches | None = None) -> None:
        self._results = results
        self._searches = searches or {}
        self.several = len({study.sweep for found in self._searches.values() for study in found}) > 1
        self._finished: dict[str, Status] = {}
        self._slurm_cache = SlurmCache()
        self._pace = TimeLeftEstimator()
        self.watch(specs)

    def watch(self, specs: Sequence[RunSpec]) -> None:
        """Look at these runs from now on."""
        self.specs = {spec.run_id: spec for spec in specs}

    def look(self) -> SweepStatus:
        """Take a snapshot."""
        liveness = SchedulerLiveness(self._results, self._slurm_cache)
        statuses = {}
        for run_id in self.specs:
            run = RunDir(runs_dir(self._results) / run_id)
            status = self._finished.get(run_id) or run.status(liveness)
            if status.state.finished and run_id not in self._finished:
                self._finished[run_id] = status
                self._pace.learn(self.specs[run_id], run.result() or {})
            statuses[run_id] = status
        unfinished = statuses.keys() - self._finished.keys()
        remaining_s = None
        if unfinished and not liveness.slurm_error:
            remaining_s = self._pace.left_s(self.specs, statuses, liveness.at_once(unfinished))
        queued = [run_id for run_id, s in statuses.items() if s.state is State.QUEUED]
        return SweepStatus(statuses, remaining_s, liveness.slurm_error, liveness.vacancies(queued))

    def sweeps(self, spec: RunSpec) -> str:
        """Return the names of the sweeps that a run belongs to."""
        return held_by(self._searches, spec.family_id, spec)


def picture(monitor: ProgressMonitor, sweep_status: SweepStatus, title: str) -> "RenderableType":
    """Return what `--follow` and `watch` show: a bar with the time left, and the runs in training."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    statuses = sweep_status.statuses
    head = Table.grid(padding=(0, 1))
    progress = sum(s.progress for s in statuses.values())
    left = f"about {format_duration(sweep_status.remaining_s)} left" if sweep_status.remaining_s else ""
    bar = ProgressBar(total=max(1, len(statuses)), completed=progress, width=40)
    head.add_row(
        Text(cell(title), style="bold"),
        bar,
        f"{sweep_status.done}/{count(len(statuses), 'run')}",
        Text(left, style="cyan"),
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    named = ["sweep"] if monitor.several else []
    models = len({model_name(spec.model) for spec in monitor.specs.values()}) > 1
    named += ["model"] if models else []
    sizes = pack_sizes(statuses)
    packs = {run: pack_of(statuses[run], size) for run, size in sizes.items()}
    packed = ["pack"] if any(packs.values()) else []
    for column in ("run", *named, "strategy", "lr", "wd", "seed", "state", "step", "left", *packed, "where"):
        table.add_column(column, justify="right" if column in ("lr", "wd", "seed", "step", "left") else "left")
    shown = [run_id for run_id, s in statuses.items() if s.state is State.RUNNING]
    shown += [run_id for run_id, s in statuses.items() if s.state in (State.FAILED, State.HELD, State.UNKNOWN)]
    if len(shown) < SHOWN:  # then there is room to say what the next ones wait for
        queued = {s.reason: run_id for run_id, s in reversed(statuses.items()) if s.state is State.QUEUED and s.reason}
        shown += reversed(queued.values())
    for run_id in shown[:SHOWN]:
        spec, status = monitor.specs[run_id], statuses[run_id]
        last = spec.schedule.last_step
        state = Text(status.state, style=STYLES.get(status.state, "dim"))
        point = (power(spec.lr), power(spec.wd), str(spec.seed))
        step = f"{round(status.progress * last)}/{last}"
        left = format_duration(status.left_s) if status.left_s is not None and status.state is State.RUNNING else ""
        place = " ".join(filter(None, [status.where, status.job, status.reason]))
        told = [monitor.sweeps(spec)] if monitor.several else []
        told += [model_name(spec.model)] if models else []
        told = [run_id, *told, strategy_name(spec.strategy.s)]
        below = status.reason == sweep_status.waits  # then it need not be told in full
        where = Text(cell(place), overflow="ellipsis", no_wrap=below)
        pack = [Text(cell(packs.get(run_id, "")))] if packed else []
        table.add_row(*map(Text, map(cell, told)), *point, state, step, left, *pack, where)
    foot = Text("  ".join(told_states(statuses)), style="dim")
    for why in filter(None, (sweep_status.waits, sweep_status.idles)):
        foot.append(f"  {cell(why)}", style="yellow")
    if sweep_status.slurm_error:
        foot.append(f"  {NO_ANSWER}: {cell(sweep_status.slurm_error)}", style="magenta")
    return Group(head, table, foot) if shown else Group(head, foot)


def follow(
    monitor: ProgressMonitor,
    title: str,
    console: "Console",
    relaunch: bool = True,
    heed: Callable[[SweepStatus], None] = lambda sweep_status: None,
) -> SweepStatus:
    """Show the runs until none is queued or running; the terminal gets a live picture, a file a line now and then.

    With `relaunch`, return earlier where a run has waited for a worker for some time, so that it can have one. `heed`
    takes each snapshot, and may do something about its runs.
    """
    from rich.live import Live

    printed_s, busy_s = 0.0, time.monotonic()
    screen = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    with screen or contextlib.nullcontext():
        while True:
            began_s = time.monotonic()
            sweep_status = monitor.look()
            looked_s = time.monotonic() - began_s
            if screen:
                screen.update(picture(monitor, sweep_status, title), refresh=True)
            elif sweep_status.settled or time.monotonic() - printed_s >= LINE_EVERY_S:
                console.out(cell(f"{title}: {sweep_status.summary()}"), highlight=False)
                printed_s = time.monotonic()
            if sweep_status.settled:
                return sweep_status
            heed(sweep_status)
            if not sweep_status.idle:
                busy_s = time.monotonic()
            elif relaunch and time.monotonic() - busy_s >= RELAUNCH_S:
                return sweep_status
            time.sleep(max(POLL_S, LOOK_SHARE * looked_s))
