"""Compatibility of specs in one sweep, and differences between two studies of one family."""

from collections.abc import Sequence

from ettsweep.powers import axis_text
from ettsweep.runs.point import Point
from ettsweep.runs.spec import Recipe
from ettsweep.schema import fields_outside_id
from ettsweep.study.lattice import Axis
from ettsweep.study.study import Study
from ettsweep.study.sweep_spec import SweepSpec

AXIS_FIELDS = ("scale", "trade", "whole", "least", "most")
"""Fields of an axis that all specs of a sweep have in common."""


def sweep_differences(sweep_specs: Sequence[SweepSpec], sweep_spec: SweepSpec) -> dict[str, str]:
    """Return why a spec cannot extend a sweep: other recipe, fixed axes, steps or centres; empty if it can.

    Args:
        sweep_specs: specs of the sweep, compatible with each other.
        sweep_spec: the spec to add.

    Returns:
        A sentence for each difference, by a short label for the name of another sweep.
    """
    first = sweep_specs[0]
    old_recipes, new_recipes = first.recipes, sweep_spec.recipes
    if not new_recipes.keys() <= old_recipes.keys():
        there, here = ("; ".join(filter(None, recipes)) or "nothing" for recipes in (old_recipes, new_recipes))
        return {"vary": f"what varies is {there} there, {here} here"}
    problems = {}
    for name, recipe in new_recipes.items():
        old_fields, new_fields = map(_recipe_fields, (old_recipes[name], recipe))
        # Beside the recipe in grid files, but training depends on it too.
        old_fields["strategy.mlp_factor"], new_fields["strategy.mlp_factor"] = first.mlp_factor, sweep_spec.mlp_factor
        for key in {**old_fields, **new_fields}:
            old, new = old_fields.get(key, "absent"), new_fields.get(key, "absent")
            if old != new:
                field = key.rpartition(".")[2]
                # The label ends the proposed name of another sweep: w64-sgd says more than w64-kind-sgd.
                problems[str(new) if field == "kind" else f"{field}-{new}"] = f"{key} is {old} there, {new} here"
    if first.axes.keys() != sweep_spec.axes.keys():
        there, here = (" and ".join(spec.axes) for spec in (first, sweep_spec))
        problems["-".join(sweep_spec.axes)] = f"the axes are {there} there, {here} here"
        return problems
    for name, new_axis in sweep_spec.axes.items():
        old_axis = first.axes[name]
        if old_axis.fixed != new_axis.fixed:
            old_label, new_label = ("fixed" if axis.fixed else "searched" for axis in (old_axis, new_axis))
            problems[f"{name}-{new_label}"] = f"{name} is {old_label} there, {new_label} here"
        elif differing := [field for field in AXIS_FIELDS if getattr(old_axis, field) != getattr(new_axis, field)]:
            field = differing[0]
            old, new = (getattr(axis, field) for axis in (old_axis, new_axis))
            problems[f"{name}-{field}-{new}"] = f"{field} of {name} is {old} there, {new} here"
        elif old_axis.values or new_axis.values:
            if not old_axis.shares_lattice(new_axis):
                there, here = (_axis_label(name, axis, ()) for axis in (old_axis, new_axis))
                problems[f"{name}-values"] = f"{name} is {there} there, {here} here"
        elif not old_axis.fixed and old_axis.step != new_axis.step:
            step = new_axis.step
            problems[f"{name}-step-{step:g}"] = f"the step of {name} is {old_axis.step:g} there, {step:g} here"
    if problems:
        return problems  # without a common step, centres cannot be compared
    # Reversed: the first centre of a strategy counts, the origin of its lattice.
    centres = {name: centre for spec in reversed(sweep_specs) for name, centre in spec.names.items()}
    for strategy in sweep_spec.names.keys() & centres.keys():
        old_centre, new_centre = centres[strategy], sweep_spec.names[strategy]
        for name, axis in first.axes.items():
            old, new = old_centre[name], new_centre[name]
            if not axis.around(old).is_on_lattice(old, new):
                unit = " in log2" if axis.scale == "log" else ""
                label = "fixed at" if axis.fixed else f"in steps of {axis.step:g}{unit} from"
                # Six digits: both centres must not print the same.
                problems[f"{name}-{new:.4g}"] = (
                    f"{name} of {strategy} is {label} {axis_text(name, old, 6)} there, {axis_text(name, new, 6)} here"
                )
    return problems


def study_differences(study: Study, other: Study) -> list[str]:
    """Return how two studies of one family differ, as `own value / other value`: why their verdicts may differ."""
    lines = []
    for name in study.axes:
        axes = [study.axes[name], other.axes[name]]
        values = [[point[name] for point in _corners(study)] for study in (study, other)]
        own_label, other_label = (
            _axis_label(name, axis, coordinates) for axis, coordinates in zip(axes, values, strict=True)
        )
        ranges = [
            f"{axis_text(name, min(coordinates))} to {axis_text(name, max(coordinates))}" for coordinates in values
        ]
        if own_label != other_label:
            lines.append(f"{name} is {own_label} / {other_label}")
        elif not axes[0].is_on_lattice(values[0][0], values[1][0]):
            origins = " / ".join(axis_text(name, axis_values[0], 6) for axis_values in values)
            lines.append(f"{name} is searched in whole steps from {origins}")
        elif ranges[0] != ranges[1]:
            lines.append(f"{name} was requested from {' / '.join(ranges)}")
    if not lines and set(study.seeds_by_point) != set(other.seeds_by_point):
        lines.append(f"{len(study.seeds_by_point)} / {len(other.seeds_by_point)} points were requested")
    criterion_fields = study.criterion.differing_fields(other.criterion, study.metric)
    lines += [f"{name} is {own_value} / {other_value}" for name, (own_value, other_value) in criterion_fields.items()]
    seeds = [", ".join(map(str, sorted(study.seeds))) for study in (study, other)]
    return lines + ([f"seeds are {' / '.join(seeds)}"] if seeds[0] != seeds[1] else [])


def _corners(study: Study) -> list[Point]:
    """Return points that span the requested points and the ranges of samplers."""
    return [*study.seeds_by_point, *study.box]


def _axis_label(name: str, axis: Axis, values: Sequence[float]) -> str:
    if axis.values:
        return ", ".join(axis_text(name, value, 6) for value in axis.values)
    return f"fixed at {axis_text(name, values[0], 6)}" if axis.fixed else f"searched in steps of {axis.step:g}"


def _recipe_fields(recipe: Recipe) -> dict[str, object]:
    """Return the fields of a recipe that change numbers, by dotted keys, except own code."""
    left_out = {*fields_outside_id(type(recipe)), *(("code",) if recipe.info.code else ())}
    return _flatten(recipe.model_dump(mode="json", exclude=left_out))


def _flatten(data: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested dictionaries to dotted keys."""
    fields: dict[str, object] = {}
    for key, value in data.items():
        fields |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return fields
