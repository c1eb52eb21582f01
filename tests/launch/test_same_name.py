"""Machines with one name that share a results folder, such as cloned images or containers called localhost.

A machine is a process in namespaces of its own (mounts, network, processes, name) whose boot id is its own too. They
train in earnest; only the interval of heartbeats is short.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch.test_shared_filesystem import ISOLATED, wait_for
from support.commandline import LONG_FAKE, write_fake_grid

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.state import State

BOOT_ID = "/proc/sys/kernel/random/boot_id"
BOOT = f'mount --bind "$1" {BOOT_ID} && hostname localhost && shift && exec "$@"'
"""Shell command that gives a machine its boot id and its name."""

Boot = Callable[..., "Machine"]


class Machine:
    """A machine called localhost, from one boot to its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boot_id = folder / "boot_id"
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: object) -> "subprocess.Popen[str]":
        """Start a command of ettsweep, the only one of this machine; killing what is returned ends the machine."""
        program = ["sh", "-c", BOOT, "sh", self._boot_id, sys.executable, "-m", "ettsweep", *command]
        env = os.environ | {"ETTSWEEP_SLOTS": str(self._folder / "slots"), "TMPDIR": str(self._folder)}
        self._started.append(
            subprocess.Popen(
                [*ISOLATED, *map(str, program)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
        return self._started[-1]

    def run(self, *command: object, code: int = 0) -> str:
        """Run a command of ettsweep to its end, and return what it says."""
        process = self.start(*command)
        said, _ = process.communicate(timeout=180)
        assert process.returncode == code, said
        return said

    def cut_power(self) -> None:
        """End the machine and all its processes, without a last word."""
        for process in self._started:
            if process.returncode is None:
                process.kill()
                process.communicate()


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """Give a function that boots a machine."""
    probe = tmp_path / "probe"
    probe.write_text("a boot\n")
    command = [*ISOLATED, "sh", "-c", BOOT, "sh", probe, "cat", BOOT_ID]
    if subprocess.run(command, capture_output=True, text=True).stdout != "a boot\n":
        pytest.skip("namespaces are not allowed here (unshare)")
    machines: list[Machine] = []

    def boot() -> Machine:
        folder = tmp_path / f"machine-{len(machines)}"
        folder.mkdir()
        machines.append(Machine(folder))
        return machines[-1]

    yield boot
    for machine in machines:
        machine.cut_power()


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> list[str]:
    """Return the command for four runs that take a while, on one slot of each machine."""
    launch = ("slots=1", "devices=cpu", "threads=1", "heartbeat_s=1")
    path = write_fake_grid(tmp_path / "grid.yaml", run=LONG_FAKE, lr={"range": [0, 3]})
    command = ["grid", str(path), "--results", str(results)]
    return [*command, *(word for setting in launch for word in ("--launch-set", setting))]


def runs_in(results: Path) -> list[RunDir]:
    return [RunDir(path) for path in runs_dir(results).glob("*")]


def attempts(results: Path) -> list[Attempt]:
    return [run.attempt(number) for run in runs_in(results) for number in run.attempt_numbers()]


def resumed(run: RunDir) -> bool:
    latest = run.latest_attempt()
    return latest is not None and latest.number == 2 and latest.resumed_from()[1] > 0


@pytest.mark.slow
def test_machines_of_one_name_train_each_run_once(boot: Boot, grid: list[str], results: Path) -> None:
    # Each has runs of its own to train, whatever the other was fast enough to take.
    commands = [boot().start(*grid, "--follow", "--lr-range", "0:1", "--seeds", seeds) for seeds in ("0,1", "0,2")]
    for command in commands:
        said, _ = command.communicate(timeout=300)
        assert command.returncode == 0, said
    assert {run.status().state for run in runs_in(results)} == {State.DONE}
    assert len(runs_in(results)) == len(attempts(results)) == 6, "a run was trained twice"
    assert len({str(attempt.owner()) for attempt in attempts(results)}) == 2, "one machine did nothing"


@pytest.mark.slow
def test_a_command_leaves_the_runs_of_a_living_machine_of_the_same_name(
    boot: Boot, grid: list[str], results: Path
) -> None:
    first, second = boot(), boot()
    # Enough runs for the first machine to be at work until the end, however fast it is.
    grid += ["--seeds", ",".join(map(str, range(10)))]
    first.start(*grid, "--follow")
    wait_for(lambda: [a for a in attempts(results) if a.has_checkpoint()], "a checkpoint")
    said = second.run(*grid)
    assert "watching their heartbeats" in said
    # It depends on the machine how many the first has finished by then.
    assert sum(map(int, re.findall(r"(\d+) (?:finished|under way)", said))) == 40, said
    assert "submitted" not in said
    said = second.run("clean", "--results", results)
    assert len(list((results / "jobs").iterdir())) == 1, said
    assert len({str(attempt.owner()) for attempt in attempts(results)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("follow", [True, False], ids=["followed", "in one round"])
def test_a_machine_resumes_its_runs_after_a_reboot(boot: Boot, grid: list[str], results: Path, follow: bool) -> None:
    before = boot()
    before.start(*grid, "--follow")
    wait_for(lambda: [a for a in attempts(results) if a.has_checkpoint()], "a checkpoint")
    before.cut_power()
    (run,) = (run for run in runs_in(results) if run.attempt_numbers())
    after = boot()
    assert json.loads(after.run("status", "--results", results, "--format", "json"))
    if follow:
        after.start(*grid, "--follow")
        wait_for(lambda: resumed(run), "the run to be resumed")
    else:
        said = after.run(*grid)
        assert "1 resumed" in said
        assert "3 runs submitted" in said, "nobody waits for the workers from before"
    assert run.attempt(1).is_given_up()
