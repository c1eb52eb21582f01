"""Chaos: a sweep on a SLURM cluster whose workers, nodes, daemons and submitting command are killed at random.

    make chaos CHAOS="[--runs 30] [--minutes 4] [--seed 0] [--folder DIR]"

needs the cluster of tests/devcluster (`make slurm-up`). At the end the tables, and the metrics of every run byte by
byte, must be those of a calm sweep that trained on this machine. What happens, and in which order, follows from the
seed; when it strikes what does not.
"""

import argparse
import contextlib
import csv
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

import yaml

from ettsweep.runs.folder import RunDir
from support.arrays import write_profile
from support.commandline import ETTSWEEP, LONG, ettsweep, runs_in, write_grid
from support.devcluster import NO_CLUSTER, Cluster, running_clusters, taken_cluster

EVERY_S = 4.0
"""Mean of the seconds between strikes."""

MEASURED = {
    "wall_s",
    "device_s",
    "step_s",
    "samples_per_s",
    "utilisation",
    "data_wait",
    "memory_gib",
}
"""Columns of the tables that time tells, and no two sweeps share."""


def grid_of(folder: Path, runs: int) -> Path:
    """Write a grid of so many runs of some seconds."""
    schedule = LONG["schedule"] | {"total_steps": 2000}  # type: ignore[operator]
    half = runs // 2
    return write_grid(
        folder / "grid.yaml",
        recipe=LONG | {"schedule": schedule},
        lr={"range": [-half / 4, (runs - half - 1) / 4], "step": 0.25},
    )


def tables(results: Path) -> dict[str, list[dict[str, str]]]:
    """Return the tables of a sweep's report, without what time tells."""
    ettsweep("report", "--results", results)
    collected = {}
    for path in sorted((results / "report" / "tables").glob("*.csv")):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        collected[path.name] = [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]
    return collected


def differences(calm: dict[str, list[dict[str, str]]], storm: dict[str, list[dict[str, str]]]) -> list[str]:
    """Return a line for each cell of a table, or table, that only one of two sweeps has."""
    lines = [f"{name}: only one has it" for name in sorted(calm.keys() ^ storm.keys())]
    for name in sorted(calm.keys() & storm.keys()):
        if len(calm[name]) != len(storm[name]):
            lines.append(f"{name}: {len(calm[name])} rows calm, {len(storm[name])} rows disturbed")
        for number, (expected, actual) in enumerate(zip(calm[name], storm[name], strict=False)):
            for column in sorted(expected.keys() | actual.keys()):
                if expected.get(column) != actual.get(column):
                    lines.append(
                        f"{name} row {number} {column}: {expected.get(column)} calm, {actual.get(column)} disturbed"
                    )
    return lines


def metrics(results: Path) -> dict[str, bytes]:
    """Return the metrics of every run."""
    return {run.id: run.metrics_path.read_bytes() for run in runs_in(results)}


class Chaos:
    """A sweep under way, and what can be done to it."""

    def __init__(self, cluster: Cluster, folder: Path, grid: Path, seed: int) -> None:
        self.cluster = cluster
        self.results = folder / "chaos"
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        launch = write_profile(folder / "slurm.yaml", partition="low", max_parallel=6, runs_per_job=2, warn_s=60)
        self._command = [ETTSWEEP, "grid", grid, "--launch", launch, "--results", self.results, "--follow"]
        self._log = (folder / "follow.log").open("w")
        self._follow: subprocess.Popen[bytes] | None = None
        self.faults: dict[str, Callable[[], None]] = {
            "worker killed": self._kill_worker,
            "job requeued": self._requeue,
            "job preempted": self._preempt,
            "job cancelled by scancel": self._scancel,
            "node killed": lambda: self.cluster.node("kill", self._node()) and None,
            "node cut off": lambda: self.cluster.node("freeze", self._node()) and None,
            "disk of a node failed": lambda: self.cluster.node("readonly", self._node()) and None,
            "nodes back": self._nodes_back,
            "controller restarted": lambda: self.cluster.ctl("restart", "slurmctld"),
            "controller killed": lambda: self.cluster.ctl("kill", "slurmctld"),
            "accounting killed": lambda: self.cluster.ctl("kill", "slurmdbd"),
            "daemons back": self._daemons_back,
            "submitting command killed": self._kill_follow,
        }

    # --- the sweep ------------------------------------------------------------------------------------------------------

    def keep_following(self) -> None:
        """Start the submitting command, again if it is dead: the user types it once more."""
        if self._follow is None or self._follow.poll() is not None:
            self._follow = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, start_new_session=True)

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
        self._kill_follow()
        ettsweep("retry", "--all", "--yes", "--results", self.results)
        subprocess.run(self._command, stdout=self._log, stderr=self._log, check=True)

    def stop(self) -> None:
        """Leave no process behind."""
        self._kill_follow()
        self._log.close()

    # --- faults ---------------------------------------------------------------------------------------------------------

    def _node(self) -> str:
        return self.random.choice(self.cluster.nodes)

    def _job(self) -> str | None:
        jobs = [job["id"] for job in self.cluster.squeue() if job["state"] == "RUNNING"]
        return self.random.choice(jobs) if jobs else None

    def _kill_worker(self) -> None:
        encode_result = f"ettsweep.worker {self.results}".encode()
        collected = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().replace(b"\0", b" ")
                if encode_result in line and b"srun" not in line and b"bash" not in line:
                    collected.append(int(path.parent.name))
        if collected:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(sorted(collected)), signal.SIGKILL)

    def _requeue(self) -> None:
        if job := self._job():
            self.cluster.run("scontrol", "requeue", job)

    def _scancel(self) -> None:
        if job := self._job():
            self.cluster.run("scancel", job)

    def _preempt(self) -> None:
        self.cluster.sbatch("sleep 3", "--partition=high", f"--nodelist={self._node()}", "--exclusive")

    def _nodes_back(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.node("thaw", node) if self._runs(node) else self.cluster.node("start", node)
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

    def _kill_follow(self) -> None:
        if self._follow is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._follow.pid, signal.SIGKILL)
            self._follow.wait()
            self._follow = None


def chaos(cluster: Cluster, folder: Path, *, runs: int, seconds: float, seed: int, log: Callable[[str], Any]) -> Chaos:
    """Run a calm sweep and a disturbed one, and compare them.

    Args:
        cluster: a whole and idle cluster.
        folder: an empty folder that all its nodes see.
        runs: of the sweep.
        seconds: how long to disturb; less if all runs are finished before.
        seed: of the disturbances.
        log: takes a line of what happens.

    Returns:
        What was done.

    Raises:
        AssertionError: the sweeps differ.
    """
    grid, calm = grid_of(folder, runs), folder / "calm"
    local = [
        "--launch",
        "local",
        "--launch-set",
        "threads=1",
        "--launch-set",
        "devices=cpu",
    ]
    ettsweep("grid", grid, "--results", calm, "--follow", *local)
    log(f"calm sweep: {len(metrics(calm))} runs finished")
    storm = Chaos(cluster, folder, grid, seed)
    began_s = time.monotonic()
    try:
        while time.monotonic() - began_s < seconds and storm.finished() < runs:
            storm.keep_following()
            name = storm.strike()
            log(f"{time.monotonic() - began_s:5.0f} s  {storm.finished():3d}/{runs} finished  {name}")
            time.sleep(storm.random.uniform(0, 2 * EVERY_S))  # how often it strikes; nothing waits for this
        storm.end()
        log(f"{time.monotonic() - began_s:5.0f} s  {storm.finished():3d}/{runs} finished  calm again")
    finally:
        storm.stop()
    assert metrics(storm.results) == metrics(calm), "metrics differ"
    differing = differences(tables(calm), tables(storm.results))
    assert not differing, "\n".join(["tables differ", *differing])
    return storm


def attempts(results: Path) -> Counter[int]:
    """Return how many runs took how many attempts."""
    return Counter(len(RunDir(run.path).attempt_numbers()) for run in runs_in(results))


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
    try:
        mapping = {"runs": options.runs, "seconds": 60 * options.minutes, "seed": options.seed}
        with taken_cluster() as cluster:
            os.environ["SLURM_CONF"] = str(cluster.conf)
            storm = chaos(cluster, folder, **mapping, log=lambda line: print(line, flush=True))
    except AssertionError as error:
        print(f"FAILED: {error}; see {folder}")
        return 1
    took = ", ".join(f"{count} runs took {n}" for n, count in sorted(attempts(storm.results).items()))
    print(f"{sum(storm.done.values())} strikes: {yaml.safe_dump(dict(storm.done), default_flow_style=True).strip()}")
    print(f"attempts: {took}")
    print("tables and metrics are those of the calm sweep, byte by byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
