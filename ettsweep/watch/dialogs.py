"""What lies over the screen for a while: a question, the log of a run, help."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, RichLog, Static

from ettsweep.console import cell, escape_control
from ettsweep.launch.log_follow import LogFollower
from ettsweep.runs.folder import RunDir
from ettsweep.watch.lattice_view import LEGEND, MARKED

KEPT = 5000
"""Lines of a log that are kept."""

POLL_S = 0.5


class ConfirmDialog(ModalScreen[bool]):
    """Asks whether something is to be done."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        yield Static(Text.assemble(self.question, "\n\n", ("y", "bold cyan"), " yes   ", ("n", "bold cyan"), " no"))


HELP = f"""\
tab         from the table of families to that of runs, and back
arrows      choose a line
n, p        the next family, the one before: its lattice is shown
s           sort the runs by something else
l, enter    the log of the chosen run, as it is written; q comes back
c           cancel the chosen run, after a question
C           cancel the sweep in view, after a question
q, ctrl-c   leave: the runs go on

A lattice has a row for each wd, moved by half a cell a step, so
that the six neighbours of a point are those that touch it. The
lighter a score, the better. Beside a verdict, ... says that runs
have finished since.

{MARKED}
"""


class HelpScreen(ModalScreen[None]):
    """Says what keys do and what signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        signs = LEGEND.split("  ")
        yield Static(Text(HELP + "\n".join("  ".join(signs[k : k + 5]) for k in range(0, len(signs), 5))))


class LogScreen(Screen[None]):
    """The log of a run as it is written.

    Args:
        run: its folder.
        title: what people read of it.
        over: says whether nothing more is to come.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l", "dismiss", "back", key_display="q")]

    def __init__(self, run: RunDir, title: str, over: Callable[[], bool]) -> None:
        super().__init__()
        self._tail, self._title, self._over, self._ended = LogFollower(run), title, over, False

    def compose(self) -> ComposeResult:
        yield Static(Text(f"log of {cell(self._title)}", no_wrap=True, overflow="ellipsis"), id="title")
        yield RichLog(max_lines=KEPT, wrap=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._read()
        self.set_interval(POLL_S, self._read)

    @work(thread=True, exclusive=True, group="log")
    def _read(self) -> None:
        """Read what is new; after the run is over, what is left."""
        if self._ended:
            return
        self._ended = self._over()
        text = self._tail.more() + (self._tail.rest() if self._ended else "")
        if text:
            self.app.call_from_thread(self._write, text)

    def _write(self, text: str) -> None:
        log = self.query_one(RichLog)
        for line in escape_control(text).splitlines()[-KEPT:]:
            log.write(Text(line))
