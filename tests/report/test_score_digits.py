"""Whether the digits of scores suffice for a margin."""

import pytest

from ettsweep.metric import Metric
from ettsweep.report.score_digits import ScoreDigits
from ettsweep.runs.score_spec import ScoreSpec
from ettsweep.study.criterion import Criterion


@pytest.mark.parametrize(
    ("values", "margin_is", "step", "too_few"),
    [
        ([3.21, 3.2], "share", 0.01, True),  # of 0.032
        ([3.2101, 3.2], "share", 0.0001, False),
        ([3.21, 3.2], "difference", 0.01, True),  # of 0.01
        ([0.1234567890123456, 3.2], "share", 1e-16, False),
    ],
)
def test_the_last_digit_is_held_against_a_tenth_of_the_margin(
    values: list[float], margin_is: str, step: float, too_few: bool
) -> None:
    metric: Metric = ScoreSpec.model_validate({"name": "err", "mode": "min", "margin": margin_is}).metric
    digits = ScoreDigits.of(values, 3.2, metric, Criterion(margin=0.01))
    assert (digits.step, digits.are_too_few) == (step, too_few)
    assert ("above a tenth of the margin" in str(digits)) is too_few
