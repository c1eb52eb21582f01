"""Scikit-learn's digits: 1,797 real 8 x 8 images that come with the package, kept on the device."""

import gzip
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ettsweep.seeding import derive_seed
from ettsweep.spec import ImageModel
from ettsweep.tasks.base import Batch, Loading, Share, classification_loss, classification_metrics, classification_sums
from ettsweep.tasks.images.spec import DigitsTask
from ettsweep.tasks.packages import digits_file

VALIDATION_SLICE = 500


@cache
def _split(train_size: int, split_seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return normalised training and validation images [N, 1, 8, 8] and their labels [N]."""
    images, labels = _load()
    order = np.random.default_rng(derive_seed(split_seed, "digits split")).permutation(len(images))
    train, validation = order[:train_size], order[train_size:]
    mean, std = images[train].mean(), images[train].std()
    images_NCHW = torch.from_numpy(((images - mean) / std)[:, None].astype(np.float32))
    labels_N = torch.from_numpy(labels)
    return images_NCHW[train], labels_N[train], images_NCHW[validation], labels_N[validation]


def _load() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return images [N, 8, 8] and labels [N] as scikit-learn's load_digits does, without its second of imports.

    Raises:
        DataMissingError: it is not there.
    """
    with gzip.open(digits_file(), "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)


class Digits:
    """The task of a run: a fixed split, global mean and standard deviation, no augmentation."""

    fingerprint = ""  # the package's

    def __init__(self, spec: DigitsTask, seed: int, device: torch.device, share: Share) -> None:
        train_x, train_y, val_x, val_y = (t.to(device) for t in _split(spec.train_size, spec.split_seed))
        self._images, self._labels = train_x, train_y
        mine_x, mine_y = val_x[share.rank :: share.world], val_y[share.rank :: share.world]
        self._validation = [
            Batch((mine_x[start : start + VALIDATION_SLICE],), mine_y[start : start + VALIDATION_SLICE])
            for start in range(0, len(mine_y), VALIDATION_SLICE)
        ]
        self._share = share
        self._seed = seed
        self._label_smoothing = spec.label_smoothing
        self.steps_per_epoch = spec.train_size // share.batch_size

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yield the micro-batches of each step from `first_step` on; an epoch is one permutation from (seed, epoch)."""
        epoch, skip = divmod(first_step - 1, self.steps_per_epoch)
        while True:
            rng = np.random.default_rng(derive_seed(self._seed, "order", epoch))
            order = torch.from_numpy(rng.permutation(len(self._labels))).to(self._labels.device)
            for k in range(skip, self.steps_per_epoch):
                batch_B = order[k * self._share.batch_size : (k + 1) * self._share.batch_size]
                for positions in self._share.slices:
                    chosen_B = batch_B[positions.start : positions.stop]
                    share = len(positions) / self._share.batch_size
                    yield Batch((self._images[chosen_B],), self._labels[chosen_B], share)
            epoch, skip = epoch + 1, 0

    def validation(self) -> Iterator[Batch]:
        """Yield this process's validation images, each `world`-th of all, in slices."""
        return iter(self._validation)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        return classification_loss(outputs, batch.targets, self._label_smoothing)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return (loss sum, correct, count) of a validation slice."""
        return classification_sums(outputs, batch.targets)

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return val_loss and val_accuracy."""
        return classification_metrics(sums)


def load_digits(
    task: DigitsTask, model: ImageModel, seed: int, device: torch.device, share: Share, loading: Loading
) -> Digits:
    """Return the task of a run."""
    return Digits(task, seed, device, share)
