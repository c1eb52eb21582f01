"""What is drained, and when a run counts as diverged."""

import json
import math
from typing import Any

import pytest
import torch

from ettsweep.files import dumps
from ettsweep.run import Divergence, finite
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.training.step_buffer import StepBuffer

INF, NAN = math.inf, math.nan


def add(buffer: StepBuffer, step: int, loss: float = 1.0, grad_norm: float = 2.0, scale: float = 1.0) -> None:
    buffer.add(step, 0.5, torch.tensor(loss), torch.tensor(grad_norm), torch.tensor(scale))


def drained(precision: Precision, *steps: tuple[float, float, float]) -> tuple[list[dict[str, Any]], int | None]:
    """Drain steps of (loss, gradient norm, loss scale), counted from 1."""
    buffer = StepBuffer(precision)
    for step, values in enumerate(steps, start=1):
        add(buffer, step, *values)
    return recorded(buffer, Divergence(["loss"]))


def recorded(buffer: StepBuffer, divergence: Divergence) -> tuple[list[dict[str, Any]], int | None]:
    """Return what is recorded of what a buffer drains, and the step at which the run diverged, if it has."""
    lines = []
    for line in map(finite, buffer.drain()):
        lines.append(line)
        if divergence.shows(line):
            return lines, int(line["step"])
    return lines, None


def test_lines_come_once_and_in_order() -> None:
    buffer = StepBuffer("fp32")
    for step in (1, 2):
        add(buffer, step, loss=step / 4)
    assert len(buffer) == 2
    assert buffer.drain() == [
        {"step": 1, "loss": 0.25, "grad_norm": 2.0, "lr": 0.5},
        {"step": 2, "loss": 0.5, "grad_norm": 2.0, "lr": 0.5},
    ]
    assert len(buffer) == 0
    assert buffer.drain() == []
    loss = torch.tensor(1.0)
    buffer.add(3, 0.5, loss, torch.tensor(2.0), torch.tensor(1.0))
    loss.fill_(9.0)
    assert [(line["step"], line["loss"]) for line in buffer.drain()] == [(3, 1.0)], "as it was when it was added"


@pytest.mark.parametrize("loss", [NAN, -INF])
def test_first_non_finite_loss_is_the_divergence_and_the_last_line(loss: float) -> None:
    lines, step = drained("bf16", (1.0, 2.0, 1.0), (loss, NAN, 1.0), (loss, NAN, 1.0), (1.0, 2.0, 1.0))
    assert step == 2
    assert lines[1:] == [{"step": 2, "loss": None, "grad_norm": None, "lr": 0.5, "nonfinite": True}]
    assert json.loads(dumps(lines)) == lines
    lines, step = drained("fp32", (1.0, INF, 1.0))
    assert step is None, "a gradient alone is none yet"
    assert lines == [{"step": 1, "loss": 1.0, "grad_norm": None, "lr": 0.5, "nonfinite": True}]


def test_fp16_step_that_the_scaler_skips_is_an_overflow() -> None:
    lines, step = drained("fp16", (1.0, 2.0, 8.0), (1.0, INF, 8.0), (INF, NAN, 4.0), (1.0, 2.0, 2.0))
    assert step is None
    assert [line.get("overflow") for line in lines] == [None, True, True, None]
    assert [line["loss_scale"] for line in lines] == [8.0, 8.0, 4.0, 2.0]
    assert [line["loss"] for line in lines] == [1.0, 1.0, None, 1.0]


def test_fp16_diverges_when_the_loss_is_not_finite_at_a_scale_of_one_or_less() -> None:
    assert drained("fp16", (NAN, NAN, 2.0), (NAN, NAN, 1.0), (1.0, 2.0, 1.0))[1] == 2
    assert drained("fp16", (NAN, NAN, 0.5))[1] == 1
    assert drained("fp16", (1.0, INF, 1.0), (1.0, INF, 0.5))[1] is None, "the loss is finite"


def test_fp16_diverges_at_the_fiftieth_skip_in_a_row() -> None:
    skip, fine = (1.0, INF, 1024.0), (1.0, 2.0, 1024.0)
    assert drained("fp16", *[skip] * 49)[1] is None
    lines, step = drained("fp16", fine, *[skip] * 60)
    assert (step, len(lines)) == (51, 51)
    assert drained("fp16", *[skip] * 49, fine, *[skip] * 49)[1] is None


def test_skips_are_counted_across_drains() -> None:
    buffer, divergence = StepBuffer("fp16"), Divergence(["loss"])
    steps = []
    for step in range(1, 121):
        add(buffer, step, grad_norm=INF, scale=1024.0)
        if step % 7 == 0:
            lines, diverged_step = recorded(buffer, divergence)
            steps += [line["step"] for line in lines]
            if diverged_step is not None:
                break
    assert steps == list(range(1, 51))
    assert diverged_step == 50


def test_skips_are_counted_across_a_resume() -> None:
    lines, _ = drained("fp16", (1.0, 2.0, 8.0), *[(1.0, INF, 8.0)] * 30)
    divergence = Divergence(["loss"])
    for line in [*lines, {"step": 31, "val_loss": 1.0, "val_accuracy": 0.5}]:
        assert not divergence.shows(line)
    assert divergence.skips == 30
    buffer = StepBuffer("fp16")
    for step in range(32, 60):
        add(buffer, step, grad_norm=INF, scale=8.0)
    assert recorded(buffer, divergence)[1] == 51
