"""Grid files: what a user writes, and the request that one becomes once every name and default is resolved."""

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, Field, field_validator, model_validator

from ettsweep.errors import CorruptError, EttsweepError, InputError, located, unknown_name
from ettsweep.files import storage_errors, write_atomic
from ettsweep.models.registry import MODELS, model_name, model_spec
from ettsweep.resources import shipped
from ettsweep.scaling.factors import Optimizer
from ettsweep.scaling.hyperparameters import map_point
from ettsweep.scaling.strategies import parse_strategy, strategy_name
from ettsweep.spec import (
    MAX_SEED,
    AdamWSpec,
    DenoisingTask,
    Frozen,
    NonNegative,
    Positive,
    PositiveFloat,
    Recipe,
    RunSpec,
    StrategySpec,
    TaskSpec,
    digest,
    expect,
    validate,
)
from ettsweep.sweep.lattice import Axis, Point, expand
from ettsweep.tasks.registry import check_fits, corpus_at_hand, steps_per_epoch, task_spec

Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1, strict=False)]


NameOrFields = Annotated[
    str | dict[str, Any], expect("a name, or a mapping of fields,", lambda v: isinstance(v, str | dict))
]


def _in_range(value: float) -> float:
    """Refuse what steps and maps would push out of the range of floats."""
    if value and not 1e-30 <= value <= 1e30:
        raise ValueError(f"a number between 1e-30 and 1e30 is expected, got {value!r}")
    return value


class Centre(Frozen):
    """Where a search starts, in the coordinates of its strategy."""

    lr: Annotated[PositiveFloat, AfterValidator(_in_range)]
    wd: Annotated[NonNegative, AfterValidator(_in_range)]


Centres = dict[str, Centre]

ANYWHERE = Centre(lr=1e-3, wd=0.0)
"""A start for whoever asks a grid about its data or its memory, which depend on none."""


class GridFile(Frozen):
    """The file. `model` is a name or an architecture, `task` a name or a task; `set` overrides any recipe field.

    Attributes:
        centre: where the search starts, by strategy, with the optimizer that the recipe names.
        centre_adamw, centre_sgd: the same for whoever sets that optimizer instead.
    """

    model: NameOrFields
    task: NameOrFields
    recipe: dict[str, Any]
    centre: Centres
    centre_adamw: Centres = Field(default_factory=dict)
    centre_sgd: Centres = Field(default_factory=dict)
    lr: Axis
    wd: Axis
    strategies: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    mlp_factor: str = "ignore"
    seeds: Seeds = (0,)
    data: str | None = None

    @field_validator("lr", "wd", mode="before")
    @classmethod
    def _axis(cls, value: object) -> object:
        """Accept `fixed`, and `{range: [low, high], step: s}` for `{low, high, step}`."""
        if value == "fixed":
            return {"fixed": True}
        if isinstance(value, dict) and "range" in value:
            rest = {k: v for k, v in value.items() if k != "range"}
            bounds = value["range"]
            if not (isinstance(bounds, list) and len(bounds) == 2):
                raise ValueError(f"range: two numbers [low, high] are expected, got {bounds!r}")
            return {"low": bounds[0], "high": bounds[1], **rest}
        return value

    @model_validator(mode="after")
    def _named(self) -> Self:
        for names in (self.strategies, *self._centres.values()):
            try:
                known = [strategy_name(parse_strategy(name)) for name in names]
            except EttsweepError as error:
                raise ValueError(str(error)) from None
            if repeated := sorted({name for name in known if known.count(name) > 1}):
                raise ValueError(f"strategy {repeated[0]} is given twice")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} repeats a seed")
        return self

    @model_validator(mode="after")
    def _centred(self) -> Self:
        if not self.centre:
            raise ValueError("centre: at least one strategy with lr and wd is needed")
        named = self._optimizer
        if self._centres.get(f"centre_{named}"):
            raise ValueError(
                f"centre is that of {named}, the recipe's optimizer; drop centre_{named} or change the recipe"
            )
        for key, centres in self._centres.items():
            if not self.wd.fixed and any(c.wd == 0 for c in centres.values()):
                raise ValueError(f"{key}: wd 0 has no log2; give a positive wd, or `wd: fixed`")
        return self

    @property
    def _centres(self) -> dict[str, Centres]:
        """What is stated, by key."""
        return {"centre": self.centre, "centre_adamw": self.centre_adamw, "centre_sgd": self.centre_sgd}

    @property
    def _optimizer(self) -> object:
        """The optimizer that the recipe names; the recipe's own schema judges it."""
        given = self.recipe.get("optimizer", {})
        return given.get("kind", AdamWSpec().kind) if isinstance(given, dict) else given

    def centres(self, optimizer: Optimizer) -> Centres:
        """Return the centres that are stated for an optimizer.

        Raises:
            InputError: there are none; those of another would start the search far away, without a word.
        """
        key = "centre" if optimizer == self._optimizer else f"centre_{optimizer}"
        if not (found := self._centres[key]):
            raise InputError(
                f"no centre for {optimizer}: `centre` is that of {self._optimizer}, whose lr are of another order; "
                f"give {key} in the file, or --set '{key}={{standard: {{lr: LR, wd: WD}}}}'"
            )
        return found


class Request(Frozen):
    """What was asked for, resolved: recipe, a centre for each strategy, axes and seeds; and where it trains.

    `launch`, `launch_set` and `data` are where later commands train by default; they are in no run's id.
    """

    grid: str
    recipe: Recipe
    mlp_factor: str
    centres: dict[str, Centre]
    lr: Axis
    wd: Axis
    seeds: Seeds
    data: str | None = None
    launch: str = "local"
    launch_set: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def searches(self) -> list["Search"]:
        """Return one search for each strategy."""
        return [Search.of(self, name) for name in self.centres]

    def specs(self) -> list[RunSpec]:
        """Return all runs, strategy by strategy and seed by seed, so that whole points finish early."""
        return [spec for search in self.searches() for spec in search.specs(search.points)]


class Search(Frozen):
    """The search of one family: its lattice, its seeds, and the points that were asked for."""

    base: RunSpec
    family: str
    strategy: str
    model: str
    lr: Axis
    wd: Axis
    seeds: Seeds
    points: tuple[Point, ...]

    @classmethod
    def of(cls, request: Request, strategy: str) -> "Search":
        """Return the search of one strategy of a request."""
        centre = request.centres[strategy]
        scaling = validate(
            StrategySpec, {"s": parse_strategy(strategy), "mlp_factor": request.mlp_factor}, "mlp_factor"
        )
        parts = {name: getattr(request.recipe, name) for name in Recipe.model_fields}
        base = RunSpec(**parts, strategy=scaling, lr=centre.lr, wd=centre.wd, seed=request.seeds[0])
        points = expand(Point(centre.lr, centre.wd), request.lr, request.wd)
        return cls(
            base=base,
            family=base.family_id,
            strategy=strategy,
            model=model_name(base.model),
            lr=request.lr,
            wd=request.wd,
            seeds=request.seeds,
            points=tuple(points),
        )

    def run(self, lr: float | None = None, wd: float | None = None, seed: int | None = None) -> RunSpec:
        """Return one run; what is not given is the centre's, or the first seed.

        Raises:
            InputError: a value that the schema refuses.
        """
        given = {"lr": lr, "wd": wd, "seed": seed}
        data = self.base.model_dump() | {key: value for key, value in given.items() if value is not None}
        return validate(RunSpec, data, "run")

    def specs(self, points: Iterable[Point], seeds: Sequence[int] | None = None) -> list[RunSpec]:
        """Return the runs of some points, over the search's seeds by default."""
        return [self.base.at(p.lr, p.wd, seed) for p in points for seed in (seeds or self.seeds)]


# --- reading --------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a float, as everyone but YAML 1.1 means it, and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # an error of its own, below
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        """Leave 4:00:00 the text that it is; YAML 1.1 makes it 14400."""
        text = str(self.construct_scalar(node))
        return text if ":" in text else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        text = str(self.construct_scalar(node))
        return text if ":" in text else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML safely.

    Raises:
        InputError: it is no YAML; the message has the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise InputError(f"{where}:{line} {getattr(error, 'problem', None) or error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        InputError: it does not exist, cannot be read, or is no YAML mapping.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of keys to values is expected")
    return data


def find_grid(model: str) -> Path:
    """Return the one grid file whose `model:` is this name, first in ./grids, then among those shipped.

    Raises:
        InputError: there is none, or there are several.
    """
    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
    for folder in (Path("grids"), shipped("grids")):
        # A file that cannot be read may be the one: falling back to another grid would hide that.
        found = [path for path in sorted(folder.glob("*.yaml")) if read_yaml(path).get("model") == model]
        if len(found) > 1:
            raise InputError(f"several grids are for {model}: {', '.join(map(str, found))}; choose with --grid FILE")
        if found:
            return found[0]
    raise InputError(f"no grid file has `model: {model}`; write one and pass it with --grid FILE")


def load_request(
    path: Path,
    strategies: Sequence[str] = (),
    overrides: Sequence[str] = (),
    lr_range: str | None = None,
    wd_range: str | None = None,
    seeds: Sequence[int] = (),
    start: Centre | None = None,
) -> Request:
    """Read a grid file and resolve it.

    Args:
        path: the file.
        strategies: those asked for, all of the file's by default.
        overrides: `key=value` for any field of the recipe, dotted, and for the centres.
        lr_range: `low:high` or `low:high:step` in log2 from the centre, or `fixed`; wins over the file.
        wd_range: the same for wd.
        seeds: win over the file's.
        start: the centre of every strategy, for a run that needs none of the file's.

    Raises:
        InputError: all that is wrong with the file or the options, or it states no centre for the optimizer.
    """
    data = read_yaml(path)
    for key, text in (("lr", lr_range), ("wd", wd_range)):
        if text is not None:
            data[key] = parse_range(text, f"--{key}-range", data.get(key))
    if strategies:
        data["strategies"] = list(strategies)
    if seeds:
        data["seeds"] = list(seeds)
    grid, recipe = _resolve(data, overrides, str(path))
    if start is None:
        with located(_with_sets(str(path), overrides)):
            stated = grid.centres(recipe.optimizer.kind)
        centres = {name: centre_of(stated, name, recipe) for name in grid.strategies}
    else:
        centres = dict.fromkeys(grid.strategies, start)
    return Request(
        grid=path.name,
        recipe=recipe,
        mlp_factor=grid.mlp_factor,
        centres={strategy_name(parse_strategy(name)): centre for name, centre in centres.items()},
        lr=grid.lr,
        wd=grid.wd,
        seeds=grid.seeds,
        data=grid.data,
    )


def _resolve(data: dict[str, Any], overrides: Sequence[str], where: str) -> tuple[GridFile, Recipe]:
    """Apply `key=value` overrides to a file's data; return the file as it then is, and its recipe."""
    mlp_factor, overrides = _take(overrides, "strategy.mlp_factor")
    if mlp_factor is not None:
        data["mlp_factor"] = mlp_factor
    of_centres = [o for o in overrides if re.match(r"centre(_\w+)?[.=]", o)]
    for override in of_centres:
        apply_override(data, override)
    grid = validate(GridFile, data, _with_sets(where, of_centres))
    rest = [o for o in overrides if o not in of_centres]
    recipe = resolve_recipe(grid.model, grid.task, grid.recipe, rest, where)
    validate(StrategySpec, {"s": 0.0, "mlp_factor": grid.mlp_factor}, where)
    return grid, recipe


def _with_sets(where: str, overrides: Sequence[str]) -> str:
    return f"{where} with --set {' '.join(overrides)}" if overrides else where


def with_corpus(request: Request) -> Request:
    """Return the request with the digest of the text at hand, which is part of what its runs train.

    Raises:
        DataMissingError: there is no text.
    """
    task = request.recipe.task
    if not isinstance(task, DenoisingTask) or task.corpus is not None:
        return request
    task = task.model_copy(update={"corpus": corpus_at_hand(task)})
    return request.model_copy(update={"recipe": request.recipe.model_copy(update={"task": task})})


def centre_of(centres: Mapping[str, Centre], strategy: str, recipe: Recipe) -> Centre:
    """Return a strategy's centre: the stated one, else the map of another's.

    The map (theory of hyperparameters.map_point) starts from the first stated centre of the s family for a
    strategy of the family, since within it the map is closest, else from the first stated one.
    """
    wanted = parse_strategy(strategy)
    stated = {parse_strategy(name): centre for name, centre in centres.items()}
    if wanted in stated:
        return stated[wanted]
    source = next((s for s in stated if s is not None), next(iter(stated)))
    centre = stated[source]
    lr, wd = map_point(centre.lr, centre.wd, source, wanted, recipe.model.width, recipe.optimizer.kind)
    return validate(Centre, {"lr": lr, "wd": wd}, f"the centre mapped to {strategy}")


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
    step = numbers[2] if len(numbers) == 3 else current.get("step", 1.0) if isinstance(current, dict) else 1.0
    return {"low": numbers[0], "high": numbers[1], "step": step}


def resolve_recipe(
    model: str | dict[str, Any],
    task: str | dict[str, Any],
    recipe: dict[str, Any],
    overrides: Sequence[str],
    where: str,
) -> Recipe:
    """Return the recipe with presets filled in and `key=value` overrides applied, checked by the schema.

    Raises:
        InputError: an unknown name or key, or a value that the schema refuses.
    """
    with located(where):
        data: dict[str, Any] = {
            **recipe,
            "model": model_spec(model).model_dump() if isinstance(model, str) else dict(model),
            "task": task_spec(task).model_dump() if isinstance(task, str) else dict(task),
        }
    for override in overrides:
        apply_override(data, override)
    where = _with_sets(where, overrides)
    _resolve_epochs(data, where)
    resolved = validate(Recipe, data, where)
    with located(where):
        check_fits(resolved.task, resolved.model, resolved.batch_size)
    return resolved


EPOCHS = {
    "epochs": "total_steps",
    "warmup_epochs": "warmup_steps",
    "eval_every_epochs": "eval_every",
    "stop_epoch": "stop_step",
}
"""Fields of a schedule that may be given in epochs, and may be fractions; a run is counted in steps."""


class _Epoch(Frozen):
    """What the steps of an epoch follow from."""

    task: TaskSpec
    batch_size: Positive


def _resolve_epochs(data: dict[str, Any], where: str) -> None:
    """Turn what a schedule says in epochs into steps of the task and the batch size."""
    schedule = data.get("schedule")
    if not isinstance(schedule, dict) or not EPOCHS.keys() & schedule.keys():
        return
    given = {name: schedule[name] for name in EPOCHS if name in schedule}
    parts = {name: data[name] for name in _Epoch.model_fields if name in data}
    epoch = validate(_Epoch, parts, where)
    with located(where):
        steps = steps_per_epoch(epoch.task, epoch.batch_size)
    data["schedule"] = schedule = {key: value for key, value in schedule.items() if key not in given}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
            raise InputError(f"{where}: schedule.{name}: a number of epochs is expected, got {value!r}")
        if EPOCHS[name] in schedule:
            raise InputError(f"{where}: schedule: {name} and {EPOCHS[name]} say the same; give one of them")
        schedule[EPOCHS[name]] = round(value * steps)


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `a.b=value` in nested plain data; the schema judges key and value afterwards."""
    key, value = split_override(override)
    if key in ("lr", "wd", "seed", "strategy"):
        option = {"lr": "--lr-range", "wd": "--wd-range", "seed": "--seeds", "strategy": "--strategy"}[key]
        raise InputError(f"--set {override}: {key} belongs to the point, not to the recipe; use {option}")
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            inner = data[parent] = {"kind": inner} if isinstance(inner, str) else {}
        data = inner
    if parents == ["schedule"]:
        for epochs, steps in EPOCHS.items():
            if last in (epochs, steps):  # the last word counts, in steps or in epochs
                data.pop(epochs, None)
                data.pop(steps, None)
    data[last] = value


def split_override(override: str) -> tuple[str, Any]:
    """Split `key=value`; the value is read as YAML, so that numbers, true and null are what they look like."""
    key, equals, text = override.partition("=")
    if not equals or not key or not all(part.isidentifier() for part in key.split(".")):
        raise InputError(f"--set {override}: key=value is expected, such as model.width=64")
    return key, parse_yaml(text, f"--set {override}")


def _take(overrides: Sequence[str], key: str) -> tuple[Any, list[str]]:
    """Return the value of one key among overrides, and the others."""
    rest = [o for o in overrides if o.partition("=")[0] != key]
    taken = [split_override(o)[1] for o in overrides if o.partition("=")[0] == key]
    return (taken[-1] if taken else None), rest


# --- requests on disk -----------------------------------------------------------------------------------------------


def save_request(results: Path, request: Request) -> Path:
    """Keep a request under results/requests/; asking again makes it the newest."""
    data = request.model_dump(mode="json")
    folder = results / "requests"
    path = folder / f"{digest(data)}.yaml"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            os.utime(path)
            return path
    write_atomic(path, yaml.safe_dump(data, sort_keys=False))
    return path


def as_before(results: Path, request: Request) -> Request:
    """Return the request to be trained where its families were before, else where the folder's newest request was."""
    before = load_requests(results)
    families = {search.family for search in request.searches()}
    akin = [old for old in before if families & {search.family for search in old.searches()}]
    for old in (*akin, *before):
        return request.model_copy(update={"launch": old.launch, "launch_set": old.launch_set})
    return request


def load_requests(results: Path) -> list[Request]:
    """Return all requests of a results folder, newest first.

    Raises:
        CorruptError: one was edited into something else.
    """
    paths = sorted((results / "requests").glob("*.yaml"), key=lambda p: (-p.stat().st_mtime_ns, p.name))
    requests = []
    for path in paths:
        try:
            requests.append(validate(Request, read_yaml(path), str(path)))
        except InputError as error:
            raise CorruptError(f"{error}; delete the file, and ask for the grid again") from None
    return requests


def searches(requests: Sequence[Request]) -> list[Search]:
    """Return one search for each family: the newest request governs, older ones add their points."""
    merged: dict[str, Search] = {}
    for request in requests:
        for search in request.searches():
            known = merged.get(search.family)
            if known is None:
                merged[search.family] = search
            else:
                points = tuple(dict.fromkeys(known.points + search.points))
                merged[search.family] = known.model_copy(update={"points": points})
    return list(merged.values())
