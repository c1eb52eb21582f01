"""Warm starts: where a search starts from the optimum of another strategy, recipe or width, through the map."""

from collections.abc import Iterable, Sequence

from ettsweep.errors import InputError, unknown_name
from ettsweep.powers import power
from ettsweep.strategies.optimizers import factors_of
from ettsweep.strategies.strategy import STRATEGIES, carry_point, parse_strategy, strategy_name
from ettsweep.study.lattice import Point
from ettsweep.study.run_index import RunIndex
from ettsweep.study.study import Study
from ettsweep.study.suggesting import Key, StartPoint
from ettsweep.study.sweep_store import SweepStore
from ettsweep.study.verdict import Verdict
from ettsweep.study.verification import judge


def starts(
    studies: Sequence[Study],
    sweep_store: SweepStore,
    run_index: RunIndex,
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
        mine = [verdict for name in {s.sweep for s in studies} for verdict in _verdicts(sweep_store, name, run_index)]
        new = [study for study in studies if not study.proposed]
        found = {study.key: _nearest(study, (v for v in mine if v.study.sweep == study.sweep)) for study in new}
        return {key: start for key, start in found.items() if start}
    if _is_strategy(source):
        source = strategy_name(parse_strategy(source))
    if all(study.strategy == source for study in studies):
        raise InputError(f"--from {source}: that is the strategy which is searched; name another, or a sweep")
    if source in sweep_store.named and not _is_strategy(source):
        told, verdicts = f"sweep {source}", _verdicts(sweep_store, source, run_index)
    elif _is_strategy(source):
        told = f"strategy {source}"
        names = {study.sweep for study in studies}
        verdicts = [v for name in names for v in _verdicts(sweep_store, name, run_index) if v.strategy == source]
    else:
        raise unknown_name("strategy or sweep", source, [*STRATEGIES, *sweep_store.named])
    begun = {}
    for study in studies:
        start = _nearest(study, verdicts, unverified)
        itself = any(v.key == study.key and v.verdict == "optimal" for v in verdicts)
        if start and not study.proposed:
            begun[study.key] = start
        elif not (start or itself or study.proposed):
            raise InputError(f"--from {source}: {_why(told, verdicts, study, unverified)}")
    return begun


def _is_strategy(name: str) -> bool:
    try:
        parse_strategy(name)
    except InputError:
        return False
    return True


def _verdicts(sweep_store: SweepStore, name: str, run_index: RunIndex) -> list[Verdict]:
    """Return the verdicts of the families of a sweep that have runs."""
    studies = sweep_store.named[name].studies if name in sweep_store.named else ()
    return judge([study for study in studies if run_index.family(study.family)], run_index)


def _nearest(study: Study, verdicts: Iterable[Verdict], unverified: bool = False) -> StartPoint | None:
    """Return the start from the optimum of the strategy that is nearest: itself, then one of the s family."""
    here = study.base.strategy.s
    usable = [v for v in verdicts if _usable(v, unverified) and _maps(v.study, study)]
    if not usable:
        return None

    def apart(verdict: Verdict) -> float:
        there = verdict.study.base.strategy.s
        return 0.0 if here == there else 2.0 if here is None or there is None else abs(here - there)

    return _mapped(min(usable, key=apart), study)


def _usable(verdict: Verdict, unverified: bool) -> bool:
    """`True` if a search may start from the point of a verdict."""
    return verdict.verdict == "optimal" or (unverified and verdict.score is not None)


def _maps(study: Study, other: Study) -> bool:
    """Say whether the map holds between two searches, which are not the same one."""
    return study.family != other.family and study.base.optimizer.kind == other.base.optimizer.kind


def _mapped(verdict: Verdict, study: Study) -> StartPoint:
    """Return where the candidate of a verdict lies under the strategy and width of a search."""
    assert verdict.point is not None
    base, other = study.base, verdict.study.base
    origin, target = (other.strategy.s, other.model.width), (base.strategy.s, base.model.width)
    lr, wd = carry_point(verdict.point.lr, verdict.point.wd, origin, target, factors_of(base.optimizer))
    near = _within(study, Point(study.lr.nearest(base.lr, lr), study.wd.nearest(base.wd, wd)))
    wide = f" at width {other.model.width}" if other.model.width != base.model.width else ""
    where = f" of sweep {verdict.study.sweep}" if verdict.study.sweep != study.sweep else ""
    verified = verdict.verdict == "optimal"
    what = f"the optimum {verdict.point}" if verified else f"the best point {verdict.point}, which is not verified,"
    origin_text = f"{what} of {verdict.strategy}{wide}{where}"
    return StartPoint(near, f"from {origin_text}, mapped to ({power(lr)}, {power(wd)}), nearest {near}")


def _within(study: Study, point: Point) -> Point:
    """Return a point of the lattice, or where it lies beyond the ranges, the one in them that is nearest to it."""
    (least_lr, least_wd), (most_lr, most_wd) = (
        [edge(axis) for axis in zip(*study.box, strict=True)] for edge in (min, max)
    )
    return Point(min(max(point.lr, least_lr), most_lr), min(max(point.wd, least_wd), most_wd))


def _why(told: str, verdicts: Sequence[Verdict], study: Study, unverified: bool) -> str:
    """Say why nothing can be started from."""
    if not verdicts:
        return f"{told}: nothing was trained there yet"
    stands = ", ".join(f"{v.strategy} is {v.statement}" for v in verdicts)
    if not any(_usable(v, unverified) for v in verdicts):
        if unverified:
            return f"{told} has no point with a score: {stands}"
        meant = "".join(f" --sweep {sweep}" for sweep in dict.fromkeys(v.study.sweep for v in verdicts))
        scored = any(v.score is not None for v in verdicts)
        return f"{told} has no verified optimum: {stands}; `ettsweep verify-optimum{meant} --follow` goes on" + (
            ", and --unverified starts at the best point that there is" if scored else ""
        )
    return f"{told}: the map to {study.title} needs the same optimizer, and another family: {stands}"
