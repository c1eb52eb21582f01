"""Whole runs: their result, and that kills, stops, full disks and takeovers do not change a bit of it."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from support.forks import Forks
from support.killed_run import EVERY_STEPS
from support.made_runs import CPU, MakeSpec, Train, Undisturbed, numbers, result_of, stop_at
from support.states import checkpoint_path
from torch import Tensor

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.trainer.tasks.images.digits import Digits
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training import checkpoint, loop
from ettsweep.trainer.training.optimizer import set_lr
from ettsweep.trainer.training.run import environment, prepare
from ettsweep.trainer.training.schedule import lr_at


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


# --- kills --------------------------------------------------------------------------------------------------


def test_killed_run_equals_an_undisturbed_one_bit_for_bit(
    results: Path, make_spec: MakeSpec, undisturbed: Undisturbed, forks: Forks
) -> None:
    schedule = {"total_steps": 100, "warmup_steps": 10, "eval_every": 7}
    spec = make_spec(lr=0.5, optimizer={"clip_norm": 0.5}, schedule=schedule)
    run = RunDir.create(results, spec)
    result = forks.call("support.killed_run:train_and_kill", str(run.path))
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
    spent = [run.attempt(number).time_spent().wall_s for number in range(1, 7)]
    assert spent == sorted(spent), "with the time of those before"
    assert result_of(run)["wall_s"] >= spent[4]


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
    with monkeypatch.context() as patched:
        patched.setattr("ettsweep.trainer.tasks.images.digits.Digits", Broken)
        run = train(spec, every_steps=4)
    failure = run.attempt(1).failure()
    assert failure is not None
    assert (failure["kind"], failure["reason"]) == ("error", "RuntimeError: no more digits")
    assert run.attempt(1).log_text().endswith("ended: RuntimeError: no more digits\n")
    assert (run.status().state, run.status().reason) == (State.FAILED, "RuntimeError: no more digits")
    run.retry()
    train(spec)
    assert run.attempt(2).resumed_from() == (1, 8)
    assert numbers(run) == undisturbed(spec)
