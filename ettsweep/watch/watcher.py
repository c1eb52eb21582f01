"""Polls a results folder: reads finished runs once, and judges only families with new results again."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.files import last_json_line, number
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.progress import SweepStatus
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.report.verdict_view import VerdictView, make_views
from ettsweep.runs.folder import runs_dir, sweeps_dir
from ettsweep.runs.index import Run, RunIndex, RunReader
from ettsweep.runs.point import Point
from ettsweep.runs.state import ORDER, State
from ettsweep.runs.timing import RunTimes
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.judgement import evaluate
from ettsweep.study.study import Study, shown_strategy, study_titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.sweep_store import SweepStore, load_sweep_store, run_strategy, run_sweeps_text
from ettsweep.watch.view import CANDIDATE, NEIGHBOUR, UNMARKED, Cell, Event, FamilyView, RunView, View, run_title

MAX_EVENTS = 50
"""Number of events to keep."""

MAX_LISTED_RUNS = 100
"""Most unfinished runs in the list; those in training come first."""

EVENT_STATES = (State.FAILED, State.DIVERGED, State.INTERRUPTED, State.CANCELLED, State.HELD)
"""States whose beginning is an event."""

Selection = tuple[Sequence[Run], Sequence[Study]]
Selector = Callable[[RunIndex, SweepStore], Selection]
"""Returns the selected runs and studies."""


class Watcher:
    """Keeps a view of a results folder up to date.

    It takes the folder, a function that selects runs and studies, and a clock that returns the time of day as text.
    """

    def __init__(self, results: Path, selector: Selector, clock: Callable[[], str]) -> None:
        self._results, self._selector, self._clock = results, selector, clock
        self._reader, self._times = RunReader(results), RunTimes()
        # Keep SLURM's answers between polls: ask the controller rarely.
        self._slurm_cache = SlurmCache()
        self._sweep_store, self._sweep_files = SweepStore(results, {}, {}), list[tuple[str, int, int, int]]()
        self._readable_ids, self._selected_ids = list[str](), list[str]()
        self._runs: dict[str, Run] = {}
        self._families: dict[str, FamilyView] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._view = View()

    def poll(self) -> Iterator[View]:
        """Read all that may have changed; yield a view, and another one after each new verdict.

        The first poll begins with views that only have the progress.

        Raises:
            InputError: At the first poll, no run or study matches.
            OSError: The folder cannot be read.
        """
        liveness, is_first = SchedulerLiveness(self._results, self._slurm_cache), self._view.status is None
        sweeps_changed = self._read_sweeps()
        for progress in self._read_runs(liveness):
            if is_first:
                yield View(progress=progress)
        if is_first or sweeps_changed or self._readable_ids != [*self._reader.runs]:
            self._select(is_first)
        before = self._runs
        self._runs = {run_id: run for run_id in self._selected_ids if (run := self._reader.runs.get(run_id))}
        if not is_first:
            self._add_events(before)
        run_index = RunIndex(self._runs, {})
        for key, family in self._families.items():
            self._families[key] = _with_states(family, run_index.family_runs(family.study.base, family.study.axes))
        self._view = self._make_view(liveness)
        yield self._view
        for key, family in self._families.items():
            if family.is_stale:
                self._families[key] = self._judge(family, run_index.family_runs(family.study.base, family.study.axes))
                self._view = replace(self._view, families=dict(self._families), events=tuple(self._events))
                yield self._view

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_sweeps(self) -> bool:
        """Read the sweeps if their files have changed; return whether they have."""
        stats = {path.name: path.stat() for path in sorted(sweeps_dir(self._results).glob("*.yaml"))}
        files = [(name, each.st_ino, each.st_size, each.st_mtime_ns) for name, each in stats.items()]
        if files == self._sweep_files:
            return False
        self._sweep_store, self._sweep_files = load_sweep_store(self._results), files
        return True

    def _read_runs(self, liveness: SchedulerLiveness) -> Iterator[str]:
        """Read new, broken and unfinished runs; yield the progress now and then."""
        runs = self._reader.runs
        if runs:
            runs_dir(self._results).stat()  # after the first runs, a missing folder is an error
        names = [name for name in self._reader.update_names() if name not in runs or not runs[name].state.finished]
        for k, name in enumerate(names):
            if k % 100 == 0:
                yield f"reading runs: {k:,} of {len(names):,}"
            run = self._reader.read_run(name, liveness)
            if run and run.state.finished:
                self._times.add(run)  # finished runs show how fast similar ones train
        self._reader.keep()

    def _select(self, is_first: bool) -> None:
        """Select runs and studies again, and keep verdicts."""
        self._readable_ids = [*self._reader.runs]
        try:
            runs, studies = self._selector(RunIndex(self._reader.runs, self._reader.broken), self._sweep_store)
        except InputError:
            if is_first:
                raise
            return  # keep runs of renamed or removed sweeps
        self._selected_ids = [run.id for run in runs]
        titles, before, self._families = study_titles(studies), self._families, {}
        for study in studies:
            key, title = "/".join(study.key), titles[study.key]
            self._families[key] = FamilyView(study, title)
            if old := before.get(key):
                # The verdict of an extended study is out of date.
                judged = old.judged if old.study == study else None
                self._families[key] = replace(old, study=study, title=title, cells=(), judged=judged)

    # --- the view ---------------------------------------------------------------------------------------------------

    def _make_view(self, liveness: SchedulerLiveness) -> View:
        unfinished = sorted((run for run in self._runs.values() if not run.state.finished), key=_urgency)
        return View(
            status=self._sweep_status(unfinished, liveness),
            families=dict(self._families),
            runs={run.id: self._run_view(run) for run in unfinished[:MAX_LISTED_RUNS]},
            events=tuple(self._events),
            problems=tuple(self._problems()),
        )

    def _sweep_status(self, unfinished: Sequence[Run], liveness: SchedulerLiveness) -> SweepStatus:
        finished = Counter(run.state for run in self._runs.values() if run.state.finished)
        if not unfinished:
            return SweepStatus({}, None, finished=finished)
        specs, statuses = {run.id: run.spec for run in unfinished}, {run.id: run.status for run in unfinished}
        workers = liveness.count_active_workers(statuses)
        left_s = None if liveness.slurm_error else self._times.remaining_s(specs, statuses, workers)
        vacant_slots = liveness.vacant_slots([run.id for run in unfinished if run.state is State.QUEUED])
        return SweepStatus(statuses, left_s, liveness.slurm_error, vacant_slots, finished=finished)

    def _run_view(self, run: Run) -> RunView:
        sweeps = run_sweeps_text(self._sweep_store.studies_by_family, run)
        view = RunView(run, run.status, sweeps, self._strategy(run))
        if run.state is not State.RUNNING:
            return view
        attempt = run.dir.attempt(run.status.attempt)
        # The last line of all may be an evaluation, without a loss.
        step = last_json_line(attempt.metrics_path, holding=b'"loss"') or {}
        timing = last_json_line(attempt.timings_path) or {}
        return replace(view, loss=number(step.get("loss")), steps_per_s=number(timing.get("steps_per_s")))

    def _strategy(self, run: Run) -> str:
        """Return the name of a run's strategy or variant; empty if there is only one."""
        return run_strategy(self._sweep_store.studies_by_family, run) if shown_strategy(run.base) else ""

    def _problems(self) -> Iterator[str]:
        if broken := self._reader.broken:
            name, problem = next(iter(broken.items()))
            more = f" (and {format_count(len(broken) - 1, 'more folder')})" if len(broken) > 1 else ""
            yield f"run folder {name} is broken: {problem}{more}"
        for name, problem in self._sweep_store.broken.items():
            yield f"sweep {name} is left out: {problem}"

    # --- verdicts and events ----------------------------------------------------------------------------------------

    def _judge(self, family: FamilyView, runs: Sequence[Run]) -> FamilyView:
        """Return a family with a new verdict; record a reached or lost optimum as an event."""
        study_state = evaluate(family.study, runs)
        verdict = study_state.verdict()
        (verdict_view,) = make_views([verdict])
        if family.verdict and (event := _verdict_event(family.verdict, verdict_view)):
            self._events.append(Event(self._clock(), event, family.title, _verdict_text(verdict_view)))
        marks = {scored_point.point: NEIGHBOUR for scored_point in verdict.neighbours}
        if verdict.point:
            marks[verdict.point] = CANDIDATE
        cells = _cells(study_state, marks)
        return replace(family, verdict=verdict_view, marks=marks, judged=family.outcomes, cells=cells)

    def _add_events(self, before: Mapping[str, Run]) -> None:
        """Record the events of runs since the last poll."""
        for run_id, run in self._runs.items():
            if (old := before.get(run_id)) is run:
                continue
            # A new attempt: the job was requeued, or another worker took the run over.
            if old and 0 < old.status.attempt < run.status.attempt:
                self._add_event(run, "requeued", _resume_text(run))
            known = old and (old.state, old.status.attempt) == (run.state, run.status.attempt)
            if run.state in EVENT_STATES and not known:
                self._add_event(run, run.state.value, run.status.reason)

    def _add_event(self, run: Run, kind: str, text: str) -> None:
        self._events.append(Event(self._clock(), kind, run_title(run, self._strategy(run)), text))


def _urgency(run: Run) -> tuple[object, ...]:
    # Runs in training first, cancelled ones last.
    urgency = run.state is not State.RUNNING, run.state is State.CANCELLED, ORDER[run.state]
    return *urgency, run.labels.model, strategy_name(run.base.strategy.s), *run.values.values(), run.seed


def _with_states(family: FamilyView, runs: Sequence[Run]) -> FamilyView:
    """Return a family with the present lattice."""
    run_states = {run.id: run.state for run in runs}
    if family.cells and run_states == family.run_states:
        return family
    return replace(family, run_states=run_states, cells=_cells(evaluate(family.study, runs), family.marks))


def _cells(study_state: StudyState, marks: Mapping[Point, str]) -> tuple[Cell, ...]:
    """Return a cell for each requested point, each point with runs, and each neighbour of the candidate."""
    study, runs, cells = study_state.study, study_state.runs_by_point(), []
    for point in dict.fromkeys((*study.seeds_by_point, *runs, *marks)):
        if position := study.cell(point, study.centre):
            states = dict.fromkeys(study.seeds_by_point.get(point, ()), State.MISSING)
            states |= {run.seed: run.state for run in runs.get(point, ())}
            score = study_state.score_point(point).score
            i, j = position
            known, mark = tuple(states.values()), marks.get(point, UNMARKED)
            cells.append(Cell(i, j, point, known, score, mark))
    return tuple(cells)


def _verdict_event(before: VerdictView, now: VerdictView) -> str:
    """Return a text on an optimum that was reached, perhaps at another point, or lost; else an empty one."""
    if (before.word, before.point) == (now.word, now.point):
        return ""
    return "reached" if now.holds else "lost" if before.holds else ""


def _verdict_text(verdict: VerdictView) -> str:
    return f"{verdict.headline} at {verdict.point}" if verdict.point else verdict.headline


def _resume_text(run: Run) -> str:
    _, step = run.dir.attempt(run.status.attempt).resumed_from()
    return f"attempt {run.status.attempt} resumes from {f'step {step}' if step else 'the start'}"
