"""Named sweeps of a results folder, each in numbered files that are written once.

    sweeps/<name>/0001.yaml, 0002.yaml, ...   a resolved grid file, suggestions or a criterion

The numbers alone give the order. The next file is created exclusively, so that of two commands at the same instant one
has to read again and try the number after.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ettsweep.config import read_yaml
from ettsweep.errors import CorruptError, InputError, unknown_name
from ettsweep.files import folder_names
from ettsweep.runs.folder import sweeps_dir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.schema import validate
from ettsweep.study.compatibility import sweep_differences
from ettsweep.study.study import Study
from ettsweep.study.sweep import FORMAT_VERSION, Sweep, SweepVersion
from ettsweep.study.sweep_spec import SweepSpec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[0-9]{4,}")


@dataclass(frozen=True)
class SweepStore:
    """The sweeps of a results folder by name, and the errors of those that cannot be read, by name."""

    results: Path
    sweeps: dict[str, Sweep]
    broken: dict[str, str]

    @cached_property
    def studies_by_family(self) -> dict[str, list[Study]]:
        """The studies of all sweeps, by family."""
        return group_by_family(self.studies)

    @property
    def studies(self) -> list[Study]:
        """The studies of all sweeps."""
        return [study for sweep in self.sweeps.values() for study in sweep.studies]

    def select(self, names: Sequence[str] = ()) -> list[Sweep]:
        """Return the sweeps of these names; without names, all.

        Raises:
            InputError: there is no sweep of a name.
            CorruptError: a sweep cannot be read.
        """
        for name in names:
            if name in self.broken:
                raise CorruptError(self.broken[name])
            if name not in self.sweeps:
                raise unknown_name("sweep", name, self.sweeps)
        return [sweep for sweep in self.sweeps.values() if not names or sweep.name in names]


StudiesByFamily = Mapping[str, Sequence[Study]]
"""Studies of some sweeps by family, to look up to which sweeps a run belongs."""


def group_by_family(studies: Iterable[Study]) -> dict[str, list[Study]]:
    """Group studies by family."""
    groups: dict[str, list[Study]] = {}
    for study in studies:
        groups.setdefault(study.family, []).append(study)
    return groups


def run_sweeps(studies_by_family: StudiesByFamily, family: str, point: Point, seed: int) -> list[str]:
    """Return the names of the sweeps to which a run belongs.

    These are the sweeps that request it. If none does, those on whose lattice it lies: runs beyond the ranges or with
    fresh seeds are trained by `verify-optimum` and `seeds`, and no file of a sweep mentions them.
    """
    studies = studies_by_family.get(family, ())
    requesting = [study.sweep for study in studies if study.requests(point, seed)]
    return requesting or [study.sweep for study in studies if study.is_on_lattice(point)]


def run_sweeps_text(studies_by_family: StudiesByFamily, family: str, point: Point, seed: int) -> str:
    """Return the same as one text for people; `-` for none."""
    return ", ".join(run_sweeps(studies_by_family, family, point, seed)) or "-"


def runs_of_sweeps(runs: Iterable[Run], sweep_store: SweepStore, names: Sequence[str] = ()) -> list[Run]:
    """Return the runs that belong to the sweeps of these names; without names, all runs.

    Raises:
        InputError: there is no sweep of a name.
        CorruptError: a sweep cannot be read.
    """
    if not names:
        return list(runs)
    selected, families = {sweep.name for sweep in sweep_store.select(names)}, sweep_store.studies_by_family
    return [run for run in runs if selected.intersection(run_sweeps(families, run.family, run.point, run.seed))]


def split_exclusive_runs(
    runs: Sequence[Run], names: Collection[str], sweep_store: SweepStore
) -> tuple[list[Run], dict[str, int]]:
    """Split runs into those that only the named sweeps use and those that other sweeps use too.

    Returns:
        The runs that no other sweep uses, and the number of the remaining runs by the name of the other sweep.
    """
    other_studies = group_by_family(
        study for sweep in sweep_store.select() for study in sweep.studies if sweep.name not in names
    )
    own_studies = group_by_family(study for sweep in sweep_store.select(list(names)) for study in sweep.studies)
    shared_counts: Counter[str] = Counter()
    exclusive_runs = []
    for run in runs:
        users = [study for study in other_studies.get(run.family, ()) if study.requests(run.point, run.seed)]
        # A run that nobody requests belongs to all sweeps on whose lattice it lies, as in `run_sweeps`.
        if not users and not any(study.requests(run.point, run.seed) for study in own_studies.get(run.family, ())):
            users = [study for study in other_studies.get(run.family, ()) if study.is_on_lattice(run.point)]
        shared_counts.update({study.sweep for study in users})
        exclusive_runs += [] if users else [run]
    return exclusive_runs, dict(shared_counts)


def runs_without_sweep(runs: Iterable[Run], sweep_store: SweepStore) -> list[Run]:
    """Return the runs that belong to no sweep.

    Raises:
        CorruptError: a sweep cannot be read, so that its runs are not known.
    """
    for problem in sweep_store.broken.values():
        raise CorruptError(problem)
    return [run for run in runs if not run_sweeps(sweep_store.studies_by_family, run.family, run.point, run.seed)]


def with_spec(sweep_store: SweepStore, name: str, sweep_spec: SweepSpec) -> SweepStore:
    """Return the store as it would be with a compatible spec added to the sweep of this name; write nothing."""
    sweep = sweep_store.sweeps.get(name) or Sweep(name)
    if sweep.sweep_specs and sweep.covers(sweep_spec):
        return sweep_store
    extended = replace(sweep, versions=(*sweep.versions, SweepVersion(asked=sweep_spec)))
    return replace(sweep_store, sweeps=sweep_store.sweeps | {name: extended})


# --- reading --------------------------------------------------------------------------------------------------------


def load_sweep_store(results: Path) -> SweepStore:
    """Read all sweeps of a results folder.

    Raises:
        CorruptError: the folder of sweeps cannot be read.
    """
    sweep_store, names = SweepStore(results, {}, {}), folder_names(sweeps_dir(results))
    for name in names:
        folder = sweeps_dir(results) / name
        if not NAME.fullmatch(name) or not folder.is_dir():
            continue
        try:
            if entries := _read_versions(folder):
                sweep_store.sweeps[folder.name] = _checked_sweep(Sweep(folder.name, entries), folder)
        except CorruptError as error:
            sweep_store.broken[folder.name] = str(error)
    # A sweep that is renamed meanwhile would be missing under both names.
    return sweep_store if folder_names(sweeps_dir(results)) == names else load_sweep_store(results)


def _checked_sweep(sweep: Sweep, folder: Path) -> Sweep:
    """Return the sweep if its specs are valid and compatible, which only editing by hand can break."""
    remedy = f"repair {folder}, or move it away and request the grid again"
    try:
        first, *others = (request for request in sweep.requests if request.studies())
        # Merging the studies may raise as well, and here the error can name the folder.
        assert sweep.studies
    except InputError as error:
        raise CorruptError(f"{folder}: {error}; {remedy}") from None
    for sweep_spec in others:
        if problems := sweep_differences([first], sweep_spec):
            text = "; ".join(problems.values())
            raise CorruptError(f"{folder}: its files are not for the same recipe and lattice: {text}; {remedy}")
    return sweep


def _read_versions(folder: Path) -> tuple[SweepVersion, ...]:
    files = _version_files(folder)
    gaps = files.keys() ^ set(range(1, len(files) + 1))
    # The listing of a folder may miss a file that is written meanwhile: only a gap that stays is damage.
    if gaps and files != (files := _version_files(folder)):
        return _read_versions(folder)
    if gaps:
        missing = folder / f"{min(gaps):04d}.yaml"
        raise CorruptError(f"{missing} is missing; restore it, or move the folder away and request the grid again")
    entries = tuple(_read_version(files[number]) for number in sorted(files))
    if entries and not any(entry.asked for entry in entries):
        raise CorruptError(f"{folder}: no file contains a grid; move the folder away and request the grid again")
    return entries


def _version_files(folder: Path) -> dict[int, Path]:
    paths = [folder / name for name in folder_names(folder)]
    return {int(path.stem): path for path in paths if path.suffix == ".yaml" and _NUMBER.fullmatch(path.stem)}


def _read_version(path: Path) -> SweepVersion:
    try:
        data = read_yaml(path)
        if isinstance(data, dict) and isinstance(version := data.get("version"), int) and version > FORMAT_VERSION:
            raise CorruptError(
                f"{path}: a later version of ettsweep wrote it (format {version}, this one reads {FORMAT_VERSION})"
            )
        return validate(SweepVersion, data, str(path))
    except InputError as error:
        raise CorruptError(f"{error}; repair the file, or move it away and request the grid again") from None


# --- names ----------------------------------------------------------------------------------------------------------


def sanitize_name(text: str) -> str:
    """Turn a text into a valid sweep name: other characters become `-`."""
    # A name starts with a letter or digit, and does not end with a dot (`check_name`).
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:64].strip("-._") or "sweep"


def name_candidates(stem: str) -> Iterator[str]:
    """Yield candidates for a name: `stem`, `stem-2`, `stem-3`, ... at most 64 characters long."""
    yield stem
    number = 1
    while True:
        number += 1
        # 58 characters leave room for `-` and five digits.
        yield f"{stem[:58]}-{number}"
