"""Budgets: equal shares, and limits in words."""

import math

import pytest

from ettsweep.study.budget import Budget, Forecast, ample_runs, equal_shares

INF = math.inf


@pytest.mark.parametrize(
    ("left", "wanted", "shares"),
    [
        (10, (INF, INF, INF), (4, 3, 3)),
        (10, (INF, 2), (8, 2)),
        (10, (4, 3, 9), (4, 3, 3)),
        (1, (INF, INF), (1, 0)),
        (-3, (INF, 1), (0, 0)),
    ],
)
def test_what_a_study_does_not_want_of_its_equal_share_goes_to_the_others(
    left: int, wanted: tuple[float, ...], shares: tuple[float, ...]
) -> None:
    keys = [("sweep", str(number)) for number in range(len(wanted))]
    assert equal_shares(left, dict(zip(keys, wanted, strict=True))) == dict(zip(keys, shares, strict=True))


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (Forecast(1, 100), "about 1 run left, at most 100"),
        (Forecast(12, 400.7), "about 12 runs left, at most 400"),
        (Forecast(12, 12), "12 runs left"),
    ],
)
def test_runs_to_come_are_a_lower_limit_unless_the_budget_is_less(forecast: Forecast, text: str) -> None:
    assert str(forecast) == text


def test_a_limit_to_copy_has_room_for_twice_the_prediction() -> None:
    assert [ample_runs(runs) for runs in (0, 1, 50, 51, 300)] == [100, 100, 100, 200, 600]
    assert str(Budget(60, None, 1.5)) == "--max-runs 60 --max-hours 1.5"
