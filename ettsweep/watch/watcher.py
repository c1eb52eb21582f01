"""Polls a results folder. Finished runs are read once, and only families with new results are judged again."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.console import format_cell, format_count
from ettsweep.errors import InputError
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.progress import SweepStatus
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.runs.folder import RunDir, runs_dir, sweeps_dir
from ettsweep.runs.index import Run, RunIndex, RunReader
from ettsweep.runs.state import ORDER, State
from ettsweep.runs.timing import RunTimes
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.judgement import evaluate
from ettsweep.study.study import Study, study_titles
from ettsweep.study.sweep_store import SweepStore, load_sweep_store, run_sweeps, run_sweeps_text
from ettsweep.study.verdict import Verdict
from ettsweep.watch.events import Event, run_events, short_id, verdict_events
from ettsweep.watch.lattice_cells import LatticeCells, build_lattice
from ettsweep.watch.run_progress import read_loss, read_speed
from ettsweep.watch.throttle import Stopwatch, Throttle
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

MAX_EVENTS = 200
"""Number of events that are kept."""

MAX_LISTED_RUNS = 200
"""Number of unfinished runs that are listed; those in training come first."""

Selection = tuple[Sequence[Run], Sequence[Study]]
Selector = Callable[[RunIndex, SweepStore], Selection]
"""Returns the runs and studies that the user has selected."""

OnProgress = Callable[[str], None]


@dataclass
class WatchedFamily:
    """The cached lattice and verdict of a family.

    Attributes:
        lattice_version: Number of state changes of its runs at which the lattice was built; -1 before.
        verdict_version: Number of outcomes of its runs at which the verdict was given; -1 before.
    """

    study: Study
    title: str
    lattice_version: int = -1
    verdict_version: int = -1
    states: Counter[State] = field(default_factory=Counter)
    lattice: LatticeCells | None = None
    verdict: Verdict | None = None
    throttle: Throttle = field(default_factory=Throttle)


class Watcher:
    """Keeps the runs, studies, verdicts and events of a results folder up to date from poll to poll.

    Besides the folder it takes a function that selects the runs and studies to show, and a clock that returns the time
    of day as text, for events.
    """

    def __init__(self, results: Path, selector: Selector, clock: Callable[[], str]) -> None:
        self._results, self._selector, self._clock = results, selector, clock
        self._reader = RunReader(results)
        self._attempts: dict[str, int] = {}
        self._sweep_store, self._sweep_files = SweepStore(results, {}, {}), list[tuple[str, int]]()
        self._selected: dict[str, Run] = {}
        # A poll looks at unfinished runs alone: there may be a hundred thousand others.
        self._unfinished: dict[str, Run] = {}
        self._finished: Counter[State] = Counter()
        self._names: list[str] | None = None
        self._families: dict[tuple[str, str], WatchedFamily] = {}
        self._sweep_names: dict[str, str] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        # The cache remembers SLURM's answers from poll to poll, so that the controller is asked rarely.
        self._slurm_cache, self._times, self._waiting_throttle = SlurmCache(), RunTimes(), Throttle()
        self._selection_throttle, self._selection_is_stale = Throttle(), True
        self._has_polled, self._ids_by_family, self._selected_short_ids = False, dict[str, list[str]](), set[str]()
        self._state_changes: Counter[str] = Counter()
        self._outcome_changes: Counter[str] = Counter()

    @property
    def _runs(self) -> dict[str, Run]:
        return self._reader.runs

    # --- polls ------------------------------------------------------------------------------------------------------

    def poll(self, on_progress: OnProgress = lambda message: None) -> ViewModel:
        """Read what may have changed, and return a view; `on_progress` receives a line now and then if this takes long.

        Raises:
            InputError: At the first poll, nothing matches the selection.
            OSError: The folder cannot be read.
        """
        sweeps_changed = self._read_sweeps()
        liveness = SchedulerLiveness(self._results, self._slurm_cache)
        self._selection_is_stale |= self._read_runs(liveness, on_progress) | sweeps_changed
        if self._selection_is_stale and (self._selection_throttle.is_ready or not self._has_polled):
            stopwatch = Stopwatch()
            self._update_selection()
            self._selection_is_stale = False
            self._selection_throttle.start(*stopwatch.read())
        self._has_polled = True
        for family in self._families.values():
            self._update_lattice(family)
        return self._build_view(liveness)

    def judge_next(self) -> bool:
        """Judge one family that has new results; return `False` if there is none.

        A family is judged again only after a pause in proportion to the time that judging it took.
        """
        for family in self._families.values():
            # A first verdict waits for no throttle: the screen would show none for long.
            if self._is_stale(family) and (family.throttle.is_ready or family.verdict is None):
                stopwatch, before = Stopwatch(), family.verdict
                family.verdict = evaluate(family.study, self._runs_of_family(family)).verdict()
                family.verdict_version, family.lattice_version = (
                    self._outcome_changes[family.study.family],
                    -1,
                )  # -1: draw the new marks
                family.throttle.start(*stopwatch.read())
                self._events += verdict_events(family.title, before, family.verdict, self._clock())
                self._update_lattice(family)
                return True
        return False

    def runs_of(self, sweep: str) -> list[Run]:
        """Return the selected runs that belong to a sweep."""
        studies_by_family = self._sweep_store.studies_by_family
        # The application's thread calls this while the poller's thread may change the dict: iterate over a copy.
        runs = list(self._selected.values())
        return [run for run in runs if sweep in run_sweeps(studies_by_family, run.family, run.point, run.seed)]

    def view(self) -> ViewModel:
        """Return the view without reading anything."""
        return self._build_view(None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_sweeps(self) -> bool:
        """Read the sweeps if their files have changed; return whether they have."""
        # Their sizes tell: entries are only appended.
        files = sorted((path.name, path.stat().st_size) for path in sweeps_dir(self._results).glob("*.yaml"))
        if self._has_polled and files == self._sweep_files:
            return False
        self._sweep_files, self._sweep_store = files, load_sweep_store(self._results)
        return True

    def _read_runs(self, liveness: SchedulerLiveness, on_progress: OnProgress) -> bool:
        """Read new runs and those that may have changed; return `True` if runs were added or removed."""
        before, new_names, was_removed = len(self._runs), list[str](), False
        if self._runs:
            runs_dir(self._results).stat()  # once runs were seen, a missing folder is an error, not one without runs
        known = self._names
        names = self._reader.update_names()
        if names is not known:
            # `clean`, or the user, may remove run folders.
            was_removed = bool(set(known or ()) - set(names))
            self._unfinished = {run_id: run for run_id, run in self._unfinished.items() if run_id in self._runs}
            new_names = [name for name in names if name not in self._runs and name not in self._reader.broken]
        unfinished = list(self._unfinished.values())
        changing = [run.id for run in unfinished if run.state is State.RUNNING]
        # Runs in training are read at each poll, waiting ones only when their throttle allows: there may be thousands.
        if self._waiting_throttle.is_ready:
            stopwatch = Stopwatch()
            # The user may have repaired a broken one.
            self._read([run.id for run in unfinished if run.state is not State.RUNNING], liveness)
            self._read(sorted(self._reader.broken), liveness)
            self._waiting_throttle.start(*stopwatch.read())
        self._read(changing, liveness)
        self._read(new_names, liveness, on_progress)
        self._names = names
        self._reader.keep()
        return was_removed or len(self._runs) != before

    def _read(
        self, run_ids: Sequence[str], liveness: SchedulerLiveness, on_progress: OnProgress = lambda message: None
    ) -> None:
        """Read runs and record their events."""
        timed_events: list[tuple[float, list[Event]]] = []
        for k, run_id in enumerate(run_ids):
            # Progress is worth a line only if reading takes noticeable time.
            if k % 100 == 0 and len(run_ids) > 100:
                on_progress(f"reading runs: {k:,} of {len(run_ids):,}")
            previous, attempt_before = self._runs.get(run_id), self._attempts.get(run_id, 0)
            run = self._reader.read_run(run_id, liveness)
            if run is None:
                self._unfinished.pop(run_id, None)
            if run is None or run is previous:
                continue
            self._note_change(previous, run)
            at = self._clock() if previous or self._has_polled else ""
            if events := run_events(previous, run, (attempt_before, self._attempts.get(run_id, 0)), at):
                timed_events.append((0.0 if previous else _end_time_s(run.dir), events))
        # By the time at which runs ended, so that the newest events come last.
        timed_events.sort(key=lambda timed_event: timed_event[0])
        self._events += [event for _, events in timed_events[-MAX_EVENTS:] for event in events]

    def _note_change(self, previous: Run | None, run: Run) -> None:
        states = {previous.state, run.state} if previous else {run.state}
        if previous is None or len(states) > 1:
            self._state_changes[run.family] += 1
            # A run that goes from queued to running changes the lattice, but no verdict.
            self._outcome_changes[run.family] += not states <= WITHOUT_OUTCOME
        if run.id in self._selected:
            self._selected[run.id] = run
            self._finished[run.state] += run.state.finished
        if run.state.finished:
            self._unfinished.pop(run.id, None)
            # Finished runs teach how fast runs like them train.
            self._times.add(run)
        else:
            self._unfinished[run.id] = run
            if numbers := run.dir.attempt_numbers():
                self._attempts[run.id] = numbers[-1]

    # --- selection --------------------------------------------------------------------------------------------------

    def _update_selection(self) -> None:
        """Select runs and studies again, and keep the verdicts of studies that were selected before."""
        try:
            runs, studies = self._selector(RunIndex(self._runs, self._reader.broken), self._sweep_store)
        except InputError:
            if not self._has_polled:
                raise
            self._select([self._runs[run] for run in self._selected if run in self._runs])
            return  # the selected sweeps were renamed or removed: keep showing their runs
        self._select(runs)
        self._selected_short_ids = {short_id(run) for run in runs}
        self._ids_by_family = {}
        for run in runs:
            self._ids_by_family.setdefault(run.family, []).append(run.id)
        names, previous = study_titles(studies), self._families
        self._families = {}
        for study in studies:
            previous_family = previous.get(study.key)
            family = WatchedFamily(study, names[study.key])
            if previous_family:
                family.verdict, family.throttle = previous_family.verdict, previous_family.throttle
                # An extended study has other neighbours or seeds: its verdict is out of date.
                family.verdict_version = previous_family.verdict_version if previous_family.study == study else -1
            self._families[study.key] = family
        self._sweep_names = {}

    def _select(self, runs: Sequence[Run]) -> None:
        self._selected = {run.id: run for run in runs}
        self._finished = Counter(run.state for run in runs if run.state.finished)

    # --- families ---------------------------------------------------------------------------------------------------

    def _runs_of_family(self, family: WatchedFamily) -> list[Run]:
        return [self._runs[run] for run in self._ids_by_family.get(family.study.family, ()) if run in self._runs]

    def _is_stale(self, family: WatchedFamily) -> bool:
        return family.verdict_version != self._outcome_changes[family.study.family]

    def _update_lattice(self, family: WatchedFamily) -> None:
        """Build the lattice of a family again if the state of one of its runs has changed."""
        changes = self._state_changes[family.study.family]
        if family.lattice_version != changes:
            members = [run for run in self._runs_of_family(family) if family.study.is_on_lattice(run.point)]
            study_state = evaluate(family.study, members)
            family.lattice_version, family.lattice = changes, build_lattice(study_state, family.verdict)
            existing = {(point, run.seed) for point, runs in study_state.runs_by_point().items() for run in runs}
            requested = {(point, seed) for point, seeds in family.study.seeds_by_point.items() for seed in seeds}
            family.states = Counter(run.state for run in members)
            # Requested runs without a folder.
            family.states[State.MISSING] += len(requested - existing)

    # --- view -------------------------------------------------------------------------------------------------------

    def _build_view(self, liveness: SchedulerLiveness | None) -> ViewModel:
        runs, finished = self._selected_unfinished(), self._finished.copy()
        if liveness and runs:
            specs, statuses = {run.id: run.spec for run in runs}, {run.id: run.status for run in runs}
            workers = liveness.count_active_workers(statuses)
            left_s = None if liveness.slurm_error else self._times.remaining_s(specs, statuses, workers)
            vacant_slots = liveness.vacant_slots([run.id for run in runs if run.state is State.QUEUED])
            self._sweep_status = SweepStatus(statuses, left_s, liveness.slurm_error, vacant_slots, finished=finished)
        elif liveness:
            self._sweep_status = SweepStatus({}, None, finished=finished)
        return ViewModel(
            sweep_status=self._sweep_status,
            families=tuple(map(self._family_view, self._families.values())),
            runs=tuple(self._run_views(runs)),
            events=tuple(
                event for event in self._events if not event.position or event.subject in self._selected_short_ids
            ),
            problems=tuple(self._problems()),
            sweep_store=self._sweep_store,
        )

    def _family_view(self, family: WatchedFamily) -> FamilyView:
        assert family.lattice is not None
        stale, states = self._is_stale(family), +family.states  # + drops states that no run is in
        return FamilyView(family.study, family.title, states, family.lattice, family.verdict, stale)

    def _selected_unfinished(self) -> list[Run]:
        """Return the selected runs that are unfinished, in their order of display."""
        return sorted((run for run in self._unfinished.values() if run.id in self._selected), key=_run_sort_key)

    def _run_views(self, runs: Sequence[Run]) -> Iterable[RunView]:
        """Yield the first `MAX_LISTED_RUNS` unfinished runs."""
        for run in runs[:MAX_LISTED_RUNS]:
            # Looking up sweeps takes long for many runs: once per selection is enough.
            if run.id not in self._sweep_names:
                families = self._sweep_store.studies_by_family
                self._sweep_names[run.id] = run_sweeps_text(families, run.family, run.point, run.seed)
            number = self._attempts.get(run.id, 0)
            # Only a run in training has a current loss and speed.
            loss, speed = None, None
            if number and run.state is State.RUNNING:
                loss, speed = read_loss(run.dir.attempt(number)), read_speed(run.dir.attempt(number))
            yield RunView(run, self._sweep_names[run.id], loss, speed, number)

    def _problems(self) -> Iterable[str]:
        if broken := self._reader.broken:
            name, problem = next(iter(broken.items()))
            suffix = f" (and {format_count(len(broken) - 1, 'more folder')})" if len(broken) > 1 else ""
            yield f"run folder {name} is broken: {format_cell(problem)}{suffix}"
        for name, problem in self._sweep_store.broken.items():
            yield f"sweep {format_cell(name)} is left out: {format_cell(problem)}"


WITHOUT_OUTCOME = frozenset({State.QUEUED, State.RUNNING, State.MISSING, State.INTERRUPTED})
"""States that are all the same to a verdict: the run has no outcome yet."""


def _run_sort_key(run: Run) -> tuple[object, ...]:
    # Those in training first, those that were ended on purpose last.
    urgency = run.state is not State.RUNNING, run.state is State.CANCELLED, ORDER[run.state]
    return *urgency, run.labels.model, strategy_name(run.base.strategy.s), run.lr, run.wd, run.seed


def _end_time_s(run: RunDir) -> float:
    """Return the time at which a run ended, for sorting the events of the first poll.

    It is the modification time of the result or, for a failed run, of its failure record.
    """
    if ended_ns := run.ended_ns():
        return ended_ns / 1e9
    latest = run.latest_attempt()
    try:
        return latest.failure_path.stat().st_mtime if latest else 0.0
    except OSError:
        return 0.0
