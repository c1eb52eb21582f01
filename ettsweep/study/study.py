"""Study: one family searched in one sweep, on a lattice of points of one or two axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ettsweep.metric import Metric
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.spec import RunSpec, Seeds, family_of, validated_spec
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.criterion import Criterion, CriterionOptions
from ettsweep.study.lattice import EDGE_AXIS, POINT_OPTIONS, Axes, Axis, free_axes, is_traded_the_same_way, shifted

VariantValues = Mapping[str, str | int | float]
"""Values of `vary:` by name."""


def variant_name(strategy: str, values: VariantValues) -> str:
    """Return the name of a variant: that of its strategy, or its values, such as optimizer=muon, or both."""
    stated = " ".join(f"{name}={value}" for name, value in values.items())
    return " ".join(filter(None, ["" if values and strategy == "standard" else strategy, stated]))


def strategy_of(spec: RunSpec, values: VariantValues | None = None) -> str:
    """Return the name of a run's strategy or variant; `values` are by default those in its spec."""
    return variant_name(strategy_name(spec.strategy.s), spec.variant if values is None else values)


StudyKey = tuple[str, str]
"""Sweep and family: unique among studies."""


@dataclass(frozen=True)
class Study:
    """One family searched in one sweep: its lattice, its seeds, and the requested points.

    Attributes:
        base: the run at the centre with the first seed.
        axes: ranges and steps of the lattice.
        seeds: seeds of each grid point.
        grid_points: points of grids, each requested with all seeds.
        sweep: name of the sweep; empty before it has one.
        criterion: of its verdict.
        box: two opposite corners of the ranges in which samplers suggest points; empty without a sampler.
        suggested_points: points that samplers suggested, in order.
        start: point from which the sampler started; None before.
        stated_seeds: for scores in a table, all points with the seeds of each.
        variant: values that tell it from others of its sweep.
        variant_number: its place among these, from 0.
    """

    base: RunSpec
    axes: Axes
    seeds: Seeds
    grid_points: tuple[Point, ...]
    sweep: str = ""
    criterion: Criterion = field(default_factory=Criterion)
    box: tuple[Point, ...] = ()
    suggested_points: tuple[Point, ...] = ()
    start: Point | None = None
    stated_seeds: Mapping[Point, Seeds] = field(default_factory=dict)
    variant: VariantValues = field(default_factory=dict)
    variant_number: int = 0

    @cached_property
    def family(self) -> str:
        return family_of(self.base, self.axes)  # cached, since it hashes the whole spec

    @cached_property
    def model(self) -> str:
        return self.base.info.labels.model

    @cached_property
    def strategy(self) -> str:
        """Name of its strategy or variant."""
        return strategy_of(self.base, self.variant)

    @property
    def key(self) -> StudyKey:
        """Sweep and family."""
        return self.sweep, self.family

    @property
    def title(self) -> str:
        """Name of the study for people: sweep, and strategy if there may be several."""
        return f"{self.sweep or self.model} {self.strategy}" if self.has_strategies else self.label

    @property
    def has_strategies(self) -> bool:
        """`True` if there may be several strategies; else the name of the only one says nothing."""
        return self.base.info.has_strategies or bool(self.variant)

    @property
    def label(self) -> str:
        """Its name among others of its sweep, for people: the strategy, or the sweep's own name."""
        return self.strategy if self.has_strategies else self.sweep or self.model

    @property
    def has_free_axis(self) -> bool:
        """`True` if an axis is not fixed, so that there is something to search."""
        return bool(self.free)

    @cached_property
    def free(self) -> dict[str, Axis]:
        """The axes that are not fixed; lr first, in whatever order they are stated."""
        free = free_axes(self.axes)
        return {name: free[name] for name in sorted(free, key=lambda name: name != EDGE_AXIS)}

    @cached_property
    def map_axes(self) -> list[str]:
        """The one or two axes that a map has: the free ones, of three."""
        names = list(self.axes)
        return names if len(names) < 3 else [*self.free, *(name for name in names if name not in self.free)][:2]

    def point_of(self, run: Run | RunSpec) -> Point:
        """Return the point of a run of the family."""
        if [*run.point.values] == [*self.axes]:
            return run.point  # made once: there may be 100,000 runs
        return Point({name: run.value(name) for name in self.axes})

    def has(self, run: Run | RunSpec) -> bool:
        """`True` if the study requests a run of the family."""
        return self.requests(self.point_of(run), run.seed)

    def is_on_lattice(self, point: Point) -> bool:
        """`True` if the point lies on the lattice, inside the requested ranges or not."""
        centre = self.centre
        return all(axis.is_on_lattice(centre[name], point[name]) for name, axis in self.axes.items())

    def cell(self, point: Point, origin: Point) -> tuple[int, int] | None:
        """Return the cell of a point on a map whose hexagons touch those of neighbours; None off the lattice.

        These are steps from `origin` along the first and the second axis, downwards where both are traded the same way.
        A map between strategies can shift even a fixed axis: its steps count in those of the free one.
        """
        axes = {name: next(iter(self.free.values()), axis) if axis.fixed else axis for name, axis in self.axes.items()}
        steps = dict[str, int]()
        for name, axis in axes.items():
            if origin[name] == point[name]:
                steps[name] = 0
            elif not ((origin[name] and point[name]) or axis.has_zero):  # 0 is infinitely many steps away
                return None
            else:
                steps[name] = round(axis.distance(point[name], origin[name]))
        # `snap_point` tolerates rounding in values; a point between two positions does not come back.
        if snap_point(shifted(origin, axes, steps), [point]) != point:
            return None
        first, second, *_ = (*(steps[name] for name in self.map_axes), 0)
        return first, -second if is_traded_the_same_way(self.axes) else second

    @cached_property
    def centre(self) -> Point:
        """Origin of the lattice."""
        return self.point_of(self.base)

    @cached_property
    def seeds_by_point(self) -> dict[Point, Seeds]:
        """All requested points, each with its seeds."""
        if self.stated_seeds:
            return dict(self.stated_seeds)
        # Grid points take precedence: one that was suggested too has all seeds.
        return dict.fromkeys(self.suggested_points, self.suggestion_seeds) | dict.fromkeys(self.grid_points, self.seeds)

    @property
    def suggestion_seeds(self) -> Seeds:
        """Seeds of a suggested point: the first, to which racing adds; all by the paper's rule, which has no race."""
        return self.seeds if self.criterion.rule == "paper" else self.seeds[:1]

    @cached_property
    def suggestion_numbers(self) -> dict[Point, int]:
        """Number of each suggested point in the order of suggestion, from 1."""
        return {point: number for number, point in enumerate(self.suggested_points, 1)}

    def requests(self, point: Point, seed: int) -> bool:
        """`True` if the run at this point with this seed is requested."""
        return seed in self.seeds_by_point.get(point, ())

    def specs(self) -> list[RunSpec]:
        """Return the specs of all requested runs."""
        return [self.base.with_point(point, seed) for point, seeds in self.seeds_by_point.items() for seed in seeds]

    @property
    def metric(self) -> Metric:
        """Metric by which runs are compared."""
        return self.base.info.metric

    def with_criterion(self, options: CriterionOptions) -> "Study":
        """Return the study with `options` applied to its criterion.

        Raises:
            InputError: they state a bound, but its runs have no seed; or a share above 1.
        """
        options.for_runs(self.base.info.metric, seeded=self.base.info.seeded)
        return replace(self, criterion=options.applied_to(self.criterion))

    def spec_at(self, lr: float | None = None, wd: float | None = None, seed: int | None = None) -> RunSpec:
        """Return the spec of one run, by default at the centre and with the first seed.

        Raises:
            InputError: the schema refuses a value.
        """
        overrides = {"lr": lr, "wd": wd, "seed": seed}
        # Validated, unlike `with_point`: these values may come from a user.
        data = self.base.model_dump() | {key: value for key, value in overrides.items() if value is not None}
        return validated_spec(data, POINT_OPTIONS)


def study_titles(studies: Sequence[Study]) -> dict[tuple[str, str], str]:
    """Return the title of each study by its key; it names the model if the studies have several."""
    has_several_models = len({study.model for study in studies}) > 1
    return {
        # A sweep named after its model names it already.
        study.key: study.title.replace(study.sweep, f"{study.sweep} {study.model}", 1)
        if has_several_models and study.sweep and study.model != study.sweep
        else study.title
        for study in studies
    }


def shown_strategy(spec: RunSpec) -> str:
    """Return the name of a run's strategy, for people; empty if there is only one."""
    return variant_name(strategy_name(spec.strategy.s) if spec.info.has_strategies else "", spec.variant)
