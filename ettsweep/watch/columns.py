"""Tables that fit a width: less important columns are dropped, and only the last one is ever truncated."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from ettsweep.watch.labels import StyledText

GAP = 2


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        align_right: Whether the column is aligned right.
        drop_rank: If the table is too wide, columns of the highest rank are dropped first; columns of rank 0 never.
    """

    name: str
    align_right: bool = False
    drop_rank: int = 0


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[StyledText]], width: int) -> list[Text]:
    """Return the lines of a table, its header first, each `width` characters wide.

    Empty columns are left out, except those of rank 0, so that the main columns do not come and go.
    """
    visible = [k for k in range(len(columns)) if columns[k].drop_rank == 0 or any(row[k][0] for row in rows)]
    # Terminal cells, not characters: CJK characters take two.
    widths = [
        max(cell_len(text) for text in (column.name, *(row[k][0] for row in rows))) for k, column in enumerate(columns)
    ]
    while sum(widths[k] + GAP for k in visible) - GAP > width:
        # Of equal ranks, the rightmost column goes first.
        last = max(visible, key=lambda k: (columns[k].drop_rank, k))
        # Only indispensable columns are left: the last one is truncated.
        if columns[last].drop_rank == 0:
            break
        visible.remove(last)
    head = [(column.name, "dim") for column in columns]
    return [_line(columns, visible, widths, cells, width) for cells in (head, *rows)]


def _line(
    columns: Sequence[Column], visible: Sequence[int], widths: Sequence[int], cells: Sequence[StyledText], width: int
) -> Text:
    line = Text(no_wrap=True)
    for k in visible:
        text, style = cells[k]
        padding = " " * (widths[k] - cell_len(text))
        line.append(" " * GAP if line else "")
        line.append(f"{padding}{text}" if columns[k].align_right else f"{text}{padding}", style=style)
    line.truncate(width, overflow="ellipsis", pad=True)
    return line
