"""Tables on standard output."""

import pytest

from ettsweep.console import Format, print_table


def test_columns_are_aligned_numbers_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "\u6f22\u5b57", "lr": 0.5, "state": "done"}, {"name": "abc", "lr": None, "state": None}]
    print_table(rows, Format.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "name          lr  state",
        "\u6f22\u5b57  2^-1 (0.5)  done",
        "abc",
    ]
    print_table([], Format.TABLE, ["name", "state"])
    assert capsys.readouterr().out == "name  state\n"
