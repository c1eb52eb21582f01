"""Screens on top of the main screen: confirmation, the log of a run, help."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, RichLog, Static

from ettsweep.console import escape_control, format_cell
from ettsweep.launch.log_follow import LogFollower
from ettsweep.runs.folder import RunDir
from ettsweep.watch.lattice_view import LEGEND

MAX_LOG_LINES = 5000
"""Lines of a log to scroll back."""

POLL_S = 0.5


class ConfirmDialog(ModalScreen[bool]):
    """Asks for confirmation; returns `True` for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        # Enter means no: cancelling runs needs a deliberate y.
        Binding("n,escape,q,enter", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        yield Static(Text.assemble(self.question, "\n\n", ("y", "bold cyan"), " yes   ", ("n", "bold cyan"), " no"))


HELP = f"""\
tab         switch between the tables of families and runs
arrows      select a line; left and right show further columns
l, enter    follow the log of the selected run; q returns
c           cancel the selected run, after confirmation
q, ctrl-c   quit; the runs keep running

The lattice has a row for each value of its second axis, shifted
by half a cell per step: the six neighbours of a point touch it.
Lighter colours are better scores. A verdict followed by ... is out of date: runs have
finished since.

{LEGEND}

`ettsweep cancel --sweep NAME` cancels a whole sweep.
"""


class HelpScreen(ModalScreen[None]):
    """Help on the keys and the signs of the lattice."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        yield Static(Text(HELP))


class LogScreen(Screen[None]):
    """The log of a run in the folder `run`, as it grows; a callback returns whether the run has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l", "dismiss", "back", key_display="q")]

    def __init__(self, run: RunDir, title: str, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._follower, self._title, self._is_over, self._ended = LogFollower(run), title, is_over, False

    def compose(self) -> ComposeResult:
        yield Static(Text(f"log of {format_cell(self._title)}", no_wrap=True, overflow="ellipsis"), id="title")
        yield RichLog(max_lines=MAX_LOG_LINES, wrap=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._read()
        self.set_interval(POLL_S, self._read)

    # In a thread: the file system may be slow. Exclusive: two reads would mix up lines.
    @work(thread=True, exclusive=True, group="log")
    def _read(self) -> None:
        """Show new lines and, once the run has ended, the rest."""
        if self._ended:
            return
        self._ended = self._is_over()  # before reading: include lines written in between
        text = self._follower.read_new_lines() + (self._follower.read_ending() if self._ended else "")
        if text:
            self.app.call_from_thread(self._write, text)

    def _write(self, text: str) -> None:
        log = self.query_one(RichLog)
        # Control characters of logs would change the terminal.
        for line in escape_control(text).splitlines()[-MAX_LOG_LINES:]:
            log.write(Text(line))
