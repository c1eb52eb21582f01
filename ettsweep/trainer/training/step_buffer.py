"""Buffer of per-step metrics on the device, and the detection of divergence when it is drained."""

import math
from typing import Any

import torch
from torch import Tensor

from ettsweep.files import finite
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup

DRAIN_STEPS = 50
"""Most steps between drains, and so the delay after which a divergence is noticed."""

MAX_SKIPS = 50
"""fp16 steps in a row that the loss scaler may skip before the run counts as diverged; it halves the scale in each."""


class StepBuffer:
    """Metrics of the latest steps. Adding never waits for the device; draining does.

    Args:
        precision: of the run; decides what counts as divergence.
        skips_in_a_row: steps skipped at the end of the resumed history, see `trailing_overflows`.
        group: the processes over which losses are averaged.
    """

    def __init__(self, precision: Precision, skips_in_a_row: int = 0, group: ProcessGroup = SINGLE_PROCESS) -> None:
        self._precision = precision
        self._group = group
        self._skips = skips_in_a_row
        self._added: list[tuple[int, float, Tensor]] = []  # step, lr, and (loss, grad norm, loss scale) on the device

    def __len__(self) -> int:
        return len(self._added)

    def add(self, step: int, lr: float, loss: Tensor, grad_norm: Tensor, loss_scale: Tensor) -> None:
        """Buffer the scalars of one step."""
        self._added.append((step, lr, torch.stack([loss.detach().float(), grad_norm.float(), loss_scale.float()])))

    def drain(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return the lines of metrics.jsonl since the last drain, and the step at which the run diverged, or None.

        Lines end at that step. Losses are averaged over the processes of the group. In fp32, tf32 and bf16 a run
        diverges at the first loss that is not finite. In fp16 the loss scaler skips a step whose gradients are not
        finite (an overflow, which still uses up a step of the schedule); the run diverges at a loss that is not finite
        at a scale <= 1, or at the last of `MAX_SKIPS` skips in a row.
        """
        lines: list[dict[str, Any]] = []
        added, self._added = self._added, []
        # One transfer for all steps: each .tolist() waits for the device.
        rows = torch.stack([values for _, _, values in added]).tolist() if added else []
        # Gradient norm and loss scale are the same in all processes, so only losses are summed.
        losses = [total / self._group.world_size for total in self._group.all_sum([row[0] for row in rows])]
        for (step, lr, _), loss, (_, grad_norm, loss_scale) in zip(added, losses, rows, strict=True):
            line: dict[str, Any] = {"step": step, "loss": loss, "grad_norm": grad_norm, "lr": lr}
            has_diverged = not math.isfinite(loss)
            if self._precision == "fp16":
                overflow = not math.isfinite(grad_norm)
                self._skips = self._skips + 1 if overflow else 0
                line |= {"loss_scale": loss_scale} | ({"overflow": True} if overflow else {})
                # At a larger scale the overflow may be the scale's; the scaler lowers it and goes on.
                has_diverged = (has_diverged and loss_scale <= 1.0) or self._skips >= MAX_SKIPS
            lines.append(finite(line))
            if has_diverged:
                return lines, step
        return lines, None


def trailing_overflows(history: list[dict[str, Any]]) -> int:
    """Return how many of the last steps of a history overflowed in a row."""
    count = 0
    for line in reversed(history):
        if "loss" in line:  # evaluations have lines of their own
            if not line.get("overflow"):
                break
            count += 1
    return count
