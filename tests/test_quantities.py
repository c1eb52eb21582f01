"""Scores, shares and probabilities as text: one rule for each."""

import pytest

from ettsweep.quantities import (
    as_share,
    bound_text,
    deviation_text,
    difference_text,
    header,
    hours_text,
    probability_text,
    score_text,
    score_with_error,
    share_text,
    three_digits,
)
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS


@pytest.mark.parametrize(
    ("value", "text"), [(2.0**-6, "0.0156"), (3.0517578e-7, "3.05e-7"), (2048.0, "2048"), (1234567.0, "1.23e6")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_the_error_of_a_score_has_its_decimals() -> None:
    assert score_text(0.97703, BEST_ACCURACY) == "97.70%"
    assert score_text(0.0071236, LOWEST_LOSS) == "0.007124"
    assert score_with_error(0.0783412, 0.00612, LOWEST_LOSS) == "0.07834 ± 0.00612"
    assert score_with_error(0.97703, 0.0021, BEST_ACCURACY) == "97.70 ± 0.21%"
    assert score_with_error(1.2e7, 3.1e6, LOWEST_LOSS) == "(1.20 ± 0.31)e7"


def test_a_bound_is_rounded_up_and_a_difference_to_the_nearest() -> None:
    assert bound_text(0.0934, LOWEST_LOSS) == "9.4%"
    assert difference_text(0.0934, None, LOWEST_LOSS, signed=False) == "9.3%"
    assert difference_text(0.0024, 0.0511, LOWEST_LOSS) == "+0.2 ± 5.1%"
    assert difference_text(-0.0045, 0.00122, BEST_ACCURACY) == "−0.45 ± 0.12 points"
    assert deviation_text(0.0391, LOWEST_LOSS) == "3.9%"
    # A margin is what was set, to the last digit.
    assert share_text(0.0255, LOWEST_LOSS) == "2.55%"
    assert share_text(0.002, BEST_ACCURACY) == "0.2 points"
    assert bound_text(0.07 * 0.3 / 0.3, LOWEST_LOSS) == "7%"


def test_probabilities_are_whole_percents_and_never_certain() -> None:
    assert [probability_text(p) for p in (0.7065, 0.999, 0.004)] == ["71%", "more than 99%", "less than 1%"]


def test_headers_of_scores_have_a_unit_and_device_hours_two_digits() -> None:
    names = ("best_loss", "final_accuracy", "lr")
    assert [header(name) for name in names] == ["best_loss (nats)", "final_accuracy (%)", "lr"]
    assert [hours_text(hours) for hours in (0.0135, 0.4, 12.4, 0.0)] == ["0.013", "0.4", "12", "0"]


def test_a_difference_is_a_share_of_the_loss_and_an_accuracy_in_its_own_unit() -> None:
    assert as_share(0.02, 0.4, LOWEST_LOSS) == pytest.approx(0.05)
    assert as_share(0.02, -0.4, LOWEST_LOSS) == pytest.approx(0.05)
    assert as_share(0.02, 0.4, BEST_ACCURACY) == 0.02
    assert as_share(0.02, 0.0, LOWEST_LOSS) is None
