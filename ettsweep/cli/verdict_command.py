"""The command verdict: judge a table of scores."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ettsweep.cli.options import Form, Lowest, VerdictOptions
from ettsweep.cli.parsers import parse_location
from ettsweep.console import Format, print_note, print_table
from ettsweep.errors import InputError


def verdict(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="Scores: CSV or TSV with a header, JSON, Parquet; - for standard input.",
            metavar="SCORES",
            parser=parse_location,
            show_default=False,
        ),
    ],
    lowest: Lowest = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a column: lr=learning_rate, wd=, seed= or score=; repeatable.", metavar="COLUMN=NAME"
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=0, help="List at most this many runs that narrow the bound most.")] = 6,
    rule: Annotated[
        Literal["bound", "paper"], typer.Option(help="Rule for an optimum: a confidence bound, or the paper's means.")
    ] = "bound",
    confidence: Annotated[
        str | None, typer.Option(help="Confidence of the bound, such as 0.95 or 95%.", metavar="SHARE")
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(help="How much better a neighbour may be, such as 2% of the score.", metavar="SHARE"),
    ] = None,
    margin_is: Annotated[
        Literal["share", "difference"], typer.Option(help="Whether a margin is a share of the score or a difference.")
    ] = "share",
    form: Form = Format.TABLE,
) -> None:
    """Judge a table of scores that you have.

    Which lr and wd are best, how much better could a neighbour be, and which runs would narrow that bound? It trains
    and keeps nothing. The exit code is 0 if the verdict is "optimal", else 1.
    """
    from ettsweep.cli.verdict_tables import note_verdicts, score_note, show_answers, show_families
    from ettsweep.report.verdict_view import make_views
    from ettsweep.study.criterion import resolve_criterion
    from ettsweep.study.judgement import evaluate
    from ettsweep.study.score_columns import mode_of
    from ettsweep.study.score_table import (
        COLUMNS,
        STANDARD_INPUT,
        TableRecipe,
        column_names,
        make_study,
        read_scores,
        shown_seed,
    )

    scores, table = read_scores(source, column_names(column or [], COLUMNS))
    title = "standard input" if source == STANDARD_INPUT else Path(source).name
    mode = mode_of(table.name("score")) if lowest is None else "min" if lowest else "max"
    if mode is None:
        raise InputError(f"{source}: is a low or a high {table.name('score')} better? Add --min or --max")
    recipe = TableRecipe(source=title, column=table.name("score"), mode=mode, margin_is=margin_is)
    options = VerdictOptions(rule, confidence, margin).criterion_options().for_runs(recipe.info.metric, seeded=True)
    options.check_default(recipe.info.metric)
    study, members, notes = make_study(scores, recipe, resolve_criterion([options]))
    state = evaluate(study, members)
    judged = state.verdict()
    (view,) = make_views([judged])
    known = {run.id for run in members}
    wanted = [*state.needed_specs(judged), *state.racing_specs(judged, runs)]
    specs = [spec for spec in wanted if spec.run_id not in known][:runs]
    following = [{**spec.point.to_json(), "seed": shown_seed(study, spec.seed)} for spec in specs]
    if form is Format.JSON:
        print_table([], form, data={**view.data, "next": following})
    else:
        show_answers([view], form)
        show_families([view.cells], [view], form)
    for note in (*table.notes, *notes):
        print_note(note)
    note_verdicts([view])
    print_note(f"for a paper: {view.for_paper}" if view.for_paper else "")
    if following and form is Format.TABLE:
        print_note("runs that narrow the bound most:")
        print_table(following, form)
    print_note(score_note([study]))
    if not view.is_optimal:
        raise typer.Exit(1)
