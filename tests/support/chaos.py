"""Chaos: a sweep on a SLURM cluster whose workers, nodes, daemons and submitting command are killed at random.

    make chaos CHAOS="[--runs 30] [--minutes 4] [--seed 0] [--folder DIR]"

needs the cluster of tests/devcluster (`make slurm-up`). At the end the metrics of every run, from which all tables are
made, must be those of a calm sweep that trained on this machine, byte by byte. What happens, and in which order, follows
from the seed; when it strikes what does not.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.arrays import workers, write_profile
from support.commandline import ETTSWEEP, LONG, ettsweep, runs_in, write_grid
from support.devcluster import NO_CLUSTER, Cluster, running_clusters, taken_cluster

EVERY_S = 4.0
"""Mean of the seconds between strikes."""


def grid_of(folder: Path, runs: int) -> Path:
    """Write a grid of so many runs of some seconds."""
    schedule, half = LONG["schedule"] | {"total_steps": 2000}, runs // 2  # type: ignore[operator]
    lr = {"range": [-half / 4, (runs - half - 1) / 4], "step": 0.25}
    return write_grid(folder / "grid.yaml", recipe=LONG | {"schedule": schedule}, lr=lr)


def metrics(results: Path) -> dict[str, bytes]:
    """Return the metrics of every run."""
    return {run.id: run.metrics_path.read_bytes() for run in runs_in(results)}


def attempts(results: Path) -> Counter[int]:
    """Return how many runs took how many attempts."""
    return Counter(len(run.attempt_numbers()) for run in runs_in(results))


class Chaos:
    """A sweep under way, and what can be done to it."""

    def __init__(self, cluster: Cluster, folder: Path, grid: Path, seed: int) -> None:
        self.cluster = cluster
        self.results = folder / "chaos"
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        launch = write_profile(folder / "slurm.yaml", partition="low", max_parallel=6, runs_per_job=2, warn_s=60)
        self._command = [ETTSWEEP, "grid", grid, "--launch", launch, "--results", self.results, "--follow"]
        self._log = folder / "follow.log"
        self._follow: subprocess.Popen[bytes] | None = None
        self.faults: dict[str, Callable[[], Any]] = {
            "worker killed": self._kill_worker,
            "job requeued": lambda: self._to_job("scontrol", "requeue"),
            "job preempted": self._preempt,
            "job cancelled by scancel": lambda: self._to_job("scancel"),
            "node killed": lambda: cluster.node("kill", self._node()),
            "node cut off": lambda: cluster.node("freeze", self._node()),
            "disk of a node failed": lambda: cluster.node("readonly", self._node()),
            "nodes back": self._nodes_back,
            "controller restarted": lambda: cluster.ctl("restart", "slurmctld"),
            "controller killed": lambda: cluster.ctl("kill", "slurmctld"),
            "accounting killed": lambda: cluster.ctl("kill", "slurmdbd"),
            "daemons back": self._daemons_back,
            "submitting command killed": self.kill_follow,
        }

    def keep_following(self) -> None:
        """Start the submitting command, again if it is dead: the user types it once more."""
        if self._follow is None or self._follow.poll() is not None:
            with self._log.open("a") as log:
                self._follow = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def finished(self) -> int:
        """Return how many runs have their result."""
        return sum(run.result_path.exists() for run in runs_in(self.results))

    def strike(self) -> str:
        """Do the next thing; return what."""
        name = self.random.choice(list(self.faults))
        with contextlib.suppress(AssertionError):  # a command of SLURM's fails while SLURM is down: that is the point
            self.faults[name]()
        self.done[name] += 1
        return name

    def end(self) -> None:
        """Mend the cluster, and let the sweep come to its end: what was cancelled is taken on, as a user would."""
        self._daemons_back()
        self._nodes_back()
        self.kill_follow()
        ettsweep("retry", "--all", "--yes", "--results", self.results)
        with self._log.open("a") as log:
            subprocess.run(self._command, stdout=log, stderr=log, check=True)

    def kill_follow(self) -> None:
        if self._follow is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._follow.pid, signal.SIGKILL)
            self._follow.wait()
            self._follow = None

    def _node(self) -> str:
        return self.random.choice(self.cluster.nodes)

    def _to_job(self, *command: str) -> None:
        if jobs := [job["id"] for job in self.cluster.squeue() if job["state"] == "RUNNING"]:
            self.cluster.run(*command, self.random.choice(jobs))

    def _kill_worker(self) -> None:
        if pids := sorted(workers(self.results)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(pids), signal.SIGKILL)

    def _preempt(self) -> None:
        self.cluster.sbatch("sleep 3", "--partition=high", f"--nodelist={self._node()}", "--exclusive")

    def _nodes_back(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.node("thaw" if self._runs(node) else "start", node)
            self.cluster.node("writable", node)
        self.cluster.resume()
        self.cluster.release()

    def _runs(self, node: str) -> bool:
        try:
            return bool(self.cluster.node("pid", node))
        except AssertionError:
            return False

    def _daemons_back(self) -> None:
        for daemon in ("slurmdbd", "slurmctld"):
            self.cluster.ctl("start", daemon)


def chaos(cluster: Cluster, folder: Path, *, runs: int, seconds: float, seed: int, log: Callable[[str], Any]) -> Chaos:
    """Run a calm sweep and a disturbed one, compare them, and return what was done.

    It disturbs for so many seconds, or until all runs are finished; `log` takes a line of what happens.
    """
    grid, calm = grid_of(folder, runs), folder / "calm"
    local = ("--launch", "local", "--launch-set", "threads=1", "--launch-set", "devices=cpu")
    ettsweep("grid", grid, "--results", calm, "--follow", *local)
    storm, began_s = Chaos(cluster, folder, grid, seed), time.monotonic()

    def tell(what: str) -> None:
        log(f"{time.monotonic() - began_s:5.0f} s  {storm.finished():3d}/{runs} finished  {what}")

    try:
        while time.monotonic() - began_s < seconds and storm.finished() < runs:
            storm.keep_following()
            tell(storm.strike())
            time.sleep(storm.random.uniform(0, 2 * EVERY_S))  # how often it strikes; nothing waits for this
        storm.end()
        tell("calm again")
    finally:
        storm.kill_follow()
    assert metrics(storm.results) == metrics(calm), "metrics differ"
    return storm


def main() -> int:
    """Parse the arguments, disturb, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder to keep; a temporary one if not given")
    options = parser.parse_args()
    if not running_clusters():
        print(NO_CLUSTER)
        return 1
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = options.folder or Path(tempfile.mkdtemp(prefix="ettsweep-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"runs": options.runs, "seconds": 60 * options.minutes, "seed": options.seed}
    try:
        with taken_cluster() as cluster:
            os.environ["SLURM_CONF"] = str(cluster.conf)
            storm = chaos(cluster, folder, **settings, log=lambda line: print(line, flush=True))
    except AssertionError as error:
        print(f"FAILED: {error}; see {folder}")
        return 1
    print(f"{storm.done.total()} strikes: {dict(storm.done)}; runs by number of attempts: {attempts(storm.results)}")
    print("metrics are those of the calm sweep, byte by byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
