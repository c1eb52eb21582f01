"""Finished runs that differ from requested ones in their score alone: scored anew, and not trained again."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ettsweep.errors import EttsweepError
from ettsweep.files import Json, number
from ettsweep.runs.attempt import TimeSpent
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.result import make_result
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.study import Study

KEPT = ("environment", "execution", "start_s", "attempts", "diverged_step")
"""Entries of a result that the new one takes over as they are."""


def rescorable(studies: Sequence[Study], run_index: RunIndex) -> list[tuple[Run, RunSpec]]:
    """Return the finished runs that studies could take over with another score, each with the spec of the new run.

    All seeds and points count, also those that only a race or a search has added.
    """
    bases = {}
    for study in studies:
        if (recipe := study.base.without_score()) is not None:
            bases[recipe.family_id] = study.base
    return (
        [pair for family in run_index.by_family.values() for pair in _of_family(bases, family, run_index)]
        if bases
        else []
    )


def _of_family(bases: dict[str, RunSpec], runs: Sequence[Run], run_index: RunIndex) -> Iterator[tuple[Run, RunSpec]]:
    unscored = runs[0].spec.without_score()
    base = bases.get(unscored.family_id) if unscored is not None else None
    if base is None or base.family_id == runs[0].family:
        return
    for run in runs:
        spec = base.with_point(run.lr, run.wd, run.seed)
        if run.state in (State.DONE, State.DIVERGED) and spec.run_id not in run_index.runs:
            yield run, spec


def rescore(results: Path, pairs: Sequence[tuple[Run, RunSpec]]) -> int:
    """Write the results of new runs from what finished ones left; return of how many it had their score.

    Raises:
        StorageError: the results folder cannot be written.
    """
    return sum(_rescore(results, run, spec) for run, spec in pairs)


def _rescore(results: Path, run: Run, spec: RunSpec) -> bool:
    trained, result, attempt = run.spec, run.dir.result(), run.dir.latest_attempt()
    assert result is not None
    diverged = run.state is State.DIVERGED
    if attempt is None or (diverged and trained.metric.column != spec.metric.column):
        return False  # it may have diverged by its former score alone
    try:
        history = spec.rescored_history(run.dir.path, trained)
    except EttsweepError:  # its files are gone, or are not what this reader reads
        return False
    if history is None or (spec.metric.score(history) is None and not diverged):
        return False
    spent = TimeSpent(number(result.get("wall_s")) or 0.0, number(result.get("device_s")) or 0.0)
    content = make_result(spec, history, result["steps"], attempt, spent, diverged=diverged)
    kept: Json = {name: result[name] for name in KEPT if name in result}
    rescored = RunDir.create(results, spec)
    if (claim := rescored.claim({"scored_from": run.id}, after=0)) is None:
        return False
    claim.log(f"scored anew from run {run.id}, which was trained for {trained.metric.name}\n")
    return rescored.finish({**content, **kept, "scored_from": run.id}, history)
