"""Measure whole sweeps through this tool and through others: `make bench-beside`. It prints a table, and tests nothing.

All train the same runs of vit-digits, two at a time with a thread each, in a fresh process and an empty folder:
single                 `ettsweep grid --follow`
submitit               submitit's local executor, a job for each run; -lists: two jobs that train half of the runs each
optuna                 study.optimize(n_jobs=2) on enqueued trials, kept in memory: two threads of one process
ray                    Ray Tune, a process for each trial; -reuse: with reuse_actors=True
What the others call is `train_one` in bench/others.py: the Trainer of this tool, evaluated as often, and none of its
folders. The best validation metrics of each run show that it was the same work: they are compared bit for bit with those
of the first way. Wall seconds go from the start of a command to its end, imports and compilation included; CPU seconds
are of all processes. Linux alone. Ray may be there for another Python, see --ray-python.
"""

import argparse
import contextlib
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

import ettsweep
from bench.commands import ETTSWEEP, children_s
from bench.others import AT_ONCE, OTHERS, Row
from bench.tables import facts, print_header, print_line, write_json
from ettsweep.processes import background_thread
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.point import Point

TIMEOUT_S = 3600.0
"""Of each way."""

GRACE_S = 60.0
"""Seconds that processes have to end after the command that has started them."""

LOOK_S = 0.25
"""Seconds between looks at processes: of one that nobody waits for, the CPU time since the last look is not known."""

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
FORMATS = {"wall s": ".1f", "CPU s": ".1f", "runs a minute": ".1f", "wall by single": ".2f", "loss off by": ".1e"}

Found = dict[str, tuple[float | None, float | None]]
"""Of each run the best accuracy and the best loss."""


# --- the runs, and what trains them ---------------------------------------------------------------------------------


def lattice(runs: int) -> tuple[list[str], list[str]]:
    """Return the specs of so many runs, and the options of `ettsweep grid` that ask for the same."""
    from bench.ensemble import DIGITS  # imports torch, which processes that import this module need not

    shapes = [(i, j, runs // (i * j)) for i in range(1, 6) for j in range(1, 5) if runs % (i * j) == 0]
    lrs, wds, seeds = max(shapes, key=lambda shape: (min(shape), -max(shape)))
    log2_lr, log2_wd = (range(-(number // 2), number - number // 2) for number in (lrs, wds))
    specs = [
        DIGITS.with_point(Point.of(lr=DIGITS.lr * 2.0**i, wd=DIGITS.wd * 2.0**j), seed).model_dump_json()
        for i in log2_lr
        for j in log2_wd
        for seed in range(seeds)
    ]
    options = ["--range", f"lr={log2_lr[0]}:{log2_lr[-1]}", "--range", f"wd={log2_wd[0]}:{log2_wd[-1]}"]
    return specs, [*options, "--seeds", ",".join(map(str, range(seeds)))]


def command(method: str, grid: Sequence[str], python: str) -> list[str]:
    if method in OTHERS:
        return [python, "-c", f"from bench.others import drive; drive({method!r})"]
    settings = ("devices=cpu", f"slots={AT_ONCE}", "threads=1")
    launch = [section for setting in settings for section in ("--launch-set", setting)]
    model = ["--model", "vit-digits", "--strategy", "standard"]
    return [ETTSWEEP, "grid", *model, *grid, *launch, "--results", "results", "--follow"]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a way: this code, slots of its own, and no compiled code but what TORCHINDUCTOR_CACHE_DIR has."""
    ours = [str(Path(ettsweep.__file__).parents[1]), str(Path(__file__).parents[1])]
    path = os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    mapping = {"ETTSWEEP_SLOTS": str(folder / "slots"), "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")} | os.environ | mapping


# --- what it takes --------------------------------------------------------------------------------------------------


def measure(message: Sequence[str], folder: Path) -> Row:
    """Return the wall seconds of a command, and the CPU seconds of it and of all that it has started.

    Processes whose parents end become children of this one, which waits for them. Ray's raylet has the kernel forget
    its children: where what was seen of all processes is more than what this one was told, that counts.

    Raises:
        subprocess.SubprocessError: it fails, or takes too long.
    """
    before, observed = children_s(), dict[psutil.Process, float]()
    began_s = time.perf_counter()
    with background_thread("look", lambda over: watch(over, observed)):
        try:
            with (folder / "log.txt").open("wb") as log:  # a pipe would be open for as long as what is left behind
                files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                subprocess.run(message, check=True, timeout=TIMEOUT_S, cwd=folder, env=environment(folder), **files)
            wall_s = time.perf_counter() - began_s
        finally:
            reap()
    told_s, seen_s = children_s() - before, sum(observed.values())
    return {"wall s": wall_s, "CPU s": max(told_s, seen_s), "CPU s told": told_s, "CPU s seen": seen_s}


def watch(over: threading.Event, observed: dict[psutil.Process, float]) -> None:
    """Keep the CPU time of each process below this one as it was last seen."""
    while not over.wait(LOOK_S):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                observed[process] = times.user + times.system


def reap() -> None:
    """Wait for processes that a command has left behind; end those that stay."""
    while left := psutil.Process().children():
        for process in psutil.wait_procs(left, GRACE_S)[1]:
            print(f"ended what was left after {GRACE_S:g} s: process {process.pid}", file=sys.stderr)
            process.kill()


# --- what came of it ------------------------------------------------------------------------------------------------


def found_in(folder: Path) -> Found:
    """Return what a way has found."""
    if (folder / "found.json").exists():
        rows = json.loads((folder / "found.json").read_text())
    else:
        rows = [RunDir(path).result() or {} for path in runs_dir(folder / "results").iterdir()]
    return {row["run"]: (row["best_accuracy"], row["best_loss"]) for row in rows}


def agreement(result: Found, first: Found) -> Row:
    """Return of how many runs the best metrics are those of the first way, and by how much a loss is off at most."""
    if result.keys() != first.keys():
        return {"same bits": "other runs"}
    same = sum(result[run] == best for run, best in first.items())
    losses = [(result[run][1], loss) for run, (_, loss) in first.items()]
    off = max((abs(a / b - 1) for a, b in losses if a is not None and b is not None), default=math.nan)
    return {"same bits": f"{same} of {len(first)}", "loss off by": off}


def versions(ray_python: str) -> Row:
    """Return versions; those of Ray, and of torch beside it, as that Python has them, or None."""
    text = "import json, torch, ray.tune, bench.others; print(json.dumps([ray.__version__, torch.__version__]))"
    completed = subprocess.run([ray_python, "-c", text], env=environment(Path()), capture_output=True, text=True)
    ray, its_torch = json.loads(completed.stdout.splitlines()[-1]) if completed.returncode == 0 else (None, None)
    return facts("torch", "optuna", "submitit") | {"ray": ray, "ray's torch": its_torch}


def main() -> None:
    """Print the table, and write it as JSON where that is asked for; a way that fails leaves the others as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--ways", nargs="*", default=["single", *OTHERS], choices=["single", *OTHERS])
    parser.add_argument("--ray-python", default=sys.executable, help="one that can import ray.tune and torch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ran_on, (specs, grid) = versions(options.ray_python), lattice(options.runs)
    print(json.dumps(ran_on), flush=True)
    rows, first = list[Row](), Found()
    for method in options.ways:
        python = options.ray_python if method.startswith("ray") else sys.executable
        if method.startswith("ray") and not ran_on["ray"]:
            print(f"{method}: left out, {python} cannot import ray.tune and torch", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="beside-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / "specs.json").write_text(json.dumps(specs))
            try:
                row = {"way": method} | measure(command(method, grid, python), folder)
                result = found_in(folder)
            except Exception as error:
                log = folder / "log.txt"
                last = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
                print(f"{method}: failed, {type(error).__name__}: {error}; its last line: {' '.join(last)}", flush=True)
                continue
        first = first or result
        row |= {"runs": len(result), "runs a minute": 60 * len(result) / row["wall s"]} | agreement(result, first)
        rows.append(row)
        if rows[0]["way"] == "single":
            row["wall by single"] = row["wall s"] / rows[0]["wall s"]
        print(f"{method}: {row['wall s']:.1f} s", file=sys.stderr, flush=True)
        write_json(options.json, {"versions": ran_on, "rows": rows})
    names = ["way", "runs", *FORMATS, "same bits"]
    print_header(names)
    for row in rows:
        print_line(format(row[name], FORMATS.get(name, "")) if name in row else "" for name in names)
    other = [row["way"] for row in rows if row["same bits"] != f"{len(specs)} of {len(specs)}"]
    verdict = f"not those of {rows[0]['way']} in {', '.join(other)}" if other else "the same, bit for bit"
    if len(rows) > 1:
        print(f"\nBest metrics of all ways: {verdict}")


if __name__ == "__main__":
    main()
