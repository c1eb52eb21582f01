"""Tables that fit a width: what matters less is left out first, and only the last column is ever cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from ettsweep.watch.labels import Words

GAP = 2


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        rank: of columns for which there is no room, those of the highest rank are left out first; 0 never is.
    """

    name: str
    right: bool = False
    rank: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[Words]], width: int) -> list[Text]:
    """Return the lines of a table, its head first; columns in which nothing is said are left out."""
    visible = [k for k in range(len(columns)) if columns[k].rank == 0 or any(row[k][0] for row in rows)]
    widths = [
        max(cell_len(text) for text in (column.name, *(row[k][0] for row in rows))) for k, column in enumerate(columns)
    ]
    while sum(widths[k] + GAP for k in visible) - GAP > width:
        last = max(visible, key=lambda k: (columns[k].rank, k))
        if columns[last].rank == 0:
            break
        visible.remove(last)
    head = [(column.name, "dim") for column in columns]
    return [_line(columns, visible, widths, cells, width) for cells in (head, *rows)]


def _line(
    columns: Sequence[Column], visible: Sequence[int], widths: Sequence[int], cells: Sequence[Words], width: int
) -> Text:
    line = Text(no_wrap=True)
    for k in visible:
        text, style = cells[k]
        padding = " " * (widths[k] - cell_len(text))
        line.append(" " * GAP if line else "")
        line.append(f"{padding}{text}" if columns[k].right else f"{text}{padding}", style=style)
    line.truncate(width, overflow="ellipsis", pad=True)
    return line
