"""Budgets: shares that are fair by a brute-force count, and limits in words."""

import math
import random

import pytest

from ettsweep.study.budget import Budget, Forecast, ample_runs, fair_shares, whole_shares


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_those_of_giving_run_by_run_to_whoever_has_used_least(seed: int) -> None:
    rng = random.Random(seed)
    used = {("w", str(k)): float(rng.randrange(30)) for k in range(rng.randrange(1, 6))}
    wanted = {key: float(rng.randrange(20)) if seed % 2 else math.inf for key in used}
    left = rng.randrange(80)
    totals = dict(used)
    for _ in range(left):
        if hungry := [key for key in totals if totals[key] - used[key] < wanted[key]]:
            totals[min(hungry, key=lambda key: (totals[key], key))] += 1
    counted = {key: totals[key] - used[key] for key in used}
    assert whole_shares(left, used, wanted) == counted
    shares = fair_shares(left, used, wanted)
    assert sum(shares.values()) == pytest.approx(min(left, sum(wanted.values())))
    assert all(math.isclose(counted[key], shares[key], abs_tol=1) for key in used)


def test_nothing_left_is_nothing_for_each() -> None:
    used = {("w", "a"): 2.0, ("w", "b"): 5.0}
    wanted = dict.fromkeys(used, math.inf)
    assert fair_shares(-3, used, wanted) == whole_shares(-3, used, wanted) == {("w", "a"): 0, ("w", "b"): 0}
    assert fair_shares(5, {}, {}) == whole_shares(5, {}, {}) == {}


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (Forecast(1, 100), "at least 1 run to come, at most 100"),
        (Forecast(12, 400.7), "at least 12 runs to come, at most 400"),
        (Forecast(12, math.inf), "at least 12 runs to come"),
        (Forecast(12, 12), "12 runs to come"),
    ],
)
def test_runs_to_come_are_a_lower_limit_unless_the_budget_is_less(forecast: Forecast, text: str) -> None:
    assert str(forecast) == text


def test_a_limit_to_copy_has_room_for_twice_the_prediction() -> None:
    assert [ample_runs(runs) for runs in (0, 1, 50, 51, 300)] == [100, 100, 100, 200, 600]
    assert str(Budget(60, None, 1.5)) == "--max-runs 60 --max-hours 1.5"
