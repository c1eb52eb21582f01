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

from ettsweep.config import read_yaml
from ettsweep.errors import CorruptError, InputError, unknown_name
from ettsweep.runs.folder import sweeps_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.schema import validate
from ettsweep.study.compatibility import differences
from ettsweep.study.lattice import Point
from ettsweep.study.run_index import Run
from ettsweep.study.study import Study
from ettsweep.study.sweep import VERSION, Sweep, SweepVersion
from ettsweep.study.sweep_spec import SweepSpec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[0-9]{4,}")


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
