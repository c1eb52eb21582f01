"""RunSpec: everything that changes the numbers of a run, and the run id, a hash of it.

A spec is resolved: it holds numbers instead of names, and every default. It holds nothing about machines: devices,
partitions and worker counts are in a launch profile, so a run has the same id wherever it trains.
"""

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ettsweep.powers import log2
from ettsweep.runs.contract import Recipe, kind_of
from ettsweep.runs.point import Point
from ettsweep.schema import NonNegative, PositiveFloat, Source, StrictModel, digest, identity, validate

MAX_SEED = 2**31 - 1


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
        """Drop `mlp_factor` from the standard strategy, which has no factors: equal training must have one id."""
        standard = isinstance(data, dict) and data.get("s", 0.0) is None and data.get("mlp_factor") == "include"
        return {**data, "mlp_factor": "ignore"} if standard and isinstance(data, dict) else data


class RunSpec(Recipe):
    """One run: a recipe with its strategy, a point (lr, wd) and a seed.

    Each kind has a subclass of its own with the fields of both, see `spec_class`.
    """

    strategy: StrategySpec
    lr: PositiveFloat
    wd: NonNegative
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]

    written_last: ClassVar[tuple[str, ...]] = (*Recipe.written_last, "strategy", "lr", "wd", "seed")

    recipe_class: ClassVar[type[Recipe]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if RunSpec in cls.__bases__:
            cls.recipe_class = cls.__bases__[0]

    @classmethod
    def of(cls, recipe: Recipe, strategy: StrategySpec, lr: float, wd: float, seed: int) -> "RunSpec":
        """Return the spec of a run of a recipe."""
        # dict() keeps the validated sub-models; model_dump would turn them into plain data.
        return spec_class(type(recipe))(**dict(recipe), strategy=strategy, lr=lr, wd=wd, seed=seed)

    @property
    def point(self) -> Point:
        return Point(self.lr, self.wd, self.info.has_wd)

    @property
    def run_id(self) -> str:
        """12 hex digits that name the run and its folder."""
        return id_of_run(family_identity(self), self.lr, self.wd, self.seed)

    @property
    def family_id(self) -> str:
        """12 hex digits shared by all runs that differ only in lr, wd and seed."""
        return digest(family_identity(self))

    @property
    def canonical(self) -> Self:
        """A representative of all runs with this recipe, for measurements of time and memory."""
        # Strategy, point and seed hardly change time and memory.
        return self.model_copy(update={"strategy": StrategySpec(s=None)}).with_point(1.0, 0.0, 0)

    def with_point(self, lr: float, wd: float, seed: int) -> Self:
        """Return the spec of the same family at another point and seed."""
        spec = self.model_copy(update={"lr": lr, "wd": wd, "seed": seed})
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
        InputError: they do not fit the kind that they name; `source` is named in the message.
    """
    schema: type[Recipe] = kind_of(data).schema
    return validate(spec_class(schema), data, source)


def family_identity(spec: RunSpec) -> dict[str, object]:
    """Return the fields by which a run's family enters the hash of its id."""
    # lr and wd enter a run id by their rounded log2 instead, see `point_identity`.
    return {k: v for k, v in identity(spec).items() if k not in ("lr", "wd", "seed")}


def id_of_run(family: dict[str, object], lr: float, wd: float, seed: int) -> str:
    """Return the id of a run: of a family, given by its `family_identity`, at a point with a seed."""
    return digest(family | point_identity(lr, wd) | {"seed": seed})


def point_identity(lr: float, wd: float) -> dict[str, object]:
    """Return the fields by which a point (lr, wd) enters the hash of a run id."""
    return {"log2_lr": log2(lr), "log2_wd": log2(wd)}


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1, strict=False)]
