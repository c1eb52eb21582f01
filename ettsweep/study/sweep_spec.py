"""What a sweep is asked for, resolved: recipe, centres, axes, seeds; and where it trains."""

from typing import Annotated

from pydantic import Field, field_serializer

from ettsweep.config import hidden
from ettsweep.runs.spec import Recipe, RunSpec, Seeds, StrategySpec
from ettsweep.schema import StrictModel, validate
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.criterion import CriterionOptions, resolve
from ettsweep.study.lattice import Axis, Centres, Point, expand
from ettsweep.study.study import Study
from ettsweep.trainer.tasks.registry import bound


class SweepSpec(StrictModel):
    """What was asked for, resolved: recipe, a centre for each strategy, axes and seeds; and where it trains.

    `launch`, `launch_set` and `data` are where later commands train by default; they are in no run's id. The values of
    environment variables are not kept. `criterion` is what is stated of how verdicts are given; it is in no id either.
    Where it is `searched`, none of the points within its ranges is asked for by itself: they bound what is proposed.
    """

    grid: str
    recipe: Recipe
    mlp_factor: str
    centres: Centres
    lr: Axis
    wd: Axis
    seeds: Seeds
    criterion: CriterionOptions | None = None
    searched: bool = False
    data: str | None = None
    launch: str = "local"
    launch_set: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_serializer("launch_set")
    def _kept(self, sets: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(hidden, sets))

    @property
    def place(self) -> tuple[str, tuple[str, ...], str | None]:
        """Where it trains, as it is kept."""
        return self.launch, self._kept(self.launch_set), self.data

    def searches(self, sweep: str = "") -> list["Study"]:
        """Return one search for each strategy, in the name of a sweep."""
        found = []
        for name, centre in self.centres.items():
            scaling = {"s": parse_strategy(name), "mlp_factor": self.mlp_factor}
            strategy = validate(StrategySpec, scaling, "mlp_factor")
            base = RunSpec(**dict(self.recipe), **dict(centre), strategy=strategy, seed=self.seeds[0])
            points = tuple(expand(Point(centre.lr, centre.wd), self.lr, self.wd))
            asked: tuple[Point, ...] = () if self.searched else points
            box = (points[0], points[-1]) if self.searched else ()
            criterion = resolve([self.criterion])
            found.append(Study(base, self.lr, self.wd, self.seeds, asked, sweep, criterion, box))
        return found

    def specs(self) -> list[RunSpec]:
        """Return all runs, strategy by strategy and seed by seed, so that whole points finish early."""
        return [spec for study in self.searches() for spec in study.specs()]


def with_corpus(sweep_spec: SweepSpec) -> SweepSpec:
    """Return the request with the digest of the text at hand, which is part of what its runs train.

    Raises:
        DataMissingError: there is no text.
    """
    recipe = sweep_spec.recipe
    task = bound(recipe.task, sweep_spec.data)
    return sweep_spec.model_copy(update={"recipe": recipe.model_copy(update={"task": task})})
