"""Tasks on images: real JPEG files, made here, beside a plain loop over timm's own parts."""

import contextlib
import errno
import io
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.pictures import CLASSES, write_cifar, write_folders
from torch import Tensor

from ettsweep.errors import DataMissingError, InputError
from ettsweep.runs.data_location import configured_data, data_env
from ettsweep.schema import validate
from ettsweep.seeding import derive_seed
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.tasks.images import augmentation, chunks, classification, sources
from ettsweep.trainer.tasks.images.classification import Images
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, Cifar100Task, ImageNetTask, ImageTask
from ettsweep.trainer.tasks.registry import check_compatible
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings

TINY = VitSpec(width=16, depth=1, heads=2, patch_size=16, image_size=32, classes=3)
CPU = torch.device("cpu")
SIZES = {"resize": 36, "train_size": 36, "val_size": 9}
HERE = LoaderSettings()
PLAIN = {"mixup": 0.0, "cutmix": 0.0, "rand_augment": "", "random_erasing": 0.0, "label_smoothing": 0.0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes with 12 training and 3 validation images each; ETTSWEEP_IMAGENET points at them."""
    monkeypatch.setenv(data_env("imagenet"), str(tmp_path))
    return write_folders(tmp_path)


def task(share: BatchShare | int = 8, loading: LoaderSettings = HERE, seed: int = 0, **changes: object) -> Images:
    spec = ImageNetTask.model_validate({**SIZES, **changes})
    changed = replace(loading, data=configured_data("imagenet", None))
    return Images(spec, TINY, seed, CPU, BatchShare(share) if isinstance(share, int) else share, changed)


def take(images: Images, count: int, first: int = 1) -> list[Batch]:
    """Return micro-batches, and end the workers."""
    batches = images.batches(first)
    taken = list(itertools.islice(batches, count))
    batches.close()  # type: ignore[attr-defined]
    return taken


def joined(batches: Sequence[Batch]) -> Batch:
    return Batch((torch.cat([b.inputs[0] for b in batches]),), torch.cat([b.targets for b in batches]))


def assert_equal(a: Batch, b: Batch) -> None:
    assert torch.equal(a.inputs[0], b.inputs[0])
    assert torch.equal(a.targets, b.targets)


def numbers(images: Images, number: int = 0) -> list[int]:
    """Return the images of an epoch, by their number."""
    first = number * images.steps_per_epoch + 1
    return [index for chunk in itertools.islice(images.order(first), images.steps_per_epoch) for _, index in chunk]


# --- what a batch is --------------------------------------------------------------------------------------------------


def timms_batches(
    root: Path, spec: ImageTask, batch_size: int, seed: int, used: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Compute batches from timm's parts alone: a plain loop over files, some of them, in order of their names."""
    from timm.data import Mixup, create_transform

    files = sorted((root / "train").glob("*/*.jpg"))
    labels = torch.tensor([sorted(CLASSES).index(file.parent.name) for file in files])
    transform = create_transform(
        32, is_training=True, color_jitter=0.0, interpolation="bicubic", scale=(spec.crop_scale_min, 1.0),
        hflip=spec.flip, auto_augment=spec.rand_augment or None, re_prob=spec.random_erasing, re_mode="pixel",
        mean=spec.mean, std=spec.std,
    )  # fmt: skip
    mixes = spec.mixup or spec.cutmix
    mixup = Mixup(spec.mixup, spec.cutmix, None, 1.0, spec.mixup_switch, "batch", True, spec.label_smoothing, 3)
    step = 0
    for epoch in itertools.count():
        order = np.array(used)[np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(len(used))]
        for k in range(len(used) // batch_size):
            step += 1
            images, chosen = [], order[k * batch_size : (k + 1) * batch_size]
            for index in chosen.tolist():
                image_seed = derive_seed(seed, "augment", epoch, index)
                random.seed(image_seed)
                np.random.seed(image_seed % 2**32)
                torch.manual_seed(image_seed)
                with Image.open(files[index]) as image:
                    images.append(transform(image.convert("RGB")))
            pieces = []
            for number, start in enumerate(range(0, batch_size, spec.mixup_chunk)):
                np.random.seed(derive_seed(seed, "mixup", step, number) % 2**32)
                within = slice(start, start + spec.mixup_chunk)
                piece = torch.stack(images[within]), labels[chosen[within]]
                pieces.append(mixup(*piece) if mixes else piece)
            yield torch.cat([x for x, _ in pieces]), torch.cat([y for _, y in pieces])


@pytest.mark.parametrize(
    ("workers", "changes"),
    [
        (0, {}),
        (2, {"samples": 14, "random_erasing": 0.9, "mixup_switch": 1.0, "cutmix": 0.2, "label_smoothing": 0.3}),
        (0, PLAIN | {"flip": 1.0, "crop_scale_min": 1.0, "mean": (0.1, 0.9, 0.4), "std": (0.2, 0.3, 0.4)}),
    ],
)
def test_batches_are_what_timm_makes_of_the_files(folder: Path, workers: int, changes: dict[str, Any]) -> None:
    images = task(14, LoaderSettings(workers), seed=3, mixup_chunk=6, **changes)
    spec = ImageNetTask.model_validate(SIZES | {"mixup_chunk": 6} | changes)
    used = sorted(numbers(task(14, samples=14))) if spec.samples else range(36)
    expected = timms_batches(folder, spec, 14, 3, used)
    for batch, (inputs, targets) in zip(take(images, 3), expected, strict=False):  # one step an epoch, or two
        assert torch.equal(batch.inputs[0], inputs)
        assert torch.equal(batch.targets, targets)


@pytest.mark.usefixtures("folder")
def test_a_resumed_run_has_the_batches_of_its_steps_and_draws_from_no_generator_of_others() -> None:
    def draw() -> tuple[object, ...]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(99)
        resumed = take(task(loading=LoaderSettings(2)), 2, first=6)
        for batch, expected in zip(resumed, undisturbed[5:], strict=True):
            assert_equal(batch, expected)
        return random.random(), np.random.rand(), float(torch.rand(()))

    undisturbed = take(task(), 7)  # beyond the epoch of four steps
    assert draw() == draw()
    assert not torch.equal(take(task(seed=1), 1)[0].inputs[0], undisturbed[0].inputs[0])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("world", "micro_batch", "mixes"), [(3, 4, True), (5, 2, False)])
def test_processes_share_a_batch_without_changing_it(world: int, micro_batch: int, mixes: bool) -> None:
    changes = {"mixup_chunk": 8} | ({} if mixes else {"mixup": 0.0, "cutmix": 0.0})
    own = list[Batch]()
    for rank in range(world):
        share = BatchShare(20, rank, world, micro_batch)
        images = task(share, **changes)
        own += take(images, len(share.slices))
        loaded = sum(len(items) for items in itertools.islice(images.order(1), len(images._chunk_shares)))
        assert mixes or loaded == 20 / world, "else image i is mixed with the i-th from the end"
    assert_equal(joined(own), take(task(20, **changes), 1)[0])
    assert max(len(batch.targets) for batch in own) == micro_batch


@pytest.mark.usefixtures("folder")
def test_label_smoothing_enters_once() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0]])
    log_p = logits.log_softmax(1)[0]
    batch = Batch((torch.zeros(1, 3, 32, 32),), torch.tensor([1]))
    smoothed = -(0.8 * log_p[1] + 0.2 * log_p.mean())
    assert float(task(**PLAIN | {"label_smoothing": 0.2}).loss(logits, batch)) == pytest.approx(float(smoothed))
    soft = Batch(batch.inputs, torch.tensor([[0.1, 0.8, 0.1]]))
    mixed = task(label_smoothing=0.2).loss(logits, soft)
    assert float(mixed) == pytest.approx(float(-(soft.targets[0] * log_p).sum())), "Mixup has smoothed the targets"


def test_randaugment_is_in_timms_notation() -> None:
    assert ImageNetTask(rand_augment="rand-m7-n3-mstd0.5-inc1-p0.5").rand_augment
    with pytest.raises(InputError, match=r"rand_augment: RandAugment in timm's notation, such as .* is expected"):
        validate(ImageNetTask, {"rand_augment": "rand-x9"}, "grid")


@pytest.mark.usefixtures("folder")
def test_a_randaugment_so_strong_that_it_keeps_no_bit_of_a_colour_works() -> None:
    (batch,) = take(task(36, **PLAIN | {"rand_augment": "rand-m10-n20-inc1"}), 1)
    assert torch.isfinite(batch.inputs[0]).all()


def test_a_padded_crop_is_the_image_shifted_by_an_eighth_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision

    root = write_cifar(tmp_path, monkeypatch)
    spec = Cifar10Task(train_size=100, val_size=20, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    ten = TINY.model_copy(update={"classes": 10})
    images = Images(spec, ten, 0, CPU, BatchShare(100), LoaderSettings(data=str(root)))
    pixels = torch.from_numpy(torchvision.datasets.CIFAR10(root).data).permute(0, 3, 1, 2)
    padded, shifts = torch.nn.functional.pad(pixels, (4, 4, 4, 4)), set()
    levels = (take(images, 1)[0].inputs[0] * 255).round().to(torch.uint8)
    for image, index in zip(levels, numbers(images), strict=True):
        (shift,) = [
            (top, left, flipped)
            for top, left, flipped in itertools.product(range(9), range(9), (False, True))
            if torch.equal(image.flip(2) if flipped else image, padded[index, :, top : top + 32, left : left + 32])
        ]
        shifts.add(shift)
    assert [len(set(values)) for values in zip(*shifts, strict=True)] == [9, 9, 2]


# --- validation -------------------------------------------------------------------------------------------------------


def test_validation_resizes_the_short_side_crops_the_centre_and_normalises(folder: Path) -> None:
    from torchvision.transforms import functional

    validation = joined(list(task(resize=43).validation()))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for path, image in zip(sorted(folder.glob("val/*/*.jpg")), validation.inputs[0], strict=True):
        with Image.open(path) as file:
            short = functional.resize(file, 43, functional.InterpolationMode.BICUBIC)
        pixels = functional.to_tensor(functional.center_crop(short, 32))
        torch.testing.assert_close(image, (pixels - mean[:, None, None]) / std[:, None, None])
    assert validation.targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_processes_validate_each_image_once_but_for_a_corrupt_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classification, "VALIDATION_SLICE", 2)
    whole, warnings = joined(list(task().validation())), list[str]()
    (folder / "val" / "n02" / "01.jpg").write_bytes(b"GIF89a")  # the fifth of nine
    for rank, own in enumerate(([0, 2, 6, 8], [1, 3, 5, 7])):
        images = task(BatchShare(8, rank, 2), LoaderSettings(2, "skip", warnings.append))
        for _ in range(2):
            assert_equal(joined(list(images.validation())), Batch((whole.inputs[0][own],), whole.targets[own]))
    assert len(warnings) == 1


# --- images that cannot be used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "name", "content"), [(2, "n02/03.jpg", None), (0, "n10/11.jpg", b"")])
def test_a_corrupt_image_is_named_once_and_the_next_one_takes_its_place(
    folder: Path, workers: int, name: str, content: bytes | None
) -> None:
    """With the label of that one, too; after the last comes the first."""
    files = sorted((folder / "train").glob("*/*.jpg"))
    victim = folder / "train" / name
    after = files[(files.index(victim) + 1) % len(files)]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2] if content is None else content)
    warnings = list[str]()
    taken = take(task(36, LoaderSettings(workers, "skip", warnings.append), **PLAIN), 2)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{victim}: cannot be decoded (")
    victim.write_bytes(after.read_bytes())
    for batch, expected in zip(taken, take(task(36, **PLAIN), 2), strict=True):
        assert torch.equal(batch.inputs[0], expected.inputs[0])
    counts = [12, 12, 12]
    counts[CLASSES.index(victim.parent.name)] -= 1
    counts[CLASSES.index(after.parent.name)] += 1
    assert np.bincount(taken[0].targets).tolist() == counts


@pytest.mark.parametrize(("failures", "fatal"), [(2, False), (3, True)])
def test_what_cannot_be_read_is_read_again_twice(
    folder: Path, failures: int, fatal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, read = iter(range(failures)), sources.FolderSource.read

    def stale(source: sources.FolderSource, index: int) -> bytes:
        if next(left, None) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(source, index)

    monkeypatch.setattr(chunks, "RETRY_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(sources.FolderSource, "read", stale)
    with pytest.raises(DataMissingError, match="Stale file handle") if fatal else contextlib.nullcontext():
        assert len(take(task(36), 1)) == 1


def test_images_that_end_a_run_are_named_with_what_would_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_PAUSES_S", (0.0, 0.0))
    victim, warnings = folder / "train" / "n02" / "03.jpg", list[str]()

    def refusal(corrupt: Any) -> str:
        with pytest.raises(DataMissingError) as caught:
            take(task(36, LoaderSettings(2, corrupt, warnings.append), **PLAIN), 1)
        return str(caught.value)

    victim.write_bytes(b"")
    message = refusal("fail")
    assert message.startswith(f"{victim}: cannot be decoded (an empty file)")
    assert "--launch-set trainer.corrupt_images=skip" in message
    assert "ettsweep doctor --data" in message
    for path in sorted(folder.glob("train/*/*.jpg"))[::3]:
        path.write_bytes(b"")
    assert "with 10 others, these are too many to skip" in refusal("skip")
    assert len(warnings) == 11
    write_folders(folder)
    victim.unlink()
    victim.symlink_to(folder / "gone.jpg")
    assert refusal("skip").startswith(f"{victim}: cannot be read (No such file or directory)")


# --- what must fit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "model", "batch_size", "message"),
    [
        (ImageNetTask(), {"classes": 999}, 8, "model.classes: task imagenet has 1000, got 999; for your own images"),
        (Cifar100Task(), {"classes": 100, "channels": 1}, 8, "model.channels: task cifar100 has 3, got 1"),
        (ImageNetTask(train_size=60, samples=61), {}, 8, "task.samples: 61 is more than the 60 training images"),
        (ImageNetTask(train_size=60, samples=6), {}, 8, "batch_size: 8 is more than the 6 training images"),
        (ImageNetTask(train_size=60, resize=31), {}, 8, "task.resize: 31 is below model.image_size 32"),
        (ImageNetTask(train_size=60), {}, 37, "batch_size: Mixup pairs images and needs an even number, got 37"),
        (Cifar10Task(pixels="torchvision"), {"classes": 10}, 8, "task.pixels: torchvision needs task.crop=resized"),
        (ImageNetTask(train_size=60, mixup=0.0, cutmix=0.0), {}, 37, None),
    ],
)
def test_what_cannot_be_trained_is_named(
    spec: ImageTask, model: dict[str, int], batch_size: int, message: str | None
) -> None:
    changed = TINY.model_copy(update=model)
    if message is None:
        check_compatible(spec, changed, batch_size)  # type: ignore[arg-type]
        return
    with pytest.raises(InputError) as caught:
        check_compatible(spec, changed, batch_size)  # type: ignore[arg-type]
    assert any(line.startswith(message) for line in str(caught.value).splitlines())


# --- quicker pixels ---------------------------------------------------------------------------------------------------

PIXELS: list[Any] = ["pillow", "torchvision"]


def photograph(width: int, height: int) -> bytes:
    """Return a JPEG with large and small shapes, as photographs have."""
    rng, layers = np.random.default_rng(0), np.zeros((height, width, 3))
    for size, weight in ((6, 90), (24, 40), (96, 22)):
        coarse = rng.normal(0, 1, (size, size * width // height, 3)).clip(-3, 3)
        scaled = Image.fromarray((coarse * 40 + 128).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        layers += (np.asarray(scaled, dtype=float) - 128) / 40 * weight
    file = io.BytesIO()
    Image.fromarray((layers + 128).clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=95)
    return file.getvalue()


def crops(spec: ImageNetTask, image: bytes, size: int) -> Tensor:
    """Return bytes of ten random crops of an image, [N, H, W, C]."""
    transform, crop = augmentation.training_transform(spec, size), augmentation.training_crop(spec, size)
    cut = []
    for seed in range(10):
        augmentation.seed_generators(seed)
        cut.append(transform(sources.decode(image, crop)).pixels.to(torch.int16))
    return torch.stack(cut)


def test_torchvisions_pixels_are_those_of_pillow_within_levels_of_the_same_crops() -> None:
    """Of images so large that they are decoded at a part of their size; of smaller ones, within two levels."""
    plain, image = {"rand_augment": "", "random_erasing": 0.0}, photograph(1600, 1200)
    of_pillow, of_torchvision = (crops(ImageNetTask(**plain, pixels=pixels), image, 224) for pixels in PIXELS)
    differences = (of_pillow - of_torchvision).abs()
    assert 0 < float(differences.float().mean()) < 1.0
    assert int(differences.max()) <= 20
