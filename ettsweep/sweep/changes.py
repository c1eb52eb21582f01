"""Changes to sweeps: more is asked for, a name or a note is given, one is archived; and who follows one."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from ettsweep.errors import CorruptError, InputError, TakenError
from ettsweep.files import dumps, json_or_empty, storage_errors, write_atomic
from ettsweep.processes import Process, process
from ettsweep.runs.folder import is_run_id, sweeps_dir
from ettsweep.sweep.agreement import differences
from ettsweep.sweep.search import Request
from ettsweep.sweep.sweeps import NAME, Entry, Sweep, Sweeps, load_sweeps, numbered, plain


def agreeing(sweeps: Sweeps, name: str, request: Request) -> Sweep | None:
    """Return the sweep of a name, which a request extends, or None where the name is free.

    Raises:
        TakenError: the request is not for the same recipe and lattice.
        CorruptError: the sweep cannot be read.
    """
    if name in sweeps.broken:
        raise CorruptError(sweeps.broken[name])
    sweep = sweeps.named.get(name)
    if sweep and (found := differences(sweep.requests, request)):
        told = "; ".join(found.values())
        taken = sweeps.named.keys() | sweeps.broken.keys()
        free = next(other for other in numbered(plain(f"{name}-{next(iter(found))}")) if other not in taken)
        raise TakenError(f"sweep {name} asks for something else: {told}", free)
    return sweep


def check_name(name: str) -> str:
    """Return a name that a new sweep may have.

    Raises:
        InputError: it could be a path, another option, or a run.
    """
    if not NAME.fullmatch(name) or name.endswith("."):
        raise InputError(
            f"--name {name!r}: up to 64 letters, digits, dots, - and _ are expected, a letter or a digit first"
            + (f"; --name {better} would do" if NAME.fullmatch(better := plain(name)) and better != name else "")
        )
    if is_run_id(name):
        raise InputError(f"--name {name}: that could be a run's id; choose another")
    return name


def extend(results: Path, name: str, request: Request, note: str | None = None) -> None:
    """Keep a request under a name, where it says more than what is there.

    Raises:
        TakenError: other things were asked for under this name.
        CorruptError: what was asked for under this name cannot be read.
    """
    while True:
        sweeps = load_sweeps(results)
        sweep = agreeing(sweeps, name, request)
        asked = None if sweep and sweep.implies(request) else request
        entry = Entry(asked=asked, note=None if sweep and note == sweep.note else note)
        if entry == Entry() or append(results, sweeps, name, entry):
            return


def add(results: Path, name: str, entry: Entry) -> None:
    """Write a further file of a sweep that is there.

    Raises:
        InputError: there is none of this name.
        CorruptError: it cannot be read.
    """
    while True:
        sweeps = load_sweeps(results)
        sweeps.chosen([name])
        if append(results, sweeps, name, entry):
            return


def rename_sweep(results: Path, name: str, new: str) -> None:
    """Give a sweep another name.

    Raises:
        InputError: there is none, the new name is taken or may not be one, or a command follows the sweep.
        CorruptError: it cannot be read.
    """
    check_name(new)
    sweeps = load_sweeps(results)
    if sweeps.chosen([name])[0].unnamed:
        add(results, name, Entry())  # from here on, all that earlier versions kept has a folder
    if new in sweeps.named or new in sweeps.broken:
        raise InputError(f"there is a sweep {new} already; choose another name")
    folder = sweeps_dir(results) / name
    for path in folder.glob("follower-*.json"):
        other = Process.from_json(json_or_empty(path))
        if other and other.liveness() != "dead":
            raise InputError(
                f"a command follows sweep {name} (process {other.pid} on {other.host}); end it first, its runs go on"
            )
    with storage_errors(folder):
        folder.rename(sweeps_dir(results) / new)


@contextlib.contextmanager
def followed(results: Path, names: Iterable[str]) -> Iterator[None]:
    """Show to others that this process follows some sweeps, which keep their names meanwhile."""
    notes = [sweeps_dir(results) / name / f"follower-{uuid.uuid4().hex}.json" for name in set(names)]
    try:
        for path in notes:
            write_atomic(path, dumps(process().to_json()))
        yield
    finally:
        for path in notes:
            path.unlink(missing_ok=True)


def append(results: Path, sweeps: Sweeps, name: str, entry: Entry) -> bool:
    """Write the next file of a sweep; False where another command was faster, and all is to be looked at again."""
    news = {sweep.name: sweep.unnamed for sweep in sweeps.named.values()}
    news[name] = (*news.get(name, ()), entry)
    for other, entries in news.items():
        last = len(sweeps.named[other].entries) if other in sweeps.named else 0
        for number, new in enumerate(entries, last + 1):
            if not _write(sweeps_dir(results) / other / f"{number:04d}.yaml", new):
                return False
    return True


def _write(path: Path, entry: Entry) -> bool:
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    data = entry.model_dump(mode="json", exclude_none=True)
    return write_atomic(path, yaml.safe_dump(data, sort_keys=False), exclusive=True)
