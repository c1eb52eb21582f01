"""The interface between a task and the training loop, and shared parts: batches, sampling, classification."""

# B batch, C channels, H height, W width, K classes

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ettsweep.errors import InputError
from ettsweep.seeding import derive_seed


@dataclass(frozen=True)
class BatchShare:
    """The share of each global batch that one process trains on, in micro-batches.

    Attributes:
        batch_size: size of the global batch.
        rank, world: rank of this process, and the number of processes.
        micro_batch: samples in one forward pass; None for the whole share.
    """

    batch_size: int
    rank: int = 0
    world: int = 1
    micro_batch: int | None = None

    @property
    def span(self) -> range:
        """Positions of this share in the global batch; sizes of shares differ by at most one sample."""
        # Integer arithmetic: the shares of all ranks meet without gap or overlap.
        low, high = (self.batch_size * rank // self.world for rank in (self.rank, self.rank + 1))
        return range(low, high)

    @property
    def slices(self) -> list[range]:
        """Positions of each micro-batch in the global batch."""
        size = self.micro_batch or len(self.span)
        return [self.span[first : first + size] for first in range(0, len(self.span), size)]

    def validation(self, samples: int, size: int) -> list[range]:
        """Return the indices of this process's validation samples, every `world`-th of all, in slices of `size`."""
        # Interleaved: all processes have work on validation sets of any order and size.
        mine = range(self.rank, samples, self.world)
        return [mine[first : first + size] for first in range(0, len(mine), size)]


def select_training_samples(available: int, samples: int | None) -> NDArray[np.int64]:
    """Return the sorted indices [samples] of the training samples to use, the same for every run; all if None.

    Raises:
        InputError: fewer samples are available.
    """
    if samples is None:
        return np.arange(available)
    if samples > available:
        raise InputError(f"task.samples: {samples} were requested, only {available} training samples are available")
    # Seed 0, not that of the run: runs of all seeds use the same samples.
    return np.sort(np.random.default_rng(derive_seed(0, "samples")).permutation(available)[:samples])


def global_batches(
    samples: NDArray[np.int64], batch_size: int, seed: int, first_step: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the epoch and the sample indices [batch_size] of each step from `first_step` on, without end.

    Steps count from 1, epochs from 0. The order of an epoch depends on (seed, epoch) alone; its incomplete last batch
    is dropped.
    """
    steps = len(samples) // batch_size
    # A resumed run starts within an epoch.
    epoch, skip = divmod(first_step - 1, steps)
    while True:
        order = samples[np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(len(samples))]
        for k in range(skip, steps):
            yield epoch, order[k * batch_size : (k + 1) * batch_size]
        epoch, skip = epoch + 1, 0


ComputeContext = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class LoaderSettings:
    """How samples are loaded, without effect on the samples.

    Attributes:
        workers: number of loader processes; 0 loads in the training process.
        corrupt: treatment of images that cannot be decoded.
        warn: called with a message for each image that is skipped, once per image.
        data: location of the data; None if they come with a package.
        compute_context: context entered while a task computes on the device, which is not data loading.
    """

    workers: int = 0
    corrupt: Literal["skip", "fail"] = "skip"
    warn: Callable[[str], None] = lambda text: None
    data: str | None = None
    compute_context: ComputeContext = contextlib.nullcontext


class Batch(NamedTuple):
    """One micro-batch, or one slice of the validation set.

    Attributes:
        inputs: arguments of the model's forward pass.
        targets: of the loss.
        share: weight of this micro-batch's mean loss in the loss of its global batch.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    share: float = 1.0


class Task(Protocol):
    """Interface for the training loop: batches, loss and validation metrics."""

    fingerprint: str
    """Identifies the data and their order: no run resumes on other data; empty for packaged data."""

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yield the micro-batches of this process for steps first_step, first_step + 1, ... without end.

        Each step has one for each of `BatchShare.slices`, in that order. A sample depends only on (seed, step, position
        in the global batch): a resumed run sees the same samples, on any number of processes.
        """
        ...

    def validation(self) -> Iterator[Batch]:
        """Yield this process's share of the validation set in slices; all shares together hold each sample once."""
        ...

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the training loss, a scalar: the mean over the batch."""
        ...

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 sums over a validation slice, such as (loss, samples); the loop adds them up."""
        ...

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics of an evaluation, val_loss (nats) among them, from the sums over all slices."""
        ...


class FixedBatchTask:
    """A task that repeats one batch, for measurements of speed, memory and scaling."""

    fingerprint = ""

    def __init__(self, batch: Batch, loss: Callable[[Tensor, Batch], Tensor]) -> None:
        self._batch = batch
        self.loss = loss

    def batches(self, first_step: int) -> Iterator[Batch]:
        return itertools.repeat(self._batch)

    def validation(self) -> Iterator[Batch]:
        return iter((self._batch,))

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.loss(outputs, batch).double()[None]

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"val_loss": sums[0]}


class Classification:
    """Loss and metrics of classification; `label_smoothing` applies to targets that are class indices."""

    def __init__(self, label_smoothing: float) -> None:
        self._label_smoothing = label_smoothing

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of logits (B, K); targets are class indices [B] or probabilities [B, K]."""
        return functional.cross_entropy(outputs, batch.targets, label_smoothing=self._label_smoothing)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 (sum of cross-entropies, number of correct top-1 predictions, number of images)."""
        # In float32 also under mixed precision: validation losses of runs are compared.
        loss = functional.cross_entropy(outputs.float(), batch.targets, reduction="sum")
        correct = (outputs.argmax(dim=-1) == batch.targets).sum()
        count = torch.full((), len(batch.targets), dtype=torch.float64, device=loss.device)
        return torch.stack([loss.double(), correct.double(), count])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return val_loss (mean cross-entropy, nats) and val_accuracy (fraction)."""
        loss, correct, count = sums
        return {"val_loss": loss / count, "val_accuracy": correct / count}
