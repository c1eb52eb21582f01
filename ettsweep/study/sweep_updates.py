"""Changes to named sweeps: requests, suggestions, criterion, name, note; and which processes follow a sweep."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ettsweep.config import dump_yaml
from ettsweep.errors import CorruptError, InputError, StorageError, SweepNameTakenError
from ettsweep.files import dumps, json_or_empty, storage_errors, write_atomic
from ettsweep.processes import Process, process
from ettsweep.runs.folder import is_run_id, sweeps_dir
from ettsweep.study.compatibility import differences
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.sweep import Suggestion, Sweep, SweepVersion
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import NAME, SweepStore, load_sweep_store, numbered, plain


def agreeing(sweep_store: SweepStore, name: str, sweep_spec: SweepSpec) -> Sweep | None:
    """Return the sweep of this name, which the spec may extend; None if there is none.

    Raises:
        SweepNameTakenError: the sweep has another recipe or lattice than the spec.
        CorruptError: the sweep cannot be read.
    """
    if name in sweep_store.broken:
        raise CorruptError(sweep_store.broken[name])
    sweep = sweep_store.named.get(name)
    if sweep and (problems := differences(sweep.sweep_specs, sweep_spec)):
        text = "; ".join(problems.values())
        taken_names = sweep_store.named.keys() | sweep_store.broken.keys()
        # The first difference makes a telling name: w64-batch_size-32.
        free = next(
            candidate for candidate in numbered(plain(f"{name}-{next(iter(problems))}")) if candidate not in taken_names
        )
        raise SweepNameTakenError(f"sweep {name} is for another recipe or lattice: {text}", free)
    return sweep


def check_name(name: str, option: str = "--name") -> str:
    """Return the name if a new sweep may have it.

    Raises:
        InputError: it has other characters, or could be an option or a run id.
    """
    if not NAME.fullmatch(name) or name.endswith("."):
        raise InputError(
            f"{option} {name!r}: up to 64 letters, digits, dots, - and _ are expected, a letter or a digit first"
            + (f"; for example {valid}" if NAME.fullmatch(valid := plain(name)) and valid != name else "")
        )
    if is_run_id(name):
        raise InputError(f"{option} {name}: that could be a run's id; choose another")
    return name


def check_note(text: str) -> str:
    """Return the note if it can be shown in a terminal.

    Raises:
        InputError: it has control characters, or more than one line.
    """
    if not text.isprintable():
        raise InputError(f"a note is one line of text without control characters, got {text!r}")
    return text


def extend(results: Path, name: str, sweep_spec: SweepSpec, note: str | None = None) -> str:
    """Make a sweep, or add a spec to it if that adds anything; an archived sweep is archived no longer.

    Returns:
        A line on the change, for people; empty if nothing changed.

    Raises:
        SweepNameTakenError: the sweep of this name has another recipe or lattice.
        CorruptError: it cannot be read.
    """
    while True:  # until no other command writes at the same time
        sweep_store = load_sweep_store(results)
        sweep = agreeing(sweep_store, name, sweep_spec)
        entry = SweepVersion(
            asked=None if sweep and sweep.implies(sweep_spec) else sweep_spec,
            note=None if sweep and note == sweep.note else note,
            archived=False if sweep and sweep.archived else None,
        )
        if entry == SweepVersion():
            return ""
        if append(results, sweep_store, name, entry):
            change = "extended" if sweep and entry.asked else "changed" if sweep else "made"
            criterion = sweep.criterion_with(sweep_spec.criterion) if sweep else ""
            return (
                f"sweep {name} is {change}"
                + (", and no longer archived" if entry.archived is False else "")
                + (f"; {criterion} from now on" if criterion else "")
            )


def add(results: Path, name: str, entry: SweepVersion) -> None:
    """Write the next file of an existing sweep.

    Raises:
        InputError: there is no sweep of this name.
        CorruptError: it cannot be read.
    """
    while True:
        sweep_store = load_sweep_store(results)
        sweep_store.chosen([name])
        if append(results, sweep_store, name, entry):
            return


def propose(results: Path, name: str, suggestions: Sequence[Suggestion]) -> None:
    """Record suggestions of samplers in a sweep. Do so before submitting their runs, so that a kill loses none.

    Raises:
        InputError: there is no sweep of this name.
        CorruptError: it cannot be read.
    """
    add(results, name, SweepVersion(proposed=tuple(suggestions)))


def judge_by(results: Path, names: Iterable[str], stated: CriterionOptions) -> str:
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
            (sweep,) = sweep_store.chosen([name])
            change = sweep.criterion_with(stated)
            if not change or append(results, sweep_store, name, SweepVersion(criterion=stated)):
                break
        if change:
            changed.setdefault(change, []).append(name)
    return "\n".join(f"sweep {', '.join(sweeps)}: {change} from now on" for change, sweeps in changed.items())


def rename_sweep(results: Path, name: str, new: str) -> None:
    """Rename a sweep.

    Raises:
        InputError: there is no such sweep, the new name is taken or invalid, or a command follows the sweep.
        CorruptError: the sweep cannot be read.
    """
    check_name(new, "new name")
    sweep_store = load_sweep_store(results)
    sweep_store.chosen([name])
    if new in sweep_store.named or new in sweep_store.broken:
        raise InputError(f"there is a sweep {new} already; choose another name")
    # A command that follows the sweep would write its next file under the old name.
    for path, follower in followers(results, name).items():
        raise InputError(
            f"a command follows sweep {name} (process {follower.pid} on {follower.host}); end it first, its runs "
            f"continue; if it is gone, delete {path}"
        )
    folder = sweeps_dir(results) / name
    with storage_errors(folder):
        folder.rename(sweeps_dir(results) / new)


def followers(results: Path, name: str) -> dict[Path, Process]:
    """Return the processes that follow a sweep, by the file that each has written; dead ones are left out."""
    paths = (sweeps_dir(results) / name).glob("follower-*.json")
    processes = {path: Process.from_json(json_or_empty(path)) for path in paths}
    return {path: process for path, process in processes.items() if process and process.liveness() != "dead"}


@contextlib.contextmanager
def followed(results: Path, names: Iterable[str]) -> Iterator[None]:
    """Context in which this process follows sweeps; they cannot be renamed meanwhile."""
    paths = [sweeps_dir(results) / name / f"follower-{uuid.uuid4().hex}.json" for name in set(names)]
    try:
        for path in paths:
            write_atomic(path, dumps(process().to_json()))
        yield
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def append(results: Path, sweep_store: SweepStore, name: str, entry: SweepVersion) -> bool:
    """Write the next file of a sweep; `False` if another command was faster: then read the store again and retry."""
    number = len(sweep_store.named[name].entries) + 1 if name in sweep_store.named else 1
    return _write(sweeps_dir(results) / name / f"{number:04d}.yaml", entry, first=number == 1)


def _write(path: Path, entry: SweepVersion, *, first: bool) -> bool:
    """Create a file; `False` if it exists, or if its folder has been renamed."""
    if first:
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return write_atomic(path, dump_yaml(entry.model_dump(mode="json", exclude_none=True)), exclusive=True)
    except StorageError:
        if first or path.parent.is_dir():
            raise
        return False  # the sweep was renamed meanwhile: the caller reads the store again
