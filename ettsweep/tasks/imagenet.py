"""ImageNet-1k from a folder of class folders, with the paper's augmentation from timm."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ettsweep.errors import DataMissingError
from ettsweep.seeding import derive_seed
from ettsweep.spec import ImageNetTask, VitSpec
from ettsweep.tasks.base import Batch, classification_loss, classification_sums
from ettsweep.tasks.registry import imagenet_folder

VALIDATION_SLICE = 128
MIXUP_CHUNK = 128
"""Images that share one Mixup or CutMix draw; a fixed number, so that draws do not depend on the local batch."""

Item = tuple[int, int]
"""(epoch, index) of a training image: its augmentation is drawn from these."""


class ImageNet:
    """The task of a run: augmentation per (seed, epoch, image), Mixup per (seed, step, chunk)."""

    def __init__(self, spec: ImageNetTask, model: VitSpec, batch_size: int, seed: int, device: torch.device) -> None:
        try:
            from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
            from timm.data.dataset_factory import create_dataset
            from timm.data.mixup import Mixup
            from timm.data.transforms_factory import create_transform
        except ImportError:
            raise DataMissingError("task imagenet needs timm: pip install 'ettsweep[vision]'") from None
        root = str(imagenet_folder())
        self._train = create_dataset("", root=root, split="train")
        self._train.transform = create_transform(
            model.image_size,
            is_training=True,
            color_jitter=0.0,
            auto_augment=spec.rand_augment or None,
            re_prob=spec.random_erasing,
            re_mode="pixel",
            interpolation="bicubic",
            mean=IMAGENET_DEFAULT_MEAN,
            std=IMAGENET_DEFAULT_STD,
        )
        self._validation = create_dataset("", root=root, split="val")
        self._validation.transform = create_transform(
            model.image_size,
            is_training=False,
            crop_pct=model.image_size / spec.resize,
            interpolation="bicubic",
            mean=IMAGENET_DEFAULT_MEAN,
            std=IMAGENET_DEFAULT_STD,
        )
        for part, images in (("train", self._train), ("val", self._validation)):
            classes = len(images.reader.class_to_idx)
            if classes > model.classes or (part == "train" and len(images) < batch_size):
                raise DataMissingError(
                    f"{root}/{part}: {classes} classes, {len(images)} images; the model has {model.classes} classes "
                    f"and a batch is {batch_size} images"
                )
        self._mixup = None
        if spec.mixup > 0 or spec.cutmix > 0:
            self._mixup = Mixup(
                spec.mixup,
                spec.cutmix,
                switch_prob=spec.mixup_switch,
                label_smoothing=spec.label_smoothing,
                num_classes=model.classes,
            )
        self._label_smoothing = 0.0 if self._mixup else spec.label_smoothing
        self._batch_size, self._seed, self._device = batch_size, seed, device
        self.steps_per_epoch = len(self._train) // batch_size
        self._workers = 0 if device.type == "cpu" else min(16, os.cpu_count() or 1)

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yield augmented training batches from `first_step` on."""
        loader: DataLoader[Any] = DataLoader(
            _Seeded(self._train, self._seed),
            batch_sampler=_Order(self, first_step),
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            persistent_workers=False,
        )
        for step, (images_BCHW, labels_B) in enumerate(loader, first_step):
            images_BCHW = images_BCHW.to(self._device, non_blocking=True)
            yield Batch(*self._mix(images_BCHW, labels_B.to(self._device, non_blocking=True), step))

    def order(self, first_step: int) -> Iterator[list[Item]]:
        """Yield the images of each step; each epoch is one permutation from (seed, epoch)."""
        epoch, skip = divmod(first_step - 1, self.steps_per_epoch)
        while True:
            rng = np.random.default_rng(derive_seed(self._seed, "order", epoch))
            chosen = rng.permutation(len(self._train))
            for k in range(skip, self.steps_per_epoch):
                yield [(epoch, int(i)) for i in chosen[k * self._batch_size : (k + 1) * self._batch_size]]
            epoch, skip = epoch + 1, 0

    def _mix(self, images_BCHW: Tensor, labels_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        if self._mixup is None:
            return images_BCHW, labels_B
        mixed = []
        state = np.random.get_state()
        for chunk, start in enumerate(range(0, len(labels_B), MIXUP_CHUNK)):
            np.random.seed(derive_seed(self._seed, "mixup", step, chunk) % 2**32)  # Mixup draws from the global one
            part = slice(start, start + MIXUP_CHUNK)
            mixed.append(self._mixup(images_BCHW[part], labels_B[part]))
        np.random.set_state(state)
        return torch.cat([images for images, _ in mixed]), torch.cat([targets for _, targets in mixed])

    def validation(self) -> Iterator[Batch]:
        """Yield the validation images: short side resized, centre cropped."""
        loader: DataLoader[Any] = DataLoader(self._validation, batch_size=VALIDATION_SLICE, num_workers=self._workers)
        for images_BCHW, labels_B in loader:
            yield Batch(images_BCHW.to(self._device), labels_B.to(self._device))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy with smoothed, mixed targets."""
        return classification_loss(outputs, batch.targets, self._label_smoothing)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return (loss sum, correct, count) of a validation slice."""
        return classification_sums(outputs, batch.targets)


class _Order:
    """Endless batch sampler."""

    def __init__(self, task: ImageNet, first_step: int) -> None:
        self._task, self._first_step = task, first_step

    def __iter__(self) -> Iterator[list[Item]]:
        return self._task.order(self._first_step)


class _Seeded(Dataset[Any]):
    """Training images whose augmentation depends on (seed, epoch, image), not on the loader's workers."""

    def __init__(self, images: Any, seed: int) -> None:
        self._images, self._seed = images, seed

    def __getitem__(self, item: Item) -> Any:
        epoch, index = item
        seed = derive_seed(self._seed, "augment", epoch, index)
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            return self._images[index]
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
