"""The Textual application of `ettsweep watch`."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Footer, RichLog, Static

from ettsweep.console import format_cell, format_count
from ettsweep.errors import EttsweepError
from ettsweep.launch.cancellation import ENDED_STATES, cancel_runs, cancellable
from ettsweep.launch.progress import SweepStatus
from ettsweep.runs.index import Run
from ettsweep.watch.dialogs import ConfirmDialog, HelpScreen, LogScreen
from ettsweep.watch.events import Event, run_title
from ettsweep.watch.labels import StyledText, headline, limit_problems, view_problems
from ettsweep.watch.lattice_view import LatticeView
from ettsweep.watch.panels import SORT_KEYS, Row, event_line, family_details, family_rows, run_rows, sorted_runs
from ettsweep.watch.poller import Failed, Poller, Progress, Updated
from ettsweep.watch.view_model import FamilyView, ViewModel
from ettsweep.watch.watcher import Selector, Watcher

MAIN_ACTIONS = ("family", "sort", "log", "cancel_run", "cancel_sweep", "help")
"""Actions of the main screen, which are disabled while a log or a dialog covers it."""

TERMINAL_CHECK_S = 1.0
"""Seconds between checks whether the terminal still exists."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Table(DataTable[Text]):
    """A table of rows with keys: the selected row stays selected when others come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id=id, cursor_type="row")
        self._shape: object = None

    @property
    def selected_key(self) -> str | None:
        """The key of the selected row; None if there is none."""
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value if self.row_count else None

    @property
    def hidden(self) -> int:
        """Number of rows that are not in view."""
        return max(0, self.row_count - (self.scrollable_content_region.height - self.header_height))

    def show(self, rows: dict[str, Row]) -> None:
        """Show rows, without columns that are empty in all of them."""
        names = [name for name in next(iter(rows.values()), ()) if any(row[name][0] for row in rows.values())]
        texts = {key: [_cell(name, *row[name]) for name in names] for key, row in rows.items()}
        widths = [max(len(name), *(cells[k].cell_len for cells in texts.values())) for k, name in enumerate(names)]
        shape = [*texts], [*zip(names, widths, strict=True)]
        if shape == self._shape:
            for key, cells in texts.items():
                for name, text in zip(names, cells, strict=True):
                    if self.get_cell(key, name) != text:
                        self.update_cell(key, name, text)
            return
        selected, place, self._shape = self.selected_key, self.cursor_row, shape
        left = self.scroll_x
        self.clear(columns=True)
        for name, width in zip(names, widths, strict=True):
            self.add_column(_cell(name, name), key=name, width=width)
        for key, cells in texts.items():
            self.add_row(*cells, key=key)
        # If the selected row is gone, that which took its place is selected.
        self.move_cursor(row=[*texts].index(selected) if selected in texts else place)
        self.scroll_to(x=left, animate=False)


def _cell(name: str, text: str, style: str = "") -> Text:
    return Text(justify="right" if name in NUMBERS else "left", no_wrap=True).append(text, style)


NUMBERS = ("runs", "stuck", "cancelled", "lr", "wd", "score", "running", "seed", "step", "loss", "speed", "left", "try")
"""Columns that are aligned to the right."""


class WatchScreen(App[None]):
    """Families, the lattice of the selected family, unfinished runs, and events.

    Attributes:
        view: The newest view of the results folder; None before the first poll.
        error: The error that ended the application, if any.
        exit_signal: The signal that ended the application; None if a key did.
    """

    # Textual's palette offers actions that make no sense here, such as changing the theme.
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "family(1)", "family", key_display="n/p"),
        Binding("p", "family(-1)", show=False),
        Binding("s", "sort", "sort"),
        Binding("l", "log", "log"),
        Binding("c", "cancel_run", "cancel"),
        Binding("C", "cancel_sweep", "cancel sweep", key_display="C"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        # priority: also inside dialogs and the log; Textual itself only shows a hint on ctrl+c.
        Binding("ctrl+c", "quit", show=False, priority=True, system=True),
    ]

    def __init__(self, results: Path, watcher: Watcher) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # with ansi_color this uses the terminal's own colours, on dark and light backgrounds
        self.view: ViewModel | None = None
        self.error: Exception | None = None
        self.exit_signal: signal.Signals | None = None
        self._results, self._watcher = results, watcher
        self._poller = Poller(watcher, self.post_message)
        self._sort_name, self._progress_text, self._error_text = next(iter(SORT_KEYS)), "reading ...", ""
        self._family_table, self._run_table = Table(id="families"), Table(id="runs")
        self._lattice_view, self._details = LatticeView(id="lattice"), Static(id="details")
        self._event_log, self._shown_events = RichLog(id="events", min_width=0), tuple[Event, ...]()
        self._event_log.can_focus = False  # tab switches between the tables

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="problems")
        yield self._family_table
        with Horizontal(id="middle"):
            yield self._lattice_view
            with VerticalScroll(can_focus=False):
                yield self._details
        yield self._run_table
        yield self._event_log
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Start polling, and let signals exit as `q` does, so that the terminal is restored."""
        loop = asyncio.get_running_loop()
        # Signal handlers can be set in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                loop.add_signal_handler(number, self._exit_on_signal, number)
        for name, title in {"families": "families", "middle": "lattice", "runs": "runs", "events": "events"}.items():
            self.query_one(f"#{name}").border_title = f" {title} "
        # Before the first view, so that arrow keys work at once.
        self._family_table.focus()
        self._draw_panels()
        self._poller.start()

    def _exit_on_signal(self, number: signal.Signals) -> None:
        self.exit_signal = number
        self.exit()

    def on_unmount(self) -> None:
        self._poller.stop()

    # --- messages of the poller -------------------------------------------------------------------------------------

    @on(Updated)
    def _on_updated(self, message: Updated) -> None:
        is_news = message.view != self.view or bool(self._error_text)
        self.view, self._error_text = message.view, ""
        if is_news:  # drawing takes longer than reading what has not changed
            self._draw_panels()

    @on(Progress)
    def _on_progress(self, message: Progress) -> None:
        self._progress_text = message.text
        self._draw_panels()

    @on(Failed)
    def _on_failed(self, message: Failed) -> None:
        error = message.error
        if message.is_last:
            self.error = error
            self.exit()
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        self._error_text = f"{reason}; showing the last readable state"
        self._draw_panels()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def on_resize(self, event: Resize) -> None:
        self._draw_panels()

    @on(DataTable.RowHighlighted)
    def _on_highlighted(self) -> None:
        self._show_family()

    def _draw_panels(self) -> None:
        """Show the newest view in all panels."""
        view = self.view
        # Before the first view there is a single line on the progress of reading.
        if view is None:
            self._show_texts("head", [(self._progress_text, "bold"), (format_cell(str(self._results)), "dim")])
            return
        problems = [(format_cell(self._error_text), "red")] if self._error_text else []
        self._show_texts("head", headline(view, str(self._results)))
        self._show_texts("problems", limit_problems([*problems, *view_problems(view)]), separator="\n")
        runs = sorted_runs(view, self._sort_name)
        self._family_table.show(family_rows(view))
        self._run_table.show(run_rows(runs, 8 if self.size.width < 120 else 12))
        self._run_table.border_title = f" unfinished runs: {len(runs)}, by {self._sort_name} "
        self._show_events(view.events)
        self._show_family()

    def _show_family(self) -> None:
        """Show the lattice and the details of the selected family."""
        if family := self.family:
            self._lattice_view.lattice = family.lattice
            self._details.update(family_details(family))
        self.call_after_refresh(self._show_titles)

    def _show_titles(self) -> None:
        """Say what is not in view, now that the sizes are known."""
        table = self._family_table
        hidden = f", {table.hidden} of them not in view" if table.hidden else ""
        table.border_title = f" families: {table.row_count}{hidden} "
        if family := self.family:
            part = "" if self._lattice_view.is_whole else ", a part of it"
            self.query_one("#middle").border_title = f" {format_cell(family.title)}: lr across, wd up{part} "

    def _show_events(self, events: tuple[Event, ...]) -> None:
        known = len(self._shown_events)
        if events[:known] != self._shown_events:
            self._event_log.clear()
            known = 0
        for event in events[known:]:
            self._event_log.write(event_line(event))
        self._shown_events = events

    def _show_texts(self, name: str, texts: Sequence[StyledText], separator: str = "  ") -> None:
        widget = self.query_one(f"#{name}", Static)
        widget.update(Text(separator).join(Text(text, style=style) for text, style in texts))
        widget.display = bool(texts)

    @property
    def family(self) -> FamilyView | None:
        """The selected family."""
        key = self._family_table.selected_key
        return next((family for family in (self.view.families if self.view else ()) if family.key == key), None)

    @property
    def run_in_view(self) -> Run | None:
        """The selected run."""
        key = self._run_table.selected_key
        return next((run.run for run in (self.view.runs if self.view else ()) if run.run.id == key), None)

    # --- keys -------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of the main screen while a log or a dialog covers it."""
        return len(self.screen_stack) < 2 or action not in MAIN_ACTIONS

    def action_family(self, by: int) -> None:
        """Select another family, `by` lines below."""
        self._family_table.move_cursor(row=self._family_table.cursor_row + by)

    def action_sort(self) -> None:
        """Sort the runs by the next of `SORT_KEYS`."""
        names = list(SORT_KEYS)
        self._sort_name = names[(names.index(self._sort_name) + 1) % len(names)]
        self._draw_panels()

    def action_help(self) -> None:
        """Show the help."""
        self.push_screen(HelpScreen())

    @on(DataTable.RowSelected, "#runs")
    def action_log(self) -> None:
        """Follow the log of the selected run."""
        if (run := self.run_in_view) is None:
            self._notify_user("no run is selected")
            return
        self.push_screen(LogScreen(run.dir, run_title(run), lambda: self._is_over(run)))

    def _is_over(self, run: Run) -> bool:
        """`True` if a run logs nothing more until it is requested again."""
        if self.view is None:
            return False
        status = self.view.sweep_status.statuses.get(run.id)  # of unfinished runs
        return run.dir.result_path.exists() if status is None else status.state.over

    def action_cancel_run(self) -> None:
        """Cancel the selected run after confirmation."""
        run = self.run_in_view
        if run is None or run.state in ENDED_STATES:
            self._notify_user(f"{run.id} is {run.state}: nothing to cancel" if run else "no run is selected")
            return
        self._confirm_cancel(f"cancel run {run_title(run)}?", lambda: [run])

    def action_cancel_sweep(self) -> None:
        """Cancel the runs of the selected family's sweep, except those of other sweeps, after confirmation."""
        if (family := self.family) is None or self.view is None:
            self._notify_user("no sweep is selected")
            return
        name, view = family.study.sweep, self.view
        # The result is fixed now: the runs that the question counts are the ones cancelled.
        runs, skipped = cancellable(self._watcher.runs_of(name), [name], view.sweep_store)
        if not runs:
            self._notify_user("; ".join([f"sweep {name}: nothing to cancel", *skipped]))
            return
        request = "; ".join([f"cancel {format_count(len(runs), 'run')} of sweep {name}", *skipped])
        self._confirm_cancel(f"{request}?", lambda: runs)

    def _notify_user(self, text: str) -> None:
        self.notify(format_cell(text), markup=False)

    def _confirm_cancel(self, question: str, runs: Callable[[], Sequence[Run]]) -> None:
        def on_answer(yes: bool | None) -> None:
            if yes:
                # A daemon thread: leaving does not wait for SLURM.
                threading.Thread(target=self._cancel_runs, args=(runs(),), daemon=True).start()

        self.push_screen(ConfirmDialog(format_cell(question)), on_answer)

    def _cancel_runs(self, runs: Sequence[Run]) -> None:
        """Cancel runs; called in a thread of its own, since SLURM may take minutes to answer."""
        try:
            message = "; ".join(cancel_runs(self._results, runs))
            # Widgets may be changed in the application's thread only.
            self.call_from_thread(self._notify_user, message)
        except EttsweepError as error:
            self.call_from_thread(self._notify_user, str(error))
        self._poller.wake()


def _exit_without_terminal() -> None:
    """Exit the process once its terminal is gone: Textual would wait forever to write its last lines there."""
    while os.isatty(0):
        time.sleep(TERMINAL_CHECK_S)
    os._exit(128 + signal.SIGHUP)


def show_screen(results: Path, selector: Selector) -> SweepStatus | None:
    """Run the application until the user leaves it; return the last status of the runs, None before the first poll.

    Raises:
        EttsweepError: No run or study matches, or the results folder cannot be read.
    """
    screen = WatchScreen(results, Watcher(results, selector, lambda: time.strftime("%H:%M:%S")))
    threading.Thread(target=_exit_without_terminal, daemon=True).start()
    screen.run()
    if screen.error:
        raise screen.error
    if screen.exit_signal not in (None, signal.SIGINT):  # the terminal is restored: let the signal end the process
        signal.signal(screen.exit_signal, signal.SIG_DFL)
        os.kill(os.getpid(), screen.exit_signal)
    if screen.return_code:
        raise SystemExit(screen.return_code)  # Textual has printed a traceback
    return screen.view.sweep_status if screen.view else None
