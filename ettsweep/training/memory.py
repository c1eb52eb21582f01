"""How many samples fit through a model at once, and what to say where too many did not."""

import contextlib
import ctypes
import gc
import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ettsweep.errors import DeviceMemoryError
from ettsweep.models.architectures import model_name, named_models
from ettsweep.models.build import example_inputs, speed_up
from ettsweep.models.cost import activation_bytes
from ettsweep.models.shapes import parameter_count, parameter_shapes
from ettsweep.spec import ModelSpec, RunSpec
from ettsweep.tasks.base import Batch, SameBatch, Share
from ettsweep.training.distributed import ALONE
from ettsweep.training.execution import Execution
from ettsweep.training.optimizer import build_optimizer
from ettsweep.training.precision import loss_scaler
from ettsweep.training.prepare import initial_network
from ettsweep.training.trainer import Trainer

CPU_ACTIVATIONS = 4 * 2**30
"""Bytes of activations on the CPU. A fixed number: what is free changes, and with it the last bits of the results."""

ROOM = 0.85
"""Share of a GPU's free memory that is planned with; the rest is for what libraries and fragmentation take."""

TRIAL_SIZES = (8, 24)
"""Samples in the two steps that tell how memory grows with them, unless these are large."""

GIB = 2**30


@contextlib.contextmanager
def naming_the_batch(spec: RunSpec, share: Share, device: torch.device) -> Iterator[None]:
    """Say which micro-batch was too large, and what to set.

    Raises:
        DeviceMemoryError: in place of the allocator's error.
    """
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        size = len(share.slices[0])
        where = "the memory of this machine"
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory / GIB
            where = f"the {total:.0f} GiB of {torch.cuda.get_device_name(device)}"
        name = model_name(spec.model)
        grid = f"--model {name}" if name in named_models() else "--grid FILE"
        smaller = f"--launch-set micro_batch={size // 2}, or " if size > 1 else ""
        raise DeviceMemoryError(
            f"out of memory: a micro-batch of {size} (of a batch of {spec.batch_size}) does not fit into {where}; "
            f"try {smaller}--launch-set activation_checkpointing=true; "
            f"`ettsweep doctor {grid} --fit` finds the largest that fits"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an allocator refused, on whichever device."""
    text = str(error)
    words = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(word in text for word in words)


def fitting_micro_batch(
    spec: RunSpec, samples: int, device: torch.device, execution: Execution, processes: int = 1
) -> int:
    """Return the size of the micro-batches that a device's part of a batch is cut into.

    On a GPU it is measured what two small ones take; a sharded model, which no device may be able to hold for that, is
    reckoned. On the CPU it follows from the model, for a fixed amount of memory, since what is free there changes from
    run to run.

    Args:
        spec: the run.
        samples: the device's part of the batch.
        device: to fill.
        execution: how it trains.
        processes: that share out a sharded model.
    """
    each = activation_bytes(spec.model, recompute=bool(execution.activation_checkpointing))
    if device.type == "cpu":
        return evenly(samples, CPU_ACTIVATIONS // each)
    budget = int(ROOM * torch.cuda.mem_get_info(device)[0])
    if execution.sharded:
        return evenly(samples, (budget - sharded_bytes(spec.model, processes)) // each)
    sizes = trial_sizes(samples, each, budget)
    return evenly(samples, _fits_into(budget, TrialModel(spec, device, execution), samples, sizes))


def sharded_bytes(model: ModelSpec, processes: int) -> int:
    """Return about how many bytes a sharded model takes on each device, without activations.

    Its part of weights, gradients and both moments in fp32; the parameters outside the blocks whole, with their
    gradient, that of the head, and a copy in half precision; and three blocks: one that computes, one that is fetched,
    and a gradient.
    """
    blocks: Counter[str] = Counter()
    outside = 0
    for parameter in parameter_shapes(model):
        stack, _, rest = parameter.name.partition(".")
        if rest:
            blocks[f"{stack}.{rest.partition('.')[0]}"] += parameter.size
        else:
            outside += parameter.size
    return 16 * parameter_count(model) // processes + 14 * outside + 12 * max(blocks.values())


def trial_sizes(samples: int, each: int, budget: int) -> tuple[int, int]:
    """Return the samples of the two steps that tell how memory grows with them; few where a few may fill the device."""
    small, large = TRIAL_SIZES if TRIAL_SIZES[1] * each < budget else (1, 3)
    return min(samples, small), min(samples, large)


def _fits_into(budget: int, trial: "TrialModel", samples: int, sizes: tuple[int, int]) -> int:
    """Return how many samples go through at once within a budget in bytes, from what two small batches take."""
    small, large = sizes
    if samples <= small:
        return samples
    done = trial.two_steps(small, large)
    if len(done) < 2:
        return small if done else 1
    return max(1, int(small + (budget - done[0].memory_bytes) / slope_bytes(*done)))


@contextlib.contextmanager
def until_full() -> Iterator[None]:
    """Leave the body where memory is out."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise


def slope_bytes(first: "TrialStep", second: "TrialStep") -> float:
    """Return how many bytes one more sample takes."""
    return max(1.0, (second.memory_bytes - first.memory_bytes) / (second.size - first.size))


def evenly(samples: int, at_most: int) -> int:
    """Return the size of the micro-batches that `samples` are cut into, as few and as alike as can be."""
    return math.ceil(samples / math.ceil(samples / max(1, at_most)))


@dataclass(frozen=True)
class TrialStep:
    """What a training step on `size` random samples took: seconds, and bytes at its peak."""

    size: int
    step_s: float
    memory_bytes: int


class TrialModel:
    """A model with its optimizer, for steps that only measure."""

    def __init__(self, spec: RunSpec, device: torch.device, execution: Execution) -> None:
        self._spec, self._device = spec, device
        self._model = initial_network(spec, device)
        # Not compiled: that takes no more memory, and what is compiled for one size is not what a run compiles.
        speed_up(self._model, compile_blocks=False, recompute=bool(execution.activation_checkpointing))
        self._optimizer = build_optimizer(self._model, spec)
        self._scaler = loss_scaler(spec.precision, device)

    def two_steps(self, small: int, large: int) -> list[TrialStep]:
        """Take a small step and a large one; return those that fit."""
        done: list[TrialStep] = []
        with until_full():
            self.step(small)  # the first allocates what lives on
            done += [self.step(small)]
            done += [self.step(large)]
        return done

    def step(self, size: int) -> TrialStep:
        """Take one training step on `size` random samples.

        Raises:
            torch.OutOfMemoryError: they do not fit.
        """
        cuda = self._device.type == "cuda"
        inputs = example_inputs(self._spec.model, size, self._device)
        task = SameBatch(Batch(inputs, inputs[-1]), lambda outputs, batch: outputs.float().mean())
        share = Share(size)
        trainer = Trainer(
            self._spec, self._model, self._model, task, self._optimizer, self._scaler, self._device, share, ALONE
        )
        if cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            torch.cuda.synchronize(self._device)
        else:
            forget_peak()
        started_s = time.monotonic()
        loss, _, _ = trainer.train_step(0.0, task.batches(1))
        loss.item()
        if cuda:
            torch.cuda.synchronize(self._device)
        memory = torch.cuda.max_memory_allocated(self._device) if cuda else peak_resident_bytes()
        return TrialStep(size, time.monotonic() - started_s, memory)


def forget_peak() -> None:
    """Let the peak of this process's memory count from now on, without what it has freed, where the system can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had, since the peak was forgotten."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
