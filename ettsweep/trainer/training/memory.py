"""How many samples go through a model at once, and what to say where too many did not."""

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ettsweep.errors import DeviceMemoryError
from ettsweep.processes import GIB
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.models.build import example_inputs
from ettsweep.trainer.models.model_cost import activation_bytes
from ettsweep.trainer.models.registry import model_name, named_models
from ettsweep.trainer.tasks.task import Batch, BatchShare, SameBatch
from ettsweep.trainer.training.distributed import ALONE, ProcessGroup
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.step_timing import now_s
from ettsweep.trainer.training.trainer import Trainer, empty_network

CPU_ACTIVATIONS = 4 * 2**30
"""Bytes of activations on the CPU. A fixed number: what is free changes, and with it the last bits of the results; and
where too much is taken, Linux kills the process instead of refusing."""

STATE_BYTES = 16
"""Of a parameter in training: its value, gradient and two moments in fp32."""

ROOM = 0.85
"""Share of a GPU's free memory that is planned with; the rest is for what libraries and fragmentation take."""


@contextlib.contextmanager
def naming_the_batch(trainer: Trainer) -> Iterator[None]:
    """Say which micro-batch was too large, and what to set.

    Raises:
        DeviceMemoryError: in place of the allocator's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise too_large(trainer.spec, trainer.device, len(trainer.share.slices[0])) from error


def too_large(spec: RunSpec, device: torch.device, size: int) -> DeviceMemoryError:
    """Return an error that says that a micro-batch does not fit, and what to set."""
    memory = "the memory of this machine"
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory / GIB
        memory = f"the {total:.0f} GiB of {torch.cuda.get_device_name(device)}"
    name = model_name(spec.model)
    grid = f"--model {name}" if name in named_models() else "--grid FILE"
    smaller = f"--launch-set micro_batch={size // 2}, or " if size > 1 else ""
    return DeviceMemoryError(
        f"out of memory: a micro-batch of {size} (of a batch of {spec.batch_size}) does not fit into {memory}; "
        f"try {smaller}--launch-set activation_checkpointing=true; "
        f"`ettsweep doctor {grid} --fit` finds the largest that fits"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an allocator refused, on whichever device."""
    text = str(error)
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in text for phrase in phrases)


@contextlib.contextmanager
def until_full() -> Iterator[None]:
    """Leave the body where memory is out."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise


# --- the micro-batches of a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialStep:
    """What a training step with micro-batches of `size` samples reached: speed, and bytes of a GPU at its peak."""

    size: int
    samples_per_s: float
    memory_bytes: int


def fitting_micro_batch(
    spec: RunSpec,
    device: torch.device,
    group: ProcessGroup = ALONE,
    *,
    recompute: bool,
    sharded: bool = False,
    reserved_bytes: int = 0,
) -> int:
    """Return the largest size of micro-batches that fits, see `largest_step`; on the CPU a process tries a kind once.

    Raises:
        DeviceMemoryError: not even one sample fits.
    """
    if device.type == "cpu":
        step = _on_the_cpu(spec.canonical, device, group, recompute, sharded)
    else:
        step = largest_step(spec, device, group, recompute=recompute, sharded=sharded, reserved_bytes=reserved_bytes)
        give_back(device)
    if step is None:
        raise too_large(spec, device, 1)
    return step.size


@cache
def _on_the_cpu(
    spec: RunSpec, device: torch.device, group: ProcessGroup, recompute: bool, sharded: bool
) -> TrialStep | None:
    return largest_step(spec, device, group, recompute=recompute, sharded=sharded)


def largest_step(
    spec: RunSpec,
    device: torch.device,
    group: ProcessGroup = ALONE,
    *,
    recompute: bool,
    sharded: bool = False,
    reserved_bytes: int = 0,
    steps: int = 1,
) -> TrialStep | None:
    """Return the last of some training steps with the largest micro-batches that fit; None where not one sample does.

    The whole share of a device is tried first, on the CPU what `CPU_ACTIVATIONS` hold, and then about half of it, until
    it fits. All processes of the group come here, and may find different sizes. `reserved_bytes` are left to others.
    """
    device_batch = -(-spec.batch_size // group.world)  # the largest part: all are cut alike
    size = device_batch
    if device.type == "cpu":
        size = evenly(device_batch, CPU_ACTIVATIONS // activation_bytes(spec.model, recompute=recompute))
    with group.without_the_others() if sharded else contextlib.nullcontext(ALONE) as trial_group:
        while True:
            budget = int(ROOM * (available_bytes(device) - reserved_bytes))
            step = _tried(spec, device, trial_group, recompute, sharded, size, steps)
            if size == 1 or (step is not None and step.memory_bytes <= budget):
                return step
            size = evenly(device_batch, size // 2)


def _tried(
    spec: RunSpec, device: torch.device, group: ProcessGroup, recompute: bool, sharded: bool, size: int, steps: int
) -> TrialStep | None:
    """Return the last of some training steps of this process alone, on made samples; None where memory is out.

    A step has two micro-batches: the second goes through beside the gradients of the first.
    """
    cuda, samples_per_s = device.type == "cuda", 0.0
    with until_full():
        model = empty_network(spec, device, group, sharded=sharded)
        # Not compiled: that takes no more memory, and what is compiled for one size is not what a run compiles.
        model.recompute = recompute
        trainer = Trainer(spec, model, build_optimizer(model, spec), device, BatchShare(2 * size, micro_batch=size))
        inputs = example_inputs(spec.model, size, device)
        trainer.task = SameBatch(Batch(inputs, inputs[-1]), _mean)
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(steps):
            started_s = now_s(device)
            trainer.train_step(0.0, trainer.task.batches(1))
            samples_per_s = 2 * size / (now_s(device) - started_s)
        return TrialStep(size, samples_per_s, torch.cuda.max_memory_allocated(device) if cuda else 0)
    return None


def _mean(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    return outputs.float().mean()


def evenly(samples: int, at_most: int) -> int:
    """Return the size of the micro-batches that `samples` are cut into: all of one size, if that is possible.

    A model is then compiled for that size alone. Else, or where each would be less than half of what fits, they are as
    few and as alike as can be.
    """
    at_most = max(1, min(samples, at_most))
    divisors = (size for size in range(at_most, at_most // 2, -1) if samples % size == 0)
    return next(divisors, math.ceil(samples / math.ceil(samples / at_most)))


def available_bytes(device: torch.device) -> int:
    """Return the memory of a device that nobody uses; on the CPU what this process has and may still get."""
    if device.type == "cuda":
        give_back(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        share_bytes = int(
            torch.cuda.get_per_process_memory_fraction() * total_bytes
        )  # of a worker that shares the device
        return min(free_bytes, share_bytes - torch.cuda.memory_reserved(device))
    free_host_bytes = _number(Path("/proc/meminfo"), "MemAvailable:", 1024)
    limit = _number(Path("/sys/fs/cgroup/memory.max"), "", 1)
    used = _number(Path("/sys/fs/cgroup/memory.current"), "", 1)
    if limit is not None and used is not None:
        free_host_bytes = min(free_host_bytes or limit, limit - used)
    resident = _number(Path("/proc/self/status"), "VmRSS:", 1024) or 0
    return (8 * GIB if free_host_bytes is None else free_host_bytes) + resident


def give_back(device: torch.device) -> None:
    """Give back to a GPU what this process no longer uses of its memory, so that it counts as free."""
    if device.type == "cuda":
        gc.collect()  # networks hold themselves
        torch.cuda.empty_cache()


def _number(path: Path, label: str, unit: int) -> int | None:
    """Return the first number after a label in a file of the system; None where there is none."""
    try:
        text = path.read_text()
    except OSError:
        return None
    fields = text.partition(label)[2].split() if label else text.split()
    return int(fields[0]) * unit if fields and fields[0].isdigit() else None
