"""Trainers that take turns at training steps: what the benchmarks of models share."""

import argparse
import gc
import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from bench.tables import Row, facts, show, write_json
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.models.model_cost import peak_flops, train_flops_per_sample
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, Precision, ScheduleSpec, TaskSpec
from ettsweep.trainer.tasks.task import BatchShare, Task
from ettsweep.trainer.training.memory import is_out_of_memory
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.precision import set_matmul_precision
from ettsweep.trainer.training.trainer import Trainer

TURNS = 9
TURN_S = 0.5
"""Seconds that a turn takes at least, where a step is shorter."""

Build = Callable[[TransformerRun, torch.device, bool], Trainer]
"""Makes a trainer whose task repeats a batch, compiled or not."""


def run_spec(
    model: ModelSpec, precision: Precision, batch_size: int, task: TaskSpec, optimizer: AdamWSpec
) -> TransformerRun:
    """Return a run with a recipe; a batch that lies on the device takes the place of its task."""
    return TransformerRun(
        model=model,
        task=task,
        optimizer=optimizer,
        schedule=ScheduleSpec(total_steps=2, warmup_steps=1, eval_every=1),
        batch_size=batch_size,
        precision=precision,
        strategy=StrategySpec(s=None),
        lr=1e-4,
        wd=0.05,
        seed=0,
    )


def our_trainer(
    spec: TransformerRun, task: Task, device: torch.device, compiled: bool, recompute: bool = False
) -> Trainer:
    with device:
        model = build_model(spec.model, spec.strategy)
    initialise(model, spec.model, spec.strategy, spec.seed)
    model.recompute = recompute
    if compiled:
        compile_blocks(model, spec.model, print)
    return _trainer(spec, task, model, build_optimizer(model, spec), device)


def their_trainer(
    spec: TransformerRun, task: Task, model: nn.Module, blocks: Iterable[nn.Module], device: torch.device
) -> Trainer:
    """Return the trainer of another library's model, whose blocks are compiled."""
    model.to(device).train()
    for block in blocks:
        block.compile()
    model.draws_randomly = False  # it does not say
    return _trainer(spec, task, model, plain_adamw(model, spec), device)


def _trainer(
    spec: TransformerRun, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> Trainer:
    created = Trainer(spec, model, optimizer, device, BatchShare(spec.batch_size))
    created.task = task
    return created


def plain_adamw(model: nn.Module, spec: TransformerRun) -> torch.optim.Optimizer:
    """Return the optimizer that ours is under the standard strategy, for a model whose parameters ettsweep cannot name."""
    o = spec.optimizer
    group = {"params": list(model.parameters()), "lr_factor": 1.0}
    return torch.optim.AdamW([group], lr=spec.lr, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=spec.wd, fused=True)


class Contender:
    """A trainer that takes turns with another, and the seconds of its steps and memory while it did."""

    def __init__(self, build: Build, spec: TransformerRun, device: torch.device, compiled: bool) -> None:
        self.device, before = device, allocated(device)
        self.trainer = build(spec, device, compiled)
        self._steps(1)  # compiles, tunes, and allocates the optimizer's state
        self.warm_step_s = self._steps(1)
        self._own_bytes = allocated(device) - before  # what it keeps between turns
        self.step_s: list[float] = []
        self.cpu_s: list[float] = []  # of a step, in all threads of this process
        self.memory_bytes = 0

    def turn(self, steps: int) -> None:
        others = allocated(self.device) - self._own_bytes
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began_s = time.process_time()
        self.step_s.append(self._steps(steps) / steps)
        self.cpu_s.append((time.process_time() - began_s) / steps)
        if self.device.type == "cuda":
            self.memory_bytes = max(self.memory_bytes, torch.cuda.max_memory_allocated() - others)

    def _steps(self, count: int) -> float:
        """Take some steps; return their seconds, until the device is done."""
        batches = self.trainer.task.batches(1)
        started_s = time.perf_counter()
        for _ in range(count):
            self.trainer.train_step(1e-4, batches)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started_s


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def measure(
    builds: dict[str, Build],
    spec: TransformerRun,
    device: torch.device,
    compiled: bool,
    turns: int,
    subject: str,
    per_sample: int,
) -> Row:
    """Let trainers take turns; return speed, utilisation and memory of the first, and what the other has beside it.

    The ratio is the median of the other's time by ours within a pair of turns: a machine that is busy slows both. On a
    CPU, so is that of CPU seconds, in which others' work does not count; threads that wait for one another do.

    Args:
        builds: ours, and maybe another, by name.
        subject: what is counted, such as tokens.
        per_sample: of it.
    """
    number = per_sample * spec.batch_size
    torch.compiler.reset()
    set_matmul_precision(spec.precision)
    ours, *others = contenders = [Contender(build, spec, device, compiled) for build in builds.values()]
    steps = math.ceil(TURN_S / ours.warm_step_s)
    for contender in contenders * turns:  # A B A B
        contender.turn(steps)
    step_s = statistics.median(ours.step_s)
    peak = peak_flops(torch.cuda.get_device_name(device), spec.precision) if device.type == "cuda" else None
    row = {
        "precision": spec.precision,
        "compiled": compiled,
        "batch_size": spec.batch_size,
        f"{subject}_per_s": number / step_s,
        "step_s": step_s,
        "utilisation": train_flops_per_sample(spec.model) * spec.batch_size / step_s / peak if peak else None,
        "memory_gib": ours.memory_bytes / 2**30 or None,
    }
    for name, other in zip([*builds][1:], others, strict=True):
        row[f"{name}_{subject}_per_s"] = number / statistics.median(other.step_s)
        row[f"{name}_memory_gib"] = other.memory_bytes / 2**30 or None
        row["ratio"] = statistics.median(b / a for a, b in zip(ours.step_s, other.step_s, strict=True))
        if device.type == "cpu":
            row["cpu_ratio"] = statistics.median(b / a for a, b in zip(ours.cpu_s, other.cpu_s, strict=True))
    return row


Contests = dict[str, tuple[Sequence[int], Callable[[torch.device, Precision, bool, int], Row]]]
"""By name: batch sizes, and what measures a row on a device with one of them, in a precision, compiled or not."""


def rows(contests: Contests, device: torch.device) -> Iterator[Row]:
    """Measure in each precision that is usual on a device, compiled and not, with larger and larger batches.

    The first that is too large for the memory ends its column, and is told.
    """
    on_gpu = device.type == "cuda"
    settings = itertools.product(("fp16", "bf16"), (False, True)) if on_gpu else (("fp32", False), ("bf16", False))
    for (precision, compiled), (name, (sizes, measure_one)) in itertools.product(settings, contests.items()):
        for size in sizes:
            try:
                row = measure_one(device, precision, compiled, size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                mode = "compiled" if compiled else "eager"
                print(f"{name}, {precision}, {mode}, batch {size}: out of memory", flush=True)
                break
            finally:
                gc.collect()
                if on_gpu:
                    torch.cuda.empty_cache()
            yield row


def run(
    parser: argparse.ArgumentParser, package: str, contests: Callable[[argparse.Namespace, torch.device], Contests]
) -> None:
    """Measure on the GPU, if there is one: print the table as it comes, and write it as JSON where that is asked for."""
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="in place of those that are usual")
    parser.add_argument("--turns", type=int, help="pairs of turns")
    parser.add_argument("--small", action="store_true", help="a small model, to try the script itself")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    mapping = {"device": name, "threads": torch.get_num_threads(), **facts("torch", package)}
    print(", ".join(f"{key} {value}" for key, value in mapping.items()), flush=True)
    write_json(args.json, {**mapping, "rows": show(rows(contests(args, device), device))})
