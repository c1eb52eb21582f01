"""A list of lines, one of which is selected with arrow keys or the mouse."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import RenderResult
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message
from textual.widget import Widget


class ListView(Widget, can_focus=True):
    """Shows a header and, below it, as many lines around the selected one as fit.

    Lines have keys: the selected line stays selected when others come and go.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        # A move stops at the first and the last line.
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Highlighted(Message):
        """Another line is selected."""

    class Opened(Message):
        """The selected line was opened, with enter or a double click."""

        def __init__(self, listing: "ListView") -> None:
            super().__init__()
            self.listing = listing

        @property
        def control(self) -> "ListView":
            """The list; lets `@on` match it by a CSS selector."""
            return self.listing

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._head, self._lines, self._keys = Text(), list[Text](), list[object]()
        self._index, self._first_visible, self._empty_text = 0, 0, Text()

    def set_lines(self, keys: Sequence[object], lines: Sequence[Text], empty_text: str = "") -> None:
        """Replace the lines, the first of which is the header; without any lines below it, show a text instead."""
        selected_key = self.selected_key
        if (self._keys, [self._head, *self._lines]) == (list(keys), list(lines)):
            return  # nothing has changed: do not redraw
        self._keys, (self._head, *self._lines) = list(keys), lines
        # If the selected line is gone, select the one that took its place.
        self._index = (
            self._keys.index(selected_key)
            if selected_key in self._keys
            else max(0, min(self._index, len(self._keys) - 1))
        )
        self._empty_text = Text(empty_text, style="dim")
        self.refresh()

    @property
    def selected_key(self) -> object:
        """The key of the selected line; None if the list is empty."""
        return self._keys[self._index] if self._keys else None

    def render(self) -> RenderResult:
        """Return the header and the visible lines."""
        if not self._keys:
            return self._empty_text
        # Scroll no farther than needed to keep the selected line visible, and leave no blank lines at the end.
        visible_lines = max(1, self.size.height - 1)
        self._first_visible = max(
            0, min(self._first_visible, self._index, len(self._lines) - visible_lines), self._index - visible_lines + 1
        )
        visible = self._lines[self._first_visible : self._first_visible + visible_lines]
        selected = self._lines[self._index]
        # Reverse video only with focus: it shows which table the arrow keys move in.
        visible[self._index - self._first_visible] = (
            Text(selected.plain, style="reverse") if self.has_focus else Text.assemble(selected, style="bold")
        )
        return Text("\n", no_wrap=True).join([self._head, *visible])

    def action_move(self, by: int) -> None:
        """Select another line, `by` lines below."""
        self._select_line(self._index + by)

    def action_open(self) -> None:
        """Post `Opened` for the selected line."""
        if self._keys:
            self.post_message(self.Opened(self))

    def _select_line(self, index: int) -> None:
        index = max(0, min(index, len(self._keys) - 1))
        if index != self._index:
            self._index = index
            self.refresh()
            self.post_message(self.Highlighted())

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: Click) -> None:
        # Line 0 is the header.
        if self._keys and event.y > 0:
            self._select_line(self._first_visible + event.y - 1)
            if event.chain == 2:
                self.action_open()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.action_move(-1)
