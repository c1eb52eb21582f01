"""Whole runs: their result, and that kills, stops, full disks and takeovers do not change a bit of it."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.commandline import wait_for
from support.disks import fill
from support.forks import Forks
from support.killed_run import EVERY_STEPS
from support.made_runs import CPU, MakeSpec, Poll, Train, Undisturbed, numbers, result_of, stop_at
from support.states import checkpoint_path
from torch import Tensor

from ettsweep.errors import DataMissingError
from ettsweep.files import read_lines
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, StopReason
from ettsweep.trainer.tasks.images.digits import Digits
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training import async_checkpoint, checkpoint, loop
from ettsweep.trainer.training.optimizer import set_lr
from ettsweep.trainer.training.run import environment, prepare
from ettsweep.trainer.training.schedule import lr_at
from ettsweep.trainer.training.trainer import Trainer


def load(attempt: Attempt) -> checkpoint.CheckpointState:
    return checkpoint.load_checkpoint(checkpoint_path(attempt), attempt.run.name)


# --- results ------------------------------------------------------------------------------------------------

KEYS = {
    *("run", "status", "score", "best_accuracy", "final_accuracy", "best_loss", "final_loss"),
    *("best_bits", "final_bits"),
    *("loss_spikes", "grad_spikes", "accuracy_spikes", "eval_loss_spikes", "unrecovered"),
    *("overflow_steps", "nonfinite_steps", "spike_events"),
    *("steps", "wall_s", "device_s", "steps_per_s", "samples_per_s", "attempts"),
    *("step_s", "utilisation", "data_wait", "memory_gib", "corrupt_images", "execution"),
    *("weights_sha256", "metrics_sha256", "environment", "start_s"),
}


def test_result_is_what_the_history_says(train: Train, make_spec: MakeSpec) -> None:
    """The best is along the trajectory, the last at its end, which is evaluated too."""
    spec = make_spec(lr=16.0, schedule={"eval_every": 5, "stop_step": 12})
    run = train(spec)
    result, history = result_of(run), run.history()
    assert result.keys() == KEYS
    steps = [line for line in history if "loss" in line]
    assert [(line["step"], line["lr"]) for line in steps] == [
        (t, lr_at(t, spec.lr, spec.schedule)) for t in range(1, 13)
    ]
    assert all(line.keys() == {"step", "loss", "grad_norm", "lr"} for line in steps)
    evaluations = [line for line in history if "val_loss" in line]
    assert [line["step"] for line in evaluations] == [5, 10, 12]
    assert result["best_loss"] == result["score"] == min(line["val_loss"] for line in evaluations)
    assert result["best_accuracy"] == max(line["val_accuracy"] for line in evaluations)
    assert result["final_loss"] == evaluations[-1]["val_loss"] > result["best_loss"]
    assert result["final_accuracy"] == evaluations[-1]["val_accuracy"]
    assert (result["run"], result["status"], result["steps"], result["attempts"]) == (run.id, "done", 12, 1)
    assert result["environment"] == json.loads(json.dumps(environment(CPU))) | run.attempt(1).code()
    assert result["steps_per_s"] == pytest.approx(12 / result["wall_s"])
    assert result["samples_per_s"] > 12 * 32 / result["wall_s"] > 0, "evaluation is left out"
    settings = {"processes": 1, "threads": 1, "micro_batch": 32, "compile": False, "activation_checkpointing": False}
    assert result["execution"] == settings | {"sharded": False, "data": ""}
    assert run.status().state is State.DONE


def test_first_losses_are_those_of_plain_torch(train: Train, make_spec: MakeSpec) -> None:
    """One parameter group, SGD without momentum or decay: every step is theta - lr * gradient."""
    spec = make_spec(optimizer="sgd", strategy={"s": None}, wd=0.0, lr=0.5)
    losses = [line["loss"] for line in train(spec).history() if "loss" in line]
    trainer = prepare(spec, CPU)
    parameters = list(trainer.model.parameters())
    for step, batch in zip(range(1, 25), trainer.task.batches(1), strict=False):
        loss = torch.nn.functional.cross_entropy(trainer.model(batch.inputs[0]), batch.targets)
        assert float(loss.detach()) == pytest.approx(losses[step - 1], rel=1e-4), step
        rate = 0.5 * (step / 4 if step <= 4 else 0.5 + 0.5 * torch.cos(torch.tensor((step - 4) / 20 * torch.pi)).item())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= rate * gradient


def test_neither_an_early_end_nor_evaluations_checkpoints_or_drains_change_the_training(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    expected = undisturbed(spec)
    monkeypatch.setattr(loop, "DRAIN_S", 0.0)
    run = train(spec, every_steps=1)
    assert numbers(run) == expected
    stopped = train(make_spec(schedule={"stop_step": 13})).history()
    assert stopped[:-1] == [line for line in run.history() if line["step"] <= 13]
    often = train(make_spec(schedule={"eval_every": 1}))
    assert [line for line in often.history() if "loss" in line] == [line for line in run.history() if "loss" in line]
    assert result_of(often)["weights_sha256"] == expected[1]


def test_time_passes_on_along_the_lineage(train: Train, spec: RunSpec) -> None:
    run = train(spec, poll=stop_at(8))
    (*_, timing) = read_lines(run.attempt(1).timings_path)
    run.attempt(1).timings_path.write_text(json.dumps(timing | {"wall_s": 1000.0}) + "\n")
    assert timing["progress"] == pytest.approx(8 / 24)
    train(spec, poll=stop_at(0))
    assert run.attempt(2).resumed_from() == (1, 8)
    train(spec)
    assert 1000 < result_of(run)["wall_s"] < 1060
    assert result_of(run)["attempts"] == 3


# --- kills --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "s", "seed", "beside"),
    [
        ({"kind": "adamw", "clip_norm": 0.5}, 0.0, 0, False),
        pytest.param({"kind": "muon"}, 1.0, 5, True, marks=pytest.mark.slow),
    ],
)
def test_killed_run_equals_an_undisturbed_one_bit_for_bit(
    results: Path,
    make_spec: MakeSpec,
    undisturbed: Undisturbed,
    forks: Forks,
    optimizer: dict[str, object],
    s: float,
    seed: int,
    beside: bool,
) -> None:
    schedule = {"total_steps": 100, "warmup_steps": 10, "eval_every": 7}
    spec = make_spec(seed=seed, lr=0.5, optimizer=optimizer, schedule=schedule, strategy={"s": s})
    run = RunDir.create(results, spec)
    result = forks.call("support.killed_run:train_and_kill", str(run.path), seed, beside)
    assert len([attempt for attempt in result if attempt["how"]]) >= 4, result
    assert len({attempt["resumed"] for attempt in result}) >= 3, "it got further between kills"
    assert {"checkpoint", "metrics"} <= {attempt["how"] for attempt in result}, result
    for attempt, following in itertools.pairwise(result):
        if attempt["how"] == "checkpoint":  # the last whole one, of the very attempt that was killed, is good
            assert following["resumed"] == attempt["resumed"] + EVERY_STEPS * (attempt["count"] - 1), result
    assert numbers(run) == undisturbed(spec), result


# --- stops --------------------------------------------------------------------------------------------------


def test_stopped_run_equals_an_undisturbed_one(train: Train, undisturbed: Undisturbed, make_spec: MakeSpec) -> None:
    spec = make_spec(precision="fp16")
    at = 0
    for number, extra in enumerate([0, 1, 7, 0, 15], start=1):
        run = train(spec, poll=stop_at(extra))
        at += extra
        attempt = run.attempt(number)
        assert attempt.failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
        assert load(attempt).step == at
        assert len([line for line in attempt.history(at) if "loss" in line]) == at
        assert run.status().state is State.INTERRUPTED
    train(spec)
    assert run.attempt(6).resumed_from() == (5, 23)
    assert numbers(run) == undisturbed(spec)
    assert result_of(run)["attempts"] == 6


# --- divergence ---------------------------------------------------------------------------------------------


def first_bad_step(spec: RunSpec) -> int:
    """Return the first step with a non-finite loss, found by looking at every one."""
    trainer = prepare(spec, CPU)
    for step, batch in enumerate(trainer.task.batches(1), start=1):
        loss = trainer.task.loss(trainer.model(batch.inputs[0]), batch)
        if not torch.isfinite(loss):
            return step
        loss.backward()
        set_lr(trainer.optimizer, lr_at(step, spec.lr, spec.schedule))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    raise AssertionError


def test_divergence_ends_the_run_at_its_step_whenever_it_is_seen(
    train: Train, make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped or resumed just before, too: all files are the same."""
    spec = make_spec(lr=1e3, schedule={"total_steps": 30, "eval_every": 30})
    step = first_bad_step(spec)
    assert 2 <= step < 24
    outcomes = set()
    cases = [(1, None, [99]), (50, 4, [99]), (50, None, [step]), (50, None, [step - 1, 99])]
    for number, (drain_steps, every_steps, stops) in enumerate(cases):
        monkeypatch.setattr(loop, "DRAIN_STEPS", drain_steps)
        folder = tmp_path / f"results-{number}"
        for stop in stops:
            run = train(spec, every_steps, stop_at(stop), folder)
        result = result_of(run)
        assert (result["status"], result["diverged_step"], result["steps"]) == ("diverged", step, step)
        for key in ("score", "final_loss", "final_accuracy", "weights_sha256"):
            assert result[key] is None, key
        lines = run.history()
        assert [(line["step"], line["loss"] is None) for line in lines] == [(k, k == step) for k in range(1, step + 1)]
        assert (run.status().state, run.status().reason) == (State.DIVERGED, f"at step {step}")
        varying = ("wall_s", "device_s", "steps_per_s", "samples_per_s", "step_s", "data_wait", "attempts")
        outcomes.add((run.metrics_path.read_bytes(), json.dumps({k: v for k, v in result.items() if k not in varying})))
    assert len(outcomes) == 1


class NanGradients(Digits):
    """Digits whose gradients are not finite from the fifth step on, while the loss is."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        loss = super().loss(outputs, batch)
        holds = self.first_step + next(self.count) >= 5
        return loss + (outputs.float().sum() * 0).sqrt() if holds else loss

    def batches(self, first_step: int) -> Iterator[Batch]:
        self.first_step, self.count = first_step, itertools.count()
        return super().batches(first_step)


def test_skipped_steps_are_counted_across_resumes(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ettsweep.trainer.tasks.images.digits.Digits", NanGradients)
    spec = make_spec(precision="fp16", schedule={"total_steps": 80, "eval_every": 30})
    run = train(spec, poll=stop_at(20))
    train(spec, poll=stop_at(20))
    train(spec)
    assert result_of(run)["diverged_step"] == 54, "the fiftieth skip in a row"
    assert result_of(run)["overflow_steps"] == 50
    assert numbers(run) == undisturbed(spec)


# --- failures -----------------------------------------------------------------------------------------------


class Broken(Digits):
    """Digits whose loss raises in one step."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        self.step = getattr(self, "step", 0) + 1
        if self.step == 11:
            raise RuntimeError("no more digits\n(second line)")
        return super().loss(outputs, batch)


def test_training_that_raises_is_a_failure(
    train: Train, undisturbed: Undisturbed, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a traceback, unless the message says what to do."""

    def missing(*_: object) -> Digits:
        raise DataMissingError("task digits: is not there; pip install it")

    digits = "ettsweep.trainer.tasks.images.digits.Digits"
    with monkeypatch.context() as patched:
        patched.setattr(digits, Broken)
        run = train(spec, every_steps=4)
    failure = run.attempt(1).failure()
    assert failure is not None
    assert (failure["kind"], failure["reason"]) == ("error", "RuntimeError: no more digits")
    assert run.attempt(1).log_text().endswith("ended: RuntimeError: no more digits\n")
    assert (run.status().state, run.status().reason) == (State.FAILED, "RuntimeError: no more digits")
    run.retry()
    with monkeypatch.context() as patched:
        patched.setattr(digits, missing)
        train(spec)
    assert run.status().reason == "task digits: is not there; pip install it"
    assert "Traceback" not in run.attempt(2).log_text()
    run.retry()
    train(spec)
    assert run.attempt(3).resumed_from() == (1, 8)
    assert numbers(run) == undisturbed(spec)


def test_weights_that_break_in_the_last_step_diverge(
    train: Train, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_step = Trainer.train_step

    def break_at_the_end(trainer: Trainer, lr: float, *rest: object) -> object:
        step = take_step(trainer, lr, *rest)  # type: ignore[arg-type]
        if trainer.step == spec.schedule.last_step - 1:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(math.nan)
        return step

    monkeypatch.setattr(Trainer, "train_step", break_at_the_end)
    result = result_of(train(spec))
    assert (result["status"], result["diverged_step"], result["score"]) == ("diverged", spec.schedule.last_step, None)
    assert result["best_loss"] is not None, "what was seen before stays on record"


# --- full disks ---------------------------------------------------------------------------------------------


def fill_at_step(step: int, disk: Path, free_kib: int, saved: int = 0) -> Poll:
    """Fill a disk after a step, once the checkpoint of an earlier one is `saved`."""
    steps = itertools.count()

    def poll(attempt: Attempt) -> StopReason | None:
        if next(steps) == step:
            wait_for(lambda: not saved or attempt.saved_steps() == [saved], "the checkpoint")
            fill(disk, free_kib)
        return None

    return poll


@pytest.mark.parametrize("beside", [False, True], ids=["at once", "beside training"])
def test_full_disk_at_a_checkpoint_is_a_clear_failure_and_costs_no_bit(
    train: Train,
    undisturbed: Undisturbed,
    spec: RunSpec,
    small_disk: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    beside: bool,
) -> None:
    monkeypatch.setattr(async_checkpoint, "LARGE_BYTES", 0 if beside else async_checkpoint.LARGE_BYTES)
    disk = small_disk("1m")
    run = train(spec, every_steps=4, folder=disk, poll=fill_at_step(10, disk, free_kib=16, saved=8))
    path = run.attempt(1).states_path
    full = f"{path}/12: the disk is full; free some space (`ettsweep clean` removes unneeded files)"
    assert (run.status().state, run.status().reason) == (State.FAILED, full)
    assert f"failed: {full}" in run.attempt(1).log_text()
    assert "Traceback" not in run.attempt(1).log_text()
    assert load(run.attempt(1)).step == 8
    assert [p.name for p in run.path.rglob(".*")] == [], "what was half written is gone"
    (disk / "filler").unlink()
    run.retry()
    assert run.status().state is State.INTERRUPTED
    train(spec, folder=disk)
    assert run.attempt(2).resumed_from() == (1, 8)
    assert numbers(run) == undisturbed(spec)
