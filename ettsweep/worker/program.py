"""The program that trains a run, as its worker sees it: started under a supervisor, signalled, waited for, killed."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ettsweep.call import REPLY
from ettsweep.errors import InputError

SUPERVISOR = Path(__file__).with_name("supervisor.py")

OUT_VARIABLE = "ETTSWEEP_OUT"
"""Environment variable of all processes of a run: its folder, by which they are found where no supervisor is left."""


LEAVE_S = 10.0
"""Seconds that a program has to end which waits for a turn: exit hooks, threads and children of its runs may end."""

KILL_S = 60.0
"""Seconds after which a supervisor that was told to kill is killed itself; it waits for half of them at most."""


@dataclass(frozen=True)
class Command:
    """How a program is started that trains a run.

    Attributes:
        words: of the command.
        folder: where it runs.
        environment: all of its variables, but those of its run.
        srun: what starts a program on each node of a job, for a command that runs on several.
        is_warm: whether it takes one run after the other, see `ettsweep.call`.
    """

    words: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    srun: tuple[str, ...] = ()
    is_warm: bool = False


@dataclass(frozen=True)
class Ended:
    """How a run has ended, as far as its program tells.

    Attributes:
        code: exit code, negative for a signal; None if its supervisor was killed.
        reason: why, if the program says so itself.
        told: whether it has left since it was told to stop.
        start_s: CPU seconds before its first metrics.
    """

    code: int | None
    reason: str = ""
    told: bool = False
    start_s: float = 0.0


class Program:
    """A program that runs, with all processes that it starts.

    Attributes:
        command: what was started.
        ended: how runs of this turn have ended, by id.
        is_ready: whether it can take another turn; None during a turn.
        code: exit code of its leader, negative for a signal; None while it runs, or if its supervisor was killed.
        is_over: whether it has ended, and no process of it is left.
        pid: of its leader.
        left: names of its processes that had not ended with its leader, and were killed.
        memory_bytes: peak of its largest process; 0 if it is not known.
    """

    def __init__(self, command: Command, runs: Sequence[Mapping[str, str]]) -> None:
        """Start a program.

        Args:
            command: how.
            runs: the variables of the runs that it trains first. What it prints is appended to the first's
                ETTSWEEP_OUTPUT.

        Raises:
            InputError: it cannot be started.
        """
        self.command = command
        self._runs = runs
        self.code: int | None = None
        self.ended = dict[str, Ended]()
        self.is_over = False
        self.is_ready: bool | None = None
        self._has_begun = False
        self.left: tuple[str, ...] = ()
        self.memory_bytes = 0
        self._told, self._replied = b"", b""
        self._status, child_status = os.pipe()
        self._replies, self._turns, pipes, mode = -1, -1, [child_status], ""
        environment = {**command.environment, **(runs[0] if not command.is_warm else {})}
        if command.is_warm:
            self._replies, child_replies = os.pipe()
            os.set_blocking(self._replies, False)
            child_turns, self._turns = os.pipe()
            pipes += [child_replies, child_turns]
            environment[REPLY] = str(child_replies)
            mode = f":input={child_turns}"
        supervisor = [sys.executable, "-I", "-S", str(SUPERVISOR)]
        words = (
            [f"{child_status}:relay", *command.srun, *supervisor, "-"] if command.srun else [f"{child_status}{mode}"]
        )
        try:
            with Path(runs[0]["ETTSWEEP_OUTPUT"]).open("ab") as file:
                self._process = subprocess.Popen(
                    [*supervisor, *words, *command.words],
                    cwd=command.folder,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    pass_fds=pipes,
                    bufsize=0,
                    start_new_session=True,  # so that a Ctrl-C at a terminal does not reach it
                )
        except OSError:
            self._close_pipes()
            raise
        finally:
            for descriptor in pipes:
                os.close(descriptor)
        self.pid = 0
        first = self._next_line(None) or ""
        if first.startswith("error "):
            self._end()
            raise InputError(f"{command.words[0]}: cannot be started: {first.removeprefix('error ')}")
        self.pid = int(first.removeprefix("pid ")) if first.startswith("pid ") else 0
        if command.is_warm:
            self.begin(runs)

    @property
    def supervisor_pid(self) -> int:
        """Pid of its supervisor."""
        return self._process.pid

    def begin(self, runs: Sequence[Mapping[str, str]]) -> None:
        """Have it train runs, each given by its variables."""
        self._runs, self.ended, self.is_ready, self._has_begun = runs, {}, None, False
        with contextlib.suppress(OSError):  # it is gone: `wait` tells
            line = json.dumps([dict(each) for each in runs]).encode() + b"\n"
            while line:
                line = line[os.write(self._turns, line) :]

    def takes(self, runs: Sequence[Mapping[str, str]]) -> bool:
        """Give a waiting program further runs; return whether it has begun. One that has died meanwhile has not."""
        if self.is_over or not self.is_ready:
            return False
        self.begin(runs)
        self.wait_until(lambda: self._has_begun or self._replies < 0, LEAVE_S)
        return self._has_begun

    def wait(self, timeout_s: float) -> None:
        """Wait until it tells something, but not longer than so many seconds."""
        if self.is_over:
            return
        channels = [self._status, *([self._replies] if self._replies >= 0 else [])]
        ready, _, _ = select.select(channels, [], [], timeout_s)
        if self._replies in ready:
            self._take_replies()
        if self._status in ready:
            self._take_status()

    def wait_until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait until something is so or the program has ended, but not longer than so many seconds."""
        until_s = time.monotonic() + limit_s
        while not (self.is_over or is_so()) and (left_s := until_s - time.monotonic()) > 0:
            self.wait(left_s)

    def _take_replies(self) -> bool:
        """Take what it says of its runs; return whether there was something."""
        try:
            data = os.read(self._replies, 65536)
        except BlockingIOError:
            return False
        *lines, self._replied = (self._replied + data).split(b"\n")
        for line in lines:
            content = json.loads(line)
            if (run := content.pop("run", None)) is not None:
                self.ended[run] = Ended(**content)
            elif "begun" in content:
                self._has_begun = True
            else:
                self.is_ready, self.memory_bytes = content["ready"], content["memory_bytes"]
        if not data:  # it has closed it: it is about to end
            os.close(self._replies)
            self._replies = -1
        return bool(data)

    def _take_status(self) -> None:
        while not self.is_over and (line := self._next_line(0.0)) is not None:
            word, _, rest = line.partition(" ")
            if word == "left":
                self.left = tuple(rest.split())
            elif word == "memory":
                self.memory_bytes = int(rest)
            else:
                if word == "exit":
                    self.code = int(rest)
                self._end()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its leader alone, which may pass it on."""
        self._say(str(int(number)))

    def kill(self) -> None:
        """Kill all of its processes, and wait until none is left."""
        self._say("kill")
        self._wait_for_end(KILL_S)
        while not self.is_over:
            self._process.kill()  # whatever holds its supervisor; all else is found by its environment
            self._wait_for_end(KILL_S)

    def leave(self) -> None:
        """Have a program end that waits for a turn; what it has started may end by itself, in some time."""
        if self._turns >= 0:
            os.close(self._turns)
            self._turns = -1
        self._wait_for_end(LEAVE_S)
        if not self.is_over:
            self.kill()

    def _wait_for_end(self, limit_s: float) -> None:
        self.wait_until(lambda: False, limit_s)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended already
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGCONT)  # it may have been stopped with the rest of its group

    def _next_line(self, timeout_s: float | None) -> str | None:
        """Return the next line of the supervisor, empty if it is gone; None after so many seconds."""
        while b"\n" not in self._told:
            if not select.select([self._status], [], [], timeout_s)[0]:
                return None
            if not (data := os.read(self._status, 4096)):
                return ""
            self._told += data
        line, _, self._told = self._told.partition(b"\n")
        return line.decode(errors="replace")

    def _end(self) -> None:
        while self._replies >= 0 and self._take_replies():
            pass
        self.is_over = True
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._close_pipes()
        self._process.wait()
        for run in self._runs:
            if self.code is None:
                kill_processes_of(run[OUT_VARIABLE])
            silent = self.command.is_warm and self.code == 0  # it tells of each run that ends by itself
            ended = Ended(1, "its process exited with code 0 before the run ended") if silent else Ended(self.code)
            self.ended.setdefault(run["ETTSWEEP_RUN"], ended)
        for pid in processes_of_session({self.pid}) if self.code is None and self.pid else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _close_pipes(self) -> None:
        for descriptor in (self._status, self._turns, self._replies):
            if descriptor >= 0:
                os.close(descriptor)
        self._turns = self._replies = -1


class Programs:
    """The programs of a worker: at most one waits for its next runs."""

    def __init__(self) -> None:
        self._warm: Program | None = None

    def start(self, command: Command, runs: Sequence[Mapping[str, str]]) -> Program:
        """Have a program train runs: the one that waits, if it was started in the same way, else a new one.

        Raises:
            InputError: it cannot be started.
        """
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.wait(0.0)
            if warm.command == command and warm.takes(runs):
                return warm
            # If it has been given the runs, it must not begin them late.
            warm.kill() if warm.is_ready is None else warm.leave()
        return Program(command, runs)

    def put_back(self, program: Program) -> None:
        """Keep a program for the next runs, if it can take some; else end it."""
        if program.command.is_warm:
            program.wait_until(lambda: program.is_ready is not None, LEAVE_S)
        if program.is_ready and not program.is_over:
            self._warm = program
        else:
            program.leave()

    def close(self) -> None:
        """End the program that waits."""
        if self._warm is not None:
            self._warm.leave()
            self._warm = None


def kill_processes_of(out: str) -> list[int]:
    """Kill all processes of a run on this machine, which a supervisor that was killed has left; return their pids.

    Args:
        out: folder of the run, as ETTSWEEP_OUT has it: a run of the same id in another results folder is another.
    """
    killed = dict[int, None]()
    while found := [pid for pid in processes_of(out) if pid != os.getpid()]:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not set(found) - killed.keys() and len(killed) > 0 and all(_is_ending(pid) for pid in found):
            break
        killed |= dict.fromkeys(found)
    return list(killed)


def processes_of(out: str) -> list[int]:
    """Return the processes of this user with the folder of a run in their environment that have not ended."""
    import psutil

    found = list[int]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().effective == os.geteuid() and process.environ().get(OUT_VARIABLE) == out:
                found.append(process.pid)
    return found


def processes_of_session(leaders: Collection[int]) -> list[int]:
    """Return the processes of this machine whose sessions these processes have begun, that have not ended."""
    import psutil

    found = list[int]()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in leaders and not _is_ending(pid):
                found.append(pid)
    return found


def _is_ending(pid: int) -> bool:
    """Whether a process has ended, or was killed and is still on its way out."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_DISK_SLEEP)
    return True
