"""Recipes, kinds and run specs with their ids, as data.

A recipe holds everything that changes the numbers of a run except strategy, lr, wd and seed; with those four it is a
`RunSpec`, and the run id is a hash of that. It is resolved: it holds numbers instead of names, and every default. It
holds nothing about machines: devices, partitions and worker counts are in a launch profile, so a run has the same id
wherever it trains.

Only its own kind reads a recipe: others read its `RecipeInfo`, or call functions of its `Kind`, such as checks of a
grid file. None of it imports torch or reads samples.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, PlainValidator, SerializerFunctionWrapHandler, model_serializer, model_validator

from ettsweep.errors import InputError, unknown_name
from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.powers import log2
from ettsweep.runs.point import Point
from ettsweep.runs.spike_spec import SpikeSpec
from ettsweep.schema import (
    Key,
    NonNegative,
    NotInId,
    OmitFromIdAt,
    PositiveFloat,
    Source,
    StrictModel,
    canonical,
    digest,
    identity,
    validate,
)

if TYPE_CHECKING:
    from ettsweep.project_code import CodeRule, ProjectCode

BUILT_IN = "transformer"
"""The kind of grid files without a `run:` block, and of specs that do not name one."""

TRAINING_LOSSES = ("loss", "train_loss", "train/loss")
"""Names of metrics that are training losses: if one is not finite, the run has diverged."""


# --- what is known of a recipe ----------------------------------------------------------------------------------------


class Labels(NamedTuple):
    """Names of a recipe in tables, page and figures; empty ones are not shown.

    Attributes:
        model: the model or program in a word or two, such as vit-b16 or train.py.
        task: its task.
        data: digits of the digest of its data.
    """

    model: str
    task: str = ""
    data: str = ""
    optimizer: str = ""
    precision: str = ""

    @property
    def title(self) -> str:
        """The model and its task."""
        return f"{self.model} on {self.task}" if self.task else self.model


@dataclass(frozen=True)
class OwnCode:
    """User code of a run.

    Attributes:
        digest: of the code, part of the id.
        copy: digest of the copy of the project that the run trains in, which counts as `digest`.
        folder: of the grid file, in the project.
        rule: the files of the project that are the code.
        is_copied: whether the run trains in the copy; else in the project itself.
    """

    digest: str
    copy: str
    folder: Path
    rule: "CodeRule"
    is_copied: bool = True


@dataclass(frozen=True, kw_only=True)
class RecipeInfo:
    """Facts about a recipe for planner and views.

    Attributes:
        metric: the score that verdicts compare.
        labels: names for people.
        short_name: another name of the model, for `--model`.
        paired: whether runs of one seed have something in common; else all are independent repeats.
        seeded: whether runs of a point differ by their seed; else a point has one run, and noise is unknown.
        axes: which of lr and wd runs are given.
        width: what strategies scale lr and wd by; None for one strategy, whose name says nothing to people.
        factor_rule: the optimizer whose learning-rate factors apply.
        steps: number of the last step; None if unknown.
        may_end_early: whether a run may end before its last step; else it fails then.
        eval_every: steps between evaluations; None if unknown.
        warmup_steps: steps at the beginning in which runs are not compared.
        records_every_step: whether each step has a line with `loss` in metrics.jsonl: a missing one means damage.
        steps_per_epoch: for the axis of curves; None for an axis of steps.
        tokens_per_step: tokens of a step; None unless all samples are text of one length.
        samples_name: plural noun of the samples of a step, for speeds.
        key: of the recipe; runs with the same key take equally long.
        momentum_gain: sum of steps in one direction, decay included, over lr: 1 without the gain of momentum.
        gpus: devices of a run on each node; None for any number.
        nodes: nodes of a run; None for any number.
        data_kind: name of the data whose location `--data` or a variable gives; empty if it reads none.
        no_data_reason: why `--data` is refused if it reads none.
        code: the user's code; None if all comes with installed packages.
        kept_outputs: patterns of the files in `out` to keep when a run ends; None for all.
        resume: keeper of checkpoints: ettsweep, the program in files of this pattern, the program itself, or none.
        checkpoint_pattern: regular expression of paths of the program's checkpoints, relative to `out`.
        stop_signal: signal that stops its program; empty without a user's program.
        stop_grace_s: seconds after which a stopped program is killed.
        particulars: further facts of its training for tables, by label.
    """

    metric: Metric
    labels: Labels
    short_name: str = ""
    seeded: bool = True
    paired: bool = True
    axes: tuple[str, ...] = ("lr", "wd")
    width: int | None = None
    factor_rule: Literal["adamw", "sgd", "muon"] = "adamw"
    steps: int | None = None
    may_end_early: bool = True
    eval_every: int | None = None
    warmup_steps: int = 0
    records_every_step: bool = False
    steps_per_epoch: int | None = None
    tokens_per_step: int | None = None
    samples_name: str = "samples"
    key: str = ""
    momentum_gain: float = 1.0
    gpus: int | None = None
    nodes: int | None = None
    data_kind: str = ""
    no_data_reason: str = "its runs read no data that --data could locate"
    code: OwnCode | None = None
    kept_outputs: Sequence[str] | None = None
    resume: Literal["ettsweep", "files", "program", "none"] = "ettsweep"
    checkpoint_pattern: str = ""
    stop_signal: str = ""
    stop_grace_s: float = 0.0
    particulars: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_strategies(self) -> bool:
        """Whether strategies can differ."""
        return self.width is not None

    def progress_text(self, progress: float) -> str:
        """Return a share of a run, 0 to 1, as steps: 20/100; empty if their number is unknown."""
        return f"{round(progress * self.steps)}/{self.steps}" if self.steps else ""


# --- recipes ----------------------------------------------------------------------------------------------------------


class Recipe(StrictModel):
    """Base of all recipes. Fields of a subclass change the numbers of a run, and are part of its id.

    Attributes:
        trainable: name of its kind.
        spikes: thresholds for spikes of the recorded losses.
    """

    trainable: str
    spikes: SpikeSpec = SpikeSpec()

    written_last: ClassVar[tuple[str, ...]] = ("spikes",)
    """Fields that come last in files, after those of the subclass."""

    @model_serializer(mode="wrap")
    def _in_order(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialise(self)
        if data.get("trainable") == BUILT_IN:
            del data["trainable"]  # as before there were others
        for name in ("axes", "linear", "variant", "inputs"):
            if name in data and not data[name]:
                del data[name]
        if data.get("usual_axes", ()) is None:  # empty where neither is an axis
            del data["usual_axes"]
        last = {name: data.pop(name) for name in self.written_last if name in data}
        return data | last

    @property
    def info(self) -> RecipeInfo:
        """Facts for planner and views."""
        info: RecipeInfo | None = self.__dict__.get(_INFO)
        if info is None:
            kind = kind_of(self)
            fields = {name: value for name, value in identity(self).items() if name in kind.schema.model_fields}
            info = kind.info(self)
            info = replace(info, key=canonical([fields, info.steps]))
            self.keep_info(info)
        return info

    def keep_info(self, info: RecipeInfo) -> None:
        """Cache its facts, since views read them for each run."""
        self.__dict__[_INFO] = info  # beside its fields: not in files, and not compared

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop(_INFO, None)
        return copy


_INFO = "_info"


# --- kinds ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Place where runs train.

    Attributes:
        devices: of a run, on all of its nodes.
        memory_bytes: of all of them.
        owner: name of its owner, for messages.
        results: the results folder; None if unknown.
    """

    devices: int
    memory_bytes: int
    owner: str
    results: Path | None = None


SomeRecipe = TypeVar("SomeRecipe", bound=Recipe)

Block = dict[str, Any]
"""The mapping under `run:` in a grid file, or the recipe's keys in a file of the built-in trainer."""


def override_block(block: Block, overrides: Sequence[str], location: str) -> tuple[Block, Source]:
    """Return a block with `key=value` from the command line applied, and the sources of its values, for messages."""
    from ettsweep.config import options_by_key, set_nested, split_override  # YAML: only grid files need it

    data = deepcopy(block)
    for override in overrides:
        set_nested(data, *split_override(override))
    return data, Source(location, options_by_key(overrides))


def _score_alone(recipe: Recipe, history: Sequence[Json], diverged: bool) -> Json:
    return {recipe.info.metric.name: recipe.info.metric.score(history)}


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[SomeRecipe]):
    """Functions of the recipes of a kind; some have defaults.

    Attributes:
        schema: the recipe: its fields are the keys of a grid file.
        info: what planner and views know of a recipe.
        read: (block, overrides, location, folder) -> the recipe that a grid file in a folder describes, with
            `key=value` for dotted keys of the block; raises InputError with all problems, each after its location.
        problems: (block, overrides, location) -> those of a block in a file that has other problems, one a line.
        extra_keys: keys that a block may have beside the fields, to suggest for misspelt ones.
        check_name: (field, name) -> raises InputError if there is no model or task, as the field says, of that name.
        check_axes: (recipe, values by axis, strategies) -> a note on effects of lr that people rarely want; raises
            InputError if training does not depend on lr, or on wd and strategy where they have several values.
        check: (recipe, place) -> reasons why a run cannot be trained in a place.
        check_data: (recipe, data, count) -> raises DataMissingError if the data are not where workers look for them;
            with `count`, also if quick counts say that some are missing.
        bind: (recipe, data) -> the recipe bound to what it is trained with here, by digests of data or code that enter
            the id; raises DataMissingError.
        for_trial: the recipe with shorter runs, as far as it states how, for `ettsweep try`.
        summary: (recipe, history, diverged) -> entries of result.json on metrics, at least the score's, from the lines
            of metrics.jsonl.
        project_code: the current code of the project; None without own code.
        with_code: the recipe with other code of its own.
    """

    schema: type[SomeRecipe]
    info: Callable[[SomeRecipe], RecipeInfo]
    read: Callable[[Block, Sequence[str], str, Path], SomeRecipe]
    problems: Callable[[Block, Sequence[str], str], list[str]] = lambda block, overrides, location: []
    extra_keys: Sequence[Key] = ()
    check_name: Callable[[str, str], object] = lambda field, name: None
    check_axes: Callable[[SomeRecipe, Mapping[str, Sequence[float]], Sequence[str]], str] = lambda *of: ""
    check: Callable[[SomeRecipe, Place], list[str]] = lambda recipe, place: []
    check_data: Callable[[SomeRecipe, str | None, bool], None] = lambda recipe, data, count: None
    bind: Callable[[SomeRecipe, str | None], SomeRecipe] = lambda recipe, data: recipe
    for_trial: Callable[[SomeRecipe], SomeRecipe] = lambda recipe: recipe
    summary: Callable[[SomeRecipe, Sequence[Json], bool], Json] = _score_alone
    project_code: Callable[[SomeRecipe], "ProjectCode | None"] = lambda recipe: None
    with_code: Callable[[SomeRecipe, OwnCode], SomeRecipe] = lambda recipe, code: recipe


KINDS = {
    BUILT_IN: "ettsweep.kinds.transformer:TRANSFORMER",
    "function": "ettsweep.kinds.function:FUNCTION",
    "command": "ettsweep.kinds.command:COMMAND",
}
"""Module and name of each `Kind`, imported on use."""


@cache
def kind_named(name: str) -> Kind[Any]:
    """Return a kind.

    Raises:
        InputError: there is none of that name.
    """
    if name not in KINDS:
        raise unknown_name("trainable", name, KINDS)
    kind: Kind[Any] = resolve_name(KINDS[name])
    return kind


def kind_of(data: object) -> Kind[Any]:
    """Return the kind of a recipe, or the one that plain data of a recipe or spec name.

    Raises:
        InputError: there is none of that name.
    """
    if isinstance(data, Recipe):
        return kind_named(data.trainable)
    name = data.get("trainable", BUILT_IN) if isinstance(data, dict) else BUILT_IN
    return kind_named(name if isinstance(name, str) else repr(name))


def _as_recipe(value: object) -> object:
    if isinstance(value, Recipe):
        return value
    try:
        return kind_of(value).schema.model_validate(value)
    except InputError as error:
        raise ValueError(str(error)) from None  # pydantic reports it with the other problems


ValidatedRecipe = PlainValidator(_as_recipe)
"""Validate a field by its kind."""


# --- specs of runs ----------------------------------------------------------------------------------------------------

MAX_SEED = 2**31 - 1

USUAL_AXES = ("lr", "wd")
"""Axes that each spec has a field for, and that strategies scale."""

RUN_PLACEHOLDERS = ("seed", "out", "id", "strategy", "devices")
"""Placeholders of every run beside its axes."""

RESUME_PLACEHOLDERS = ("checkpoint", "step")
"""Placeholders of words that resume a run."""


class StrategySpec(StrictModel):
    """Scaling strategy: `s` in [0, 1] (0 neural tangent, 1 maximal update), or None for standard.

    Attributes:
        mlp_factor: whether the MLP's ratio M enters the scaling factors.
    """

    s: Annotated[float, Field(ge=0, le=1)] | None
    mlp_factor: Literal["ignore", "include"] = "ignore"

    @model_validator(mode="before")
    @classmethod
    def _standard_has_no_factors(cls, data: object) -> object:
        """Drop `mlp_factor` from the standard strategy, which has no factors: equal runs must have one id."""
        standard = isinstance(data, dict) and data.get("s", 0.0) is None and data.get("mlp_factor") == "include"
        return {**data, "mlp_factor": "ignore"} if standard and isinstance(data, dict) else data


AxisNumber = Annotated[int, Field(ge=0)] | NonNegative
"""A value of an axis; whole numbers stay such."""


class RunSpec(Recipe):
    """One run: a recipe with its strategy, a point and a seed.

    Each kind has a subclass of its own with the fields of both, see `spec_class`.

    Attributes:
        lr, wd: 1 and 0 where the runs are given none.
        axes: values of further axes by name, as commands and functions have; whole numbers as such.
        linear: those of them that have a linear scale.
        variant: what tells it from other variants of its sweep, of a command or function.
    """

    strategy: StrategySpec
    lr: PositiveFloat
    wd: NonNegative
    axes: dict[str, AxisNumber] = Field(default_factory=dict)
    linear: Annotated[tuple[str, ...], NotInId(), Field(strict=False)] = ()
    variant: Annotated[dict[str, str | int | float], OmitFromIdAt({})] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]

    written_last: ClassVar[tuple[str, ...]] = (
        *(*Recipe.written_last, "strategy", "variant", "lr", "wd", "axes", "linear", "seed"),
    )

    recipe_class: ClassVar[type[Recipe]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if RunSpec in cls.__bases__:
            cls.recipe_class = cls.__bases__[0]
        cls.__hash__ = RunSpec.__hash__  # type: ignore[method-assign]

    @classmethod
    def of(cls, recipe: Recipe, strategy: StrategySpec, values: Mapping[str, float], seed: int) -> "RunSpec":
        """Return the spec of a run of a recipe, with its values of axes by name."""
        # dict() keeps the validated sub-models; model_dump would turn them into plain data.
        made = spec_class(type(recipe))(**dict(recipe), strategy=strategy, lr=1.0, wd=0.0, seed=seed)
        return made.with_values({**made.values, **values}, seed)

    def __hash__(self) -> int:
        return hash((self.lr, self.wd, self.seed))  # pydantic's hashes all fields, and `axes` has no hash

    @property
    def point(self) -> Point:
        return Point({name: getattr(self, name) for name in self.info.axes} | self.axes)

    @property
    def run_id(self) -> str:
        """12 hex digits that name the run and its folder."""
        return id_of_run(family_identity(self), self.values, self.seed, self.linear)

    @property
    def family(self) -> str:
        """`family_id`, as runs have it."""
        return self.family_id

    @property
    def family_id(self) -> str:
        """12 hex digits shared by all runs that differ only in lr, wd and seed."""
        return digest(family_identity(self))

    @property
    def canonical(self) -> Self:
        """A representative of all runs with this recipe, for measurements of time and memory."""
        # Strategy, point and seed hardly change time and memory.
        return self.model_copy(update={"strategy": StrategySpec(s=None)}).with_values(
            {**self.values, "lr": 1.0, "wd": 0.0}, 0
        )

    @property
    def values(self) -> dict[str, float]:
        """lr, wd and the values of further axes; those in fields of the recipe aside."""
        return {"lr": self.lr, "wd": self.wd, **self.axes}

    @property
    def base(self) -> "RunSpec":
        """A spec of its family, as runs have one."""
        return self

    def value(self, name: str) -> float:
        """Return the value along an axis, which may be a field of the recipe, such as schedule.warmup_steps."""
        values = self.values
        return values[name] if name in values else float(field_of(self, name))

    def with_point(self, point: Point, seed: int) -> Self:
        """Return the spec of the same family at another point and seed."""
        return self.with_values({**self.values, **point.values}, seed)

    def with_values(self, values: Mapping[str, float], seed: int) -> Self:
        """Return the spec with other `values`, and another seed."""
        further = {name: value for name, value in values.items() if name not in USUAL_AXES}
        if self.trainable == BUILT_IN and further:
            changed = self
            for name, value in further.items():
                changed = with_field(changed, name, value)
            return changed.model_copy(update={"lr": values["lr"], "wd": values["wd"], "seed": seed})
        spec = self.model_copy(update={"lr": values["lr"], "wd": values["wd"], "axes": further, "seed": seed})
        spec.keep_info(self.info)
        return spec


@cache
def spec_class(recipe: type[Recipe]) -> type[RunSpec]:
    """Return the class of runs of a recipe: the one that it declares, else one made from its fields."""
    declared = (each for each in RunSpec.__subclasses__() if each.recipe_class is recipe)
    made = next(declared, None) or type(f"{recipe.__name__}Run", (recipe, RunSpec), {"__module__": recipe.__module__})
    assert issubclass(made, RunSpec)
    return made


def validated_spec(data: Any, source: str | Source) -> RunSpec:
    """Return the spec that plain data describe, such as the content of spec.json.

    Raises:
        InputError: they do not fit their kind; the message names `source`.
    """
    schema: type[Recipe] = kind_of(data).schema
    return validate(spec_class(schema), data, source)


def family_identity(spec: RunSpec) -> dict[str, object]:
    """Return the fields by which a run's family enters the hash of its id."""
    # Values of axes enter a run id by their rounded log2 instead, see `point_identity`.
    return {k: v for k, v in identity(spec).items() if k not in (*USUAL_AXES, "axes", "seed")}


def family_of(spec: RunSpec, axes: Iterable[str]) -> str:
    """Return the id of the family of a run in a sweep with these axes: of the fields that are no axes of it."""
    fields = axis_fields(spec, axes)
    if not fields:
        return spec.family_id
    identity_ = family_identity(spec)
    for name in fields:
        part: Any = identity_
        *parents, last = name.split(".")
        for parent in parents:
            part = part.get(parent, {})
        part.pop(last, None)
    return digest({"axes": [*fields], **identity_})


def axis_fields(spec: RunSpec, axes: Iterable[str]) -> tuple[str, ...]:
    """Return the axes that are fields of the recipe, sorted."""
    return tuple(sorted(name for name in axes if name not in spec.values))


def field_of(recipe: StrictModel, name: str) -> Any:
    """Return the value of a field by its dotted name.

    Raises:
        AttributeError: there is none.
    """
    return reduce(getattr, name.split("."), recipe)


SomeModel = TypeVar("SomeModel", bound=StrictModel)


def with_field(recipe: SomeModel, name: str, value: float) -> SomeModel:
    """Return a model with a number in the field of a dotted name; a whole one if the field is."""
    head, _, rest = name.partition(".")
    old = getattr(recipe, head)
    new = with_field(old, rest, value) if rest else round(value) if isinstance(old, int) else value
    return recipe.model_copy(update={head: new})


def variable_of(name: str) -> str:
    """Return the variable that has the value of an axis or variant."""
    return "ETTSWEEP_" + re.sub(r"\W", "_", name).upper()


def id_of_run(family: dict[str, object], values: Mapping[str, float], seed: int, linear: Collection[str] = ()) -> str:
    """Return the id of a run: of a family, given by its `family_identity`, at a point with a seed."""
    return digest(family | point_identity(values, linear) | {"seed": seed})


def point_identity(values: Mapping[str, float], linear: Collection[str] = ()) -> dict[str, object]:
    """Return the fields by which values of axes enter the hash of a run id: their log2, or exact values.

    Whole numbers are exact, and so are values of axes with a linear scale, and 0, beside those of lr and wd.
    """
    return dict(_axis_identity(name, value, name in linear) for name, value in values.items())


def _axis_identity(name: str, value: float, is_linear: bool) -> tuple[str, object]:
    is_exact = isinstance(value, int) or is_linear or (not value and name not in USUAL_AXES)
    return (name, value) if is_exact else (f"log2_{name}", log2(value))


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1, strict=False)]
