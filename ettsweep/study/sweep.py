"""A sweep by name: what was asked for under it, in versions that are written once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from pydantic import Field

from ettsweep.errors import InputError
from ettsweep.runs.spec import RunSpec
from ettsweep.schema import StrictModel
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.criterion import Criterion, CriterionOptions, resolve
from ettsweep.study.grid_file import centres_for
from ettsweep.study.lattice import Centre, Point, snap
from ettsweep.study.study import Study
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.tasks.registry import Metric, task_kind

VERSION = 1
"""Of the files; one of a later version is not guessed at."""


class Suggestion(StrictModel):
    """Points that a proposer chose at one time for the family of a strategy.

    Attributes:
        sampler: which proposer.
        points: none, where it had no further one to propose.
        reason: why these, for people.
        start: where the search starts, from these on.
    """

    strategy: str
    sampler: str
    points: Annotated[tuple[Centre, ...], Field(strict=False)] = ()
    reason: str = ""
    start: Centre | None = None


class SweepVersion(StrictModel):
    """What one file says; of several that say the same, the last counts.

    Attributes:
        asked: a request.
        proposed: what proposers chose.
        criterion: what is stated of how verdicts are given; of each field, the last statement counts.
        note: a person's words.
        archived: whether the sweep is left out where none is named.
    """

    version: int = VERSION
    asked: SweepSpec | None = None
    proposed: Annotated[tuple[Suggestion, ...], Field(strict=False)] | None = None
    criterion: CriterionOptions | None = None
    note: str | None = None
    archived: bool | None = None


@dataclass(frozen=True)
class Sweep:
    """All that was asked for under a name, first to last.

    Attributes:
        entries: what its files say.
    """

    name: str
    entries: tuple[SweepVersion, ...] = ()

    @cached_property
    def sweep_specs(self) -> tuple[SweepSpec, ...]:
        """What was asked, first to last; all of it agrees."""
        return tuple(entry.asked for entry in self.entries if entry.asked)

    @property
    def metric(self) -> Metric:
        """What its runs are compared by."""
        return task_kind(self.sweep_specs[0].recipe.task).score

    @cached_property
    def criterion(self) -> Criterion:
        """What makes its verdicts optimal: what was stated last, with a question or by itself."""
        return resolve(stated for e in self.entries for stated in (e.asked.criterion if e.asked else None, e.criterion))

    def criterion_with(self, stated: CriterionOptions | None) -> str:
        """Return, in words, what would change where a criterion is stated; nothing where it is so already."""
        return stated.over(self.criterion).describe(self.metric, self.criterion) if stated else ""

    def asked_again(self, strategies: Sequence[str] = ()) -> SweepSpec:
        """Return a request for all its strategies, or for some, which may be new to it, within their last ranges.

        Raises:
            InputError: there is no such strategy, or their ranges are not the same.
        """
        latest = {name: sweep_spec for sweep_spec in self.sweep_specs for name in sweep_spec.centres}
        stated = {parse_strategy(name): sweep_spec.centres[name] for name, sweep_spec in latest.items()}
        last = self.sweep_specs[-1]
        found = centres_for(strategies or list(latest), stated, last.recipe)
        ranges = {(latest[name].lr, latest[name].wd): latest[name] for name in found if name in latest}
        if len(ranges) > 1:
            told = "its strategies were asked for in different ranges; name one with --strategy"
            raise InputError(f"sweep {self.name}: {told}: {', '.join(found)}")
        (lr, wd) = next(iter(ranges), (last.lr, last.wd))
        return last.model_copy(update={"centres": found, "criterion": None, "lr": lr, "wd": wd})

    @property
    def note(self) -> str:
        """A person's words."""
        return next((entry.note for entry in reversed(self.entries) if entry.note is not None), "")

    @property
    def archived(self) -> bool:
        """Whether it is left out where no sweep is named."""
        return next((entry.archived for entry in reversed(self.entries) if entry.archived is not None), False)

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """One search for each family: all points that were asked for, over all seeds."""
        seeds = tuple(dict.fromkeys(seed for sweep_spec in self.sweep_specs for seed in sweep_spec.seeds))
        merged: dict[str, Study] = {}
        for sweep_spec in self.sweep_specs:
            for study in sweep_spec.searches(self.name):
                first = merged.setdefault(study.family, replace(study, seeds=seeds, criterion=self.criterion))
                points = dict.fromkeys(first.points)
                points |= dict.fromkeys(snap(point, points) for point in study.points)
                merged[study.family] = replace(first, points=tuple(points), box=study.box or first.box)
        return tuple(
            replace(study, proposed=tuple(self.samplers(study)), start=self._start(study.strategy))
            for study in merged.values()
        )

    def samplers(self, study: Study) -> dict[Point, str]:
        """Return the points that proposers chose for a family, first to last, each with the first that did."""
        known = dict.fromkeys(study.points)
        points: dict[Point, str] = {}
        for suggestion in self.suggestions:
            if suggestion.strategy == study.strategy:
                for centre in suggestion.points:
                    points.setdefault(snap(Point(centre.lr, centre.wd), known), suggestion.sampler)
        return points

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """What proposers chose, first to last."""
        return tuple(suggestion for entry in self.entries for suggestion in entry.proposed or ())

    def _start(self, strategy: str) -> Point | None:
        """Return where the search of a strategy started in the ranges that were stated last."""
        start: Point | None = None
        ranges = tuple[object, ...]()
        for entry in self.entries:
            asked = entry.asked
            if asked and asked.searched and strategy in asked.centres:
                before, ranges = ranges, (asked.lr, asked.wd, asked.centres[strategy])
                if ranges != before:
                    start = None
            for suggestion in entry.proposed or ():
                if suggestion.strategy == strategy:
                    start = Point(suggestion.start.lr, suggestion.start.wd) if suggestion.start else start
        return start

    def searched_out(self, strategy: str, sampler: str) -> bool:
        """Say whether a proposer has no more to propose for a strategy, of which nothing was asked since."""
        for entry in reversed(self.entries):
            if entry.asked and strategy in entry.asked.centres:
                return False
            for suggestion in entry.proposed or ():
                if suggestion.strategy == strategy:
                    return suggestion.sampler == sampler and not suggestion.points
        return False

    def specs(self) -> Iterator[RunSpec]:
        """Yield all runs that it wants."""
        for study in self.studies:
            yield from study.specs()

    def implies(self, sweep_spec: SweepSpec) -> bool:
        """Say whether a request, which agrees, adds nothing: no point, no seed, no other criterion or place."""
        last = self.sweep_specs[-1]
        if last.place != sweep_spec.place or self.criterion_with(sweep_spec.criterion):
            return False
        mine = {study.family: study for study in self.studies}
        return all(
            (old := mine.get(new.family))
            and all(snap(point, old.points) in old.points for point in new.points)
            and new.box in ((), old.box)
            and set(new.seeds) <= set(old.seeds)
            for new in sweep_spec.searches()
        )
