"""Polls a results folder. Finished runs are read once, and only families with new results are judged again."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.console import cell, count
from ettsweep.errors import CorruptError, EttsweepError, InputError
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.progress import SweepStatus
from ettsweep.launch.running_packs import pack_of, pack_sizes
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.time_left import TimeLeftEstimator
from ettsweep.runs.folder import RunDir, is_run_id, runs_dir, sweeps_dir
from ettsweep.runs.state import State
from ettsweep.study.run_index import Run, RunIndex
from ettsweep.study.study import Study, titles
from ettsweep.study.sweep_store import SweepStore, held_by, holders, load_sweep_store
from ettsweep.study.verdict import Verdict
from ettsweep.study.verification import evaluate
from ettsweep.watch.events import Event, events_of_run, events_of_verdict, short_id
from ettsweep.watch.lattice_cells import LatticeCells, build_lattice
from ettsweep.watch.run_progress import loss_of, speed_of
from ettsweep.watch.throttle import Stopwatch, Throttle
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

EVENTS = 200
"""Number of events that are kept."""

LISTED = 200
"""Number of unfinished runs that are listed; those in training come first."""

ORDER = (State.RUNNING, State.FAILED, State.HELD, State.UNKNOWN, State.INTERRUPTED, State.QUEUED)
"""Order of the states in the list of unfinished runs; all other states come last."""

Chosen = tuple[Sequence[Run], Sequence[Study]]
Choose = Callable[[RunIndex, SweepStore], Chosen]
"""Returns the runs and studies that the user has selected."""

Tell = Callable[[str], None]


@dataclass
class WatchedFamily:
    """The cached lattice and verdict of a family.

    Attributes:
        lattice_version: Number of state changes of its runs at which the lattice was built; -1 before.
        verdict_version: Number of outcomes of its runs at which the verdict was given; -1 before.
    """

    study: Study
    title: str
    seen: int = -1
    judged: int = -1
    states: Counter[State] = field(default_factory=Counter)
    lattice: LatticeCells | None = None
    verdict: Verdict | None = None
    rest: Throttle = field(default_factory=Throttle)


class Watcher:
    """Keeps the runs, studies, verdicts and events of a results folder up to date from poll to poll.

    Besides the folder it takes a function that selects the runs and studies to show, and a clock that returns the time
    of day as text, for events.
    """

    def __init__(self, results: Path, choose: Choose, clock: Callable[[], str]) -> None:
        self._results, self._choose, self._clock = results, choose, clock
        self._runs: dict[str, Run] = {}
        self._broken: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._sweep_store, self._files = SweepStore(results, {}, {}), list[str]()
        self._chosen: dict[str, Run] = {}
        self._families: dict[tuple[str, str], WatchedFamily] = {}
        self._holders: dict[str, str] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS)
        # The cache remembers SLURM's answers from poll to poll, so that the controller is asked rarely.
        self._slurm_cache, self._pace, self._others_rest = SlurmCache(), TimeLeftEstimator(), Throttle()
        self._choice_rest, self._unchosen = Throttle(), True
        self._begun, self._grouped, self._shown = False, dict[str, list[str]](), set[str]()
        self._changes: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()

    # --- polls ------------------------------------------------------------------------------------------------------

    def look(self, on_progress: Tell = lambda message: None) -> ViewModel:
        """Read what may have changed, and return a view; `on_progress` receives a line now and then if this takes long.

        Raises:
            InputError: At the first poll, nothing matches the selection.
            OSError: The folder cannot be read.
        """
        sweeps_changed = self._read_sweeps()
        liveness = SchedulerLiveness(self._results, self._slurm_cache)
        self._unchosen |= self._read_runs(liveness, on_progress) | sweeps_changed
        if self._unchosen and (self._choice_rest.over or not self._begun):
            stopwatch = Stopwatch()
            self._read_choice()
            self._unchosen = False
            self._choice_rest.begin(*stopwatch.read())
        self._begun = True
        for family in self._families.values():
            self._see(family)
        return self._sight(liveness)

    def judge(self) -> bool:
        """Judge one family that has new results; return `False` if there is none.

        A family is judged again only after a pause in proportion to the time that judging it took.
        """
        for family in self._families.values():
            # A first verdict waits for no throttle: the screen would show none for long.
            if self._stale(family) and (family.rest.over or family.verdict is None):
                stopwatch, before = Stopwatch(), family.verdict
                family.verdict = evaluate(family.study, self._members(family)).verdict()
                family.judged, family.seen = self._outcomes[family.study.family], -1  # -1: draw the new marks
                family.rest.begin(*stopwatch.read())
                self._events += events_of_verdict(family.title, before, family.verdict, self._clock())
                self._see(family)
                return True
        return False

    def runs_of(self, sweep: str) -> list[Run]:
        """Return the selected runs that belong to a sweep."""
        searches = self._sweep_store.searches
        # The application's thread calls this while the poller's thread may change the dict: iterate over a copy.
        return [run for run in list(self._chosen.values()) if sweep in holders(searches, run.family, run.spec)]

    def sight(self) -> ViewModel:
        """Return the view without reading anything."""
        return self._sight(None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_sweeps(self) -> bool:
        """Read the sweeps if the list of their files has changed; return whether it has."""
        # A change to a sweep is a new numbered file: the names alone tell whether to read.
        files = sorted(map(str, sweeps_dir(self._results).glob("*/[0-9]*.yaml")))
        if self._begun and files == self._files:
            return False
        self._files, self._sweep_store = files, load_sweep_store(self._results)
        return True

    def _read_runs(self, liveness: SchedulerLiveness, on_progress: Tell) -> bool:
        """Read new runs and those that may have changed; return `True` if runs were added or removed."""
        names = set(os.listdir(runs_dir(self._results))) if self._there() else set()
        # `clean`, or the user, may remove run folders.
        removed = (self._runs.keys() | self._broken.keys()) - names
        for name in removed:
            self._runs.pop(name, None)
            self._broken.pop(name, None)
        new = sorted(filter(is_run_id, names - self._runs.keys() - self._broken.keys()))
        unfinished = [run for run in self._runs.values() if not run.state.finished]
        running = [run for run in unfinished if run.state is State.RUNNING]
        # Runs in training are read at each poll, waiting ones only when their throttle allows: there may be thousands.
        if self._others_rest.over:
            stopwatch, waiting = Stopwatch(), [run for run in unfinished if run.state is not State.RUNNING]
            new += sorted(self._broken)  # the user may have repaired one
            for run in waiting:
                self._look_at(run, liveness)
            self._others_rest.begin(*stopwatch.read())
        for run in running:
            self._look_at(run, liveness)
        before = len(self._runs)
        timed_events: list[tuple[float, list[Event]]] = []
        for k, name in enumerate(new):
            # Progress is worth a line only if reading takes noticeable time.
            if k % 100 == 0 and len(new) > 100:
                on_progress(f"reading runs: {k:,} of {len(new):,}")
            timed_events += self._read_new(name, liveness)
        # By the time at which runs ended, so that the newest events come last.
        timed_events.sort(key=lambda timed_event: timed_event[0])
        self._events += [event for _, events in timed_events[-EVENTS:] for event in events]
        return bool(removed) or len(self._runs) != before

    def _there(self) -> bool:
        # Once runs were seen, a missing folder is an error that os.listdir raises, not an empty list of runs.
        return bool(self._runs) or runs_dir(self._results).is_dir()

    def _read_new(self, name: str, liveness: SchedulerLiveness) -> list[tuple[float, list[Event]]]:
        """Read a run folder for the first time; return its events, with the time at which the run ended."""
        folder = RunDir(runs_dir(self._results) / name)
        try:
            run = Run(folder, folder.spec(), *folder.look(liveness))
        except (CorruptError, OSError) as error:
            self._broken[name] = str(error)
            return []
        self._broken.pop(name, None)
        self._keep(run)
        events = events_of_run(None, run, at=self._clock() if self._begun else "")
        return [(_ended_s(folder), events)] if events else []

    def _look_at(self, run: Run, liveness: SchedulerLiveness) -> None:
        """Read a run again and record its events."""
        try:
            updated = Run(run.dir, run.spec, *run.dir.look(liveness))
        except (EttsweepError, OSError) as error:
            self._broken[run.id] = str(error)
            return
        attempt_before = self._attempts.get(run.id, 0)
        self._keep(updated)
        self._events += events_of_run(run, updated, (attempt_before, self._attempts.get(run.id, 0)), self._clock())

    def _keep(self, run: Run) -> None:
        previous = self._runs.get(run.id)
        states = {previous.state, run.state} if previous else {run.state}
        if previous is None or len(states) > 1:
            self._changes[run.family] += 1
            # A run that goes from queued to running changes the lattice, but no verdict.
            self._outcomes[run.family] += not states <= WAITING
        self._runs[run.id] = run
        if run.id in self._chosen:
            self._chosen[run.id] = run
        if run.result:
            # Finished runs teach how fast runs like them train.
            self._pace.learn(run.spec, run.result)
        elif numbers := run.dir.numbers():
            self._attempts[run.id] = numbers[-1]

    # --- selection --------------------------------------------------------------------------------------------------

    def _read_choice(self) -> None:
        """Select runs and studies again, and keep the verdicts of studies that were selected before."""
        try:
            runs, studies = self._choose(RunIndex(self._runs, self._broken), self._sweep_store)
        except InputError:
            if not self._begun:
                raise
            self._chosen = {run: self._runs[run] for run in self._chosen if run in self._runs}
            return  # the selected sweeps were renamed, archived or removed: keep showing their runs
        self._chosen = {run.id: run for run in runs}
        self._shown = {short_id(run) for run in runs}
        self._grouped = {}
        for run in runs:
            self._grouped.setdefault(run.family, []).append(run.id)
        names, previous = titles(studies), self._families
        self._families = {}
        for study in studies:
            previous_family = previous.get(study.key)
            family = WatchedFamily(study, names[study.key])
            if previous_family:
                family.verdict, family.rest = previous_family.verdict, previous_family.rest
                # An extended study has other neighbours or seeds: its verdict is out of date.
                family.judged = previous_family.judged if previous_family.study == study else -1
            self._families[study.key] = family
        self._holders = {}

    # --- families ---------------------------------------------------------------------------------------------------

    def _members(self, family: WatchedFamily) -> list[Run]:
        return [self._runs[run] for run in self._grouped.get(family.study.family, ()) if run in self._runs]

    def _stale(self, family: WatchedFamily) -> bool:
        return family.judged != self._outcomes[family.study.family]

    def _see(self, family: WatchedFamily) -> None:
        """Build the lattice of a family again if the state of one of its runs has changed."""
        changes = self._changes[family.study.family]
        if family.seen != changes:
            members = [run for run in self._members(family) if family.study.holds(run.point)]
            study_state = evaluate(family.study, members)
            family.seen, family.lattice = changes, build_lattice(study_state, family.verdict)
            existing = {(point, run.spec.seed) for point, runs in study_state.runs().items() for run in runs}
            requested = {(point, seed) for point, seeds in family.study.asked.items() for seed in seeds}
            family.states = Counter(run.state for run in members)
            # Requested runs without a folder.
            family.states[State.MISSING] += len(requested - existing)

    # --- view -------------------------------------------------------------------------------------------------------

    def _sight(self, liveness: SchedulerLiveness | None) -> ViewModel:
        statuses = {run.id: run.status for run in self._chosen.values()}
        unfinished = [run for run, status in statuses.items() if not status.state.finished]
        if liveness and unfinished:
            specs = {run: self._chosen[run].spec for run in unfinished}
            active = {run: statuses[run] for run in unfinished}
            left_s = None if liveness.slurm_error else self._pace.left_s(specs, active, liveness.at_once(unfinished))
            queued = [run for run in unfinished if statuses[run].state is State.QUEUED]
            self._last = SweepStatus(statuses, left_s, liveness.slurm_error, liveness.vacancies(queued))
        elif liveness:
            self._last = SweepStatus(statuses, None)
        return ViewModel(
            sweep_status=self._last,
            families=tuple(map(self._family_sight, self._families.values())),
            runs=tuple(self._unfinished()),
            events=tuple(event for event in self._events if not event.place or event.whose in self._shown),
            problems=tuple(self._problems()),
            sweep_store=self._sweep_store,
        )

    def _family_sight(self, family: WatchedFamily) -> FamilyView:
        assert family.lattice is not None
        stale, states = self._stale(family), +family.states  # + drops states that no run is in
        return FamilyView(family.study, family.title, states, family.lattice, family.verdict, stale)

    def _unfinished(self) -> Iterable[RunView]:
        """Yield the first `MAX_LISTED_RUNS` unfinished runs."""
        runs = [run for run in self._chosen.values() if not run.state.finished]
        runs.sort(key=_in_order)
        statuses = {run.id: run.status for run in runs}
        packs = pack_sizes(statuses)
        for run in runs[:LISTED]:
            # Looking up sweeps takes long for many runs: once per selection is enough.
            if run.id not in self._holders:
                self._holders[run.id] = held_by(self._sweep_store.searches, run.family, run.spec)
            number = self._attempts.get(run.id, 0)
            # Only a run in training has a current loss and speed.
            loss, speed = None, None
            if number and run.state is State.RUNNING:
                loss, speed = loss_of(run.dir.attempt(number)), speed_of(run.dir.attempt(number))
            pack = pack_of(run.status, packs.get(run.id, 1))
            yield RunView(run, self._holders[run.id], loss, speed, pack, number)

    def _problems(self) -> Iterable[str]:
        if self._broken:
            name, problem = next(iter(self._broken.items()))
            suffix = f" (and {count(len(self._broken) - 1, 'more folder')})" if len(self._broken) > 1 else ""
            yield f"run folder {name} is broken: {cell(problem)}{suffix}"
        for name, problem in self._sweep_store.broken.items():
            yield f"sweep {cell(name)} is left out: {cell(problem)}"


WAITING = frozenset({State.QUEUED, State.RUNNING, State.MISSING, State.INTERRUPTED})
"""States that are all the same to a verdict: the run has no outcome yet."""


def _in_order(run: Run) -> tuple[object, ...]:
    urgency = ORDER.index(run.state) if run.state in ORDER else len(ORDER)
    return urgency, run.model, run.strategy, run.spec.lr, run.spec.wd, run.spec.seed


def _ended_s(run: RunDir) -> float:
    """Return the time at which a run ended, for sorting the events of the first poll.

    It is the modification time of the result or, for a failed run, of its failure record.
    """
    if ended_ns := run.ended_ns():
        return ended_ns / 1e9
    latest = run.latest()
    try:
        return latest.failure_path.stat().st_mtime if latest else 0.0
    except OSError:
        return 0.0
