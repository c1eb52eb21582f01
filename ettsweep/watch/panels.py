"""Contents of the panels: first lines, rows of families and runs, details of a family, events."""

from collections.abc import Sequence

from rich.text import Text

from ettsweep.console import STYLES, format_cell, format_count
from ettsweep.launch.liveness import NO_ANSWER
from ettsweep.launch.progress import SweepStatus, format_duration
from ettsweep.powers import axis_text
from ettsweep.quantities import three_digits
from ettsweep.runs.point import axis_cells
from ettsweep.runs.state import State
from ettsweep.watch.lattice_view import LEGEND
from ettsweep.watch.view import Event, FamilyView, RunView, View

Row = dict[str, Text]
"""Cells by column, the most important first: a narrow screen shows the left ones."""

EVENT_STYLES = STYLES | {"requeued": "cyan", "reached": "bold green", "lost": "red"}
"""Style of an event by its kind."""


def headline(status: SweepStatus, results: str) -> Text:
    """Return numbers of runs, time left, and the results folder."""
    line = Text(f"{status.finished_count}/{format_count(status.run_count, 'run')} finished", "bold")
    if status.run_count and status.is_over:
        line.append("  all runs have ended", "yellow" if status.unfinished_count else "green")
    if status.remaining_s:
        line.append(f"  about {format_duration(status.remaining_s)} left", "cyan")
    return line.append(f"  {format_cell(results)}", "not bold dim")


def problem_lines(view: View, status: SweepStatus) -> Text:
    """Return problems: unreadable files, and reasons why runs do not train."""
    silence = f"{NO_ANSWER}: {status.slurm_error}" if status.slurm_error else ""
    problems = [(text, "red") for text in (*view.problems, status.stop_reason)]
    waits = [(text, "yellow") for text in (silence, status.wait_reason, status.idle_slots)]
    return Text("\n").join(Text(format_cell(text), style) for text, style in (*problems, *waits) if text)


def family_row(family: FamilyView) -> Row:
    """Return the row of a family."""
    counts, verdict = family.counts, family.verdict
    finished = sum(number for state, number in counts.items() if state.finished)
    label = Text("not judged yet", "dim")
    if verdict:  # out of date: runs have finished since
        label = Text(verdict.brief + " ..." * family.is_stale, STYLES.get(verdict.word, ""))
    return {
        "family": Text(format_cell(family.title), "bold"),
        "runs": _number(f"{finished}/{counts.total()}"),
        "failed": _number(counts[State.FAILED], "red"),
        "verdict": label,
        **{
            name: _power(name, verdict.cells.get(name) if verdict else None) for name in axis_cells(family.study.centre)
        },
        "score": _number(verdict.mean if verdict else ""),
        "training": _number(counts[State.RUNNING], "cyan"),
    }


def run_row(view: RunView, *, has_sweep: bool) -> Row:
    """Return the row of an unfinished run, without its sweep if all runs share it."""
    run, status = view.run, view.status
    is_running = status.state is State.RUNNING
    reason = format_cell(status.reason.strip().partition("\n")[0])
    left = format_duration(status.remaining_s) if is_running and status.remaining_s is not None else ""
    return {
        "run": Text(run.id[:8], "bold" if is_running else ""),
        "strategy": Text(format_cell(view.strategy)),
        **{name: _power(name, value) for name, value in axis_cells(run.point).items()},
        "state": Text(status.state.value, STYLES.get(status.state, "dim")),
        # An interrupted run in the queue has a step too.
        "step": _number(run.base.info.progress_text(status.progress) if is_running or status.progress else ""),
        "loss": _number("" if view.loss is None else f"{view.loss:.4g}"),
        "left": _number(left, "cyan"),
        "steps/s": _number("" if view.steps_per_s is None else three_digits(view.steps_per_s)),
        "seed": _number(str(run.seed)),
        "sweep": Text(format_cell(view.sweep) if has_sweep else ""),
        "where": Text(" ".join(filter(None, [format_cell(status.host), format_cell(status.job), reason])), "dim"),
    }


def _number(value: str | int, style: str = "") -> Text:
    """Return a right-aligned cell; 0 is empty."""
    return Text(str(value or ""), style, justify="right")


def _power(name: str, value: float | None) -> Text:
    return _number("" if value is None else axis_text(name, value, 3))


def family_details(family: FamilyView) -> Text:
    """Return the answer of a family with its score, and the legend below."""
    details = Text()
    if verdict := family.verdict:
        details.append(f"{format_cell(verdict.answer)}\n")
        for line in filter(None, (verdict.score_line if verdict.point else "", verdict.shortfall)):
            details.append(f"{format_cell(line)}\n", "dim")
        details.append("\n")
    return details.append(LEGEND, "dim")


def event_lines(events: Sequence[Event]) -> Text:
    """Return events line by line, the newest first: a low screen shows the top."""
    return Text("\n").join(map(_event_line, reversed(events)))


def _event_line(event: Event) -> Text:
    text = format_cell(event.text.strip().partition("\n")[0])
    kind = (f"{event.kind:11}", EVENT_STYLES.get(event.kind, ""))
    return Text.assemble((event.at, "dim"), "  ", kind, "  ", format_cell(event.subject), "  ", text)
