"""The command verdict: judge a table of scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ettsweep.cli.options import Form, Lowest, ScoreColumn, SeedColumn, VerdictOptions
from ettsweep.cli.parsers import parse_location, parse_path
from ettsweep.console import Format, print_note, print_table
from ettsweep.errors import InputError
from ettsweep.runs.point import axis_cells

if TYPE_CHECKING:
    from ettsweep.runs.spec import RunSpec


def verdict(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="Scores: CSV, TSV or Markdown with a header, JSON, Parquet; - for standard input.",
            metavar="SCORES",
            parser=parse_location,
            show_default=False,
        ),
    ],
    lowest: Lowest = None,
    axes: Annotated[
        str,
        typer.Option(
            help="Columns of one or two axes: lr,bs or lr=learning_rate,bs. By default lr and wd.", metavar="NAMES"
        ),
    ] = "",
    score: ScoreColumn = "",
    seed: SeedColumn = "",
    by: Annotated[
        str, typer.Option(help="Columns whose values each get a verdict of their own, such as N,D.", metavar="NAMES")
    ] = "",
    at: Annotated[
        str | None,
        typer.Option(help="Judge this point instead of the best one, such as lr=0.02,bs=256.", metavar="POINT"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Also write a page with the answer and the map.", parser=parse_path, metavar="FILE"),
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

    Which hyperparameters are best, how much better could a neighbour be, and which runs would narrow that bound? It
    trains and keeps nothing. The exit code is 0 if the verdict is "optimal", else 1.
    """
    from ettsweep.cli.verdict_tables import note_verdicts, score_note, show_answers, show_families
    from ettsweep.report.answer import answer_at, bounds_at
    from ettsweep.report.verdict_view import make_views
    from ettsweep.runs.index import Run
    from ettsweep.study.criterion import resolve_criterion
    from ettsweep.study.judgement import evaluate
    from ettsweep.study.lattice import parse_point
    from ettsweep.study.score_columns import Columns, mode_of
    from ettsweep.study.score_table import STANDARD_INPUT, TableRecipe, make_study, read_scores, shown_seed
    from ettsweep.study.study_state import StudyState

    tables, table = read_scores(source, Columns.stated(axes, score, seed, by))
    title, column = "standard input" if source == STANDARD_INPUT else Path(source).name, table.columns.score
    mode = mode_of(column) if lowest is None else "min" if lowest else "max"
    if mode is None:
        raise InputError(f"{source}: is a low or a high {column} better? Add --min or --max")
    states, members = list[StudyState](), list[list[Run]]()
    following, notes = list[dict[str, object]](), dict[str, None]()
    for number, part in enumerate(tables):
        recipe = TableRecipe(source=title, column=column, mode=mode, margin_is=margin_is, paired=part.paired)
        options = VerdictOptions(rule, confidence, margin).criterion_options().for_runs(recipe.info.metric, seeded=True)
        options.check_default(recipe.info.metric)
        study, known, more = make_study(part.scores, recipe, resolve_criterion([options]), part.variant, number)
        states.append(evaluate(study, known))
        members.append(known)
        notes |= dict.fromkeys(more)
    points = [
        None if at is None else state.resolve_point(parse_point(at, "--at", state.study.centre, state.study.free))
        for state in states
    ]
    verdicts = [state.verdict(point) for state, point in zip(states, points, strict=True)]
    views = make_views(verdicts)
    for state, judged, known in zip(states, verdicts, members, strict=True):
        ids = {run.id for run in known}
        wanted = [*state.needed_specs(judged), *state.racing_specs(judged, runs)]
        specs = [spec for spec in wanted if spec.run_id not in ids][:runs]
        following += [_wanted(spec, shown_seed(state.study, spec.seed), len(tables) > 1) for spec in specs]
    if form is Format.JSON:
        data = [
            {**view.data, "next": [row for row in following if row.get("strategy") in (None, view.data["strategy"])]}
            for view in views
        ]
        if at is not None:
            for row, state, judged in zip(data, states, verdicts, strict=True):
                row["at"] = bounds_at(state, judged)
        print_table([], form, data=data if by else data[0])
    elif at is not None and form is Format.TABLE:
        for state, judged in zip(states, verdicts, strict=True):
            print(f"{state.study.title}: " * (len(states) > 1) + answer_at(state, judged))
    else:
        rows = [dict(view.cells) for view in views]
        if at is None:
            show_answers(views, form)
        else:
            for row, state, judged in zip(rows, states, verdicts, strict=True):
                row |= bounds_at(state, judged)
        show_families(rows, views, form)
    for note in (*table.notes, *notes):
        print_note(note)
    note_verdicts(views)
    for view in views:
        print_note(f"for a paper: {view.for_paper}" if view.for_paper and len(views) == 1 else "")
    if following and form is Format.TABLE:
        print_note("runs that narrow the bound most:")
        print_table(following, form)
    print_note(score_note([state.study for state in states]))
    if page:
        from ettsweep.report.writer import write_page  # it takes seconds to import

        write_page(page, [run for each in members for run in each], verdicts)
        print_note(f"wrote {page}")
    if not all(view.is_optimal for view in views):
        raise typer.Exit(1)


def _wanted(spec: "RunSpec", seed: int, has_several: bool) -> dict[str, object]:
    from ettsweep.study.study import shown_strategy

    at = {"strategy": shown_strategy(spec)} if has_several else {}
    return {**at, **axis_cells(spec.point), **({"seed": seed} if spec.info.paired else {})}
