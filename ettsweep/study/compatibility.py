"""What two questions have in common: whether one is more of another, and why two of one family get two answers."""

from collections.abc import Sequence

from ettsweep.powers import power
from ettsweep.study.lattice import Axis, Point
from ettsweep.study.study import Study
from ettsweep.study.sweep_spec import SweepSpec


def differences(sweep_specs: Sequence[SweepSpec], sweep_spec: SweepSpec) -> dict[str, str]:
    """Return what keeps a request from being more of what others, which agree, ask for: a telling word for each."""
    first = sweep_specs[0]
    was, now = _flat(first.recipe.model_dump(mode="json")), _flat(sweep_spec.recipe.model_dump(mode="json"))
    was["strategy.mlp_factor"], now["strategy.mlp_factor"] = first.mlp_factor, sweep_spec.mlp_factor
    found = {}
    for key in {**was, **now}:
        old, new = was.get(key, "absent"), now.get(key, "absent")
        if old != new:
            word = key.rpartition(".")[2]
            found[str(new) if word == "kind" else f"{word}-{new}"] = f"{key} is {old} there, {new} here"
    for name in ("lr", "wd"):
        before, after = getattr(first, name), getattr(sweep_spec, name)
        if before.fixed != after.fixed:
            words = ("searched", "fixed")
            found[f"{name}-{words[after.fixed]}"] = f"{name} is {words[before.fixed]} there, {words[after.fixed]} here"
        elif not before.fixed and before.step != after.step:
            found[f"{name}-step-{after.step:g}"] = f"the step of {name} is {before.step:g} there, {after.step:g} here"
    if found:
        return found
    centres = {name: centre for asked in reversed(sweep_specs) for name, centre in asked.centres.items()}
    for strategy in sweep_spec.centres.keys() & centres.keys():
        points = (Point(centre.lr, centre.wd) for centre in (centres[strategy], sweep_spec.centres[strategy]))
        for name, axis, there, here in zip(("lr", "wd"), (first.lr, first.wd), *points, strict=True):
            if not axis.on(there, here):
                how = "fixed at" if axis.fixed else f"steps of {axis.step:g} in log2 from"
                found[f"{name}-{here:.4g}"] = (
                    f"{name} of {strategy} is {how} {power(there, 6)} there, {power(here, 6)} here"
                )
    return found


def unlike(study: Study, other: Study) -> list[str]:
    """Say in what two searches of one family differ, those of the first before the stroke: why their verdicts may."""
    told = []
    for name in ("lr", "wd"):
        axes: list[Axis] = [getattr(study, name) for study in (study, other)]
        values = [[getattr(point, name) for point in _corners(study)] for study in (study, other)]
        here, there = (_kind(axis, asked) for axis, asked in zip(axes, values, strict=True))
        ranges = [f"{power(min(asked))} to {power(max(asked))}" for asked in values]
        if here != there:
            told.append(f"{name} is {here} / {there}")
        elif not axes[0].on(values[0][0], values[1][0]):
            told.append(f"{name} is searched in whole steps from {power(values[0][0], 6)} / {power(values[1][0], 6)}")
        elif ranges[0] != ranges[1]:
            told.append(f"{name} was asked for from {' / '.join(ranges)}")
    if not told and set(study.asked) != set(other.asked):
        told.append(f"{len(study.asked)} / {len(other.asked)} points were asked for")
    judged = study.criterion.unlike(other.criterion, study.metric)
    told += [f"{name} is {here} / {there}" for name, (here, there) in judged.items()]
    seeds = [", ".join(map(str, sorted(study.seeds))) for study in (study, other)]
    return told + ([f"seeds are {' / '.join(seeds)}"] if seeds[0] != seeds[1] else [])


def _corners(study: Study) -> list[Point]:
    """Return points that span all that a search asks for, or lets proposers choose."""
    return [*study.asked, *study.box]


def _kind(axis: Axis, values: Sequence[float]) -> str:
    return f"fixed at {power(values[0], 6)}" if axis.fixed else f"searched in steps of {axis.step:g}"


def _flat(data: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested data as dotted keys with values."""
    found: dict[str, object] = {}
    for key, value in data.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
