"""Micro-batch sizes that fit into memory, and the error if one does not."""

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import psutil
import torch

from ettsweep.cgroups import free_memory
from ettsweep.errors import DeviceMemoryError
from ettsweep.processes import GIB
from ettsweep.trainer.models.build import example_inputs
from ettsweep.trainer.models.model_cost import activation_bytes
from ettsweep.trainer.models.registry import model_name, named_models, parameter_count
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.task import Batch, BatchShare, FixedBatchTask
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.step_timing import now_s
from ettsweep.trainer.training.trainer import Trainer, empty_network

CPU_ACTIVATION_BYTES = 4 * 2**30
"""Bytes of activations on the CPU. Fixed, since free memory varies, which changes micro-batch sizes and last bits, and
since Linux kills a process that takes too much instead of refusing the allocation."""

STATE_BYTES = 16
"""Bytes per parameter in training: value, gradient and two moments in fp32."""

MEMORY_FRACTION = 0.85
"""Usable share of a GPU's free memory; the rest covers libraries' workspaces and fragmentation."""


ENSEMBLE_MEMORY_FRACTION = 0.5
"""Share of the free memory for the runs of an ensemble; the rest covers omissions of the estimate."""


@contextlib.contextmanager
def explain_out_of_memory(trainer: Trainer) -> Iterator[None]:
    """Replace an allocator's error in the body by one that names the micro-batch and the settings to change.

    Raises:
        DeviceMemoryError: memory is exhausted.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        # The first slice is the largest: the last may be cut short.
        raise out_of_memory_error(trainer.spec, trainer.device, len(trainer.share.slices[0])) from error


def out_of_memory_error(spec: TransformerRun, device: torch.device, size: int) -> DeviceMemoryError:
    """Return the error for a micro-batch of `size` samples that does not fit, with the settings to change."""
    memory = "the memory of this machine"
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory / GIB
        memory = f"the {total:.0f} GiB of {torch.cuda.get_device_name(device)}"
    name = model_name(spec.model)
    grid = f"--model {name}" if name in named_models() else "FILE"
    smaller = f"--launch-set trainer.micro_batch={size // 2}, or " if size > 1 else ""
    return DeviceMemoryError(
        f"out of memory: a micro-batch of {size} (of a batch of {spec.batch_size}) does not fit into {memory}; "
        f"try {smaller}--launch-set trainer.activation_checkpointing=true; "
        f"`ettsweep doctor {grid} --fit` finds the largest that fits"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """`True` if the error is that of an allocator, on any device: torch has no common exception type for them."""
    text = str(error)
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in text for phrase in phrases)


@contextlib.contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """End the body silently if memory is exhausted."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise


# --- the micro-batches of a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialStep:
    """Measurements of a training step: micro-batch size, speed, and peak bytes of the GPU (0 on a CPU)."""

    size: int
    samples_per_s: float
    memory_bytes: int


def fitting_micro_batch(
    spec: TransformerRun,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
    *,
    recompute: bool,
    sharded: bool = False,
) -> int:
    """Return the largest micro-batch size that fits, see `largest_step`; results for a CPU are cached by recipe.

    Raises:
        DeviceMemoryError: not even one sample fits.
    """
    if device.type == "cpu":
        step = _largest_cpu_step(spec.canonical, device, group, recompute, sharded)
    else:
        step = largest_step(spec, device, group, recompute=recompute, sharded=sharded)
        release_memory(device)
    if step is None:
        raise out_of_memory_error(spec, device, 1)
    return step.size


@cache
def _largest_cpu_step(
    spec: TransformerRun, device: torch.device, group: ProcessGroup, recompute: bool, sharded: bool
) -> TrialStep | None:
    return largest_step(spec, device, group, recompute=recompute, sharded=sharded)


def largest_step(
    spec: TransformerRun,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
    *,
    recompute: bool,
    sharded: bool = False,
    steps: int = 1,
) -> TrialStep | None:
    """Run training steps with ever smaller micro-batches until they fit; return the last step, or None if none fits.

    Starts with the device's whole share of the batch (on a CPU with what `CPU_ACTIVATION_BYTES` hold) and then halves
    the size. All processes of the group must call this; their sizes may differ.

    Args:
        spec: the run.
        device: of this process.
        group: the processes that train the run.
        recompute: compute activations again in the backward pass.
        sharded: shard the model over the group.
        steps: number of steps; the speed of the last one is returned.
    """
    device_batch = -(-spec.batch_size // group.world_size)  # the largest share, as all processes use one size
    size = device_batch
    if device.type == "cpu":
        size = even_micro_batch(device_batch, CPU_ACTIVATION_BYTES // activation_bytes(spec.model, recompute=recompute))
    with group.fake_group() if sharded else contextlib.nullcontext(SINGLE_PROCESS) as trial_group:
        while True:
            # Measured for each size, after the memory of the previous trial is released.
            budget = int(MEMORY_FRACTION * available_bytes(device))
            step = _trial_step(spec, device, trial_group, recompute, sharded, size, steps)
            if size == 1 or (step is not None and step.memory_bytes <= budget):
                return step
            size = even_micro_batch(device_batch, size // 2)


def _trial_step(
    spec: TransformerRun,
    device: torch.device,
    group: ProcessGroup,
    recompute: bool,
    sharded: bool,
    size: int,
    steps: int,
) -> TrialStep | None:
    """Run training steps on synthetic samples in this process only; return the last one, or None if memory runs out.

    A step has two micro-batches, because the second one needs memory beside the gradients of the first.
    """
    cuda, samples_per_s = device.type == "cuda", 0.0
    with suppress_out_of_memory():
        model = empty_network(spec, device, group, sharded=sharded)
        # Not compiled: that takes no more memory, and a run with another size would compile again.
        model.recompute = recompute
        trainer = Trainer(spec, model, build_optimizer(model, spec), device, BatchShare(2 * size, micro_batch=size))
        inputs = example_inputs(spec.model, size, device)
        trainer.task = FixedBatchTask(Batch(inputs, inputs[-1]), _mean)
        if cuda:  # the peak of the steps, not of initialisation
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(steps):
            started_s = now_s(device)
            trainer.train_step(0.0, trainer.task.batches(1))
            samples_per_s = 2 * size / (now_s(device) - started_s)
        return TrialStep(size, samples_per_s, torch.cuda.max_memory_allocated(device) if cuda else 0)
    return None


def _mean(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    return outputs.float().mean()


def even_micro_batch(samples: int, at_most: int) -> int:
    """Return the micro-batch size that cuts `samples` evenly, at most `at_most`.

    Equal sizes need only one compilation. If every divisor is below half of `at_most`, returns the size that gives the
    fewest micro-batches, of nearly equal size.
    """
    at_most = max(1, min(samples, at_most))
    divisors = (size for size in range(at_most, at_most // 2, -1) if samples % size == 0)
    return next(divisors, math.ceil(samples / math.ceil(samples / at_most)))


def fitting_runs(spec: TransformerRun, device: torch.device, micro_batch: int | None, workers: int) -> int:
    """Estimate how many runs like this one fit into a worker's memory at once.

    Args:
        spec: any of the runs.
        device: of the worker.
        micro_batch: samples of a run at once; None takes a whole batch.
        workers: number of workers that share the memory of this machine.
    """
    run_bytes = STATE_BYTES * parameter_count(spec.model)
    run_bytes += (micro_batch or spec.batch_size) * activation_bytes(spec.model, recompute=False)
    free_bytes = available_bytes(device) // (workers if device.type == "cpu" else 1)
    return int(ENSEMBLE_MEMORY_FRACTION * free_bytes / run_bytes)


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device; on a CPU, the memory that this process has and may still get."""
    if device.type == "cuda":
        release_memory(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        share_bytes = int(
            torch.cuda.get_per_process_memory_fraction() * total_bytes
        )  # of a worker that shares the device
        return min(free_bytes, share_bytes - torch.cuda.memory_reserved(device))
    # A cgroup's limit may be far below the free memory of the machine.
    free_host_bytes = min(psutil.virtual_memory().available, free_memory())
    return int(free_host_bytes) + int(psutil.Process().memory_info().rss)


def release_memory(device: torch.device) -> None:
    """Return unused cached GPU memory to the device, where it counts as free."""
    if device.type == "cuda":
        gc.collect()  # modules have reference cycles, so their tensors outlive the last name
        torch.cuda.empty_cache()
