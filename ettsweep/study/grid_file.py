"""Grid files: the YAML schema, and its resolution into a SweepSpec, with every name and default replaced by values."""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, create_model, field_validator, model_validator

from ettsweep.config import hide_secrets, options_by_key, read_yaml, set_nested, split_override
from ettsweep.errors import EttsweepError, InputError, ValuesAsRangeError, unknown_name, with_source
from ettsweep.powers import parse_number
from ettsweep.runs.spec import BUILT_IN, KINDS, USUAL_AXES, Kind, Recipe, Seeds, kind_named
from ettsweep.schema import (
    HomeExpanded,
    Key,
    ListOfOne,
    Source,
    StrictModel,
    expect,
    is_whole,
    keys_of,
    locating,
    validate,
)
from ettsweep.shipped_files import describe_choice, grid_model, own_grids, shipped_grids
from ettsweep.strategies.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from ettsweep.strategies.strategy import check_strategy, map_point, parse_strategy, strategy_name
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.grid_axes import check_fields, read_vary, with_axes
from ettsweep.study.lattice import MAX_OFFSET, Axis, Centre, Centres
from ettsweep.study.study import variant_name
from ettsweep.study.sweep_spec import SweepSpec, Variant
from ettsweep.study.value_range import ValueRange

NameOrFields = Annotated[
    str | dict[str, Any], expect("a name, or a mapping of fields,", lambda v: isinstance(v, str | dict))
]


PROGRAM_SUFFIXES = (".py", ".sh", ".ipynb", ".jl", ".R")

OWN_PROGRAM = "a grid file with `run: {command: ...}` sweeps it, see docs/own-code.md"
"""Advice if a program is given as a model or grid file."""

NO_SEEDS = "none"
"""Value of `seeds` for code without a seed: one run a point."""

MAX_COUNTED_SEEDS = 32
"""Largest number of seeds; a larger one, such as 42, is probably a seed itself."""

BLOCKS: tuple[Key, ...] = (("axes",), ("vary",))
"""Keys of a grid file that are resolved before its schema."""

MAX_RUNS = 1_000_000
"""Upper limit of runs in a sweep. With ten times as many, commands take minutes and run out of memory."""


def _built_in() -> Kind[Any]:
    """Return the kind of grid files without a `run:` block."""
    return kind_named(BUILT_IN)


def counted_seeds(value: object) -> object:
    """Return the seeds 0 to N - 1 for a number N of seeds, and any other value unchanged; 0 is the seed 0.

    Raises:
        ValueError: the number is probably a seed itself.
    """
    if not isinstance(value, int) or not is_whole(value, 0):
        return value
    if value > MAX_COUNTED_SEEDS:
        raise ValueError(
            f"{value} would mean {value} seeds; for seed {value} alone write [{value}], or --seeds {value},"
        )
    return list(range(max(1, value)))


class _Grid(StrictModel):
    """Keys of all grid files: a lattice around centres, with strategies, seeds and a criterion.

    Attributes:
        centre: centre of the ranges for each strategy.
    """

    centre: Centres
    lr: Axis
    wd: Axis
    strategies: Annotated[tuple[str, ...], Field(min_length=1, strict=False), ListOfOne]
    mlp_factor: Literal["ignore", "include"] = "ignore"
    seeds: Annotated[Seeds, BeforeValidator(counted_seeds)] = (0,)
    criterion: CriterionOptions = CriterionOptions()
    data: Annotated[str | None, HomeExpanded] = None

    @field_validator("lr", "wd", mode="before")
    @classmethod
    def _expand_range(cls, value: object, validation: ValidationInfo) -> object:
        """Expand `fixed` and `{range: [low, high], step: s}` into the fields of `Axis`."""
        if value == "fixed":
            return {"fixed": True}
        if isinstance(value, Axis):  # of a list
            return value
        held = value.get("fixed", value.get("value")) if isinstance(value, dict) else value
        if _is_number(held):
            name = validation.field_name
            raise ValueError(f"to hold it at {held}, write `{name}: fixed`, and {name}: {held} under `centre:`")
        if not isinstance(value, dict):
            raise ValueError(f"{{range: [-1, 1], step: 1}}, a list of values or fixed is expected, got {value!r}")
        if "range" in value:
            other_fields = {k: v for k, v in value.items() if k != "range"}
            bounds = value["range"]
            if not (isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_offset, bounds))):
                raise ValueError(f"range: [low, high] from -{MAX_OFFSET} to {MAX_OFFSET} is expected, got {bounds!r}")
            return {"low": bounds[0], "high": bounds[1], **other_fields}
        return value

    @field_validator("lr", "wd")
    @classmethod
    def _check_multiples(cls, axis: Axis) -> Axis:
        """Refuse bounds that are no multiples of the step: no point would lie on them."""
        steps = () if axis.fixed or axis.values else ((bound, axis.steps(bound)) for bound in (axis.low, axis.high))
        for bound, count in steps:
            if count != round(count):
                nearest = ", ".join(f"{axis.step * n:g}" for n in (math.floor(count), math.ceil(count)))
                raise ValueError(f"{bound:g} is no multiple of the step {axis.step:g}; nearest: {nearest}")
        return axis

    @field_validator("strategies")
    @classmethod
    def _check_strategies(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_repeated(names)
        return names

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"{list(seeds)} repeats a seed")
        return seeds

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for centres in self._stated_centres.values():
            _refuse_repeated(centres)
        if not self.centre:
            raise ValueError("centre: at least one strategy with lr and wd is needed")
        for key, centres in self._stated_centres.items():
            # wd 0 is allowed on a fixed axis: no step leads to it or away from it.
            if not self.wd.fixed and any(c.wd == 0 for c in centres.values()):
                raise ValueError(f"{key}: wd 0 has no log2; give a positive wd, or `wd: fixed`")
        return self

    @property
    def _stated_centres(self) -> dict[str, Centres]:
        return {name: getattr(self, name) for name in type(self).model_fields if name.startswith("centre")}

    def resolve_centres(self, recipe: Recipe) -> dict[str, dict[str, float]]:
        """Return the centre for each strategy: from the file, or else mapped from another strategy's.

        Raises:
            InputError: it cannot be mapped.
        """
        return map_centres(self.strategies, _by_s(self.centre), recipe)


class GridFile(_Grid):
    """Schema of a grid file of the built-in trainer; `model` and `task` are names or mappings of fields.

    Attributes:
        centre: for the recipe's optimizer.
        centre_NAME: the same for optimizer NAME, used with `--set optimizer=NAME`.
    """

    model: NameOrFields
    task: NameOrFields
    recipe: dict[str, Any]

    @field_validator("model", "task")
    @classmethod
    def _check_name(cls, value: object, validation: ValidationInfo) -> object:
        if isinstance(value, str):
            try:
                _built_in().check_name(str(validation.field_name), value)
            except InputError as error:
                # pydantic collects ValueErrors with the other problems; any other exception would hide those.
                raise ValueError(str(error)) from None
        return value

    @field_validator("recipe")
    @classmethod
    def _check_misplaced(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        """Refuse top-level keys inside the recipe."""
        if misplaced := [key for key in recipe if key in cls.model_fields]:
            raise ValueError(f"{', '.join(misplaced)} belongs beside the recipe, not in it")
        return recipe

    @model_validator(mode="after")
    def _check_optimizer(self) -> Self:
        optimizer = self._recipe_optimizer
        if self._stated_centres.get(f"centre_{optimizer}"):
            raise ValueError(
                f"centre is already for {optimizer}, the recipe's optimizer; "
                f"remove centre_{optimizer} or change the recipe's optimizer"
            )
        return self

    @property
    def _recipe_optimizer(self) -> object:
        """Name of the recipe's optimizer, unchecked: the schema of `Recipe` validates it later."""
        optimizer = self.recipe.get("optimizer", {})
        return optimizer.get("kind", DEFAULT_OPTIMIZER) if isinstance(optimizer, dict) else optimizer

    def resolve_centres(self, recipe: Recipe) -> dict[str, dict[str, float]]:
        """Return the centre for each strategy: from the file, or else mapped from another strategy's.

        `recipe` is the file's recipe with overrides applied.

        Raises:
            InputError: the file has no centre for this optimizer. Another optimizer's would be far off unnoticed.
        """
        optimizer = recipe.info.labels.optimizer
        key = "centre" if optimizer == self._recipe_optimizer else f"centre_{optimizer}"
        centres = _by_s(self._stated_centres[key])
        if key != "centre" and (self.lr.values or self.wd.values):
            raise InputError(f"lists of lr and wd are for {self._recipe_optimizer}; for {optimizer}, give ranges")
        if not centres:
            raise InputError(
                f"no centre for {optimizer}: `centre` is for {self._recipe_optimizer}, whose lr differ by "
                f"orders of magnitude; give {key} in the file, or --set '{key}={{standard: {{lr: LR, wd: WD}}}}'"
            )
        return map_centres(self.strategies, centres, recipe)


class RunGrid(_Grid):
    """Schema of a grid file with a `run:` block, whose keys are those of its kind.

    Attributes:
        run: the block.
    """

    run: dict[str, Any]
    wd: Axis = Axis(fixed=True)
    strategies: Annotated[tuple[str, ...], Field(min_length=1, strict=False), ListOfOne] = ("standard",)

    @field_validator("centre", mode="before")
    @classmethod
    def _single_centre(cls, value: object) -> object:
        """Read `{lr: 0.1}` as the centre of the standard strategy, at wd 0 if it states none."""
        if isinstance(value, dict) and "lr" in value:
            return {"standard": {"wd": 0.0, **value}}
        return value


def _by_s(centres: Mapping[str, Centre]) -> dict[float | None, dict[str, float]]:
    return {parse_strategy(name): dict(centre) for name, centre in centres.items()}


def _refuse_repeated(names: Iterable[str]) -> None:
    """Raise ValueError for an unknown strategy, or two names of one."""
    try:
        # Compared by canonical name: `mup` and `s=1` are one strategy.
        canonical = [strategy_name(parse_strategy(name)) for name in names]
    except EttsweepError as error:
        raise ValueError(str(error)) from None
    if repeated := sorted({name for name in canonical if canonical.count(name) > 1}):
        raise ValueError(f"strategy {repeated[0]} is given twice")


# `centre_NAME` for every registered optimizer.
_OPTIMIZER_CENTRES: dict[str, Any] = {f"centre_{name}": (Centres, Field(default_factory=dict)) for name in OPTIMIZERS}
_GridFileSchema = create_model("_File", __base__=GridFile, **_OPTIMIZER_CENTRES)


def map_centres(
    names: Sequence[str], stated_centres: Mapping[float | None, Mapping[str, float]], recipe: Recipe
) -> dict[str, dict[str, float]]:
    """Return the centre of each strategy: the stated one, or else one mapped from another strategy's.

    The map (`strategies.strategy.map_point`) starts from the first stated centre of a strategy with an s, since it is
    most accurate between these; without any, from the first stated one.

    Args:
        names: strategies.
        stated_centres: centres by s, None for the standard strategy; at least one.
        recipe: for the width and the optimizer whose scaling factors apply.

    Raises:
        InputError: there is no such strategy, the optimizer does not have it, or a mapped centre is out of the range
            of floats.
    """
    source = next((s for s in stated_centres if s is not None), next(iter(stated_centres)))
    source_centre, width, rule = stated_centres[source], recipe.info.width, recipe.info.factor_rule
    centres = {}
    for name in names:
        s = parse_strategy(name)
        if width is not None:
            check_strategy(s, rule)
        centre = stated_centres.get(s)
        if centre is None:
            if width is None:
                raise InputError(f"no centre for {name}: without a width it cannot be mapped from another strategy's")
            lr, wd = map_point(source_centre["lr"], source_centre["wd"], source, s, width, rule)
            validate(Centre, {"lr": lr, "wd": wd}, f"the centre mapped to {name}")
            centre = {**source_centre, "lr": lr, "wd": wd}
        centres[strategy_name(s)] = dict(centre)
    return centres


def choose_grid_path(grid: Path | None, model: str | None, message: str) -> Path:
    """Return the given grid file, or the one for --model.

    Raises:
        InputError: not exactly one of them is given, with `message`; or there is no grid file for the model.
    """
    if (grid is None) == (model is None):
        raise InputError(message)
    return grid or find_grid(str(model))


def find_grid(model: str) -> Path:
    """Return the grid file whose `model:` is this name: the user's, in . or ./grids, or else a shipped one.

    Of several, that is the file with this name; if no `model:` matches, too.

    Raises:
        InputError: there is no such model, no such file, or several.
    """
    if Path(model).suffix in (".yaml", ".yml"):
        raise InputError(f"{model} is a file, not a model: leave out --model")
    if Path(model).suffix in PROGRAM_SUFFIXES:
        raise InputError(f"{model} is a program, not a model: {OWN_PROGRAM}")
    try:
        _built_in().check_name("model", model)
    except InputError as error:
        if named := [path for path in (*own_grids(), *shipped_grids()) if path.stem == model]:
            return named[0]
        raise InputError(f"{error}; for a program of your own, {OWN_PROGRAM}") from None
    for candidates in (own_grids(), shipped_grids()):
        # An unreadable file is an error: it may be the model's own, and a shipped grid must not replace it silently.
        paths = [path for path in candidates if read_yaml(path).get("model") == model]
        paths = [path for path in paths if path.stem == model] or paths
        if len(paths) > 1:
            raise InputError(f"several grids are for {model}: {', '.join(map(str, paths))}; give one of them")
        if paths:
            return paths[0]
    raise InputError(f"no grid file has `model: {model}`; `ettsweep init --model {model}` writes one")


def grid_note(path: Path, model: str | None) -> str:
    """Return a line that names the grid file in use.

    Args:
        path: of the grid file.
        model: name by which the file was chosen; None if it was given by its path.
    """
    of_name = [found for found in shipped_grids() if model in (found.stem, grid_model(found))]
    return describe_choice("grid file", path, min(of_name, key=lambda found: found.stem != model, default=None))


def load_sweep_spec(
    path: Path,
    strategies: Sequence[str] = (),
    overrides: Sequence[str] = (),
    ranges: Mapping[str, str] | None = None,
    seeds: Sequence[int] | int | None = None,
    start: Centre | None = None,
) -> SweepSpec:
    """Read a grid file and resolve it; options override the file.

    Args:
        path: the grid file.
        strategies: names that replace the file's strategies.
        overrides: `key=value` for any field of the recipe, dotted, or for a centre.
        ranges: `low:high` or `low:high:step` in log2 from the centre, or `fixed`, by axis.
        seeds: seeds that replace the file's, or their number.
        start: centre of all strategies, for a command that needs none of the file's.

    Raises:
        InputError: all problems of the file and the options, or there is no centre for the optimizer.
    """
    if path.suffix in PROGRAM_SUFFIXES:
        raise InputError(f"{path} is a program, not a grid file: {OWN_PROGRAM}")
    data = read_yaml(path)
    # Checked before they enter the file's data: the error names the option, not the file.
    with with_source("--strategy"):
        for name in strategies:
            parse_strategy(name)
    stated = data.get("axes") if isinstance(data.get("axes"), dict) else {}
    for key, text in (ranges or {}).items():
        option, block = f"--range {key}", stated if key in stated else data
        known = dict.fromkeys([*stated, *(name for name in USUAL_AXES if name in data or not stated)])
        if key not in known:
            raise unknown_name("axis", key, known)
        current = block.get(key)
        if isinstance(current, list) or (isinstance(current, dict) and "values" in current):
            values = current["values"] if isinstance(current, dict) else current
            raise InputError(f"{option}: {path} lists the values of {key}: {values}; edit that list")
        if block is data:
            data[key] = parse_range(text, option, current)
        else:
            parsed = parse_range(text, option, current)
            if not isinstance(parsed, dict) or not isinstance(current, dict):
                raise InputError(f"{option}: low:high or low:high:step is expected, got {text!r}")
            block[key] = {**current, "range": [parsed["low"], parsed["high"]], "step": parsed["step"]}
    data |= {"strategies": list(strategies)} if strategies else {}
    data |= {"seeds": seeds if isinstance(seeds, int) else list(seeds)} if seeds is not None else {}
    return make_sweep_spec(data, path, overrides, start, typed_options(strategies, ranges, seeds))


def typed_options(
    strategies: Sequence[str] = (),
    ranges: Mapping[str, str] | None = None,
    seeds: Sequence[int] | int | None = None,
) -> dict[Key, str]:
    """Return the given options, as typed, by the keys that they set."""
    options: dict[Key, str] = {}
    for name, text in (ranges or {}).items():
        options[name,] = f"--range {name}={text}"
    if strategies:
        options["strategies",] = " ".join(f"--strategy {name}" for name in strategies)
    if seeds is not None:
        listed = seeds if isinstance(seeds, int) else ",".join(map(str, seeds)) + "," * (len(seeds) == 1)
        options["seeds",] = f"--seeds={listed}"
    return options


def make_sweep_spec(
    data: dict[str, Any],
    path: Path,
    overrides: Sequence[str] = (),
    start: Centre | None = None,
    options: Mapping[Key, str] | None = None,
    variant: Sequence[str] = (),
) -> SweepSpec:
    """Resolve the content of a grid file, which need not exist yet; arguments are those of `load_sweep_spec`.

    Messages name `options`, which set keys of `data`; `variant` are the names of `vary:`, as inputs of a command.

    Raises:
        ValuesAsRangeError: the only problem is a range of values of lr or wd instead of log2 steps.
        InputError: all problems of the content, or there is no centre for the optimizer.
    """
    if data.get("vary") is not None:
        return _with_variants(data, path, overrides, start, options)
    centre_overrides = [o for o in overrides if re.match(r"centre(_\w+)?[.=]", o)]
    factor_overrides = [o for o in overrides if re.match(r"(strategy\.)?mlp_factor=", o)]
    for override in (*centre_overrides, *factor_overrides):
        set_nested(data, *split_override(override.removeprefix("strategy.")))
    for override in overrides:
        name = override.removeprefix("strategy.") if override in factor_overrides else override
        _check_override(name, run if isinstance(run := data.get("run"), dict) else _built_in().schema.model_fields)
    if not data.keys() & {"run", "model", "task", "recipe"}:
        misplaced = [name for name in KINDS if name in data]
        hint = f"; {misplaced[0]}: belongs into `run:`, as `run: {{{misplaced[0]}: ...}}`" if misplaced else ""
        raise InputError(f"{path}: add `run:` with your program, or `model:` with one that ships{hint}")
    stated, data = data.get("axes"), {key: value for key, value in data.items() if key != "vary"}
    data, further = with_axes(data, str(path))
    data = _with_lists(data, path)
    others = {"axes": {name: stated[name] for name in further}} if stated and further else {}
    _check_ranges(data | others, path, overrides, options or {})
    recipe_overrides = [o for o in overrides if o not in centre_overrides and o not in factor_overrides]
    set_options = options_by_key(centre_overrides)
    for option in options_by_key(factor_overrides).values():
        set_options["mlp_factor",] = option
    source = Source(str(path), {**(options or {}), **set_options})
    grid, recipe = (_run_grid if "run" in data else _built_in_grid)(data, source, recipe_overrides, [*further], variant)
    if start is None:
        with locating(Source(str(path), options_by_key(overrides))):
            centres = grid.resolve_centres(recipe)
    else:
        centres = {strategy_name(parse_strategy(name)): dict(start) for name in grid.strategies}
    # What is searched is an axis even if the runs are not given it: `check_axes` says so.
    axes = {"lr": grid.lr, "wd": grid.wd}
    axes = {name: axis for name, axis in axes.items() if name in recipe.info.axes or not axis.fixed}
    further = check_fields(further, recipe, str(path))
    centres = {name: centre | {axis: at for axis, (_, at) in further.items()} for name, centre in centres.items()}
    axes |= {name: axis for name, (axis, _) in further.items()}
    sweep_spec = SweepSpec(
        grid=path.name,
        recipe=recipe,
        mlp_factor=grid.mlp_factor,
        centres=centres,
        axes=axes,
        seeds=grid.seeds,
        criterion=_criterion(grid, recipe, path) or None,  # None is left out of the sweep's file
        data=grid.data,
    )
    with locating(source):
        _check_size(sweep_spec)
    if start is None:  # else its lr is that of no point
        with locating(Source(str(path), options_by_key(overrides))):
            sweep_spec.check_axes()
    return sweep_spec


def _with_variants(
    data: dict[str, Any],
    path: Path,
    overrides: Sequence[str],
    start: Centre | None,
    options: Mapping[Key, str] | None,
) -> SweepSpec:
    """Resolve a grid file with `vary:`; arguments are those of `make_sweep_spec`.

    Raises:
        InputError: a value is no name or number, or changes nothing; or a variant has a problem, which names it.
    """
    combinations, data = read_vary(data, str(path)), {key: value for key, value in data.items() if key != "vary"}
    is_own, specs = "run" in data, list[SweepSpec]()
    for values in combinations:
        stated = [] if is_own else [f"{name}={value}" for name, value in values.items()]
        try:
            specs.append(
                make_sweep_spec(
                    deepcopy(data), path, [*overrides, *stated], start, options, list(values) if is_own else ()
                )
            )
        except InputError as error:
            raise InputError(f"{error} (vary: {variant_name('', values)})") from None
    variants = [
        Variant(values=values, recipe=spec.recipe, centres=spec.centres)
        for values, spec in zip(combinations, specs, strict=True)
    ]
    if not is_own:
        for one, other in itertools.combinations(variants, 2):
            if one.recipe == other.recipe:
                names = " and ".join(each.name for each in (one, other))
                raise InputError(f"{path}: vary: {names} are the same")
    sweep_spec = specs[0].model_copy(update={"variants": tuple(variants)})
    with locating(Source(str(path))):
        _check_size(sweep_spec)
    return sweep_spec


def _check_size(sweep_spec: SweepSpec) -> None:
    """Refuse more runs than commands can hold.

    Raises:
        InputError: there are.
    """
    points = math.prod(len(axis.offsets()) + axis.zero for axis in sweep_spec.axes.values())
    runs = points * len(sweep_spec.names) * len(sweep_spec.seeds)
    if runs > MAX_RUNS:
        raise InputError(
            f"the grid has {runs:,} runs, the limit is {MAX_RUNS:,}; narrow the ranges or lengthen the steps"
        )


def _with_lists(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a grid file with axes for its lists of lr or wd, whose middle values are the centre.

    Raises:
        InputError: a list has fewer than two different values, or one that is not above 0; or the centre is stated too.
    """
    forms = {name: data[name] for name in ("lr", "wd") if isinstance(data.get(name), list)}
    # `axes:` states a list with more beside it.
    forms |= {name: data[name] for name in ("lr", "wd") if isinstance(data.get(name), dict) and "values" in data[name]}
    lists = {name: form["values"] if isinstance(form, dict) else form for name, form in forms.items()}
    if not lists:
        return data
    stated = data.get("centre") or {}
    if not isinstance(stated, dict):
        raise InputError(f"{path}: centre: a mapping is expected, got {stated!r}")
    is_nested = bool(stated) and all(isinstance(each, dict) for each in stated.values())
    nested = stated if is_nested else {_listed_strategy(data, path): stated}
    if len(nested) > 1:
        raise InputError(f"{path}: {' and '.join(lists)}: a list is for one strategy, and `centre` has {len(nested)}")
    ((strategy, centre),) = nested.items()
    axes = {}
    for name, values in lists.items():
        try:
            numbers = sorted({parse_number(str(value)) for value in values})
        except ValueError:
            numbers = []
        # A wd of 0 is a level of its own.
        if len(numbers) < 2 or not (numbers[0] > 0 or (name == "wd" and not numbers[0])) or numbers[-1] == math.inf:
            fixed = (
                f"; for a single value write `{name}: fixed`, and {name} under `centre:`" if len(values) == 1 else ""
            )
            raise InputError(f"{path}: {name}: two or more different numbers above 0 are expected, got {values}{fixed}")
        if name in centre:
            raise InputError(f"{path}: centre: {name} is the middle of its list; leave it out")
        with locating(Source(str(path))):
            kept = {"trade": forms[name]["trade"]} if "trade" in forms[name] else {}
            axes[name] = validate(Axis, Axis.fields_of(numbers, **kept), f"{path}: {name}")
    centre = {**centre, **{name: axis.centre for name, axis in axes.items()}}
    if "run" in data and data.get("wd", "fixed") == "fixed":
        centre.setdefault("wd", 0.0)
    return {**data, **axes, "centre": {strategy: centre}}


def _listed_strategy(data: Mapping[str, Any], path: Path) -> str:
    """Return the strategy of listed lr and wd: the only one, or standard."""
    strategies = data.get("strategies", "standard")
    names = [strategies] if isinstance(strategies, str) else list(strategies)
    if len(names) == 1 or "standard" in names:
        return str(names[0] if len(names) == 1 else "standard")
    raise InputError(f"{path}: lists of lr or wd are of one strategy: write `centre: {{{names[0]}: {{}}}}` to name it")


def _criterion(grid: _Grid, recipe: Recipe, path: Path) -> CriterionOptions:
    with with_source(f"{path}: criterion"):
        return grid.criterion.for_runs(recipe.info.metric, seeded=recipe.info.seeded)


def _built_in_grid(
    data: dict[str, Any], source: Source, overrides: Sequence[str], further: Sequence[str], variant: Sequence[str]
) -> tuple[_Grid, Recipe]:
    """Validate a grid file of the built-in trainer; `overrides` are those of its recipe."""
    if further:
        data = {"lr": "fixed", "wd": "fixed", **data}
    built_in = _built_in()
    if data.get("seeds") == NO_SEEDS:
        raise InputError(
            f"{source.file}: seeds: none is for code without a seed, but these models have one: write seeds: [0]"
        )
    # For misspelt keys at the top, keys of the recipe are suggested too.
    recipe_keys = [("recipe", *key) for key in (*keys_of(built_in.schema, data.get("recipe")), *built_in.extra_keys)]
    recipe_keys = [key for key in recipe_keys if key[1] not in _GridFileSchema.model_fields]
    try:
        grid = validate(_GridFileSchema, data, source, [*BLOCKS, *recipe_keys])
    except InputError as error:
        recipe_data = _without_misplaced(data.get("recipe"))
        block = {**recipe_data, "model": data.get("model"), "task": data.get("task")} if recipe_data is not None else {}
        raise InputError.of([str(error), *built_in.problems(block, overrides, source.file)]) from None
    block = {**grid.recipe, "model": grid.model, "task": grid.task}
    return grid, built_in.read(block, overrides, source.file, Path(source.file).parent)


def _run_grid(
    data: dict[str, Any], source: Source, overrides: Sequence[str], further: Sequence[str], variant: Sequence[str]
) -> tuple[_Grid, Recipe]:
    """Validate a grid file with a `run:` block; `overrides` are those of the block, `further` its axes."""
    has_no_seed, stated = data.get("seeds") == NO_SEEDS, {name for name in USUAL_AXES if name in data}
    if further:
        data = {"lr": "fixed", **data, "centre": data.get("centre") or {}}
        if not any(isinstance(each, dict) for each in data["centre"].values()):
            data["centre"] = {"lr": 1.0, **data["centre"]}
    grid = validate(RunGrid, data | ({"seeds": [0]} if has_no_seed else {}), source, BLOCKS)
    # `function: ...` is short for `trainable: function`.
    names = [name for name in KINDS if name in grid.run and name != BUILT_IN]
    name = grid.run.get("trainable", names[0] if names else None)
    if not isinstance(name, str):
        known = ", ".join(f"{each}: ..." for each in KINDS if each != BUILT_IN)
        given = f", got {', '.join(map(str, grid.run))}" if grid.run else ""
        raise InputError(f"{source.file}: run: one of {known} is expected{given}")
    with locating(Source(source.file)):
        kind = kind_named(name)
    block = {key: value for key, value in grid.run.items() if key != "trainable"}
    if "seeds" in block:
        raise InputError(f"{source.file}: run: seeds belongs beside `run:`, not in it")
    if hidden := [key for key in block if str(key).startswith("_")]:
        raise InputError(f"{source.file}: run: unknown key {hidden[0]}")
    if further:
        # An axis that the file does not state is none, unlike where lr and wd are all.
        block["_usual_axes"] = [name for name in USUAL_AXES if name in stated]
    if further or variant:
        block["_inputs"] = [*further, *variant]
    if has_no_seed:
        if "seeds" not in kind.schema.model_fields:
            raise InputError(f"{source.file}: seeds: none is for code without a seed, but runs of {name} have one")
        block["seeds"] = NO_SEEDS
    recipe: Recipe = kind.read(block, overrides, f"{source.file}: run", Path(source.file).parent)
    if not recipe.info.has_strategies and grid.strategies != ("standard",):
        raise InputError(
            f"{source.of(('strategies',))}: strategies: runs of {recipe.info.labels.title} have one strategy, since "
            "their block states no width"
        )
    return grid, recipe


OPTION_OF_KEY = {
    **{"lr": "--range lr=", "wd": "--range wd=", "strategy": "--strategy", "strategies": "--strategy"},
    **{"seed": "--seeds", "seeds": "--seeds", "data": "--data", "environment": "--launch-set"},
    **{"rule": "--rule", "confidence": "--confidence", "margin": "--margin"},
    "criterion": "--rule, --confidence and --margin",
}
"""Option to use instead of --set, for keys outside the recipe."""


def _check_override(override: str, fields: Collection[str]) -> None:
    """Check that --set is the option for a key.

    Raises:
        InputError: the key is, or resembles, one that another option sets.
    """
    from difflib import get_close_matches  # slow to import, and few commands need it

    key, _ = split_override(override)
    first = key.partition(".")[0]
    candidates = () if first in fields else OPTION_OF_KEY
    if matches := get_close_matches(first, candidates, n=1, cutoff=0.8):
        raise InputError(
            f"--set {hide_secrets(override)}: {key} is not a field of the recipe; use {OPTION_OF_KEY[matches[0]]}"
        )


def _without_misplaced(recipe: object) -> dict[str, Any] | None:
    """Return a recipe without keys of the top level: their error is reported already."""
    if not isinstance(recipe, dict):
        return None
    return {k: v for k, v in recipe.items() if k not in _GridFileSchema.model_fields}


def seeds_note(path: Path, option: str | None = None) -> str:
    """Explain a number of seeds; empty for a list of seeds.

    Args:
        path: a valid grid file.
        option: the text of --seeds, which replaces the file's.
    """
    number: Any = read_yaml(path).get("seeds") if option is None else int(option) if option.isdecimal() else None
    if not is_whole(number, 1):
        return ""
    name, one = ("seeds: ", f"[{number}]") if option is None else ("--seeds ", f"--seeds {number},")
    meant = "seed 0" if number == 1 else f"seeds 0 to {number - 1}"
    return f"{name}{number} means {meant}; seed {number} alone is {one}"


def _check_ranges(data: dict[str, Any], path: Path, overrides: Sequence[str], options: Mapping[Key, str]) -> None:
    """Explain ranges given as values of lr or wd; arguments are those of `make_sweep_spec`.

    Raises:
        ValuesAsRangeError: the only problems are such ranges.
    """
    value_ranges = {name: value_range for name in USUAL_AXES if (value_range := ValueRange.parse(data.get(name)))}
    if not value_ranges:
        return
    try:
        # The centre does not depend on these ranges.
        sweep_spec = make_sweep_spec(deepcopy(data) | dict.fromkeys(value_ranges, "fixed"), path, overrides)
    except InputError:
        return
    strategy, centre = next(iter(sweep_spec.centres.items()))
    if not all(centre.get(name) for name in value_ranges):
        return  # no steps lead from 0
    problems, right_options = [], {}
    for name, value_range in value_ranges.items():
        source, form, start = f"{path}: {name}", "[{}, {}]", centre[name]
        if typed := options.get((name,)):
            option, _, text = typed.partition("=")
            colons = ":".join(["{}", "{}", *text.split(":")[2:]])  # the step stays as it is
            source, form = typed, f"{option}={colons}"
            right_options[option] = colons.format(*(f"{x:g}" for x in value_range.nearest_offsets(start)))
        problems.append(f"{source}: {value_range.explain(name, strategy, start, form)}")
    raise ValuesAsRangeError("\n".join(problems), right_options)


def parse_range(text: str, option: str, current: object = None) -> object:
    """Parse `low:high[:step]` or `fixed` into a value for `lr` or `wd` of a grid file.

    Args:
        text: the value of an option.
        option: its name, for error messages.
        current: the value in the file; its step stays if `text` gives none.

    Raises:
        InputError: it is not a range.
    """
    if text == "fixed":
        return "fixed"
    try:
        numbers = [parse_number(number) for number in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise InputError(f"{option}: low:high, low:high:step or fixed is expected (log2 from the centre), got {text!r}")
    # -2:2 alone widens a range without leaving the lattice: the file's step stays.
    step = numbers[2] if len(numbers) == 3 else current.get("step", 1.0) if isinstance(current, dict) else 1.0
    # 2^-6 stays text: it is a value, and never a number of steps.
    low, high = (bound if "^" in bound else number for bound, number in zip(text.split(":"), numbers[:2], strict=False))
    if ValueRange.parse(axis := {"low": low, "high": high, "step": step}):
        return axis
    is_linear = isinstance(current, dict) and current.get("scale") == "linear"
    if not is_linear and not all(map(_is_offset, numbers[:2])):
        raise InputError(f"{option}: low and high from -{MAX_OFFSET} to {MAX_OFFSET} are expected, got {text!r}")
    if numbers[0] > numbers[1]:
        raise InputError(f"{option}: empty range: {numbers[0]:g} is above {numbers[1]:g}")
    return axis


def _is_number(value: object) -> bool:
    try:
        parse_number(str(value))
    except ValueError:
        return False
    return True


def _is_offset(bound: object) -> bool:
    # bool is a subclass of int: YAML's `yes` must not pass as 1.
    return isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) <= MAX_OFFSET
