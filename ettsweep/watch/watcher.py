"""Looks at a results folder again and again: finished runs are read once, and verdicts found where they may change."""

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
from ettsweep.watch.lattice_cells import LatticeCells, lattice
from ettsweep.watch.run_progress import loss_of, speed_of
from ettsweep.watch.throttle import Stopwatch, Throttle
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

EVENTS = 200
"""Events that are kept."""

LISTED = 200
"""Unfinished runs that are listed; those in training come first."""

ORDER = (State.RUNNING, State.FAILED, State.HELD, State.UNKNOWN, State.INTERRUPTED, State.QUEUED)
"""In which unfinished runs are listed; then come all others."""

Chosen = tuple[Sequence[Run], Sequence[Study]]
Choose = Callable[[RunIndex, SweepStore], Chosen]
"""Returns the runs and the searches that are meant, of all that there are."""

Tell = Callable[[str], None]


@dataclass
class WatchedFamily:
    """What is known of a family.

    Attributes:
        seen, judged: after how many changes its lattice and its verdict were found; -1 before.
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
    """What is known of a results folder, and what has been seen to happen there.

    Args:
        results: the folder.
        choose: names the runs and families to be shown.
        clock: says the time of day.
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
        self._slurm_cache, self._pace, self._others_rest = SlurmCache(), TimeLeftEstimator(), Throttle()
        self._choice_rest, self._unchosen = Throttle(), True
        self._begun, self._grouped, self._shown = False, dict[str, list[str]](), set[str]()
        self._changes: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()

    # --- looks ------------------------------------------------------------------------------------------------------

    def look(self, on_progress: Tell = lambda told: None) -> ViewModel:
        """Read what may have changed, and return what there is to see; `tell` hears how far a long one is.

        Raises:
            InputError: there is nothing that is meant.
            OSError: the folder cannot be read.
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
        """Find the verdict of a family that may have another one; return whether there was such a family.

        One that has been judged before rests in proportion to how long that took.
        """
        for family in self._families.values():
            if self._stale(family) and (family.rest.over or family.verdict is None):
                stopwatch, before = Stopwatch(), family.verdict
                family.verdict = evaluate(family.study, self._members(family)).verdict()
                family.judged, family.seen = self._outcomes[family.study.family], -1
                family.rest.begin(*stopwatch.read())
                self._events += events_of_verdict(family.title, before, family.verdict, self._clock())
                self._see(family)
                return True
        return False

    def runs_of(self, sweep: str) -> list[Run]:
        """Return the runs that belong to a sweep."""
        searches = self._sweep_store.searches
        return [run for run in list(self._chosen.values()) if sweep in holders(searches, run.family, run.spec)]

    def sight(self) -> ViewModel:
        """Return what there is to see without reading anything."""
        return self._sight(None)

    # --- what is read -----------------------------------------------------------------------------------------------

    def _read_sweeps(self) -> bool:
        """Read the sweeps where there are other files of them than before; say whether there were."""
        files = sorted(map(str, sweeps_dir(self._results).glob("*/[0-9]*.yaml")))
        if self._begun and files == self._files:
            return False
        self._files, self._sweep_store = files, load_sweep_store(self._results)
        return True

    def _read_runs(self, liveness: SchedulerLiveness, on_progress: Tell) -> bool:
        """Look at new runs, and at those that may have changed; say whether there are others than before."""
        names = set(os.listdir(runs_dir(self._results))) if self._there() else set()
        removed = (self._runs.keys() | self._broken.keys()) - names
        for name in removed:
            self._runs.pop(name, None)
            self._broken.pop(name, None)
        new = sorted(filter(is_run_id, names - self._runs.keys() - self._broken.keys()))
        unfinished = [run for run in self._runs.values() if not run.state.finished]
        running = [run for run in unfinished if run.state is State.RUNNING]
        if self._others_rest.over:
            stopwatch, waiting = Stopwatch(), [run for run in unfinished if run.state is not State.RUNNING]
            new += sorted(self._broken)  # somebody may have mended one
            for run in waiting:
                self._look_at(run, liveness)
            self._others_rest.begin(*stopwatch.read())
        for run in running:
            self._look_at(run, liveness)
        before = len(self._runs)
        timed_events: list[tuple[float, list[Event]]] = []
        for k, name in enumerate(new):
            if k % 100 == 0 and len(new) > 100:
                on_progress(f"reading runs: {k:,} of {len(new):,}")
            timed_events += self._read_new(name, liveness)
        timed_events.sort(key=lambda timed_event: timed_event[0])
        self._events += [event for _, events in timed_events[-EVENTS:] for event in events]
        return bool(removed) or len(self._runs) != before

    def _there(self) -> bool:
        """Say whether there is a folder of runs; where there was one, it has to be there."""
        return bool(self._runs) or runs_dir(self._results).is_dir()

    def _read_new(self, name: str, liveness: SchedulerLiveness) -> list[tuple[float, list[Event]]]:
        """Read a run folder for the first time; return what is known to have happened to it, and when."""
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
        """Look at a run again, and note what has happened to it."""
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
            self._outcomes[run.family] += not states <= WAITING
        self._runs[run.id] = run
        if run.id in self._chosen:
            self._chosen[run.id] = run
        if run.result:
            self._pace.learn(run.spec, run.result)
        elif numbers := run.dir.numbers():
            self._attempts[run.id] = numbers[-1]

    # --- what is meant ----------------------------------------------------------------------------------------------

    def _read_choice(self) -> None:
        """Find out which runs and families are meant, anew where there are other runs or sweeps."""
        try:
            runs, studies = self._choose(RunIndex(self._runs, self._broken), self._sweep_store)
        except InputError:
            if not self._begun:
                raise
            self._chosen = {run: self._runs[run] for run in self._chosen if run in self._runs}
            return  # what was meant has been renamed, archived or removed
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
                family.judged = previous_family.judged if previous_family.study == study else -1
            self._families[study.key] = family
        self._holders = {}

    # --- families ---------------------------------------------------------------------------------------------------

    def _members(self, family: WatchedFamily) -> list[Run]:
        return [self._runs[run] for run in self._grouped.get(family.study.family, ()) if run in self._runs]

    def _stale(self, family: WatchedFamily) -> bool:
        return family.judged != self._outcomes[family.study.family]

    def _see(self, family: WatchedFamily) -> None:
        """Find the lattice of a family anew where the state of a run is another."""
        changes = self._changes[family.study.family]
        if family.seen != changes:
            members = [run for run in self._members(family) if family.study.holds(run.point)]
            study_state = evaluate(family.study, members)
            family.seen, family.lattice = changes, lattice(study_state, family.verdict)
            existing = {(point, run.spec.seed) for point, runs in study_state.runs().items() for run in runs}
            requested = {(point, seed) for point, seeds in family.study.asked.items() for seed in seeds}
            family.states = Counter(run.state for run in members)
            family.states[State.MISSING] += len(requested - existing)

    # --- what there is to see ---------------------------------------------------------------------------------------

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
        stale, states = self._stale(family), +family.states
        return FamilyView(family.study, family.title, states, family.lattice, family.verdict, stale)

    def _unfinished(self) -> Iterable[RunView]:
        """Yield the unfinished runs that are listed."""
        runs = [run for run in self._chosen.values() if not run.state.finished]
        runs.sort(key=_in_order)
        statuses = {run.id: run.status for run in runs}
        packs = pack_sizes(statuses)
        for run in runs[:LISTED]:
            if run.id not in self._holders:
                self._holders[run.id] = held_by(self._sweep_store.searches, run.family, run.spec)
            number = self._attempts.get(run.id, 0)
            loss, speed = None, None
            if number and run.state is State.RUNNING:
                loss, speed = loss_of(run.dir.attempt(number)), speed_of(run.dir.attempt(number))
            pack = pack_of(run.status, packs.get(run.id, 1))
            yield RunView(run, self._holders[run.id], loss, speed, pack, number)

    def _problems(self) -> Iterable[str]:
        """Yield what is wrong with the folder, a line each."""
        if self._broken:
            name, problem = next(iter(self._broken.items()))
            suffix = f" (and {count(len(self._broken) - 1, 'more folder')})" if len(self._broken) > 1 else ""
            yield f"run folder {name} is broken: {cell(problem)}{suffix}"
        for name, problem in self._sweep_store.broken.items():
            yield f"sweep {cell(name)} is left out: {cell(problem)}"


WAITING = frozenset({State.QUEUED, State.RUNNING, State.MISSING, State.INTERRUPTED})
"""States of which no verdict tells one from another."""


def _in_order(run: Run) -> tuple[object, ...]:
    """Return what sorts unfinished runs: their state, then where they lie."""
    urgency = ORDER.index(run.state) if run.state in ORDER else len(ORDER)
    return urgency, run.model, run.strategy, run.spec.lr, run.spec.wd, run.spec.seed


def _ended_s(run: RunDir) -> float:
    """Return when a run ended, by the time of the file that says so, which sorts what was there at the first look."""
    if ended_ns := run.ended_ns():
        return ended_ns / 1e9
    latest = run.latest()
    try:
        return latest.failure_path.stat().st_mtime if latest else 0.0
    except OSError:
        return 0.0
