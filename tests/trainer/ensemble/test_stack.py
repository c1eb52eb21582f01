"""A stack of runs: each trains as it would alone, bit for bit."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.made_runs import CPU, MakeSpec
from support.stacks import release, step
from torch import Tensor

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import validated_spec
from ettsweep.trainer.ensemble import vmapped
from ettsweep.trainer.ensemble.stack import Stack, run_trial, shape_of, stack_obstacle
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.schedule import lr_at
from ettsweep.trainer.training.trainer import Trainer

STEPS = 15
DIGITS = {"width": 32, "depth": 2, "heads": 4}
"""With the rest of the small spec, the model vit-digits."""

DIFFERENT: list[dict[str, Any]] = [
    {"lr": 2.0**-5, "wd": 0.25, "seed": 0, "strategy": {"s": None}},
    {"lr": 2.0, "wd": 2.0**-6, "seed": 1, "strategy": {"s": 0.0}},
    {"lr": 0.25, "wd": 2.0**-3, "seed": 0, "strategy": {"s": 1.0}, "schedule": {"warmup_steps": 2}},
]


@dataclass
class Alone:
    """A run that trains alone, and what it has said of its steps."""

    trainer: Trainer
    batches: Iterator[Batch]
    told: list[tuple[float, float, float]]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.tell(self.trainer.train_step(next_lr(self.trainer), self.batches))

    def tell(self, step: tuple[Tensor, Tensor, Tensor]) -> None:
        loss, grad_norm, loss_scale = step
        self.told.append((float(loss), float(grad_norm), float(loss_scale)))
        self.trainer.step += 1


def next_lr(trainer: Trainer) -> float:
    return lr_at(trainer.step + 1, trainer.spec.lr, trainer.spec.schedule)


def runs_of(make_spec: MakeSpec, micro_batch: int | None = None, **more: Any) -> list[Alone]:
    """Return three runs of one shape that differ in all else."""
    shared = {"model": DIGITS} | more
    specs = [make_spec(**shared | own_part) for own_part in DIFFERENT]
    trainers = [prepare(spec, CPU, RuntimeSettings(micro_batch=micro_batch)) for spec in specs]
    return [Alone(trainer, trainer.task.batches(1), []) for trainer in trainers]


def train_together(stacked: Stack, runs: Sequence[Alone], steps: int) -> None:
    for _ in range(steps):
        step_result = step(stacked, [next_lr(run.trainer) for run in runs], [run.batches for run in runs])
        for run, messages in zip(runs, step_result, strict=True):
            run.tell(messages)


def stack_of(runs: Sequence[Alone]) -> Stack:
    return Stack([run.trainer for run in runs])


def state_of(trainer: Trainer) -> dict[str, Any]:
    state = {
        name: tensor.clone() for name, tensor in checkpoint.named_tensors(trainer.model, trainer.optimizer).items()
    }
    return state | {f"scaler/{key}": torch.tensor(value) for key, value in trainer.scaler.state_dict().items()}


def assert_same_bits(trainer: Trainer, other: Trainer) -> None:
    ours, theirs = state_of(trainer), state_of(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def assert_alike(together: Sequence[Alone], alone: Sequence[Alone]) -> None:
    """Weights, optimizers and loss scales are the same bits, and so are gradient norms; losses are within rounding."""
    for run, single in zip(together, alone, strict=True):
        assert_same_bits(run.trainer, single.trainer)
        for messages, expected in zip(run.told, single.told, strict=True):
            assert messages[0] == pytest.approx(expected[0], rel=1e-6, nan_ok=True)
            assert repr(messages[1:]) == repr(expected[1:])
        assert run.trainer.evaluate() == single.trainer.evaluate()


ADAMW = {"kind": "adamw"}
SGD = {"kind": "sgd", "momentum": 0.9}


@pytest.mark.parametrize(
    ("optimizer", "precision", "micro_batch"),
    [
        (ADAMW, "fp32", None),
        pytest.param(ADAMW | {"clip_norm": 0.5}, "fp32", 20, marks=pytest.mark.slow),
        pytest.param(ADAMW, "tf32", 20, marks=pytest.mark.slow),
        (SGD, "fp32", 20),
        (SGD | {"clip_norm": 0.5}, "fp32", None),
    ],
)
def test_each_run_trains_as_it_would_alone(
    make_spec: MakeSpec, optimizer: dict[str, Any], precision: str, micro_batch: int | None
) -> None:
    """Of 32 samples, micro-batches have 20 and 12, or all."""
    mapping = {"optimizer": optimizer, "precision": precision, "micro_batch": micro_batch}
    together, single = (runs_of(make_spec, **mapping) for _ in range(2))
    train_together(stack_of(together), together, STEPS)
    for run in single:
        run.train(STEPS)
    assert len({checkpoint.weights_sha256(run.trainer.model) for run in together}) == 3
    assert_alike(together, single)


def test_runs_with_muon_train_as_they_would_alone(make_spec: MakeSpec) -> None:
    """Their gradients are stacked, and each takes its own steps in the stack's tensors."""
    specs = [
        make_spec(optimizer={"kind": "muon"}, model=DIGITS, lr=lr, strategy={"s": s})
        for lr, s in ((0.02, None), (0.1, 1.0))
    ]
    together, single = ([Alone(t, t.task.batches(1), []) for t in map(prepare, specs, [CPU] * 2)] for _ in range(2))
    train_together(stack_of(together), together, STEPS)
    for run in single:
        run.train(STEPS)
    assert_alike(together, single)


def test_label_smoothing_changes_nothing_of_that(make_spec: MakeSpec) -> None:
    """Nor does a width of 12, with which parameters of a stack do not all begin at a multiple of 64 bytes."""
    other = {"model": {"width": 12, "depth": 1}, "task": {"label_smoothing": 0.1}}
    together, single = (runs_of(make_spec, **other) for _ in range(2))
    train_together(stack_of(together), together, STEPS)
    for run in single:
        run.train(STEPS)
    assert_alike(together, single)


def test_what_was_traced_of_one_task_is_not_taken_for_another(make_spec: MakeSpec) -> None:
    for smoothing in (0.0, 0.1):
        together, single = (runs_of(make_spec, task={"label_smoothing": smoothing}) for _ in range(2))
        train_together(stack_of(together), together, 2)
        for run in single:
            run.train(2)
        assert_alike(together, single)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "clip_norm", "micro_batch", "rel"),
    [("bf16", None, 20, 2e-2), ("fp16", 0.5, None, 3e-3)],
)
def test_mixed_precision_trains_within_its_rounding_and_the_trial_says_so(
    make_spec: MakeSpec, precision: str, clip_norm: float | None, micro_batch: int | None, rel: float
) -> None:
    """vmap rounds the logits before it adds the bias of the head, which is zero in the first step."""
    mapping = {"precision": precision, "micro_batch": micro_batch, "optimizer": {"clip_norm": clip_norm}}
    together, separate = (runs_of(make_spec, **mapping) for _ in range(2))
    stacked = stack_of(together)
    batches = [[next(run.trainer.task.batches(1)) for _ in run.trainer.share.slices] for run in together]
    sure = run_trial(stacked, batches).exact
    train_together(stacked, together, STEPS)
    for run in separate:
        run.train(STEPS)
    if sure:
        assert_alike(together, separate)
    for run, single in zip(together, separate, strict=True):
        assert run.told[0] == pytest.approx(single.told[0], rel=1e-6), "it is the same precision"
        assert [messages[0] for messages in run.told] == pytest.approx(
            [messages[0] for messages in single.told], rel=rel
        )
        assert [messages[1] for messages in run.told] == pytest.approx(
            [messages[1] for messages in single.told], rel=10 * rel
        )
        assert run.trainer.evaluate()["val_loss"] == pytest.approx(single.trainer.evaluate()["val_loss"], rel=rel)


# --- members come and go ----------------------------------------------------------------------------------------------


def test_a_run_leaves_and_another_joins_and_nobody_notices(make_spec: MakeSpec) -> None:
    together, single = (runs_of(make_spec) for _ in range(2))
    first, second, third = together
    train_together(stack_of([first, second]), [first, second], 4)
    joined = stack_of(together)
    train_together(joined, together, 3)
    before = state_of(second.trainer)
    release(second.trainer)
    assert all(torch.equal(value, before[name]) for name, value in state_of(second.trainer).items())
    assert all(own_storage(parameter) for parameter in second.trainer.model.parameters())
    second.train(5)
    train_together(stack_of([third, first]), [third, first], 5)
    for run, steps in zip(single, (12, 12, 8), strict=True):
        run.train(steps)
    assert_alike(together, single)
    with pytest.raises(AssertionError, match="has left"):
        train_together(joined, together, 1)


def own_storage(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def test_a_checkpoint_of_a_member_is_that_of_a_run_alone(make_spec: MakeSpec, results: Path, tmp_path: Path) -> None:
    together, single = (runs_of(make_spec) for _ in range(2))
    train_together(stack_of(together), together, 2)
    for run in single:
        run.train(2)
    paths = []
    for folder, run in ((results, together[1]), (tmp_path / "alone", single[1])):
        attempt = RunDir.create(folder, run.trainer.spec).claim({}, after=0)
        assert attempt is not None
        AsyncCheckpointWriter().save(attempt, run.trainer, [])
        paths.append(attempt.checkpoint_path)
    assert paths[0].stat().st_size == paths[1].stat().st_size
    ours, theirs = (torch.load(path, weights_only=True) for path in paths)
    assert ours.keys() == theirs.keys()
    tensors, expected = ours.pop("tensors"), theirs.pop("tensors")
    assert ours == theirs
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in tensors)


def test_a_checkpoint_is_restored_into_a_member(make_spec: MakeSpec, results: Path) -> None:
    together, separate = (runs_of(make_spec) for _ in range(2))
    stacked = stack_of(together)
    train_together(stacked, together, 3)
    attempt = RunDir.create(results, together[1].trainer.spec).claim({}, after=0)
    assert attempt is not None
    AsyncCheckpointWriter().save(attempt, together[1].trainer, [])
    train_together(stacked, together, 2)
    checkpoint.restore(checkpoint.load_checkpoint(attempt), together[1].trainer)
    assert together[1].trainer.step == 3
    together[1].batches = together[1].trainer.task.batches(4)
    train_together(stacked, together, 4)
    for run, steps in zip(separate, (9, 7, 9), strict=True):
        run.train(steps)
    for run, single in zip(together, separate, strict=True):
        assert_same_bits(run.trainer, single.trainer)


def test_an_overflow_skips_the_step_of_its_run_alone(make_spec: MakeSpec) -> None:
    together, single = (runs_of(make_spec, precision="fp16") for _ in range(2))
    for runs in (together, single):
        scaler = runs[1].trainer.scaler
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
    before = state_of(together[1].trainer)
    train_together(stack_of(together), together, 1)
    after = state_of(together[1].trainer)
    assert [name for name in after if not torch.equal(after[name], before[name])] == ["scaler/scale"]
    assert [run.trainer.optimizer.state_dict()["state"][0]["step"] for run in together] == [1, 0, 1]
    for run in single:
        run.train(1)
    assert_alike(together, single)


# --- gradients --------------------------------------------------------------------------------------------------------


def changed_gradients(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Have the gradients of matrices changed on their way."""
    original = vmapped.gradients
    monkeypatch.setattr(vmapped, "_GRAPHS", {})

    def gradients(*arguments: Any) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        losses_K, by_name, outputs_K = original(*arguments)
        by_name = {name: change(value) if value.dim() == 3 else value for name, value in by_name.items()}
        return losses_K, by_name, outputs_K

    monkeypatch.setattr(vmapped, "gradients", gradients)


@pytest.mark.parametrize("optimizer", [ADAMW, pytest.param(SGD, marks=pytest.mark.slow)])
def test_gradients_in_another_layout_are_laid_out_as_parameters_are(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, optimizer: dict[str, Any]
) -> None:
    """torch's fused optimizers go through memory, whatever the strides of a gradient are, and say nothing."""
    changed_gradients(monkeypatch, lambda value: value.mT.contiguous().mT)
    together, single = (runs_of(make_spec, optimizer=optimizer) for _ in range(2))
    train_together(stack_of(together), together, 2)
    for run in single:
        run.train(2)
    assert_alike(together, single)


def some_batches(runs: Sequence[Alone]) -> list[list[Batch]]:
    return [[next(run.batches) for _ in run.trainer.share.slices] for run in runs]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_the_trial_finds_the_gradients_of_runs_alone_and_changes_nothing(make_spec: MakeSpec, precision: str) -> None:
    runs = runs_of(make_spec, micro_batch=20, precision=precision)
    stacked = stack_of(runs)
    train_together(stacked, runs, 2)
    before = [state_of(run.trainer) for run in runs]
    assert run_trial(stacked, some_batches(runs)).exact or precision == "fp16"
    for run, state in zip(runs, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in state_of(run.trainer).items())
        assert all(parameter.grad is None for parameter in run.trainer.model.parameters())


@pytest.mark.parametrize("zero", ["head_bias", pytest.param("head", marks=pytest.mark.slow)])
def test_the_trial_is_not_deceived_by_what_is_zero_at_first(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, zero: str
) -> None:
    original = vmapped.gradients
    monkeypatch.setattr(vmapped, "_GRAPHS", {})

    def gradients(*fixed_and_given: Any) -> Any:
        *fixed, parameters, weights_K, inputs, targets = fixed_and_given
        parameters = parameters | {zero: parameters[zero] * (1 + 2.0**-20)}
        return original(*fixed, parameters, weights_K, inputs, targets)

    monkeypatch.setattr(vmapped, "gradients", gradients)
    runs = runs_of(make_spec)
    for run in runs:
        run.trainer.model.get_parameter(zero).data.zero_()
    assert not run_trial(stack_of(runs), some_batches(runs)).exact


def test_the_trial_sees_one_bit_of_one_run(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[2, 0, 0] = torch.nextafter(value[2, 0, 0], torch.tensor(9.0))
        return value

    changed_gradients(monkeypatch, change)
    runs = runs_of(make_spec)
    assert not run_trial(stack_of(runs), some_batches(runs)).exact


# --- what can be stacked ----------------------------------------------------------------------------------------------

TEXT = {"kind": "encdec", "width": 8, "depth": 1, "heads": 2, "vocabulary": 64, "tokens": 16}


def test_what_cannot_be_stacked_says_why(make_spec: MakeSpec) -> None:
    def trainer() -> Trainer:
        return prepare(make_spec(), CPU)

    assert stack_obstacle(trainer()) == ""
    repeated, compiled, shared, draws = (trainer() for _ in range(4))
    repeated.model.recompute = compiled.model.compiled = True
    shared.group = ProcessGroup(world_size=2)
    draws.model.draws_randomly = True
    spec = make_spec()
    text = validated_spec(spec.model_dump() | {"model": TEXT}, "spec")
    other = copy.copy(trainer())
    other.spec = text
    assert "computed again" in stack_obstacle(repeated)
    assert "compiled" in stack_obstacle(compiled)
    assert "processes" in stack_obstacle(shared)
    assert "dropout" in stack_obstacle(draws)
    assert "encdec" in stack_obstacle(other)
    with pytest.raises(AssertionError, match="can train in a stack"):
        Stack([repeated])


def test_runs_of_one_shape_may_differ_in_all_that_leaves_the_computation_alike(make_spec: MakeSpec) -> None:
    def shape(micro_batch: int | None = None, **changes: Any) -> object:
        return shape_of(prepare(make_spec(**changes), CPU, RuntimeSettings(micro_batch=micro_batch)))

    alike = [{"lr": 7.0}, {"wd": 0.0}, {"seed": 3}, {"strategy": {"s": None}}, {"optimizer": {"kind": "sgd"}}]
    alike += [{"schedule": {"total_steps": 48}}]
    assert {shape(**changes) for changes in alike} == {shape()}
    others = [{"model": {"depth": 2}}, {"batch_size": 16}, {"precision": "bf16"}, {"task": {"label_smoothing": 0.1}}]
    others += [{"micro_batch": 20}]
    assert shape() not in {shape(**changes) for changes in others}
    with pytest.raises(AssertionError, match="one shape"):
        Stack([prepare(make_spec(), CPU), prepare(make_spec(batch_size=16), CPU)])
