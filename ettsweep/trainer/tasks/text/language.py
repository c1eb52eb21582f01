"""Shared parts of objectives on text: texts of a step and a validation, loss and metrics.

B texts of a batch, T tokens of a target.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ettsweep.errors import DataMissingError, InputError
from ettsweep.token_ids import PAD
from ettsweep.trainer.specs import TextModel
from ettsweep.trainer.tasks.registry import bind_to_data
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings, global_batches, select_training_samples
from ettsweep.trainer.tasks.text.corpus import Corpus, open_corpus
from ettsweep.trainer.tasks.text.pydoc import pydoc_corpus
from ettsweep.trainer.tasks.text.text_data import text_folder
from ettsweep.trainer.tasks.text.text_task import TextTask, reads_pydoc
from ettsweep.trainer.tasks.text.tokenizer import token_bytes

Ids = NDArray[np.int64]

VALIDATION_SLICE = 32
"""Texts of one validation batch. A sample does not depend on it."""

MAX_CACHED_TEXTS = 2000
"""Up to this many validation texts of a process stay on the device; more are made again at each evaluation."""


class LanguageTask(ABC):
    """The task of a run on text.

    The order of the texts depends on (seed, epoch), random draws for a text on (seed, epoch, index). Validation texts
    and their draws are the same for all runs.

    Args:
        spec: the task.
        corpus: the text.
        train, validation: texts of both sides.
        text_tokens: largest number of tokens of a text, for messages.
        seed: the run's.
        device: receives the batches.
        share: this process's share of each batch.

    Raises:
        DataMissingError: the corpus has fewer training texts than a batch.
    """

    def __init__(
        self,
        spec: TextTask,
        corpus: Corpus,
        train: Sized,
        validation: Sized,
        text_tokens: int,
        seed: int,
        device: torch.device,
        share: BatchShare,
    ) -> None:
        self._seed, self._device, self._share = seed, device, share
        self._token_bytes = torch.from_numpy(token_bytes(corpus.tokenizer)).to(device)
        count = min(len(validation), spec.val_blocks)
        # Evenly spread over the corpus: the first documents may all be of one kind.
        spread_indices = np.arange(count) * len(validation) // count
        self._validation_slices = [
            spread_indices[list(positions)] for positions in share.validation(count, VALIDATION_SLICE)
        ]
        if not count:
            raise DataMissingError(
                f"task {spec.kind}: no validation text is long enough for the model's tokens; prepare more text, or a "
                "larger part of it for validation (`ettsweep data text --val-fraction`), or give fewer model.tokens"
            )
        self.fingerprint = corpus.digest
        self._training_samples = select_training_samples(len(train), spec.samples)
        self.steps_per_epoch = len(self._training_samples) // share.batch_size
        if not self.steps_per_epoch:
            texts = len(self._training_samples)
            raise DataMissingError(
                f"task {spec.kind}: batch_size {share.batch_size} is more than the {texts} training texts "
                f"of up to {text_tokens} tokens; --set batch_size={max(1, texts)} or less"
            )

    @abstractmethod
    def target_lengths(self, indices: Ids) -> Ids:
        """Return the number of tokens to predict of each of these training texts."""

    @abstractmethod
    def training_inputs(self, indices: Ids, epoch: int) -> tuple[Ids, ...]:
        """Return the model's arguments for these training texts, the target last, (B, T)."""

    @abstractmethod
    def validation_inputs(self, indices: Ids) -> tuple[Ids, ...]:
        """Return the same for validation texts."""

    def batches(self, first_step: int) -> Iterator[Batch]:
        for epoch, batch_B in global_batches(self._training_samples, self._share.batch_size, self._seed, first_step):
            target_lengths = self.target_lengths(batch_B)
            for positions in self._share.slices:
                chosen = slice(positions.start, positions.stop)
                share = float(target_lengths[chosen].sum() / target_lengths.sum())
                # By tokens, not by texts: `loss` is a mean over the tokens of a micro-batch, and the weighted sum of
                # micro-batches must be the mean over the tokens of the global batch.
                yield self._batch(self.training_inputs(batch_B[chosen], epoch), share)

    def validation(self) -> Iterator[Batch]:
        """Yield this process's validation texts in slices; every run sees the same texts."""
        return iter(
            self._cached_validation
            if sum(map(len, self._validation_slices)) <= MAX_CACHED_TEXTS
            else self._make_validation()
        )

    @cached_property
    def _cached_validation(self) -> list[Batch]:
        return list(self._make_validation())

    def _make_validation(self) -> Iterator[Batch]:
        for indices in self._validation_slices:
            yield self._batch(self.validation_inputs(indices), 1.0)

    def _batch(self, arrays: tuple[Ids, ...], share: float) -> Batch:
        inputs = tuple(self._on_device(torch.from_numpy(array)) for array in arrays)
        return Batch(inputs, inputs[-1], share)

    def _on_device(self, tensor: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)  # pinned, else the copy would block

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy per target token, in nats; `outputs` is the sum over the batch."""
        return outputs / _count_target_tokens(batch)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 (sum of cross-entropies, number of target tokens, of their bytes) of a validation slice."""
        size = self._token_bytes[batch.targets].sum()
        return torch.stack([outputs.double(), _count_target_tokens(batch).double(), size.double()])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return val_loss (nats per target token), val_bits (bits per target token) and val_bits_per_byte."""
        loss, tokens, size = sums
        bits = loss / math.log(2)
        return {"val_loss": loss / tokens, "val_bits": bits / tokens, "val_bits_per_byte": bits / size}


def _count_target_tokens(batch: Batch) -> Tensor:
    return (batch.targets != PAD).sum()


def load_corpus(task: TextTask, model: TextModel, loading: LoaderSettings) -> Corpus:
    """Return the text of a run; `task.corpus` must name its corpus.

    Raises:
        InputError: `task.corpus` is missing.
        DataMissingError: there is no such text.
        CorruptError: the corpus was changed after tokenisation.
    """
    if task.corpus is None:
        local_corpus = bind_to_data(task, loading.data).corpus
        raise InputError(
            f"task.corpus is missing, so the run could train on any text; the text at hand is {local_corpus}"
        )
    return pydoc_corpus(model.vocabulary) if reads_pydoc(task) else open_corpus(text_folder(loading.data))
