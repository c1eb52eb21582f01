"""The command on two lists of scores: compare."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import Form, VerdictOptions
from ettsweep.cli.path_options import parse_path
from ettsweep.console import Format, format_count, print_note, print_table
from ettsweep.errors import InputError

if TYPE_CHECKING:
    from ettsweep.study.comparison import Comparison


def compare(
    *,
    first: Annotated[
        Path,
        typer.Argument(
            help="Scores: CSV with a header, lines of JSON, or a number a line.", metavar="A", parser=parse_path
        ),
    ],
    second: Annotated[Path, typer.Argument(help="Scores that they are compared with.", metavar="B", parser=parse_path)],
    lowest: Annotated[bool, typer.Option("--min/--max", help="Whether low or high scores are better.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="Name of a column: seed= or score=; repeatable.", metavar="COLUMN=NAME"),
    ] = None,
    confidence: Annotated[str, typer.Option(help="Confidence of the interval.", metavar="SHARE")] = "95%",
    form: Form = Format.TABLE,
) -> None:
    """Say whether scores of A are better or worse than those of B, by how much, and how many more seeds would tell.

    They are compared seed by seed where both have the same. The exit code is 0 where it is told which, 1 where it is
    not.
    """
    from ettsweep.study.comparison import compare as compare_scores
    from ettsweep.study.comparison import summary
    from ettsweep.study.stated_scores import column_names, read_list

    names = column_names(column or [], ("seed", "score"))
    stated = VerdictOptions(confidence=confidence).criterion_options().confidence
    assert stated is not None
    (a, a_has_seeds), (b, b_has_seeds) = lists = [read_list(path, names) for path in (first, second)]
    for path, (scores, _) in zip((first, second), lists, strict=True):
        if sum(score is not None for score in scores.values()) < 2:
            raise InputError(f"{path}: at least two scores are needed, to tell a difference from luck")
    result = compare_scores(a, b, "min" if lowest else "max", stated, a_has_seeds and b_has_seeds)
    rows = [summary(str(path), scores) for path, (scores, _) in zip((first, second), lists, strict=True)]
    print_table(rows, form, data={"scores": rows, **asdict(result)})
    print_note(_text(result))
    if any(result.diverged):
        counts = " and ".join(f"{n} of {name}" for n, name in zip(result.diverged, "AB", strict=True) if n)
        print_note(f"diverged runs are left out: {counts}; what has some is not called better")
    if result.more_seeds:
        seeds = format_count(result.more_seeds, "more seed")
        print_note(f"if the difference is what it seems, {seeds} of each would tell")
    if result.verdict == "unresolved":
        raise typer.Exit(1)


def _text(result: "Comparison") -> str:
    """Return what a comparison says, with what it rests on."""
    from ettsweep.quantities import confidence_text

    low, high, winner = result.low, result.high, "A"
    if result.advantage < 0:
        low, high, winner = -high, -low, "B"
    verb = "seems" if result.verdict == "unresolved" else "is"
    basis = f"over {result.pairs} common seeds" if result.pairs else "by Welch's test"
    return (
        f"{result.verdict}: {winner} {verb} better by {abs(result.advantage):.4g} ({low:.4g} to {high:.4g}, "
        f"{confidence_text(result.confidence)} sure), {basis}"
    )
