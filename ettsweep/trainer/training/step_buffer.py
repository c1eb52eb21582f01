"""Per-step values, kept on the device until they are drained, and the first bad step among them."""

import math
from typing import Any

import torch
from torch import Tensor

from ettsweep.files import finite
from ettsweep.runs.spec import Precision
from ettsweep.trainer.training.distributed import ALONE, ProcessGroup

DRAIN_STEPS = 50
"""Steps after which buffered values are drained at the latest: a divergence is seen this late at most."""

MAX_SKIPS = 50
"""fp16 steps in a row that the loss scaler may skip before the run counts as diverged."""


class StepBuffer:
    """Values of the latest steps. Adding never waits for the device; draining does."""

    def __init__(self, precision: Precision, skips_in_a_row: int = 0, group: ProcessGroup = ALONE) -> None:
        self._precision = precision
        self._group = group
        self._skips = skips_in_a_row
        self._added: list[tuple[int, float, Tensor]] = []  # step, learning rate, and what the device has

    def __len__(self) -> int:
        return len(self._added)

    def add(self, step: int, lr: float, loss: Tensor, grad_norm: Tensor, loss_scale: Tensor) -> None:
        """Keep one step's scalars."""
        self._added.append((step, lr, torch.stack([loss.detach().float(), grad_norm.float(), loss_scale.float()])))

    def drain(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return lines of metrics.jsonl for what was added since the last time, and the first bad step: they end there.

        Losses are averaged over the processes of the group.
        fp32 and bf16: the first non-finite loss is the first bad step. fp16: a step with non-finite gradients is
        skipped by the loss scaler, which uses up a step of the schedule, and is an overflow; the run diverges at a
        non-finite loss at scale <= 1, or at the last of 50 skips in a row.
        """
        lines: list[dict[str, Any]] = []
        added, self._added = self._added, []
        rows = torch.stack([values for _, _, values in added]).tolist() if added else []
        # The gradient norm and the loss scale are the same in all processes.
        losses = [total / self._group.world for total in self._group.total([row[0] for row in rows])]
        for (step, lr, _), loss, (_, grad_norm, loss_scale) in zip(added, losses, rows, strict=True):
            line: dict[str, Any] = {"step": step, "loss": loss, "grad_norm": grad_norm, "lr": lr}
            has_diverged = not math.isfinite(loss)
            if self._precision == "fp16":
                overflow = not math.isfinite(grad_norm)
                self._skips = self._skips + 1 if overflow else 0
                line |= {"loss_scale": loss_scale} | ({"overflow": True} if overflow else {})
                has_diverged = (has_diverged and loss_scale <= 1.0) or self._skips >= MAX_SKIPS
            lines.append(finite(line))
            if has_diverged:
                return lines, step
        return lines, None


def trailing_overflows(history: list[dict[str, Any]]) -> int:
    """Return how many of the last steps of a history overflowed in a row."""
    count = 0
    for line in reversed(history):
        if "loss" in line:
            if not line.get("overflow"):
                break
            count += 1
    return count
