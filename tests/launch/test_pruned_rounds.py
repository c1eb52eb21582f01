"""Hopeless runs of a round: found by what lies in their folders, stopped by who trains them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.arrays import PROFILE, only_submission
from support.claims import claimed
from support.devcluster import Cluster
from support.fake import FakeRecipe

from ettsweep.launch.follow import CommandContext, execute_plan, read_run_index
from ettsweep.launch.profile import LocalProfile, SlurmProfile
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import RunIndex
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import State
from ettsweep.study import pruning
from ettsweep.study.controller import Controller
from ettsweep.study.plan import make_plan
from ettsweep.study.pruning import Pruner

MakeSpec = Callable[..., RunSpec]


@pytest.fixture
def make(make_spec: MakeSpec) -> MakeSpec:
    """Return a function that makes a run that is evaluated six times."""

    def one(**changes: Any) -> RunSpec:
        return make_spec(**({"schedule": {"total_steps": 24, "warmup_steps": 2, "eval_every": 4}} | changes))

    return one


def evaluate(run: RunDir, loss: float, *steps: int) -> None:
    attempt = run.latest_attempt()
    assert attempt is not None
    attempt.append(attempt.metrics_path, [{"step": step, "val_loss": loss, "val_accuracy": 0.5} for step in steps])


def running(results: Path, spec: RunSpec, loss: float, *steps: int) -> RunDir:
    """Return a run that this process trains, and has evaluated after some steps."""
    run = RunDir.create(results, spec)
    claimed(run)
    evaluate(run, loss, *steps)
    return run


def finished(results: Path, spec: RunSpec, loss: float) -> RunDir:
    every, last = spec.eval_every, spec.steps
    assert every
    assert last
    run = running(results, spec, loss)
    steps = range(every, last + 1, every)
    assert run.finish({"status": "done", "score": loss}, [{"step": step, "val_loss": loss} for step in steps])
    return run


class Round:
    """A pruner, and what it sees of all runs of a folder that are of a batch."""

    def __init__(self, results: Path, *proposed: RunDir) -> None:
        self.results = results
        self.told: list[str] = []
        self.run_index = RunIndex({}, {})
        self.proposed = {run.id for run in proposed}
        self.pruner = Pruner(results, "median")

    def look(self, *watched: RunDir) -> None:
        specs, statuses = {run.id: run.spec() for run in watched}, {run.id: run.status() for run in watched}
        self.told += self.pruner.prune(specs, statuses, self.run_index, self.proposed)


def test_proposed_runs_that_are_hopeless_are_stopped_and_no_others(results: Path, make: MakeSpec) -> None:
    for seed in range(5):
        finished(results, make(seed=seed), 1.0)
    invalid, valid, requested, early = (
        running(results, make(seed=seed), loss, *steps)
        for seed, loss, steps in ((5, 2.0, (4, 8)), (6, 0.5, (4, 8)), (7, 2.0, (4, 8)), (8, 2.0, (4,)))
    )
    watched = (invalid, valid, requested, early)
    round_ = Round(results, invalid, valid, early)
    round_.look(*watched)
    assert not any(run.prune_reason() for run in watched), "of the finished ones of other commands nothing is known yet"
    round_.run_index = read_run_index(results)
    for _ in range(2):
        round_.look(*watched)
        assert {run.id for run in watched if run.prune_path.exists()} == {invalid.id}
        assert invalid.prune_reason() == "at step 8: median pruner: best_loss 2, the median of 5 others 1"
        assert round_.told == [f"run {invalid.id} will be pruned {invalid.prune_reason()}"], "once"
    evaluate(early, 2.0, 8)
    round_.look(*watched)
    assert early.prune_reason()
    first = invalid.latest_attempt()
    assert first is not None
    first.record_failure("interrupted", "pruned")
    invalid.retry()
    claimed(invalid)
    evaluate(invalid, 2.0, 12)
    for repeated in (round_, Round(results, invalid)):  # also by a command that knows nothing of the first pruning
        repeated.run_index = round_.run_index
        repeated.look(*watched)
        assert invalid.status().state is State.RUNNING
        assert invalid.prune_reason() is None, "somebody wants it"


def test_runs_that_finish_while_they_are_watched_count_from_then_on(results: Path, make: MakeSpec) -> None:
    others = [running(results, make(seed=seed), 1.0, 4, 8) for seed in range(5)]
    running_result = running(results, make(seed=5), 2.0, 4, 8)
    round_ = Round(results, running_result)
    round_.look(running_result, *others)
    assert running_result.prune_reason() is None
    for other in others:
        other.finish({"status": "done", "score": 1.0}, [{"step": step, "val_loss": 1.0} for step in range(4, 25, 4)])
    round_.look(running_result, *others)
    assert running_result.prune_reason()


def test_families_are_judged_apart(results: Path, make: MakeSpec) -> None:
    finisheds = [finished(results, make(seed=seed), 1.0) for seed in range(5)]
    other = running(results, make(batch_size=16), 2.0, 4, 8)
    round_ = Round(results, other)
    round_.run_index = read_run_index(results)
    round_.look(other, *finisheds)
    assert other.prune_reason() is None


def test_what_has_not_changed_is_neither_read_nor_decided_again(
    results: Path, make: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    decisions: list[int] = []
    evaluations, decide = RunDir.evaluations, pruning.prune_reason

    def counted(run: RunDir, column: str) -> Any:
        reads.append(run.id)
        return evaluations(run, column)

    monkeypatch.setattr(RunDir, "evaluations", counted)
    monkeypatch.setattr(pruning, "prune_reason", lambda *arguments: decisions.append(1) or decide(*arguments))
    result, item = finished(results, make(seed=0), 1.0), running(results, make(seed=1), 0.5, 4)
    round_ = Round(results, item)
    for _ in range(3):
        round_.look(result, item)
    assert (sorted(reads), len(decisions)) == (sorted([result.id, item.id]), 1)
    evaluate(item, 0.5, 8)
    for _ in range(3):
        round_.look(result, item)
    assert (reads[2:], len(decisions)) == ([item.id], 2)
    Round(results).look(result, item)
    assert len(reads) == 3, "where nothing is proposed, nothing is looked at"


# --- a whole round ----------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs judged from their first evaluation on: these would take minutes to their end."""
    monkeypatch.setattr(pruning, "MEDIAN_START_DIVISOR", 10**9)


class Proposed(Controller):
    """Has nothing to judge; a sampler has suggested this run."""

    def __init__(self, results: Path, spec: RunSpec) -> None:
        super().__init__([], pruner=Pruner(results, "median"))
        self.proposed = {spec.run_id}

    def prunable_ids(self) -> set[str]:
        return self.proposed


def hopeless(results: Path) -> RunSpec:
    """Return a run that would take minutes, at a point whose five finished ones are far better."""
    recipe = FakeRecipe(last_step=100_000, warmup=4, every=100, step_s=0.002)
    spec = RunSpec.of(recipe, StrategySpec(s=None), 0.25, 0.25, 0)
    for seed in range(5):
        finished(results, spec.with_point(spec.lr, spec.wd, 10 + seed), 0.01)
    return spec


@pytest.mark.usefixtures("process", "soon")
def test_following_stops_a_hopeless_run_and_does_not_wait_for_it(results: Path) -> None:
    spec = hopeless(results)
    collected: list[str] = []
    profile = LocalProfile(devices="cpu", slots=1, threads=1)
    console = Console(file=io.StringIO())
    context = CommandContext(results, profile, console=console, notify=collected.append)

    plan = make_plan([spec], read_run_index(results))
    submit_result = execute_plan(plan, context, Proposed(results, spec))
    run = RunDir(results / "runs" / spec.run_id)
    pruned = run.status()
    assert (pruned.state, submit_result.succeeded) == (State.PRUNED, True)
    assert "the median of 5 others 0.01" in pruned.reason
    assert f"run {spec.run_id} will be pruned {pruned.reason}" in collected
    (attempt,) = map(run.attempt, run.attempt_numbers())
    assert attempt.has_checkpoint()
    assert attempt.failure() == {"kind": "interrupted", "reason": "pruned", "details": ""}


@pytest.mark.usefixtures("soon")
def test_a_hopeless_run_in_a_job_is_stopped_and_its_job_is_not_put_back(cluster: Cluster, results: Path) -> None:
    spec = hopeless(results)
    context = CommandContext(results, SlurmProfile(**PROFILE), console=Console(file=io.StringIO()))
    plan = make_plan([spec], read_run_index(results))
    submit_result = execute_plan(plan, context, Proposed(results, spec))
    run = RunDir(results / "runs" / spec.run_id)
    assert (run.status().state, submit_result.succeeded) == (State.PRUNED, True)
    (attempt,) = map(run.attempt, run.attempt_numbers())
    assert attempt.has_checkpoint()
    job = f"{only_submission(results).array_id()}_0"
    cluster.wait_state(job, "COMPLETED")
    (row,) = cluster.squeue("--jobs", job)
    assert int(row["restarts"]) == 0
