"""The SLURM cluster of tests/devcluster for tests: the `cluster` fixture, faults on purpose, and healing after each test."""

import contextlib
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

import pytest

from support.commandline import PATIENCE_S, wait_for

SCRIPTS = Path(__file__).resolve().parents[1] / "devcluster"
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld")
NO_CLUSTER = "no SLURM cluster is up: `make slurm-up` starts one"


class Cluster:
    """A running cluster, its commands, and the means to break and to mend it."""

    def __init__(self, folder: Path, broken: bool = True) -> None:
        self.folder = folder
        self.conf = folder / "etc" / "slurm.conf"
        self.nodes = re.findall(r"^NodeName=(\S+)", self.conf.read_text(), re.MULTILINE)
        self._mounted: list[Path] = []
        self._broken = broken  # as far as is known

    # ---------- SLURM's commands

    def run(self, *command: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command on this cluster, whatever cluster the environment names."""
        words, env = [str(section) for section in command], os.environ | {"SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def sbatch(self, script: str, *options: object) -> str:
        """Submit a script of the shell that writes to nowhere, unless the options say where; return the job's id."""
        command = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, "--wrap", script)
        return self.run(*command).stdout.strip()

    def squeue(self, *options: object) -> list[dict[str, str]]:
        """Return all jobs that the controller remembers, one per task of an array: id, state, reason, restarts, node."""
        fields = {"id": "JobArrayID", "name": "Name", "state": "State", "reason": "Reason", "restarts": "RestartCnt"}
        fields |= {"partition": "Partition", "nodes": "NodeList"}
        command = ["squeue", "--noheader", "--states=all", "--array", *options, "--Format"]
        return self._table(command, fields, suffix=":|")

    def sacct(self, *options: object) -> list[dict[str, str]]:
        """Return what accounting knows of jobs, newest record each; with `--duplicates` all, oldest first."""
        fields = {"id": "JobID", "name": "JobName", "state": "State", "exit_code": "ExitCode", "nodes": "NodeList"}
        return self._table(["sacct", "--noheader", "--parsable", "--allocations", *options, "--format"], fields)

    def _table(self, command: list[object], fields: dict[str, str], suffix: str = "") -> list[dict[str, str]]:
        lines = self.run(*command, ",".join(field + suffix for field in fields.values())).stdout.splitlines()
        return [dict(zip(fields, line.split("|"), strict=False)) for line in lines]

    def state(self, job: str) -> str:
        """Return the state of one job, or task of an array, such as RUNNING."""
        (row,) = self.squeue("--jobs", job)
        return row["state"]

    def node_of(self, job: str) -> str:
        """Return the node that a running job is on."""
        (row,) = self.squeue("--jobs", job)
        return row["nodes"]

    def wait_state(self, job: str, *states: str) -> None:
        """Wait until a job is in one of some states."""
        wait_for(lambda: self.state(job) in states, f"job {job} to be {' or '.join(states)}")

    def picture(self) -> str:
        """Say what the cluster looks like, for a message: nodes, jobs and why they wait, the controller's last words."""
        fields = "JobArrayID:14,State:11,Reason:24,Priority:12,RestartCnt:9,EligibleTime:21,StartTime:21,NodeList"
        nodes = ("sinfo", "--Node", "--long", "--partition=main")
        jobs = ("squeue", "--array", "--states=all", f"--Format={fields}")
        log = ("tail", "--lines=40", self.folder / "log" / "slurmctld.log")
        return "\n".join(self.run(*command, check=False).stdout for command in (("date",), nodes, jobs, log))

    # ---------- faults

    def node(
        self, subject: Literal["kill", "start", "freeze", "thaw", "readonly", "writable", "pid"], name: str
    ) -> str:
        """Do to a node what `node.sh` does; return what it prints."""
        self._broken = True
        return self._script("node.sh", self.folder, subject, name)

    def ctl(self, subject: Literal["stop", "start", "restart", "kill", "freeze", "thaw"], daemon: str) -> None:
        """Do to the controller (slurmctld), or to accounting (slurmdbd), what `ctl.sh` does."""
        self._broken = True
        self._script("ctl.sh", self.folder, subject, daemon)

    def disk(self, size: str) -> Path:
        """Mount a file system of some size, such as `1m`, that all nodes see; it is gone after the test."""
        folder = self.folder / "disks" / f"disk-{os.getpid()}-{len(self._mounted)}"
        folder.mkdir()
        if self.run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder, check=False).returncode:
            folder.rmdir()
            pytest.skip("mounting a file system is not allowed here")
        self._mounted.append(folder)
        return folder

    def resume(self) -> list[str]:
        """Take back nodes that are down or drained; return the states of all as they were."""
        stdout = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False).stdout
        states = dict(line.split() for line in stdout.splitlines())
        for node, state in states.items():
            if state.startswith(("down", "drain")):
                self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return list(states.values())

    def begin(self, job: object) -> None:
        """Let a job start now that was to start later."""
        self.run("scontrol", "update", f"jobid={job}", "starttime=now")

    def release(self) -> None:
        """Let jobs start that are held."""
        for job in self.squeue():
            if "held" in job["reason"].lower():
                self.run("scontrol", "release", job["id"], check=False)

    def _script(self, name: str, *arguments: object) -> str:
        return self.run(SCRIPTS / name, *arguments).stdout.strip()

    # ---------- back to idle

    def heal(self) -> None:
        """Bring everything back: daemons run, nodes are idle, no job is left, no disk is mounted."""
        give_up_s = time.monotonic() + 30
        while not self._broken and not self._idle():  # where nothing was broken, cancelled jobs soon end
            self._broken = time.monotonic() > give_up_s
            time.sleep(0.1)
        if self._broken:
            for daemon in DAEMONS:
                self.ctl("thaw", daemon)
            for node in self.nodes:
                self.node("thaw", node)
                self.node("writable", node)
            self.up()
            wait_for(self._idle, "the cluster to be idle")
            self._broken = False
        while self._mounted:
            folder = self._mounted.pop()
            self.run("umount", "-l", folder)
            folder.rmdir()

    def up(self) -> None:
        """Complete the cluster, with the knobs that the environment has."""
        self._script("up.sh", self.folder)

    def _idle(self) -> bool:
        """Cancel jobs, take broken nodes back, and say whether none of that was needed and both daemons answer."""
        if self.run("squeue", "--noheader", check=False).stdout:
            self.run("scancel", "--user", str(os.getuid()), check=False)
            return False
        idle = self.resume() == ["idle"] * len(self.nodes)
        return idle and self.run("sacctmgr", "--noheader", "show", "cluster", check=False).returncode == 0


# ---------- those that are up


def running_clusters() -> list[Path]:
    """Return the folders of the clusters that are up: `$ETTSWEEP_DEVCLUSTER`, and beside it those with -2, -3 ..."""
    first = Path(os.environ.get("ETTSWEEP_DEVCLUSTER") or "/tmp/ettsweep-devcluster").resolve()
    folders = [first, *sorted(first.parent.glob(f"{first.name}-[0-9]"))]
    running = [str(SCRIPTS / "ctl.sh"), "FOLDER", "running", "munged"]
    return [f for f in folders if not subprocess.run([running[0], f, *running[2:]], capture_output=True).returncode]


@contextlib.contextmanager
def taken_cluster() -> Iterator[Cluster]:
    """Give one that is whole and idle, to this process alone; it is mended afterwards. Waits while others have all."""
    with contextlib.ExitStack() as stack:
        locks = [(f, stack.enter_context((f / "run" / "tests.lock").open("a+"))) for f in running_clusters()]
        folder, lock = wait_for(lambda: _free(locks), "a cluster that no other test has")
        lock.seek(0)
        cluster = Cluster(folder, broken=bool(lock.read()))  # a test that was killed left its word there
        lock.write("a test has it")
        lock.flush()
        cluster.heal()
        try:
            yield cluster
        finally:
            cluster.heal()
        lock.truncate(0)


def _free(locks: list[tuple[Path, TextIO]]) -> tuple[Path, TextIO] | None:
    """Lock a cluster that nobody else has."""
    for folder, lock in locks:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock
    return None


# ---------- pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was not tested, for want of a cluster."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if NO_CLUSTER in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests on a SLURM cluster were skipped: {NO_CLUSTER}", yellow=True)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Give a cluster to this test alone, see `taken_cluster`; SLURM's commands find it. Skips if none is up."""
    if not running_clusters():
        pytest.skip(NO_CLUSTER)
    with taken_cluster() as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        monkeypatch.setattr("support.commandline.PICTURES", [cluster.picture])
        yield cluster
