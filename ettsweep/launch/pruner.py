"""Stopping hopeless runs while a command follows them, by what their curves on disk show."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.state import State, Status
from ettsweep.spec import RunSpec
from ettsweep.sweep.ledger import Ledger
from ettsweep.sweep.pruning import Curve, hopeless
from ettsweep.tasks.kinds import Score, task_kind

SHOWN = (State.DONE, State.DIVERGED, State.PRUNED, State.RUNNING)
"""States of runs whose curves are compared."""


@dataclass
class Pruner:
    """Has runs stop that have no hope left, look after look; what a look needs is read again only where there is more.

    Attributes:
        results: the results folder.
        rule: one of `sweep.pruning.PRUNERS` that is not none.
        proposed: returns the ids of the runs that may be stopped now: those that were merely proposed. What a grid or a
            verdict asked for is not among them.
        tell: takes a line on each run that is asked to stop.
    """

    results: Path
    rule: str
    proposed: Callable[[], Collection[str]]
    tell: Callable[[str], None] = lambda text: None
    _ledger: Ledger = field(default_factory=lambda: Ledger({}, {}), repr=False)
    _read: dict[str, tuple[object, dict[int, float]]] = field(default_factory=dict, repr=False)
    _families: dict[str, str] = field(default_factory=dict, repr=False)
    _decided: dict[str, list[Curve]] = field(default_factory=dict, repr=False)

    def begin(self, ledger: Ledger) -> None:
        """Begin a round: runs that other commands have finished before it are compared too."""
        self._ledger = ledger

    def look(self, specs: Mapping[str, RunSpec], statuses: Mapping[str, Status]) -> None:
        """Look at the runs of a round, and ask those to stop that were proposed and seem hopeless.

        Raises:
            StorageError: a run folder cannot be written.
        """
        proposed = set(self.proposed())
        judged = {run for run, s in statuses.items() if run in proposed and s.state is State.RUNNING}
        if not judged:
            return
        # to reckon a family takes a while, and a look comes twice a second
        self._families |= {run: spec.family_id for run, spec in specs.items() if run not in self._families}
        for family, spec in {self._families[run]: specs[run] for run in judged}.items():
            states = {run.id: run.state for run in self._ledger.family(family)}
            states |= {run: s.state for run, s in statuses.items() if self._families[run] == family}
            self._judge(family, spec, {run: state for run, state in states.items() if state in SHOWN}, judged)

    def _judge(self, family: str, spec: RunSpec, states: Mapping[str, State], judged: Collection[str]) -> None:
        """Decide about the runs of a family, of which one is given, unless nothing has changed since the last time."""
        measure = task_kind(spec.task).score
        curves = [Curve(run, self._best(run, state, measure), state, run in judged) for run, state in states.items()]
        if curves == self._decided.get(family):
            return
        self._decided[family] = curves
        for found in hopeless(self.rule, curves, measure, spec.schedule):
            if self._dir(found.run).prune(found.step, found.reason):
                self.tell(f"run {found.run} is to be pruned at step {found.step}: {found.reason}")

    def _best(self, run_id: str, state: State, measure: Score) -> dict[int, float]:
        """Return the best score so far after each evaluation of a run."""
        run = self._dir(run_id)
        mark = (state, *(() if state.finished else _written(run)))
        if run_id not in self._read or self._read[run_id][0] != mark:
            self._read[run_id] = mark, measure.along(run.evaluations())
        return self._read[run_id][1]

    def _dir(self, run_id: str) -> RunDir:
        return RunDir(runs_dir(self.results) / run_id)


def _written(run: RunDir) -> tuple[int, int]:
    """Return the number of the last attempt, and the size of its metrics: when it grows, there is more to read."""
    latest = run.latest()
    if latest is None:
        return 0, 0
    try:
        return latest.number, latest.metrics_path.stat().st_size
    except OSError:
        return latest.number, 0
