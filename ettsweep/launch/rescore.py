"""Finished runs that differ from requested ones in their score alone: scored anew from their metrics, not trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ettsweep.errors import CorruptError
from ettsweep.files import Json
from ettsweep.runs.attempt import NO_TIME, Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex, RunReader
from ettsweep.runs.result import make_result, recorded_counts
from ettsweep.runs.spec import RunSpec, family_identity, id_of_run
from ettsweep.runs.state import State
from ettsweep.study.study import Study

SOURCE = "scored_from"
"""Entry of claim and result with the run that was trained."""

KEPT = ("environment", "execution", "start_s", "resumed_step", "diverged_step")
"""Entries of a result that the new one takes over as they are."""


@dataclass(frozen=True)
class Rescorable:
    """A finished run that could be scored anew.

    Attributes:
        source: the run.
        spec: what it would be scored as: a spec with another id.
        history: its metrics, as they would have been recorded for that.
    """

    source: Run
    spec: RunSpec
    history: Sequence[Json]


def find_rescorable(studies: Sequence[Study], run_index: RunIndex) -> list[Rescorable]:
    """Return what studies could take over if it was scored anew: all seeds and points, also those of races."""
    found: dict[str, Rescorable] = {}
    for study in studies:
        if (unscored := study.base.without_score()) is None:
            continue
        for runs in run_index.by_family.values():
            other = runs[0].base.without_score()
            if other is not None and other.family_id == unscored.family_id and runs[0].family != study.family:
                for each in _of_family(study.base, runs, run_index):
                    found.setdefault(each.spec.run_id, each)
    return list(found.values())


def _of_family(base: RunSpec, runs: Sequence[Run], run_index: RunIndex) -> Iterator[Rescorable]:
    identity = family_identity(base)
    for run in runs:
        run_id = id_of_run(identity, run.lr, run.wd, run.seed)
        if run.state not in (State.DONE, State.DIVERGED) or not _is_to_come(run_id, run_index):
            continue
        if (history := _history(run, base)) is not None:
            yield Rescorable(run, base.with_point(run.lr, run.wd, run.seed), history)


def _is_to_come(run_id: str, run_index: RunIndex) -> bool:
    """Whether a run was never trained; a rescoring that was killed counts as none."""
    run = run_index.runs.get(run_id)
    if run is None:
        return run_id not in run_index.broken
    latest = run.dir.latest_attempt()
    began = latest is None or SOURCE in latest.claim()
    return began and run.state in (State.MISSING, State.INTERRUPTED)


def _history(run: Run, base: RunSpec) -> Sequence[Json] | None:
    """Return the metrics of a run as they would have been recorded for another score; None if that is not known."""
    trained, diverged = run.base, run.state is State.DIVERGED
    if diverged and trained.metric.column != base.metric.column:
        return None  # it may have diverged by its former score alone
    counts = recorded_counts(run.result)
    if not diverged and counts is not None and base.metric.column not in counts:
        return None  # as its metrics would say, which are not read for it each time
    try:
        history = run.dir.history()
    except (CorruptError, OSError):
        return None
    if diverged:
        return history
    rescored = base.rescored_history(history, trained)
    return rescored if rescored and base.metric.score(rescored) is not None else None


def source_of(run: Run) -> str | None:
    """Return the id of the run that was trained, where a finished one was scored anew from its metrics."""
    scored = run.state.finished and run.base.without_score() is not None and run.result
    return scored.get(SOURCE) if scored else None


def rescore(results: Path, found: Sequence[Rescorable], run_index: RunIndex) -> RunIndex:
    """Write the runs, with their results; return the index with them.

    Raises:
        StorageError: the results folder cannot be written.
    """
    reader, runs = RunReader(results), dict(run_index.runs)
    for each in found:
        _write(results, each)
        if run := reader.read_run(each.spec.run_id):
            runs[run.id] = run
    return RunIndex(runs, run_index.broken)


def _write(results: Path, rescorable: Rescorable) -> None:
    source, spec, history = rescorable.source, rescorable.spec, rescorable.history
    result, trained = source.result, source.dir.latest_attempt()
    if result is None or trained is None:
        return  # it was removed meanwhile
    run = RunDir.create(results, spec)
    numbers = run.attempt_numbers()
    original = str(result.get(SOURCE, source.id))
    # Whoever else scores it at this moment writes the same.
    if attempt := run.claim(_facts(trained) | {SOURCE: original}, after=numbers[-1] if numbers else 0):
        attempt.record_provenance(trained.provenance())
        attempt.record_execution(trained.execution())
        if started := trained.command():  # as it would have been started for this run
            place, other = str(source.dir.path.resolve()), str(run.path.resolve())
            words = [word.replace(place, other) for word in started.words]
            variables = {name: value.replace(place, other) for name, value in started.variables.items()}
            attempt.record_command(started._replace(words=words, variables=variables))
        attempt.log(f"scored anew from run {original}, by {spec.metric.name}\n")
        diverged = source.state is State.DIVERGED
        step = result["steps"] if diverged else history[-1]["step"]
        # It has taken no time, which counts in the cost of its source.
        content = make_result(spec, history, step, attempt, NO_TIME, diverged=diverged)
        kept = {name: result[name] for name in KEPT if name in result}
        run.finish({**content, **kept, SOURCE: original}, history)


def _facts(attempt: Attempt) -> Json:
    """Return what a claim says of devices and versions, but for its owner."""
    return {name: value for name, value in attempt.claim().items() if name not in ("token", "process", "job")}
