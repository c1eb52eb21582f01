"""Measure commands on many finished runs: CPU seconds of the whole process with its children, and memory.

    python -m bench.scale --runs 10000 --folder FOLDER [--ettsweep PATH ...]

The folder is made if it does not exist: 40 families of one lattice each, whose losses are a bowl with noise. With
several commands (of other checkouts), each is measured in turn; the median of some calls is printed. `first` is
without anything that an earlier call has kept.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.commands import ETTSWEEP
from bench.tables import facts, print_header, print_line
from ettsweep.runs.folder import runs_dir
from ettsweep.schema import canonical
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import extend_sweep
from ettsweep.trainer.recipe import TransformerRun

FAMILIES = 40
STRATEGIES = 4
NOISE = 0.02
EVERY = 12
TIMES = 3
COMMANDS = {"status": ["--format", "json"], "verify-optimum --dry-run": [], "report": ["--out", "{}/report"]}

GRID = """
model: vit-digits
task: digits
recipe:
  batch_size: {batch}
  schedule: {{total_steps: 240, warmup_steps: 24, decay: cosine, eval_every: {every}}}
centre: {{standard: {{lr: 0.0078125, wd: 0.5}}}}
lr: {{range: [-2, 2], step: 1}}
wd: {{range: [-2, 2], step: 1}}
strategies: [standard, ntk, hybrid, mup]
seeds: [{seeds}]
"""


def make_results(results: Path, runs: int) -> None:
    """Make a results folder of so many finished runs."""
    seeds, rng = runs // (FAMILIES * 25), np.random.default_rng(0)
    for k in range(FAMILIES // STRATEGIES):
        grid = results.parent / f"{results.name}-{k}.yaml"
        grid.write_text(GRID.format(batch=8 * (k + 1), every=EVERY, seeds=", ".join(map(str, range(seeds)))))
        sweep_spec = load_sweep_spec(grid)
        extend_sweep(results, f"sweep-{k}", sweep_spec)
        for study in sweep_spec.studies():
            for spec, (i, j, _) in zip(study.specs(), product(range(-2, 3), range(-2, 3), range(seeds)), strict=True):
                loss = 0.1 * (1 + 0.1 * (i * i + i * j + j * j)) * (1 + NOISE * rng.standard_normal())
                write_run(results, spec, loss, rng)


def write_run(results: Path, spec: TransformerRun, loss: float, rng: np.random.Generator) -> None:
    """Write the folder of a finished run with one attempt, without syncing it to the disk."""
    folder = runs_dir(results) / spec.run_id
    attempt = folder / "attempts" / "0001"
    attempt.mkdir(parents=True)
    (folder / "spec.json").write_text(spec.model_dump_json(indent=1) + "\n")
    (attempt / "claim.json").write_text(json.dumps({"device": "cpu", "process": None}))
    lines = []
    for step in range(1, spec.schedule.last_step + 1):
        now = loss + float(np.exp(-step / 50)) * (1 + 0.1 * rng.standard_normal())
        lines.append(json.dumps({"step": step, "loss": now, "grad_norm": 1.0, "lr": spec.lr}))
        if step % EVERY == 0:
            lines.append(json.dumps({"step": step, "val_loss": now, "val_accuracy": 1 - now / 4}))
    metrics = "".join(f"{line}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(metrics)
    result: dict[str, Any] = {
        "run": spec.run_id,
        "status": "done",
        **dict.fromkeys(("best_accuracy", "final_accuracy"), 1 - loss / 4),
        **dict.fromkeys(("best_loss", "final_loss", "score"), loss),
        **dict.fromkeys(("best_bits", "final_bits", "utilisation", "memory_gib")),
        **dict.fromkeys(("loss_spikes", "grad_spikes", "accuracy_spikes", "eval_loss_spikes", "unrecovered"), 0),
        **dict.fromkeys(("overflow_steps", "nonfinite_steps", "corrupt_images"), 0),
        **{"spike_events": [], "steps": 240, "wall_s": 2.5, "device_s": 2.5, "steps_per_s": 96.9, "attempts": 1},
        "environment": {"device": "cpu", "device_name": "x86_64", "threads": 1, "torch": "2.14.1", "python": "3.11.7"}
        | {"instruction_set": "AVX2", "numpy": "2.4.1", "ettsweep": "0.1.0", "code": "4e9b5c0f8d7a6b21"},
        "weights_sha256": hashlib.sha256(spec.run_id.encode()).hexdigest(),
        "execution": {"processes": 1, "threads": 1, "micro_batch": 64, "compile": False, "data": ""},
        **{"step_s": 0.008, "samples_per_s": 7639.8, "data_wait": 0.025},
        "metrics_sha256": hashlib.sha256(metrics.encode()).hexdigest(),
    }
    result["sha256"] = hashlib.sha256(canonical(result).encode()).hexdigest()
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def measure(command: Sequence[str], cache: str) -> tuple[float, float]:
    """Return CPU seconds and memory in MiB of a command; its exit code says nothing here."""
    null, environment = subprocess.DEVNULL, os.environ | {"XDG_CACHE_HOME": cache}
    process = subprocess.Popen(command, stdout=null, stderr=null, env=environment)
    _, process.returncode, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Print a row for each command and checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ettsweep", nargs="*", default=[ETTSWEEP])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = options.folder.resolve() / f"results-{options.runs}"
    if not results.exists():
        make_results(results, options.runs)
    print_header(("command", "checkout", "first", "median", "MiB"))
    for (name, options_of_it), command in product(COMMANDS.items(), options.ettsweep):
        with tempfile.TemporaryDirectory() as temporary:
            further = [option.format(temporary) for option in options_of_it]
            command_line = [command, *name.split(), *further, "--results", str(results)]
            measured = []
            for _ in range(TIMES + 1):
                shutil.rmtree(Path(temporary, "report"), ignore_errors=True)
                measured.append(measure(command_line, f"{temporary}/cache"))
        (first_s, *later_s), mib = zip(*measured, strict=True)
        print_line((name, command, f"{first_s:.2f}", f"{statistics.median(later_s):.2f}", f"{max(mib):.0f}"))
    print(json.dumps(facts()))


if __name__ == "__main__":
    main()
