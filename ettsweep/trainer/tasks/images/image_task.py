"""What tasks with images are: the fields that change the numbers of a run, and which models they fit."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ettsweep.runs.spec import ImageModel, ModelSpec, TaskSpec
from ettsweep.schema import Fraction, NonNegative, OmitFromIdAt, Positive, expect


class DigitsTask(TaskSpec):
    """Scikit-learn's 8 x 8 digits, split once and for all into training and validation images.

    Attributes:
        train_size: training images; all others are for validation.
        samples: training images that are used, chosen once and for all; None for all.
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
        "RandAugment in timm's words, such as rand-m9-mstd0.5-inc1, or nothing,",
        lambda value: isinstance(value, str) and RAND_AUGMENT.fullmatch(value) is not None,
    ),
    BeforeValidator(lambda value: "" if value is None else value),  # `--set task.rand_augment=` is nothing
]


class ImageTask(TaskSpec):
    """Classification of a set of images that lies on disk; where it lies is not part of the spec.

    The augmentation is timm's. The defaults are those of the paper's ImageNet recipe.

    Attributes:
        crop: `resized` is a random resized crop of at least `crop_scale_min` of the area; `padded` pads by an eighth
            of the image size and crops.
        flip: probability of a horizontal flip.
        rand_augment: timm's words for RandAugment; empty for none.
        random_erasing: probability that a rectangle becomes noise.
        mixup, cutmix: their Beta parameters, 0 for none; `mixup_switch` the probability of CutMix where both are on.
        mixup_chunk: images that share one draw of them; they are mixed with each other.
        pixels: what decodes and scales training images; `torchvision` takes less time, and its bytes differ by a level
            here and there, by some where a JPEG that is much larger than its crop is decoded at a part of its size.
        resize: short side before the centre crop of an evaluation.
        mean, std: of each channel, for normalisation.
        train_size, val_size: number of images; the data that are found must have as many.
        samples: training images that are used, chosen once and for all; None for all.
    """

    named_classes: ClassVar[int | None] = None
    """Classes of the set that the kind is named after."""

    any_images: ClassVar[bool] = False
    """Whether images of one's own may take their place."""

    kind: str
    label_smoothing: Fraction = 0.1
    rand_augment: RandAugment = "rand-m9-mstd0.5-inc1"
    random_erasing: Fraction = 0.25
    mixup: NonNegative = 0.8
    cutmix: NonNegative = 1.0
    mixup_switch: Annotated[float, Field(ge=0, le=1)] = 0.5
    resize: Positive = 256
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

    @property
    def classes(self) -> int | None:
        """How many classes there are; None where only the data say, which the number of images tells."""
        is_custom = self.any_images and self.train_size != ImageTask.model_fields["train_size"].default
        return None if is_custom else self.named_classes


class ImageNetTask(ImageTask):
    """ImageNet-1k with the paper's augmentation; any other set of images with `train_size` and `val_size`."""

    named_classes: ClassVar[int | None] = 1000
    any_images: ClassVar[bool] = True
    kind: Literal["imagenet"] = "imagenet"


class CifarTask(ImageTask):
    """What CIFAR-10 and CIFAR-100 share: small images, padded crops and flips."""

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


def misfits(task: DigitsTask | ImageTask, model: ModelSpec, batch_size: int) -> list[str]:
    """Return why a model cannot be trained on images."""
    if not isinstance(model, ImageModel):
        return [f"model: task {task.kind} has images, which {model.kind} cannot read; a vit is expected"]
    expected: dict[str, int | None] = {"image_size": 8, "channels": 1, "classes": 10}
    hint = ""
    if isinstance(task, ImageTask):
        expected = {"channels": 3, "classes": task.classes}
        hint = "; for images of your own, state task.train_size and task.val_size" if task.any_images else ""
    problems = [
        f"model.{key}: task {task.kind} has {value}, got {getattr(model, key)}{hint if key == 'classes' else ''}"
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
            f"batch_size: Mixup pairs images, so an even number is needed, got {batch_size}; "
            "or --set task.mixup=0 --set task.cutmix=0"
        )
    if task.pixels == "torchvision" and task.crop != "resized":
        problems.append(f"task.pixels: torchvision scales resized crops, and task.crop is {task.crop}")
    if task.resize < model.image_size:
        problems.append(f"task.resize: {task.resize} is below model.image_size {model.image_size}")
    return problems
