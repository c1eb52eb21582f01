"""Measure what ettsweep promises about its own speed: `make bench`. It prints medians, and tests nothing.

Every figure is CPU seconds of a fresh process (user + system), or wall seconds where it says so.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.commands import ETTSWEEP, children_s
from bench.tables import facts

TRIVIAL = ["--set", "schedule.total_steps=2", "--set", "schedule.warmup_steps=1", "--set", "schedule.eval_every=2"]
COMMAND = """run:
  command: [sh, -c, 'echo "[ettsweep] {{\\"step\\": 1, \\"err\\": {lr}}}" # {seed}']
  score: {name: err, mode: min}
centre: {lr: 1.0}
lr: {range: [0, 9]}
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""
HUNDRED = ["grid.yaml", "--strategy", "standard", "--range", "lr=-4:5", "--range", "wd=-4:5"]
HUNDRED += ["--seeds", "0"]


def cpu_s(*command: str) -> float:
    """Return the CPU seconds of one command."""
    before = children_s()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return children_s() - before


def completion_s(*words: str) -> float:
    """Return the CPU seconds that bash waits for what fits as the last of some words."""
    line = ["ettsweep", *words]
    values = ("_ETTSWEEP_COMPLETE=complete_bash", "COMP_WORDS=" + "\n".join(line), f"COMP_CWORD={len(line) - 1}")
    return cpu_s("env", *values, ETTSWEEP)


def wall_s(work: Callable[[], object]) -> float:
    """Return the wall seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(measure: Callable[[], float], times: int) -> float:
    """Return the median of some measurements, after one that warms the caches."""
    measure()
    return statistics.median(measure() for _ in range(times))


def hundred_jobs_of_submitit(folder: Path) -> None:
    """Run 100 jobs that do nothing on submitit's own local executor, all started at once, as it does."""
    import submitit

    executor = submitit.LocalExecutor(folder)
    executor.update_parameters(timeout_min=5)
    with executor.batch():
        jobs = [executor.submit(int) for _ in range(100)]
    for job in jobs:
        job.result()


def thousand_jobs(figure: Callable[[str, float, str], None]) -> None:
    """Submit 1,000 runs as held arrays of SLURM, look at them and cancel them, where there is a cluster to do it on."""
    profile = {"kind": "slurm", "gpus": 0, "cpus": 1, "time_min": 60, "sbatch": {"hold": True}}
    Path("held.yaml").write_text(json.dumps(profile))  # JSON is YAML
    grid = ["grid.yaml", "--strategy", "standard", "--range", "lr=0:9.99:0.01", "--range", "wd=fixed"]
    submit = [ETTSWEEP, "grid", *grid, *TRIVIAL, "--launch", "held.yaml", "--results", "arrays"]
    values = ["--results", "arrays"]
    seconds = wall_s(lambda: subprocess.run(submit, check=True, stderr=subprocess.DEVNULL))
    figure("1,000 runs submitted as SLURM arrays, wall", seconds, "2")
    queue = wall_s(lambda: subprocess.run(["squeue", "-h", "-r"], check=True, stdout=subprocess.DEVNULL))
    figure("squeue of them, wall", queue, "-")
    figure("status of them, wall", wall_s(lambda: cpu_s(ETTSWEEP, "status", *values)), "-")
    figure("no-op rerun of them, wall", wall_s(lambda: cpu_s(*submit)), "-")
    figure("cancel --all of them, wall", wall_s(lambda: cpu_s(ETTSWEEP, "cancel", "--all", "--yes", *values)), "-")


def slurm_answers() -> bool:
    """Say whether there is a cluster: `. /tmp/ettsweep-devcluster/env.sh` points at that of `make slurm-up`."""
    try:
        return subprocess.run(["scontrol", "ping"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def main() -> None:
    """Print one line a figure, then all of them as JSON."""
    figures: dict[str, float] = {}

    def figure(name: str, value: float, target: str) -> None:
        figures[name] = round(value, 3)
        print(f"{name:58} {value:8.3f} s   target {target}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        os.environ["ETTSWEEP_SLOTS"] = str(
            folder / "slots"
        )  # slots of our own: other sweeps neither wait nor are waited for
        shutil.copy(Path(__file__).parents[1] / "grids" / "vit-digits.yaml", folder / "grid.yaml")
        submit = [ETTSWEEP, "grid", *HUNDRED, *TRIVIAL, "--launch-set", "slots=2", "--results", "results"]

        figure("python -c pass", median(lambda: cpu_s(sys.executable, "-c", "pass"), 9), "-")
        figure("ettsweep --help", median(lambda: cpu_s(ETTSWEEP, "--help"), 9), "0.15")
        figure("completion of an option", median(lambda: completion_s("status", "--"), 9), "0.2")
        figure("plan of 100 runs (--dry-run)", median(lambda: cpu_s(*submit, "--dry-run"), 5), "0.5")
        seconds = wall_s(lambda: subprocess.run([*submit, "--follow"], check=True, stderr=subprocess.DEVNULL))
        figure("100 trivial runs on 2 local slots, wall", seconds, "6")
        (folder / "command.yaml").write_text(COMMAND)
        commands = [ETTSWEEP, "grid", "command.yaml", "--results", "commands", "--launch-set", "slots=2"]
        seconds = wall_s(lambda: subprocess.run([*commands, "--follow"], check=True, stderr=subprocess.DEVNULL))
        figure("100 commands with a line of metrics on 2 slots, wall", seconds, "4")
        figure("no-op rerun of the finished grid of 100", median(lambda: cpu_s(*submit), 5), "0.5")
        figure("status of 100 runs", median(lambda: cpu_s(ETTSWEEP, "status", "--results", "results"), 5), "-")
        figure("submitit alone: 100 jobs that do nothing, wall", wall_s(lambda: hundred_jobs_of_submitit(folder)), "-")
        if slurm_answers():
            thousand_jobs(figure)

    print(json.dumps({"machine": facts(), "seconds": figures}))


if __name__ == "__main__":
    main()
