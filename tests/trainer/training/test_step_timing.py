"""Figures of speed against numbers worked out by hand; the clock is told the time."""

import pytest

from ettsweep.runs.attempt import TimeSpent
from ettsweep.trainer.training.step_timing import Timings
from ettsweep.trainer.training.stream import SharedClock


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def fail_after(self, seconds: float) -> None:
        self.now_s += seconds
        raise OSError("disk full")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_is_of_the_steps_since_the_line_before(clock: Clock) -> None:
    timings = Timings(64, 10**9, 2e12, 2, TimeSpent(100.0, 30.0), 20, clock, clock)
    clock.now_s += 8
    timings.line(30, 200, 2.0, None)
    clock.now_s += 2
    assert timings.line(50, 200, 0.5, 3 * 2**29) == pytest.approx(
        {
            "step": 50,
            "progress": 0.25,
            "wall_s": 110,
            "device_s": 50,
            "steps_per_s": 3,  # 30 steps of this attempt in 10 s
            "step_s": 0.1,  # 20 steps in 2 s
            "samples_per_s": 640,
            "utilisation": 0.32,  # 640 samples of 1e9 FLOPs, of 2e12
            "data_wait": 0.25,
            "memory_gib": 1.5,
        }
    )


def test_evaluation_and_checkpoints_are_no_training(clock: Clock) -> None:
    timings = Timings(8, 10, None, 1, TimeSpent(0.0, 0.0), 0, clock, clock)
    with timings.not_training():
        clock.now_s += 30
    clock.now_s += 4
    with pytest.raises(OSError, match="full"), timings.not_training():
        clock.fail_after(6)
    line = timings.line(10, 100, 1.0, None)
    assert (line["step_s"], line["samples_per_s"], line["data_wait"]) == pytest.approx((0.4, 20, 0.25))
    assert (line["wall_s"], line["steps_per_s"]) == pytest.approx((40, 0.25)), "of everything"
    clock.now_s += 4
    assert timings.line(20, 100, 0.0, None)["step_s"] == pytest.approx(0.4), "what was left out counts once"
    assert timings.spent == pytest.approx((44, 44))
    clock.now_s += 10
    timings.line(30, 100, 3.4, 2**31)
    summary = timings.summary()
    assert summary.pop("utilisation") is None
    assert summary == pytest.approx(
        {"step_s": 0.4, "samples_per_s": 8 * 30 / 18, "data_wait": 4.4 / 18, "memory_gib": 2.0}
    )


def test_without_a_step_a_peak_or_time_nothing_is_made_up(clock: Clock) -> None:
    timings = Timings(8, 10, None, 1, TimeSpent(0.0, 0.0), 0, clock, clock)
    assert set(timings.summary().values()) == {None}
    line = timings.line(1, 10, 0.0, None)
    assert line["step_s"] > 0, "a clock that stands still divides nothing by zero"
    assert (line["utilisation"], line["memory_gib"]) == (None, None)


def test_who_shares_devices_pays_a_part_of_their_seconds_and_is_as_fast_as_that_lets_it_be(clock: Clock) -> None:
    shared = SharedClock(4, clock)
    timings = Timings(8, 10, None, 2, TimeSpent(0.0, 0.0), 0, shared, clock)
    clock.now_s += 20
    shared.begin_round(2)
    clock.now_s += 6
    line = timings.line(8, 100, 2.0, None)
    assert (line["wall_s"], line["device_s"]) == (26, 2 * (20 / 4 + 6 / 2))
    assert (line["step_s"], line["data_wait"]) == (1.0, 0.25), "of 5 s and 3 s"
    assert line["steps_per_s"] == pytest.approx(8 / 26), "whoever waits for it waits as long as that"
