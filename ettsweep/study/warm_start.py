"""Warm starts: start a search at the optimum of another strategy, recipe or width, mapped to the study's own."""

from collections.abc import Iterable, Sequence

from ettsweep.errors import CorruptError, InputError, unknown_name
from ettsweep.runs.index import RunIndex
from ettsweep.runs.point import Point
from ettsweep.strategies.strategy import STRATEGIES, is_strategy, transfer_point, usual_name
from ettsweep.study.judgement import judge
from ettsweep.study.study import Study, StudyKey
from ettsweep.study.suggesting import StartPoint
from ettsweep.study.sweep_store import SweepStore
from ettsweep.study.verdict import Verdict


def find_starts(
    studies: Sequence[Study],
    sweep_store: SweepStore,
    run_index: RunIndex,
    source: str | None = None,
    *,
    unverified: bool = False,
) -> dict[StudyKey, StartPoint]:
    """Return start points of studies without suggestions, by sweep and family: mapped optima of other studies.

    Args:
        studies: studies that are searched.
        sweep_store: all named sweeps.
        run_index: all runs.
        source: a strategy of the same sweep, or a sweep, to start from; by default, any strategy of the same sweep with
            a verified optimum. Studies without one are left out, and start at their centre.
        unverified: accept the best point of the source as well.

    Raises:
        InputError: there is no such strategy or sweep, or none of its optima can be mapped to a study.
        CorruptError: the sweep cannot be read.
    """
    if source is None:
        if unverified:
            raise InputError("--unverified needs --from STRATEGY or --from SWEEP")
        own_verdicts = [
            verdict for name in {s.sweep for s in studies} for verdict in _sweep_verdicts(sweep_store, name, run_index)
        ]
        unstarted = [study for study in studies if not study.suggested_points]
        own_starts = {
            study.key: _nearest_start(study, (v for v in own_verdicts if v.study.sweep == study.sweep))
            for study in unstarted
        }
        return {key: start for key, start in own_starts.items() if start}
    source = usual_name(source)  # s=.25 and s=0.250 are one strategy
    if all(study.strategy == source for study in studies):
        raise InputError(f"--from {source}: this is the strategy being searched; give another strategy, or a sweep")
    names = {study.sweep for study in studies}
    variants = [study.strategy for study in sweep_store.studies if study.sweep in names and study.variant]
    # A sweep may be named like a strategy: the strategy wins.
    if source in sweep_store.sweeps and not is_strategy(source):
        source_name, verdicts = f"sweep {source}", _sweep_verdicts(sweep_store, source, run_index)
    elif is_strategy(source) or source in variants:
        source_name = f"{'variant' if source in variants else 'strategy'} {source}"
        verdicts = [v for name in names for v in _sweep_verdicts(sweep_store, name, run_index) if v.strategy == source]
    elif source in sweep_store.broken:
        raise CorruptError(sweep_store.broken[source])
    else:
        raise unknown_name("strategy or sweep", source, [*STRATEGIES, *variants, *sweep_store.sweeps])
    start_points = {}
    for study in studies:
        start = _nearest_start(study, verdicts, unverified)
        # A study that is the verified source itself needs no start.
        is_source = any(v.key == study.key and v.verdict == "optimal" for v in verdicts)
        if start and not study.suggested_points:
            start_points[study.key] = start
        elif not (start or is_source or study.suggested_points):
            raise InputError(f"--from {source}: {_no_source_reason(source_name, verdicts, study, unverified)}")
    return start_points


def _sweep_verdicts(sweep_store: SweepStore, name: str, run_index: RunIndex) -> list[Verdict]:
    """Return the verdicts on the studies of a sweep that have runs; empty if there is no such sweep."""
    studies = sweep_store.sweeps[name].studies if name in sweep_store.sweeps else ()
    return judge([study for study in studies if run_index.family_runs(study.base, study.axes)], run_index)


def _nearest_start(study: Study, verdicts: Iterable[Verdict], unverified: bool = False) -> StartPoint | None:
    """Return the start point mapped from the nearest usable strategy: the same one, then by distance in s."""
    own_s = study.base.strategy.s
    usable = [v for v in verdicts if _is_usable(v, unverified) and _is_mappable(v.study, study)]
    if not usable:
        return None

    def distance(verdict: Verdict) -> float:
        source_s = verdict.study.base.strategy.s
        # Strategies without s come last.
        return 0.0 if own_s == source_s else 2.0 if own_s is None or source_s is None else abs(own_s - source_s)

    return _map_start(min(usable, key=distance), study)


def _is_usable(verdict: Verdict, unverified: bool) -> bool:
    """`True` if a search may start from the point of a verdict."""
    return verdict.verdict == "optimal" or (unverified and verdict.score is not None)


def _is_mappable(study: Study, other: Study) -> bool:
    """`True` if points of one study can be mapped to another: same axes and optimizer, different family."""
    info, other_info = study.base.info, other.base.info
    are_mapped = info.has_strategies and other_info.has_strategies and study.axes.keys() == other.axes.keys()
    return are_mapped and study.family != other.family and info.labels.optimizer == other_info.labels.optimizer


def _map_start(verdict: Verdict, study: Study) -> StartPoint:
    """Return the candidate of a verdict, mapped to the strategy and width of a study and rounded to its lattice."""
    assert verdict.point is not None
    base, other = study.base, verdict.study.base
    width, other_width = base.info.width, other.info.width
    assert width is not None
    assert other_width is not None
    origin, target = (other.strategy.s, other_width), (base.strategy.s, width)
    lr, wd = transfer_point(verdict.point["lr"], verdict.point["wd"], origin, target, base.info.factor_rule)
    mapped = verdict.point.at(lr=lr, wd=wd)
    nearest = Point({name: axis.nearest(study.centre[name], mapped[name]) for name, axis in study.axes.items()})
    nearest = _clip_to_box(study, nearest)
    width_text = f" at width {other_width}" if other_width != width else ""
    sweep_text = f" of sweep {verdict.study.sweep}" if verdict.study.sweep != study.sweep else ""
    is_verified = verdict.verdict == "optimal"
    point_text = (
        f"the optimum {verdict.point}" if is_verified else f"the best point {verdict.point}, which is not verified,"
    )
    origin_text = f"{point_text} of {verdict.strategy}{width_text}{sweep_text}"
    return StartPoint(nearest, f"from {origin_text}, mapped to {mapped}, nearest {nearest}")


def _clip_to_box(study: Study, point: Point) -> Point:
    """Return the point of the study's ranges that is nearest to a lattice point."""
    ranges = {name: sorted(corner[name] for corner in study.box) for name in study.axes}
    return Point({name: min(max(point[name], low), high) for name, (low, high) in ranges.items()})


def _no_source_reason(source_name: str, verdicts: Sequence[Verdict], study: Study, unverified: bool) -> str:
    """Return why a search cannot start from any verdict, and what would help."""
    if not verdicts:
        return f"{source_name}: it has no runs yet"
    verdict_list = ", ".join(f"{v.strategy} is {v.verdict}" for v in verdicts)
    if not any(_is_usable(v, unverified) for v in verdicts):
        if unverified:
            return f"{source_name} has no point with a score: {verdict_list}"
        sweep_options = "".join(f" --sweep {sweep}" for sweep in dict.fromkeys(v.study.sweep for v in verdicts))
        scored = any(v.score is not None for v in verdicts)
        remedy = f"`ettsweep verify-optimum{sweep_options} --follow` continues"
        remedy += ", and --unverified starts at the best point so far" if scored else ""
        return f"{source_name} has no verified optimum: {verdict_list}; {remedy}"
    if not study.base.info.has_strategies:
        return f"{source_name}: its optimum cannot be mapped, since runs of {study.title} state no width"
    needed = "another family with the same optimizer and axes"
    return f"{source_name}: {study.title} can only start from {needed}: {verdict_list}"
