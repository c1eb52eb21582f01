"""ImageNet from a folder: real JPEG files, made here, through the very code that trains at full size."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ettsweep.errors import DataMissingError, InputError
from ettsweep.spec import ImageNetTask, VitSpec
from ettsweep.tasks.imagenet import ImageNet
from ettsweep.tasks.registry import IMAGENET_ENV, check_data, check_fits

# timm leaves it to Pillow to close the files that it opens.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TINY = VitSpec(width=16, depth=1, heads=2, patch_size=16, image_size=32, classes=1000)
CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes with 12 training and 3 validation images each; ETTSWEEP_IMAGENET points at them."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 3)):
        for label in ("n01", "n02", "n03"):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (40, 56, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / label / f"{i}.jpg")
    monkeypatch.setenv(IMAGENET_ENV, str(tmp_path))
    return tmp_path


def task(seed: int = 0, batch_size: int = 8, **changes: object) -> ImageNet:
    return ImageNet(ImageNetTask.model_validate({"resize": 36, **changes}), TINY, batch_size, seed, CPU)


@pytest.mark.usefixtures("folder")
def test_a_batch_depends_on_seed_and_step_only() -> None:
    undisturbed = list(itertools.islice(task().batches(1), 7))  # beyond the epoch of four steps
    torch.manual_seed(99)
    resumed = list(itertools.islice(task().batches(6), 2))
    for a, b in zip(undisturbed[5:], resumed, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
    other = next(task(seed=1).batches(1))
    assert not torch.equal(other.inputs, undisturbed[0].inputs)


@pytest.mark.usefixtures("folder")
def test_epochs_differ_in_order_and_augmentation() -> None:
    t = task(mixup=0.0, cutmix=0.0)
    first, second = (list(itertools.islice(t.order(start), t.steps_per_epoch)) for start in (1, 5))
    assert t.steps_per_epoch == 4
    images = [index for batch in first for _, index in batch]
    assert len(set(images)) == 32, "no image twice in an epoch"
    assert [i for b in second for _, i in b] != images
    assert {epoch for batch in second for epoch, _ in batch} == {1}


@pytest.mark.usefixtures("folder")
def test_drawing_a_batch_leaves_the_global_generators_alone() -> None:
    np.random.seed(5)
    random.seed(5)
    wanted = np.random.rand(3), random.random()
    np.random.seed(5)
    random.seed(5)
    next(task().batches(1))
    assert np.array_equal(np.random.rand(3), wanted[0])
    assert random.random() == wanted[1]


@pytest.mark.usefixtures("folder")
def test_targets_are_mixed_and_smoothed_probabilities() -> None:
    batch = next(task().batches(1))
    assert batch.targets.shape == (8, 1000)
    torch.testing.assert_close(batch.targets.sum(1), torch.ones(8))
    assert batch.targets.min() > 0, "smoothing leaves something to every class"
    plain = next(task(mixup=0.0, cutmix=0.0).batches(1))
    assert plain.targets.shape == (8,)


def test_validation_crops_the_centre_and_normalises(folder: Path) -> None:
    Image.new("RGB", (80, 60), (255, 0, 0)).save(folder / "val" / "n01" / "0.jpg")
    batches = list(task().validation())
    assert sum(len(b.targets) for b in batches) == 9
    red = batches[0].inputs[0]
    assert red.shape == (3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(red.mean((1, 2)), (torch.tensor([1.0, 0.0, 0.0]) - mean) / std, atol=0.03, rtol=0)


def test_missing_data_say_how_to_point_at_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(IMAGENET_ENV, raising=False)
    with pytest.raises(DataMissingError, match=r"--data PATH or set ETTSWEEP_IMAGENET"):
        check_data(ImageNetTask())
    monkeypatch.setenv(IMAGENET_ENV, str(tmp_path))
    with pytest.raises(DataMissingError, match=r"train is not a folder"):
        check_data(ImageNetTask())


def test_a_batch_larger_than_the_training_set_is_named(folder: Path) -> None:
    with pytest.raises(DataMissingError, match=r"36 images.*batch is 37"):
        task(batch_size=37)
    assert folder.exists()


def test_an_odd_batch_cannot_be_mixed() -> None:
    with pytest.raises(InputError, match="batch_size: Mixup pairs images, so an even number is needed, got 37"):
        check_fits(ImageNetTask(), TINY, 37)
    check_fits(ImageNetTask(), TINY, 38)
    check_fits(ImageNetTask(mixup=0.0, cutmix=0.0), TINY, 37)
