"""The protocol between a task and the training loop."""

# B batch, C channels, H height, W width, K classes

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Inputs and targets of one optimizer step, or of one slice of the validation set."""

    inputs: Tensor
    targets: Tensor


class Task(Protocol):
    """What the loop asks of a data set and its loss."""

    steps_per_epoch: int

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yield the training batches of steps first_step, first_step + 1, ... without end.

        A batch depends on (seed, step) alone: a resumed run sees what an undisturbed one would.
        """
        ...

    def validation(self) -> Iterator[Batch]:
        """Yield the validation set once, in slices of a fixed size."""
        ...

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the training loss, a scalar: the mean over the batch."""
        ...

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 sums over a validation slice: (loss, correct, count)."""
        ...


def classification_loss(logits_BK: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the mean cross-entropy; targets are class indices [B] or class probabilities [B, K]."""
    return torch.nn.functional.cross_entropy(logits_BK, targets, label_smoothing=label_smoothing)


def classification_sums(logits_BK: Tensor, targets_B: Tensor) -> Tensor:
    """Return float64 (sum of cross-entropies, number of correct top-1 predictions, number of images)."""
    loss = torch.nn.functional.cross_entropy(logits_BK.float(), targets_B, reduction="sum")
    correct = (logits_BK.argmax(dim=-1) == targets_B).sum()
    count = torch.tensor(len(targets_B), device=loss.device)
    return torch.stack([loss.double(), correct.double(), count.double()])
