"""A process that has imported torch, and others that are forked from it: for tests that only need a warm torch.

It is forked from while torch has no threads yet. Its requests and answers are lines of JSON, see `serve`.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from support import holds


class Forks:
    """The process that others are forked from, as tests see it."""

    def __init__(self, errors: Path) -> None:
        """Start it; nothing that it prints may be a warning."""
        self._errors = errors
        # What is freed goes back to the system at once, so that the peak of memory is what was held.
        env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "100000", "MALLOC_TRIM_THRESHOLD_": "100000"}
        tests = Path(__file__).parents[1]
        env["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent), env.get("PYTHONPATH", "")])
        command, pipe = [sys.executable, "-m", "support.forks"], subprocess.PIPE
        with errors.open("w") as file:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=env)

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what `module:function` returns in a process of its own."""
        answer = self._ask({"function": function, "arguments": arguments})
        assert "value" in answer, answer
        return answer["value"]

    def start(self, function: str, *arguments: Any, env: dict[str, str], output: Path) -> int:
        """Run `module:function` in a session of its own, and go on; return the process."""
        return int(self._ask({"function": function, "arguments": arguments, "env": env, "output": str(output)})["pid"])

    def close(self) -> None:
        """End it, and see that it had nothing to complain about."""
        self._process.communicate(timeout=180)
        assert (self._process.returncode, self._errors.read_text()) == (0, "")

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()
        return json.loads(line)


class WarmWorkers:
    """What stands for `subprocess` where workers of this machine are started: they are forked instead."""

    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._started: list[int] = []  # descriptors of processes

    def Popen(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **_: Any) -> Any:  # noqa: N802
        """Start `python -m ettsweep.worker ...`."""
        arguments = command[command.index("ettsweep.worker") + 1 :]
        pid = self._forks.start("ettsweep.worker.__main__:main", arguments, env=env, output=Path(stdout.name))
        self._started.append(os.pidfd_open(pid))  # it is there at least as a zombie until the next is asked for
        return SimpleNamespace(pid=pid)

    def end(self) -> None:
        """Kill those that are left."""
        for descriptor in self._started:
            # Not by number: minutes later it may be that of another process, or of one of its threads.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


@contextlib.contextmanager
def warm_workers(forks: Forks) -> Iterator[None]:
    """Have workers of this machine start at once; tests that kill them want real ones."""
    workers = WarmWorkers(forks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ettsweep.launch.local.subprocess", workers)
        yield
    workers.end()


# --- the process itself ---------------------------------------------------------------------------------------------


def serve() -> None:
    """Do what each line of the input asks for, and answer with a line."""
    import torch._dynamo.config  # all of it: what is forked may need it

    import support.killed_run
    import support.side_by_side  # noqa: F401  # what they import is warm too

    # torch makes its pool of threads anew in the first thread of a fork that asks for it, and a second one that asks
    # meanwhile finds none and aborts: so each fork asks before it has a second.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)]).step()  # the first step of a process imports for a second
    for line in sys.stdin:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        request = json.loads(line)
        print(json.dumps(_start(**request) if "output" in request else _call(**request)), flush=True)


def _call(function: str, arguments: list[Any]) -> dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _be_quiet(os.open(os.devnull, os.O_WRONLY))
        try:
            answer = {"value": _resolve(function)(*arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": f"it ended with {status}"}


def _start(function: str, arguments: list[Any], env: dict[str, str], output: str) -> dict[str, Any]:
    log = os.open(output, os.O_WRONLY | os.O_APPEND)
    pid = os.fork()
    if pid:
        os.close(log)
        return {"pid": pid}
    os.setsid()
    os.dup2(log, 2)
    _be_quiet(log)
    os.environ.clear()
    os.environ.update(env)
    if holds.VARIABLE in env:
        holds.hold_at_checkpoints()
    code = 1
    try:
        code = _resolve(function)(*arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _be_quiet(output: int) -> None:
    """Leave the lines between this process and its parent alone."""
    os.dup2(output, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _resolve(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve()
