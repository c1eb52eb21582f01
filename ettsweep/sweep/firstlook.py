"""First looks: a cheaper recipe is searched before, and the search of the whole one starts from what it finds best.

A first look is a sweep of its own, archived, so that no command takes its runs for those of the whole recipe. Its
families are others by their recipe alone: no verdict mixes them.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ettsweep.errors import CorruptError, TakenError
from ettsweep.output import count, device_hours
from ettsweep.scaling.optimizers import factors_of
from ettsweep.scaling.strategies import carry_point, parse_strategy
from ettsweep.schema import validate
from ettsweep.sweep.changes import agreeing
from ettsweep.sweep.ledger import Ledger, Run, cost_s
from ettsweep.sweep.search import Centre, Point, Request, Search
from ettsweep.sweep.searching import Key, Start
from ettsweep.sweep.sweeps import Sweep, Sweeps, numbered
from ettsweep.sweep.verify import look_at
from ettsweep.sweep.warm import mapped, within

NEAR = 2
"""Steps from the best point of a first look, along each axis, that the search of the whole recipe keeps to."""


def first_look(request: Request, strategies: Collection[str]) -> Request:
    """Return what the first look of a request asks for, for some of its strategies.

    Its ranges are as many steps as those of the request, around the same centres, carried to its width.
    """
    assert request.first_look
    recipe, width = request.recipe, request.first_look.model.width
    centres = {}
    for name in strategies:
        s, centre = parse_strategy(name), request.centres[name]
        origin, target = (s, recipe.model.width), (s, width)
        lr, wd = carry_point(centre.lr, centre.wd, origin, target, factors_of(recipe.optimizer))
        centres[name] = validate(Centre, {"lr": lr, "wd": wd}, f"the centre of {name} at width {width}")
    changes = {"recipe": request.first_look, "centres": centres, "first_look": None, "searched": True}
    return request.model_copy(update=changes)


def name_for(look: Request, name: str, sweeps: Sweeps) -> str:
    """Return the name of the sweep of a first look, which is there or free, given that of the whole sweep."""
    for found in numbered(f"{name[:52]}-look"):
        with suppress(TakenError, CorruptError):
            if (there := agreeing(sweeps, found, look)) is None or there.archived:
                return found
    raise AssertionError("there is always a further number")


def starts_from(looks: Iterable[Search], searches: Sequence[Search], ledger: Ledger) -> dict[Key, Start]:
    """Return where families start: at the best point of the first look of their strategy, where one has a score.

    It is the best of all that are finished, whoever asked for them.
    """
    of_strategy = {look.strategy: look for look in looks}
    found = {}
    for search in searches:
        if look := of_strategy.get(search.strategy):
            runs = [run for run in ledger.family(look.family) if run.result and look.holds(run.point)]
            known = tuple(dict.fromkeys(run.point for run in runs))
            verdict = look_at(replace(look, proposed=known), runs).verdict()
            if verdict.score is None:
                continue
            spent = f"{count(len(known), 'point')} ({device_hours(sum(map(cost_s, runs)))})"
            start = mapped(verdict, search, f"the best of {spent} at first look, {verdict.point}")
            found[search.key] = replace(start, region=_region(start.point, search))
    return found


def _region(start: Point, search: Search) -> tuple[Point, ...]:
    """Return opposite corners of what lies within `NEAR` steps of a start, and within the ranges of a search."""
    found = []
    for way in (-NEAR, NEAR):
        moved = [0.0 if axis.fixed else way * axis.step for axis in (search.lr, search.wd)]
        found.append(within(search, start.moved(*moved)))
    return tuple(found)


def looks_of(sweep: Sweep, sweeps: Sweeps) -> list[Sweep]:
    """Return the sweeps that are first looks of one."""
    wanted = [request.first_look for request in sweep.requests if request.first_look]
    return [one for one in sweeps.named.values() if one.requests[0].recipe in wanted]


def looked_at(sweeps: Sequence[Sweep], known: Sweeps, ledger: Ledger) -> list[Run]:
    """Return the finished runs of the first looks of some sweeps, but for families that these ask for themselves."""
    looks = {search.family for sweep in sweeps for one in looks_of(sweep, known) for search in one.searches}
    families = looks - {search.family for sweep in sweeps for search in sweep.searches}
    return [run for family in sorted(families) for run in ledger.family(family) if run.result]
