"""SweepSpec: a resolved grid file, with recipe, centres, ranges, seeds and data."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from pydantic import Field, SerializeAsAny

from ettsweep.runs.point import Point
from ettsweep.runs.spec import BUILT_IN, OwnCode, Recipe, RunSpec, Seeds, StrategySpec, ValidatedRecipe, kind_of
from ettsweep.schema import StrictModel, validate
from ettsweep.strategies.factors import MlpFactor
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.criterion import CriterionOptions, resolve_criterion
from ettsweep.study.lattice import Axis, AxisNumber, expand
from ettsweep.study.study import Study, variant_name


class Variant(StrictModel):
    """A variant of a sweep: values of `vary:`, the recipe with them, and its centres by strategy."""

    values: dict[str, str | int | float]
    recipe: Annotated[SerializeAsAny[Recipe], ValidatedRecipe]
    centres: dict[str, dict[str, AxisNumber]]

    @property
    def name(self) -> str:
        """Its name, without that of a strategy; empty without values."""
        return variant_name("", self.values)


class SweepSpec(StrictModel):
    """A resolved grid file.

    Attributes:
        grid: name of the grid file.
        recipe: what all runs train; with strategy, point and seed it makes a RunSpec.
        mlp_factor: see `StrategySpec`.
        centres: centre of the ranges for each strategy.
        axes: ranges around the centres, or lists.
        seeds: seeds of each point.
        criterion: stated options of the verdict; in no run's id.
        searched: `True` if a sampler suggests points within the ranges; else all of their points are requested.
        data: path of the data set; in no run's id.
        variants: of `vary:`; recipe and centres are then those of the first.
    """

    grid: str
    recipe: Annotated[SerializeAsAny[Recipe], ValidatedRecipe]
    mlp_factor: MlpFactor
    centres: dict[str, dict[str, AxisNumber]]
    axes: dict[str, Axis]
    seeds: Seeds
    criterion: CriterionOptions | None = None
    searched: bool = False
    data: str | None = None
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()

    @property
    def parts(self) -> tuple[Variant, ...]:
        """Its variants; one without values if it has none."""
        return self.variants or (Variant(values={}, recipe=self.recipe, centres=self.centres),)

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The recipe of each variant by its name."""
        return {part.name: part.recipe for part in self.parts}

    def with_recipes(self, change: Callable[[Variant], Recipe]) -> "SweepSpec":
        """Return the spec with another recipe for each variant, `change` of it."""
        parts = tuple(part.model_copy(update={"recipe": change(part)}) for part in self.parts)
        return self.model_copy(update={"recipe": parts[0].recipe, "variants": parts if self.variants else ()})

    def with_code(self, code: OwnCode) -> "SweepSpec":
        """Return the spec with other own code, that of all variants."""
        return self.with_recipes(lambda part: kind_of(part.recipe).with_code(part.recipe, code))

    @property
    def names(self) -> dict[str, dict[str, float]]:
        """The centre of each variant or strategy by its name."""
        parts = ((part.values, name, centre) for part in self.parts for name, centre in part.centres.items())
        return {variant_name(name, values): centre for values, name, centre in parts}

    @property
    def data_paths(self) -> dict[str, str]:
        """The path of its data by kind of task, as far as it has one."""
        return {self.recipe.info.data_kind: self.data} if self.data else {}

    def with_criterion(self, options: CriterionOptions) -> "SweepSpec":
        """Return the spec with `options` in place of those of its criterion.

        Raises:
            InputError: they state a bound, but its runs have no seed; or a share above 1.
        """
        options.for_runs(self.recipe.info.metric, seeded=self.recipe.info.seeded)
        criterion = options.applied_to(self.criterion or CriterionOptions())
        return self.model_copy(update={"criterion": criterion or None})

    def studies(self, sweep: str = "") -> list["Study"]:
        """Return one study for each strategy, as part of the sweep of this name."""
        studies, linear = [], tuple(name for name, axis in self.axes.items() if axis.scale == "linear")
        variants = ((each, item) for each in self.parts for item in each.centres.items())
        for number, (part, (name, centre)) in enumerate(variants):
            scaling = {"s": parse_strategy(name), "mlp_factor": self.mlp_factor}
            strategy = validate(StrategySpec, scaling, "mlp_factor")
            base = RunSpec.of(part.recipe, strategy, centre, self.seeds[0])
            # The fields of a shipped model have the values of its variant.
            own = {} if base.trainable == BUILT_IN else {"variant": part.values, "linear": linear}
            base = base.model_copy(update=own) if any(own.values()) else base
            axes = {axis_name: axis.around(centre[axis_name]) for axis_name, axis in self.axes.items()}
            points = tuple(expand(Point({axis: centre[axis] for axis in axes}), axes))
            # With a sampler, the ranges only bound what it may suggest.
            grid_points: tuple[Point, ...] = () if self.searched else points
            # `expand` runs from the lowest values to the highest: these are opposite corners.
            box = (points[0], points[-1]) if self.searched else ()
            criterion = resolve_criterion([self.criterion])
            study = Study(base, axes, self.seeds, grid_points, sweep, criterion, box)
            studies.append(replace(study, variant=part.values, variant_number=number))
        return studies

    def specs(self) -> list[RunSpec]:
        """Return all runs by strategy, then point, then seed: in this order whole points finish early."""
        return [spec for study in self.studies() for spec in study.specs()]

    def bound(self) -> "SweepSpec":
        """Return the spec with its recipes bound to the data or code at hand, whose digests are part of the run ids.

        Raises:
            DataMissingError: they are missing.
        """
        return self.with_recipes(lambda part: kind_of(part.recipe).bind(part.recipe, self.data))

    def check_axes(self) -> str:
        """Return a note on the values of all points, see `Kind.check_axes`; it raises the same errors."""
        notes = dict[str, None]()
        for part in self.parts:
            values = {
                name: [value for centre in part.centres.values() for value in axis.grid(centre[name])]
                for name, axis in self.axes.items()
            }
            notes[kind_of(part.recipe).check_axes(part.recipe, values, [*part.centres])] = None
        return "\n".join(filter(None, notes))

    def check_data(self, *, count: bool = False) -> None:
        """Check that workers can find the data of its runs; with `count`, also that they are whole, by quick counts.

        Raises:
            DataMissingError: they are missing or do not fit.
        """
        for part in self.parts:
            kind_of(part.recipe).check_data(part.recipe, self.data, count)
