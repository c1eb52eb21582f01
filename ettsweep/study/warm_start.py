"""Warm starts: where a search starts from the optimum of another strategy, recipe or width, through the map."""

from collections.abc import Iterable, Sequence

from ettsweep.console import power
from ettsweep.errors import InputError, unknown_name
from ettsweep.strategies.optimizers import factors_of
from ettsweep.strategies.strategy import STRATEGIES, carry_point, parse_strategy, strategy_name
from ettsweep.study.run_index import RunIndex
from ettsweep.study.study import Point, Study
from ettsweep.study.suggesting import Key, StartPoint
from ettsweep.study.sweep_store import SweepStore
from ettsweep.study.verdict import Verdict
from ettsweep.study.verification import judge


def starts(
    searches: Sequence[Study],
    sweeps: SweepStore,
    ledger: RunIndex,
    source: str | None = None,
    *,
    unverified: bool = False,
) -> dict[Key, StartPoint]:
    """Return where families start for which nothing was proposed: at the map of a verified optimum.

    That is the nearest point of their lattice. `source` names a strategy of the same sweep, or a sweep; without it, a
    family starts from another strategy of its sweep where one is verified, else at its centre. Where it may be
    `unverified`, the best point of the source is enough.

    Raises:
        InputError: there is no such strategy or sweep, or no optimum of it that can be mapped.
    """
    if source is None:
        if unverified:
            raise InputError("--unverified is about --from STRATEGY or --from SWEEP, which is not given")
        mine = [verdict for name in {s.sweep for s in searches} for verdict in _verdicts(sweeps, name, ledger)]
        new = [search for search in searches if not search.proposed]
        found = {search.key: _nearest(search, (v for v in mine if v.search.sweep == search.sweep)) for search in new}
        return {key: start for key, start in found.items() if start}
    if _is_strategy(source):
        source = strategy_name(parse_strategy(source))
    if all(search.strategy == source for search in searches):
        raise InputError(f"--from {source}: that is the strategy which is searched; name another, or a sweep")
    if source in sweeps.named and not _is_strategy(source):
        told, verdicts = f"sweep {source}", _verdicts(sweeps, source, ledger)
    elif _is_strategy(source):
        told = f"strategy {source}"
        names = {search.sweep for search in searches}
        verdicts = [v for name in names for v in _verdicts(sweeps, name, ledger) if v.strategy == source]
    else:
        raise unknown_name("strategy or sweep", source, [*STRATEGIES, *sweeps.named])
    begun = {}
    for search in searches:
        start = _nearest(search, verdicts, unverified)
        itself = any(v.key == search.key and v.verdict == "optimal" for v in verdicts)
        if start and not search.proposed:
            begun[search.key] = start
        elif not (start or itself or search.proposed):
            raise InputError(f"--from {source}: {_why(told, verdicts, search, unverified)}")
    return begun


def _is_strategy(name: str) -> bool:
    try:
        parse_strategy(name)
    except InputError:
        return False
    return True


def _verdicts(sweeps: SweepStore, name: str, ledger: RunIndex) -> list[Verdict]:
    """Return the verdicts of the families of a sweep that have runs."""
    searches = sweeps.named[name].searches if name in sweeps.named else ()
    return judge([search for search in searches if ledger.family(search.family)], ledger)


def _nearest(search: Study, verdicts: Iterable[Verdict], unverified: bool = False) -> StartPoint | None:
    """Return the start from the optimum of the strategy that is nearest: itself, then one of the s family."""
    here = search.base.strategy.s
    usable = [v for v in verdicts if _usable(v, unverified) and _maps(v.search, search)]
    if not usable:
        return None

    def apart(verdict: Verdict) -> float:
        there = verdict.search.base.strategy.s
        return 0.0 if here == there else 2.0 if here is None or there is None else abs(here - there)

    return _mapped(min(usable, key=apart), search)


def _usable(verdict: Verdict, unverified: bool) -> bool:
    """`True` if a search may start from the point of a verdict."""
    return verdict.verdict == "optimal" or (unverified and verdict.score is not None)


def _maps(one: Study, other: Study) -> bool:
    """Say whether the map holds between two searches, which are not the same one."""
    return one.family != other.family and one.base.optimizer.kind == other.base.optimizer.kind


def _mapped(verdict: Verdict, search: Study) -> StartPoint:
    """Return where the candidate of a verdict lies under the strategy and width of a search."""
    assert verdict.point is not None
    base, other = search.base, verdict.search.base
    origin, target = (other.strategy.s, other.model.width), (base.strategy.s, base.model.width)
    lr, wd = carry_point(verdict.point.lr, verdict.point.wd, origin, target, factors_of(base.optimizer))
    near = _within(search, Point(search.lr.nearest(base.lr, lr), search.wd.nearest(base.wd, wd)))
    wide = f" at width {other.model.width}" if other.model.width != base.model.width else ""
    where = f" of sweep {verdict.search.sweep}" if verdict.search.sweep != search.sweep else ""
    verified = verdict.verdict == "optimal"
    what = f"the optimum {verdict.point}" if verified else f"the best point {verdict.point}, which is not verified,"
    origin_text = f"{what} of {verdict.strategy}{wide}{where}"
    return StartPoint(near, f"from {origin_text}, mapped to ({power(lr)}, {power(wd)}), nearest {near}")


def _within(search: Study, point: Point) -> Point:
    """Return a point of the lattice, or where it lies beyond the ranges, the one in them that is nearest to it."""
    (least_lr, least_wd), (most_lr, most_wd) = (
        [edge(axis) for axis in zip(*search.box, strict=True)] for edge in (min, max)
    )
    return Point(min(max(point.lr, least_lr), most_lr), min(max(point.wd, least_wd), most_wd))


def _why(told: str, verdicts: Sequence[Verdict], search: Study, unverified: bool) -> str:
    """Say why nothing can be started from."""
    if not verdicts:
        return f"{told}: nothing was trained there yet"
    stands = ", ".join(f"{v.strategy} is {v.statement}" for v in verdicts)
    if not any(_usable(v, unverified) for v in verdicts):
        if unverified:
            return f"{told} has no point with a score: {stands}"
        meant = "".join(f" --sweep {sweep}" for sweep in dict.fromkeys(v.search.sweep for v in verdicts))
        scored = any(v.score is not None for v in verdicts)
        return f"{told} has no verified optimum: {stands}; `ettsweep verify-optimum{meant} --follow` goes on" + (
            ", and --unverified starts at the best point that there is" if scored else ""
        )
    return f"{told}: the map to {search.title} needs the same optimizer, and another family: {stands}"
