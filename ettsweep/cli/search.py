"""The command search: a proposer names points, and what it finds is verified."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.asking import Asking
from ettsweep.cli.conduct import console, detaching, go_on, retyped_with
from ettsweep.cli.options import DEFAULT_RESULTS, DryRun, Form, Judging, Limits, Results, Training
from ettsweep.errors import InputError
from ettsweep.output import Format, note

if TYPE_CHECKING:
    from ettsweep.launch.pruner import Pruner
    from ettsweep.sweep.search import Request
    from ettsweep.sweep.sweeps import Sweeps


def search(
    *,
    asking: Asking,
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
            help="Stop hopeless runs early: none, or median, hyperband, wilcoxon of Optuna.",
            autocompletion=completion.pruners,
        ),
    ] = "none",
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start at the verified optimum of this strategy, or of this sweep.", metavar="STRATEGY|SWEEP"
        ),
    ] = None,
    limits: Limits,
    judging: Judging,
    training: Training,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Write the sweep's study for Optuna anew from its runs; train nothing.")
    ] = False,
    dry_run: DryRun = False,
    follow: Annotated[bool, typer.Option(help="Stay until it is verified; Ctrl-C only detaches.")] = True,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Search the ranges of a grid file: propose points, train them, go on where it is worth it, verify the optimum.

    The same command again goes on where it was.
    """
    from ettsweep.cli.course import show_course
    from ettsweep.cli.verified import show_verified
    from ettsweep.launch.demand import ask_grid, trained_by
    from ettsweep.launch.rounds import How, read_ledger, verify_rounds
    from ettsweep.sweep.changes import followed
    from ettsweep.sweep.changes import propose as record
    from ettsweep.sweep.pruning import check_pruner
    from ettsweep.sweep.samplers import proposer, trials_for
    from ettsweep.sweep.searching import Searching
    from ettsweep.sweep.study import Journal
    from ettsweep.sweep.sweeps import asked_too, load_sweeps
    from ettsweep.sweep.warm import starts

    propose = proposer(sampler)
    name, asked, told = _asked(asking, sweep, judging, results)
    journal = Journal(results, name)
    if rebuild:
        if dry_run:
            raise InputError("--rebuild writes one file and trains nothing; it takes no --dry-run")
        return note(journal.rebuild(read_ledger(results)))
    journal.check()
    check_pruner(pruner, [asked.recipe.schedule])
    with retyped_with("--name"):
        request = training.place().settle(asked, results, name)
        how = How(results, *trained_by(request), dry_run, console() if follow else None, "search", tell=note)
    sweeps = asked_too(load_sweeps(results), name, request)
    families = {one.family for one in request.searches()}
    searches = [one for one in sweeps.named[name].searches if one.family in families]
    budget = limits.budget(searches)
    begun = starts([one for one in searches if not one.proposed], sweeps, read_ledger(results), source)
    _, obstacle = ask_grid(request, how, name, asking.words, tell=note)
    note(f"before it can be submitted: {obstacle}" if obstacle else "")
    note(told)
    for one in searches:
        note(f"{one.title} starts {begun[one.key].reason}" if one.key in begun else "")
    searching = Searching(
        sampler,
        propose,
        trials_for(sampler, trials),
        begun,
        {one.key for one in searches if sweeps.named[name].searched_out(one.strategy, sampler)},
        seen=(lambda ledger: None) if dry_run else journal.write,
        keep=(lambda sweep, proposals: None) if dry_run else partial(record, results),
        tell=note,
    )
    tell, agree = (note, go_on) if follow else (None, None)
    with detaching(), followed(results, [name] if how.follows else ()):
        done = verify_rounds(
            searches,
            replace(how, searches=searches),
            budget=budget,
            tell=tell,
            agree=agree,
            propose=searching.further,
            prune=None if pruner == "none" else partial(_pruner, results, pruner, sweeps, name),
        )
    show_course(done.verification.searches, done.outcome.plan.ledger, form)
    raise typer.Exit(show_verified(done, budget, form))


def _pruner(
    results: Path, rule: str, sweeps: "Sweeps", name: str, proposals: "Callable[[], Collection[str]]"
) -> "Pruner":
    """Return what stops runs that were merely proposed, and that no other sweep asks for."""
    from ettsweep.launch.pruner import Pruner

    others = {spec.run_id for sweep in sweeps.chosen() if sweep.name != name for spec in sweep.specs()}
    return Pruner(results, rule, lambda: set(proposals()) - others, note)


def _asked(asking: Asking, sweep: str | None, judging: Judging, results: Path) -> "tuple[str, Request, str]":
    """Return the name of the sweep that is searched, what is asked of it, and a line on its seeds.

    Raises:
        InputError: there is no such sweep, something that a sweep has cannot be changed, or it has no free axis.
    """
    from ettsweep.sweep.sweeps import load_sweeps

    if sweep is None:
        name, request, told = asking.request(judging)
    else:
        asking.refuse_beside("--sweep")
        (found,) = load_sweeps(results).chosen([sweep])
        name, request, told = sweep, judging.of(found.asked_again(asking.strategy or [])), ""
    if request.lr.fixed and request.wd.fixed:
        raise InputError("lr and wd are both fixed: there is nothing to search; give a range for one")
    return name, request.model_copy(update={"searched": True}), told
