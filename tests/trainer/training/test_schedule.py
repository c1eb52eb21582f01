"""Learning rates at steps whose values follow by hand."""

import math

import pytest

from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.training.schedule import lr_at

R2 = math.sqrt(2)


def made(**fields: object) -> ScheduleSpec:
    return ScheduleSpec.model_validate({"total_steps": 12, "warmup_steps": 4, "eval_every": 1} | fields)


def test_warmup_is_linear_from_a_first_step_that_moves() -> None:
    assert [lr_at(step, 8.0, made()) for step in (1, 2, 3, 4)] == [2.0, 4.0, 6.0, 8.0]
    assert lr_at(1, 8.0, made(decay="linear", warmup_steps=0, total_steps=4)) == 6.0, "without any, on the decay"


@pytest.mark.parametrize(
    ("decay", "lr_min", "expected"),
    [("cosine", 2.0, [5 + 1.5 * R2, 5.0, 5 - 1.5 * R2, 2.0]), ("linear", 0.0, [6.0, 4.0, 2.0, 0.0])],
)
def test_decay_at_each_quarter(decay: str, lr_min: float, expected: list[float]) -> None:
    rates = [lr_at(step, 8.0, made(decay=decay, lr_min=lr_min)) for step in (6, 8, 10, 12)]
    assert rates == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"decay_shape": "linear"}, [8.0, 8.0, 6.0, 4.0, 2.0, 0.0]),
        ({"decay_shape": "linear", "floor": 0.25}, [8.0, 8.0, 6.5, 5.0, 3.5, 2.0]),
        ({"decay_shape": "sqrt"}, [8.0, 8.0, 4.0, 8 - 4 * R2, 8 - 4 * math.sqrt(3), 0.0]),
    ],
)
def test_plateau_lasts_until_the_share_of_the_run_that_decays(fields: dict[str, object], expected: list[float]) -> None:
    wsd = made(decay="wsd", decay_share=0.25, total_steps=16, warmup_steps=4, **fields)
    assert (wsd.plateau_end, wsd.decay_steps) == (12, 4)
    rates = [lr_at(step, 8.0, wsd) for step in (5, 12, 13, 14, 15, 16)]
    assert rates == pytest.approx(expected, abs=1e-15)
    assert lr_at(11, 8.0, wsd) == 8.0


def test_a_floor_is_the_same_share_at_each_lr_and_an_early_end_does_not_bend_the_curve() -> None:
    cosine = made(floor=0.1)
    for lr in (1e-3, 20.0):
        assert [lr_at(step, lr, cosine) / lr for step in (8, 12)] == pytest.approx([0.55, 0.1], rel=1e-12)
    stopped = made().model_copy(update={"stop_step": 7})
    assert (stopped.last_step, made().last_step) == (7, 12)
    assert [lr_at(t, 8.0, stopped) for t in range(1, 8)] == [lr_at(t, 8.0, made()) for t in range(1, 8)]


@pytest.mark.parametrize("lr", [1e-3, 20.0])
def test_vision_schedule_of_the_paper(lr: float) -> None:
    """312 iterations an epoch, 20 epochs of warmup, cosine to 1e-6 at epoch 300."""
    paper = made(decay="cosine", lr_min=1e-6, warmup_steps=312 * 20, total_steps=312 * 300)
    for t in (1, 100, 312 * 20):
        assert lr_at(t, lr, paper) == pytest.approx(lr * t / 6240, rel=1e-12)
    for t in (312 * 20 + 1, 312 * 160, 312 * 299):
        angle = (t - 312 * 20) * math.pi / (312 * 280)
        assert lr_at(t, lr, paper) == pytest.approx(1e-6 + (lr - 1e-6) * (1 / 2 + math.cos(angle) / 2), rel=1e-12)
    assert lr_at(312 * 300, lr, paper) == pytest.approx(1e-6, rel=1e-9)


def test_language_schedule_of_the_paper() -> None:
    """5,000 iterations of warmup, linear to 0 at 200,000; R2C2 stops at 15,000."""
    paper = made(decay="linear", warmup_steps=5000, total_steps=200_000)
    assert lr_at(1, 1e-3, paper) == pytest.approx(2e-7, rel=1e-12)
    assert lr_at(15_000, 1e-3, paper) == pytest.approx(1e-3 * 185 / 195, rel=1e-12)
    assert lr_at(200_000, 1e-3, paper) == 0.0
