"""Contents of the panels: rows of the tables of families and runs, details of a family, events."""

from collections.abc import Callable

from rich.text import Text

from ettsweep.console import STYLES, format_cell
from ettsweep.powers import format_power
from ettsweep.runs.state import State
from ettsweep.study.study import shown_strategy
from ettsweep.watch.events import EVENT_STYLES, Event, first_text_line
from ettsweep.watch.labels import StyledText, detail_lines, per_second, progress_bar, short_duration, verdict_label
from ettsweep.watch.lattice_view import MARK_LEGEND, STATE_LEGEND
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

BAR_WIDTH = 10  # characters of a progress bar

Row = dict[str, StyledText]
"""Cells by column, the most important first: a narrow screen shows those on the left."""

STUCK_STATES = (State.FAILED, State.HELD, State.UNKNOWN)
"""States that need a decision by the user; cancelled runs are not among them, as cancelling was one."""


def family_rows(view: ViewModel) -> dict[str, Row]:
    """Return the rows of the families, by their keys."""
    several_models = len({family.study.model for family in view.families}) > 1
    return {family.key: _family_row(family, several_models) for family in view.families}


def _family_row(family: FamilyView, several_models: bool) -> Row:
    study, verdict, finished = family.study, family.verdict, family.finished
    lr, wd = (_power_cell(verdict.cells["lr"]), _power_cell(verdict.cells["wd"])) if verdict else ("", "")
    stuck = sum(number for state, number in family.states.items() if state in STUCK_STATES)
    running, cancelled = family.states.get(State.RUNNING, 0), family.states.get(State.CANCELLED, 0)
    return {
        "sweep": (format_cell(study.sweep), "bold"),
        "strategy": (format_cell(study.strategy) if study.has_strategies else "", ""),
        "runs": (f"{finished}/{family.runs}", ""),
        "stuck": (str(stuck) if stuck else "", "red"),
        "verdict": verdict_label(family),
        "progress": (progress_bar(finished / max(1, family.runs), BAR_WIDTH), "cyan"),
        "cancelled": (str(cancelled) if cancelled else "", "yellow"),
        "lr": (lr, ""),
        "wd": (wd, ""),
        "score": (verdict.mean if verdict else "", ""),
        "running": (str(running) if running else "", "cyan"),
        "model": (format_cell(study.model) if several_models else "", ""),
        # Only what decided it: the details have all of the reason.
        "why": (format_cell(verdict.decided) if verdict else "", "dim"),
    }


# --- runs -----------------------------------------------------------------------------------------------------------


def _power_cell(value: float | None) -> str:
    return "" if value is None else format_power(value)


SortKey = Callable[[RunView], object]

SORT_KEYS: dict[str, SortKey] = {
    "state": lambda view: 0,
    "time left": lambda view: view.run.status.remaining_s if view.run.status.remaining_s is not None else float("inf"),
    "loss": lambda view: view.loss if view.loss is not None else float("inf"),
    "speed": lambda view: -(view.steps_per_s or 0.0),
    "point": lambda view: (
        view.run.labels.model,
        shown_strategy(view.run.base),
        view.run.lr,
        view.run.wd,
        view.run.seed,
    ),
}
"""Orders of the table of runs. Runs with equal keys keep their order, in which those in training come first."""


def sorted_runs(view: ViewModel, by: str) -> list[RunView]:
    """Return the unfinished runs in the order named `by`, a key of `SORT_KEYS`."""
    return sorted(view.runs, key=SORT_KEYS[by])  # type: ignore[arg-type]


def run_rows(runs: list[RunView], id_length: int) -> dict[str, Row]:
    """Return the rows of unfinished runs, by their ids; sweep and model are empty if all runs have the same."""
    sweeps, models = {run.sweep for run in runs}, {run.run.labels.model for run in runs}
    return {run.run.id: _run_row(run, len(sweeps) > 1, len(models) > 1, id_length) for run in runs}


def _run_row(run: RunView, several_sweeps: bool, several_models: bool, id_length: int) -> Row:
    spec, status = run.run.spec, run.run.status
    running = status.state is State.RUNNING
    # A queued run that was interrupted before has a step too.
    has_started = running or status.progress > 0
    return {
        "run": (run.run.id[:id_length], "bold" if running else ""),
        "strategy": (format_cell(shown_strategy(spec)), ""),
        "lr": (_power_cell(spec.lr), ""),
        "wd": (_power_cell(spec.point.shown_wd), ""),
        "state": (status.state.value, STYLES.get(status.state, "dim")),
        "step": (run.step if has_started else "", ""),
        "loss": (f"{run.loss:.4g}" if run.loss is not None else "", ""),
        "speed": (per_second(run.steps_per_s) if run.steps_per_s is not None else "", ""),
        "left": (short_duration(status.remaining_s) if running and status.remaining_s is not None else "", "cyan"),
        "seed": (str(spec.seed), ""),
        "sweep": (format_cell(run.sweep) if several_sweeps else "", ""),
        "where": (" ".join(filter(None, [status.host, status.job, first_text_line(status.reason)])), "dim"),
        "try": (str(run.attempt) if run.attempt > 1 else "", ""),
        "model": (format_cell(spec.info.labels.model) if several_models else "", ""),
    }


# --- the family in view, and events ---------------------------------------------------------------------------------


def family_details(family: FamilyView) -> Text:
    """Return the details of a family, and the legend below."""
    legend = "\n".join(f"{MARK_LEGEND}  {STATE_LEGEND}".split("  "))
    lines = [*detail_lines(family), ("", ""), (legend, "dim")]
    return Text("\n").join(Text(text, style=style) for text, style in lines)


def event_line(event: Event) -> Text:
    """Return an event as a line."""
    line = Text()
    line.append(f"{event.at or 'earlier':8}  ", style="dim")
    line.append(f"{event.kind:11}  ", style=EVENT_STYLES.get(event.kind, ""))
    line.append(format_cell(event.subject))
    line.append(f"  {event.text}" if event.text else "")
    line.append(f"  {format_cell(event.position)}" if event.position else "", style="dim")
    return line
