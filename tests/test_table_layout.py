"""Tables that fit a width: what wraps, what leaves the table, and where it is printed then."""

import pytest

from ettsweep.console import Format, print_table
from ettsweep.table_layout import Column, lay_out, plain

LONG = "RuntimeError: CUDA out of memory, on 2 nodes"


def printed(columns: list[Column], width: int) -> list[str]:
    return [plain(line) for line in lay_out(columns, width)]


def test_headings_and_texts_wrap_between_words() -> None:
    columns = [
        Column("run", ["a", "b"]),
        Column("best loss (nats)", ["0.0861", "12.3"], is_number=True),
        Column("verdict", ["optimal within 5%", "edge"], stays=True),
    ]
    assert printed(columns, 80) == [
        "run  best loss (nats)  verdict",
        "a              0.0861  optimal within 5%",
        "b                12.3  edge",
    ]
    assert printed(columns, 20) == [
        "       best",
        "       loss",
        "run  (nats)  verdict",
        "a    0.0861  optimal",
        "             within",
        "             5%",
        "b      12.3  edge",
    ]


def test_what_is_the_same_in_all_rows_leaves_first_and_is_printed_once() -> None:
    columns = [
        Column("run", ["a", "b"]),
        Column("model", ["vit-n12-l1-h2-p4"] * 2),
        Column("state", ["done", "done"], stays=True),
    ]
    assert printed(columns, 16) == ["in all rows:", "model", "vit-n12-l1-h2-p4", "run  state", "a    done", "b    done"]


def test_a_name_is_printed_above_the_rows_that_share_it_and_a_long_text_below_its_row() -> None:
    columns = [
        Column("run", ["a", "b", "c"]),
        Column("sweep", ["vit-digits-of-monday", "vit-digits-of-monday", "other"]),
        Column("lr", ["0.5", "", "1"], is_number=True),
        Column("reason", ["", LONG, ""]),
    ]
    assert printed(columns, 24) == [
        "run   lr",
        "sweep",
        "vit-digits-of-monday:",
        "a    0.5",
        "b",
        "  reason: RuntimeError:",
        "  CUDA out of memory, on",
        "  2 nodes",
        "sweep other:",
        "c      1",
    ]


def test_an_empty_table_has_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([], Format.TABLE, ["name", "state"])
    assert capsys.readouterr().out == "name  state\n"
