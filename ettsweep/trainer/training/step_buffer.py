"""Buffer of per-step metrics on the device."""

import math
from typing import Any

import torch
from torch import Tensor

from ettsweep.trainer.specs import Precision
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup

DRAIN_STEPS = 50
"""Most steps between drains, and so the delay after which a divergence is noticed."""


class StepBuffer:
    """Metrics of the latest steps. Adding never waits for the device; draining does.

    Args:
        precision: of the run; in fp16, lines have the loss scale.
        group: the processes over which losses are averaged.
    """

    def __init__(self, precision: Precision, group: ProcessGroup = SINGLE_PROCESS) -> None:
        self._precision, self._group = precision, group
        self._added: list[tuple[int, float, Tensor]] = []  # step, lr, and (loss, grad norm, loss scale) on the device

    def __len__(self) -> int:
        return len(self._added)

    def add(self, step: int, lr: float, loss: Tensor, grad_norm: Tensor, loss_scale: Tensor) -> None:
        """Buffer the scalars of one step."""
        self._added.append((step, lr, torch.stack([loss.detach().float(), grad_norm.float(), loss_scale.float()])))

    def drain(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl since the last drain, with losses averaged over the processes of the group.

        In fp16 the loss scaler skips a step whose gradients are not finite: an `overflow`, which still uses up a step
        of the schedule.
        """
        lines: list[dict[str, Any]] = []
        added, self._added = self._added, []
        # One transfer for all steps: each .tolist() waits for the device.
        rows = torch.stack([values for _, _, values in added]).tolist() if added else []
        # Gradient norm and loss scale are the same in all processes, so only losses are summed.
        losses = [total / self._group.world_size for total in self._group.all_sum([row[0] for row in rows])]
        for (step, lr, _), loss, (_, grad_norm, loss_scale) in zip(added, losses, rows, strict=True):
            line: dict[str, Any] = {"step": step, "loss": loss, "grad_norm": grad_norm, "lr": lr}
            if self._precision == "fp16":
                line |= {"loss_scale": loss_scale} | ({} if math.isfinite(grad_norm) else {"overflow": True})
            lines.append(line)
        return lines
