"""Changes to named sweeps: requests, suggestions, criterion; and which processes follow a sweep."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ettsweep.config import dump_yaml
from ettsweep.errors import CorruptError, InputError, StorageError, SweepNameTakenError, unknown_name
from ettsweep.files import dumps, json_or_empty, remove_folder, storage_errors, write_atomic
from ettsweep.processes import Process, process_identity
from ettsweep.runs.folder import is_run_id, sweeps_dir
from ettsweep.study.compatibility import sweep_differences
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.sweep import Suggestion, Sweep, SweepVersion
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import NAME, SweepStore, load_sweep_store, name_candidates, sanitize_name

MAX_TOLD = 32
"""Characters of a difference that a suggested name may have."""


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
        # The first difference makes a telling name: w64-batch_size-32. A whole command would not.
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
    # Sweeps that exist beside each other already go on.
    return "" if name in names else next((other for other in names if other.casefold() == name.casefold()), "")


def free_sweep_name(sweep_store: SweepStore, text: str) -> str:
    """Return a valid name for a new sweep that is like a text."""
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


def extend_sweep(results: Path, name: str, sweep_spec: SweepSpec) -> str:
    """Make a sweep, or add a spec to it if that adds anything.

    Args:
        results: the results folder.
        name: of the sweep.
        sweep_spec: what is added.

    Returns:
        A line on the change, for people; empty if nothing changed.

    Raises:
        SweepNameTakenError: the sweep of this name has another recipe or lattice.
        CorruptError: it cannot be read.
    """
    while True:  # until no other command writes at the same time
        sweep_store = load_sweep_store(results)
        sweep = find_compatible(sweep_store, name, sweep_spec)
        if sweep and sweep.covers(sweep_spec):
            return ""
        if try_append(results, sweep_store, name, SweepVersion(asked=sweep_spec)):
            criterion = sweep.criterion_changes(sweep_spec.criterion) if sweep else ""
            change = f"sweep {name} is {'extended' if sweep else 'made'}"
            return f"{change}; {criterion} from now on" if criterion else change


def record_suggestions(results: Path, name: str, suggestions: Sequence[Suggestion]) -> None:
    """Record suggestions of samplers in a sweep. Do so before submitting their runs, so that a kill loses none.

    Raises:
        InputError: there is no sweep of this name.
        CorruptError: it cannot be read.
    """
    while True:
        sweep_store = load_sweep_store(results)
        sweep_store.select([name])
        if try_append(results, sweep_store, name, SweepVersion(proposed=tuple(suggestions))):
            return


def record_criterion(results: Path, names: Iterable[str], options: CriterionOptions) -> str:
    """Record options of the criterion in sweeps that have others.

    Returns:
        Lines on the changes, for people; empty if nothing changed.

    Raises:
        InputError: there is no sweep of a name.
        CorruptError: a sweep cannot be read.
    """
    changed: dict[str, list[str]] = {}
    for name in names:
        while True:
            sweep_store = load_sweep_store(results)
            (sweep,) = sweep_store.select([name])
            change = sweep.criterion_changes(options)
            if not change or try_append(results, sweep_store, name, SweepVersion(criterion=options)):
                break
        if change:
            changed.setdefault(change, []).append(name)
    return "\n".join(f"sweep {', '.join(sweeps)}: {change} from now on" for change, sweeps in changed.items())


def delete_sweep(results: Path, name: str) -> None:
    """Delete a sweep, also one that cannot be read; its runs stay.

    Raises:
        InputError: there is no such sweep, or a command follows it.
    """
    check_deletable(load_sweep_store(results), name)
    remove_folder(sweeps_dir(results) / name)


def check_deletable(sweep_store: SweepStore, name: str) -> None:
    """Raise InputError if there is no sweep of this name, or a command follows it."""
    names = {*sweep_store.sweeps, *sweep_store.broken}
    if name not in names:
        raise unknown_name("sweep", name, names)
    for path, follower in find_followers(sweep_store.results, name).items():
        raise InputError(
            f"a command follows sweep {name} (process {follower.pid} on {follower.host}); end it first, its runs "
            f"continue; if it is gone, delete {path}"
        )


def find_followers(results: Path, name: str) -> dict[Path, Process]:
    """Return the processes that follow a sweep, by the file that each has written; dead ones are left out."""
    paths = (sweeps_dir(results) / name).glob("follower-*.json")
    processes = {path: Process.from_json(json_or_empty(path)) for path in paths}
    return {path: process for path, process in processes.items() if process and process.liveness() != "dead"}


@contextlib.contextmanager
def mark_followed(results: Path, names: Iterable[str]) -> Iterator[None]:
    """Context in which this process follows sweeps; they cannot be deleted meanwhile."""
    # A file of its own for each process: several commands may follow one sweep.
    paths = [sweeps_dir(results) / name / f"follower-{uuid.uuid4().hex}.json" for name in set(names)]
    try:
        for path in paths:
            if not path.parent.is_dir():
                raise InputError(f"sweep {path.parent.name} was renamed or deleted meanwhile")
            write_atomic(path, dumps(process_identity().to_json()))
        yield
    finally:
        for path in paths:
            with contextlib.suppress(OSError):  # `clean` removes what cannot be removed now
                path.unlink(missing_ok=True)


def try_append(results: Path, sweep_store: SweepStore, name: str, version: SweepVersion) -> bool:
    """Write the next file of a sweep; `False` if another command was faster: then read the store again and retry."""
    number = len(sweep_store.sweeps[name].versions) + 1 if name in sweep_store.sweeps else 1
    return _write_version(sweeps_dir(results) / name / f"{number:04d}.yaml", version, is_first=number == 1)


def _write_version(path: Path, version: SweepVersion, *, is_first: bool) -> bool:
    """Create a file; `False` if it exists, or if its folder has been renamed or deleted."""
    # For the first file only: the folder of a sweep that was renamed or deleted must not come back.
    if is_first:
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return write_atomic(path, dump_yaml(version.model_dump(mode="json", exclude_none=True)), exclusive=True)
    except StorageError:
        if is_first or path.parent.is_dir():
            raise
        return False  # the sweep is gone under this name: the caller reads the store again
