"""Tasks on images: real JPEG files, made here, through the very code that trains at full size."""

import io
import itertools
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.pictures import CLASSES, pictures, write_cifar, write_folders
from torch import Tensor

from ettsweep.errors import DataMissingError, InputError
from ettsweep.runs.data_location import configured_data, data_env
from ettsweep.schema import identity, validate
from ettsweep.seeding import derive_seed
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.tasks.images import augmentation, chunks, sources
from ettsweep.trainer.tasks.images.classification import Images
from ettsweep.trainer.tasks.images.image_task import (
    Cifar10Task,
    Cifar100Task,
    ImageNetTask,
    ImageTask,
    incompatibilities,
)
from ettsweep.trainer.tasks.registry import check_compatible, steps_per_epoch
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings
from ettsweep.trainer.training.stream import SharedClock, TrainingStream, WaitTimer

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
    islice_result = list(itertools.islice(batches, count))
    batches.close()  # type: ignore[attr-defined]
    return islice_result


def joined(batches: Sequence[Batch]) -> Batch:
    return Batch((torch.cat([b.inputs[0] for b in batches]),), torch.cat([b.targets for b in batches]))


def assert_equal(a: Batch, b: Batch) -> None:
    assert torch.equal(a.inputs[0], b.inputs[0])
    assert torch.equal(a.targets, b.targets)


# --- what a batch is --------------------------------------------------------------------------------------------------


def expected_steps(
    root: Path, batch_size: int, chunk: int, seed: int, used: Sequence[int] = range(36)
) -> Iterator[tuple[Tensor, Tensor]]:
    """Compute batches from timm's parts alone: a plain loop over files, some of them, in order of their names."""
    from timm.data import Mixup, create_transform

    files = sorted((root / "train").glob("*/*.jpg"))
    labels = [sorted(CLASSES).index(file.parent.name) for file in files]
    transform = create_transform(
        32, is_training=True, color_jitter=0.0, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, re_mode="pixel",
        interpolation="bicubic",
    )  # fmt: skip
    mixup = Mixup(0.8, 1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=3)
    step = 0
    for epoch in itertools.count():
        order = np.array(used)[np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(len(used))]
        for k in range(len(used) // batch_size):
            step += 1
            images = []
            chosen = order[k * batch_size : (k + 1) * batch_size]
            for index in chosen.tolist():
                derive_seed_result = derive_seed(seed, "augment", epoch, index)
                random.seed(derive_seed_result)
                np.random.seed(derive_seed_result % 2**32)
                torch.manual_seed(derive_seed_result)
                with Image.open(files[index]) as image:
                    images.append(transform(image.convert("RGB")))
            mixed = []
            for number, start in enumerate(range(0, batch_size, chunk)):
                np.random.seed(derive_seed(seed, "mixup", step, number) % 2**32)
                tolist_result = chosen[start : start + chunk].tolist()
                mixed.append(
                    mixup(torch.stack(images[start : start + chunk]), torch.tensor([labels[i] for i in tolist_result]))
                )
            yield torch.cat([x for x, _ in mixed]), torch.cat([y for _, y in mixed])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_what_timm_makes_of_the_files(folder: Path, workers: int) -> None:
    expected = list(itertools.islice(expected_steps(folder, 14, 6, seed=3), 5))  # two steps an epoch
    take_result = take(task(14, LoaderSettings(workers), seed=3, mixup_chunk=6), 5)
    for (inputs, targets), batch in zip(expected, take_result, strict=True):
        assert torch.equal(batch.inputs[0], inputs)
        assert torch.equal(batch.targets, targets)


def test_randaugment_fills_with_the_mean_of_the_task(folder: Path) -> None:
    from timm.data import create_transform

    mean, std = (0.1, 0.9, 0.4), (0.2, 0.3, 0.4)
    spec = ImageNetTask(mean=mean, std=std, rand_augment="rand-m9-n4")
    ours = augmentation.training_transform(spec, 32)
    theirs = create_transform(
        32, is_training=True, color_jitter=0.0, auto_augment="rand-m9-n4", re_prob=0.25, re_mode="pixel",
        interpolation="bicubic", mean=mean, std=std,
    )  # fmt: skip
    normalise = augmentation.Normalisation(spec, CPU)
    for seed, path in enumerate(sorted((folder / "train").glob("*/*.jpg"))):
        with Image.open(path) as image:
            collected = []
            for transform in (ours, theirs):
                augmentation.seed_generators(seed)
                collected.append(transform(image.convert("RGB")))
        sample = collected[0]
        rectangles = [[0, each.top, each.left, *each.noise.shape[1:]] for each in sample.erased]
        noise = torch.cat([torch.empty(0), *(each.noise.flatten() for each in sample.erased)])
        assert torch.equal(normalise(sample.pixels[None], rectangles, noise)[0], collected[1])


def numbers(images: Images, number: int = 0) -> list[int]:
    """Return the images of an epoch, by their number."""
    first = number * images.steps_per_epoch + 1
    return [index for chunk in itertools.islice(images.order(first), images.steps_per_epoch) for _, index in chunk]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_some_images_are_what_timm_makes_of_their_files(folder: Path, workers: int) -> None:
    used = sorted(numbers(task(14, samples=14)))
    assert len(used) == 14
    expected = list(itertools.islice(expected_steps(folder, 14, 6, 3, used), 3))  # one step an epoch
    take_result = take(task(14, LoaderSettings(workers), seed=3, mixup_chunk=6, samples=14), 3)
    for (inputs, targets), batch in zip(expected, take_result, strict=True):
        assert torch.equal(batch.inputs[0], inputs)
        assert torch.equal(batch.targets, targets)


@pytest.mark.usefixtures("folder")
def test_every_run_trains_on_the_same_images_and_on_no_other() -> None:
    images = task(4, samples=12)
    chosen = numbers(images)
    assert images.steps_per_epoch == 3 == steps_per_epoch(ImageNetTask(train_size=36, samples=14), 4)
    assert len(set(chosen)) == 12
    assert set(chosen) < set(range(36))
    for seed, number in ((0, 1), (1, 0), (5, 2)):
        numbers_result = numbers(task(4, seed=seed, samples=12), number)
        assert set(numbers_result) == set(chosen)
        assert numbers_result != chosen, "in another order"
    sections = [numbers(task(BatchShare(4, rank, 2), samples=12, **PLAIN)) for rank in (0, 1)]
    assert sorted(sections[0] + sections[1]) == sorted(chosen)


@pytest.mark.usefixtures("folder")
def test_fewer_images_leave_the_validation_images_as_they_are() -> None:
    assert_equal(joined(list(task(samples=8).validation())), joined(list(task().validation())))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_depends_on_seed_and_step_only(workers: int) -> None:
    undisturbed = take(task(), 7)  # beyond the epoch of four steps
    torch.manual_seed(99)
    resumed = take(task(loading=LoaderSettings(workers)), 2, first=6)
    for a, b in zip(undisturbed[5:], resumed, strict=True):
        assert_equal(a, b)
    assert not torch.equal(take(task(seed=1), 1)[0].inputs[0], undisturbed[0].inputs[0])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize(("world", "micro_batch"), [(1, 3), (2, None), (3, 4), (3, 1), (5, 2), (20, None)])
def test_processes_share_a_batch_without_changing_it(world: int, micro_batch: int | None, mixes: bool) -> None:
    mixing = {} if mixes else {"mixup": 0.0, "cutmix": 0.0}
    take_result = take(task(20, mixup_chunk=8, **mixing), 2)
    values: list[list[Batch]] = [[], []]
    for rank in range(world):
        share = BatchShare(20, rank, world, micro_batch)
        count = len(share.slices)
        take_value = take(task(share, mixup_chunk=8, **mixing), 2 * count)
        assert [len(batch.targets) for batch in take_value] == 2 * [len(positions) for positions in share.slices]
        for step in (0, 1):
            values[step] += take_value[step * count : (step + 1) * count]
    for step in (0, 1):
        assert_equal(joined(values[step]), take_result[step])


@pytest.mark.usefixtures("folder")
def test_without_mixup_a_process_loads_its_own_images_only() -> None:
    def loaded(**changes: float) -> int:
        t = task(BatchShare(16, rank=1, world=4), mixup_chunk=16, **changes)
        return sum(len(items) for items in itertools.islice(t.order(1), 1))

    assert loaded(mixup=0.0, cutmix=0.0) == 4
    assert loaded() == 16, "image i is mixed with the i-th from the end"


@pytest.mark.usefixtures("folder")
def test_epochs_differ_in_order_and_augmentation() -> None:
    t = task(mixup=0.0, cutmix=0.0)
    first, second = (list(itertools.islice(t.order(start), t.steps_per_epoch)) for start in (1, 5))
    assert t.steps_per_epoch == 4 == steps_per_epoch(ImageNetTask(train_size=36), 8)
    images = [index for batch in first for _, index in batch]
    assert len(set(images)) == 32, "no image twice in an epoch"
    assert [i for b in second for _, i in b] != images
    assert {epoch for batch in second for epoch, _ in batch} == {1}


@pytest.mark.usefixtures("folder")
def test_drawing_a_batch_leaves_the_global_generators_alone() -> None:
    def draw() -> tuple[object, ...]:
        return tuple(np.random.rand(3)), random.random(), float(torch.rand(()))

    def seed() -> None:
        np.random.seed(5)
        random.seed(5)
        torch.manual_seed(5)

    seed()
    draw_result = draw()
    seed()
    take(task(), 1)
    assert draw() == draw_result


# --- every field of the spec ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_targets_are_mixed_and_smoothed_probabilities() -> None:
    batch = take(task(), 1)[0]
    assert batch.targets.shape == (8, 3)
    torch.testing.assert_close(batch.targets.sum(1), torch.ones(8))
    assert batch.targets.min() > 0, "smoothing leaves something to every class"
    plain = take(task(mixup=0.0, cutmix=0.0), 1)[0]
    assert plain.targets.shape == (8,)


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


def one_batch(**changes: object) -> Tensor:
    return take(task(36, **PLAIN | changes), 1)[0].inputs[0]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "change",
    [
        {"rand_augment": "rand-m9-mstd0.5-inc1"},
        {"random_erasing": 0.9},
        {"mixup": 0.8},
        {"cutmix": 1.0},
        {"crop": "padded"},
        {"crop_scale_min": 1.0},
        {"flip": 0.0},
        {"mean": (0.0, 0.0, 0.0)},
        {"std": (1.0, 1.0, 1.0)},
    ],
    ids=str,
)
def test_each_field_of_the_augmentation_counts(change: dict[str, object]) -> None:
    assert not torch.equal(one_batch(**change), one_batch())


@pytest.mark.usefixtures("folder")
def test_mixup_switch_and_chunk_count() -> None:
    mapping = {**PLAIN, "mixup": 0.8, "cutmix": 1.0}
    assert torch.equal(one_batch(**mapping, mixup_switch=1.0), one_batch(**mapping, mixup_switch=1.0))
    assert not torch.equal(one_batch(**mapping, mixup_switch=0.0), one_batch(**mapping, mixup_switch=1.0))
    assert not torch.equal(one_batch(**mapping, mixup_chunk=4), one_batch(**mapping, mixup_chunk=6))


@pytest.mark.usefixtures("folder")
def test_a_randaugment_so_strong_that_it_keeps_no_bit_of_a_colour_works() -> None:
    assert torch.isfinite(one_batch(rand_augment="rand-m10-n20-inc1")).all()


@pytest.mark.parametrize("message", ["rand-m9-mstd0.5-inc1", "rand-m9-n3-p0.5", "rand-m7-mmax20-tweights", ""])
def test_timms_words_for_randaugment_are_known(message: str) -> None:
    from timm.data.auto_augment import rand_augment_transform

    assert ImageNetTask(rand_augment=message).rand_augment == message
    assert not message or rand_augment_transform(message, {})


@pytest.mark.parametrize("message", ["rand-x9", "augmix-m5", "rand-m9.5", "rand_m9", "9"])
def test_words_that_timm_would_stumble_over_are_refused(message: str) -> None:
    with pytest.raises(InputError, match=r"rand_augment: RandAugment in timm's notation, such as .* is expected, got"):
        validate(ImageNetTask, {"rand_augment": message}, "grid")


@pytest.mark.usefixtures("folder")
def test_what_workers_get_can_be_sent_to_new_processes() -> None:
    images = task(36)
    data = pickle.loads(pickle.dumps(images._train))
    problems: list[chunks.Problem] = []
    assert torch.equal(data.load((1, 5), problems)[0].pixels, images._train.load((1, 5), problems)[0].pixels)


def test_a_flip_for_certain_mirrors_an_image(folder: Path) -> None:
    for path in folder.glob("train/*/*.jpg"):
        Image.new("RGB", (32, 32)).save(path)
        half = Image.new("RGB", (32, 32))
        half.paste((255, 255, 255), (0, 0, 16, 32))
        half.save(path, quality=100)
    mapping = {"crop_scale_min": 1.0, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    plain, mirrored = (one_batch(**mapping, flip=flip) for flip in (0.0, 1.0))
    torch.testing.assert_close(mirrored, plain.flip(3))
    assert float(plain[:, :, :, :12].mean()) > 0.95 > 0.05 > float(mirrored[:, :, :, :12].mean())


def test_a_padded_crop_is_the_image_shifted_by_an_eighth_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_cifar(tmp_path, monkeypatch)
    spec = Cifar10Task(train_size=100, val_size=20, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    images = Images(
        spec, TINY.model_copy(update={"classes": 10}), 0, CPU, BatchShare(100), LoaderSettings(data=str(root))
    )
    to_result = (take(images, 1)[0].inputs[0] * 255).round().to(torch.uint8)
    order = [index for items in itertools.islice(images.order(1), 1) for _, index in items]
    import torchvision

    pixels = torch.from_numpy(torchvision.datasets.CIFAR10(root).data).permute(0, 3, 1, 2)
    padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
    set_result = set()
    for image, index in zip(to_result, order, strict=True):
        values = [
            (top, left, flipped)
            for top in range(9)
            for left in range(9)
            for flipped in (False, True)
            if torch.equal(image.flip(2) if flipped else image, padded[index, :, top : top + 32, left : left + 32])
        ]
        assert len(values) == 1
        set_result.add(values[0])
    assert len({top for top, _, _ in set_result}) == len({left for _, left, _ in set_result}) == 9
    assert {flipped for _, _, flipped in set_result} == {False, True}


# --- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resize", [32, 36, 43, 93])
def test_validation_resizes_the_short_side_crops_the_centre_and_normalises(folder: Path, resize: int) -> None:
    from torchvision.transforms import functional

    joined_result = joined(list(task(resize=resize).validation()))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for path, image in zip(sorted(folder.glob("val/*/*.jpg")), joined_result.inputs[0], strict=True):
        with Image.open(path) as file:
            short = functional.resize(file, resize, functional.InterpolationMode.BICUBIC)
        assert min(short.size) == resize
        pixels = functional.to_tensor(functional.center_crop(short, 32))
        torch.testing.assert_close(image, (pixels - mean[:, None, None]) / std[:, None, None])
    assert joined_result.targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("workers", [0, 2])
def test_processes_validate_each_image_once(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from ettsweep.trainer.tasks.images import classification as images

    monkeypatch.setattr(images, "VALIDATION_SLICE", 2)
    joined_result = joined(list(task().validation()))
    for world in (2, 4):
        shares = [
            joined(list(task(BatchShare(8, rank, world), LoaderSettings(workers)).validation()))
            for rank in range(world)
        ]
        for rank, section in enumerate(shares):
            assert_equal(section, Batch((joined_result.inputs[0][rank::world],), joined_result.targets[rank::world]))


# --- images that cannot be used ---------------------------------------------------------------------------------------


def epoch(images: Images, count: int = 1) -> Tensor:
    return torch.cat([batch.inputs[0] for batch in take(images, count * images.steps_per_epoch)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("content", [b"", b"no image", "truncated"], ids=["empty", "text", "truncated"])
def test_a_corrupt_image_is_named_once_and_the_next_one_takes_its_place(
    folder: Path, workers: int, content: bytes | str
) -> None:
    victim = folder / "train" / "n02" / "03.jpg"
    bytes_result = victim.read_bytes()
    victim.write_bytes(bytes_result[: len(bytes_result) // 2] if isinstance(content, str) else content)
    collected: list[str] = []
    images = task(36, LoaderSettings(workers, "skip", collected.append), **PLAIN)
    take_result = take(images, 2)
    assert len(collected) == 1
    assert collected[0].startswith(f"{victim}: cannot be decoded (")
    victim.write_bytes((folder / "train" / "n02" / "04.jpg").read_bytes())
    expected = take(task(36, **PLAIN), 2)
    for a, b in zip(take_result, expected, strict=True):
        assert_equal(a, b)


def test_the_last_image_is_replaced_by_the_first(folder: Path) -> None:
    (folder / "train" / "n10" / "11.jpg").write_bytes(b"")
    take_result = take(task(36, **PLAIN), 1)[0]
    (folder / "train" / "n10" / "11.jpg").write_bytes((folder / "train" / "n01" / "00.jpg").read_bytes())
    expected = take(task(36, **PLAIN), 1)[0]
    assert torch.equal(take_result.inputs[0], expected.inputs[0])
    assert sorted(take_result.targets.tolist()) == [0] * 13 + [1] * 12 + [2] * 11, "with its own label"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_validation_image_is_left_out(folder: Path, workers: int) -> None:
    joined_result = joined(list(task().validation()))
    (folder / "val" / "n02" / "01.jpg").write_bytes(b"GIF89a")
    collected: list[str] = []
    images = task(loading=LoaderSettings(workers, "skip", collected.append))
    for _ in range(2):
        joined_value = joined(list(images.validation()))
        values = [k for k in range(9) if k != 4]
        assert_equal(joined_value, Batch((joined_result.inputs[0][values],), joined_result.targets[values]))
    assert len(collected) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_can_be_an_error_that_says_what_would_work(folder: Path, workers: int) -> None:
    victim = folder / "train" / "n02" / "03.jpg"
    victim.write_bytes(b"")
    with pytest.raises(DataMissingError) as caught:
        take(task(36, LoaderSettings(workers, "fail"), **PLAIN), 1)
    message = str(caught.value)
    assert message.startswith(f"{victim}: cannot be decoded (an empty file)")
    assert "--launch-set trainer.corrupt_images=skip" in message
    assert "ettsweep doctor --data" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_corrupt_images_end_a_run_in_any_case(folder: Path, workers: int) -> None:
    victims = sorted(folder.glob("train/*/*.jpg"))[::3]
    for path in victims:
        path.write_bytes(b"")
    collected: list[str] = []
    with pytest.raises(DataMissingError, match=r"with 10 others, these are too many to skip"):
        take(task(36, LoaderSettings(workers, "skip", collected.append), **PLAIN), 1)
    assert len(collected) == 11


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_ends_a_run_by_name(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "RETRY_PAUSES_S", (0.0, 0.0))
    images = task(36, LoaderSettings(workers, "skip"), **PLAIN)
    victim = folder / "train" / "n02" / "03.jpg"
    victim.unlink()
    with pytest.raises(DataMissingError) as caught:
        take(images, 1)
    assert str(caught.value).startswith(f"{victim}: cannot be read (No such file or directory)")


# --- what must fit ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_other_numbers_of_images_than_the_specs_are_told_with_what_to_set() -> None:
    with pytest.raises(DataMissingError, match=r"found 36 images, task\.train_size is 35.*--set task\.train_size=36"):
        task(train_size=35)
    with pytest.raises(DataMissingError, match=r"found 9 images, task\.val_size is 50000.*--set task\.val_size=9"):
        task(val_size=50_000)
    with pytest.raises(InputError, match=r"^task\.samples: 37 were requested, only 36 training samples are available$"):
        task(samples=37)


def test_a_class_that_one_part_lacks_is_named(folder: Path) -> None:
    for path in (folder / "val" / "n02").iterdir():
        path.unlink()
    with pytest.raises(DataMissingError, match=r"1 classes are in the training images only: n02"):
        task(val_size=6)


def test_the_models_classes_must_be_those_of_the_data(folder: Path) -> None:
    wide = TINY.model_copy(update={"classes": 4})
    with pytest.raises(DataMissingError, match=r"the data have 3 classes, the model has 4: --set model\.classes=3"):
        Images(ImageNetTask.model_validate(SIZES), wide, 0, CPU, BatchShare(8), LoaderSettings(data=str(folder)))


def test_an_odd_batch_cannot_be_mixed() -> None:
    small = ImageNetTask(train_size=100, val_size=10)
    with pytest.raises(InputError, match="batch_size: Mixup pairs images and needs an even number, got 37"):
        check_compatible(small, TINY, 37)
    check_compatible(small, TINY, 38)
    check_compatible(small.model_copy(update={"mixup": 0.0, "cutmix": 0.0}), TINY, 37)


@pytest.mark.parametrize(
    ("spec", "model", "batch_size", "message"),
    [
        (ImageNetTask(), {"classes": 999}, 8, "model.classes: task imagenet has 1000, got 999; for your own images"),
        (Cifar10Task(), {"classes": 100}, 8, "model.classes: task cifar10 has 10, got 100"),
        (Cifar100Task(), {"classes": 10}, 8, "model.classes: task cifar100 has 100, got 10"),
        (Cifar10Task(), {"classes": 10, "channels": 1}, 8, "model.channels: task cifar10 has 3, got 1"),
        (ImageNetTask(train_size=6), {}, 8, "batch_size: 8 is more than the 6 training images"),
        (ImageNetTask(train_size=60, samples=61), {}, 8, "task.samples: 61 is more than the 60 training images"),
        (ImageNetTask(train_size=60, samples=6), {}, 8, "batch_size: 8 is more than the 6 training images"),
        (ImageNetTask(train_size=60, resize=31), {}, 8, "task.resize: 31 is below model.image_size 32"),
    ],
)
def test_what_cannot_be_trained_is_named(spec: ImageTask, model: dict[str, int], batch_size: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_compatible(spec, TINY.model_copy(update=model), batch_size)  # type: ignore[arg-type]
    assert any(line.startswith(message) for line in str(caught.value).splitlines())


def test_images_of_other_sizes_fit_where_patches_do() -> None:
    check_compatible(Cifar10Task(resize=64), TINY.model_copy(update={"classes": 10, "image_size": 64}), 8)
    check_compatible(ImageNetTask(), TINY.model_copy(update={"classes": 1000, "image_size": 64}), 8)
    check_compatible(ImageNetTask(train_size=len(pictures())), TINY, 8)


# --- quicker pixels ---------------------------------------------------------------------------------------------------


def photograph(width: int, height: int, quality: int = 95) -> Image.Image:
    """Return an image with large and small shapes, as photographs have, as it comes out of a JPEG."""
    rng, layers = np.random.default_rng(0), np.zeros((height, width, 3))
    for size, weight in ((6, 90), (24, 40), (96, 22)):
        coarse = rng.normal(0, 1, (size, size * width // height, 3)).clip(-3, 3)
        scaled = Image.fromarray((coarse * 40 + 128).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        layers += (np.asarray(scaled, dtype=float) - 128) / 40 * weight
    file = io.BytesIO()
    Image.fromarray((layers + 128).clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=quality)
    return Image.open(file)


def cropped(spec: ImageNetTask, image: Image.Image, size: int) -> list[Tensor]:
    """Return bytes of ten random crops of an image, [H, W, C]."""
    transform, crop = augmentation.training_transform(spec, size), augmentation.training_crop(spec, size)
    collected = []
    for seed in range(10):
        augmentation.seed_generators(seed)
        file = io.BytesIO()
        image.save(file, "jpeg", quality=95)
        collected.append(transform(sources.decode(file.getvalue(), crop)).pixels.to(torch.int16))
    return collected


@pytest.mark.parametrize(
    ("width", "height", "size", "mean", "largest"),
    [(500, 375, 224, 0.05, 2), (160, 120, 32, 0.05, 2), (1600, 1200, 224, 1.0, 20)],
)
def test_torchvisions_pixels_are_those_of_pillow_within_levels_of_the_same_crops(
    width: int, height: int, size: int, mean: float, largest: int
) -> None:
    """Of much larger images, which are decoded at a part of their size, within more."""
    plain = {"rand_augment": "", "random_erasing": 0.0}
    image = photograph(width, height)
    of_pillow, of_torchvision = (cropped(ImageNetTask(**plain, pixels=pixels), image, size) for pixels in PIXELS)
    differences = torch.stack([(a - b).abs() for a, b in zip(of_pillow, of_torchvision, strict=True)])
    assert 0 < float(differences.float().mean()) < mean
    assert int(differences.max()) <= largest


PIXELS: list[Any] = ["pillow", "torchvision"]


def test_what_follows_a_crop_is_drawn_alike(folder: Path) -> None:
    """RandAugment, erasing and Mixup: with crops of all of an image that need no scaling, all numbers are the same."""
    for number, path in enumerate(folder.glob("train/*/*.jpg")):
        rng = np.random.default_rng(number)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    mapping = {"crop_scale_min": 1.0}
    takes = [take(task(14, pixels=pixels, **mapping), 2) for pixels in PIXELS]
    same = [float((a.inputs[0] == b.inputs[0]).float().mean()) for a, b in zip(*takes, strict=True)]
    assert min(same) > 0.9


def test_a_padded_crop_has_no_quicker_pixels() -> None:
    task = Cifar10Task(pixels="torchvision")
    assert incompatibilities(task, model_spec("vit-cifar10"), 64) == [
        "task.pixels: torchvision needs task.crop=resized, got padded"
    ]


def test_the_field_is_no_part_of_an_id_until_it_is_set() -> None:
    assert "pixels" not in identity(ImageNetTask())
    assert identity(ImageNetTask(pixels="torchvision"))["pixels"] == "torchvision"


def test_loading_is_waited_for_and_mixing_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.data import Mixup

    now_s = [0.0]

    def taking(call: Any, seconds: float) -> Any:
        def timed(*args: Any) -> Any:
            now_s[0] += seconds
            return call(*args)

        return timed

    monkeypatch.setattr(Mixup, "__call__", taking(Mixup.__call__, 100.0))
    monkeypatch.setattr(chunks, "decode", taking(chunks.decode, 1.0))
    clock = SharedClock(clock=lambda: now_s[0])
    waiting = WaitTimer(CPU, clock)
    stream = TrainingStream(
        task(8, LoaderSettings(compute_context=waiting.exclude_compute), mixup_chunk=4), 1, waiting, []
    )
    for _ in range(3):
        next(stream)
    stream.close()
    assert now_s[0] == 3 * (8 * 1.0 + 2 * 100.0)
    assert stream.wait_timer.total_s() == 3 * 8 * 1.0
