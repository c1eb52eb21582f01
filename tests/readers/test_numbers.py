"""Numbers as text, and how finely they are printed."""

import math

import pytest

from ettsweep.errors import MetricsError
from ettsweep.readers.numbers import metric_value, resolution, step_number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), ("3.25", 3.25), (" 1e-05 ", 1e-5), ("3,410.5", 3410.5), ("3.2,", 3.2), ("+.5", 0.5), ("-1", -1.0),
        ("1e999", math.inf), ("inf", math.inf), (10**400, None), (True, None), (None, None), ("", None), ("n/a", None),
        ("1_000", None), ("3,4", None), ([1], None), ("0x10", None),
    ],
)  # fmt: skip
def test_values(value: object, expected: float | None) -> None:
    assert metric_value(value) == expected


def test_steps_are_whole_numbers() -> None:
    assert [step_number(value, "") for value in (0, 3.0, "00120", "1,000", "2.0")] == [0, 3, 120, 1000, 2]
    for value in (0.5, "x", None, -1, math.nan, math.inf, True, 1e30):
        with pytest.raises(MetricsError, match=r"file: the step .* is no whole number"):
            step_number(value, "file")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.2782, 3.28], 1e-4), ([62.5, 50.0], 0.1), ([3.0], 1.0), ([1500.0], 1.0), ([2.345678], 1e-6), ([1.5e-5], 1e-6),
        ([math.nan, math.inf], None), ([], None), ([math.nan, 0.25], 0.01),
    ],
)  # fmt: skip
def test_resolution_is_the_step_between_printed_values(values: list[float], expected: float | None) -> None:
    assert resolution(values) == expected
