"""Numbers as text, and how finely they are printed."""

import math

import pytest

from ettsweep.readers.numbers import metric_value, resolution, words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), ("3.25", 3.25), (" 1e-05 ", 1e-5), ("3,410.5", 3410.5), ("3.2,", 3.2), ("+.5", 0.5), ("-1", -1.0),
        ("1e999", math.inf), (10**400, None), (True, None), (None, None), ("", None), ("1_000", None), ("3,4", None),
        ("1,234", None),
    ],
)  # fmt: skip
def test_values(value: object, expected: float | None) -> None:
    assert metric_value(value) == expected


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("[12:03] step 100 |##  | 1.7it/s", "[12:59] step 200 |### | 2.1s/it", True),
        ("train step 1", "validation step 1", False),
        ("[rank0]: step 1", "[rank1]: step 1", False),
        ("mean_rank: 3.5", "mean_rank: 4", True),
    ],
)
def test_words_of_lines_of_one_kind_are_the_same(one: str, other: str, is_same: bool) -> None:
    assert (words(one) == words(other)) is is_same


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.2782, 3.28], 1e-4), ([62.5, 50.0], 0.1), ([3.0], 1.0), ([1500.0], 1.0), ([2.345678], 1e-6), ([1.5e-5], 1e-6),
        ([math.nan, math.inf], None), ([], None), ([math.nan, 0.25], 0.01),
    ],
)  # fmt: skip
def test_resolution_is_the_step_between_printed_values(values: list[float], expected: float | None) -> None:
    assert resolution(values) == expected
