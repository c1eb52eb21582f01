"""The command that compares scores: compare."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ettsweep.cli.options import DEFAULT_RESULTS, Form, Lowest, Results, ScoreColumn, SeedColumn, VerdictOptions
from ettsweep.cli.parsers import parse_location
from ettsweep.console import Format, format_count, print_note, print_table
from ettsweep.errors import InputError
from ettsweep.runs.point import axis_cells, axis_names

if TYPE_CHECKING:
    from ettsweep.study.compare import Comparison


def compare(
    *,
    first: Annotated[
        str,
        typer.Argument(
            help="Scores: a table (CSV, TSV, JSON, Parquet) or a file with one number per line. Or the best point of "
            "SWEEP, SWEEP/STRATEGY or STRATEGY; add :LR,WD or :NAME=VALUE,... for another point.",
            metavar="A",
            parser=parse_location,
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(
            help="Scores to compare with, in the same forms.",
            metavar="B",
            parser=parse_location,
        ),
    ],
    lowest: Lowest = None,
    score: ScoreColumn = "",
    seed: SeedColumn = "",
    confidence: Annotated[str, typer.Option(help="Confidence of the interval.", metavar="SHARE")] = "95%",
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Compare two lists of scores, sweeps or points.

    Reports which is better, by how much, with an interval, and how many more seeds would decide it. Pairs common seeds.
    Sweeps need no --min or --max. The exit code is 0 if one is better beyond chance, else 1.
    """
    from ettsweep.study.compare import compare as compare_scores
    from ettsweep.study.compare import read_sides, summary
    from ettsweep.study.score_columns import Columns

    names = Columns({}, score, seed)
    stated = VerdictOptions(confidence=confidence).criterion_options().confidence
    assert stated is not None
    mode: Literal["min", "max"] | None = None if lowest is None else "min" if lowest else "max"
    a, b, best = read_sides(first, second, names, mode, results)
    for side in (a, b):
        if sum(score is not None for score in side.scores.values()) < 2:
            raise InputError(f"{side.name}: needs at least two scores, to estimate the noise")
    result = compare_scores(a.scores, b.scores, best, stated, a.has_seeds and b.has_seeds)
    rows = [summary(side.name, side.scores) | axis_cells(side.point) for side in (a, b)]
    columns = [name for name in rows[0] if form is not Format.TABLE or name not in axis_names([a.point, b.point])]
    print_table(rows, form, columns, data={"scores": rows, **asdict(result)})
    for note in (*a.notes, *b.notes):
        print_note(note)
    print_note(_text(result))
    if any(result.diverged):
        counts = " and ".join(f"{n} of {name}" for n, name in zip(result.diverged, "AB", strict=True) if n)
        print_note(f"diverged runs are left out: {counts}; a side with diverged runs cannot win")
    if result.more_seeds:
        seeds = format_count(result.more_seeds, "more seed")
        print_note(f"{seeds} of each would decide it, if the true difference is as measured")
    if result.verdict == "unresolved":
        raise typer.Exit(1)


def _text(result: "Comparison") -> str:
    """Return the result of a comparison in a line."""
    from ettsweep.quantities import confidence_text

    low, high, winner = result.low, result.high, "A"
    if result.advantage < 0:
        low, high, winner = -high, -low, "B"
    verb = "seems" if result.verdict == "unresolved" else "is"
    relation = f"{winner} {verb} better by {abs(result.advantage):.4g}" if result.advantage else "A and B are equal"
    basis = f"over {result.pairs} common seeds" if result.pairs else "without common seeds"
    return f"{result.verdict}: {relation} ({low:.4g} to {high:.4g}, {confidence_text(result.confidence)} sure), {basis}"
