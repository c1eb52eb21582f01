"""The blocks `axes:` and `vary:` of a grid file: axes of any name, and variants that each have a lattice."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ettsweep.errors import InputError, nearest_name
from ettsweep.powers import parse_number
from ettsweep.runs.spec import (
    BUILT_IN,
    RESUME_PLACEHOLDERS,
    RUN_PLACEHOLDERS,
    USUAL_AXES,
    Recipe,
    field_of,
    kind_of,
    variable_of,
    with_field,
)
from ettsweep.schema import Source, StrictModel, keys_of, validate
from ettsweep.study.lattice import MAX_AXES, Axis

NAME = re.compile(r"[A-Za-z_][\w.]*")

RESERVED = (*RUN_PLACEHOLDERS, *RESUME_PLACEHOLDERS)
"""Placeholders that are no axes."""

EXAMPLE = "axes: {lr: {centre: 0.01, range: [-2, 2]}, batch: {values: [64, 128, 256]}}"

KEYS = ("centre", "range", "step", "values", "scale", "whole", "trade", "least", "most")

Further = dict[str, tuple[Axis, float]]
"""Axes beside lr and wd, with their centres."""


def with_axes(data: dict[str, Any], location: str) -> tuple[dict[str, Any], Further]:
    """Return the content of a grid file with lr and wd of `axes:` in their short form, and the further axes.

    Raises:
        InputError: the block is wrong; all of its problems are named.
    """
    stated = data.get("axes")
    data = {key: value for key, value in data.items() if key != "axes"}
    if stated is None:
        return data, {}
    if not isinstance(stated, dict) or not stated:
        raise InputError(f"{location}: axes: names with ranges or values are expected, such as {EXAMPLE}")
    further, centre, problems = Further(), dict[str, object](), list[str]()
    for name, value in stated.items():
        at = f"{location}: axes.{name}"
        try:
            form = _form(name, value, at)
            if name not in USUAL_AXES:
                further[name] = _axis(form, at)
            elif name in data:
                raise InputError(f"{at}: {name} is stated beside `axes:` too; write it once")
            elif given := [key for key in ("scale", "whole", "least", "most") if key in form]:
                raise InputError(f"{at}: {given[0]}: {name} has a log scale and no limits; leave it out")
            elif "values" in form:
                data[name] = form
            else:
                data[name] = {key: value for key, value in form.items() if key != "centre"}
                if form.get("centre") is not None:
                    centre[name] = form["centre"]
                elif not data.get("centre"):
                    raise InputError(f"{at}: centre is missing, such as {{centre: 0.01, range: [-2, 2]}}")
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError.of(problems)
    _refuse_equal_variables([*stated], location)
    names = [*(name for name in USUAL_AXES if name in data), *further]
    searched = [name for name in names if data.get(name) != "fixed"]
    if len(searched) > MAX_AXES:
        raise InputError(
            f"{location}: axes: {', '.join(searched)}: one or two are searched together; `vary:` makes a lattice for "
            "each value of others"
        )
    if centre:
        data["centre"] = _with_centre(data.get("centre"), centre, location)
    return data, further


MAX_VARIANTS = 64


def read_vary(data: Mapping[str, Any], location: str) -> list[dict[str, str | int | float]]:
    """Return the values of each variant of `vary:`, whose last name varies fastest.

    Raises:
        InputError: it is no mapping of names to lists of names or numbers, or an axis is among them.
    """
    stated = data["vary"]
    if not isinstance(stated, dict) or not stated:
        raise InputError(f"{location}: vary: names with lists are expected, such as vary: {{optimizer: [adamw, muon]}}")
    axes = data.get("axes") if isinstance(data.get("axes"), dict) else {}
    for name, values in stated.items():
        at = f"{location}: vary.{name}"
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
            raise InputError(
                f"{at}: a name of letters, digits, _ and dots is expected, that is no placeholder of all runs"
            )
        if name in (*USUAL_AXES, *(axes or {})):
            held = f", or hold it by `{name}: fixed`" if name in USUAL_AXES else ""
            raise InputError(f"{at}: {name} is an axis; list its values under `axes:`{held}")
        fits = isinstance(values, list) and all(
            isinstance(value, str | int | float) and not isinstance(value, bool) for value in values
        )
        if not fits or len({_number(value) if _is_number(value) else value for value in values}) < max(2, len(values)):
            quoted = "; quote true and false" if isinstance(values, list) and {*map(type, values)} & {bool} else ""
            raise InputError(f"{at}: two or more different names or numbers are expected, got {values}{quoted}")
        if spaced := [value for value in map(str, values) if re.search(r"[\s=:,]", value) or not value]:
            raise InputError(f"{at}: {spaced[0]!r}: without spaces and =:, since it is part of the variant's name")
    _refuse_equal_variables([*stated, *map(str, axes or {})], location)
    combinations = [dict(zip(stated, values, strict=True)) for values in itertools.product(*stated.values())]
    if len(combinations) > MAX_VARIANTS:
        raise InputError(f"{location}: vary: {len(combinations)} variants; the limit is {MAX_VARIANTS}")
    return combinations


def _refuse_equal_variables(names: Sequence[str], location: str) -> None:
    """Refuse names whose values would have one variable, such as a.b and a_b."""
    first = dict[str, str]()
    for name in names:
        if (other := first.setdefault(variable_of(name), name)) != name:
            raise InputError(f"{location}: {other} and {name}: runs have both as {variable_of(name)}; rename one")


def _with_centre(stated: object, centre: Mapping[str, object], location: str) -> object:
    """Return `centre:` with the values of axes, within its only strategy if it has one."""
    inner = [each for each in stated.values() if isinstance(each, dict)] if isinstance(stated, dict) else []
    if twice := [name for name in centre for each in (stated, *inner) if isinstance(each, dict) and name in each]:
        raise InputError(f"{location}: centre: {twice[0]} has its centre under `axes:` too; write it once")
    if isinstance(stated, dict) and len(stated) == 1 and all(isinstance(each, dict) for each in stated.values()):
        ((strategy, values),) = stated.items()
        return {strategy: {**values, **centre}}
    return {**(stated if isinstance(stated, dict) else {}), **centre}


def _form(name: object, value: object, at: str) -> dict[str, Any]:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{at}: a name of letters, digits, _ and dots is expected")
    if name in RESERVED:
        raise InputError(f"{at}: {{{name}}} is a placeholder of each run, and no axis")
    form = {"values": value} if isinstance(value, list) else value
    if not isinstance(form, dict) or not {"values", "range"} & form.keys():
        raise InputError(f"{at}: a list of values, or {{centre: 64, range: [-1, 1]}}, is expected, got {value!r}")
    if unknown := [key for key in form if key not in KEYS]:
        near = nearest_name(str(unknown[0]), KEYS)
        known = f"did you mean {near}?" if near else f"known are {', '.join(KEYS)}"
        raise InputError(f"{at}: {unknown[0]}: unknown key; {known}")
    if "values" in form and not isinstance(form["values"], list):
        raise InputError(f"{at}: values: a list is expected, got {form['values']!r}")
    if given := [key for key in ("centre", "range", "step") if "values" in form and key in form]:
        raise InputError(f"{at}: {given[0]}: a list of values has none; leave it out")
    if form.get("trade", "opposite") not in ("opposite", "same"):
        raise InputError(f"{at}: trade: opposite or same is expected, got {form['trade']!r}")
    return dict(form)


def _axis(form: dict[str, Any], at: str) -> tuple[Axis, float]:
    """Return a further axis and its centre."""
    scale, source = form.get("scale", "log"), Source(at)
    fields: dict[str, Any] = {"scale": scale, "whole": form.get("whole", False)}
    fields |= {key: form[key] for key in ("trade", "least", "most") if key in form}
    if scale not in ("log", "linear"):
        raise InputError(f"{at}: scale: log or linear is expected, got {scale!r}")
    if "values" in form:
        listed = form["values"]
        if any(isinstance(value, str) and not _is_number(value) for value in listed):
            raise InputError(f"{at}: {listed}: these are names; `vary:` makes a lattice for each of them")
        if not all(_is_number(value) for value in listed) or len({*map(_number, listed)}) < max(2, len(listed)):
            raise InputError(f"{at}: values: two or more different numbers of at least 0 are expected, got {listed}")
        fields["whole"] = form.get("whole", all(isinstance(value, int) for value in listed))
        axis = validate(Axis, Axis.fields_of(sorted({*map(_number, listed)}), **fields), source)
        assert axis.centre is not None
        return _checked(axis, axis.centre, at)
    centre = form.get("centre")
    if not _is_number(centre) or not (_number(centre) or scale == "linear"):
        least = "of at least 0" if scale == "linear" else "above 0"
        raise InputError(f"{at}: centre: a number {least} is expected, got {centre!r}")
    bounds = form["range"]
    ends = [*(bounds if isinstance(bounds, list) else ()), form.get("step", 1)]
    if len(ends) != 3 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise InputError(
            f"{at}: range: [low, high], as offsets from the centre, and a number as step are expected, got {bounds!r}"
            f"{f' and step {ends[-1]!r}' if 'step' in form else ''}"
        )
    low, high, step = map(float, ends)
    axis = validate(Axis, {"low": low, "high": high, "step": step, **fields}, source)
    for bound in (low, high):
        if (count := axis.steps(bound)) != round(count):
            raise InputError(f"{at}: range: {bound:g} is no multiple of the step {step:g}")
    return _checked(axis, _number(centre), at)


def _checked(axis: Axis, centre: float, at: str) -> tuple[Axis, float]:
    """Check that the values of an axis are whole numbers, if it says so, and not negative."""
    exact = axis.model_copy(update={"whole": False})
    values = exact.grid(centre)
    if fraction := next((value for value in values if axis.whole and value != round(value)), None):
        raise InputError(f"{at}: {fraction:g} is not whole; use longer steps, or list the values")
    if min(values) < axis.least or (axis.most is not None and max(values) > axis.most):
        off, side = (min(values), "below") if min(values) < axis.least else (max(values), "above")
        limit = axis.least if side == "below" else axis.most
        raise InputError(f"{at}: {off:g} is {side} {limit:g}; narrow the range, or list the values")
    if axis.whole and axis.scale == "log" and not axis.values and len(values) > 1:
        # Halves of whole numbers are rounded, so steps from one value to the next must be counted along a list.
        kept = axis.model_dump(include={"whole", "trade", "least", "most"})
        axis = Axis.of([round(value) for value in values], **kept)
        centre = axis.values[(len(values) - 1) // 2]
    return axis, round(centre) if axis.whole else centre


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and 0 <= parse_number(str(value)) < math.inf
    except ValueError:
        return False


def _number(value: object) -> float:
    return value if isinstance(value, int) else parse_number(str(value))


def _limits(recipe: StrictModel, name: str) -> dict[str, float]:
    """Return the least and the largest value that the field of a dotted name may have, where it has such."""
    *heads, last = name.split(".")
    model = field_of(recipe, ".".join(heads)) if heads else recipe
    limits = dict[str, float]()
    for rule in type(model).model_fields[last].metadata:
        if (least := getattr(rule, "ge", None)) is not None:
            limits["least"] = least
        if (above := getattr(rule, "gt", None)) is not None:
            limits["least"] = math.nextafter(above, math.inf)
        if (most := getattr(rule, "le", None)) is not None:
            limits["most"] = most
        if (below := getattr(rule, "lt", None)) is not None:
            limits["most"] = math.nextafter(below, -math.inf)
    return limits


def check_fields(further: Further, recipe: Recipe, location: str) -> Further:
    """Return the axes of a built-in model, whole where its fields are; any axes of others.

    Raises:
        InputError: an axis is no number of the recipe, or one of its values is not valid there.
    """
    if recipe.trainable != BUILT_IN:
        return further
    checked = Further()
    for name, (axis, centre) in further.items():
        at = f"{location}: axes.{name}"
        try:
            old = field_of(recipe, name)
        except AttributeError:
            old = None
        if isinstance(old, bool) or not isinstance(old, int | float):
            fields = [".".join(key) for key in keys_of(kind_of(recipe).schema, recipe.model_dump())]
            near = nearest_name(name, fields)
            raise InputError(f"{at}: the recipe has no number of that name{f'; did you mean {near}?' if near else ''}")
        axis = axis.model_copy(update={"whole": isinstance(old, int)} | _limits(recipe, name))
        axis, centre = _checked(axis, centre if axis.whole else float(centre), at)
        for value in axis.grid(centre):
            validate(type(recipe), with_field(recipe, name, value).model_dump(), at)
        checked[name] = axis, centre
    return checked
