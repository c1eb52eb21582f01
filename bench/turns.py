"""Trainers that take turns at training steps: what the benchmarks of models share."""

import argparse
import gc
import itertools
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from bench.tables import Row, facts, show
from ettsweep.trainer.models.model_cost import peak_flops, train_flops_per_sample
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.tasks.task import BatchShare, Task
from ettsweep.trainer.training.memory import is_out_of_memory
from ettsweep.trainer.training.precision import set_matmul_precision
from ettsweep.trainer.training.trainer import Trainer

TURNS = 9
TURN_S = 0.5
"""Seconds that a turn takes at least, where a step is shorter."""

Build = Callable[[TransformerRun, torch.device, bool], Trainer]
"""Makes a trainer whose task has one `batch`, compiled or not."""


def trainer(
    spec: TransformerRun, model: nn.Module, task: Task, optimizer: torch.optim.Optimizer, device: torch.device
) -> Trainer:
    model.draws_randomly = getattr(model, "draws_randomly", False)  # other libraries' models do not say
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

    @property
    def median_step_s(self) -> float:
        return statistics.median(self.step_s)

    @property
    def memory_gib(self) -> float | None:
        return self.memory_bytes / 2**30 or None

    @property
    def utilisation(self) -> float | None:
        """The share that the model's FLOPs of a step are of the device's peak on the data sheet."""
        spec = self.trainer.spec
        on_gpu = self.device.type == "cuda"
        peak = peak_flops(torch.cuda.get_device_name(self.device), spec.precision) if on_gpu else None
        return train_flops_per_sample(spec.model) * spec.batch_size / self.median_step_s / peak if peak else None

    def _steps(self, count: int) -> float:
        """Take some steps; return their seconds, until the device is done."""
        batches = itertools.repeat(self.trainer.task.batch)
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
        what: is counted, such as tokens.
        per_sample: of it.
    """
    number = per_sample * spec.batch_size
    torch.compiler.reset()
    set_matmul_precision(spec.precision)
    contenders = [Contender(build, spec, device, compiled) for build in builds.values()]
    steps = math.ceil(TURN_S / contenders[0].warm_step_s)
    for contender in contenders * turns:  # A B A B
        contender.turn(steps)
    ours, *others = contenders
    row = {
        "precision": spec.precision,
        "compiled": compiled,
        "batch_size": spec.batch_size,
        f"{subject}_per_s": number / ours.median_step_s,
        "step_s": ours.median_step_s,
        "utilisation": ours.utilisation,
        "memory_gib": ours.memory_gib,
    }
    for name, other in zip([*builds][1:], others, strict=True):
        row |= {f"{name}_{subject}_per_s": number / other.median_step_s, f"{name}_memory_gib": other.memory_gib}
        row["ratio"] = statistics.median(b / a for a, b in zip(ours.step_s, other.step_s, strict=True))
        if device.type == "cpu":
            row["cpu_ratio"] = statistics.median(b / a for a, b in zip(ours.cpu_s, other.cpu_s, strict=True))
    return row


def settings(device: torch.device) -> Iterator[tuple[Precision, bool]]:
    """Yield the precisions, compiled and not, that are usual on a device."""
    if device.type == "cuda":
        yield from itertools.product(("fp16", "bf16"), (False, True))
    else:
        yield from (("fp32", False), ("bf16", False))


def fitting(sizes: Sequence[int], measure: Callable[[int], Row], subject: str) -> Iterator[Row]:
    """Yield what is measured with larger and larger batches, until one is too large for the memory; say so."""
    for size in sizes:
        try:
            row = measure(size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            print(f"{subject}, batch {size}: out of memory", flush=True)
            return
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        yield row


def run(
    parser: argparse.ArgumentParser, package: str, rows: Callable[[argparse.Namespace, torch.device], Iterable[Row]]
) -> None:
    """Measure what a command line asks for on the GPU, if there is one: print the table, and write it where asked for."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _write(args.json, device, package, rows(args, device))


def _write(path: Path | None, device: torch.device, package: str, rows: Iterable[Row]) -> None:
    """Print what is measured as it comes, with what it is measured on; write it as JSON too where a path is given."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    mapping = {"device": name, "threads": torch.get_num_threads(), **facts("torch", package)}
    print(", ".join(f"{key} {value}" for key, value in mapping.items()), flush=True)
    show_result = show(rows)
    if path:
        path.write_text(json.dumps({**mapping, "rows": show_result}, indent=1) + "\n")
