"""Train runs one after the other in one process, to do slow imports once.

A worker starts such a program, and writes a line of JSON to its standard input for each turn: the variables of a run,
or of several to train at once. The program answers on the descriptor ETTSWEEP_REPLY, in lines of JSON: a turn starts, a
run has ended, it is ready for more. Without ETTSWEEP_REPLY, it trains the run of its environment, and ends.

`python -m ettsweep.call package.module:name` trains by a function, called with the `Run` and the arguments of its grid
file. Each run imports its module and those beside it again, since an earlier run may have changed them.
"""

import contextlib
import ctypes
import importlib
import importlib.metadata
import inspect
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ettsweep.errors import CorruptError, EttsweepError, error_line
from ettsweep.files import DISK_FULL, DISK_FULL_MESSAGE
from ettsweep.run import Run, RunEnd

REPLY = "ETTSWEEP_REPLY"

PR_SET_PDEATHSIG = 1
"""prctl option of Linux: signal this process when its parent dies."""

CORRUPT, NO_DEVICE = 65, 69
"""Exit codes: the checkpoint to resume from is damaged (EX_DATAERR); there is no such device (EX_UNAVAILABLE)."""

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that SLURM and terminals send to all processes of a job, besides SIGTERM."""

Ended = Callable[[Run, int, str], None]
"""Reports the end of a run: its exit code, and why."""

Train = Callable[[Sequence[Run], Ended], None]


def serve(train: Train, prepare: Callable[[Run], object] = lambda run: None) -> int:
    """Train the runs that a worker sends; return the exit code.

    Args:
        train: called with the runs of a turn. Runs that it has not reported have ended when it returns.
        prepare: called once, with the first run: its changes of this process stay.
    """
    runs, before, variables = list[Run](), tuple[object, ...](), dict[str, str]()

    def on_signal(number: int, frame: object) -> None:
        for run in runs:
            run.tell()
        if len(runs) == 1:
            runs[0].on_signal()

    heed_worker_alone()
    signal.signal(signal.SIGTERM, on_signal)
    # Forks of a run would inherit a handler that does nothing, and could not be terminated.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))

    def train_prepared(runs: Sequence[Run], ended: Ended) -> None:
        nonlocal before, variables
        if not before:
            try:
                prepare(runs[0])
            except EttsweepError as error:
                for run in runs:
                    ended(run, NO_DEVICE, str(error))
                return
            before, variables = _belongings(), dict(os.environ)
        train(runs, ended)

    if REPLY not in os.environ:
        runs.append(Run())
        code = [0]
        _turn(train_prepared, runs, lambda run, ended, reason: code.append(ended))
        return max(code)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    replies, turns = int(os.environ.pop(REPLY)), _take_input()
    os.set_inheritable(replies, False)

    def reply(**content: object) -> None:
        os.write(replies, json.dumps(content).encode() + b"\n")

    for line in turns:
        environments: list[dict[str, str]] = json.loads(line)
        os.environ.update(environments[0])
        _print_to(environments[0]["ETTSWEEP_OUTPUT"])
        reply(begun=True)  # from here on, these runs are responsible for this process
        runs[:] = [Run(environment=each) for each in environments]
        before, variables, is_clean = _belongings() if before else (), dict(os.environ), True

        def ended(run: Run, code: int, reason: str) -> None:
            nonlocal is_clean
            run.close()
            is_clean = is_clean and not code and not run.is_told
            reply(run=run.id, code=code, reason=reason, told=run.is_told, start_s=run.start_s)

        _turn(train_prepared, runs, ended)
        runs.clear()
        signal.signal(signal.SIGTERM, on_signal)
        _flush()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        for name in os.environ.keys() - variables.keys():  # set by imports, which do not need them again
            del os.environ[name]
        is_clean = is_clean and _belongings() == before and dict(os.environ) == variables
        reply(ready=is_clean, memory_bytes=memory)
        if not is_clean:
            break
    return 0


def _flush() -> None:
    """Redirect prints to the output of this run, also from C."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def heed_worker_alone() -> None:
    """Ignore signals that reach all processes of a job: the worker handles them."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def _turn(train: Train, runs: Sequence[Run], tell: Ended) -> None:
    """Train runs, and report how each ended, whatever training raises."""
    open_runs = {run.id: run for run in runs}

    def ended(run: Run, code: int, reason: str) -> None:
        if open_runs.pop(run.id, None):
            tell(run, code, reason)

    code, reason = 0, ""
    try:
        train(runs, ended)
    except RunEnd:
        pass
    except SystemExit as end:
        code, reason = _exit_code(end.code)
    except BaseException as error:  # a KeyboardInterrupt too: it ends only this run
        with contextlib.suppress(OSError):  # of a full disk: the reason is still reported
            traceback.print_exc()
        code, reason = 1, failure_text(error)
    for run in list(open_runs.values()):
        ended(run, code, reason)


def failure_text(error: BaseException) -> str:
    """Return why a run failed, in one line."""
    if isinstance(error, EttsweepError):
        return str(error)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"{error.filename}: {DISK_FULL_MESSAGE}" if error.filename else DISK_FULL_MESSAGE
    return error_line(error)


def failure_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    return CORRUPT if isinstance(error, CorruptError) else 1


def _exit_code(code: object) -> tuple[int, str]:
    """Return the exit code of sys.exit, and a reason."""
    if not code:
        return 0, ""
    if not isinstance(code, int):
        print(code, file=sys.stderr)
    return (code if isinstance(code, int) else 1), f"it called sys.exit({code!r})"


def _take_input() -> Any:
    """Return the lines of standard input, and hide it from runs."""
    own = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return os.fdopen(own, encoding="utf-8")


def _print_to(path: str) -> None:
    """Append all prints from here on to a file, whatever their source."""
    output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def _belongings() -> tuple[object, ...]:
    """Return state of this process, besides variables, that a run may leave to the next."""
    handlers = tuple(signal.getsignal(number) for number in IGNORED)
    threads = frozenset(thread.ident for thread in threading.enumerate())
    logging = sys.modules.get("logging")
    streams = id(sys.stdout), id(sys.stderr), *(map(id, logging.root.handlers) if logging else ())
    return os.getcwd(), threads, _children(), handlers, streams  # noqa: PTH109


def _children() -> frozenset[str]:
    """Return the processes below this one, and orphans that its supervisor adopted."""
    found = set[str]()
    for pid in ("self", str(os.getppid())):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.update(task.read_text(encoding="utf-8").split())
    return frozenset(found)


# --- functions --------------------------------------------------------------------------------------------------------

ARGUMENTS, FOLDERS, MODULE = "ETTSWEEP_ARGUMENTS", "ETTSWEEP_FOLDERS", "ETTSWEEP_MODULE"
"""Variables: further arguments of the function, in JSON; folders to import it from, before all installed ones; and the
file of its module."""


def call(name: str, run: Run) -> None:
    """Import a function, `module:name`, and call it.

    Raises:
        ImportError: Python has another module of that name.
    """
    folders = [Path(folder) for folder in os.environ[FOLDERS].split(os.pathsep)]
    module, _, attributes = name.partition(":")
    path = Path(os.environ[MODULE])
    for each, imported in list(sys.modules.items()):
        if each in _IMPORTED or _lies_in(imported, folders):
            del sys.modules[each]
    before, search_path = set(sys.modules), list(sys.path)
    sys.path[:0] = map(str, folders)
    importlib.invalidate_caches()
    try:
        target: Any = importlib.import_module(module)
        if not path.is_relative_to(folders[0]):
            print(_installed(module))
        if Path(str(target.__file__)).resolve() != path:
            raise ImportError(f"function: Python has another module {module}, {target.__file__}; rename {path}")
        for part in attributes.split("."):
            target = getattr(target, part)
        arguments = json.loads(os.environ[ARGUMENTS])
        inspect.signature(target).bind(run, **arguments)  # a TypeError that names the problem
        target(run, **arguments)
    finally:
        _IMPORTED.update(each for each in set(sys.modules) - before if _lies_in(sys.modules[each], folders))
        sys.path[:] = search_path


_IMPORTED: set[str] = set()
"""Modules that runs of this process imported from the folders of their grid files."""


def _installed(module: str) -> str:
    """Return the installed package of a module, and its version."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], ())
    return f"{module} is of {', '.join(f'{name} {importlib.metadata.version(name)}' for name in names) or 'no package'}"


def _lies_in(module: object, folders: Sequence[Path]) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not {*folders}.isdisjoint(Path(str(file)).resolve().parents)


def main(name: str) -> int:
    """Train runs by a function until no more are sent; return the exit code."""

    def train(runs: Sequence[Run], ended: Ended) -> None:
        call(name, runs[0])

    return serve(train)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
