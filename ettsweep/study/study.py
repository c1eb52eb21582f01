"""What is searched: points of a lattice in (log2 lr, log2 wd), requests, and the search of each family."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ettsweep.runs.spec import RunSpec, Seeds
from ettsweep.schema import validate
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.criterion import Criterion, CriterionOptions
from ettsweep.study.lattice import Axis, Point
from ettsweep.trainer.models.registry import model_name
from ettsweep.trainer.tasks.registry import Metric, task_kind


@dataclass(frozen=True)
class Study:
    """The search of one family: its lattice, its seeds, and the points that were asked for.

    Attributes:
        base: the run of the centre with the first seed.
        points: those that grids asked for, over all seeds.
        sweep: the name under which it was asked for; empty before it has one.
        criterion: what makes its verdict optimal.
        box: two opposite corners of the ranges that proposers may choose points from.
        proposed: points that proposers chose, first to last.
        start: where the search started; None before it did.
    """

    base: RunSpec
    lr: Axis
    wd: Axis
    seeds: Seeds
    points: tuple[Point, ...]
    sweep: str = ""
    criterion: Criterion = field(default_factory=Criterion)
    box: tuple[Point, ...] = ()
    proposed: tuple[Point, ...] = ()
    start: Point | None = None

    @cached_property
    def family(self) -> str:
        return self.base.family_id

    @cached_property
    def model(self) -> str:
        return model_name(self.base.model)

    @cached_property
    def strategy(self) -> str:
        return strategy_name(self.base.strategy.s)

    @property
    def key(self) -> tuple[str, str]:
        """Sweep and family: there is one search of both."""
        return self.sweep, self.family

    @property
    def title(self) -> str:
        """What people read of it: sweep and strategy."""
        return f"{self.sweep or self.model} {self.strategy}"

    @property
    def free(self) -> bool:
        """Whether there is an axis to search along."""
        return not (self.lr.fixed and self.wd.fixed)

    def holds(self, point: Point) -> bool:
        """Say whether a point lies on the lattice, within the ranges asked for or beyond."""
        return self.lr.on(self.base.lr, point.lr) and self.wd.on(self.base.wd, point.wd)

    @property
    def centre(self) -> Point:
        """The point that its lattice is counted from."""
        return Point(self.base.lr, self.base.wd)

    @cached_property
    def asked(self) -> dict[Point, Seeds]:
        """The points that it asks for, each with its seeds."""
        return dict.fromkeys(self.proposed, self.seeds_proposed) | dict.fromkeys(self.points, self.seeds)

    @property
    def seeds_proposed(self) -> Seeds:
        """The seeds of a proposal: the first one; by the paper's rule, which does not race, all of them."""
        return self.seeds if self.criterion.rule == "paper" else self.seeds[:1]

    @cached_property
    def numbers(self) -> dict[Point, int]:
        """The number of each proposal in the order in which they were named; the first is 1."""
        return {point: number for number, point in enumerate(self.proposed, 1)}

    def asks(self, point: Point, seed: int) -> bool:
        """Say whether it asks for a run."""
        return seed in self.asked.get(point, ())

    def specs(self) -> list[RunSpec]:
        """Return all runs that it asks for."""
        return [self.base.with_point(lr, wd, seed) for (lr, wd), seeds in self.asked.items() for seed in seeds]

    @property
    def metric(self) -> Metric:
        """What its runs are compared by."""
        return task_kind(self.base.task).score

    def judged_by(self, stated: CriterionOptions) -> "Study":
        """Return the same search with what is stated in place of what its criterion has."""
        return replace(self, criterion=stated.over(self.criterion))

    def run(self, lr: float | None = None, wd: float | None = None, seed: int | None = None) -> RunSpec:
        """Return one run; what is not given is the centre's, or the first seed.

        Raises:
            InputError: a value that the schema refuses.
        """
        given = {"lr": lr, "wd": wd, "seed": seed}
        data = self.base.model_dump() | {key: value for key, value in given.items() if value is not None}
        return validate(RunSpec, data, "run")


def titles(studies: Sequence[Study]) -> dict[tuple[str, str], str]:
    """Return what people read of each of some searches, by its key: the model too, where they are of several."""
    several = len({study.model for study in studies}) > 1
    return {
        study.key: f"{study.sweep} {study.model} {study.strategy}"
        if several and study.model != study.sweep
        else study.title
        for study in studies
    }
