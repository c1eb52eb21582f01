"""Reads a results folder again and again: finished runs once, and only families with new results are judged again."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.console import format_cell, format_count
from ettsweep.errors import InputError
from ettsweep.files import last_json_line, loads, number, open_regular
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.progress import SweepStatus
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.report.verdict_view import VerdictView, make_views
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir, runs_dir, sweeps_dir
from ettsweep.runs.index import Run, RunIndex, RunReader
from ettsweep.runs.state import ORDER, State
from ettsweep.runs.timing import RunTimes
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.judgement import evaluate
from ettsweep.study.study import Study, study_titles
from ettsweep.study.sweep_store import SweepStore, load_sweep_store, run_sweeps, run_sweeps_text
from ettsweep.study.verdict import Verdict
from ettsweep.watch.events import Event, run_events, verdict_events
from ettsweep.watch.lattice_cells import LatticeCells, build_lattice
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

MAX_EVENTS = 200
"""Number of events that are kept."""

MAX_LISTED_RUNS = 200
"""Number of unfinished runs that are listed; those in training come first."""

Selection = tuple[Sequence[Run], Sequence[Study]]
Selector = Callable[[RunIndex, SweepStore], Selection]
"""Returns the runs and studies that the user has selected."""

OnProgress = Callable[[str], object]


@dataclass
class WatchedFamily:
    """A family with its last lattice and verdict.

    Attributes:
        run_states: State of each of its runs when the lattice was built.
        states: Number of runs in each state; requested runs without a folder are missing.
        judged: The outcomes that the verdict is about.
    """

    study: Study
    title: str
    run_states: dict[str, State] = field(default_factory=dict)
    states: Counter[State] = field(default_factory=Counter)
    lattice: LatticeCells | None = None
    verdict: Verdict | None = None
    verdict_view: VerdictView | None = None
    judged: dict[str, State] | None = None

    @property
    def outcomes(self) -> dict[str, State]:
        """States of the runs that have an outcome: to a verdict, all others are the same."""
        return {run_id: state for run_id, state in self.run_states.items() if state not in WITHOUT_OUTCOME}

    @property
    def is_stale(self) -> bool:
        """Whether a run has ended since the verdict, or there is none yet."""
        return self.judged != self.outcomes


class Watcher:
    """Keeps the runs, studies, verdicts and events of a results folder up to date from poll to poll.

    Besides the folder it takes a function that selects the runs and studies to show, and a clock that returns the time
    of day as text, for events.
    """

    def __init__(self, results: Path, selector: Selector, clock: Callable[[], str]) -> None:
        self._results, self._selector, self._clock = results, selector, clock
        self._reader = RunReader(results)
        self._attempts: dict[str, int] = {}
        self._sweep_store, self._sweep_files = SweepStore(results, {}, {}), list[tuple[str, int, int, int]]()
        self._selected, self._ids_by_family, self._has_polled = list[str](), dict[str, list[str]](), False
        self._families: dict[tuple[str, str], WatchedFamily] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        # The cache remembers SLURM's answers from poll to poll, so that the controller is asked rarely.
        self._slurm_cache, self._times = SlurmCache(), RunTimes()
        self._sweep_status, self._run_views = SweepStatus({}, None), tuple[RunView, ...]()

    # --- polls ------------------------------------------------------------------------------------------------------

    def poll(self, on_progress: OnProgress = lambda message: None) -> ViewModel:
        """Read what may have changed, and return a view; `on_progress` receives a line now and then if this takes long.

        Raises:
            InputError: At the first poll, nothing matches the selection.
            OSError: The folder cannot be read.
        """
        liveness, known = SchedulerLiveness(self._results, self._slurm_cache), [*self._reader.runs]
        sweeps_changed = self._read_sweeps()
        self._read_runs(liveness, on_progress)
        if sweeps_changed or not self._has_polled or known != [*self._reader.runs]:
            self._select()
        self._has_polled = True
        for family in self._families.values():
            self._update_lattice(family)
        unfinished = sorted((run for run in self._selected_runs() if not run.state.finished), key=_run_sort_key)
        self._sweep_status = self._read_status(unfinished, liveness)
        self._run_views = tuple(map(self._run_view, unfinished[:MAX_LISTED_RUNS]))
        return self.view()

    def judge_next(self) -> bool:
        """Judge one family that has new results; return `False` if there is none."""
        family = next((family for family in self._families.values() if family.is_stale), None)
        if family is None:
            return False
        before, family.judged, family.lattice = (
            family.verdict_view,
            family.outcomes,
            None,
        )  # its marks are those of before
        family.verdict = evaluate(family.study, self._runs_of_family(family)).verdict()
        (family.verdict_view,) = make_views([family.verdict])
        self._events += verdict_events(family.title, before, family.verdict_view, self._clock())
        self._update_lattice(family)
        return True

    def runs_of(self, sweep: str) -> list[Run]:
        """Return the selected runs that belong to a sweep."""
        studies_by_family = self._sweep_store.studies_by_family
        return [r for r in self._selected_runs() if sweep in run_sweeps(studies_by_family, r.family, r.point, r.seed)]

    def view(self) -> ViewModel:
        """Return the view without reading anything."""
        selected = {run_id[:8] for run_id in self._selected}
        return ViewModel(
            sweep_status=self._sweep_status,
            families=tuple(map(_family_view, self._families.values())),
            runs=self._run_views,
            events=tuple(event for event in self._events if not event.position or event.subject in selected),
            problems=tuple(self._problems()),
            sweep_store=self._sweep_store,
        )

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_sweeps(self) -> bool:
        """Read the sweeps if their files have changed; return whether they have."""
        statuses = {path.name: path.stat() for path in sorted(sweeps_dir(self._results).glob("*.yaml"))}
        files = [(name, each.st_ino, each.st_size, each.st_mtime_ns) for name, each in statuses.items()]
        if self._has_polled and files == self._sweep_files:
            return False
        self._sweep_files, self._sweep_store = files, load_sweep_store(self._results)
        return True

    def _read_runs(self, liveness: SchedulerLiveness, on_progress: OnProgress) -> None:
        """Read runs that are new, broken or unfinished, and record their events."""
        runs = self._reader.runs
        if runs:
            runs_dir(self._results).stat()  # once runs were seen, a missing folder is an error, not one without runs
        names = self._reader.update_names()
        to_read = [name for name in names if name not in runs or not runs[name].state.finished]
        timed_events: list[tuple[float, list[Event]]] = []
        for k, run_id in enumerate(to_read):
            # Progress is worth a line only if reading takes noticeable time.
            if k % 100 == 0 and len(to_read) > 100:
                on_progress(f"reading runs: {k:,} of {len(to_read):,}")
            previous, attempt = runs.get(run_id), self._attempts.get(run_id, 0)
            run = self._reader.read_run(run_id, liveness)
            if run is None:
                continue
            if run.state.finished:
                self._times.add(run)  # finished runs teach how fast runs like them train
            elif numbers := run.dir.attempt_numbers():
                self._attempts[run_id] = numbers[-1]
            at = self._clock() if previous or self._has_polled else ""
            if events := run_events(previous, run, (attempt, self._attempts.get(run_id, 0)), at):
                timed_events.append((0.0 if previous else _end_time_s(run.dir), events))
        # By the time at which runs ended, so that the newest events come last.
        timed_events.sort(key=lambda timed_event: timed_event[0])
        self._events += [event for _, events in timed_events[-MAX_EVENTS:] for event in events]
        self._reader.keep()

    def _read_status(self, unfinished: Sequence[Run], liveness: SchedulerLiveness) -> SweepStatus:
        finished = Counter(run.state for run in self._selected_runs() if run.state.finished)
        if not unfinished:
            return SweepStatus({}, None, finished=finished)
        specs, statuses = {run.id: run.spec for run in unfinished}, {run.id: run.status for run in unfinished}
        workers = liveness.count_active_workers(statuses)
        left_s = None if liveness.slurm_error else self._times.remaining_s(specs, statuses, workers)
        vacant_slots = liveness.vacant_slots([run.id for run in unfinished if run.state is State.QUEUED])
        return SweepStatus(statuses, left_s, liveness.slurm_error, vacant_slots, finished=finished)

    def _run_view(self, run: Run) -> RunView:
        sweeps = run_sweeps_text(self._sweep_store.studies_by_family, run.family, run.point, run.seed)
        attempt = self._attempts.get(run.id, 0)
        # Only a run in training has a current loss and speed.
        if not attempt or run.state is not State.RUNNING:
            return RunView(run, sweeps, attempt=attempt)
        return RunView(run, sweeps, read_loss(run.dir.attempt(attempt)), read_speed(run.dir.attempt(attempt)), attempt)

    def _problems(self) -> Iterator[str]:
        if broken := self._reader.broken:
            name, problem = next(iter(broken.items()))
            suffix = f" (and {format_count(len(broken) - 1, 'more folder')})" if len(broken) > 1 else ""
            yield f"run folder {name} is broken: {format_cell(problem)}{suffix}"
        for name, problem in self._sweep_store.broken.items():
            yield f"sweep {format_cell(name)} is left out: {format_cell(problem)}"

    # --- selection and families -------------------------------------------------------------------------------------

    def _select(self) -> None:
        """Select runs and studies again, and keep the verdicts of studies that were selected before."""
        try:
            runs, studies = self._selector(RunIndex(self._reader.runs, self._reader.broken), self._sweep_store)
        except InputError:
            if not self._has_polled:
                raise
            return  # the selected sweeps were renamed or removed: keep showing their runs
        self._selected = [run.id for run in runs]
        self._ids_by_family = {}
        for run in runs:
            self._ids_by_family.setdefault(run.family, []).append(run.id)
        titles, previous = study_titles(studies), self._families
        self._families = {study.key: WatchedFamily(study, titles[study.key]) for study in studies}
        for key, family in self._families.items():
            if before := previous.get(key):
                family.verdict, family.verdict_view = before.verdict, before.verdict_view
                # An extended study has other neighbours or seeds: its verdict is out of date.
                family.judged = before.judged if before.study == family.study else None

    def _selected_runs(self) -> list[Run]:
        return self._existing(self._selected)

    def _runs_of_family(self, family: WatchedFamily) -> list[Run]:
        return self._existing(self._ids_by_family.get(family.study.family, ()))

    def _existing(self, run_ids: Sequence[str]) -> list[Run]:
        # The application's thread calls this while the poller's thread may remove runs.
        return [run for run_id in run_ids if (run := self._reader.runs.get(run_id))]

    def _update_lattice(self, family: WatchedFamily) -> None:
        """Build the lattice of a family again if the state of one of its runs has changed."""
        runs = self._runs_of_family(family)
        before, family.run_states = family.run_states, {run.id: run.state for run in runs}
        if family.lattice and before == family.run_states:
            return
        members = [run for run in runs if family.study.is_on_lattice(run.point)]
        study_state = evaluate(family.study, members)
        family.lattice = build_lattice(study_state, family.verdict)
        existing = {(point, run.seed) for point, at_point in study_state.runs_by_point().items() for run in at_point}
        requested = {(point, seed) for point, seeds in family.study.seeds_by_point.items() for seed in seeds}
        family.states = Counter(run.state for run in members)
        family.states[State.MISSING] += len(requested - existing)


def _family_view(family: WatchedFamily) -> FamilyView:
    assert family.lattice is not None
    states = +family.states  # + drops states that no run is in
    return FamilyView(family.study, family.title, states, family.lattice, family.verdict_view, family.is_stale)


WITHOUT_OUTCOME = frozenset({State.QUEUED, State.RUNNING, State.MISSING, State.INTERRUPTED})
"""States that are all the same to a verdict: the run has no outcome yet."""


def _run_sort_key(run: Run) -> tuple[object, ...]:
    # Those in training first, those that were ended on purpose last.
    urgency = run.state is not State.RUNNING, run.state is State.CANCELLED, ORDER[run.state]
    return *urgency, run.labels.model, strategy_name(run.base.strategy.s), run.lr, run.wd, run.seed


def _end_time_s(run: RunDir) -> float:
    """Return the time at which a run ended, for sorting the events of the first poll.

    It is the modification time of the result or, for a failed run, of the events of its last attempt.
    """
    if ended_ns := run.ended_ns():
        return ended_ns / 1e9
    latest = run.latest_attempt()
    try:
        return latest.events_path.stat().st_mtime if latest else 0.0
    except OSError:
        return 0.0


TAIL_BYTES = 16384
"""Bytes read from the end of metrics.jsonl: the last line may be an evaluation, without a loss."""


def read_loss(attempt: Attempt) -> float | None:
    """Return the loss of the last logged step; None if there is none yet, or if it is not finite."""
    try:
        with os.fdopen(open_regular(attempt.metrics_path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]  # the last part is empty, or a line that is still being written
    except OSError:
        return None
    # Find the line before parsing: parsing all of them would take long at every poll.
    last = next((line for line in reversed(lines) if b'"loss"' in line), b"{}")
    try:
        record = loads(last)
    except ValueError:
        return None
    return number(record.get("loss")) if isinstance(record, dict) else None


def read_speed(attempt: Attempt) -> float | None:
    """Return the steps per second of an attempt so far; None before it has logged any."""
    return number((last_json_line(attempt.timings_path) or {}).get("steps_per_s"))
