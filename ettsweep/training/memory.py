"""How many samples fit through a model at once, and what to say where too many did not."""

import contextlib
import ctypes
import gc
import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ettsweep.errors import DeviceMemoryError
from ettsweep.models.architectures import model_name, named_models, parameter_count, parameter_shapes
from ettsweep.models.build import example_inputs
from ettsweep.models.cost import activation_bytes
from ettsweep.processes import GIB
from ettsweep.spec import ModelSpec, RunSpec
from ettsweep.tasks.base import Batch, SameBatch, Share
from ettsweep.training.attention import take_fastest
from ettsweep.training.optimizer import build_optimizer
from ettsweep.training.trainer import Trainer, initial_network

CPU_ACTIVATIONS = 4 * 2**30
"""Bytes of activations on the CPU. A fixed number: what is free changes, and with it the last bits of the results."""

STATE_BYTES = 16
"""Of a parameter in training: its value, gradient and two moments in fp32."""

ROOM = 0.85
"""Share of a GPU's free memory that is planned with; the rest is for what libraries and fragmentation take."""

TRIAL_SIZES = (8, 24)
"""Samples in the two steps that tell how memory grows with them, unless these are large."""


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
        spec, device, size = trainer.spec, trainer.device, len(trainer.share.slices[0])
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


# --- the micro-batches of a run ---------------------------------------------------------------------------------------


def fitting_micro_batch(
    spec: RunSpec, samples: int, device: torch.device, recompute: bool, shards: int = 1, reserved_bytes: int = 0
) -> int:
    """Return the size of the micro-batches that a device's part of a batch is cut into.

    On a GPU it is measured what two small ones take; a sharded model, which no device may be able to hold for that, is
    reckoned. On the CPU it follows from the model, for a fixed amount of memory, since what is free there changes from
    run to run. `samples` are the device's part of the batch; `shards` devices share out the model; `reserved_bytes` are
    left to others.
    """
    each = activation_bytes(spec.model, recompute=recompute)
    if device.type == "cpu":
        return evenly(samples, CPU_ACTIVATIONS // each)
    budget = int(ROOM * (available_bytes(device) - reserved_bytes))
    if shards > 1:
        return evenly(samples, (budget - sharded_bytes(spec.model, shards)) // each)
    small, large = trial_sizes(samples, each, budget)
    if samples <= small:
        return samples
    done = TrialModel(spec, device, recompute).two_steps(small, large)
    give_back(device)
    return evenly(samples, reckoned(done, samples, budget))


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


def reckoned(done: "Sequence[TrialStep]", samples: int, budget: int) -> int:
    """Return how many samples should fill a budget in bytes, from those of two small steps that fit into it."""
    if len(done) < 2:
        return done[0].size if done else 0
    first, second = done
    if second.size == first.size:
        return samples
    return min(samples, int(first.size + (budget - first.memory_bytes) / slope_bytes(first, second)))


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
    """Return the size of the micro-batches that `samples` are cut into: all of one size, if that is possible.

    A model is then compiled for that size alone. Else, or where each would be less than half of what fits, they are as
    few and as alike as can be.
    """
    at_most = max(1, min(samples, at_most))
    alike = (size for size in range(at_most, at_most // 2, -1) if samples % size == 0)
    return next(alike, math.ceil(samples / math.ceil(samples / at_most)))


@dataclass(frozen=True)
class TrialStep:
    """What a training step on `size` random samples took: seconds, and bytes at its peak."""

    size: int
    step_s: float
    memory_bytes: int


class TrialModel:
    """A model with its optimizer, for steps that only measure."""

    def __init__(self, spec: RunSpec, device: torch.device, recompute: bool) -> None:
        self._spec, self._device = spec, device
        self._model = initial_network(spec, device)
        # Not compiled: that takes no more memory, and what is compiled for one size is not what a run compiles.
        self._model.recompute = recompute
        if device.type == "cuda":
            take_fastest(self._model, spec, device)  # plain products keep more than other kernels
        self._optimizer = build_optimizer(self._model, spec)

    def two_steps(self, small: int, large: int) -> list[TrialStep]:
        """Take a small step and a large one; return those that fit."""
        done: list[TrialStep] = []
        with until_full():
            self.step(small)  # the first allocates what lives on
            done += [self.step(small)]
            done += [self.step(large)]
        return done

    def trainer(self, size: int) -> tuple[Trainer, Iterator[Batch]]:
        """Return what takes steps on `size` made samples, always the same ones, and these."""
        inputs = example_inputs(self._spec.model, size, self._device)
        task = SameBatch(Batch(inputs, inputs[-1]), _mean)
        trainer = Trainer(self._spec, self._model, self._optimizer, self._device, Share(size))
        trainer.task = task
        return trainer, task.batches(1)

    def step(self, size: int) -> TrialStep:
        """Take one training step on `size` random samples.

        Raises:
            torch.OutOfMemoryError: they do not fit.
        """
        cuda = self._device.type == "cuda"
        trainer, batches = self.trainer(size)
        if cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            torch.cuda.synchronize(self._device)
        else:
            forget_peak()
        started_s = time.monotonic()
        loss, _, _ = trainer.train_step(0.0, batches)
        loss.item()
        if cuda:
            torch.cuda.synchronize(self._device)
        memory = torch.cuda.max_memory_allocated(self._device) if cuda else peak_resident_bytes()
        return TrialStep(size, time.monotonic() - started_s, memory)


def _mean(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    return outputs.float().mean()


def forget_peak() -> None:
    """Let the peak of this process's memory count from now on, without what it has freed, where the system can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had, since the peak was forgotten."""
    if (peak := _number(Path("/proc/self/status"), "VmHWM:", 1024)) is not None:
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_bytes(device: torch.device) -> int:
    """Return the memory of a device that nobody uses; on the CPU what this process has and may still get."""
    if device.type == "cuda":
        give_back(device)
        free_bytes, total = torch.cuda.mem_get_info(device)
        part = int(torch.cuda.get_per_process_memory_fraction() * total)  # of a worker that shares the device
        return min(free_bytes, part - torch.cuda.memory_reserved(device))
    free = _number(Path("/proc/meminfo"), "MemAvailable:", 1024)
    limit = _number(Path("/sys/fs/cgroup/memory.max"), "", 1)
    used = _number(Path("/sys/fs/cgroup/memory.current"), "", 1)
    if limit is not None and used is not None:
        free = min(free or limit, limit - used)
    resident = _number(Path("/proc/self/status"), "VmRSS:", 1024) or 0
    return (8 * GIB if free is None else free) + resident


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
    words = text.partition(label)[2].split() if label else text.split()
    return int(words[0]) * unit if words and words[0].isdigit() else None


# --- the largest that fits --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """The largest micro-batch that fits.

    Attributes:
        activation_checkpointing: whether activations were computed again in the backward pass.
        micro_batch: samples; 0 where not even one fits.
        samples_per_s: in the largest training step that was tried.
        memory_gib: at its peak.
        limited: by `memory`, or by the `batch`, which is no larger.
        tried: whether a step of that size was taken, rather than reckoned from two small ones.
    """

    activation_checkpointing: bool
    micro_batch: int
    samples_per_s: float
    memory_gib: float
    limited: str
    tried: bool


def largest_batches(spec: RunSpec, samples: int, device: torch.device) -> Iterator[Fit]:
    """Yield the largest micro-batch without and with activation checkpointing, `samples` at most.

    Two small batches tell how memory grows. What should then fill a GPU to `ROOM` is tried, and less where it does not
    fit after all; on the CPU, where that takes minutes, it is reckoned.
    """
    yield from (_largest(spec, samples, device, recompute) for recompute in (False, True))


def _largest(spec: RunSpec, samples: int, device: torch.device, recompute: bool) -> Fit:
    budget = int(ROOM * available_bytes(device))
    each = activation_bytes(spec.model, recompute=recompute)
    done: list[TrialStep] = []
    with until_full():
        trial = TrialModel(spec, device, recompute)
        done = trial.two_steps(*trial_sizes(samples, each, budget))
    wanted = reckoned(done, samples, budget)
    if done and wanted < samples:
        wanted = max(done[0].size, wanted - wanted % 8)
    while done and device.type == "cuda" and wanted > done[-1].size:
        with until_full():
            done += [trial.step(wanted)]
        wanted = max(done[-1].size, int(0.9 * wanted)) if done[-1].size < wanted else wanted
    last = done[-1] if done else TrialStep(0, 1.0, 0)
    slope = slope_bytes(done[0], done[1]) if len(done) > 1 and done[1].size > done[0].size else 0.0
    return Fit(
        activation_checkpointing=recompute,
        micro_batch=wanted,
        samples_per_s=last.size / last.step_s,
        memory_gib=(last.memory_bytes + slope * (wanted - last.size)) / GIB,
        limited="batch" if wanted >= samples else "memory",
        tried=wanted == last.size,
    )
