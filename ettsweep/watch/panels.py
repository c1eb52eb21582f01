"""Contents of the panels as lines of text: tables of families and runs, details of a family, events."""

import textwrap
from collections.abc import Callable, Sequence

from rich.text import Text

from ettsweep.console import STYLES, format_cell
from ettsweep.powers import format_power
from ettsweep.quantities import score_text
from ettsweep.report.verdict_text import decided_text
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.study.study import shown_strategy
from ettsweep.watch.columns import Column, table_lines
from ettsweep.watch.events import EVENT_STYLES, Event, first_text_line
from ettsweep.watch.labels import StyledText, detail_lines, per_second, progress_bar, short_duration, verdict_label
from ettsweep.watch.lattice_view import MARK_LEGEND, STATE_LEGEND
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

BAR_WIDTH = 10  # characters of a progress bar

FAMILY_COLUMNS = (
    *(
        Column("sweep"),
        Column("model", drop_rank=5),
        Column("strategy", drop_rank=1),
        Column("", drop_rank=4),
        Column("runs", align_right=True),
    ),
    *(
        Column("verdict"),
        Column("lr", drop_rank=2),
        Column("wd", drop_rank=2),
        Column("score", align_right=True, drop_rank=3),
    ),
    *(Column("running", align_right=True, drop_rank=6), Column("cancelled", align_right=True, drop_rank=2)),
    *(Column("stuck", align_right=True, drop_rank=1), Column("", drop_rank=6)),
)

STUCK_STATES = (State.FAILED, State.HELD, State.UNKNOWN)
"""States that need a decision by the user; cancelled runs are not among them, as cancelling was one."""


def family_lines(view: ViewModel, width: int) -> list[Text]:
    """Return the table of families, its header first."""
    several_models = len({family.study.model for family in view.families}) > 1
    return table_lines(FAMILY_COLUMNS, [_family_row(family, several_models) for family in view.families], width)


def _family_row(family: FamilyView, several_models: bool) -> list[StyledText]:
    study, verdict, finished = family.study, family.verdict, family.finished
    lr, wd = _point_cells(verdict.point) if verdict and verdict.point else ("", "")
    stuck = sum(number for state, number in family.states.items() if state in STUCK_STATES)
    running, cancelled = family.states.get(State.RUNNING, 0), family.states.get(State.CANCELLED, 0)
    return [
        (format_cell(study.sweep), "bold"),
        (format_cell(study.model) if several_models else "", ""),
        (format_cell(study.strategy) if study.has_strategies else "", ""),
        (progress_bar(finished / max(1, family.runs), BAR_WIDTH), "cyan"),
        (f"{finished}/{family.runs}", ""),
        verdict_label(family),
        *((lr, ""), (wd, "")),
        (score_text(verdict.score, study.metric) if verdict and verdict.score is not None else "", ""),
        (str(running) if running else "", "cyan"),
        (str(cancelled) if cancelled else "", "yellow"),
        (str(stuck) if stuck else "", "red"),
        # Only what decided it: the details have all of the reason.
        (format_cell(decided_text(verdict)) if verdict else "", "dim"),
    ]


# --- runs -----------------------------------------------------------------------------------------------------------

# Ranks: of the columns that may be dropped, sweep, model and try matter least.
RUN_COLUMNS = (
    *(Column("run"), Column("sweep", drop_rank=6), Column("model", drop_rank=8), Column("strategy", drop_rank=1)),
    *(
        Column("lr", align_right=True),
        Column("wd", align_right=True),
        Column("seed", align_right=True, drop_rank=3),
        Column("state"),
    ),
    *(
        Column("step", align_right=True),
        Column("loss", align_right=True),
        Column("speed", align_right=True, drop_rank=2),
    ),
    *(
        Column("left", align_right=True),
        Column("try", align_right=True, drop_rank=7),
        Column("", drop_rank=5),
    ),
)


def _point_cells(point: Point) -> tuple[str, str]:
    return format_power(point.lr), format_power(point.wd) if point.has_wd else ""


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


def run_lines(runs: Sequence[RunView], width: int) -> list[Text]:
    """Return the table of unfinished runs, its header first."""
    sweeps, models = {run.sweep for run in runs}, {run.run.labels.model for run in runs}
    # Sweep and model stay empty, and are dropped, if they are the same for all runs.
    rows = [_run_row(run, len(sweeps) > 1, len(models) > 1, 8 if width < 120 else 12) for run in runs]
    return table_lines(RUN_COLUMNS, rows, width)


def _run_row(run: RunView, several_sweeps: bool, several_models: bool, digits: int) -> list[StyledText]:
    spec, status = run.run.spec, run.run.status
    running = status.state is State.RUNNING
    # A queued run that was interrupted before has a step too.
    has_started = running or status.progress > 0
    location = " ".join(filter(None, [status.host, status.job, first_text_line(status.reason)]))
    return [
        (run.run.id[:digits], "bold" if running else ""),
        (format_cell(run.sweep) if several_sweeps else "", ""),
        (format_cell(spec.info.labels.model) if several_models else "", ""),
        (format_cell(shown_strategy(spec)), ""),
        *((text, "") for text in (*_point_cells(spec.point), str(spec.seed))),
        (status.state.value, STYLES.get(status.state, "dim")),
        (run.step if has_started else "", ""),
        (f"{run.loss:.4g}" if run.loss is not None else "", ""),
        (per_second(run.steps_per_s) if run.steps_per_s is not None else "", ""),
        (short_duration(status.remaining_s) if running and status.remaining_s is not None else "", "cyan"),
        (str(run.attempt) if run.attempt > 1 else "", ""),
        (format_cell(location), "dim"),
    ]


# --- the family in view, and events ---------------------------------------------------------------------------------


def family_details(family: FamilyView, width: int, height: int) -> Text:
    """Return the details of a family, with the legend below if all of it fits."""
    lines = [(line, style) for text, style in detail_lines(family) for line in textwrap.wrap(text, max(8, width))]
    legend = [
        ("", ""),
        *((line, "dim") for text_line in (MARK_LEGEND, STATE_LEGEND) for line in _wrap_legend(text_line, width)),
    ]
    # Too many lines: end with an ellipsis, so that it shows that there is more.
    if len(lines) > height:
        text, style = lines[height - 1]
        lines = [*lines[: height - 1], (f"{text[: max(0, width - 1)]}…", style)]
    elif len(lines) + len(legend) <= height:
        lines += legend
    return Text("\n").join(Text(text, style=style) for text, style in lines)


def _wrap_legend(legend: str, width: int) -> list[str]:
    """Wrap a legend between its entries, which are separated by two blanks."""
    lines = [""]
    for entry in legend.split("  "):
        longer = f"{lines[-1]}  {entry}".strip()
        lines = [*lines[:-1], longer] if len(longer) <= width else [*lines, entry]
    return lines


def event_lines(events: Sequence[Event], height: int) -> Text:
    """Return the last `height` events, the newest last."""
    latest = events[-max(1, height) :]
    return Text("\n").join(map(_event_line, latest))


def _event_line(event: Event) -> Text:
    line = Text()
    line.append(f"{event.at or 'earlier':8}  ", style="dim")
    line.append(f"{event.kind:11}  ", style=EVENT_STYLES.get(event.kind, ""))
    line.append(format_cell(event.subject))
    line.append(f"  {event.text}" if event.text else "")
    line.append(f"  {format_cell(event.position)}" if event.position else "", style="dim")
    return line
