"""Trainers that take turns at training steps: what the benchmarks of models share."""

import gc
import importlib.metadata
import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from ettsweep.models.cost import peak_flops, train_flops_per_sample
from ettsweep.spec import Precision, RunSpec
from ettsweep.tasks.base import Share, Task
from ettsweep.training.memory import is_out_of_memory
from ettsweep.training.peak import measured_flops
from ettsweep.training.precision import set_matmul_precision
from ettsweep.training.timing import UTILISATIONS
from ettsweep.training.trainer import Trainer

TURNS = 9
TURN_S = 0.5
"""Seconds that a turn takes at least, where a step is shorter."""

Build = Callable[[RunSpec, torch.device, bool], Trainer]
"""Makes a trainer whose task has one `batch`, compiled or not."""


def trainer(
    spec: RunSpec, model: nn.Module, task: Task, optimizer: torch.optim.Optimizer, device: torch.device
) -> Trainer:
    model.draws = getattr(model, "draws", False)  # other libraries' models do not say
    made = Trainer(spec, model, optimizer, device, Share(spec.batch_size))
    made.task = task
    return made


def plain_adamw(model: nn.Module, spec: RunSpec) -> torch.optim.Optimizer:
    """Return the optimizer that ours is under the standard strategy, for a model whose parameters ettsweep cannot name."""
    o = spec.optimizer
    group = {"params": list(model.parameters()), "lr_factor": 1.0}
    return torch.optim.AdamW([group], lr=spec.lr, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=spec.wd, fused=True)


class Contender:
    """A trainer that takes turns with another, and the seconds of its steps and memory while it did."""

    def __init__(self, build: Build, spec: RunSpec, device: torch.device, compiled: bool) -> None:
        self.device, before = device, allocated(device)
        self.trainer = build(spec, device, compiled)
        self._steps(1)  # compiles, tunes, and allocates the optimizer's state
        self.warm_step_s = self._steps(1)
        self._own_bytes = allocated(device) - before  # what it keeps between turns
        self.step_s: list[float] = []
        self.memory_bytes = 0

    def turn(self, steps: int) -> None:
        others = allocated(self.device) - self._own_bytes
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.step_s.append(self._steps(steps) / steps)
        if self.device.type == "cuda":
            self.memory_bytes = max(self.memory_bytes, torch.cuda.max_memory_allocated() - others)

    @property
    def median_step_s(self) -> float:
        return statistics.median(self.step_s)

    @property
    def memory_gib(self) -> float | None:
        return self.memory_bytes / 2**30 or None

    def utilisations(self) -> dict[str, float | None]:
        """Return which share the model's FLOPs of a step are of the data sheet's peak, and of the measured one."""
        spec = self.trainer.spec
        if self.device.type != "cuda":
            return dict.fromkeys(UTILISATIONS)
        name = torch.cuda.get_device_name(self.device)
        reached = train_flops_per_sample(spec.model) * spec.batch_size / self.median_step_s
        peaks = peak_flops(name, spec.precision), measured_flops(name, spec.precision)
        return {key: reached / peak if peak else None for key, peak in zip(UTILISATIONS, peaks, strict=True)}

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


def contest(
    builds: tuple[Build, ...], spec: RunSpec, device: torch.device, compiled: bool, turns: int
) -> list[Contender]:
    """Let trainers take turns: A B A B."""
    torch.compiler.reset()
    set_matmul_precision(spec.precision)
    contenders = [Contender(build, spec, device, compiled) for build in builds]
    steps = math.ceil(TURN_S / contenders[0].warm_step_s)
    for _ in range(turns):
        for contender in contenders:
            contender.turn(steps)
    return contenders


def ratio(ours: Contender, theirs: Contender) -> float:
    """Return their time by ours, the median over pairs of turns: a machine that is busy slows both."""
    return statistics.median(b / a for a, b in zip(ours.step_s, theirs.step_s, strict=True))


def settings(device: torch.device) -> Iterator[tuple[Precision, bool]]:
    """Yield the precisions, compiled and not, that are usual on a device."""
    if device.type == "cuda":
        yield from itertools.product(("fp16", "bf16"), (False, True))
    else:
        yield from (("fp32", False), ("bf16", False))


def fitting(sizes: list[int], measure: Callable[[int], object], what: str) -> Iterator[object]:
    """Yield what is measured with larger and larger batches, until one is too large for the memory; say so."""
    for size in sizes:
        try:
            row = measure(size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            print(f"{what}  {size:5}  out of memory", flush=True)
            return
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        yield row


def machine(device: torch.device, package: str) -> dict[str, object]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        **versions,
        package: importlib.metadata.version(package),
    }


def optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
