"""The parts of the screen as lines of text: tables of families and runs, the family in view, events."""

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

BAR = 10

FAMILY_COLUMNS = (
    *(Column("sweep"), Column("model", rank=5), Column("strategy"), Column("", rank=4), Column("runs", right=True)),
    *(Column("verdict"), Column("lr", rank=2), Column("wd", rank=2), Column("score", right=True, rank=3)),
    *(Column("running", right=True, rank=6), Column("cancelled", right=True, rank=2)),
    *(Column("stuck", right=True, rank=1), Column("", rank=7)),
)

STUCK = (State.FAILED, State.HELD, State.UNKNOWN)
"""States that need a person; who cancels a run has decided about it."""


def family_lines(view: ViewModel, width: int) -> list[Text]:
    """Return the table of families, its head first."""
    several = len({family.study.model for family in view.families}) > 1
    return table(FAMILY_COLUMNS, [_family(family, several) for family in view.families], width)


def _family(family: FamilyView, several: bool) -> list[Words]:
    study, verdict, finished = family.study, family.verdict, family.finished
    lr, wd = (power(verdict.point.lr), power(verdict.point.wd)) if verdict and verdict.point else ("", "")
    stuck = sum(number for state, number in family.states.items() if state in STUCK)
    running, cancelled = family.states.get(State.RUNNING, 0), family.states.get(State.CANCELLED, 0)
    return [
        (cell(study.sweep), "bold"),
        (cell(study.model) if several else "", ""),
        (cell(study.strategy), ""),
        (progress_bar(finished / max(1, family.runs), BAR), "cyan"),
        (f"{finished}/{family.runs}", ""),
        confidence(family),
        *((lr, ""), (wd, "")),
        (f"{verdict.score:.4g}" if verdict and verdict.score is not None else "", ""),
        (str(running) if running else "", "cyan"),
        (str(cancelled) if cancelled else "", "yellow"),
        (str(stuck) if stuck else "", "red"),
        (cell(verdict.reason.partition(";")[0]) if verdict else "", "dim"),
    ]


# --- runs -----------------------------------------------------------------------------------------------------------

RUN_COLUMNS = (
    *(Column("run"), Column("sweep", rank=7), Column("model", rank=9), Column("strategy", rank=1)),
    *(Column("lr", right=True), Column("wd", right=True), Column("seed", right=True, rank=3), Column("state")),
    *(Column("step", right=True), Column("loss", right=True), Column("speed", right=True, rank=2)),
    *(Column("left", right=True), Column("try", right=True, rank=8), Column("pack", rank=6), Column("", rank=5)),
)

Key = Callable[[RunView], object]

SORTS: dict[str, Key] = {
    "state": lambda one: 0,
    "time left": lambda one: one.run.status.left_s if one.run.status.left_s is not None else float("inf"),
    "loss": lambda one: one.loss if one.loss is not None else float("inf"),
    "speed": lambda one: -(one.steps_per_s or 0.0),
    "point": lambda one: (one.run.model, one.run.strategy, one.run.spec.lr, one.run.spec.wd, one.run.spec.seed),
}
"""By what the table of runs can be sorted; within what is equal, those in training come first."""


def sorted_runs(view: ViewModel, by: str) -> list[RunView]:
    """Return the unfinished runs in an order."""
    return sorted(view.runs, key=SORTS[by])  # type: ignore[arg-type]


def run_lines(runs: Sequence[RunView], width: int) -> list[Text]:
    """Return the table of unfinished runs, its head first."""
    sweeps, models = {run.sweep for run in runs}, {run.run.model for run in runs}
    rows = [_run(run, len(sweeps) > 1, len(models) > 1, 8 if width < 120 else 12) for run in runs]
    return table(RUN_COLUMNS, rows, width)


def _run(run: RunView, sweeps: bool, models: bool, digits: int) -> list[Words]:
    spec, status = run.run.spec, run.run.status
    running = status.state is State.RUNNING
    begun = running or status.progress > 0
    place = " ".join(filter(None, [status.where, status.job, first_line(status.reason)]))
    return [
        (run.run.id[:digits], "bold" if running else ""),
        (cell(run.sweep) if sweeps else "", ""),
        (cell(model_name(spec.model)) if models else "", ""),
        (cell(strategy_name(spec.strategy.s)), ""),
        *((power(spec.lr), ""), (power(spec.wd), ""), (str(spec.seed), "")),
        (status.state.value, STYLES.get(status.state, "dim")),
        (f"{run.step}/{spec.schedule.last_step}" if begun else "", ""),
        (f"{run.loss:.4g}" if run.loss is not None else "", ""),
        (per_second(run.steps_per_s) if run.steps_per_s is not None else "", ""),
        (short_duration(status.left_s) if running and status.left_s is not None else "", "cyan"),
        (str(run.attempt) if run.attempt > 1 else "", ""),
        (cell(run.pack), ""),
        (cell(place), "dim"),
    ]


# --- the family in view, and events ---------------------------------------------------------------------------------


def family_words(family: FamilyView, width: int, height: int) -> Text:
    """Return what is said of a family beside its lattice; what signs mean, where there is room for all of that."""
    lines = [(line, style) for text, style in details(family) for line in textwrap.wrap(text, max(8, width))]
    legend = [("", ""), *((line, "dim") for told in (MARKED, LEGEND) for line in _parts(told, width))]
    if len(lines) > height:
        text, style = lines[height - 1]
        lines = [*lines[: height - 1], (f"{text[: max(0, width - 1)]}…", style)]
    elif len(lines) + len(legend) <= height:
        lines += legend
    return Text("\n").join(Text(text, style=style) for text, style in lines)


def _parts(legend: str, width: int) -> list[str]:
    """Return a legend in lines, parted between its entries alone."""
    lines = [""]
    for part in legend.split("  "):
        longer = f"{lines[-1]}  {part}".strip()
        lines = [*lines[:-1], longer] if len(longer) <= width else [*lines, part]
    return lines


def event_lines(events: Sequence[Event], height: int) -> Text:
    """Return the last events, the newest last."""
    shown = events[-max(1, height) :]
    return Text("\n").join(map(_event, shown))


def _event(event: Event) -> Text:
    told = Text()
    told.append(f"{event.at or 'earlier':8}  ", style="dim")
    told.append(f"{event.what:11}  ", style=STYLED.get(event.what, ""))
    told.append(cell(event.whose))
    told.append(f"  {event.told}" if event.told else "")
    told.append(f"  {cell(event.place)}" if event.place else "", style="dim")
    return told
