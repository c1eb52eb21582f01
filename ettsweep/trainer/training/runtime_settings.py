"""How a run is trained here: what a launch profile says of it, what is settled for the run, and how all are told.

What is left open, None, is settled for the run and its devices; it changes numbers by rounding at most.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.processes import cores
from ettsweep.runs.spec import ModelSpec, RunSpec
from ettsweep.trainer.models.compiler import obstacle
from ettsweep.trainer.models.model_cost import train_flops_per_sample
from ettsweep.trainer.models.registry import parameter_count
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.memory import fitting_micro_batch

LARGE_PARAMETERS = 1e9
"""Parameters above which a run on several devices is sharded, and activations are computed again: 16 bytes for each of
them are a fifth of a large GPU."""

THREAD_FLOPS = 1e9
"""Work of a step that occupies a thread of a CPU, for some hundredths of a second: with less, threads wait for each
other for longer than they compute."""

COMPILE_FLOPS = 1e16
"""Work of a run above which compiling its model pays: some minutes of a GPU at a tenth of its peak."""


@dataclass(frozen=True)
class RuntimeSettings:
    """How one process of a run trains it.

    Attributes:
        threads: of the CPU; None takes as many as a run had before, or as its steps have work for.
        most_threads: the most that these may be.
        at_once: runs that may go through a model together, whose operators are so many times as large.
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
        micro_batch: samples that go through the model at once; None takes as many as before, or as fit.
        loader_workers: processes that load images; 0 loads in the training process.
        compile: use torch.compile; None does on a GPU, for runs that are long enough to make up for it.
        alike: runs like one that a process trains one after the other: what is compiled for one serves all.
        activation_checkpointing: compute activations again in the backward pass instead of keeping them; None does for
            models of more than a billion parameters.
        sharded: let each process hold a part of the model alone; None does for a large one.
        corrupt_images: what to do about an image that cannot be decoded.
        sinks: where metrics go beside the run folder.
        peak_flops: of the device in the precision used, per second; None where that is not known.
        data: where the data of the task are; None where they come with a package.
    """

    threads: int | None = None
    most_threads: int = 1
    at_once: int = 1
    checkpoint_every_s: float = 300.0
    checkpoint_every_steps: int | None = None
    micro_batch: int | None = None
    loader_workers: int = 0
    compile: bool | None = None
    alike: int = 1
    activation_checkpointing: bool | None = None
    sharded: bool | None = None
    corrupt_images: Literal["skip", "fail"] = "skip"
    sinks: tuple[str, ...] = ()
    peak_flops: float | None = None
    data: str | None = None

    def facts(self, group: ProcessGroup) -> Json:
        """Return what of it, once it is settled, can change the last bits of a run."""
        return {
            "processes": group.world,
            "threads": self.threads,
            "micro_batch": self.micro_batch,
            "compile": self.compile,
            "activation_checkpointing": self.activation_checkpointing,
            "sharded": bool(self.sharded),
        }


def resolve(
    spec: RunSpec,
    device: torch.device,
    settings: RuntimeSettings,
    group: ProcessGroup,
    previous: Json,
    warn: Callable[[str], None],
    reserved_bytes: int = 0,
) -> RuntimeSettings:
    """Return the execution with all that was left open.

    `before` is how an earlier attempt was trained; `reserved_bytes` of a GPU are for others.

    Raises:
        InputError: there are more devices than samples in a batch, or what is to be compiled cannot be.
        DeviceMemoryError: not even one sample fits.
    """
    if spec.batch_size < group.world:
        raise InputError(f"{group.world} devices cannot share a batch of {spec.batch_size}")
    compiled = -group.agree(-_compiles(spec, device, settings, previous, warn))[0]
    settings = replace(settings, compile=bool(compiled))
    threads = -group.agree(-_threads(spec, device, settings, previous))[0]
    settings = sized(spec.model, replace(settings, threads=threads), group)
    micro_batch = settings.micro_batch or previous.get("micro_batch")
    (size,) = group.agree(micro_batch if isinstance(micro_batch, int) else 0)  # a file system may show it to some alone
    if not size:
        size = fitting_micro_batch(
            spec,
            device,
            group,
            recompute=bool(settings.activation_checkpointing),
            sharded=bool(settings.sharded),
            reserved_bytes=reserved_bytes,
        )
    device_batch = -(-spec.batch_size // group.world)  # the largest part: all are cut alike
    return replace(settings, micro_batch=-group.agree(-min(size, device_batch))[0])  # the least of all


def _threads(spec: RunSpec, device: torch.device, settings: RuntimeSettings, previous: Json) -> int:
    """Return with how many threads of the CPU a run is trained: their number changes the last bits.

    Small operators go no faster on more, and leave the cores to others.
    """
    if settings.threads is not None:
        return settings.threads
    if device.type != "cpu":
        return settings.most_threads
    previous_threads = previous.get("threads")
    if isinstance(previous_threads, int) and 1 <= previous_threads <= cores():
        return previous_threads
    flops = settings.at_once * spec.batch_size * train_flops_per_sample(spec.model)
    return max(1, min(settings.most_threads, int(flops / THREAD_FLOPS)))


def _compiles(
    spec: RunSpec, device: torch.device, settings: RuntimeSettings, previous: Json, warn: Callable[[str], None]
) -> bool:
    """Say whether a run is compiled: as it was before, or as a profile says, or where that pays."""
    requested = settings.compile
    if requested is None and isinstance(previous.get("compile"), bool):
        requested = previous["compile"]
    if requested is None:
        flops = train_flops_per_sample(spec.model) * spec.batch_size * spec.schedule.last_step * settings.alike
        requested = device.type == "cuda" and flops > COMPILE_FLOPS
    if not requested or not (reason := obstacle(device)):
        return requested
    if settings.compile:
        raise InputError(f"compile=true: nothing can be compiled here, {reason}; compile=auto does where it can")
    warn(f"the model is not compiled, since nothing can be here: {reason}")
    return False


def sized(model: ModelSpec, settings: RuntimeSettings, group: ProcessGroup) -> RuntimeSettings:
    """Return the execution with what the size of the model decides; bits depend on it, so no machine counts."""
    large = parameter_count(model) > LARGE_PARAMETERS
    sharded, recompute = (
        large if setting is None else setting for setting in (settings.sharded, settings.activation_checkpointing)
    )
    return replace(settings, sharded=sharded and group.world > 1, activation_checkpointing=recompute)


# --- what the leader of several processes says ------------------------------------------------------------------------


def broadcast_job(group: ProcessGroup, run: Path, attempt: int, settings: RuntimeSettings) -> None:
    """Tell the others what is trained next."""
    group.from_leader({"run": str(run), "attempt": attempt, "execution": asdict(settings)})


def dismiss(group: ProcessGroup) -> None:
    """Tell the others that there is nothing more to do."""
    group.from_leader(None)


def broadcast_jobs(group: ProcessGroup) -> Iterator[tuple[Path, int, RuntimeSettings]]:
    """Yield what the leader has all train, and how, until it dismisses this process: run folder, attempt, execution."""
    while (job := group.from_leader()) is not None:
        execution = job["execution"]
        yield Path(job["run"]), job["attempt"], RuntimeSettings(**execution | {"sinks": tuple(execution["sinks"])})
