"""The command search: a proposer names points, and what it finds is verified."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.grid_options import GridOptions
from ettsweep.cli.options import DEFAULT_RESULTS, BudgetOptions, DryRun, Form, Results, TrainingOptions, VerdictOptions
from ettsweep.cli.prompts import console, detaching, go_on, repeated, retyped_with
from ettsweep.console import Format, print_note
from ettsweep.errors import InputError

if TYPE_CHECKING:
    from ettsweep.study.study import Study
    from ettsweep.study.sweep_spec import SweepSpec


def search(
    *,
    grid_options: GridOptions,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep", "-s", help="Search a sweep that is there.", metavar="NAME", autocompletion=completion.sweeps
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="Who proposes points: surface, or tpe, gp, cmaes, random, qmc of Optuna.",
            autocompletion=completion.samplers,
        ),
    ] = "surface",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Points proposed for each strategy at most; 30, or all with surface.")
    ] = None,
    pruner: Annotated[
        str,
        typer.Option(
            help="Stop hopeless runs early: none, or median, hyperband of Optuna.",
            autocompletion=completion.pruners,
        ),
    ] = "none",
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start at the verified optimum of this strategy, or of this sweep.", metavar="STRATEGY|SWEEP"
        ),
    ] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Its best point will do for --from, verified or not.")
    ] = False,
    limits: BudgetOptions,
    judging: VerdictOptions,
    training: TrainingOptions,
    dry_run: DryRun = False,
    follow: Annotated[bool, typer.Option(help="Stay until it is verified; Ctrl-C only detaches.")] = True,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Search the ranges of a grid file: propose points, train them, go on where it is worth it, verify the optimum.

    The same command again goes on where it was.
    """
    from ettsweep.cli.search_history import show_course
    from ettsweep.cli.verification_summary import show_verified
    from ettsweep.launch.follow import CommandContext, read_ledger
    from ettsweep.launch.resolve import plan_grid, trained_by
    from ettsweep.launch.search_rounds import SearchTarget, search_rounds
    from ettsweep.study.pruning import check_pruner
    from ettsweep.study.samplers import proposer, trials_for
    from ettsweep.study.sweep_store import load_sweep_store
    from ettsweep.study.sweep_updates import followed
    from ettsweep.study.warm_start import starts

    propose = proposer(sampler)
    name, asked, told = _asked(grid_options, sweep, judging, results)
    check_pruner(pruner, asked.recipe.schedule)
    with retyped_with("--name"):
        sweep_spec = training.place().settle(asked, results, name)
    context = CommandContext(
        results, *trained_by(sweep_spec), dry_run, console() if follow else None, "search", tell=print_note
    )
    sweep_store = load_sweep_store(results)
    sought = SearchTarget.of(name, sweep_spec, sweep_store)
    budget = limits.budget(sought.studies)
    begun = starts(sought.studies, sought.sweep_store, read_ledger(results), source, unverified=unverified)
    new = [study for study in sought.studies if not study.proposed]
    print_note("" if new or source is None else f"--from {source} is not looked at: the search has begun")
    _, obstacle = plan_grid(sweep_spec, context, name, grid_options.words, print_note)
    print_note(f"before it can be submitted: {obstacle}" if obstacle else "")
    print_note(told)
    print_note(_other_ranges(sweep_store.named[name].studies if name in sweep_store.named else [], sought.studies))
    meant = ["--sweep", name, *repeated("--strategy", grid_options.strategy or [])]
    with detaching(meant=meant):
        for study in sought.studies:
            print_note(f"{study.title} starts {begun[study.key].reason}" if study.key in begun else "")
        with followed(results, [name] if context.follows else ()):
            done = search_rounds(
                sought,
                context,
                begun,
                budget,
                sampler=sampler,
                propose=propose,
                trials=trials_for(sampler, trials),
                pruner=pruner,
                agree=go_on if follow else None,
            )
    show_course(done.verification.studies, done.submit_result.plan.run_index, form)
    said = {"--sampler": (sampler, "surface"), "--trials": (trials, None), "--pruner": (pruner, "none")}
    how_to = [word for option, (given, default) in said.items() if given != default for word in (option, str(given))]
    raise typer.Exit(show_verified(done, budget, form, ["search", *meant, *how_to], meant))


def _other_ranges(before: "Sequence[Study]", now: "Sequence[Study]") -> str:
    """Say of which families the ranges are not those of the search before; nothing where all are."""
    from ettsweep.powers import power

    def told(study: "Study") -> str:
        (low_lr, low_wd), (high_lr, high_wd) = study.box
        return f"lr from {power(low_lr)} to {power(high_lr)}, wd from {power(low_wd)} to {power(high_wd)}"

    known = {study.key: study for study in before if study.box}
    return "\n".join(
        f"{study.title} is searched in other ranges from now on: {told(study)}; before, {told(known[study.key])}"
        for study in now
        if study.key in known and known[study.key].box != study.box
    )


def _asked(
    grid_options: GridOptions, sweep: str | None, judging: VerdictOptions, results: Path
) -> "tuple[str, SweepSpec, str]":
    """Return the name of the sweep that is searched, what is asked of it, and a line on its seeds.

    Raises:
        InputError: there is no such sweep, something that a sweep has cannot be changed, or it has no free axis.
    """
    from ettsweep.study.sweep_store import load_sweep_store

    if sweep is None:
        name, sweep_spec, told = grid_options.request(
            judging, "say what is searched, with one of --model NAME, --grid FILE and --sweep NAME"
        )
    else:
        grid_options.refuse_beside("--sweep")
        (found,) = load_sweep_store(results).chosen([sweep])
        name, sweep_spec, told = sweep, judging.of(found.asked_again(grid_options.strategy or [])), ""
    if sweep_spec.lr.fixed and sweep_spec.wd.fixed:
        raise InputError("lr and wd are both fixed: there is nothing to search; give a range for one")
    return name, sweep_spec.model_copy(update={"searched": True}), told
