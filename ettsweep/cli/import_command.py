"""The command that keeps scores which exist already: import."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.options import DEFAULT_RESULTS, DryRun, Form, Grid, Results, Sets, VerdictOptions
from ettsweep.cli.prompts import shell_command, suggest_command
from ettsweep.cli.reading_options import Columns, Lowest, ReadingOptions, Scores
from ettsweep.console import Format, format_count, print_note, print_table

if TYPE_CHECKING:
    from ettsweep.launch.import_scores import ResolvedImport
    from ettsweep.study.importing import ImportPlan


def import_(
    *,
    source: Scores,
    grid: Grid = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Scaling strategy of the runs, where the grid has several.", autocompletion=completion.strategies
        ),
    ] = None,
    set_: Sets = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the sweep to make or extend; by default the grid file's, else that of the scores.",
            autocompletion=completion.sweeps,
        ),
    ] = None,
    lowest: Lowest = None,
    column: Columns = None,
    reading_options: ReadingOptions,
    verdict_options: VerdictOptions,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take scores that differ from those imported before.")
    ] = False,
    note: Annotated[str | None, typer.Option("--note", help="Note to store with the sweep.", metavar="TEXT")] = None,
    dry_run: DryRun = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Keep scores of runs that were trained elsewhere as a sweep, with verdicts, map and page, which later runs extend.

    With --grid they become runs of that grid, and `ettsweep grid` trains only what is missing. Without it they are
    numbers alone. Scores of runs that were trained here stay.
    """
    from ettsweep.launch.import_scores import ImportRequest, import_scores, resolve_import
    from ettsweep.study.score_rows import COLUMNS
    from ettsweep.study.stated_scores import column_names
    from ettsweep.study.sweep_updates import check_name, check_note

    reading = reading_options.reading(column_names(column or [], COLUMNS), lowest=lowest)
    request = ImportRequest(
        source,
        reading,
        None if lowest is None else reading.mode,
        None if reading_options.take is None else reading.take,
        None if name is None else check_name(name),
        grid,
        strategy,
        set_ or [],
        verdict_options.criterion_options(),
        None if note is None else check_note(note),
    )
    with suggest_command():
        resolved = resolve_import(request, results)
        imported = import_scores(request, resolved, results, replaces=replace, dry_run=dry_run)
    plan = imported.plan
    row = {
        "sweep": resolved.name,
        "family": resolved.study.family,
        **{name: len(getattr(plan, name)) for name in ("new", "unchanged", "changed", "trained")},
    }
    print_table([row], form, data={**row, "runs": [spec.run_id for spec, _ in plan.new + plan.changed]})
    for line in (*resolved.notes, imported.change, _trained_note(plan), "" if dry_run else _next_note(resolved, grid)):
        print_note(line)


def _trained_note(plan: "ImportPlan") -> str:
    """Return that runs which were trained here keep their own scores; empty if there are none."""
    if not plan.trained:
        return ""
    return (
        f"{format_count(len(plan.trained), 'run')} trained here, or about to be: imported scores replace none of these"
    )


def _next_note(resolved: "ResolvedImport", grid: Path | None) -> str:
    """Return which commands go on from here."""
    judge = shell_command("verify-optimum", "--sweep", resolved.name, "--dry-run")
    page = shell_command("report", "--sweep", resolved.name)
    train = shell_command("grid", "--grid", str(grid), "--name", resolved.name) if grid else ""
    return f"{judge} judges them, {page} draws the map and the page" + (
        f", {train} trains what is missing" if train else ""
    )
