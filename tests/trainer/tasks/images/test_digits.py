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


def known_digits() -> Any:
    """Return the data set by scikit-learn's own loader."""
    from sklearn.datasets import load_digits  # takes a second

    return load_digits()


def digits(batch_size: int = 32, seed: int = 0, share: BatchShare | None = None, **task: object) -> Digits:
    return Digits(DigitsTask.model_validate(task), VIT, seed, CPU, share or BatchShare(batch_size), LoaderSettings())


def validation(task: Digits) -> tuple[torch.Tensor, torch.Tensor]:
    slices = list(task.validation())
    return torch.cat([batch.inputs[0] for batch in slices]), torch.cat([batch.targets for batch in slices])


def epoch(task: Digits, number: int = 0) -> list[Batch]:
    steps = task.steps_per_epoch
    return list(itertools.islice(task.batches(number * steps + 1), steps))


def training(task: Digits) -> torch.Tensor:
    return torch.cat([batch.inputs[0] for batch in epoch(task)])


def images(x: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in x]


def test_split_covers_the_whole_data_set_once() -> None:
    task = digits(batch_size=1)
    train, (val, labels) = training(task), validation(task)
    assert (train.shape, val.shape, labels.shape) == ((797, 1, 8, 8), (1000, 1, 8, 8), (1000,))
    assert not set(images(train)) & set(images(val))
    pixels = known_digits().images
    chosen = torch.cat([train, val]).double().numpy()
    # Undo the normalisation by the darkest and the brightest value there is, 0 and 16.
    restored = np.rint((chosen - chosen.min()) / (chosen.max() - chosen.min()) * 16)[:, 0]
    assert sorted(map(bytes, restored.astype(np.uint8))) == sorted(map(bytes, pixels.astype(np.uint8)))


def test_labels_stay_with_their_images() -> None:
    source = known_digits()
    zip_result = dict(zip(map(bytes, source.images.astype(np.uint8)), source.target, strict=True))
    task = digits(batch_size=1)
    val, labels = validation(task)
    train = epoch(task)
    for x, y in [(val, labels), (torch.cat([b.inputs[0] for b in train]), torch.cat([b.targets for b in train]))]:
        low, high = float(val.min()), float(val.max())
        pixels = np.rint((x.double().numpy()[:, 0] - low) / (high - low) * 16).astype(np.uint8)
        assert [zip_result[bytes(image)] for image in pixels] == y.tolist()


def test_training_images_have_mean_0_and_variance_1() -> None:
    x = training(digits(batch_size=1)).double()
    assert abs(float(x.mean())) < 1e-6
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_split_depends_on_its_own_seed_only() -> None:
    val = validation(digits(seed=0))[0]
    assert torch.equal(val, validation(digits(seed=1, batch_size=7))[0])
    assert not torch.equal(val, validation(digits(split_seed=1))[0])
    train_size = 1790
    assert len(validation(digits(train_size=train_size))[0]) == 7


def test_a_training_image_comes_at_most_once_an_epoch() -> None:
    task = digits(batch_size=64)
    assert task.steps_per_epoch == 12
    for number in range(3):
        batches = epoch(task, number)
        assert [len(batch.targets) for batch in batches] == [64] * 12
        images_result = images(torch.cat([batch.inputs[0] for batch in batches]))
        assert len(set(images_result)) == len(images_result) == 768


def test_batches_depend_on_seed_and_step_only() -> None:
    islice_result = list(itertools.islice(digits().batches(1), 60))
    assert digits().steps_per_epoch == 24
    for first in (2, 24, 25, 26, 48, 49, 59):
        torch.manual_seed(first)
        for step, batch in enumerate(itertools.islice(digits().batches(first), 60 - first), start=first):
            assert torch.equal(batch.inputs[0], islice_result[step - 1].inputs[0]), step
            assert torch.equal(batch.targets, islice_result[step - 1].targets), step
    other = next(digits(seed=1).batches(1))
    assert not torch.equal(other.inputs[0], islice_result[0].inputs[0])
    assert not torch.equal(islice_result[0].inputs[0], islice_result[24].inputs[0]), "epochs differ"


def test_one_batch_can_be_the_whole_training_set() -> None:
    task = digits(batch_size=797)
    assert task.steps_per_epoch == 1
    first, second = itertools.islice(task.batches(1), 2)
    assert sorted(images(first.inputs[0])) == sorted(images(second.inputs[0]))


# --- some samples only ------------------------------------------------------------------------------------------------


def epoch_images(task: Digits, number: int = 0) -> list[int]:
    """Return a number for each image of an epoch."""
    return list(map(hash, images(torch.cat([batch.inputs[0] for batch in epoch(task, number)]))))


def test_all_images_come_in_the_order_that_seed_and_epoch_say() -> None:
    """An epoch of one batch tells which image has which number."""
    zip_result = dict(zip(permutation(0, 0, 797).tolist(), epoch_images(digits(797)), strict=True))
    for seed, number in ((0, 0), (3, 0), (3, 2)):
        order = permutation(seed, number, 797)[: 24 * 32]
        assert epoch_images(digits(seed=seed), number) == [zip_result[k] for k in order.tolist()]


def permutation(seed: int, number: int, samples: int) -> Any:
    return np.random.default_rng(derive_seed(seed, "order", number)).permutation(samples)


def test_every_run_trains_on_the_same_samples_and_on_no_other() -> None:
    task = digits(25, samples=100)
    assert task.steps_per_epoch == 4
    chosen = set(epoch_images(task))
    assert len(chosen) == 100
    assert chosen < set(epoch_images(digits(797)))
    for seed, number in ((0, 1), (1, 0), (7, 3)):
        epoch_images_result = epoch_images(digits(25, seed, samples=100), number)
        assert set(epoch_images_result) == chosen
        assert epoch_images_result != epoch_images(task), "in another order"
    assert set(epoch_images(digits(100, samples=100))) == chosen, "whatever the batch"


def test_processes_share_the_samples_of_a_batch() -> None:
    epoch_result = epoch(digits(25, samples=100))
    epochs = [epoch(digits(share=BatchShare(25, rank, 2), samples=100)) for rank in (0, 1)]
    for pair, batch in zip(zip(*epochs, strict=True), epoch_result, strict=True):
        assert torch.equal(torch.cat([section.inputs[0] for section in pair]), batch.inputs[0])
        assert torch.equal(torch.cat([section.targets for section in pair]), batch.targets)


def test_fewer_samples_leave_the_validation_images_as_they_are() -> None:
    for ours, theirs in zip(validation(digits(samples=32)), validation(digits()), strict=True):
        assert torch.equal(ours, theirs)


def test_an_epoch_is_as_long_as_its_samples() -> None:
    spec = DigitsTask(samples=70)
    assert digits(32, samples=70).steps_per_epoch == steps_per_epoch(spec, 32) == 2
    assert steps_per_epoch(spec, 32) == 2
    assert steps_per_epoch(DigitsTask(samples=797), 32) == steps_per_epoch(DigitsTask(), 32) == 24


def test_all_samples_by_number_are_all_samples() -> None:
    for ours, theirs in zip(epoch(digits(samples=797)), epoch(digits()), strict=True):
        assert torch.equal(ours.inputs[0], theirs.inputs[0])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (798, "task.samples: 798 is more than the 797 training images"),
        (31, "batch_size: 32 is more than the 31 training images"),
    ],
)
def test_more_than_there_are_is_refused(samples: int, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        check_compatible(DigitsTask(samples=samples), VIT, 32)


def test_a_task_never_has_fewer_samples_than_it_is_asked_for() -> None:
    with pytest.raises(
        InputError, match=r"^task\.samples: 798 were requested, only 797 training samples are available$"
    ):
        digits(samples=798)


# --- validation and sums ----------------------------------------------------------------------------------------------


def test_validation_can_be_read_again() -> None:
    task = digits()
    assert torch.equal(validation(task)[0], validation(task)[0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_sums_are_cross_entropies(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((5, 10)), np.array([3, 0, 9, 9, 1])
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    picked = log_p[np.arange(5), labels]
    batch = Batch((torch.zeros(5, 1, 8, 8),), torch.from_numpy(labels))
    task = digits(label_smoothing=smoothing)
    loss = task.loss(torch.from_numpy(logits).float(), batch)
    assert float(loss) == pytest.approx(-((1 - smoothing) * picked + smoothing * log_p.mean(axis=1)).mean(), rel=1e-6)
    sums = task.measure(torch.from_numpy(logits).float(), batch)
    assert sums.dtype == torch.float64
    right = int((logits.argmax(axis=1) == labels).sum())
    assert sums.tolist() == pytest.approx([-picked.sum(), right, 5], rel=1e-6)
