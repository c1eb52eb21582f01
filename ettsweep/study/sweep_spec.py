"""SweepSpec: a resolved grid file, with recipe, centres, ranges, seeds and data."""

from typing import Annotated

from pydantic import SerializeAsAny

from ettsweep.runs.point import Point
from ettsweep.runs.spec import Recipe, RunSpec, Seeds, StrategySpec, ValidatedRecipe, kind_of
from ettsweep.schema import StrictModel, validate
from ettsweep.strategies.factors import MlpFactor
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.criterion import CriterionOptions, resolve_criterion
from ettsweep.study.lattice import Axis, AxisNumber, expand
from ettsweep.study.study import Study


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
        for name, centre in self.centres.items():
            scaling = {"s": parse_strategy(name), "mlp_factor": self.mlp_factor}
            strategy = validate(StrategySpec, scaling, "mlp_factor")
            base = RunSpec.of(self.recipe, strategy, centre, self.seeds[0])
            base = base.model_copy(update={"linear": linear}) if linear else base
            axes = {axis_name: axis.around(centre[axis_name]) for axis_name, axis in self.axes.items()}
            points = tuple(expand(Point(centre), axes))
            # With a sampler, the ranges only bound what it may suggest.
            grid_points: tuple[Point, ...] = () if self.searched else points
            # `expand` runs from the lowest values to the highest: these are opposite corners.
            box = (points[0], points[-1]) if self.searched else ()
            criterion = resolve_criterion([self.criterion])
            studies.append(Study(base, axes, self.seeds, grid_points, sweep, criterion, box))
        return studies

    def specs(self) -> list[RunSpec]:
        """Return all runs by strategy, then point, then seed: in this order whole points finish early."""
        return [spec for study in self.studies() for spec in study.specs()]

    def bound(self) -> "SweepSpec":
        """Return the spec with its recipe bound to the data or code at hand, whose digests are part of the run ids.

        Raises:
            DataMissingError: they are missing.
        """
        return self.model_copy(update={"recipe": kind_of(self.recipe).bind(self.recipe, self.data)})

    def check_axes(self) -> str:
        """Return a note on the values of all points, see `Kind.check_axes`; it raises the same errors."""
        values = {
            name: [value for centre in self.centres.values() for value in axis.grid(centre[name])]
            for name, axis in self.axes.items()
        }
        return kind_of(self.recipe).check_axes(self.recipe, values, [*self.centres])

    def check_data(self, *, count: bool = False) -> None:
        """Check that workers can find the data of its runs; with `count`, also that they are whole, by quick counts.

        Raises:
            DataMissingError: they are missing or do not fit.
        """
        kind_of(self.recipe).check_data(self.recipe, self.data, count)
