"""Specs of the tasks on images, and their compatibility with models."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ettsweep.schema import Fraction, NonNegative, OmitFromIdAt, Positive, expect
from ettsweep.trainer.specs import ImageModel, ModelSpec, TaskSpec


class DigitsTask(TaskSpec):
    """Scikit-learn's 8 x 8 digits, with a fixed split into training and validation images.

    Attributes:
        train_size: number of training images; all others are for validation.
        split_seed: seed of the split, which does not change with the seed of a run.
        samples: number of training images to use, the same ones for every run; None for all.
    """

    kind: Literal["digits"] = "digits"
    train_size: Annotated[int, Field(ge=1, le=1796)] = 797
    split_seed: Annotated[int, Field(ge=0)] = 0
    label_smoothing: Fraction = 0.0
    samples: Annotated[Positive | None, OmitFromIdAt(None)] = None


Rgb = Annotated[tuple[float, float, float], Field(strict=False)]

RAND_AUGMENT = re.compile(r"|rand(-(m|n|mmax|inc)\d+|-(mstd|p)\d+(\.\d+)?|-t[a-z0-9]+)*")

RandAugment = Annotated[
    str,
    expect(
        "RandAugment in timm's notation, such as rand-m9-mstd0.5-inc1, or nothing,",
        lambda value: isinstance(value, str) and RAND_AUGMENT.fullmatch(value) is not None,
    ),
    BeforeValidator(lambda value: "" if value is None else value),  # of `--set task.rand_augment=`
]


class ImageTask(TaskSpec):
    """Classification of images on disk; their path is not part of the spec.

    Augmentation is timm's. The defaults are those of the paper's ImageNet recipe.

    Attributes:
        crop: `resized` takes a random crop of at least `crop_scale_min` of the area and resizes it; `padded` pads by an
            eighth of the image size and takes a random crop.
        flip: probability of a horizontal flip.
        rand_augment: RandAugment in timm's notation; empty for none.
        random_erasing: probability that a random rectangle is replaced by noise.
        mixup, cutmix: parameters of their Beta distributions, 0 to turn them off. `mixup_switch` is the probability of
            CutMix if both are on.
        mixup_chunk: number of images that are mixed with each other, with one draw of the mixing weight.
        pixels: library that decodes and resizes training images. `torchvision` is faster; its pixels differ by about
            one level, and by some for a JPEG that is much larger than its crop, which is decoded at reduced size.
        resize: length of the short side before the centre crop of validation images.
        mean, std: of each channel, for normalisation.
        train_size, val_size: number of images, which the data must have.
        samples: number of training images to use, the same ones for every run; None for all.
        split_seed: if given, `val_size` of the images are held out for validation, by a split that this seed fixes for
            all runs; None for data that have validation images.
    """

    named_classes: ClassVar[int | None] = None
    """Number of classes of the data set of the task's name."""

    accepts_any_images: ClassVar[bool] = False
    """`True` if users may train on their own images instead."""

    kind: str
    label_smoothing: Fraction = 0.1
    rand_augment: RandAugment = "rand-m9-mstd0.5-inc1"
    random_erasing: Fraction = 0.25
    mixup: NonNegative = 0.8
    cutmix: NonNegative = 1.0
    mixup_switch: Annotated[float, Field(ge=0, le=1)] = 0.5
    resize: Positive = 256
    # At the values given to OmitFromIdAt, a field is not part of the id of a run.
    mixup_chunk: Annotated[int, Field(ge=2, multiple_of=2), OmitFromIdAt(128)] = 128
    pixels: Annotated[Literal["pillow", "torchvision"], OmitFromIdAt("pillow")] = "pillow"
    crop: Annotated[Literal["resized", "padded"], OmitFromIdAt("resized")] = "resized"
    crop_scale_min: Annotated[float, Field(gt=0, le=1), OmitFromIdAt(0.08)] = 0.08
    flip: Annotated[float, Field(ge=0, le=1), OmitFromIdAt(0.5)] = 0.5
    mean: Annotated[Rgb, OmitFromIdAt((0.485, 0.456, 0.406))] = (0.485, 0.456, 0.406)
    std: Annotated[Rgb, OmitFromIdAt((0.229, 0.224, 0.225))] = (0.229, 0.224, 0.225)
    train_size: Annotated[int, Field(ge=1), OmitFromIdAt(1_281_167)] = 1_281_167
    val_size: Annotated[int, Field(ge=1), OmitFromIdAt(50_000)] = 50_000
    samples: Annotated[Positive | None, OmitFromIdAt(None)] = None
    split_seed: Annotated[int | None, Field(ge=0), OmitFromIdAt(None)] = None

    @property
    def classes(self) -> int | None:
        """Number of classes; None if only the data tell, as for your own images."""
        # No field marks the user's own images, but they differ from ImageNet in size.
        is_custom = self.accepts_any_images and self.train_size != ImageTask.model_fields["train_size"].default
        return None if is_custom else self.named_classes


class ImageNetTask(ImageTask):
    """ImageNet-1k with the paper's augmentation, or any other images of size `train_size` and `val_size`.

    Its name is `images` too, and always for other images; the kind stays `imagenet`, as in the ids of runs.
    """

    named_classes: ClassVar[int | None] = 1000
    accepts_any_images: ClassVar[bool] = True
    kind: Annotated[Literal["imagenet"], BeforeValidator(lambda kind: "imagenet" if kind == "images" else kind)] = (
        "imagenet"
    )

    @property
    def name(self) -> str:
        return self.kind if self.classes else "images"


class CifarTask(ImageTask):
    """Defaults of CIFAR-10 and CIFAR-100: small images, padded crops and flips."""

    label_smoothing: Fraction = 0.0
    rand_augment: RandAugment = ""
    random_erasing: Fraction = 0.0
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    resize: Positive = 32
    crop: Literal["resized", "padded"] = "padded"
    train_size: Annotated[int, Field(ge=1)] = 50_000
    val_size: Annotated[int, Field(ge=1)] = 10_000


class Cifar10Task(CifarTask):
    """CIFAR-10: ten classes of 32 x 32 images."""

    named_classes: ClassVar[int | None] = 10
    kind: Literal["cifar10"] = "cifar10"
    mean: Rgb = (0.4914, 0.4822, 0.4465)
    std: Rgb = (0.2470, 0.2435, 0.2616)


class Cifar100Task(CifarTask):
    """CIFAR-100: a hundred classes of 32 x 32 images."""

    named_classes: ClassVar[int | None] = 100
    kind: Literal["cifar100"] = "cifar100"
    mean: Rgb = (0.5071, 0.4865, 0.4409)
    std: Rgb = (0.2673, 0.2564, 0.2762)


def incompatibilities(task: DigitsTask | ImageTask, model: ModelSpec, batch_size: int) -> list[str]:
    """Return the reasons why a model cannot be trained on this task; empty if it can."""
    if not isinstance(model, ImageModel):
        return [f"model: task {task.name} needs an image model (kind vit), got {model.kind}"]
    expected: dict[str, int | None] = {"image_size": 8, "channels": 1, "classes": 10}
    hint = ""
    if isinstance(task, ImageTask):
        expected = {"channels": 3, "classes": task.classes}
        hint = "; for your own images, set task.train_size and task.val_size" if task.accepts_any_images else ""
    problems = [
        f"model.{key}: task {task.name} has {value}, got {getattr(model, key)}{hint if key == 'classes' else ''}"
        for key, value in expected.items()
        if value not in (None, getattr(model, key))
    ]
    if task.samples and task.samples > task.train_size:
        problems.append(f"task.samples: {task.samples} is more than the {task.train_size} training images")
    if batch_size > (images := task.samples or task.train_size):
        problems.append(f"batch_size: {batch_size} is more than the {images} training images")
    if isinstance(task, DigitsTask):
        return problems
    if (task.mixup or task.cutmix) and batch_size % 2:
        problems.append(
            f"batch_size: Mixup pairs images and needs an even number, got {batch_size}; "
            "or --set task.mixup=0 --set task.cutmix=0"
        )
    if task.pixels == "torchvision" and task.crop != "resized":
        problems.append(f"task.pixels: torchvision needs task.crop=resized, got {task.crop}")
    if task.resize < model.image_size:
        problems.append(f"task.resize: {task.resize} is below model.image_size {model.image_size}")
    return problems
