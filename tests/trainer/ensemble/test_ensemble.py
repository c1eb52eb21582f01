"""Runs of an ensemble have the numbers of runs alone within rounding, and files and ends of their own."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from support.here import Here, train_once
from support.made_runs import CPU, Poll, Train, Undisturbed, curve, never, numbers, result_of, stop_at

from bench.waves import CLASSES, write_images
from ettsweep.files import read_lines
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, StopReason
from ettsweep.trainer.ensemble.ensemble import Ensemble
from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.tasks.images import chunks
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.run import RunInTraining, prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.stream import SharedClock
from ettsweep.trainer.training.trainer import Trainer

MakeSpec = Callable[..., RunSpec]


class TrainEnsemble(Protocol):
    """Claim the next attempt at each run, train them in one ensemble, and return the run folders."""

    def __call__(self, specs: Sequence[RunSpec], polls: Sequence[Poll] = (), **settings: Any) -> list[RunDir]: ...


@pytest.fixture
def ensemble(results: Path) -> TrainEnsemble:
    """Return what trains specs together."""

    def train(specs: Sequence[RunSpec], polls: Sequence[Poll] = (), **settings: Any) -> list[RunDir]:
        runs = [RunDir.create(results, spec) for spec in specs]
        heres = [Here(run, poll=poll) for run, poll in zip(runs, polls or [never] * len(runs), strict=True)]
        clock, writer, of = SharedClock(len(heres)), AsyncCheckpointWriter(), {here.given: here for here in heres}
        how = RuntimeSettings(**settings).for_stack(len(heres))
        trainings = [RunInTraining(run, CPU, how, SINGLE_PROCESS, writer, clock) for run in of]
        Ensemble(trainings, clock, lambda run, code, reason: of[run].end(code, reason)).train()  # type: ignore[index]
        return runs

    return train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return what gives the numbers of a run alone, which is trained once for all tests."""

    @functools.cache
    def of(spec: RunSpec) -> tuple[bytes, object]:
        run = RunDir.create(tmp_path_factory.mktemp("alone"), spec)
        train_once(run, RuntimeSettings())
        return numbers(run)

    return of


@pytest.fixture
def specs(make_spec: MakeSpec) -> list[RunSpec]:
    """Return runs that differ in learning rate, decay, strategy and seed alone."""
    points = ((0.125, 0.1, None, 0), (0.25, 0.0, 0.0, 0), (0.0625, 0.5, 1.0, 7))
    return [make_spec(lr=lr, wd=wd, strategy={"s": s}, seed=seed) for lr, wd, s, seed in points]


def assert_close(runs: Sequence[RunDir], expected: Sequence[tuple[bytes, object]]) -> None:
    """The metrics of all steps and evaluations are those of runs alone within rounding."""
    for run, (metrics, _) in zip(runs, expected, strict=True):
        assert run.history() == [pytest.approx(line, rel=1e-4) for line in map(json.loads, metrics.splitlines())]


def logged(run: RunDir) -> str:
    return run.attempt(max(run.attempt_numbers())).log_text()


def calls_of(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, breaks_after: int | None = None) -> list[int]:
    """Count the calls of a method; have it raise from one call on."""
    calls, method = list[int](), getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        if breaks_after is not None and len(calls) > breaks_after:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        return method(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_runs_have_the_numbers_of_runs_alone(
    ensemble: TrainEnsemble, undisturbed: Undisturbed, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(map(undisturbed, specs))
    outputs = calls_of(monkeypatch, Stack, "outputs")
    runs = ensemble(specs)
    assert_close(runs, expected)
    slices = len(list(prepare(specs[0], CPU).task.validation()))
    assert len(outputs) == slices * len(curve(runs[0], "val_loss")), "all are evaluated at once"
    for run in runs:
        assert result_of(run)["execution"]["ensemble"] == run.attempt(1).execution()["ensemble"] == 3
        assert "trains in a stack of 3 runs: not bit-exact" in logged(run)
        assert read_lines(run.attempt(1).timings_path)[-1]["step"] == 24


# --- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_diverges_leaves_the_others_and_a_stack_shrinks_once_half_have_ended(
    ensemble: TrainEnsemble,
    undisturbed: Undisturbed,
    specs: list[RunSpec],
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [undisturbed(specs[0]), undisturbed(specs[2])]
    sizes, init = list[int](), Stack.__init__
    monkeypatch.setattr(Stack, "__init__", lambda stack, own: (sizes.append(len(own)), init(stack, own))[1])
    wild = make_spec(lr=1e30, strategy={"s": None})
    first, stopped, last, diverged = ensemble([*specs, wild], [never, stop_at(9), never, never])
    assert (result_of(diverged)["status"], stopped.status().state) == ("diverged", State.INTERRUPTED)
    assert sizes == [4, 2]
    assert_close([first, last], expected)


def test_runs_that_are_stopped_resume_alone_and_those_begun_alone_in_an_ensemble(
    ensemble: TrainEnsemble, train: Train, undisturbed: Undisturbed, specs: list[RunSpec]
) -> None:
    """With all of their own state, and no more."""
    alone = train(specs[1], poll=stop_at(5))
    runs = ensemble(specs, [stop_at(7, StopReason.CANCELLED), never, stop_at(11, StopReason.OUT_OF_TIME)])
    assert [run.status().state for run in runs] == [State.INTERRUPTED, State.DONE, State.INTERRUPTED]
    assert alone.attempt(2).resumed_from() == (1, 5)
    saved, single = (run.attempt(1).state_path(step).stat().st_size for run, step in ((runs[0], 7), (alone, 5)))
    assert saved == pytest.approx(single, abs=100), "not the whole stack"
    assert "ensemble was 1, is 3: metrics may differ in the last bits" in logged(alone)
    assert "ensemble was" not in logged(runs[0])
    train(specs[0])
    assert runs[0].attempt(2).resumed_from() == (1, 7)
    assert "ensemble was 3, is 1: metrics may differ in the last bits" in logged(runs[0])
    assert "ensemble" not in result_of(runs[0])["execution"], "as it was trained last"
    train(specs[2])
    assert_close(runs, list(map(undisturbed, specs)))


# --- failing --------------------------------------------------------------------------------------------------------


def test_a_run_that_raises_fails_alone(
    ensemble: TrainEnsemble, undisturbed: Undisturbed, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, metrics = undisturbed(specs[0]), Trainer.metrics

    def broken(trainer: Trainer, sums: Any) -> object:
        if trainer.spec == specs[1] and trainer.step >= 8:
            raise ZeroDivisionError("a bug of this run alone")
        return metrics(trainer, sums)

    monkeypatch.setattr(Trainer, "metrics", broken)
    sound, failed, other = ensemble(specs)
    assert (failed.status().state, other.status().state) == (State.FAILED, State.DONE)
    assert failed.status().reason == "ZeroDivisionError: a bug of this run alone"
    assert "in broken" in logged(failed), "the traceback says where"
    assert_close([sound], [expected])


def test_runs_whose_stack_fails_go_on_alone_from_their_step(
    ensemble: TrainEnsemble, undisturbed: Undisturbed, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is stopped meanwhile stops before its turn, at its step."""
    expected = list(map(undisturbed, specs))
    calls = calls_of(monkeypatch, Stack, "gradients", breaks_after=9)
    runs = ensemble(specs, [never, stop_at(10), never])
    assert len(calls) == 10
    assert "trains alone from step 10 on: the stack failed, OutOfMemoryError" in logged(runs[2])
    assert "stopped at step 9" in logged(runs[1])
    assert_close([runs[0], runs[2]], [expected[0], expected[2]])


# --- what they share ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_share_one_loader_and_each_names_damaged_images(
    ensemble: TrainEnsemble, make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "data", {"train": 60, "val": 30}, 40)
    for path in (tmp_path / "data" / "train" / "n01" / "0.jpg", tmp_path / "data" / "val" / "n02" / "0.jpg"):
        path.write_bytes(path.read_bytes()[:300])
    model = {"image_size": 32, "patch_size": 8, "channels": 3, "classes": CLASSES}
    task = {"kind": "imagenet", "train_size": 60, "val_size": 30, "resize": 36}
    schedule = {"total_steps": 6, "eval_every": 3}
    specs = [make_spec(model=model, task=task, schedule=schedule, batch_size=20, lr=lr) for lr in (0.1, 0.2, 0.4)]
    read, decode = list[int](), chunks.decode
    monkeypatch.setattr(chunks, "decode", lambda *given: (read.append(1), decode(*given))[1])
    runs = ensemble(specs, data=str(tmp_path / "data"), loader_workers=0)
    assert len(read) == 6 * 20 + 2 * 30 + 2, "each image is decoded once for all"
    for run in runs:
        skipped = sorted(run.attempt(1).skipped_samples())
        assert len(skipped) == result_of(run)["corrupt_images"] == 2
        assert ("n01/0.jpg" in skipped[0], "n02/0.jpg" in skipped[1]) == (True, True)
