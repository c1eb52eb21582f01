"""What commands ask for, as plans: a grid, fresh seeds of optima, the same runs again; and one run, to train here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ettsweep.errors import EttsweepError
from ettsweep.launch.memory import watch_pulses
from ettsweep.launch.place import How, Place, check_data_of
from ettsweep.launch.profiles import LocalProfile
from ettsweep.launch.rounds import looks, read_ledger
from ettsweep.launch.submit import check
from ettsweep.runs.state import State
from ettsweep.schema import validate
from ettsweep.spec import RunSpec
from ettsweep.sweep.gridfile import load_request
from ettsweep.sweep.ledger import Plan, Run, make_plan
from ettsweep.sweep.search import Centre, Request, Search, save_request, with_corpus
from ettsweep.sweep.verify import fresh_seeds

WAITING = (State.FAILED, State.CANCELLED, State.INTERRUPTED, State.MISSING)
"""States of runs that `retry` is for."""

BY_NAME = (*WAITING, State.UNKNOWN, State.DONE, State.DIVERGED)
"""A claim that cannot be asked after is given up only by name; a finished run may have lost its metrics."""


def ask_grid(request: Request, how: How) -> tuple[Plan, str]:
    """Return the plan for the runs of a grid; unless it is only to be shown, keep what was asked for.

    With it comes what would keep a plan that is only shown from being submitted; SLURM is not asked about that.

    Raises:
        InputError: a run cannot be trained so.
        DataMissingError: the data are not there, or not those that the runs need.
        LaunchError: SLURM refuses the profile, or does not answer.
    """
    plan = make_plan(request.specs(), read_ledger(how.results))
    try:
        if not how.dry_run or isinstance(how.profile, LocalProfile):
            check(how.results, plan, how.profile)  # what cannot be submitted is an error before anything is recorded
        if plan.to_launch or not how.dry_run:
            check_data_of(request, counts=bool(plan.to_launch))
    except EttsweepError as error:
        if not how.dry_run:
            raise
        return plan, str(error)
    if not how.dry_run:
        save_request(how.results, request)
    return plan, ""


def ask_seeds(searches: Sequence[Search], results: Path, count: int) -> tuple[Plan, list[str]]:
    """Return the plan for reruns of each verified optimum over fresh seeds, and why others are not rerun."""
    ledger = read_ledger(results)
    specs: list[RunSpec] = []
    unverified = []
    for look in looks(searches, ledger):
        search, verdict = look.search, look.verdict()
        if verdict.point is not None and verdict.verdict in ("optimal", "unsearched"):
            specs += look.specs([verdict.point], fresh_seeds(search, count))
        else:
            unverified.append(f"{search.model} {search.strategy}: {verdict.verdict}, {verdict.reason}")
    return make_plan(specs, ledger), unverified


def retryable(runs: Sequence[Run], *, named: bool) -> list[Run]:
    """Return those of some runs that can be trained again; more of them where a person has named each."""
    return [run for run in runs if run.state in (BY_NAME if named else WAITING)]


def ask_again(runs: Sequence[Run], how: How, tell: Callable[[str], None]) -> tuple[Plan, list[Run]]:
    """Have runs that ended without success, or whose owner shows no sign of life, go on from their last checkpoint.

    One that is no longer as it was when a person chose it is left alone. Return the plan, and the runs that live:
    `tell` takes a line for each whose owner's heartbeat is watched, which takes a while.

    Raises:
        InputError, LaunchError: they cannot be submitted so; then they stay as they are.
    """
    unknown = [run for run in runs if run.state is State.UNKNOWN]
    for run in unknown:
        tell(f"run {run.id}: {run.status.reason}; watching its heartbeat")
    beating = watch_pulses([run.dir for run in unknown])
    alive = [run for run in unknown if run.id in beating]
    ledger = read_ledger(how.results)  # a person may have thought for long
    chosen = [run for run in runs if run.id not in beating and ledger.state(run.id).state is run.state]
    specs, ids = [run.spec for run in chosen], {run.id for run in chosen}
    check(how.results, make_plan(specs, ledger, insist=ids), how.profile)
    for run in chosen:
        run.dir.retry()
    return make_plan(specs, read_ledger(how.results), insist=ids), alive


def ask_one(
    grid: Path,
    strategy: str | None,
    sets: Sequence[str],
    lr: float | None,
    wd: float | None,
    seed: int | None,
    place: Place,
) -> tuple[RunSpec, Place]:
    """Return one run of a grid file, and the place with the data that the grid names.

    What is not given is the centre's, or the grid's first.
    """
    start = None if lr is None or wd is None else validate(Centre, {"lr": lr, "wd": wd}, "run")
    request = place.of(load_request(grid, [strategy] if strategy else [], sets, start=start))
    search = with_corpus(request).searches()[0]
    return search.run(lr, wd, seed), replace(place, data=request.data)
