"""Tables that fit: columns are left out whole, by rank."""

import pytest

from ettsweep.watch.columns import Column, table_lines

COLUMNS = (Column("run"), Column("sweep", drop_rank=2), Column("loss", align_right=True), Column("where", drop_rank=1))
ROWS = [
    [("a1", ""), ("übung", ""), ("0.5", ""), ("node-1", "dim")],
    [("b22", ""), ("表", ""), ("12.25", "red"), ("node-2", "")],
]


def test_with_room_for_all_columns_they_are_aligned_also_below_wide_characters() -> None:
    head, first, second = (line.plain.rstrip() for line in table_lines(COLUMNS, ROWS, 60))
    assert head == "run  sweep   loss  where"
    assert first == "a1   übung    0.5  node-1"
    assert second == "b22  表     12.25  node-2"


@pytest.mark.parametrize(("width", "names"), [(30, "run sweep loss where"), (22, "run loss where"), (14, "run loss")])
def test_columns_are_left_out_by_rank(width: int, names: str) -> None:
    assert table_lines(COLUMNS, ROWS, width)[0].plain.split() == names.split()


def test_a_column_in_which_nothing_is_said_is_left_out() -> None:
    rows = [[row[0], ("", ""), *row[2:]] for row in ROWS]
    assert table_lines(COLUMNS, rows, 60)[0].plain.split() == ["run", "loss", "where"]


def test_lines_are_as_wide_as_the_room_however_little_there_is() -> None:
    for width in (5, 14, 60):
        assert {line.cell_len for line in table_lines(COLUMNS, ROWS, width)} == {width}


def test_a_table_without_rows_is_a_head() -> None:
    (head,) = table_lines(COLUMNS, [], 40)
    assert head.plain.split() == ["run", "loss"]
