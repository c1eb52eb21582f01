"""Sweep: all requests under one name, entry by entry, as in its file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from pydantic import Field, field_serializer

from ettsweep.config import hide_secrets
from ettsweep.errors import InputError, unknown_name
from ettsweep.metric import Metric
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.spec import OwnCode, RunSpec
from ettsweep.schema import StrictModel
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.criterion import Criterion, CriterionOptions, resolve_criterion
from ettsweep.study.grid_file import map_centres
from ettsweep.study.lattice import Axis, AxisNumber
from ettsweep.study.study import Study, variant_name
from ettsweep.study.sweep_spec import SweepSpec, Variant


class Suggestion(StrictModel):
    """Points that a sampler suggested at one time for one strategy.

    Attributes:
        strategy: name of the strategy.
        sampler: name of the sampler.
        points: suggested points; empty if the sampler is exhausted.
        reason: why these points, for people.
        start: point from which the sampler starts from now on; None leaves it unchanged.
    """

    strategy: str
    sampler: str
    points: Annotated[tuple[dict[str, AxisNumber], ...], Field(strict=False)] = ()
    reason: str = ""
    start: dict[str, AxisNumber] | None = None


class LaunchSettings(StrictModel):
    """Where the runs of a sweep train; in no run's id.

    Attributes:
        profile: a launch profile, by name or by its file.
        overrides: `KEY=VALUE` for fields of it. Values of environment variables may be secrets, and are written masked.
    """

    profile: str = "local"
    overrides: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_serializer("overrides")
    def _masked(self, overrides: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(hide_secrets, overrides))

    @property
    def masked(self) -> "LaunchSettings":
        """The settings as they are written."""
        return LaunchSettings.model_validate(self.model_dump())


class SweepEntry(StrictModel):
    """One entry of a sweep's file. All fields are optional, and later entries override earlier ones.

    Attributes:
        asked: a resolved grid file, added to those of earlier entries.
        launch: where runs train from then on.
        proposed: suggestions of samplers, added to those of earlier entries.
        criterion: options of the verdict; each field overrides that of earlier entries.
    """

    asked: SweepSpec | None = None
    launch: LaunchSettings | None = None
    proposed: Annotated[tuple[Suggestion, ...], Field(strict=False)] | None = None
    criterion: CriterionOptions | None = None


@dataclass(frozen=True)
class Sweep:
    """All requests under one name.

    Attributes:
        name: of the sweep.
        entries: of its file, in order.
    """

    name: str
    entries: tuple[SweepEntry, ...] = ()

    @cached_property
    def requests(self) -> tuple[SweepSpec, ...]:
        """Its resolved grid files, in order: one recipe, except for own code, and compatible lattices."""
        return tuple(entry.asked for entry in self.entries if entry.asked)

    @cached_property
    def sweep_specs(self) -> tuple[SweepSpec, ...]:
        """The requests with the last recipe of each variant, and the last code: they hold for all."""
        last = {name: recipe for request in self.requests for name, recipe in request.recipes.items()}
        latest = (request.with_recipes(lambda part: last[part.name]) for request in self.requests)
        return tuple(request.with_code(self.codes[-1]) if self.codes else request for request in latest)

    @property
    def codes(self) -> list[OwnCode]:
        """Its own code, present and past."""
        return [code for request in self.requests if (code := request.recipe.info.code)]

    @property
    def launch(self) -> LaunchSettings:
        """Where its runs train."""
        return next((entry.launch for entry in reversed(self.entries) if entry.launch), LaunchSettings())

    @property
    def metric(self) -> Metric:
        """Metric by which runs are compared."""
        return self.sweep_specs[0].recipe.info.metric

    @cached_property
    def criterion(self) -> Criterion:
        """Criterion of its verdicts: each field as stated last."""
        return resolve_criterion(
            options
            for entry in self.entries
            for options in (entry.asked.criterion if entry.asked else None, entry.criterion)
        )

    def criterion_changes(self, options: CriterionOptions | None) -> str:
        """Return the changes of the criterion by these options, for people; empty for none."""
        return options.applied_to(self.criterion).describe(self.metric, self.criterion) if options else ""

    def latest_spec(self, strategies: Sequence[str] = ()) -> SweepSpec:
        """Return a spec for some strategies, by default all of the sweep, with the latest ranges of each.

        New strategies get a mapped centre, and the sweep's latest ranges.

        Raises:
            InputError: there is no such strategy, or the strategies have different ranges.
        """
        last = self.sweep_specs[-1]
        latest = {name: sweep_spec for sweep_spec in self.sweep_specs for name in sweep_spec.names}
        if last.variants:
            return self._latest_variants(strategies, latest)
        stated_centres = {parse_strategy(name): sweep_spec.centres[name] for name, sweep_spec in latest.items()}
        centres = map_centres(strategies or list(latest), stated_centres, last.recipe)
        axes = self._common_axes([latest[name] for name in centres if name in latest], centres) or last.axes
        # Without a criterion: an old one, stated again, would override options that were recorded since.
        return last.model_copy(update={"centres": centres, "criterion": None, "axes": axes})

    def _latest_variants(self, names: Sequence[str], latest: Mapping[str, SweepSpec]) -> SweepSpec:
        """Return a spec for some variants, by default all, see `latest_spec`."""
        if unknown := [name for name in names if name not in latest]:
            raise unknown_name("variant", unknown[0], latest)
        wanted = names or list(latest)
        merged = dict[str, Variant]()
        for part in (part for sweep_spec in self.sweep_specs for part in sweep_spec.variants):
            before = merged.get(part.name, part)
            merged[part.name] = part.model_copy(update={"centres": before.centres | part.centres})
        variants = []
        for part in merged.values():
            centres = {name: c for name, c in part.centres.items() if variant_name(name, part.values) in wanted}
            variants += [part.model_copy(update={"centres": centres})] if centres else []
        last = self.sweep_specs[-1]
        axes = self._common_axes([latest[name] for name in wanted], wanted) or last.axes
        first = {"recipe": variants[0].recipe, "centres": variants[0].centres}
        return last.model_copy(update={**first, "variants": tuple(variants), "criterion": None, "axes": axes})

    def _common_axes(self, sweep_specs: Sequence[SweepSpec], names: Iterable[str]) -> dict[str, Axis] | None:
        if any(sweep_spec.axes != sweep_specs[0].axes for sweep_spec in sweep_specs):
            several = "variants" if sweep_specs[0].variants else "strategies"
            problem = f"its {several} have different ranges; choose one with --strategy"
            raise InputError(f"sweep {self.name}: {problem}: {', '.join(names)}")
        return sweep_specs[0].axes if sweep_specs else None

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """One study for each family, with the points and seeds of all its entries."""
        # In the order of request: suggested points have the first seed.
        seeds = tuple(dict.fromkeys(seed for sweep_spec in self.sweep_specs for seed in sweep_spec.seeds))
        merged: dict[str, Study] = {}
        for sweep_spec in self.sweep_specs:
            for study in sweep_spec.studies(self.name):
                # The first spec's centre stays the origin of the lattice; later centres lie whole steps from it.
                first = merged.setdefault(study.family, replace(study, seeds=seeds, criterion=self.criterion))
                points = dict.fromkeys(first.grid_points)
                # Mapped centres differ in the last bits: one point must not become two.
                points |= dict.fromkeys(snap_point(point, points) for point in study.grid_points)
                merged[study.family] = replace(first, grid_points=tuple(points), box=study.box or first.box)
        return tuple(
            replace(
                study,
                suggested_points=tuple(self.sampler_by_point(study)),
                start=self._sampler_start(study.strategy),
            )
            for study in merged.values()
        )

    def sampler_by_point(self, study: Study) -> dict[Point, str]:
        """Return the points suggested for a study, in order, each with the sampler that first suggested it."""
        grid_points = dict.fromkeys(study.grid_points)
        points: dict[Point, str] = {}
        for suggestion in self.suggestions:
            if suggestion.strategy == study.strategy:
                for values in suggestion.points:
                    points.setdefault(snap_point(Point(values), grid_points), suggestion.sampler)
        return points

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """All suggestions of samplers, in order."""
        return tuple(suggestion for entry in self.entries for suggestion in entry.proposed or ())

    def _sampler_start(self, strategy: str) -> Point | None:
        """Return the point from which the sampler started in the latest ranges of a strategy; None before it did."""
        start: Point | None = None
        ranges = tuple[object, ...]()
        for entry in self.entries:
            sweep_spec = entry.asked
            if sweep_spec and sweep_spec.searched and strategy in sweep_spec.names:
                previous, ranges = ranges, (sweep_spec.axes, sweep_spec.names[strategy])
                if ranges != previous:
                    start = None  # new ranges: the sampler starts afresh
            for suggestion in entry.proposed or ():
                if suggestion.strategy == strategy:
                    # A suggestion without a start goes on from the one before.
                    start = Point(suggestion.start) if suggestion.start else start
        return start

    def is_exhausted(self, strategy: str, sampler: str) -> bool:
        """`True` if the sampler is exhausted for a strategy, and nothing was requested of the strategy since."""
        for entry in reversed(self.entries):
            if entry.asked and strategy in entry.asked.names:
                return False  # requested again since the sampler gave up
            for suggestion in entry.proposed or ():
                if suggestion.strategy == strategy:
                    return suggestion.sampler == sampler and not suggestion.points
        return False

    def specs(self) -> Iterator[RunSpec]:
        """Yield the specs of all requested runs."""
        for study in self.studies:
            yield from study.specs()

    def covers(self, sweep_spec: SweepSpec) -> bool:
        """`True` if a compatible spec adds nothing: no point, seed, path of data or change of the criterion."""
        last = self.sweep_specs[-1]
        if last.data != sweep_spec.data or self.criterion_changes(sweep_spec.criterion):
            return False
        recipes = {name: recipe for each in self.sweep_specs for name, recipe in each.recipes.items()}
        if last.recipe.info.code and any(recipes.get(name) != new for name, new in sweep_spec.recipes.items()):
            return False  # such as how runs resume, or the copy that they train in
        studies = {study.family: study for study in self.studies}
        return all(
            (own_study := studies.get(new_study.family))
            and all(
                snap_point(point, own_study.grid_points) in own_study.grid_points for point in new_study.grid_points
            )
            # Without a sampler a spec has no box, and so no new ranges to search.
            and new_study.box in ((), own_study.box)
            and set(new_study.seeds) <= set(own_study.seeds)
            for new_study in sweep_spec.studies()
        )
