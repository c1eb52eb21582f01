"""The digits task against scikit-learn's own loader: split, normalisation, order of batches, sums."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from ettsweep.errors import InputError
from ettsweep.seeding import derive_seed
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.images.digits import Digits
from ettsweep.trainer.tasks.images.image_task import DigitsTask
from ettsweep.trainer.tasks.registry import check_compatible, steps_per_epoch
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings

CPU, VIT = torch.device("cpu"), model_spec("vit-digits")


def digits(batch_size: int = 32, seed: int = 0, share: BatchShare | None = None, **task: object) -> Digits:
    return Digits(DigitsTask.model_validate(task), VIT, seed, CPU, share or BatchShare(batch_size), LoaderSettings())


def joined(batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    slices = list(batches)
    return torch.cat([batch.inputs[0] for batch in slices]), torch.cat([batch.targets for batch in slices])


def epoch(task: Digits, number: int = 0) -> list[Batch]:
    return list(itertools.islice(task.batches(number * task.steps_per_epoch + 1), task.steps_per_epoch))


def epoch_images(task: Digits, number: int = 0) -> list[int]:
    """Return a number for each image of an epoch."""
    return [hash(image.numpy().tobytes()) for image in joined(epoch(task, number))[0]]


def equal(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def test_split_covers_the_whole_data_set_once_with_its_labels() -> None:
    from sklearn.datasets import load_digits  # takes a second

    source, task = load_digits(), digits(batch_size=1)
    train, val = joined(epoch(task)), joined(task.validation())
    assert (train[0].shape, val[0].shape) == ((797, 1, 8, 8), (1000, 1, 8, 8))
    pixels, labels = (torch.cat(both).double().numpy() for both in zip(train, val, strict=True))
    # Undo the normalisation by the darkest and the brightest value there is, 0 and 16.
    restored = np.rint((pixels - pixels.min()) / (pixels.max() - pixels.min()) * 16)[:, 0]
    found = sorted(zip(map(bytes, restored.astype(np.uint8)), labels.tolist(), strict=True))
    assert found == sorted(zip(map(bytes, source.images.astype(np.uint8)), source.target.tolist(), strict=True))
    assert abs(float(train[0].double().mean())) < 1e-6
    assert float(train[0].double().std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_split_depends_on_its_own_seed_only() -> None:
    val = joined(digits(seed=0).validation())
    assert equal(val, joined(digits(seed=1, batch_size=7).validation()))
    assert equal(val, joined(digits(samples=32).validation()))
    assert not equal(val, joined(digits(split_seed=1).validation()))
    assert len(joined(digits(train_size=1790).validation())[1]) == 7


def test_all_images_come_in_the_order_that_seed_and_epoch_say() -> None:
    """An epoch of one batch tells which image has which number."""

    def permutation(seed: int, number: int) -> list[int]:
        generator = np.random.default_rng(derive_seed(seed, "order", number))
        return list(map(int, generator.permutation(797)))

    images = dict(zip(permutation(0, 0), epoch_images(digits(797)), strict=True))
    assert len(set(images.values())) == 797
    for seed, number in ((0, 0), (3, 0), (3, 2)):
        assert epoch_images(digits(seed=seed), number) == [images[k] for k in permutation(seed, number)[: 24 * 32]]


def test_every_run_trains_on_the_same_samples_and_on_no_other() -> None:
    task = digits(25, samples=100)
    chosen = epoch_images(task)
    assert task.steps_per_epoch == 4
    assert len(set(chosen)) == 100
    assert set(chosen) < set(epoch_images(digits(797)))
    for seed, number in ((0, 1), (1, 0), (7, 3)):
        others = epoch_images(digits(25, seed, samples=100), number)
        assert set(others) == set(chosen)
        assert others != chosen, "in another order"
    assert set(epoch_images(digits(100, samples=100))) == set(chosen), "whatever the batch"
    shares = [epoch(digits(share=BatchShare(25, rank, 2), samples=100)) for rank in (0, 1)]
    for sections, batch in zip(zip(*shares, strict=True), epoch(task), strict=True):
        assert equal(joined(sections), joined([batch]))


def test_an_epoch_is_as_long_as_its_samples_of_which_there_must_be_enough() -> None:
    assert digits(32, samples=70).steps_per_epoch == steps_per_epoch(DigitsTask(samples=70), 32) == 2
    assert steps_per_epoch(DigitsTask(samples=797), 32) == steps_per_epoch(DigitsTask(), 32) == 24
    with pytest.raises(InputError, match=r"^task\.samples: 798 is more than the 797 training images$"):
        check_compatible(DigitsTask(samples=798), VIT, 32)
    with pytest.raises(InputError, match=r"^batch_size: 32 is more than the 31 training images$"):
        check_compatible(DigitsTask(samples=31), VIT, 32)


def test_loss_and_sums_are_cross_entropies() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((5, 10)), np.array([3, 0, 9, 9, 1])
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    picked = log_p[np.arange(5), labels]
    batch = Batch((torch.zeros(5, 1, 8, 8),), torch.from_numpy(labels))
    task = digits(label_smoothing=0.1)
    loss = task.loss(torch.from_numpy(logits).float(), batch)
    assert float(loss) == pytest.approx(-(0.9 * picked + 0.1 * log_p.mean(axis=1)).mean(), rel=1e-6)
    sums = task.measure(torch.from_numpy(logits).float(), batch)
    assert sums.dtype == torch.float64
    right = int((logits.argmax(axis=1) == labels).sum())
    assert sums.tolist() == pytest.approx([-picked.sum(), right, 5], rel=1e-6)
