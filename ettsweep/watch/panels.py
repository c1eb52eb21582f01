"""Contents of the panels as lines of text: tables of families and runs, details of a family, events."""

import textwrap
from collections.abc import Callable, Sequence

from rich.text import Text

from ettsweep.console import STYLES, cell
from ettsweep.powers import power
from ettsweep.runs.state import State
from ettsweep.strategies.strategy import strategy_name
from ettsweep.trainer.models.registry import model_name
from ettsweep.watch.columns import Column, table
from ettsweep.watch.events import STYLED, Event, first_line
from ettsweep.watch.labels import Words, confidence, details, per_second, progress_bar, short_duration
from ettsweep.watch.lattice_view import LEGEND, MARKED
from ettsweep.watch.view_model import FamilyView, RunView, ViewModel

BAR = 10  # characters of a progress bar

FAMILY_COLUMNS = (
    *(Column("sweep"), Column("model", rank=5), Column("strategy"), Column("", rank=4), Column("runs", right=True)),
    *(Column("verdict"), Column("lr", rank=2), Column("wd", rank=2), Column("score", right=True, rank=3)),
    *(Column("running", right=True, rank=6), Column("cancelled", right=True, rank=2)),
    *(Column("stuck", right=True, rank=1), Column("", rank=7)),
)

STUCK = (State.FAILED, State.HELD, State.UNKNOWN)
"""States that need a decision by the user; cancelled runs are not among them, as cancelling was one."""


def family_lines(view: ViewModel, width: int) -> list[Text]:
    """Return the table of families, its header first."""
    several_models = len({family.study.model for family in view.families}) > 1
    return table(FAMILY_COLUMNS, [_family(family, several_models) for family in view.families], width)


def _family(family: FamilyView, several_models: bool) -> list[Words]:
    study, verdict, finished = family.study, family.verdict, family.finished
    lr, wd = (power(verdict.point.lr), power(verdict.point.wd)) if verdict and verdict.point else ("", "")
    stuck = sum(number for state, number in family.states.items() if state in STUCK)
    running, cancelled = family.states.get(State.RUNNING, 0), family.states.get(State.CANCELLED, 0)
    return [
        (cell(study.sweep), "bold"),
        (cell(study.model) if several_models else "", ""),
        (cell(study.strategy), ""),
        (progress_bar(finished / max(1, family.runs), BAR), "cyan"),
        (f"{finished}/{family.runs}", ""),
        confidence(family),
        *((lr, ""), (wd, "")),
        (f"{verdict.score:.4g}" if verdict and verdict.score is not None else "", ""),
        (str(running) if running else "", "cyan"),
        (str(cancelled) if cancelled else "", "yellow"),
        (str(stuck) if stuck else "", "red"),
        # Only the first clause of the reason: the details have all of it.
        (cell(verdict.reason.partition(";")[0]) if verdict else "", "dim"),
    ]


# --- runs -----------------------------------------------------------------------------------------------------------

# Ranks: of the columns that may be dropped, sweep, model and try matter least.
RUN_COLUMNS = (
    *(Column("run"), Column("sweep", rank=7), Column("model", rank=9), Column("strategy", rank=1)),
    *(Column("lr", right=True), Column("wd", right=True), Column("seed", right=True, rank=3), Column("state")),
    *(Column("step", right=True), Column("loss", right=True), Column("speed", right=True, rank=2)),
    *(Column("left", right=True), Column("try", right=True, rank=8), Column("pack", rank=6), Column("", rank=5)),
)

Key = Callable[[RunView], object]

SORTS: dict[str, Key] = {
    "state": lambda view: 0,
    "time left": lambda view: view.run.status.left_s if view.run.status.left_s is not None else float("inf"),
    "loss": lambda view: view.loss if view.loss is not None else float("inf"),
    "speed": lambda view: -(view.steps_per_s or 0.0),
    "point": lambda view: (view.run.model, view.run.strategy, view.run.spec.lr, view.run.spec.wd, view.run.spec.seed),
}
"""Orders of the table of runs. Runs with equal keys keep their order, in which those in training come first."""


def sorted_runs(view: ViewModel, by: str) -> list[RunView]:
    """Return the unfinished runs in the order named `by`, a key of `SORT_KEYS`."""
    return sorted(view.runs, key=SORTS[by])  # type: ignore[arg-type]


def run_lines(runs: Sequence[RunView], width: int) -> list[Text]:
    """Return the table of unfinished runs, its header first."""
    sweeps, models = {run.sweep for run in runs}, {run.run.model for run in runs}
    # Sweep and model stay empty, and are dropped, if they are the same for all runs.
    rows = [_run(run, len(sweeps) > 1, len(models) > 1, 8 if width < 120 else 12) for run in runs]
    return table(RUN_COLUMNS, rows, width)


def _run(run: RunView, several_sweeps: bool, several_models: bool, digits: int) -> list[Words]:
    spec, status = run.run.spec, run.run.status
    running = status.state is State.RUNNING
    # A queued run that was interrupted before has a step too.
    has_started = running or status.progress > 0
    location = " ".join(filter(None, [status.where, status.job, first_line(status.reason)]))
    return [
        (run.run.id[:digits], "bold" if running else ""),
        (cell(run.sweep) if several_sweeps else "", ""),
        (cell(model_name(spec.model)) if several_models else "", ""),
        (cell(strategy_name(spec.strategy.s)), ""),
        *((power(spec.lr), ""), (power(spec.wd), ""), (str(spec.seed), "")),
        (status.state.value, STYLES.get(status.state, "dim")),
        (f"{run.step}/{spec.schedule.last_step}" if has_started else "", ""),
        (f"{run.loss:.4g}" if run.loss is not None else "", ""),
        (per_second(run.steps_per_s) if run.steps_per_s is not None else "", ""),
        (short_duration(status.left_s) if running and status.left_s is not None else "", "cyan"),
        (str(run.attempt) if run.attempt > 1 else "", ""),
        (cell(run.pack), ""),
        (cell(location), "dim"),
    ]


# --- the family in view, and events ---------------------------------------------------------------------------------


def family_words(family: FamilyView, width: int, height: int) -> Text:
    """Return the details of a family, with the legend below if all of it fits."""
    lines = [(line, style) for text, style in details(family) for line in textwrap.wrap(text, max(8, width))]
    legend = [("", ""), *((line, "dim") for text_line in (MARKED, LEGEND) for line in _parts(text_line, width))]
    # Too many lines: end with an ellipsis, so that it shows that there is more.
    if len(lines) > height:
        text, style = lines[height - 1]
        lines = [*lines[: height - 1], (f"{text[: max(0, width - 1)]}…", style)]
    elif len(lines) + len(legend) <= height:
        lines += legend
    return Text("\n").join(Text(text, style=style) for text, style in lines)


def _parts(legend: str, width: int) -> list[str]:
    """Wrap a legend between its entries, which are separated by two blanks."""
    lines = [""]
    for entry in legend.split("  "):
        longer = f"{lines[-1]}  {entry}".strip()
        lines = [*lines[:-1], longer] if len(longer) <= width else [*lines, entry]
    return lines


def event_lines(events: Sequence[Event], height: int) -> Text:
    """Return the last `height` events, the newest last."""
    latest = events[-max(1, height) :]
    return Text("\n").join(map(_event, latest))


def _event(event: Event) -> Text:
    line = Text()
    line.append(f"{event.at or 'earlier':8}  ", style="dim")
    line.append(f"{event.what:11}  ", style=STYLED.get(event.what, ""))
    line.append(cell(event.whose))
    line.append(f"  {event.told}" if event.told else "")
    line.append(f"  {cell(event.place)}" if event.place else "", style="dim")
    return line
