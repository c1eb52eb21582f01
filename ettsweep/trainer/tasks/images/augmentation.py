"""Transforms of single images, built from timm's as an ImageTask specifies (theory.md, section 6).

A worker returns uint8 pixels [H, W, C] and the noise of erased rectangles; `Normalisation` turns both into float32
images on the device. So workers pass on a quarter of the bytes.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ettsweep.trainer.tasks.images.image_task import ImageTask
from ettsweep.trainer.tasks.images.sources import Crop, decode_rgb


class ErasedRectangle(NamedTuple):
    """An erased rectangle: its upper left corner, and the noise that replaces it, in normalised values [C, h, w]."""

    top: int
    left: int
    noise: Tensor


class Sample(NamedTuple):
    """An augmented image before normalisation: uint8 [H, W, C], and its erased rectangles."""

    pixels: Tensor
    erased: tuple[ErasedRectangle, ...] = ()


Transform = Callable[[Image.Image], Sample]
"""Turns an RGB image into a sample."""


def training_crop(task: ImageTask, image_size: int) -> Crop:
    """Return how training images are decoded: in full, or only the random crop, already at its final size."""
    return ResizedCrop(image_size, task.crop_scale_min) if task.pixels == "torchvision" else decode_rgb


class ResizedCrop:
    """Decodes a random crop of an image, drawn as in timm, and resizes it with torch.

    A large JPEG is decoded at a half, a quarter or an eighth of its size, quickly by libjpeg-turbo, if the crop is then
    still `DRAFT_MARGIN` times larger than its final size.
    """

    def __init__(self, size: int, scale_min: float) -> None:
        self._size, self._scale = size, (scale_min, 1.0)

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the crop in RGB, [size, size]."""
        from timm.data.transforms import RandomResizedCropAndInterpolation

        box = RandomResizedCropAndInterpolation.get_params(image, self._scale, ASPECT_RATIOS)
        reduction = next((factor for factor in (8, 4, 2) if min(box[2:]) >= factor * DRAFT_MARGIN * self._size), 1)
        full_size = image.size
        if reduction > 1:
            image.draft("RGB", (full_size[0] // reduction, full_size[1] // reduction))
        # The box was drawn for the full size; `image.size` may now be a fraction of it.
        scale_y, scale_x = image.size[1] / full_size[1], image.size[0] / full_size[0]
        top, bottom = round(box[0] * scale_y), round((box[0] + box[2]) * scale_y)
        left, right = round(box[1] * scale_x), round((box[1] + box[3]) * scale_x)
        cut_HWC = torch.from_numpy(np.array(decode_rgb(image).crop((left, top, right, bottom))))
        size = self._size, self._size
        scaled_1CHW = F.interpolate(cut_HWC[None].permute(0, 3, 1, 2), size, mode="bicubic", antialias=True)
        return Image.fromarray(scaled_1CHW[0].permute(1, 2, 0).numpy())


DRAFT_MARGIN = 2
"""By how much a crop must still be scaled down after reduced decoding. With 1, pixels of 1600 x 1200 photographs differ
by 2 levels on average from those of full decoding, with 2 by 0.8; without any reduced decoding, by 0.03."""

ASPECT_RATIOS = (3 / 4, 4 / 3)
"""Range of aspect ratios of a random resized crop: the default of torchvision and timm."""


def training_transform(task: ImageTask, image_size: int) -> Transform:
    """Return the transform after decoding: crop, flip, RandAugment, erasing. It draws from the global generators."""
    from timm.data.transforms_factory import create_transform
    from torchvision import transforms

    # The third part would make tensors, normalise and erase: `Erasing` and `Normalisation` do so here.
    crop, augment, _ = create_transform(
        image_size,
        is_training=True,
        separate=True,
        scale=(task.crop_scale_min, 1.0),
        hflip=task.flip,
        color_jitter=0.0,
        auto_augment=task.rand_augment or None,
        interpolation="bicubic",
        mean=task.mean,  # RandAugment fills empty areas with it
        normalize=False,
    )
    if task.pixels == "torchvision":
        crop = transforms.Compose(crop.transforms[1:])  # `training_crop` crops already
    if task.crop == "padded":
        crop = transforms.Compose(
            [
                transforms.Resize(
                    image_size, transforms.InterpolationMode.BICUBIC
                ),  # changes nothing for images of this size
                transforms.RandomCrop(image_size, padding=image_size // 8),
                transforms.RandomHorizontalFlip(task.flip),
            ]
        )
    for transform in augment.transforms:
        for operation in getattr(transform, "ops", ()):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = partial(_posterize, operation.aug_fn)
    return transforms.Compose([crop, augment, Erasing(task.random_erasing)])  # type: ignore[no-any-return]


def _posterize(posterize: Callable[..., Image.Image], image: Image.Image, bits: int, **kwargs: object) -> Image.Image:
    """Keep the upper bits of each value; black for 0 bits, for which Pillow 13 raises an error."""
    return posterize(image, bits, **kwargs) if bits > 0 else Image.new(image.mode, image.size)


class Erasing:
    """Turns an image into a sample; with some probability, a random rectangle is erased with noise, as in timm."""

    def __init__(self, probability: float) -> None:
        from timm.data.random_erasing import RandomErasing

        self._draw = RandomErasing(probability, mode="pixel", device="cpu") if probability else None

    def __call__(self, image: Image.Image) -> Sample:
        pixels_HWC = torch.from_numpy(np.array(image))
        recorder = _ErasingRecorder(pixels_HWC)
        if self._draw is not None:
            self._draw(recorder)
        return Sample(pixels_HWC, tuple(recorder.erased))


class _ErasingRecorder:
    """Replaces a normalised image in timm's RandomErasing, and records writes."""

    dtype = torch.float32

    def __init__(self, pixels_HWC: Tensor) -> None:
        H, W, C = pixels_HWC.shape
        self._shape = torch.Size((C, H, W))
        self.erased: list[ErasedRectangle] = []

    def size(self) -> torch.Size:
        return self._shape

    def __setitem__(self, index: tuple[slice, slice, slice], noise: Tensor) -> None:
        self.erased.append(ErasedRectangle(index[1].start, index[2].start, noise))


def evaluation_transform(task: ImageTask, image_size: int) -> Transform:
    """Return the transform of validation images: the short side is resized to `task.resize`, then a centre crop."""
    from timm.data.transforms_factory import create_transform
    from torchvision import transforms

    crop = create_transform(
        image_size,
        is_training=False,
        crop_pct=image_size / (task.resize + 0.5),  # timm rounds image_size / crop_pct down: 0.5 hits `resize`
        interpolation="bicubic",
        normalize=False,
    )
    # Without the last step, which makes a tensor.
    *crops, _ = crop.transforms
    return transforms.Compose([*crops, Erasing(0.0)])  # type: ignore[no-any-return]


class Normalisation:
    """Turns uint8 pixels into float32 images, normalised by mean and standard deviation of each channel."""

    def __init__(self, task: ImageTask, device: torch.device) -> None:
        self._white = torch.tensor(
            255.0, device=device
        )  # a GPU would multiply by the reciprocal of a Python number: other bits
        self._mean_C11, self._std_C11 = (
            torch.tensor(values, device=device)[:, None, None] for values in (task.mean, task.std)
        )

    def __call__(self, pixels_BHWC: Tensor, rectangles: list[list[int]], noise: Tensor) -> Tensor:
        """Return images [B, C, H, W]; the rectangles [image, top, left, height, width] take their noise in order."""
        x_BCHW = pixels_BHWC.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        x_BCHW = x_BCHW.div_(self._white).sub_(self._mean_C11).div_(self._std_C11)
        channels, start = x_BCHW.shape[1], 0
        for image, top, left, height, width in rectangles:
            end = start + channels * height * width
            x_BCHW[image, :, top : top + height, left : left + width] = noise[start:end].view(channels, height, width)
            start = end
        return x_BCHW


def seed_generators(seed: int) -> None:
    """Seed all generators that transforms draw from; the generators of GPUs, which dropout uses, are not touched."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the state of the generators that transforms draw from at exit."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
