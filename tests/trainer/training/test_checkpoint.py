"""Checkpoints: what was saved comes back bit for bit, and what is damaged is never used."""

import copy
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.made_runs import CPU, MakeSpec, Train, Undisturbed, numbers, stop_at
from support.states import checkpoint_path, run_of

from ettsweep.errors import CorruptError
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.models.registry import parameter_shapes
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.trainer import Trainer


def moved(spec: RunSpec, steps: int) -> Trainer:
    """Return a run after some steps."""
    trainer = prepare(spec, CPU)
    batches = trainer.task.batches(1)
    for _ in range(steps):
        batch = next(batches)
        trainer.train_step(0.5, iter([batch]))
        trainer.step += 1
    return trainer


def state_of(trainer: Trainer) -> dict[str, Any]:
    return copy.deepcopy(
        {
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": trainer.scaler.state_dict(),
        }
    )


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def save(attempt: Attempt, trainer: Trainer) -> bytes:
    AsyncCheckpointWriter().save(run_of(attempt), trainer)
    return checkpoint_path(attempt).read_bytes()


def load(attempt: Attempt) -> checkpoint.CheckpointState:
    return checkpoint.load_checkpoint(checkpoint_path(attempt), attempt.run.name)


def loaded(attempt: Attempt, spec: RunSpec) -> dict[str, Any]:
    """Return the state of a run that goes on at an attempt's checkpoint."""
    trainer = prepare(spec, CPU)
    checkpoint.restore(load(attempt), trainer, run_of(attempt))
    return state_of(trainer) | {"step": trainer.step}


@pytest.mark.parametrize(
    ("optimizer", "precision", "remaining"),
    [
        ({"kind": "adamw"}, "fp16", {"step", "exp_avg", "exp_avg_sq"}),
        ({"kind": "sgd", "momentum": 0.9}, "fp32", {"momentum_buffer"}),
        ({"kind": "muon"}, "fp32", None),
    ],
)
def test_round_trip_is_exact(
    results: Path, make_spec: MakeSpec, precision: str, optimizer: dict[str, object], remaining: set[str] | None
) -> None:
    """Names are the same before and after a step: else a fresh run would ask for what is not in a checkpoint."""
    spec = make_spec(precision=precision, optimizer=optimizer, strategy={"s": None})
    attempt = RunDir.create(results, spec).claim({}, after=0)
    assert attempt is not None
    trainer, fresh = moved(spec, 5), prepare(spec, CPU)
    save(attempt, trainer)
    layout = checkpoint.layout(checkpoint.named_tensors(fresh.model, fresh.optimizer))
    assert checkpoint.layout(checkpoint.named_tensors(trainer.model, trainer.optimizer)) == layout
    names = [parameter.name for parameter in parameter_shapes(spec.model)]
    if remaining is not None:
        of_optimizer = {f"optimizer/{n}/{key}" for n in names for key in remaining}
        assert layout.keys() == {f"model/{n}" for n in names} | of_optimizer
    assert not equal(state_of(fresh), state_of(trainer))
    for group, other in zip(fresh.optimizer.param_groups, trainer.optimizer.param_groups, strict=True):
        group["lr"] = other["lr"]  # set at each step
    checkpoint.restore(load(attempt), fresh, run_of(attempt))
    assert fresh.step == 5
    assert equal(state_of(fresh), state_of(trainer))


def test_steps_skipped_in_a_row_come_back_too(attempt: Attempt, spec: RunSpec) -> None:
    trainer, run, resumed = moved(spec, 1), run_of(attempt), run_of(attempt)
    run.divergence.skips = 7
    AsyncCheckpointWriter().save(run, trainer)
    checkpoint.restore(load(attempt), trainer, resumed)
    assert resumed.divergence.skips == 7


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_cut_at_any_length_is_noticed(attempt: Attempt, spec: RunSpec) -> None:
    data = save(attempt, moved(spec, 2))
    for length in (0, 100, len(data) // 2, len(data) - 1):
        checkpoint_path(attempt).write_bytes(data[:length])
        with pytest.raises(CorruptError, match="cannot be read as a checkpoint") as error:
            load(attempt)
        assert str(checkpoint_path(attempt)) in str(error.value)


def test_a_flipped_bit_never_changes_what_is_loaded(attempt: Attempt, spec: RunSpec) -> None:
    data = save(attempt, moved(spec, 2))
    right = loaded(attempt, spec)
    rng = random.Random(0)
    noticed = 0
    for _ in range(40):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        checkpoint_path(attempt).write_bytes(flipped)
        try:
            state = loaded(attempt, spec)
        except CorruptError:
            noticed += 1
        else:
            assert equal(state, right)
    assert noticed > 12


def test_something_else_is_no_checkpoint_runs_no_code_and_is_named(attempt: Attempt, tmp_path: Path) -> None:
    path = checkpoint_path(attempt)
    for content in (None, [1, 2], {"run": "0123456789ab", "step": 1}, {"step": 1}):
        torch.save(content, path)
        with pytest.raises(CorruptError, match=f"is not a checkpoint of run {attempt.run.name}"):
            load(attempt)
    torch.save({"run": attempt.run.name, "step": 1, "model": Evil(tmp_path / "pwned")}, path)
    message = r"cannot be read as a checkpoint: it holds posix\.mkdir beside tensors and numbers, which could run code"
    with pytest.raises(CorruptError, match=message):
        load(attempt)
    assert not (tmp_path / "pwned").exists()


def test_what_does_not_fit_the_run_is_refused(attempt: Attempt, spec: RunSpec) -> None:
    save(attempt, moved(spec, 2))
    path, trainer = checkpoint_path(attempt), prepare(spec, CPU)
    right = torch.load(path)
    tensors = right["tensors"]
    checkpoint.check_fits(load(attempt), trainer)
    for changed in (
        {"step": "6"},
        {"scaler": {"scale": "much"}},
        {"tensors": {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer/")}},
        {"tensors": {name: tensor for name, tensor in tensors.items() if not name.startswith("model/")}},
        {"tensors": tensors | {"model/pe": torch.zeros(4, 16)}},
        {"tensors": tensors | {"model/pe": tensors["model/pe"].double()}},
    ):
        torch.save(right | changed, path)
        with pytest.raises(CorruptError) as error:
            checkpoint.check_fits(load(attempt), trainer)
        assert str(error.value).startswith(f"{path}: ")


def test_a_damaged_checkpoint_costs_time_but_no_bit(train: Train, undisturbed: Undisturbed, spec: RunSpec) -> None:
    run = train(spec, poll=stop_at(6))
    train(spec, poll=stop_at(5))
    broken = checkpoint_path(run.attempt(2))
    broken.write_bytes(broken.read_bytes()[:-500])
    train(spec)
    failure = run.attempt(3).failure()
    assert failure is not None
    assert failure["kind"] == "lost"
    assert str(failure["reason"]).startswith(f"{broken}: ")
    train(spec)
    assert run.attempt(4).resumed_from() == (1, 6), "the older one is still good"
    assert numbers(run) == undisturbed(spec)
