"""Options on how scores that somebody has already are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ettsweep.cli import completion
from ettsweep.cli.parsers import parse_location
from ettsweep.errors import InputError

if TYPE_CHECKING:
    from ettsweep.study.score_rows import Reading, Rows

Scores = Annotated[
    str,
    typer.Argument(
        help="Scores: CSV with a header, lines of JSON, an export of Weights & Biases, a folder of runs, a storage "
        "of Optuna; - for standard input.",
        metavar="SCORES",
        parser=parse_location,
        show_default=False,
    ),
]

Columns = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a column, metric or parameter: lr=learning_rate, wd=, seed= or score=; repeatable.",
        metavar="COLUMN=NAME",
    ),
]

Lowest = Annotated[
    bool | None,
    typer.Option("--min/--max", help="Whether low or high scores are better.", show_default=False),
]

NO_MODE = "--min or --max says whether low or high scores are better"


@dataclass(frozen=True)
class ReadingOptions:
    """Options for scores that are no plain table."""

    reader: Annotated[
        str | None,
        typer.Option(
            help="Of a folder of runs: the reader that sees their metrics, as of `ettsweep read`.",
            metavar="NAME_OR_PATTERN",
            autocompletion=completion.readers,
        ),
    ] = None
    take: Annotated[
        str | None,
        typer.Option(help="Score of a run with a curve: its best value, its last, or that at a step; best by default."),
    ] = None
    study: Annotated[
        str | None, typer.Option(help="Of a storage of Optuna with several studies: which.", metavar="NAME")
    ] = None

    def reading(self, names: Mapping[str, str], *, lowest: bool | None) -> "Reading":
        """Return how scores are read.

        Raises:
            InputError: `--take` is none.
        """
        from ettsweep.study.score_rows import Reading

        return Reading(names, "max" if lowest is False else "min", self._take(), self.reader, self.study)

    def _take(self) -> Literal["best", "last"] | int:
        match self.take:
            case None | "best":
                return "best"
            case "last":
                return "last"
            case text if text.isascii() and text.isdigit():
                return int(text)
        raise InputError(f"--take: best, last or the number of a step is expected, got {self.take}")


def stated_mode(lowest: bool | None, found: "Rows | None") -> Literal["min", "max"]:
    """Return whether lower or higher is better, as an option or a source says.

    Raises:
        InputError: neither says, or they disagree.
    """
    stated: Literal["min", "max"] | None = None if lowest is None else "min" if lowest else "max"
    known = found.mode if found else None
    if stated and known and stated != known:
        raise InputError(f"--{stated}: of {found.source if found else ''} the {known} is best")
    if mode := stated or known:
        return mode
    raise InputError(NO_MODE)
