"""Transforms of single images, made of timm's: what theory.md 6 says of data, in the words of an ImageTask."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ettsweep.tasks.images.spec import ImageTask

Transform = Callable[[Image.Image], Tensor]
"""From an RGB image to a normalised tensor [C, H, W]."""


def training_transform(task: ImageTask, image_size: int) -> Transform:
    """Return crop, flip, RandAugment, normalisation and erasing; it draws from the global generators."""
    from timm.data.transforms_factory import create_transform
    from torchvision import transforms

    crop, augment, finish = create_transform(
        image_size,
        is_training=True,
        separate=True,
        scale=(task.crop_scale_min, 1.0),
        hflip=task.flip,
        color_jitter=0.0,
        auto_augment=task.rand_augment or None,
        re_prob=task.random_erasing,
        re_mode="pixel",
        interpolation="bicubic",
        mean=task.mean,
        std=task.std,
    )
    if task.crop == "padded":
        crop = transforms.Compose(
            [
                transforms.Resize(image_size, transforms.InterpolationMode.BICUBIC),  # as good as nothing at that size
                transforms.RandomCrop(image_size, padding=image_size // 8),
                transforms.RandomHorizontalFlip(task.flip),
            ]
        )
    for transform in augment.transforms:
        for operation in getattr(transform, "ops", ()):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = partial(_posterize, operation.aug_fn)
    return transforms.Compose([crop, augment, finish])  # type: ignore[no-any-return]


def _posterize(posterize: Callable[..., Image.Image], image: Image.Image, bits: int, **rest: object) -> Image.Image:
    """Keep the upper bits of each value; where RandAugment keeps none, Pillow raises since 13: that is black."""
    return posterize(image, bits, **rest) if bits > 0 else Image.new(image.mode, image.size)


def evaluation_transform(task: ImageTask, image_size: int) -> Transform:
    """Return a resize of the short side to `task.resize`, a centre crop and normalisation."""
    from timm.data.transforms_factory import create_transform

    return create_transform(  # type: ignore[no-any-return]
        image_size,
        is_training=False,
        crop_pct=image_size / (task.resize + 0.5),  # timm rounds image_size / crop_pct down
        interpolation="bicubic",
        mean=task.mean,
        std=task.std,
    )


def seed_generators(seed: int) -> None:
    """Seed all generators that transforms draw from; the ones of GPUs are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Leave the generators that transforms draw from as they were found."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
