"""A list of lines of which one is chosen: with arrows, or with the mouse."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import RenderResult
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message
from textual.widget import Widget


class ListView(Widget, can_focus=True):
    """Shows a head and lines below it, as many as there is room for around the chosen one.

    A line is known by its key: it stays chosen where others come and go.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Chosen(Message):
        """Another line is chosen."""

    class Opened(Message):
        """Somebody wants to see more of the line that is chosen."""

        def __init__(self, listing: "ListView") -> None:
            super().__init__()
            self.listing = listing

        @property
        def control(self) -> "ListView":
            """The list that it is about."""
            return self.listing

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._head, self._lines, self._keys = Text(), list[Text](), list[object]()
        self._at, self._top, self._nothing = 0, 0, Text()

    def show(self, keys: Sequence[object], lines: Sequence[Text], nothing: str = "") -> None:
        """Show other lines, the first of which is the head; where there are none, say why."""
        chosen = self.chosen
        if (self._keys, [self._head, *self._lines]) == (list(keys), list(lines)):
            return
        self._keys, (self._head, *self._lines) = list(keys), lines
        self._at = self._keys.index(chosen) if chosen in self._keys else max(0, min(self._at, len(self._keys) - 1))
        self._nothing = Text(nothing, style="dim")
        self.refresh()

    @property
    def chosen(self) -> object:
        """The key of the line that is chosen; None where there is none."""
        return self._keys[self._at] if self._keys else None

    def render(self) -> RenderResult:
        """Return the head and the lines that there is room for."""
        if not self._keys:
            return self._nothing
        visible_lines = max(1, self.size.height - 1)
        self._top = max(0, min(self._top, self._at, len(self._lines) - visible_lines), self._at - visible_lines + 1)
        visible = self._lines[self._top : self._top + visible_lines]
        chosen = self._lines[self._at]
        visible[self._at - self._top] = (
            Text(chosen.plain, style="reverse") if self.has_focus else Text.assemble(chosen, style="bold")
        )
        return Text("\n", no_wrap=True).join([self._head, *visible])

    def action_move(self, by: int) -> None:
        """Choose another line."""
        self._choose(self._at + by)

    def action_open(self) -> None:
        """Ask for more of the line that is chosen."""
        if self._keys:
            self.post_message(self.Opened(self))

    def _choose(self, index: int) -> None:
        index = max(0, min(index, len(self._keys) - 1))
        if index != self._at:
            self._at = index
            self.refresh()
            self.post_message(self.Chosen())

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: Click) -> None:
        if self._keys and event.y > 0:
            self._choose(self._top + event.y - 1)
            if event.chain == 2:
                self.action_open()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.action_move(-1)
