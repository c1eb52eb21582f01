"""Mixed precision on the CPU: close to fp32, weights in fp32, overflows counted."""

from pathlib import Path

import pytest
import torch
from support.made_runs import CPU, MakeSpec, Train, curve, numbers, result_of
from torch import Tensor

from ettsweep.trainer.tasks.images.digits import Digits
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.schedule import lr_at
from ettsweep.trainer.training.step_buffer import StepBuffer


def test_the_same_small_run_ends_alike_in_every_precision(train: Train, make_spec: MakeSpec) -> None:
    """48 steps at a learning rate that learns: 2^-9 and 2^-12 of rounding do not grow."""
    mapping = {"lr": 0.5, "schedule": {"total_steps": 48, "eval_every": 16}}
    exact = train(make_spec(**mapping))
    assert result_of(exact)["final_accuracy"] > 0.5
    for precision, tolerance in (("bf16", 2e-2), ("fp16", 3e-3)):
        other = train(make_spec(precision=precision, **mapping))
        assert curve(other) == pytest.approx(curve(exact), rel=10 * tolerance)
        assert curve(other) != curve(exact)
        assert result_of(other)["overflow_steps"] == 0
        assert result_of(other)["final_loss"] == pytest.approx(result_of(exact)["final_loss"], rel=tolerance)


@pytest.mark.slow
def test_a_precision_holds_for_its_run_alone(train: Train, make_spec: MakeSpec, tmp_path: Path) -> None:
    first = train(make_spec(), folder=tmp_path / "first")
    train(make_spec(precision="tf32"))
    assert torch.get_float32_matmul_precision() == "high"
    again = train(make_spec(), folder=tmp_path / "after")
    assert torch.get_float32_matmul_precision() == "highest"
    assert numbers(again) == numbers(first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the host can only wait for a device where there is one")
@pytest.mark.parametrize(("precision", "recompute"), [("fp32", True), ("bf16", False), ("fp16", True)])
def test_the_host_waits_for_nothing_in_a_step(make_spec: MakeSpec, precision: str, recompute: bool) -> None:
    device = torch.device("cuda")
    trainer = prepare(make_spec(precision=precision), device, RuntimeSettings(micro_batch=8))
    trainer.model.recompute = recompute
    buffer = StepBuffer(precision)  # type: ignore[arg-type]
    batches = trainer.task.batches(1)
    ready = [next(batches) for _ in range(12)]  # digits are chosen by their number, which is copied to the device
    trainer.train_step(0.1, iter(ready[:4]))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in (1, 2):
            buffer.add(step, 0.1, *trainer.train_step(0.1, iter(ready[4 * step :])))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(buffer.drain()) == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_gradients_and_optimizer_state_stay_fp32(make_spec: MakeSpec, precision: str) -> None:
    trainer = prepare(make_spec(precision=precision), CPU)
    outputs: list[Tensor] = []
    trainer.model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    batch = next(trainer.task.batches(1))
    loss, grad_norm, _ = trainer.train_step(0.5, iter([batch]))
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert outputs[0].dtype == low, "autocast is on"
    assert {loss.dtype, grad_norm.dtype} == {torch.float32}
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    state = [v for entry in trainer.optimizer.state.values() for v in entry.values()]
    assert state
    assert {v.dtype for v in state} == {torch.float32}
    trainer.evaluate()
    assert {output.dtype for output in outputs} == {low}, "evaluation shares the precision"


def test_clipping_bounds_the_step_and_the_norm_is_that_of_the_unscaled_loss_before_it(make_spec: MakeSpec) -> None:
    """With plain SGD and no decay, a step is the learning rate times the clipped gradient."""
    sgd = {"strategy": {"s": None}, "wd": 0.0}
    plain = prepare(make_spec(), CPU)
    batch = next(plain.task.batches(1))
    torch.nn.functional.cross_entropy(plain.model(batch.inputs[0]), batch.targets).backward()
    by_hand = sum(float((p.grad.double() ** 2).sum()) for p in plain.model.parameters() if p.grad is not None) ** 0.5
    for precision, clip_norm, rel in (("fp32", None, 1e-6), ("fp32", 0.01, 1e-6), ("fp16", 0.01, 1e-2)):
        optimizer = {"kind": "sgd", "clip_norm": clip_norm}
        trainer = prepare(make_spec(precision=precision, optimizer=optimizer, **sgd), CPU)
        before = [p.detach().clone() for p in trainer.model.parameters()]
        norm = float(trainer.train_step(0.5, trainer.task.batches(1))[1])
        assert norm == pytest.approx(by_hand, rel=rel)
        moves = [(p.detach() - b).double() for p, b in zip(trainer.model.parameters(), before, strict=True)]
        moved = sum(float((m**2).sum()) for m in moves) ** 0.5
        assert moved == pytest.approx(0.5 * (clip_norm or norm), rel=1e-3)


class Overflowing(Digits):
    """Digits whose loss is so large in one step that fp16 gradients overflow."""

    bad_step = 7

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        self.step = getattr(self, "step", 0) + 1
        return super().loss(outputs, batch) * (1e6 if self.step == self.bad_step else 1.0)


def test_overflow_skips_the_step_is_counted_and_the_run_goes_on(
    train: Train, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ettsweep.trainer.tasks.images.digits.Digits", Overflowing)
    run = train(make_spec(precision="fp16"))
    lines = [line for line in run.history() if "loss" in line]
    assert [line["step"] for line in lines if line.get("overflow")] == [7]
    assert lines[6]["grad_norm"] is None
    assert lines[6]["nonfinite"] is True
    assert [line["loss_scale"] for line in lines] == [65536.0] * 7 + [32768.0] * 17
    result = result_of(run)
    assert (result["status"], result["steps"], result["overflow_steps"]) == ("done", 24, 1)
    assert result["score"] is not None
    schedule = run.spec().schedule
    assert [line["lr"] for line in lines] == [lr_at(step, run.spec().lr, schedule) for step in range(1, 25)], (
        "a skipped step uses up its step of the schedule"
    )
