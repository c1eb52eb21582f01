"""Supervise a command of a run: pass signals on to its leader, and leave none of its processes behind.

    python -I -S supervisor.py DESCRIPTOR PROGRAM ARGUMENT ...

It runs between a worker and a command, and reads orders from standard input. When that ends, since the worker is gone,
it kills all processes that are left. It imports nothing of ettsweep, to start quickly.

Standard input: a line with the number of a signal for the leader (SIGCONT: for its group), or `kill` for all of its
processes.
File descriptor: `pid PID` once the leader runs, or `error TEXT` if it cannot start. After the end of all processes,
`left NAME ...` of those that it killed, `memory BYTES`, the peak of the largest process, and `exit CODE`. Standard
output, error and exit code are the leader's.

`:input=DESCRIPTOR` behind the descriptor is the leader's standard input, which is empty otherwise.

If the leader is srun, its program is another supervisor on each node, with `-` for the descriptor: srun would kill its
tasks at a signal. With `:relay` behind the descriptor, this supervisor passes lines of standard input to srun, which
sends them to all nodes.
"""

import contextlib
import os
import resource
import select
import signal
import sys
import time

CONTROL = 0

PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's sys/prctl.h: orphans below this process become its children, and none escapes."""

KILL_S = 30.0
"""Seconds to wait for killed processes: one in the kernel dies when it leaves it."""


ENDING_S = 0.2
"""Seconds for processes to end by themselves with their leader, such as one that waits for its pipe to close."""

RELAY_S = 10.0
"""Seconds for srun to end after its tasks were killed; then it is killed."""


def main() -> int:
    """Run the command; return the exit code of its leader."""
    told, *command = sys.argv[1:]
    descriptor, _, mode = told.partition(":")
    relays, status = mode == "relay", None if descriptor == "-" else int(descriptor)
    given = int(mode.removeprefix("input=")) if mode.startswith("input=") else None
    if status is not None:
        os.set_inheritable(status, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        # SLURM and terminals signal all processes of a job: the worker decides.
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(Exception):  # on macOS there is none
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        leader, relay = _start(command, relays, given)
    except OSError as error:
        _tell(status, f"error {error.strerror}")
        return 1
    _tell(status, f"pid {leader}")
    code = _wait(leader, woken, relay)
    left = _left()
    _kill_rest()
    if left:
        _tell(status, f"left {' '.join(left)}")
    unit = 1 if sys.platform == "darwin" else 1024
    _tell(status, f"memory {unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}")
    _tell(status, f"exit {code}")
    return code if code >= 0 else 128 - code


def _start(command: list[str], relays: bool, given: "int | None") -> tuple[int, "int | None"]:
    """Start the leader; return its pid and, if it relays, the descriptor of its standard input."""
    signals = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
    read, write = os.pipe() if relays else (given, None)
    leader = os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0) if read is None else (os.POSIX_SPAWN_DUP2, read, 0)
        ],
        setsigmask=(),
        setsigdef=signals,
        setsid=True,  # signals of a terminal do not reach it
    )
    if read is not None:
        os.close(read)
    return leader, write


def _wait(leader: int, woken: int, relay: "int | None") -> int:
    """Follow the worker's orders until the leader has ended; return its exit code, negative for a signal."""
    lines, until_s = b"", None
    while True:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        ready, _, _ = select.select([woken] if until_s else [CONTROL, woken], [], [], left_s)
        if woken in ready:
            os.read(woken, 4096)
            # Orphans of the command end here too.
            while (ended := _reap()) is not None:
                pid, status = ended
                if pid == leader:
                    return -signal.SIGKILL if until_s else os.waitstatus_to_exitcode(status)
        if until_s is not None and not ready:
            _kill(leader)
            return -signal.SIGKILL
        if CONTROL in ready:
            data = os.read(CONTROL, 4096)
            *whole, lines = (lines + data).split(b"\n")
            is_over = b"kill" in whole or not data
            if relay is not None:
                with contextlib.suppress(OSError):
                    os.write(relay, b"".join(line + b"\n" for line in whole))
                if is_over:
                    os.close(relay)  # kills processes on other nodes, and ends the leader
                    until_s = time.monotonic() + RELAY_S
            else:
                for line in whole:
                    if line != b"kill":
                        with contextlib.suppress(OSError, ValueError):
                            # A stopped process was usually stopped with its group, and the leader may wait for it.
                            os.kill(-leader if int(line) == signal.SIGCONT else leader, int(line))
                if is_over:
                    _kill(leader)
                    return -signal.SIGKILL


def _kill(leader: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(leader, signal.SIGKILL)
    _kill_rest()


def _reap() -> "tuple[int, int] | None":
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _left() -> list[str]:
    """Return the names of processes that do not end with their leader."""
    until_s = time.monotonic() + ENDING_S
    while (below := _below()) and time.monotonic() < until_s:
        time.sleep(0.005)
        while _reap() is not None:
            pass
    names = list[str]()
    for pid in below:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            names.append("_".join(file.read().split()))
    return names


def _kill_rest() -> None:
    """Kill all processes below this one until none is left."""
    until_s = time.monotonic() + KILL_S
    while time.monotonic() < until_s:
        below = _below()
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        while _reap() is not None:
            pass
        if not below:
            return
        time.sleep(0.005)


def _below() -> list[int]:
    """Return the processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    ended = set[int]()
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112  pathlib takes 10 ms
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent, *_, threads = file.read().rpartition(b")")[2].split()[:18]
            except OSError:
                continue
            children.setdefault(int(parent), []).append(int(name))
            if state in b"ZX" and int(threads) <= 1:  # its first thread alone may have ended
                ended.add(int(name))
    found, open_pids = list[int](), [os.getpid()]
    while open_pids:
        # Below ended ones too: while a killed process has threads, its children are still its own.
        pids = children.get(open_pids.pop(), [])
        found += pids
        open_pids += pids
    return [pid for pid in found if pid not in ended]


def _tell(status: "int | None", text: str) -> None:
    if status is None:
        return
    with contextlib.suppress(OSError):  # the worker is gone
        os.write(status, (text.replace("\n", " ") + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
