"""The command simulate: what a rule does on sweeps whose truth is known."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ettsweep.cli import completion
from ettsweep.cli.options import Form, Judging
from ettsweep.errors import InputError, unknown_name
from ettsweep.output import Format, Row, count, note, progress, show


def simulate(
    *,
    table: Annotated[
        Path | None,
        typer.Option(help="Recorded lattice: JSON with columns and rows, maybe gzipped.", metavar="FILE"),
    ] = None,
    surface: Annotated[
        str | None,
        typer.Option(
            help="Made surface: bowl, ridge, plateau, cliff, several, rough or growing.",
            autocompletion=completion.surfaces,
        ),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="Noise of a run on a made surface, a share of its loss: 0.06, or 6%.", metavar="SHARE"),
    ] = None,
    tails: Annotated[
        Literal["normal", "heavy"] | None, typer.Option(help="Tails of that noise; heavy: Student's t of 3 degrees.")
    ] = None,
    sweeps: Annotated[int, typer.Option(min=1, help="Sweeps of each rule.")] = 100,
    seeds: Annotated[str, typer.Option(help="Seeds that each sweep asks for, such as 0,1,2.")] = "0,1",
    slots: Annotated[int, typer.Option(min=1, help="Runs that train at a time.")] = 1,
    sampler: Annotated[
        str,
        typer.Option(
            help="Who searches before that: climb (nobody), factorial, or a sampler of `search`.",
            autocompletion=completion.ways,
        ),
    ] = "climb",
    trials: Annotated[int | None, typer.Option(min=1, help="Points that a sampler proposes at most.")] = None,
    off: Annotated[
        int | None, typer.Option(min=0, max=8, help="Start this many steps off the best point, not at the centre.")
    ] = None,
    judging: Judging,
    max_runs: Annotated[int | None, typer.Option(min=0, help="Race up to this many runs a sweep.")] = 300,
    max_seeds: Annotated[int | None, typer.Option(min=1, help="Race with at most this many seeds a point.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    form: Form = Format.TABLE,
) -> None:
    """Simulate sweeps on a recorded lattice or a made surface: how often is a verdict right, and for how many runs?

    Each asks for the centre alone, or for what a sampler proposes, and goes on as `verify-optimum --follow` does. A row
    for each rule, or for the one that is named: the share of sweeps declared optimal, of these that of right ones, how
    often the bound holds, the runs of a sweep, its wall time in times of one run, how often its candidate is within the
    margin of the best point of all, and how much worse than that it is.
    """
    from ettsweep.config import parse_numbers
    from ettsweep.processes import cores
    from ettsweep.sweep.criterion import Rule, resolve
    from ettsweep.sweep.recorded import Recorded, read_table
    from ettsweep.sweep.samplers import SAMPLERS, proposer
    from ettsweep.sweep.simulate import WAYS, Outcome, Series, Way, centre_alone, open_workers, outcomes, summary
    from ettsweep.sweep.verify import Budget
    from ettsweep.sweep.worlds import Made

    if (table is None) == (surface is None):
        raise InputError("say what is searched, with one of --table FILE and --surface NAME")
    if table and (noise is not None or tails):
        raise InputError("--noise and --tails are those of a made surface; a table has its own")
    if sampler not in WAYS:
        raise unknown_name("way to search", sampler, WAYS)
    if sampler in SAMPLERS:
        proposer(sampler)  # the package that it needs may be missing
    stated = judging.stated()
    asked = parse_numbers(seeds, "--seeds", "0,1,2")
    recorded = read_table(table) if table else None
    made = Made(surface or "bowl", 0.06 if noise is None else _noise(noise), tails or "normal", seed=seed)
    world = Recorded(recorded, seed=seed) if recorded else made
    most = recorded.seeds(max_seeds) if recorded else max_seeds
    criterion, rows = resolve([stated]), list[Row]()
    rules: list[Rule] = [stated.rule] if stated.rule else ["bound", "paper"]
    found = list[Outcome]()
    try:
        with progress("simulating", len(rules) * sweeps) as advance, open_workers(cores()) as pool:
            for rule in rules:
                search = centre_alone(asked, criterion.model_copy(update={"rule": rule}), recorded)
                budget, found = Budget(max_runs, most).checked([search]), []
                for one in outcomes(pool, Series(search, world, budget, slots, Way(sampler, trials, off)), sweeps):
                    found.append(one)
                    advance(1)
                rows.append({"rule": rule, **summary(found)})
    except KeyboardInterrupt:
        if len(rows) < len(rules) and found:
            rows.append({"rule": f"{rules[len(rows)]}, {count(len(found), 'sweep')} alone", **summary(found)})
        show(rows, form)
        raise
    show(rows, form)
    if form is Format.TABLE:
        margin = search.measure.said(criterion.margin_for(search.measure))
        note(f"{sweeps} sweeps a rule; {search.measure.metric}, margin {margin}, confidence {criterion.confidence:g}")


def _noise(text: str) -> float:
    """Read the noise as margins are read."""
    try:
        return Judging(margin=text).stated().margin or 0.0
    except InputError as error:
        raise InputError(str(error).replace("--margin", "--noise")) from None
