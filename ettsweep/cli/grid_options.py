"""Options by which a command asks for the runs of a grid file, and what is read from them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.options import Grid, Model, Sets, Strategies
from ettsweep.errors import InputError

if TYPE_CHECKING:
    from ettsweep.cli.options import VerdictOptions
    from ettsweep.study.sweep_spec import SweepSpec


@dataclass(frozen=True)
class GridOptions:
    """A grid file, what is set in its place, and the sweep that it makes."""

    model: Model = None
    grid: Grid = None
    strategy: Strategies = None
    lr_range: Annotated[str | None, typer.Option(help="low:high[:step] in log2 from the centre, or fixed.")] = None
    wd_range: Annotated[str | None, typer.Option(help="The same for wd.")] = None
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2.")] = None
    set_: Sets = None
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the sweep that this makes or extends; the grid file's by default.",
            autocompletion=completion.sweeps,
        ),
    ] = None
    words: Annotated[str | None, typer.Option("--note", help="A note that the sweep carries.", metavar="TEXT")] = None

    def request(self, judging: "VerdictOptions", otherwise: str) -> "tuple[str, SweepSpec, str]":
        """Return the name of the sweep, what is asked of it, and a line on a seed that may be meant as a number.

        `otherwise` is said where neither a grid nor a model is.

        Raises:
            InputError: all that is wrong with the file or the options, the name or the note.
        """
        from ettsweep.config import parse_numbers
        from ettsweep.study.grid_file import load_request, seed_alone, which_grid
        from ettsweep.study.sweep_updates import check_name, check_note

        path = which_grid(self.grid, self.model, otherwise)
        seeds = parse_numbers(self.seeds, "--seeds", "0,1,2")
        sweep_spec = load_request(path, self.strategy or [], self.set_ or [], self.lr_range, self.wd_range, seeds)
        name = check_name(path.stem if self.name is None else self.name)
        if self.words is not None:
            check_note(self.words)
        return name, judging.of(sweep_spec), seed_alone(path, seeds)

    def refuse_beside(self, option: str) -> None:
        """Refuse, beside an option that names a sweep, all but its strategies and a note.

        Raises:
            InputError: something else was given.
        """
        values: dict[str, object] = {
            "--grid": self.grid,
            "--model": self.model,
            "--lr-range": self.lr_range,
            "--wd-range": self.wd_range,
            "--seeds": self.seeds,
            "--set": self.set_,
            "--name": self.name,
        }
        if conflicting := [name for name, value in values.items() if value]:
            raise InputError(
                f"{option} takes a sweep as it is, without {', '.join(conflicting)}; to ask it for more, name its grid file "
                f"or model, with --name"
            )
