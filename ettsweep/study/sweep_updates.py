"""Changes to sweeps: more is asked for, a criterion, a name or a note given, one archived; and who follows one."""

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
    """Return the sweep of a name, which a request extends, or None where the name is free.

    Raises:
        TakenError: the request is not for the same recipe and lattice.
        CorruptError: the sweep cannot be read.
    """
    if name in sweep_store.broken:
        raise CorruptError(sweep_store.broken[name])
    sweep = sweep_store.named.get(name)
    if sweep and (found := differences(sweep.sweep_specs, sweep_spec)):
        told = "; ".join(found.values())
        taken = sweep_store.named.keys() | sweep_store.broken.keys()
        free = next(other for other in numbered(plain(f"{name}-{next(iter(found))}")) if other not in taken)
        raise SweepNameTakenError(f"sweep {name} asks for something else: {told}", free)
    return sweep


def check_name(name: str, option: str = "--name") -> str:
    """Return a name that a new sweep may have.

    Raises:
        InputError: it could be a path, another option, or a run.
    """
    if not NAME.fullmatch(name) or name.endswith("."):
        raise InputError(
            f"{option} {name!r}: up to 64 letters, digits, dots, - and _ are expected, a letter or a digit first"
            + (f"; {better} would do" if NAME.fullmatch(better := plain(name)) and better != name else "")
        )
    if is_run_id(name):
        raise InputError(f"{option} {name}: that could be a run's id; choose another")
    return name


def check_note(text: str) -> str:
    """Return a note that can be shown anywhere.

    Raises:
        InputError: it has control characters, or more than one line.
    """
    if not text.isprintable():
        raise InputError(f"a note is one line of text without control characters, got {text!r}")
    return text


def extend(results: Path, name: str, sweep_spec: SweepSpec, note: str | None = None) -> str:
    """Keep a request under a name, where it says more than what is there; an archived sweep is shown again.

    Return what that did, for people; nothing where it said nothing new.

    Raises:
        TakenError: other things were asked for under this name.
        CorruptError: what was asked for under this name cannot be read.
    """
    while True:
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
            done = "extended" if sweep and entry.asked else "changed" if sweep else "made"
            judged = sweep.criterion_with(sweep_spec.criterion) if sweep else ""
            return (
                f"sweep {name} is {done}"
                + (", and no longer archived" if entry.archived is False else "")
                + (f"; {judged} from now on" if judged else "")
            )


def add(results: Path, name: str, entry: SweepVersion) -> None:
    """Write a further file of a sweep that is there.

    Raises:
        InputError: there is none of this name.
        CorruptError: it cannot be read.
    """
    while True:
        sweep_store = load_sweep_store(results)
        sweep_store.chosen([name])
        if append(results, sweep_store, name, entry):
            return


def propose(results: Path, name: str, suggestions: Sequence[Suggestion]) -> None:
    """Keep with a sweep what proposers chose, before it is run.

    Raises:
        InputError: there is none of this name.
        CorruptError: it cannot be read.
    """
    add(results, name, SweepVersion(proposed=tuple(suggestions)))


def judge_by(results: Path, names: Iterable[str], stated: CriterionOptions) -> str:
    """Keep with sweeps what is stated of how their verdicts are given, where that is new; return what is, for people.

    Raises:
        InputError: there is none of a name.
        CorruptError: one cannot be read.
    """
    changed: dict[str, list[str]] = {}
    for name in names:
        while True:
            sweep_store = load_sweep_store(results)
            (sweep,) = sweep_store.chosen([name])
            news = sweep.criterion_with(stated)
            if not news or append(results, sweep_store, name, SweepVersion(criterion=stated)):
                break
        if news:
            changed.setdefault(news, []).append(name)
    return "\n".join(f"sweep {', '.join(judged)}: {news} from now on" for news, judged in changed.items())


def rename_sweep(results: Path, name: str, new: str) -> None:
    """Give a sweep another name.

    Raises:
        InputError: there is none, the new name is taken or may not be one, or a command follows the sweep.
        CorruptError: it cannot be read.
    """
    check_name(new, "new name")
    sweep_store = load_sweep_store(results)
    sweep_store.chosen([name])
    if new in sweep_store.named or new in sweep_store.broken:
        raise InputError(f"there is a sweep {new} already; choose another name")
    for path, other in followers(results, name).items():
        raise InputError(
            f"a command follows sweep {name} (process {other.pid} on {other.host}); end it first, its runs go on; "
            f"if it is gone, delete {path}"
        )
    folder = sweeps_dir(results) / name
    with storage_errors(folder):
        folder.rename(sweeps_dir(results) / new)


def followers(results: Path, name: str) -> dict[Path, Process]:
    """Return the processes that follow a sweep, as far as can be seen, by the note that each has left."""
    notes = (sweeps_dir(results) / name).glob("follower-*.json")
    paths = {path: Process.from_json(json_or_empty(path)) for path in notes}
    return {path: process for path, process in paths.items() if process and process.liveness() != "dead"}


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


def append(results: Path, sweep_store: SweepStore, name: str, entry: SweepVersion) -> bool:
    """Write the next file of a sweep; False where another command was faster, and all is to be looked at again."""
    number = len(sweep_store.named[name].entries) + 1 if name in sweep_store.named else 1
    return _write(sweeps_dir(results) / name / f"{number:04d}.yaml", entry, first=number == 1)


def _write(path: Path, entry: SweepVersion, *, first: bool) -> bool:
    """Write a file that is not there; False where it is, or where its sweep has another name by now."""
    if first:
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return write_atomic(path, dump_yaml(entry.model_dump(mode="json", exclude_none=True)), exclusive=True)
    except StorageError:
        if first or path.parent.is_dir():
            raise
        return False
