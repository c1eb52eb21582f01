"""Named sweeps of a results folder, each in one file: sweeps/<name>.yaml.

The file is a list, to which commands append: resolved grid files, suggestions of samplers, criteria, launch profiles.
It is replaced as a whole, under a lock: a reader finds the old list or the new one.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from ettsweep.config import dump_yaml, parse_yaml
from ettsweep.errors import CorruptError, InputError, StorageError, SweepNameTakenError, unknown_name
from ettsweep.files import Json, folder_names, read_file, storage_errors, write_atomic
from ettsweep.project_code import SWEEP_HEADER
from ettsweep.runs.folder import is_run_id, sweeps_dir
from ettsweep.runs.index import Run
from ettsweep.runs.point import axis_cells
from ettsweep.runs.spec import USUAL_AXES, RunSpec, family_of
from ettsweep.schema import validate
from ettsweep.study.compatibility import sweep_differences
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.study import Study, strategy_of
from ettsweep.study.sweep import LaunchSettings, Suggestion, Sweep, SweepEntry
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.tried import trial_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

LOCK_S = 30.0
"""Seconds to wait for another command that writes the same sweep, which takes milliseconds."""


@dataclass(frozen=True)
class SweepStore:
    """The sweeps of a results folder by name, and the errors of those that cannot be read, by name."""

    results: Path
    sweeps: dict[str, Sweep]
    broken: dict[str, str]

    @cached_property
    def studies_by_family(self) -> "StudiesByFamily":
        """The studies of all sweeps, to look up those of a run."""
        return StudiesByFamily(self.studies)

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


class StudiesByFamily:
    """Look up the studies to whose families a run belongs: one whose recipe has an axis has runs of several.

    Attributes:
        studies: those of some sweeps.
    """

    def __init__(self, studies: Iterable[Study]) -> None:
        self.studies = list(studies)
        self._known: dict[str, list[Study]] = {}
        self._axes = list(dict.fromkeys(tuple(study.axes) for study in self.studies))

    def of(self, run: Run | RunSpec) -> list[Study]:
        """Return the studies of a run's families."""
        if run.family not in self._known:
            families = {axes: family_of(run.base, axes) for axes in self._axes}
            self._known[run.family] = [study for study in self.studies if study.family == families[tuple(study.axes)]]
        return self._known[run.family]


def run_sweeps(studies: StudiesByFamily, run: Run | RunSpec) -> list[str]:
    """Return the names of the sweeps to which a run belongs.

    These are the sweeps that request it, or else those on whose lattice it lies: `verify-optimum` and `seeds` train
    runs that no file of a sweep mentions.
    """
    members = studies.of(run)
    requesting = [study.sweep for study in members if study.has(run)]
    return requesting or [study.sweep for study in members if study.is_on_lattice(study.point_of(run))]


def run_cells(studies: StudiesByFamily, run: Run | RunSpec) -> dict[str, float | None]:
    """Return the values of a run by column of a table: along the axes of its studies, lr and wd among them."""
    names = dict.fromkeys(name for study in studies.of(run) for name in study.axes if name not in USUAL_AXES)
    return {**axis_cells(run.point), **{name: run.value(name) for name in names}}


def run_strategy(studies: StudiesByFamily, run: Run | RunSpec) -> str:
    """Return the name of a run's strategy, or of the variants that it belongs to."""
    variants = dict.fromkeys(study.strategy for study in studies.of(run) if study.variant)
    return ", ".join(variants) or strategy_of(run.base)


def run_sweeps_text(studies: StudiesByFamily, run: Run | RunSpec) -> str:
    """Return the same as one text for people; `-` for none."""
    return ", ".join(run_sweeps(studies, run)) or "-"


def runs_of_sweeps(runs: Iterable[Run], sweep_store: SweepStore, names: Sequence[str] = ()) -> list[Run]:
    """Return the runs that belong to the sweeps of these names; without names, all runs.

    Raises:
        InputError: there is no sweep of a name.
        CorruptError: a sweep cannot be read.
    """
    if not names:
        return list(runs)
    selected, families = {sweep.name for sweep in sweep_store.select(names)}, sweep_store.studies_by_family
    return [run for run in runs if selected.intersection(run_sweeps(families, run))]


def split_exclusive_runs(
    runs: Sequence[Run], names: Collection[str], sweep_store: SweepStore
) -> tuple[list[Run], dict[str, int]]:
    """Split runs into those of the named sweeps only, and those of other sweeps too.

    Returns:
        The runs that no other sweep uses, and the number of the remaining runs by the name of the other sweep.
    """
    other_studies = StudiesByFamily(
        study for sweep in sweep_store.select() for study in sweep.studies if sweep.name not in names
    )
    own_studies = StudiesByFamily(study for sweep in sweep_store.select(list(names)) for study in sweep.studies)
    shared_counts: Counter[str] = Counter()
    exclusive_runs = []
    for run in runs:
        users = [study for study in other_studies.of(run) if study.has(run)]
        # A run that no sweep requests belongs to all on whose lattice it lies, as in `run_sweeps`.
        if not users and not any(study.has(run) for study in own_studies.of(run)):
            users = [study for study in other_studies.of(run) if study.is_on_lattice(study.point_of(run))]
        shared_counts.update({study.sweep for study in users})
        exclusive_runs += [] if users else [run]
    return exclusive_runs, dict(shared_counts)


def runs_without_sweep(runs: Iterable[Run], sweep_store: SweepStore) -> list[Run]:
    """Return the runs that belong to no sweep.

    Raises:
        CorruptError: a sweep cannot be read, so its runs are unknown.
    """
    for problem in sweep_store.broken.values():
        raise CorruptError(problem)
    return [run for run in runs if not run_sweeps(sweep_store.studies_by_family, run)]


def with_spec(sweep_store: SweepStore, name: str, sweep_spec: SweepSpec) -> SweepStore:
    """Return the store as it would be with a compatible spec added to the sweep of this name; write nothing."""
    sweep = sweep_store.sweeps.get(name) or Sweep(name)
    if sweep.sweep_specs and sweep.covers(sweep_spec):
        return sweep_store
    extended = replace(sweep, entries=(*sweep.entries, SweepEntry(asked=sweep_spec)))
    return replace(sweep_store, sweeps=sweep_store.sweeps | {name: extended})


# --- reading --------------------------------------------------------------------------------------------------------


def sweep_file(results: Path, name: str) -> Path:
    """Return the file of the sweep of a name."""
    return sweeps_dir(results) / f"{name}.yaml"


def load_sweep_store(results: Path) -> SweepStore:
    """Read all sweeps of a results folder.

    Raises:
        CorruptError: the folder of sweeps cannot be read.
    """
    sweep_store = SweepStore(results, {}, {})
    files = [Path(file) for file in folder_names(sweeps_dir(results))]
    for name in sorted(file.stem for file in files if file.suffix == ".yaml"):
        if not NAME.fullmatch(name):
            continue
        try:
            if sweep := _read_sweep(results, name):
                sweep_store.sweeps[name] = sweep
        except CorruptError as error:
            sweep_store.broken[name] = str(error)
    return sweep_store


def _read_sweep(results: Path, name: str) -> Sweep | None:
    """Return the sweep of a name; None if there is none.

    Raises:
        CorruptError: its file cannot be read, or its specs are not valid and compatible: only editing breaks that.
    """
    path, remedy = sweep_file(results, name), "repair the file, or move it away and request the grid again"
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise CorruptError(f"{path}: {error}; {remedy}") from None
    try:
        entries = parse_yaml(text, str(path))
        if not isinstance(entries, list):
            raise InputError(f"{path}: a list of entries is expected")
        sweep = Sweep(name, tuple(validate(SweepEntry, entry, str(path)) for entry in entries))
        if not sweep.requests:
            raise InputError(f"{path}: no entry has a grid")
        first, *others = (request for request in sweep.requests if request.studies())
        # Merging the studies may raise too; here the error can name the file.
        assert sweep.studies
    except InputError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise CorruptError(f"{named}; {remedy}") from None
    for sweep_spec in others:
        if problems := sweep_differences([first], sweep_spec):
            text = "; ".join(problems.values())
            raise CorruptError(f"{path}: its entries are not for the same recipe and lattice: {text}; {remedy}")
    return sweep


# --- writing --------------------------------------------------------------------------------------------------------

MAX_TOLD = 32
"""Most characters of a difference in a suggested name."""


def find_compatible(sweep_store: SweepStore, name: str, sweep_spec: SweepSpec) -> Sweep | None:
    """Return the sweep of this name, which the spec may extend; None if there is none.

    Raises:
        SweepNameTakenError: the sweep has another recipe or lattice than the spec, or the name differs from another
            sweep's in case alone.
        CorruptError: the sweep cannot be read.
    """
    if name in sweep_store.broken:
        raise CorruptError(sweep_store.broken[name])
    sweep = sweep_store.sweeps.get(name)
    if sweep and (problems := sweep_differences(sweep.sweep_specs, sweep_spec)):
        # The first difference makes a short name, such as w64-batch_size-32, unless it is a command.
        first = next(iter(problems))
        free = free_sweep_name(sweep_store, f"{name}-{first}" if len(first) <= MAX_TOLD else name)
        raise SweepNameTakenError(
            f"sweep {name} is for another recipe or lattice: {'; '.join(problems.values())}", free
        )
    if other := _same_but_for_case(sweep_store, name):
        raise SweepNameTakenError(
            f"there is a sweep {other}: where a file system ignores case, {name} would be the same folder; --name "
            f"{other} extends it",
            free_sweep_name(sweep_store, name),
        )
    return sweep


def _same_but_for_case(sweep_store: SweepStore, name: str) -> str:
    """Return the other sweep whose name differs from a new sweep's in case alone; "" if there is none."""
    names = [*sweep_store.sweeps, *sweep_store.broken]
    # Sweeps that exist beside each other stay.
    return "" if name in names else next((other for other in names if other.casefold() == name.casefold()), "")


def free_sweep_name(sweep_store: SweepStore, text: str) -> str:
    """Return a valid name for a new sweep, similar to a text."""
    taken_names = {name.casefold() for name in (*sweep_store.sweeps, *sweep_store.broken)}
    return next(name for name in name_candidates(sanitize_name(text)) if name.casefold() not in taken_names)


def check_name(name: str, option: str = "--name") -> str:
    """Return the name if a new sweep may have it.

    Raises:
        InputError: it has other characters, or could be an option or a run id.
    """
    if not NAME.fullmatch(name) or name.endswith("."):
        raise InputError(
            f"{option} {name!r}: up to 64 letters, digits, dots, - and _ are expected, a letter or a digit first"
            + (f"; for example {valid}" if NAME.fullmatch(valid := sanitize_name(name)) and valid != name else "")
        )
    if is_run_id(name):
        raise InputError(f"{option} {name}: that could be a run's id; choose another")
    return name


def extend_sweep(results: Path, name: str, sweep_spec: SweepSpec, launch: LaunchSettings | None = None) -> str:
    """Create a sweep, or add a spec and launch settings to it, if they are new.

    Args:
        results: the results folder.
        name: of the sweep.
        sweep_spec: the spec to add.
        launch: settings of its runs from now on; None for the current ones.

    Returns:
        A line on the change, for people; empty if nothing changed.

    Raises:
        SweepNameTakenError: the sweep of this name has another recipe or lattice.
        CorruptError: it cannot be read.
        StorageError: it cannot be written, or another command is writing it for too long.
    """

    def extend(sweep_store: SweepStore) -> tuple[SweepEntry | None, str]:
        sweep = find_compatible(sweep_store, name, sweep_spec)
        asked = None if sweep and sweep.covers(sweep_spec) else sweep_spec
        # Masked as in the file: the same secret is no change.
        moved = None if launch is None or (sweep and sweep.launch == launch.masked) else launch
        if not (asked or moved):
            return None, ""
        criterion = sweep.criterion_changes(sweep_spec.criterion) if sweep else ""
        change = f"{'extended' if sweep else 'created'} sweep {name}"
        return SweepEntry(asked=asked, launch=moved), f"{change}; {criterion} from now on" if criterion else change

    return _append(results, name, extend)


def record_suggestions(results: Path, name: str, suggestions: Sequence[Suggestion]) -> None:
    """Record suggestions of samplers in a sweep, before submitting their runs: a kill then loses none.

    Raises:
        CorruptError: it cannot be read, or is gone.
        StorageError: as `extend_sweep`.
    """

    def propose(sweep_store: SweepStore) -> tuple[SweepEntry, str]:
        if name not in {*sweep_store.sweeps, *sweep_store.broken}:
            raise CorruptError(f"sweep {name} was renamed or deleted meanwhile, so its search ends")
        sweep_store.select([name])
        return SweepEntry(proposed=tuple(suggestions)), ""

    _append(results, name, propose)


def record_criterion(results: Path, names: Iterable[str], options: CriterionOptions) -> str:
    """Record options of the criterion in sweeps that have others.

    Returns:
        Lines on the changes, for people; empty if nothing changed.

    Raises:
        InputError: there is no sweep of a name.
        CorruptError: a sweep cannot be read.
        StorageError: as `extend_sweep`.
    """

    def change(name: str, sweep_store: SweepStore) -> tuple[SweepEntry | None, str]:
        (sweep,) = sweep_store.select([name])
        text = sweep.criterion_changes(options)
        return (SweepEntry(criterion=options) if text else None), text

    changed: dict[str, list[str]] = {}
    for name in names:
        if text := _append(results, name, partial(change, name)):
            changed.setdefault(text, []).append(name)
    return "\n".join(f"sweep {', '.join(sweeps)}: {text} from now on" for text, sweeps in changed.items())


def delete_sweep(results: Path, name: str) -> None:
    """Delete a sweep, even an unreadable one, and its trial; its runs stay.

    Raises:
        InputError: there is no such sweep.
    """
    check_exists(load_sweep_store(results), name)
    with _locked(results, name):
        for path in (sweep_file(results, name), trial_file(results, name)):
            path.unlink(missing_ok=True)


def check_exists(sweep_store: SweepStore, name: str) -> None:
    """Raise InputError if there is no sweep of this name, readable or not."""
    if name not in (names := {*sweep_store.sweeps, *sweep_store.broken}):
        raise unknown_name("sweep", name, names)


def _append(results: Path, name: str, make_entry: Callable[[SweepStore], tuple[SweepEntry | None, str]]) -> str:
    """Append an entry to a sweep, and return a note on it.

    Args:
        results: the results folder.
        name: of the sweep.
        make_entry: returns the entry, None for none, and the note, given the sweeps while no other command writes this
            one.
    """
    entry, text = make_entry(load_sweep_store(results))
    if entry is None:  # mostly, and needs no lock
        return text
    path = sweep_file(results, name)
    with _locked(results, name):
        entry, text = make_entry(load_sweep_store(results))
        if entry:
            before = read_file(path).decode() if path.exists() else SWEEP_HEADER
            write_atomic(path, _appended(before, entry.model_dump(mode="json", exclude_none=True)))
        return text


def _appended(before: str, entry: Json) -> str:
    """Return the text of a sweep's file with another entry, whatever layout people gave it."""
    entries = [*(parse_yaml(before, "") if before != SWEEP_HEADER else ()), entry]
    text = before + "\n" * (not before.endswith("\n")) + dump_yaml([entry])
    with suppress(InputError):
        if parse_yaml(text, "") == entries:
            return text
    return SWEEP_HEADER + dump_yaml(entries)


@contextmanager
def _locked(results: Path, name: str) -> Iterator[None]:
    """Context in which no other command writes the sweep of a name.

    Raises:
        StorageError: the folder cannot be written, or another command is writing the sweep for too long.
    """
    from filelock import SoftFileLock, Timeout  # takes .15 s

    path = sweep_file(results, name)
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{name}.lock")
        try:
            # An exclusively created file works on NFS too; that of a killed process is taken over.
            with SoftFileLock(lock, timeout=LOCK_S):
                yield
        except Timeout:
            raise StorageError(
                f"{path}: another command has been writing it for {LOCK_S:g} s; if there is none, delete {lock}"
            ) from None


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
