"""The program of a run: start it under a supervisor, signal it, wait for it, kill it."""

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
"""Environment variable of all processes of a run, its folder: it finds them without a supervisor."""


LEAVE_S = 10.0
"""Seconds for an idle program to end, with exit hooks, threads and children of its runs."""

KILL_S = 60.0
"""Seconds after which the worker kills a supervisor that has the order to kill; it waits for half of them at most."""


@dataclass(frozen=True)
class Command:
    """How to start the program of a run.

    Attributes:
        words: of the command.
        folder: its working folder.
        environment: its variables, except those of its run.
        srun: words that start a program on each node of a job, for a command on several.
        is_warm: whether it can train one run after the other, see `ettsweep.call`.
    """

    words: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    srun: tuple[str, ...] = ()
    is_warm: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of a run, as reported by its program.

    Attributes:
        code: exit code, negative for a signal; None if its supervisor was killed.
        reason: of the program itself.
        told: whether it ended on request.
        start_s: CPU seconds before its first metrics.
    """

    code: int | None
    reason: str = ""
    told: bool = False
    start_s: float = 0.0


class Program:
    """A running program, with all processes that it starts.

    Attributes:
        command: of the program.
        ended: ends of runs of this turn, by id.
        is_ready: whether it can take another turn; None during a turn.
        code: exit code of its leader, negative for a signal; None while it runs, or if its supervisor was killed.
        is_over: whether all of its processes have ended.
        pid: of its leader.
        left: names of its processes that outlived its leader, and were killed.
        memory_bytes: peak of its largest process; 0 if unknown.
    """

    def __init__(self, command: Command, runs: Sequence[Mapping[str, str]]) -> None:
        """Start a program.

        Args:
            command: of the program.
            runs: the variables of its first runs. Its output goes to ETTSWEEP_OUTPUT of the first of them.

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
                    start_new_session=True,  # keeps a Ctrl-C of a terminal away
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
            raise InputError(f"cannot start {command.words[0]}: {first.removeprefix('error ')}")
        self.pid = int(first.removeprefix("pid ")) if first.startswith("pid ") else 0
        if command.is_warm:
            self.begin(runs)

    @property
    def supervisor_pid(self) -> int:
        """Pid of its supervisor."""
        return self._process.pid

    def begin(self, runs: Sequence[Mapping[str, str]]) -> None:
        """Let it train runs, each given by its variables."""
        self._runs, self.ended, self.is_ready, self._has_begun = runs, {}, None, False
        with contextlib.suppress(OSError):  # it is gone: `wait` notices
            line = json.dumps([dict(each) for each in runs]).encode() + b"\n"
            while line:
                line = line[os.write(self._turns, line) :]

    def takes(self, runs: Sequence[Mapping[str, str]]) -> bool:
        """Give an idle program further runs; return whether it has begun, which a dead one has not."""
        if self.is_over or not self.is_ready:
            return False
        self.begin(runs)
        self.wait_until(lambda: self._has_begun or self._replies < 0, LEAVE_S)
        return self._has_begun

    def wait(self, timeout_s: float) -> None:
        """Wait for a report, but not longer than a number of seconds."""
        if self.is_over:
            return
        channels = [self._status, *([self._replies] if self._replies >= 0 else [])]
        ready, _, _ = select.select(channels, [], [], timeout_s)
        if self._replies in ready:
            self._take_replies()
        if self._status in ready:
            self._take_status()

    def wait_until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait until a condition holds or the program has ended, but not longer than a number of seconds."""
        until_s = time.monotonic() + limit_s
        while not (self.is_over or is_so()) and (left_s := until_s - time.monotonic()) > 0:
            self.wait(left_s)

    def _take_replies(self) -> bool:
        """Read reports on its runs; return whether there were any."""
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
        if not data:  # closed: it is about to end
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
        """Send a signal to its leader only."""
        self._say(str(int(number)))

    def kill(self) -> None:
        """Kill all of its processes, and wait for their end."""
        self._say("kill")
        self._wait_for_end(KILL_S)
        while not self.is_over:
            self._process.kill()  # its supervisor hangs; find all else by the environment
            self._wait_for_end(KILL_S)

    def leave(self) -> None:
        """End an idle program; give its children some time to end."""
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
            self._process.send_signal(signal.SIGCONT)  # it may be stopped with its group

    def _next_line(self, timeout_s: float | None) -> str | None:
        """Return the next line of the supervisor, empty if it is gone; None after a number of seconds."""
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
            silent = self.command.is_warm and self.code == 0  # it reports each run that ends by itself
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
    """The programs of a worker: at most one is idle."""

    def __init__(self) -> None:
        self._warm: Program | None = None

    def start(self, command: Command, runs: Sequence[Mapping[str, str]]) -> Program:
        """Train runs in the idle program, if it was started in the same way, else in a new one.

        Raises:
            InputError: it cannot be started.
        """
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.wait(0.0)
            if warm.command == command and warm.takes(runs):
                return warm
            # It may have the runs, and must not begin them late.
            warm.kill() if warm.is_ready is None else warm.leave()
        return Program(command, runs)

    def put_back(self, program: Program) -> None:
        """Keep a program for the next runs, if it can train some; else end it."""
        if program.command.is_warm:
            program.wait_until(lambda: program.is_ready is not None, LEAVE_S)
        if program.is_ready and not program.is_over:
            self._warm = program
        else:
            program.leave()

    def close(self) -> None:
        """End the idle program."""
        if self._warm is not None:
            self._warm.leave()
            self._warm = None


def kill_processes_of(out: str) -> list[int]:
    """Kill all processes of a run on this machine that a killed supervisor has left; return their pids.

    Args:
        out: folder of the run, as in ETTSWEEP_OUT: another results folder may have the same id.
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
    """Return living processes of this user with the folder of a run in their environment."""
    import psutil

    found = list[int]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().effective == os.geteuid() and process.environ().get(OUT_VARIABLE) == out:
                found.append(process.pid)
    return found


def processes_of_session(leaders: Collection[int]) -> list[int]:
    """Return living processes of this machine in sessions that these processes have begun."""
    import psutil

    found = list[int]()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in leaders and not _is_ending(pid):
                found.append(pid)
    return found


def _is_ending(pid: int) -> bool:
    """Whether a process has ended, or was killed and is exiting."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_DISK_SLEEP)
    return True
