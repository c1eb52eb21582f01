"""Options with which `grid` and `search` load a sweep from a grid file."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import Grid, Model, Sets, Strategies
from ettsweep.cli.prompts import suggest_command
from ettsweep.errors import InputError, nearest_name

if TYPE_CHECKING:
    from ettsweep.cli.options import VerdictOptions
    from ettsweep.study.sweep_spec import SweepSpec


@dataclass(frozen=True)
class GridOptions:
    """Options that select a grid file, override its values, and name the sweep."""

    grid: Grid = None
    model: Model = None
    strategy: Strategies = None
    range_: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            help="Range of an axis: lr=low:high[:step] in steps from the centre (log2), or lr=fixed; repeatable.",
            metavar="NAME=RANGE",
        ),
    ] = None
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2, or their number.")] = None
    set_: Sets = None
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the sweep to create or extend; by default the grid file's.",
        ),
    ] = None
    same_numbers: Annotated[
        bool, typer.Option(help="Treat the edited code as equivalent: keep the sweep and its finished runs.")
    ] = False

    def load_spec(self, verdict_options: "VerdictOptions", missing_message: str) -> "tuple[str, SweepSpec, str]":
        """Return the sweep's name, its spec, and notes for the user.

        The notes name the grid file, the seeds, and points whose lr the schedule cuts short.

        Without a grid file and --model, the error has the text `missing_message`.

        Raises:
            InputError: The grid file, an option or the name is not valid.
        """
        from ettsweep.errors import with_source
        from ettsweep.study.criterion import CriterionOptions
        from ettsweep.study.grid_file import choose_grid_path, grid_note, load_sweep_spec, seeds_note
        from ettsweep.study.sweep_store import check_name

        path = choose_grid_path(self.grid, self.model, missing_message)
        others = {} if path.exists() else {other.stem: other for other in path.parent.glob("*.y*ml")}
        if near := nearest_name(path.stem, others):
            raise InputError(f"{path}: no such file; did you mean {others[near]}?")
        seeds = None if self.seeds is None else _parse_seeds(self.seeds)
        with suggest_command():
            sweep_spec = load_sweep_spec(
                path, self.strategy or [], self.set_ or [], _parse_ranges(self.range_ or []), seeds
            )
        name = check_name(path.stem if self.name is None else self.name)
        notes = [grid_note(path, self.model), seeds_note(path, self.seeds), sweep_spec.check_axes()]
        sweep_spec = verdict_options.apply_to(sweep_spec)
        with with_source(f"{path}: criterion"):
            (sweep_spec.criterion or CriterionOptions()).check_default(sweep_spec.recipe.info.metric)
        return name, sweep_spec, "\n".join(filter(None, notes))

    def reject_with(self, option: str) -> None:
        """Check that only --strategy is given beside `option`, which selects an existing sweep.

        Raises:
            InputError: Another option is given.
        """
        values: dict[str, object] = {
            "the grid file": self.grid,
            "--model": self.model,
            "--range": self.range_,
            "--seeds": self.seeds,
            "--set": self.set_,
            "--name": self.name,
            "--same-numbers": self.same_numbers,
        }
        if conflicting := [name for name, value in values.items() if value]:
            raise InputError(
                f"{option} uses an existing sweep unchanged: leave out {', '.join(conflicting)}, or pass its grid "
                "file or model with --name to extend it"
            )


def _parse_ranges(texts: list[str]) -> dict[str, str]:
    ranges = dict[str, str]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--range: NAME=low:high is expected, such as lr=-2:2, got {text!r}")
        if name in ranges:
            raise InputError(f"--range: {name} is given twice")
        ranges[name] = value
    return ranges


def _parse_seeds(text: str) -> list[int] | int:
    """Return the seeds of a list, or a number of seeds: `3` is three seeds, `3,` the seed 3."""
    from ettsweep.config import parse_integers

    return int(text) if text.isdecimal() else parse_integers(text.removesuffix(","), "--seeds", "0,1,2")
