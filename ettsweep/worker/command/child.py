"""A command in training, as its worker sees it: started under a supervisor, signalled, waited for, killed."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ettsweep.errors import InputError

SUPERVISOR = Path(__file__).with_name("supervisor.py")

OUT_VARIABLE = "ETTSWEEP_OUT"
"""Environment variable of all processes of a run: its folder, by which they are found where no supervisor is left."""


KILL_S = 60.0
"""Seconds after which a supervisor that was told to kill is killed itself; it waits for half of them at most."""


class Child:
    """A command that runs, with all processes that it starts.

    Attributes:
        code: exit code of its leader, negative for a signal; None while it runs, or if its supervisor was killed.
        is_over: whether it has ended, and no process of it is left.
        pid: of its leader.
        left: names of its processes that had not ended with its leader, and were killed.
        memory_bytes: peak of its largest process; 0 if it is not known.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: Path,
        srun: Sequence[str] = (),
    ) -> None:
        """Start a command; its standard output and error are appended to a file.

        Args:
            command: its words.
            folder: where it runs.
            environment: all of its variables.
            output: the file.
            srun: what starts a program on each node of a job, for a command that runs on several.

        Raises:
            InputError: it cannot be started.
        """
        self._out = environment[OUT_VARIABLE]
        self.code: int | None = None
        self.is_over = False
        self.left: tuple[str, ...] = ()
        self.memory_bytes = 0
        status, child_status = os.pipe()
        supervisor = [sys.executable, "-I", "-S", str(SUPERVISOR)]
        words = [f"{child_status}:relay", *srun, *supervisor, "-"] if srun else [str(child_status)]
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [*supervisor, *words, *command],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[child_status],
                bufsize=0,
                start_new_session=True,  # so that a Ctrl-C at a terminal does not reach it
            )
        os.close(child_status)
        self._status, self._told = status, b""
        first = self._next_line(None) or ""
        if first.startswith("error "):
            self._end()
            raise InputError(f"{command[0]}: cannot be started: {first.removeprefix('error ')}")
        self.pid = int(first.removeprefix("pid ")) if first.startswith("pid ") else 0

    @property
    def supervisor_pid(self) -> int:
        """Pid of its supervisor."""
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, but not longer than so many seconds; return whether it has ended."""
        while not self.is_over and (line := self._next_line(timeout_s)) is not None:
            word, _, rest = line.partition(" ")
            if word == "left":
                self.left = tuple(rest.split())
            elif word == "memory":
                self.memory_bytes = int(rest)
            else:
                if word == "exit":
                    self.code = int(rest)
                self._end()
        return self.is_over

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its leader alone, which may pass it on."""
        self._say(str(int(number)))

    def kill(self) -> None:
        """Kill all of its processes, and wait until none is left."""
        self._say("kill")
        while not self.wait(KILL_S):
            self._process.kill()  # whatever holds its supervisor; all else is found by its environment

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
        self.is_over = True
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        os.close(self._status)
        self._process.wait()
        if self.code is None:
            kill_processes_of(self._out)


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
    wanted, found = f"{OUT_VARIABLE}={out}".encode(), list[int]()
    for name in os.listdir("/proc") if Path("/proc/self/environ").exists() else ():
        if name.isdigit():
            with contextlib.suppress(OSError):
                path = Path("/proc", name)
                if path.stat().st_uid == os.geteuid() and wanted in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def processes_of_session(leaders: Collection[int]) -> list[int]:
    """Return the processes of this machine whose sessions these processes have begun, that have not ended."""
    found = list[int]()
    for name in os.listdir("/proc") if Path("/proc/self/environ").exists() else ():
        if name.isdigit() and not _is_ending(int(name)):
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) in leaders:
                    found.append(int(name))
    return found


def _is_ending(pid: int) -> bool:
    """Whether a process that was killed is still on its way out."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in "ZXD"
    return True
