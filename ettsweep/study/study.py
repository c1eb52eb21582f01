"""What is searched: points of a lattice in (log2 lr, log2 wd), requests, and the search of each family."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, field_serializer, model_validator

from ettsweep.config import hidden
from ettsweep.console import parse_number, power
from ettsweep.errors import InputError
from ettsweep.runs.spec import LOG2_DIGITS, MAX_SEED, Recipe, RunSpec, StrategySpec, log2
from ettsweep.schema import NonNegative, PositiveFloat, StrictModel, validate
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.study.criterion import Criterion, CriterionOptions, resolve
from ettsweep.trainer.models.registry import model_name
from ettsweep.trainer.tasks.registry import Metric, bound, task_kind

ROUNDED, PRINTED = 1e-6, 2e-3
"""Distance in log2 within which a point from elsewhere means a known one: maps between strategies round, and tables
print four digits, which is what people type."""


@dataclass(frozen=True)
class Point:
    """A position on the lattice; wd may be 0 where its axis is fixed.

    Points are equal, and one key of a dictionary, where ids round them alike.
    """

    lr: float = field(compare=False)
    wd: float = field(compare=False)
    key: tuple[float | None, float | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (log2(self.lr), log2(self.wd)))

    def __iter__(self) -> Iterator[float]:
        return iter((self.lr, self.wd))

    def __str__(self) -> str:
        return f"({power(self.lr)}, {power(self.wd)})"

    def log2(self) -> tuple[float, float]:
        """Return its coordinates; -inf stands for wd 0."""
        return math.log2(self.lr), math.log2(self.wd) if self.wd > 0 else -math.inf

    def moved(self, lr_steps: float, wd_steps: float) -> "Point":
        """Return the point that many powers of two away."""
        return Point(self.lr * 2.0**lr_steps, self.wd * 2.0**wd_steps)

    def apart(self, other: "Point") -> float:
        """Return the distance to another point in log2, along the axis on which it is larger."""
        return max(0.0 if a == b else abs(a - b) for a, b in zip(self.log2(), other.log2(), strict=True))


def snap(point: Point, known: Collection[Point], within: float = ROUNDED) -> Point:
    """Return the known point that one from elsewhere means, the nearest within a distance, else the point itself."""
    if point in known:
        return point
    nearest = min(known, key=point.apart, default=point)
    return nearest if point.apart(nearest) <= within else point


FARTHEST = 64
"""Offset from a centre in log2, beyond which lr and wd would leave the range of floats."""

Offset = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)]


class Axis(StrictModel):
    """Log2 offsets from the centre: low, low + step, ... up to high; a fixed axis holds the centre alone."""

    low: Offset = 0.0
    high: Offset = 0.0
    step: Annotated[float, Field(ge=2**-10, le=64)] = 1.0
    fixed: bool = False

    @model_validator(mode="after")
    def _not_empty(self) -> "Axis":
        if self.low > self.high:
            raise ValueError(f"empty range: {self.low:g} is above {self.high:g}")
        if not self.fixed and not self.offsets():
            raise ValueError(f"no multiple of the step {self.step:g} between {self.low:g} and {self.high:g}")
        return self

    def offsets(self) -> list[float]:
        """Return the offsets, multiples of the step, so that all ranges share one lattice."""
        if self.fixed:
            return [0.0]
        first, last = math.ceil(self.steps(self.low)), math.floor(self.steps(self.high))
        return [i * self.step for i in range(first, last + 1)]

    def steps(self, distance: float) -> float:
        """Return how many steps a distance in log2 is, to the digits that ids hold."""
        return round(distance / self.step, LOG2_DIGITS)

    def nearest(self, centre: float, value: float) -> float:
        """Return what lies whole steps from a centre, none where the axis is fixed, and nearest to a value."""
        if self.fixed or not centre or not value:
            return centre
        steps = round(math.log2(value / centre) / self.step)
        return float(centre * 2.0 ** (steps * self.step))

    def on(self, centre: float, value: float, within: float = ROUNDED) -> bool:
        """Say whether a value lies whole steps from a centre, up to a distance in log2."""
        nearest = self.nearest(centre, value)
        return value == nearest or (value > 0 and nearest > 0 and abs(math.log2(value / nearest)) <= within)


def expand(centre: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return all points of a grid around its centre, lr running slowest."""
    return [centre.moved(i, j) for i, j in product(lr_axis.offsets(), wd_axis.offsets())]


def neighbours(point: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return the neighbours that an optimum must beat: six on two free axes, two on one, none on none.

    With steps of one these are (2lr, wd) (lr, 2wd) (2lr, wd/2) (lr/2, 2wd) (lr, wd/2) (lr/2, wd); the diagonals
    (2lr, 2wd) and (lr/2, wd/2) are left out on purpose.
    """
    around = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]
    return [
        point.moved(i * lr_axis.step, j * wd_axis.step)
        for i, j in around
        if not (i and lr_axis.fixed) and not (j and wd_axis.fixed)
    ]


def parse_point(text: str, where: str) -> Point:
    """Parse `lr,wd`.

    Raises:
        InputError: it is not two numbers, lr positive and wd not negative.
    """
    try:
        lr, wd = map(parse_number, text.split(","))
    except ValueError:
        lr, wd = 0.0, 0.0
    if not (0 < lr < math.inf and 0 <= wd < math.inf):
        raise InputError(f"{where}: LR,WD is expected, such as 2^-6,0.5, got {text!r}")
    return Point(lr, wd)


# --- requests and searches ------------------------------------------------------------------------------------------

Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1, strict=False)]


def _in_range(value: float) -> float:
    """Refuse what steps and maps would push out of the range of floats."""
    if value and not 1e-30 <= value <= 1e30:
        raise ValueError(f"a number between 1e-30 and 1e30 is expected, got {value!r}")
    return value


def _read(value: object) -> object:
    """Read a power of two as tables print it; what is none is left to the message for what is no number."""
    with suppress(ValueError):
        return parse_number(value) if isinstance(value, str) and value.startswith("2^") else value
    return value


class Centre(StrictModel):
    """Where a search starts, in the coordinates of its strategy."""

    lr: Annotated[PositiveFloat, BeforeValidator(_read), AfterValidator(_in_range)]
    wd: Annotated[NonNegative, BeforeValidator(_read), AfterValidator(_in_range)]


Centres = dict[str, Centre]

ANYWHERE = Centre(lr=1e-3, wd=0.0)
"""A start for whoever asks a grid about its data or its memory, which depend on none."""


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


def with_corpus(sweep_spec: SweepSpec) -> SweepSpec:
    """Return the request with the digest of the text at hand, which is part of what its runs train.

    Raises:
        DataMissingError: there is no text.
    """
    recipe = sweep_spec.recipe
    task = bound(recipe.task, sweep_spec.data)
    return sweep_spec.model_copy(update={"recipe": recipe.model_copy(update={"task": task})})
