"""The SLURM cluster of launch/devcluster for tests: the `cluster` fixture, faults on purpose, and healing after each test."""

import contextlib
import fcntl
import functools
import os
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "launch" / "devcluster"
PATIENCE_S = 180
"""Seconds after which a test gives up waiting; no test passes or fails by how long anything takes."""
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld")
NO_CLUSTER = "no SLURM cluster is up: `make slurm-up` starts one"


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
        """Run a command on this cluster, whatever cluster the environment names."""
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
        """Do to a node what `node.sh` does; return what it prints."""
        return self._script("node.sh", self.folder, what, name)

    def ctl(self, what: Literal["stop", "start", "restart", "kill", "freeze", "thaw"], daemon: str) -> None:
        """Do to the controller (slurmctld), or to accounting (slurmdbd), what `ctl.sh` does."""
        self._script("ctl.sh", self.folder, what, daemon)

    def disk(self, size: str) -> Path:
        """Mount a file system of some size, such as `1m`, that all nodes see; it is gone after the test."""
        folder = self.folder / "disks" / f"disk-{os.getpid()}-{len(self._mounted)}"
        folder.mkdir()
        if self.run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder, check=False).returncode:
            folder.rmdir()
            pytest.skip("mounting a file system is not allowed here")
        self._mounted.append(folder)
        return folder

    def _script(self, name: str, *arguments: object) -> str:
        return self.run(SCRIPTS / name, *arguments).stdout.strip()

    def _tries(self, name: str, *arguments: object) -> bool:
        return self.run(SCRIPTS / name, *arguments, check=False).returncode == 0

    # ---------- back to idle

    def heal(self) -> None:
        """Bring everything back: daemons run, nodes are idle, no job is left, no disk is mounted."""
        for daemon in DAEMONS:
            self.ctl("thaw", daemon)
        for node in self.nodes:
            self.node("thaw", node)
        if not self._well():
            self._script("up.sh", self.folder)
            self.wait_for(self._idle, "the cluster to be idle")
        while self._mounted:
            folder = self._mounted.pop()
            self.run("umount", "-l", folder)
            folder.rmdir()

    def _well(self) -> bool:
        """Say whether there is nothing to mend; quick, since most tests break nothing."""
        running = all(self._tries("ctl.sh", self.folder, "running", daemon) for daemon in DAEMONS)
        slurmds = all(self._tries("node.sh", self.folder, "pid", node) for node in self.nodes)
        return running and slurmds and self._idle()

    def _idle(self) -> bool:
        """Cancel jobs, take broken nodes back, and say whether none of that was needed and both daemons answer."""
        if self.run("squeue", "--noheader", check=False).stdout:
            self.run("scancel", "--user", str(os.getuid()), check=False)
            return False
        states = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False).stdout
        for node, state in map(str.split, states.splitlines()):
            if state.startswith(("down", "drain")):
                self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        idle = [line.split()[1] for line in states.splitlines()] == ["idle"] * len(self.nodes)
        return idle and self.run("sacctmgr", "--noheader", "show", "cluster", check=False).returncode == 0


# ---------- pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests on a cluster among as many processes of pytest-xdist as there are clusters.

    The lock of `cluster` keeps them apart even so, but then processes wait for each other. (`--dist loadgroup` would be
    the way, but pytest-xdist 3.8 does not group under pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    clusters = max(1, len(running_clusters()))

    class FewProcessesForTheClusters(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if not _on_cluster(config.rootpath / nodeid.partition("::")[0]):
                return nodeid
            return f"cluster {zlib.crc32(nodeid.encode()) % (6 * clusters)}"  # small enough to be shared out evenly

    return FewProcessesForTheClusters(config, log)


@functools.cache
def _on_cluster(path: Path) -> bool:
    return path.exists() and "devcluster" in path.read_text()


def running_clusters() -> list[Path]:
    """Return the folders of the clusters that are up: `$ETTSWEEP_DEVCLUSTER`, and beside it those with -2, -3 ..."""
    first = Path(os.environ.get("ETTSWEEP_DEVCLUSTER") or "/tmp/ettsweep-devcluster").resolve()
    folders = [first, *sorted(first.parent.glob(f"{first.name}-[0-9]"))]
    running = [str(SCRIPTS / "ctl.sh"), "FOLDER", "running", "munged"]
    return [f for f in folders if not subprocess.run([running[0], f, *running[2:]], capture_output=True).returncode]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was not tested, for want of a cluster."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if NO_CLUSTER in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests on a SLURM cluster were skipped: {NO_CLUSTER}", yellow=True)


@pytest.fixture(scope="session")
def _clusters() -> list[Cluster]:
    """Return the clusters that are up; skip if none is."""
    folders = running_clusters()
    if not folders:
        pytest.skip(NO_CLUSTER)
    return [Cluster(folder) for folder in folders]


@pytest.fixture
def cluster(_clusters: list[Cluster], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Give a cluster that is whole and idle, to this test alone; SLURM's commands find it. It is mended afterwards."""
    with contextlib.ExitStack() as stack:
        cluster = _free(_clusters, stack)
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        cluster.heal()
        yield cluster
        cluster.heal()


def _free(clusters: list[Cluster], stack: contextlib.ExitStack) -> Cluster:
    """Lock a cluster that no other test has; wait for the first if all are taken."""
    locks = [stack.enter_context((cluster.folder / "run" / "tests.lock").open("w")) for cluster in clusters]
    for cluster, lock in zip(clusters, locks, strict=True):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cluster
    fcntl.flock(locks[0], fcntl.LOCK_EX)
    return clusters[0]
