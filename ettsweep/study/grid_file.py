"""Grid files: what a user writes, and the request that one becomes once every name and default is resolved."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, create_model, field_validator, model_validator

from ettsweep.config import read_yaml, with_sets
from ettsweep.errors import EttsweepError, InputError, located
from ettsweep.runs.spec import DEFAULT_OPTIMIZER, Recipe, Seeds
from ettsweep.schema import ListOfOne, StrictModel, expect, is_whole, keys_of, validate
from ettsweep.shipped_files import shipped
from ettsweep.strategies.optimizers import OPTIMIZERS, factors_of
from ettsweep.strategies.strategy import map_point, parse_strategy, strategy_name
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.lattice import FARTHEST, Axis, Centre, Centres
from ettsweep.study.recipe import (
    IN_EPOCHS,
    apply_override,
    recipe_problems,
    resolve_recipe,
)
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.registry import task_spec

NameOrFields = Annotated[
    str | dict[str, Any], expect("a name, or a mapping of fields,", lambda v: isinstance(v, str | dict))
]


MOST_RUNS = 1_000_000
"""Of a sweep: commands that read ten times as many run out of patience and of memory."""


class GridFile(StrictModel):
    """The file. `model` is a name or an architecture, `task` a name or a task; `set` overrides any recipe field.

    Attributes:
        centre: where the search starts, by strategy, with the optimizer that the recipe names.
        centre_NAME: the same for whoever sets that optimizer instead.
    """

    model: NameOrFields
    task: NameOrFields
    recipe: dict[str, Any]
    centre: Centres
    lr: Axis
    wd: Axis
    strategies: Annotated[tuple[str, ...], Field(min_length=1, strict=False), ListOfOne]
    mlp_factor: Literal["ignore", "include"] = "ignore"
    seeds: Annotated[Seeds, ListOfOne] = (0,)
    criterion: CriterionOptions = CriterionOptions()
    data: str | None = None

    @field_validator("model", "task")
    @classmethod
    def _known(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            try:
                model_spec(value) if info.field_name == "model" else task_spec(value)
            except InputError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("lr", "wd", mode="before")
    @classmethod
    def _axis(cls, value: object) -> object:
        """Accept `fixed`, and `{range: [low, high], step: s}` for `{low, high, step}`."""
        if value == "fixed":
            return {"fixed": True}
        if not isinstance(value, dict):
            raise ValueError(f"{{range: [-1, 1], step: 1}} or fixed is expected, got {value!r}")
        if "range" in value:
            rest = {k: v for k, v in value.items() if k != "range"}
            bounds = value["range"]
            if not (isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_offset, bounds))):
                raise ValueError(f"range: [low, high] from -{FARTHEST} to {FARTHEST} is expected, got {bounds!r}")
            return {"low": bounds[0], "high": bounds[1], **rest}
        return value

    @field_validator("lr", "wd")
    @classmethod
    def _divided(cls, axis: Axis) -> Axis:
        """Refuse a range that would end before its bounds."""
        steps = () if axis.fixed else ((bound, axis.steps(bound)) for bound in (axis.low, axis.high))
        for bound, count in steps:
            if count != round(count):
                nearest = ", ".join(f"{axis.step * whole:g}" for whole in (math.floor(count), math.ceil(count)))
                raise ValueError(f"{bound:g} is no multiple of the step {axis.step:g}; nearest: {nearest}")
        return axis

    @field_validator("recipe")
    @classmethod
    def _beside(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        """Refuse in the recipe what stands beside it."""
        if wrong := [key for key in recipe if key in cls.model_fields]:
            raise ValueError(f"{', '.join(wrong)} belongs beside the recipe, not in it")
        return recipe

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for names in (self.strategies, *self._centres.values()):
            try:
                known = [strategy_name(parse_strategy(name)) for name in names]
            except EttsweepError as error:
                raise ValueError(str(error)) from None
            if repeated := sorted({name for name in known if known.count(name) > 1}):
                raise ValueError(f"strategy {repeated[0]} is given twice")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} repeats a seed")
        if not self.centre:
            raise ValueError("centre: at least one strategy with lr and wd is needed")
        named = self._optimizer
        if self._centres.get(f"centre_{named}"):
            raise ValueError(
                f"centre is that of {named}, the recipe's optimizer; drop centre_{named} or change the recipe"
            )
        runs = len(self.lr.offsets()) * len(self.wd.offsets()) * len(self.strategies) * len(self.seeds)
        if runs > MOST_RUNS:
            raise ValueError(f"the ranges have {runs:,} runs; {MOST_RUNS:,} at most: take shorter ones or longer steps")
        for key, centres in self._centres.items():
            if not self.wd.fixed and any(c.wd == 0 for c in centres.values()):
                raise ValueError(f"{key}: wd 0 has no log2; give a positive wd, or `wd: fixed`")
        return self

    @property
    def _centres(self) -> dict[str, Centres]:
        return {name: getattr(self, name) for name in type(self).model_fields if name.startswith("centre")}

    @property
    def _optimizer(self) -> object:
        """The optimizer that the recipe names; the recipe's own schema judges it."""
        given = self.recipe.get("optimizer", {})
        return given.get("kind", DEFAULT_OPTIMIZER) if isinstance(given, dict) else given

    def starts(self, recipe: Recipe, where: str) -> Centres:
        """Return where the search of each strategy starts: at the stated centre, else at the map of another's.

        Args:
            recipe: the file's, with what was set instead.
            where: the file, and what was set.

        Raises:
            InputError: none is stated for the optimizer; that of another would start far away, without a word.
        """
        optimizer = recipe.optimizer.kind
        key = "centre" if optimizer == self._optimizer else f"centre_{optimizer}"
        stated = {parse_strategy(name): centre for name, centre in self._centres[key].items()}
        if not stated:
            raise InputError(
                f"{where}: no centre for {optimizer}: `centre` is that of {self._optimizer}, whose lr are of another "
                f"order; give {key} in the file, or --set '{key}={{standard: {{lr: LR, wd: WD}}}}'"
            )
        return centres_for(self.strategies, stated, recipe)


_OF_OTHERS: dict[str, Any] = {f"centre_{name}": (Centres, Field(default_factory=dict)) for name in OPTIMIZERS}
_File = create_model("_File", __base__=GridFile, **_OF_OTHERS)


def centres_for(names: Sequence[str], stated: Mapping[float | None, Centre], recipe: Recipe) -> Centres:
    """Return the centre of each strategy: the stated one of its s, else the map of another's.

    The map (scaling.strategies.map_point) starts from the first stated centre of the s family, within which it is
    closest, else from the first stated one.

    Raises:
        InputError: there is no such strategy, or the map leads out of the range of numbers.
    """
    source = next((s for s in stated if s is not None), next(iter(stated)))
    centre, factors = stated[source], factors_of(recipe.optimizer)
    found = {}
    for name in names:
        wanted = parse_strategy(name)
        there = stated.get(wanted)
        if there is None:
            lr, wd = map_point(centre.lr, centre.wd, source, wanted, recipe.model.width, factors)
            there = validate(Centre, {"lr": lr, "wd": wd}, f"the centre mapped to {name}")
        found[strategy_name(wanted)] = there
    return found


def which_grid(grid: Path | None, model: str | None, otherwise: str) -> Path:
    """Return the grid file that one of --grid and --model says.

    Raises:
        InputError: both do, or neither does, and the message is `otherwise`; or there is none for the model.
    """
    if (grid is None) == (model is None):
        raise InputError(otherwise)
    return grid or find_grid(str(model))


def find_grid(model: str) -> Path:
    """Return the one grid file whose `model:` is this name, first in ./grids, then among those shipped.

    Raises:
        InputError: there is none, or there are several.
    """
    model_spec(model)
    for folder in (Path("grids"), shipped("grids")):
        # A file that cannot be read may be the one: falling back to another grid would hide that.
        paths = [path for path in sorted(folder.glob("*.yaml")) if read_yaml(path).get("model") == model]
        if len(paths) > 1:
            raise InputError(f"several grids are for {model}: {', '.join(map(str, paths))}; choose with --grid FILE")
        if paths:
            return paths[0]
    raise InputError(f"no grid file has `model: {model}`; `ettsweep init --model {model}` writes one, for --grid FILE")


def load_request(
    path: Path,
    strategies: Sequence[str] = (),
    overrides: Sequence[str] = (),
    lr_range: str | None = None,
    wd_range: str | None = None,
    seeds: Sequence[int] = (),
    start: Centre | None = None,
) -> SweepSpec:
    """Read a grid file and resolve it; what is given beside it wins over the file.

    An override is `key=value` for any field of the recipe, dotted, or for a centre. A range is `low:high` or
    `low:high:step` in log2 from the centre, or `fixed`. `start` is the centre of every strategy, for a run that needs
    none of the file's.

    Raises:
        InputError: all that is wrong with the file or the options, or it states no centre for the optimizer.
    """
    data = read_yaml(path)
    with located("--strategy"):
        for name in strategies:
            parse_strategy(name)
    for key, text in (("lr", lr_range), ("wd", wd_range)):
        if text is not None:
            data[key] = parse_range(text, f"--{key}-range", data.get(key))
    data |= {key: list(given) for key, given in (("strategies", strategies), ("seeds", seeds)) if given}
    return make_request(data, path, overrides, start)


def make_request(
    data: dict[str, Any], path: Path, overrides: Sequence[str] = (), start: Centre | None = None
) -> SweepSpec:
    """Resolve what a grid file says, or is to say, with overrides as those of `load_request`.

    Raises:
        InputError: all that is wrong with it, or it states no centre for the optimizer.
    """
    of_centres = [o for o in overrides if re.match(r"centre(_\w+)?[.=]", o)]
    of_factors = [o for o in overrides if re.match(r"(strategy\.)?mlp_factor=", o)]
    for override in (*of_centres, *of_factors):
        apply_override(data, override.removeprefix("strategy."))
    inner = [("recipe", *key) for key in (*keys_of(Recipe, data.get("recipe")), *IN_EPOCHS)]
    also = [key for key in inner if key[1] not in _File.model_fields]
    others = [o for o in overrides if o not in of_centres and o not in of_factors]
    try:
        grid = validate(_File, data, with_sets(str(path), of_centres), also)
    except InputError as error:
        parts = (_rest(data.get("recipe")), data.get("model"), data.get("task"))
        raise InputError.of([str(error), *recipe_problems(*parts, others, str(path))]) from None
    recipe = resolve_recipe(grid.recipe, grid.model, grid.task, others, str(path))
    if start is None:
        starts = grid.starts(recipe, with_sets(str(path), overrides))
    else:
        starts = {strategy_name(parse_strategy(name)): start for name in grid.strategies}
    return SweepSpec(
        grid=path.name,
        recipe=recipe,
        mlp_factor=grid.mlp_factor,
        centres=starts,
        lr=grid.lr,
        wd=grid.wd,
        seeds=grid.seeds,
        criterion=grid.criterion or None,
        data=grid.data,
    )


def _rest(recipe: object) -> object:
    """Return a recipe without what belongs beside it."""
    return {k: v for k, v in recipe.items() if k not in _File.model_fields} if isinstance(recipe, dict) else recipe


def seed_alone(path: Path, given: Sequence[int] = ()) -> str:
    """Say of one seed that stands for a list of it alone how many seeds would be written; else nothing.

    Args:
        path: a grid file that can be read.
        given: the seeds that are given beside it, with commas between them.
    """
    number: Any = read_yaml(path).get("seeds") if not given else given[0] if len(given) == 1 else None
    if not is_whole(number, 2):  # who writes 1 means one either way
        return ""
    many = ",".join(map(str, range(number))) if number <= 5 else f"0,1,...,{number - 1}"
    return f"seed {number} alone; {number} seeds are {many}"


def parse_range(text: str, where: str, current: object = None) -> object:
    """Parse `low:high[:step]` or `fixed`; a step that is not given stays as the file has it."""
    if text == "fixed":
        return "fixed"
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise InputError(f"{where}: low:high, low:high:step or fixed is expected (log2 from the centre), got {text!r}")
    if not all(map(_is_offset, numbers[:2])):
        raise InputError(f"{where}: low and high from -{FARTHEST} to {FARTHEST} are expected, got {text!r}")
    if numbers[0] > numbers[1]:
        raise InputError(f"{where}: empty range: {numbers[0]:g} is above {numbers[1]:g}")
    step = numbers[2] if len(numbers) == 3 else current.get("step", 1.0) if isinstance(current, dict) else 1.0
    return {"low": numbers[0], "high": numbers[1], "step": step}


def _is_offset(bound: object) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) <= FARTHEST
