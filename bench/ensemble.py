"""Measure what runs gain by training in an ensemble: `make bench-ensemble`. It prints tables, and tests nothing.

Steps: training steps of vit-digits, and of vit-cifar10 on a GPU: alone and in an ensemble, a few steps each way, and
again; each figure is a median over turns. Commands: grids of vit-digits through the command line, worker start and
evaluations included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch

from bench.tables import Row, facts, show
from ettsweep.runs.point import Point
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.device import keep_freed_memory
from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.models.build import example_inputs
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, DigitsTask
from ettsweep.trainer.tasks.task import Batch, Classification, FixedBatchTask
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.run import build_trainer, prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import Trainer

ETTSWEEP = (sys.executable, "-P", "-m", "ettsweep")  # also where it is not installed, but on the path
DIGITS = TransformerRun(
    model=model_spec("vit-digits"),
    task=DigitsTask(),
    optimizer=AdamWSpec(),
    schedule=ScheduleSpec(total_steps=240, warmup_steps=24, eval_every=12),
    batch_size=64,
    strategy=StrategySpec(s=None),
    lr=2.0**-7,
    wd=0.5,
    seed=0,
)
CIFAR = DIGITS.model_copy(update={"model": model_spec("vit-cifar10"), "task": Cifar10Task()})
MODELS = {"vit-digits": DIGITS, "vit-cifar10": CIFAR}


def point(spec: TransformerRun, k: int) -> TransformerRun:
    """Return the k-th point of a lattice, with one of four seeds."""
    return spec.with_point(
        Point.of(lr=spec.lr * 2.0 ** (k % 3 - 1), wd=spec.wd * 2.0 ** (k // 3 % 3 - 1) * (1 + k // 9)), k % 4
    )


def made(spec: TransformerRun, device: torch.device) -> Trainer:
    """Return what trains a run; CIFAR's images are made, and the same in each step."""
    if spec.task.kind == "digits":
        return prepare(spec, device)
    trainer = build_trainer(spec, device, RuntimeSettings(), SINGLE_PROCESS)
    batch = Batch(
        example_inputs(spec.model, spec.batch_size, device), torch.arange(spec.batch_size, device=device) % 10
    )
    trainer.task = FixedBatchTask(batch, Classification(0.0).loss)
    return trainer


def now_s(device: torch.device) -> float:
    """Return CPU seconds of this process; on a GPU wall seconds, once it has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def stacked(spec: TransformerRun, runs: int, device: torch.device) -> Callable[[], object]:
    """Return a function that takes a training step of many runs in a stack."""
    trainers = [made(point(spec, k), device) for k in range(runs)]
    batches = {trainer: [next(trainer.task.batches(1))] for trainer in trainers}
    stack, lrs = Stack(trainers), dict.fromkeys(trainers, 0.001)
    return lambda: stack.update(stack.gradients(batches)[1], lrs)


def steps(model: str, runs: int, device: torch.device, turns: int, steps_a_turn: int) -> list[Row]:
    """Return milliseconds a run-step of so many runs, alone and in an ensemble, and how many times as fast that is."""
    spec = MODELS[model]
    trainers = [made(point(spec, k), device) for k in range(runs)]
    batches, step = [trainer.task.batches(1) for trainer in trainers], stacked(spec, runs, device)
    mapping: dict[str, Callable[[int], object]] = {
        "alone": lambda n: [t.train_step(0.001, b) for t, b in zip(trainers, batches, strict=True) for _ in range(n)],
        "ensemble": lambda n: [step() for _ in range(n)],
    }
    took: dict[str, list[float]] = {method: [] for method in mapping}
    for turn in range(turns + 1):
        for method, take in mapping.items():
            began_s = now_s(device)
            take(steps_a_turn)
            if turn:  # the first traces, and warms caches
                took[method].append((now_s(device) - began_s) / steps_a_turn / runs)
    rows = list[Row]()
    for method, seconds in took.items():
        ratio = statistics.median(a / s for a, s in zip(took["alone"], seconds, strict=True))
        row = {"model": model, "runs": runs, "way": method, "ms a run-step": 1000 * statistics.median(seconds)}
        rows.append(row | {"times as fast": ratio})
    return rows


def commands(runs: int, folder: Path, ensembles: Sequence[int], options: Sequence[str] = ()) -> list[Row]:
    """Return how long a grid of 9 points takes through the command line on one slot, in ensembles of each size."""
    rows = list[Row]()
    for size in ensembles:
        seeds = ",".join(map(str, range(runs // 9)))
        grid = ["grid", "--model", "vit-digits", "--strategy", "standard", "--seeds", seeds, *options]
        launch = [f"--launch-set={setting}" for setting in ("slots=1", "threads=1", f"trainer.ensemble={size}")]
        environment = os.environ | {"ETTSWEEP_SLOTS": str(folder / "slots")}
        began_s = time.perf_counter()
        command = [*ETTSWEEP, *grid, *launch, "--results", str(folder / f"{runs}-{size}"), "--follow"]
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder)
        rows.append({"slots": 1, "ensemble": size, "runs": runs, "wall s": time.perf_counter() - began_s})
        rows[-1]["times as fast"] = rows[0]["wall s"] / rows[-1]["wall s"]
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 32, 128], help="runs at once, of steps")
    parser.add_argument("--runs", type=int, nargs="*", default=[72], help="of a command: multiples of 9")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as its programs do
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = list(MODELS) if device.type == "cuda" else ["vit-digits"]
    capability = torch.backends.cpu.get_cpu_capability()
    print(
        json.dumps(facts("torch") | {"device": torch.cuda.get_device_name() if device.type == "cuda" else capability})
    )
    show(row for model, size in product(models, options.sizes) for row in steps(model, size, device, 7, 10))
    print()
    with tempfile.TemporaryDirectory() as folder:
        show(row for runs in options.runs for row in commands(runs, Path(folder), (1, 8, 32)))


if __name__ == "__main__":
    main()
