"""The SLURM cluster of launch/devcluster for tests: the `cluster` fixture, faults on purpose, and healing after each test."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "launch" / "devcluster"
PATIENCE_S = 180
"""Seconds after which a test gives up waiting; no test passes or fails by how long anything takes."""
NO_CLUSTER = "no SLURM cluster is up: `make slurm-up` starts one"
GROUP = "slurm"
"""All tests on the cluster run in one process: they kill its nodes, and they cancel all jobs."""


class Cluster:
    """A running cluster, its commands, and the means to break and to mend it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "etc" / "slurm.conf"
        self.nodes = [
            line.split()[0].removeprefix("NodeName=")
            for line in self.conf.read_text().splitlines()
            if line.startswith("NodeName=")
        ]
        self._mounted: list[Path] = []

    # ---------- SLURM's commands

    def run(self, *command: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run one of SLURM's commands on this cluster, whatever cluster the environment names."""
        done = subprocess.run(
            [str(part) for part in command],
            env=os.environ | {"SLURM_CONF": str(self.conf)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert not check or done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def sbatch(self, script: str, *options: object) -> str:
        """Submit a script of the shell that writes to nowhere, unless the options say where; return the job's id."""
        return self.run(
            "sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, "--wrap", script
        ).stdout.strip()

    def squeue(self, *options: object) -> list[dict[str, str]]:
        """Return all jobs that the controller remembers, one per task of an array: id, state, reason, restarts, node."""
        fields = {"id": "JobArrayID", "name": "Name", "state": "State", "reason": "Reason", "restarts": "RestartCnt"}
        return self._table(
            ["squeue", "--noheader", "--states=all", "--array", *options, "--Format"],
            fields | {"partition": "Partition", "nodes": "NodeList"},
            suffix=":|",
        )

    def sacct(self, *options: object) -> list[dict[str, str]]:
        """Return what accounting knows of jobs, newest record each; with `--duplicates` all, oldest first."""
        fields = {"id": "JobID", "name": "JobName", "state": "State", "exit_code": "ExitCode", "nodes": "NodeList"}
        return self._table(["sacct", "--noheader", "--parsable", "--allocations", *options, "--format"], fields)

    def _table(self, command: list[object], fields: dict[str, str], suffix: str = "") -> list[dict[str, str]]:
        lines = self.run(*command, ",".join(field + suffix for field in fields.values())).stdout.splitlines()
        return [dict(zip(fields, line.split("|"), strict=False)) for line in lines]

    def state(self, job: str) -> str:
        """Return the state of one job, or task of an array, such as RUNNING."""
        return self._one(job)["state"]

    def node_of(self, job: str) -> str:
        """Return the node that a running job is on."""
        return self._one(job)["nodes"]

    def _one(self, job: str) -> dict[str, str]:
        (row,) = self.squeue("--jobs", job)
        return row

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the first true value of a condition."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < give_up_s, f"waited in vain for {what}\n{self.picture()}"
            time.sleep(0.1)
        return value

    def wait_state(self, job: str, *states: str) -> None:
        """Wait until a job is in one of some states."""
        self.wait_for(lambda: self.state(job) in states, f"job {job} to be {' or '.join(states)}")

    def picture(self) -> str:
        """Say what the cluster looks like, for a message."""
        commands: list[list[str]] = [["sinfo", "--Node", "--long", "--partition=main"], ["squeue"]]
        return "\n".join(self.run(*command, check=False).stdout for command in commands)

    # ---------- faults

    def node(self, what: Literal["kill", "start", "freeze", "thaw", "pid"], name: str) -> str:
        """Do to a node what `node.sh` does."""
        return self._script("node.sh", self.folder, what, name)

    def ctl(self, what: Literal["stop", "start", "restart", "kill"], daemon: Literal["slurmctld", "slurmdbd"]) -> str:
        """Do to the controller, or to accounting, what `ctl.sh` does."""
        return self._script("ctl.sh", self.folder, what, daemon)

    def disk(self, size: str) -> Path:
        """Mount a file system of some size, such as `1m`, that all nodes see; it is gone after the test."""
        folder = self.folder / "disks" / f"disk-{os.getpid()}-{len(self._mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            folder.rmdir()
            pytest.skip("mounting a file system is not allowed here")
        self._mounted.append(folder)
        return folder

    def _script(self, name: str, *arguments: object) -> str:
        done = subprocess.run(
            [str(SCRIPTS / name), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"{name} {arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    # ---------- back to idle

    def heal(self) -> None:
        """Bring everything back: daemons run, nodes are idle, no job is left, no disk is mounted."""
        if not self._well():
            self._thaw()
            self._script("up.sh", self.folder)
            self.run("scancel", "--user", str(os.getuid()))
            self.run("scancel", "--user", str(os.getuid()), "--signal=KILL", "--full")
            self.wait_for(self._revive, "the cluster to be idle")
        while self._mounted:
            folder = self._mounted.pop()
            subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
            folder.rmdir()

    def _well(self) -> bool:
        """Say whether there is nothing to do."""
        frozen = any(self._frozen(pid) for pid in self._pids())
        return not frozen and len(self._pids()) == 4 + len(self.nodes) and self._idle() and self._accounts()

    def _pids(self) -> list[int]:
        """Return the process ids of all daemons that run."""
        found = []
        for path in (self.folder / "run").glob("*.pid"):
            text = path.read_text().strip()
            if text and Path(f"/proc/{text}").exists():
                found.append(int(text))
        return found

    def _frozen(self, pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
