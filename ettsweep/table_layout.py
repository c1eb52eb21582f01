"""Tables of text that fit a width: no line is longer, and no number or word is broken.

Headings and texts wrap between words. If that is not enough, columns leave the table: a name is printed on a line above
the rows that share it, anything else on a line below its row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

GAP = "  "
"""Between columns, and before the lines below a row."""

LONG_WORD = 28
"""A cell with a word above this width, such as a path, is printed below its row if its column is narrower."""

LONG_TEXT = 16
"""A text of several words above this width leaves the table rather than get narrower."""

Part = tuple[str, str]
"""A text and its kind: "heading", "cell" for the first line of a cell, which may be coloured, or ""."""

Line = list[Part]


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table.

    Attributes:
        is_number: Aligned to the right, and never wrapped.
        stays: Never leaves the table.
    """

    heading: str
    cells: Sequence[str]
    is_number: bool = False
    stays: bool = False

    @cached_property
    def width(self) -> int:
        """Width without wrapping."""
        return max(map(text_width, {self.heading, *self.cells}))

    @cached_property
    def least_width(self) -> int:
        """Width of the longest word up to `LONG_WORD`; of a long text, at least `LONG_TEXT`."""
        cells = {*self.cells} if self.is_number else {word for text in {*self.cells} for word in _words(text)}
        widths = [width for width in map(text_width, cells) if self.stays or self.is_number or width <= LONG_WORD]
        least = max(*map(text_width, self.heading.split()), *widths, 0)
        return max(least, LONG_TEXT) if self.is_long and not self.stays else least

    @cached_property
    def is_long(self) -> bool:
        """Whether this is a column of texts of several words."""
        return not self.is_number and any(" " in text and text_width(text) > LONG_TEXT for text in {*self.cells})

    @cached_property
    def changes(self) -> int:
        """How often the value changes from row to row."""
        return sum(a != b for a, b in pairwise(self.cells))

    @property
    def can_leave(self) -> bool:
        """Whether its values can be printed outside of the table."""
        return not self.stays and len(self.cells) > 0 and (not self.is_number or not self.changes)

    def overflows(self, k: int, width: int) -> bool:
        """Return whether a cell has a word that is wider than the column."""
        text = self.cells[k]
        return not self.stays and text_width(text) > width and max(map(text_width, _words(text))) > width


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line).rstrip()


def text_width(text: str) -> int:
    """Return the columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fits(columns: Sequence[Column], width: int) -> bool:
    """Return whether columns fit a width without one of them leaving the table."""
    return sum(column.least_width for column in columns) + len(GAP) * (len(columns) - 1) <= width


def lay_out(columns: Sequence[Column], width: int) -> Iterator[Line]:
    """Yield the lines of a table."""
    inside, outside = list(columns), list[Column]()
    names = list(takewhile(lambda column: not column.is_number, columns))
    while not fits(inside, width):
        if not (can_leave := [column for column in inside if column.can_leave]):
            break
        # First constant columns, the widest first; then long texts; then the name that changes least.
        same = [column for column in can_leave if not column.changes]
        leaves = (
            max(same, key=lambda c: c.width)
            if same
            else min(can_leave, key=lambda c: (not c.is_long, c not in names, c.changes))
        )
        inside.remove(leaves)
        outside.append(leaves)
    outside.sort(key=columns.index)
    shared = [column for column in outside if not column.changes]
    above = [c for c in outside if c.changes and c in names and not c.is_long and len(names) < len(columns)]
    below = [column for column in outside if column.changes and column not in above]
    widths = _widths(inside, width)
    in_all = "in all rows: " if len(columns[0].cells) > 1 else ""
    yield from _note(in_all + "; ".join(_named(c, 0) for c in shared) if shared else "", "", width)
    yield from _row([column.heading for column in inside], inside, widths, "heading")
    narrowed = [(column, width) for column, width in zip(inside, widths, strict=True) if width < column.width]
    if not (above or below or narrowed):  # rows one by one take twice as long
        padded = [[_padded(text, c.width, c.is_number) for text in c.cells] for c in inside]
        yield from ([(text, "cell") for text in row] for row in zip(*padded, strict=True))
        return
    group = ""
    for k in range(len(columns[0].cells)):
        before, group = group, ", ".join(_named(column, k) for column in above)
        yield from _note(f"{group}:" if group != before else "", "", width)
        too_wide = [column for column, width in narrowed if column.overflows(k, width)]
        yield from _row(["" if c in too_wide else c.cells[k] for c in inside], inside, widths, "cell")
        for column in (*too_wide, *below):
            yield from _note(f"{column.heading}: {column.cells[k]}" if column.cells[k] else "", GAP, width)


def wrap(text: str, width: int) -> list[str]:
    """Return a text as lines broken between words; a word wider than a line has its own."""
    lines: list[str] = []
    for word in _words(text):
        if lines and text_width(lines[-1]) + 1 + text_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _words(text: str) -> list[str]:
    joined = text.replace(" ± ", "\0±\0")  # a number and its error are one word
    return [word.replace("\0", " ") for word in joined.split(" ")]  # which keeps repeated blanks


def _named(column: Column, k: int) -> str:
    return f"{column.heading} {column.cells[k] or '-'}"


def _note(text: str, indent: str, width: int) -> Iterator[Line]:
    """Yield lines outside of the columns."""
    if text:
        yield from ([(indent + line, "")] for line in wrap(text, width - len(indent)))


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the widths of columns: the widest are wrapped until all fit."""
    widths = [column.width for column in columns]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        wrappable = [k for k, column in enumerate(columns) if widths[k] > column.least_width]
        if not wrappable:
            break
        widths[max(wrappable, key=lambda k: widths[k])] -= 1
    return widths


def _row(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int], kind: str) -> Iterator[Line]:
    """Yield the lines of a row; headings end at the bottom, cells begin at the top."""
    cells = [
        [text] if text_width(text) <= width else wrap(text, width) for text, width in zip(texts, widths, strict=True)
    ]
    height = max(map(len, cells))
    for k in range(height):
        line = []
        for column, lines, width in zip(columns, cells, widths, strict=True):
            position = k - height + len(lines) if kind == "heading" else k
            text = lines[position] if 0 <= position < len(lines) else ""
            shown = kind if position == 0 or kind == "heading" else ""
            line.append((_padded(text, width, column.is_number), shown))
        yield line


def _padded(text: str, width: int, is_number: bool) -> str:
    blanks = " " * (width - text_width(text))
    return f"{blanks}{text}{GAP}" if is_number else f"{text}{blanks}{GAP}"
