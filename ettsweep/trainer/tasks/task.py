"""The protocol between a task and the training loop."""

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
    """What one process of a run trains on: a part of each global batch, cut into micro-batches.

    Attributes:
        batch_size: of the global batch.
        rank, world: of this process, among how many.
        micro_batch: samples that go through the model at once; None for the whole part.
    """

    batch_size: int
    rank: int = 0
    world: int = 1
    micro_batch: int | None = None

    @property
    def span(self) -> range:
        """Positions of this part in the global batch; parts differ by one sample at most."""
        low, high = (self.batch_size * rank // self.world for rank in (self.rank, self.rank + 1))
        return range(low, high)

    @property
    def slices(self) -> list[range]:
        """Positions of each micro-batch in the global batch."""
        size = self.micro_batch or len(self.span)
        return [self.span[first : first + size] for first in range(0, len(self.span), size)]

    def validation(self, samples: int, size: int) -> list[range]:
        """Return the numbers of the validation samples of this process, each `world`-th of all, in slices of a size."""
        mine = range(self.rank, samples, self.world)
        return [mine[first : first + size] for first in range(0, len(mine), size)]


def used(available: int, samples: int | None) -> NDArray[np.int64]:
    """Return the numbers of the samples that runs train on: all that are there, or so many, the same for every run.

    Raises:
        InputError: there are not as many.
    """
    if samples is None:
        return np.arange(available)
    if samples > available:
        raise InputError(f"task.samples: {samples} are asked for, {available} training samples are there")
    return np.sort(np.random.default_rng(derive_seed(0, "samples")).permutation(available)[:samples])


def global_batches(
    samples: NDArray[np.int64], batch_size: int, seed: int, first_step: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield, for each step from `first_step` on, its epoch and its samples.

    An epoch is one permutation from (seed, epoch); its incomplete last batch is dropped.
    """
    steps = len(samples) // batch_size
    epoch, skip = divmod(first_step - 1, steps)
    while True:
        order = samples[np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(len(samples))]
        for k in range(skip, steps):
            yield epoch, order[k * batch_size : (k + 1) * batch_size]
        epoch, skip = epoch + 1, 0


Working = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class LoaderSettings:
    """How samples are read, which does not change them.

    Attributes:
        workers: loader processes; 0 loads in the training process.
        corrupt: what to do about an image that cannot be decoded.
        warn: told, once each, of those that are skipped.
        data: where they are; None where they come with a package.
        working: entered while the device computes on samples that are there, which is no waiting for others.
    """

    workers: int = 0
    corrupt: Literal["skip", "fail"] = "skip"
    warn: Callable[[str], None] = lambda text: None
    data: str | None = None
    working: Working = contextlib.nullcontext


class Batch(NamedTuple):
    """One micro-batch, or one slice of the validation set.

    Attributes:
        inputs: what the model is called with.
        targets: what its outputs are compared with.
        share: how much of its global batch's loss the mean over this micro-batch is.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    share: float = 1.0


class Task(Protocol):
    """What the loop asks of a data set and its loss."""

    fingerprint: str
    """Tells the data in their order from others; empty where there are no others."""

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yield the micro-batches of this process for steps first_step, first_step + 1, ... without end.

        Each step has as many as `Share.slices`, in that order. A sample depends on (seed, step, position in the
        global batch) alone: a resumed run sees what an undisturbed one would, on any number of processes.
        """
        ...

    def validation(self) -> Iterator[Batch]:
        """Yield this process's part of the validation set, in slices; all parts together hold each sample once."""
        ...

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the training loss, a scalar: the mean over the batch."""
        ...

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 sums over a validation slice."""
        ...

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return what is recorded of an evaluation, val_loss (nats) among it, from the sums over all slices."""
        ...


class SameBatch:
    """A task that gives one batch again and again, for steps that only measure."""

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
    """Loss and metrics of a task that tells classes; `label_smoothing` is for targets that are class indices."""

    def __init__(self, label_smoothing: float) -> None:
        self._label_smoothing = label_smoothing

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of logits (B, K); targets are class indices [B] or probabilities [B, K]."""
        return functional.cross_entropy(outputs, batch.targets, label_smoothing=self._label_smoothing)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 (sum of cross-entropies, number of correct top-1 predictions, number of images)."""
        loss = functional.cross_entropy(outputs.float(), batch.targets, reduction="sum")
        correct = (outputs.argmax(dim=-1) == batch.targets).sum()
        count = torch.full((), len(batch.targets), dtype=torch.float64, device=loss.device)
        return torch.stack([loss.double(), correct.double(), count])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return val_loss (mean cross-entropy, nats) and val_accuracy (fraction)."""
        loss, correct, count = sums
        return {"val_loss": loss / count, "val_accuracy": correct / count}
