"""lr and wd as tables print them, and as people type them."""

import math
import random

import pytest

from ettsweep.console import format_cell
from ettsweep.powers import format_power, parse_number, power_and_decimal, shortest_decimal
from ettsweep.runs.spec import point_identity
from ettsweep.strategies.strategy import map_point


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0**-6, "2^-6"), (2.0**1.5, "2^1.5"), (0.5 * 2.0**-0.25 * (1 + 1e-12), "2^-1.25"), (0.0, "0"), (0.01, "0.01")],
)
def test_an_lr_is_a_power_of_two_where_it_is_one(value: float, text: str) -> None:
    assert format_power(value) == text
    assert parse_number(text) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("text", ["", "2^x", "3^2", "2^-6 (0.015625"])
def test_what_is_no_number_is_no_power(text: str) -> None:
    with pytest.raises(ValueError, match="convert"):
        parse_number(text)


@pytest.mark.parametrize(
    ("value", "exact", "short"), [(2.0**-20, "2^-20 (9.536743164e-7)", "2^-20 (9.54e-7)"), (0.01, "0.01", "0.01")]
)
def test_words_have_the_exact_decimal_and_tables_three_digits(value: float, exact: str, short: str) -> None:
    assert power_and_decimal(value) == exact
    assert format_cell(value, "lr") == format_cell(value, "spec.wd") == short
    assert parse_number(exact) == pytest.approx(value, rel=1e-9)
    assert parse_number(short) == pytest.approx(value, rel=1e-9), "the power is exact"


def test_a_decimal_that_is_shown_means_the_same_run_and_none_shorter_does() -> None:
    rng = random.Random(0)
    values = [2.0 ** (step / 4) for step in range(-120, 120)]
    values += [math.exp(rng.uniform(-40, 10)) for _ in range(300)]
    values += [map_point(2.0**step, 0.1, 1.0, 0.0, 100)[0] for step in range(-12, 3)]
    for value in values:
        text = shortest_decimal(value)
        assert point_identity({"lr": float(text)}) == point_identity({"lr": value}), text
        digits = len(text.partition("e")[0].replace(".", "").strip("0"))
        if digits > 1:
            assert point_identity({"lr": float(f"{value:.{digits - 1}g}")}) != point_identity({"lr": value}), text
