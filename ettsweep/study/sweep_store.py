"""Sweeps by name: what was asked for under each, in numbered files that are written once.

    sweeps/<name>/0001.yaml, 0002.yaml, ...   what was asked, or a criterion, a note, or that the sweep is archived

Which file is later goes by its number alone. Whoever writes creates the next number exclusively: of two commands at the
same instant one is the next.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ettsweep.config import read_yaml
from ettsweep.errors import CorruptError, InputError, unknown_name
from ettsweep.runs.folder import sweeps_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.schema import StrictModel, validate
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.compatibility import differences
from ettsweep.study.criterion import Criterion, CriterionOptions, resolve
from ettsweep.study.grid_file import centres_for
from ettsweep.study.run_index import Run
from ettsweep.study.study import Centre, Point, Study, SweepSpec, snap
from ettsweep.trainer.tasks.registry import Metric, task_kind

VERSION = 1
"""Of the files; one of a later version is not guessed at."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[0-9]{4,}")


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


@dataclass(frozen=True)
class SweepStore:
    """The sweeps of a results folder by name, and what is wrong with those that cannot be read."""

    results: Path
    named: dict[str, Sweep]
    broken: dict[str, str]

    @cached_property
    def searches(self) -> dict[str, list[Study]]:
        """The searches of all sweeps by family, archived ones too."""
        return by_family(study for sweep in self.named.values() for study in sweep.studies)

    def chosen(self, names: Sequence[str] = ()) -> list[Sweep]:
        """Return the sweeps of these names; without any, all that are not archived.

        Raises:
            InputError: there is none of a name.
            CorruptError: one that is named cannot be read.
        """
        for name in names:
            if name in self.broken:
                raise CorruptError(self.broken[name])
            if name not in self.named:
                raise unknown_name("sweep", name, self.named)
        return [sweep for sweep in self.named.values() if (sweep.name in names if names else not sweep.archived)]


Searches = Mapping[str, Sequence[Study]]
"""The searches of some sweeps by family: what says to which of them a run belongs."""


def by_family(studies: Iterable[Study]) -> dict[str, list[Study]]:
    """Return searches by family."""
    found: dict[str, list[Study]] = {}
    for study in studies:
        found.setdefault(study.family, []).append(study)
    return found


def holders(searches: Searches, family: str, spec: RunSpec) -> list[str]:
    """Return the names of the sweeps that a run belongs to, given the searches of each family.

    Those that ask for it; where none does, those on whose lattice it lies: a climb or a fresh seed had it trained.
    """
    near = [(study, Point(spec.lr, spec.wd)) for study in searches.get(family, ())]
    asking = [study.sweep for study, point in near if study.asks(point, spec.seed)]
    return asking or [study.sweep for study, point in near if study.holds(point)]


def held_by(searches: Searches, family: str, spec: RunSpec) -> str:
    """Return the same for people to read; - is no sweep."""
    return ", ".join(holders(searches, family, spec)) or "-"


def belonging(runs: Iterable[Run], sweep_store: SweepStore, names: Sequence[str] = ()) -> list[Run]:
    """Return the runs that belong to the sweeps of these names; without any, to one that is not archived or to none.

    Raises:
        InputError: there is no sweep of a name.
        CorruptError: one that is named cannot be read.
    """
    meant = {sweep.name for sweep in sweep_store.chosen(names)}
    belong = ((run, set(holders(sweep_store.searches, run.family, run.spec))) for run in runs)
    return [run for run, held in belong if held & meant or not (names or held)]


def spared(runs: Sequence[Run], names: Collection[str], sweep_store: SweepStore) -> tuple[list[Run], dict[str, int]]:
    """Return the runs that belong to no sweep but those named, and how many belong to others, by name.

    Archived sweeps want nothing any more.
    """
    searches = by_family(study for sweep in sweep_store.chosen() for study in sweep.studies if sweep.name not in names)
    mine = by_family(study for sweep in sweep_store.chosen(list(names)) for study in sweep.studies)
    left: Counter[str] = Counter()
    free = []
    for run in runs:
        others = [study for study in searches.get(run.family, ()) if study.asks(run.point, run.spec.seed)]
        if not others and not any(study.asks(run.point, run.spec.seed) for study in mine.get(run.family, ())):
            others = [study for study in searches.get(run.family, ()) if study.holds(run.point)]
        left.update({study.sweep for study in others})
        free += [] if others else [run]
    return free, dict(left)


def asked_too(sweep_store: SweepStore, name: str, sweep_spec: SweepSpec) -> SweepStore:
    """Return the sweeps as they would be if a request, which agrees, had been asked for under a name."""
    sweep = sweep_store.named.get(name) or Sweep(name)
    if sweep.sweep_specs and sweep.implies(sweep_spec):
        return sweep_store
    extended = replace(sweep, entries=(*sweep.entries, SweepVersion(asked=sweep_spec)))
    return replace(sweep_store, named=sweep_store.named | {name: extended})


# --- reading --------------------------------------------------------------------------------------------------------


def load_sweep_store(results: Path) -> SweepStore:
    """Read all sweeps of a results folder."""
    sweep_store = SweepStore(results, {}, {})
    for folder in sorted(sweeps_dir(results).glob("*")):
        if not NAME.fullmatch(folder.name) or not folder.is_dir():
            continue
        try:
            if entries := _read_all(folder):
                sweep_store.named[folder.name] = _sound(Sweep(folder.name, entries), folder)
        except CorruptError as error:
            sweep_store.broken[folder.name] = str(error)
    return sweep_store


def _sound(sweep: Sweep, folder: Path) -> Sweep:
    """Return a sweep all of whose questions can be asked together; what is not edited by hand always can."""
    mend = f"mend {folder}, or move it away and ask for the grid again"
    try:
        first, *others = (sweep_spec for sweep_spec in sweep.sweep_specs if sweep_spec.searches())
        assert sweep.studies
    except InputError as error:
        raise CorruptError(f"{folder}: {error}; {mend}") from None
    for sweep_spec in others:
        if found := differences([first], sweep_spec):
            raise CorruptError(f"{folder}: its files ask for different things: {'; '.join(found.values())}; {mend}")
    return sweep


def _read_all(folder: Path) -> tuple[SweepVersion, ...]:
    files = _files(folder)
    gaps = files.keys() ^ set(range(1, len(files) + 1))
    if gaps and files != (files := _files(folder)):  # a listing may miss what is written meanwhile
        return _read_all(folder)
    if gaps:
        missing = folder / f"{min(gaps):04d}.yaml"
        raise CorruptError(f"{missing} is missing; bring it back, or move the folder away and ask for the grid again")
    entries = tuple(_read(files[number]) for number in sorted(files))
    if entries and not any(entry.asked for entry in entries):
        raise CorruptError(f"{folder}: no file says what was asked for; move it away and ask for the grid again")
    return entries


def _files(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in folder.glob("*.yaml") if _NUMBER.fullmatch(path.stem)}


def _read(path: Path) -> SweepVersion:
    try:
        data = read_yaml(path)
        if isinstance(data, dict) and isinstance(made := data.get("version"), int) and made > VERSION:
            raise CorruptError(f"{path}: a later version of ettsweep wrote it (format {made}, known is {VERSION})")
        return validate(SweepVersion, data, str(path))
    except InputError as error:
        raise CorruptError(f"{error}; mend the file, or move it away and ask for the grid again") from None


# --- names ----------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a text as a name, with - for what no name may have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:64].strip("-._") or "sweep"


def numbered(stem: str) -> Iterator[str]:
    """Yield a name, and the same with numbers."""
    yield stem
    number = 1
    while True:
        number += 1
        yield f"{stem[:58]}-{number}"
