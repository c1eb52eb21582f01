"""A command under its supervisor: signals, exit codes, and that nothing of it is left, whoever is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commandline import wait_for
from support.own_code import processes_with

from ettsweep.errors import InputError
from ettsweep.worker.program import Command, Program, kill_processes_of

pytestmark = pytest.mark.usefixtures("process")

Start = Callable[..., Program]

DESCENDANTS = "sleep 600 & setsid sleep 600 & (setsid sleep 600 &) ; "
"""Of a shell: a child, one in a session of its own, and an orphan."""

WAIT = "while :; do sleep 0.05; done"


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"test{abs(hash(str(tmp_path))):x}"


@pytest.fixture
def begin(tmp_path: Path, run_id: str) -> Start:
    """Return a function that starts a shell command."""

    def begin(script: str, *command: str) -> Program:
        variables = {"ETTSWEEP_RUN": "run", "ETTSWEEP_OUT": run_id, "ETTSWEEP_OUTPUT": str(tmp_path / "output.txt")}
        return Program(Command(command or ("sh", "-c", script), tmp_path, os.environ), [variables])

    return begin


def ended(program: Program, limit_s: float) -> bool:
    """Wait for the end of a program, but not longer than so many seconds; return whether it has ended."""
    until_s = time.monotonic() + limit_s
    while not program.is_over and time.monotonic() < until_s:
        program.wait(until_s - time.monotonic())
    return program.is_over


def left(run_id: str) -> list[int]:
    """Return the pids of all processes of a run, its supervisor too."""
    return list(processes_with(f"ETTSWEEP_OUT={run_id}"))


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), (DESCENDANTS + "exit 3", 3), ("kill -9 $$", -9)])
def test_the_exit_code_is_that_of_its_leader_and_its_descendants_end_with_it(
    begin: Start, run_id: str, script: str, code: int
) -> None:
    child = begin(script)
    assert ended(child, 60)
    assert child.code == code
    assert not left(run_id)


def test_what_it_prints_is_in_the_file_and_its_input_is_empty(begin: Start, tmp_path: Path) -> None:
    assert ended(begin("echo out; echo err >&2; cat; pwd"), 60)
    assert (tmp_path / "output.txt").read_text() == f"out\nerr\n{tmp_path}\n"


def test_a_signal_reaches_its_leader_alone(begin: Start, run_id: str, tmp_path: Path) -> None:
    child = begin(f"trap 'echo told; exit 5' TERM; {DESCENDANTS} echo ready; {WAIT}")
    wait_for(lambda: "ready" in (tmp_path / "output.txt").read_text(), "its start")
    child.signal(signal.SIGTERM)
    assert ended(child, 60)
    assert (child.code, (tmp_path / "output.txt").read_text()) == (5, "ready\ntold\n")
    assert not left(run_id)


def test_all_end_though_all_were_stopped_their_supervisor_too(begin: Start, run_id: str) -> None:
    child = begin(DESCENDANTS + WAIT)
    wait_for(lambda: len(left(run_id)) >= 5, "its descendants")
    for pid in left(run_id):
        with contextlib.suppress(ProcessLookupError):  # one that sleeps for 50 ms has ended
            os.kill(pid, signal.SIGSTOP)
    child.kill()
    assert child.is_over
    assert not left(run_id)


def test_signals_that_a_job_sends_to_all_processes_leave_the_supervisor_alive(begin: Start, run_id: str) -> None:
    child = begin("trap '' USR2 TERM INT HUP USR1; sleep 0.5; exit 4")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(child.supervisor_pid, number)
    assert ended(child, 60)
    assert child.code == 4


def test_signals_have_their_usual_meaning_in_the_command(begin: Start) -> None:
    """What a supervisor ignores its children would ignore too, if it did not put the defaults back."""
    code = "import signal; print([signal.getsignal(n) for n in (15, 1, 10, 12, 13)])"
    child = begin("", sys.executable, "-c", f"{code}; import os; os.kill(os.getpid(), 12)")
    assert ended(child, 60)
    assert child.code == -signal.SIGUSR2


def test_a_supervisor_that_is_killed_leaves_nothing_either(begin: Start, run_id: str) -> None:
    child = begin(DESCENDANTS + WAIT)
    wait_for(lambda: len(left(run_id)) >= 5, "its descendants")
    os.kill(child.supervisor_pid, signal.SIGKILL)
    assert ended(child, 60)
    assert child.code is None
    assert not left(run_id)


def test_nothing_outlives_a_worker_that_is_killed(tmp_path: Path, run_id: str) -> None:
    program = f"""
import os, sys, time
from pathlib import Path
from ettsweep.worker.program import Command, Program
variables = {{"ETTSWEEP_RUN": "run", "ETTSWEEP_OUT": {run_id!r}, "ETTSWEEP_OUTPUT": {str(tmp_path / "output.txt")!r}}}
words = ("sh", "-c", {DESCENDANTS + WAIT!r})
child = Program(Command(words, Path({str(tmp_path)!r}), os.environ), [variables])
print("ready", flush=True)
time.sleep(600)
"""
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    wait_for(lambda: len(left(run_id)) >= 5, "its descendants")
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_for(lambda: not left(run_id), "the end of all")


def test_what_both_have_left_is_found_by_its_environment(run_id: str) -> None:
    def sleeps(out: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "600"], env=os.environ | {"ETTSWEEP_OUT": out}, start_new_session=True)

    ours, other = [sleeps(run_id) for _ in range(2)], sleeps(f"{run_id}0")
    # An environment shows once a process has begun its program.
    wait_for(lambda: len(left(run_id)) == 2, "their start")
    assert sorted(kill_processes_of(run_id)) == sorted(process.pid for process in ours)
    assert [process.wait() for process in ours] == [-9, -9]
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_program_that_is_not_there_is_told(begin: Start) -> None:
    with pytest.raises(InputError, match=r"cannot start .*nonesuch: No such file or directory"):
        begin("", "nonesuch", "x")
