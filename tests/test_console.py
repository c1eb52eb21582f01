"""Numbers as tables print them, and as people type them."""

import math

import pytest

from ettsweep.console import Format, cell, parse_number, power, print_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0**-6, "2^-6"),
        (1.0, "2^0"),
        (4.0, "2^2"),
        (2.0**1.5, "2^1.5"),
        (0.5 * 2.0**-0.25 * (1 + 1e-12), "2^-1.25"),
        (0.0, "0"),
        (0.01, "0.01"),
        (1 / 3, "0.3333"),
        (-2.0, "-2"),
        (math.nan, "nan"),
    ],
)
def test_an_lr_is_a_power_of_two_where_it_is_one(value: float, text: str) -> None:
    assert power(value) == cell(value, "lr") == cell(value, "spec.wd") == text
    assert "^" not in cell(value, "best_loss")
    if value >= 0:
        assert parse_number(text) == pytest.approx(value, rel=1e-3 if value == 1 / 3 else 1e-11)


@pytest.mark.parametrize("text", ["", "2^", "2^x", "x", "3^2"])
def test_what_is_no_number_is_no_power(text: str) -> None:
    with pytest.raises(ValueError, match="convert"):
        parse_number(text)


def test_columns_are_aligned_numbers_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "\u6f22\u5b57", "lr": 0.5, "state": "done"}, {"name": "abc", "lr": None, "state": None}]
    print_table(rows, Format.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "name      lr  state",
        "\u6f22\u5b57    2^-1  done",
        "abc",
    ]
    print_table([], Format.TABLE, ["name", "state"])
    assert capsys.readouterr().out == "name    state\n"
