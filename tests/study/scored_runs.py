"""Runs with made scores, for tests of verdicts; no folder is written."""

from pathlib import Path

from support.digits_search import CENTRE
from support.points import moved

from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.study.study import Study

Offset = tuple[float, float]
"""Lattice steps (lr, wd) from the centre."""
SIX: list[Offset] = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]


def scored_run(spec: RunSpec, score: float | None, state: State = State.DONE) -> Run:
    """Return a run with a score; a finished one without a score has diverged."""
    state = State.DIVERGED if score is None and state is State.DONE else state
    result = {"score": score} if state.finished else None
    return Run(RunDir(Path("runs") / spec.run_id), spec, Status(state), result)


def run_at(study: Study, offset: Offset, seed: int, score: float | None, state: State = State.DONE) -> Run:
    """Return a run of `support.digits_search`, some steps from its centre."""
    return scored_run(study.base.with_point(moved(CENTRE, *offset), seed), score, state)
