"""The largest micro-batch that fits into a device, found by trying; on the CPU, where that takes minutes, reckoned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ettsweep.models.cost import activation_bytes
from ettsweep.spec import RunSpec
from ettsweep.training.execution import Execution
from ettsweep.training.memory import GIB, ROOM, TrialModel, TrialStep, slope_bytes, trial_sizes, until_full


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


def largest_batches(spec: RunSpec, samples: int, device: torch.device, execution: Execution) -> Iterator[Fit]:
    """Yield the largest micro-batch without and with activation checkpointing.

    Two small batches tell how memory grows; what should then fill a device to `ROOM` is tried, and less where it does
    not fit after all.

    Args:
        spec: the run, whose precision and optimizer count.
        samples: the device's part of the batch: no more is tried.
        device: to fill.
        execution: how it trains.
    """
    for recompute in (False, True):
        yield _largest(spec, samples, device, replace(execution, activation_checkpointing=recompute))


def _largest(spec: RunSpec, samples: int, device: torch.device, execution: Execution) -> Fit:
    budget = int(ROOM * available_bytes(device))
    each = activation_bytes(spec.model, recompute=bool(execution.activation_checkpointing))
    done: list[TrialStep] = []
    with until_full():
        trial = TrialModel(spec, device, execution)
        done = trial.two_steps(*trial_sizes(samples, each, budget))
    wanted = _reckoned(done, budget, samples)
    while done and device.type == "cuda" and wanted > done[-1].size:
        with until_full():
            done += [trial.step(wanted)]
        wanted = max(done[-1].size, int(0.9 * wanted)) if done[-1].size < wanted else wanted
    last = done[-1] if done else TrialStep(0, 1.0, 0)
    slope = slope_bytes(done[0], done[1]) if len(done) > 1 and done[1].size > done[0].size else 0.0
    return Fit(
        activation_checkpointing=bool(execution.activation_checkpointing),
        micro_batch=wanted,
        samples_per_s=last.size / last.step_s,
        memory_gib=(last.memory_bytes + slope * (wanted - last.size)) / GIB,
        limited="batch" if wanted >= samples else "memory",
        tried=wanted == last.size,
    )


def _reckoned(done: Sequence[TrialStep], budget: int, samples: int) -> int:
    """Return the samples that should fill a budget in bytes, a multiple of 8 where there are many."""
    if len(done) < 2:
        return done[0].size if done else 0
    first, second = done
    if second.size == first.size:
        return samples
    most = min(samples, int(second.size + (budget - second.memory_bytes) / slope_bytes(first, second)))
    return max(first.size, most - most % 8 if most < samples else most)


def available_bytes(device: torch.device) -> int:
    """Return the memory of a device that nobody uses; on the CPU what this process has and may still get."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    free = _number(Path("/proc/meminfo"), "MemAvailable:", 1024)
    limit = _number(Path("/sys/fs/cgroup/memory.max"), "", 1)
    used = _number(Path("/sys/fs/cgroup/memory.current"), "", 1)
    if limit is not None and used is not None:
        free = min(free or limit, limit - used)
    resident = _number(Path("/proc/self/status"), "VmRSS:", 1024) or 0
    return (8 * GIB if free is None else free) + resident


def _number(path: Path, label: str, unit: int) -> int | None:
    """Return the first number after a label in a file of the system; None where there is none."""
    try:
        text = path.read_text()
    except OSError:
        return None
    words = text.partition(label)[2].split() if label else text.split()
    return int(words[0]) * unit if words and words[0].isdigit() else None
