"""Learning rates at steps whose values follow by hand."""

import math

import pytest

from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.training.schedule import lr_at

R2 = math.sqrt(2)


def schedule(decay: str = "cosine", lr_min: float = 0.0, warmup_steps: int = 4, total_steps: int = 12) -> ScheduleSpec:
    return ScheduleSpec.model_validate(
        {
            "total_steps": total_steps,
            "warmup_steps": warmup_steps,
            "decay": decay,
            "lr_min": lr_min,
            "eval_every": 1,
        }
    )


def test_warmup_is_linear_from_a_first_step_that_moves() -> None:
    assert [lr_at(step, 8.0, schedule()) for step in (1, 2, 3, 4)] == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("decay", "lr_min", "expected"),
    [
        ("cosine", 0.0, [4 + 2 * R2, 4.0, 4 - 2 * R2, 0.0]),
        ("cosine", 2.0, [5 + 1.5 * R2, 5.0, 5 - 1.5 * R2, 2.0]),
        ("linear", 0.0, [6.0, 4.0, 2.0, 0.0]),
        ("linear", 2.0, [6.5, 5.0, 3.5, 2.0]),
    ],
)
def test_decay_at_each_quarter(decay: str, lr_min: float, expected: list[float]) -> None:
    rates = [lr_at(step, 8.0, schedule(decay, lr_min)) for step in (6, 8, 10, 12)]
    assert rates == pytest.approx(expected, abs=1e-15)


def test_without_warmup_the_first_step_is_on_the_decay() -> None:
    assert lr_at(1, 8.0, schedule("linear", warmup_steps=0, total_steps=4)) == 6.0


def test_stopping_early_does_not_bend_the_curve() -> None:
    schedule_result = schedule()
    stopped = schedule_result.model_copy(update={"stop_step": 7})
    assert stopped.last_step == 7
    assert schedule_result.last_step == 12
    assert [lr_at(t, 8.0, stopped) for t in range(1, 8)] == [lr_at(t, 8.0, schedule_result) for t in range(1, 8)]


@pytest.mark.parametrize("lr", [1e-3, 20.0])
def test_vision_schedule_of_the_paper(lr: float) -> None:
    """312 iterations an epoch, 20 epochs of warmup, cosine to 1e-6 at epoch 300."""
    paper = schedule("cosine", 1e-6, 312 * 20, 312 * 300)
    for t in (1, 100, 312 * 20):
        assert lr_at(t, lr, paper) == pytest.approx(lr * t / 6240, rel=1e-12)
    for t in (312 * 20 + 1, 312 * 160, 312 * 299):
        angle = (t - 312 * 20) * math.pi / (312 * 280)
        assert lr_at(t, lr, paper) == pytest.approx(1e-6 + (lr - 1e-6) * (1 / 2 + math.cos(angle) / 2), rel=1e-12)
    assert lr_at(312 * 300, lr, paper) == pytest.approx(1e-6, rel=1e-9)


def test_language_schedule_of_the_paper() -> None:
    """5,000 iterations of warmup, linear to 0 at 200,000; R2C2 stops at 15,000."""
    paper = schedule("linear", 0.0, 5000, 200_000)
    assert lr_at(1, 1e-3, paper) == pytest.approx(2e-7, rel=1e-12)
    assert lr_at(15_000, 1e-3, paper) == pytest.approx(1e-3 * 185 / 195, rel=1e-12)
    assert lr_at(200_000, 1e-3, paper) == 0.0
