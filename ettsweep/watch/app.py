"""The Textual application of `ettsweep watch`."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Static

from ettsweep.console import format_cell
from ettsweep.errors import EttsweepError
from ettsweep.launch.cancellation import cancel_runs
from ettsweep.launch.progress import SweepStatus
from ettsweep.runs.index import Run
from ettsweep.watch.dialogs import ConfirmDialog, HelpScreen, LogScreen
from ettsweep.watch.lattice_view import LatticeView
from ettsweep.watch.panels import Row, event_lines, family_details, family_row, headline, problem_lines, run_row
from ettsweep.watch.view import FamilyView, View, run_title
from ettsweep.watch.watcher import Selector, Watcher

MIN_REST_S, MAX_REST_S = 1.5, 60.0
"""Seconds between polls."""

REST_FACTOR = 20
"""Rest after a poll, in multiples of its time: an open screen takes a few percent of a core."""

TERMINAL_CHECK_S = 1.0
"""Seconds between checks whether the terminal still exists."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Table(DataTable[Text]):
    """A table of rows with keys: it keeps the selection when rows come and go."""

    @property
    def selected_key(self) -> str:
        """The key of the selected row; empty if there is none."""
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value or "" if self.row_count else ""

    @property
    def hidden_count(self) -> int:
        """Number of rows out of view."""
        return max(0, self.row_count - (self.scrollable_content_region.height - self.header_height))

    def show(self, rows: Mapping[str, Row]) -> None:
        """Show rows, without empty columns."""
        selected, place, offset = self.selected_key, self.cursor_row, self.scroll_offset
        columns = dict[str, Text]()
        for row in rows.values():  # families may differ in their axes
            columns |= row
        names = [name for name in columns if any(row.get(name) for row in rows.values())]
        self.clear(columns=True)
        for name in names:
            # Set the width: the table measures columns only after drawing.
            width = max(len(name), *(row[name].cell_len for row in rows.values() if name in row))
            self.add_column(Text(name, justify=columns[name].justify), width=width)
        for key, row in rows.items():
            self.add_row(*(row.get(name, Text()) for name in names), key=key)
        # If the selected row is gone, select the row in its place.
        self.move_cursor(row=[*rows].index(selected) if selected in rows else place)
        self.scroll_to(*offset, animate=False)


class WatchScreen(App[None]):
    """Families, the lattice of the selected family, unfinished runs, and events.

    Attributes:
        view: The newest view of the results folder.
        error: The error that ended the application, if any.
        exit_signal: The signal that ended the application; None if a key did.
    """

    # Textual's palette has useless actions, such as changing the theme.
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "log"),
        Binding("c", "cancel", "cancel"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        # priority: also inside dialogs and the log; Textual itself only shows a hint on ctrl+c.
        Binding("ctrl+c", "interrupt", show=False, priority=True, system=True),
    ]

    def __init__(self, results: Path, watcher: Watcher) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # with ansi_color this uses the terminal's own colours, on dark and light backgrounds
        self.view = View()
        self.error: Exception | None = None
        self.exit_signal: signal.Signals | None = None
        self._results, self._watcher, self._poll_now = results, watcher, threading.Event()
        self._head, self._problems, self._details = Static(id="head"), Static(id="problems"), Static(id="details")
        self._family_table, self._run_table = (Table(id=name, cursor_type="row") for name in ("families", "runs"))
        self._lattice, self._middle = LatticeView(id="lattice"), Horizontal(id="middle")
        self._events = Static(id="events")

    def compose(self) -> ComposeResult:
        yield from (self._head, self._problems, self._family_table)
        with self._middle:
            yield from (self._lattice, self._details)
        yield from (self._run_table, self._events)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Start polling, and let signals exit like `q`, which restores the terminal."""
        # Signal handlers can be set in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self._exit_on_signal, number)
        self._events.border_title = " events "
        self._events.display = False
        # Before the first view: arrow keys work at once.
        self._family_table.focus()
        self._draw()
        # A daemon: the process may exit while a read from a hanging network file system blocks this thread.
        threading.Thread(target=self._poll, name="poller", daemon=True).start()

    def _exit_on_signal(self, number: signal.Signals) -> None:
        self.exit_signal = number
        self.exit()

    # --- polling ----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Poll, and rest in proportion; in a thread, since slow reads must not delay keys."""
        view = View()
        while self.is_running:
            is_first, began_s = view.status is None, time.monotonic()
            self._poll_now.clear()  # before reading: a request during the read leads to another one
            try:
                for view in self._watcher.poll():
                    self.call_later(self._show, view)
                    if not self.is_running:
                        return
            except Exception as error:
                # Before the first view, the options or the folder are wrong: retrying would not help.
                if view.status is None or not isinstance(error, OSError | EttsweepError):
                    self.call_later(self._fail, error)
                    return
                reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
                problem = f"{reason}; this is the last readable state"
                self.call_later(self._show, replace(view, problems=(problem, *view.problems)))
            # The first poll reads all runs: the next ones are much faster.
            rest_s = MIN_REST_S if is_first else REST_FACTOR * (time.monotonic() - began_s)
            self._poll_now.wait(min(MAX_REST_S, max(MIN_REST_S, rest_s)))

    def _show(self, view: View) -> None:
        if view != self.view:  # drawing takes longer than reading
            self.view = view
            self._draw()

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.exit()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_titles)

    @on(DataTable.RowHighlighted, "#families")
    def _show_family(self) -> None:
        """Show the lattice and the details of the selected family."""
        if family := self.family:
            self._lattice.family = family
            self._details.update(family_details(family))
        self.call_after_refresh(self._show_titles)

    def _draw(self) -> None:
        """Show the view in all panels; before the first one, a line on the progress of reading."""
        view, results = self.view, str(self._results)
        if view.status is None:
            self._head.update(Text.assemble((view.progress, "bold"), (f"  {format_cell(results)}", "dim")))
            return
        self._head.update(headline(view.status, results))
        problems = problem_lines(view, view.status)
        self._problems.update(problems)
        self._problems.display = bool(problems)
        self._run_table.border_title = f" unfinished runs: {view.status.unfinished_count} "
        self._family_table.show({key: family_row(family) for key, family in view.families.items()})
        has_sweep = len({run.sweep for run in view.runs.values()}) > 1
        self._run_table.show({key: run_row(run, has_sweep=has_sweep) for key, run in view.runs.items()})
        self._events.update(event_lines(view.events))
        self._events.display = bool(view.events)
        self._show_family()

    def _show_titles(self) -> None:
        """Show how many rows are out of view, now that sizes are known."""
        table = self._family_table
        hidden = f", {table.hidden_count} out of view" if table.hidden_count else ""
        table.border_title = f" families: {table.row_count}{hidden} "
        if family := self.family:
            part = "" if self._lattice.is_whole else ", in part"
            directions = zip(family.study.map_axes, ("across", "up"), strict=False)
            axes = ", ".join(f"{name} {direction}" for name, direction in directions)
            self._middle.border_title = f" {format_cell(family.title)}: {axes}{part} "

    @property
    def family(self) -> FamilyView | None:
        """The selected family."""
        return self.view.families.get(self._family_table.selected_key)

    @property
    def run_in_view(self) -> Run | None:
        """The selected run."""
        selected = self.view.runs.get(self._run_table.selected_key)
        return selected.run if selected else None

    # --- keys -------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of the main screen while a log or a dialog covers it."""
        return len(self.screen_stack) < 2 or action not in ("log", "cancel", "help")

    def action_interrupt(self) -> None:
        """Exit by the signal that a terminal sends outside of raw mode."""
        self._exit_on_signal(signal.SIGINT)

    def action_help(self) -> None:
        """Show the help."""
        self.push_screen(HelpScreen())

    @on(DataTable.RowSelected, "#runs")
    def action_log(self) -> None:
        """Follow the log of the selected run."""
        if run := self.run_in_view:
            self.push_screen(LogScreen(run.dir, self._title(run), lambda: self._is_over(run)))
        else:
            self._notify_user("no run is selected")

    def _title(self, run: Run) -> str:
        return run_title(run, self.view.runs[run.id].strategy)

    def _is_over(self, run: Run) -> bool:
        """`True` if a run logs no more until it is requested again."""
        status = self.view.status.statuses.get(run.id) if self.view.status else None  # of unfinished runs
        return status is None or status.state.over

    def action_cancel(self) -> None:
        """Cancel the selected run after confirmation."""
        run = self.run_in_view
        if run is None or run.state.over:
            self._notify_user(f"{run.id} is {run.state}: nothing to cancel" if run else "no run is selected")
            return

        def on_answer(yes: bool | None) -> None:
            if yes:
                # A daemon thread: leaving does not wait for SLURM.
                threading.Thread(target=self._cancel, args=(run,), daemon=True).start()

        self.push_screen(ConfirmDialog(format_cell(f"cancel run {self._title(run)}?")), on_answer)

    def _cancel(self, run: Run) -> None:
        """Cancel a run; in its own thread, since SLURM may take minutes to answer."""
        try:
            message = "; ".join(cancel_runs(self._results, [run]))
        except EttsweepError as error:
            message = str(error)
        # Widgets may be changed in the application's thread only.
        self.call_from_thread(self._notify_user, message)
        self._poll_now.set()

    def _notify_user(self, text: str) -> None:
        self.notify(format_cell(text), markup=False)


def _exit_without_terminal() -> None:
    """Exit once the terminal is gone: Textual would wait for ever to write its last lines."""
    while os.isatty(0):
        time.sleep(TERMINAL_CHECK_S)
    os._exit(128 + signal.SIGHUP)


def show_screen(results: Path, selector: Selector) -> SweepStatus | None:
    """Run the application until the user exits; return the last status of the runs, None before the first poll.

    Raises:
        EttsweepError: No run or study matches, or the results folder cannot be read.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    screen = WatchScreen(results, Watcher(results, selector, lambda: time.strftime("%H:%M:%S")))
    threading.Thread(target=_exit_without_terminal, daemon=True).start()
    screen.run()
    if screen.error:
        raise screen.error
    if screen.exit_signal is signal.SIGINT:
        raise KeyboardInterrupt
    if screen.exit_signal:  # the terminal is restored: let the signal end the process
        signal.signal(screen.exit_signal, signal.SIG_DFL)
        os.kill(os.getpid(), screen.exit_signal)
    if screen.return_code:
        raise SystemExit(screen.return_code)  # Textual has printed a traceback
    return screen.view.status
