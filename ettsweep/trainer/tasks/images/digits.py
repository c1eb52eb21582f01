"""The task on scikit-learn's digits: 1,797 real 8 x 8 images that come with the package, held on the device."""

import gzip
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ettsweep.seeding import derive_seed
from ettsweep.trainer.specs import ImageModel
from ettsweep.trainer.tasks.data_location import digits_file
from ettsweep.trainer.tasks.images.image_task import DigitsTask
from ettsweep.trainer.tasks.task import (
    Batch,
    BatchShare,
    Classification,
    LoaderSettings,
    global_batches,
    select_training_samples,
)

VALIDATION_SLICE = 500


# Runs of one process share the tensors.
@cache
def _split(train_size: int, split_seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images, labels, validation images, labels; images are normalised [N, 1, 8, 8], labels [N].

    The file is read directly: importing scikit-learn's load_digits takes a second.
    """
    with gzip.open(digits_file(), "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    images, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)
    order = np.random.default_rng(derive_seed(split_seed, "digits split")).permutation(len(images))
    train, validation = order[:train_size], order[train_size:]
    # Of the training images alone: validation images must not influence training.
    mean, std = images[train].mean(), images[train].std()
    images_NCHW = torch.from_numpy(((images - mean) / std)[:, None].astype(np.float32))
    labels_N = torch.from_numpy(labels)
    return images_NCHW[train], labels_N[train], images_NCHW[validation], labels_N[validation]


class Digits(Classification):
    """The task of a run on digits: a fixed split, one mean and standard deviation for all pixels, no augmentation."""

    fingerprint = ""  # packaged data

    def __init__(
        self,
        spec: DigitsTask,
        model: ImageModel,
        seed: int,
        device: torch.device,
        share: BatchShare,
        loading: LoaderSettings,
    ) -> None:
        super().__init__(spec.label_smoothing)
        self._images, self._labels, val_x, val_y = (t.to(device) for t in _split(spec.train_size, spec.split_seed))
        # Slices make views, without copies.
        slices = [
            slice(positions.start, positions.stop, positions.step)
            for positions in share.validation(len(val_y), VALIDATION_SLICE)
        ]
        self._validation = [Batch((val_x[positions_slice],), val_y[positions_slice]) for positions_slice in slices]
        self._seed, self._share = seed, share
        self._training_samples = select_training_samples(spec.train_size, spec.samples)
        self.steps_per_epoch = len(self._training_samples) // share.batch_size

    def batches(self, first_step: int) -> Iterator[Batch]:
        for _, batch in global_batches(self._training_samples, self._share.batch_size, self._seed, first_step):
            batch_B = torch.from_numpy(batch).to(self._labels.device)
            # The last micro-batch may be smaller, so each is weighted by its size.
            for positions in self._share.slices:
                chosen_B = batch_B[positions.start : positions.stop]
                share = len(positions) / self._share.batch_size
                yield Batch((self._images[chosen_B],), self._labels[chosen_B], share)

    def validation(self) -> Iterator[Batch]:
        return iter(self._validation)
