"""Runtime settings of a process, which change results by rounding at most.

Settings come from a launch profile. Those left open (None) are resolved for the run and its devices.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.processes import cores
from ettsweep.trainer.models.compiler import obstacle
from ettsweep.trainer.models.model_cost import train_flops_per_sample
from ettsweep.trainer.models.registry import parameter_count
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.memory import fitting_micro_batch

LARGE_PARAMETERS = 1e9
"""Parameters above which a run on several devices is sharded, and activations are recomputed: with 16 bytes of training
state each, they fill a fifth of a large GPU."""

THREAD_FLOPS = 1e9
"""FLOPs of a step per CPU thread, some hundredths of a second: with less work, threads wait for each other for longer
than they compute."""

COMPILE_FLOPS = 1e16
"""FLOPs of a run above which compiling its model pays off: some minutes of a GPU at a tenth of its peak."""


@dataclass(frozen=True)
class RuntimeSettings:
    """How a process trains a run.

    Attributes:
        threads: CPU threads; None uses the number of the previous attempt, or one that suits the work of a step.
        most_threads: upper limit for `threads`.
        stack_size: runs in one stack, by which operators are larger.
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
        micro_batch: samples per forward pass; None uses the previous attempt's size, or the largest that fits.
        loader_workers: processes that load images; 0 loads in the training process.
        compile: use torch.compile; None does on a GPU if the runs are long enough to make up for compilation.
        alike: runs of one recipe that a process trains one after the other, sharing compiled code.
        activation_checkpointing: recompute activations in the backward pass instead of keeping them; None does for
            models of more than a billion parameters.
        sharded: shard the model over the processes (FSDP2); None does for models of more than a billion parameters.
        corrupt_images: skip an image that cannot be decoded, or fail the run.
        sinks: names of metric loggers.
        peak_flops: peak FLOP/s of the device in the precision used; None if unknown.
        data: path of the task's data; None if they come with a package.
    """

    threads: int | None = None
    most_threads: int = 1
    stack_size: int = 1
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

    @classmethod
    def of(cls, given: Json, data: str | None) -> "RuntimeSettings":
        """Return the settings of a run in a slot: those of the launch profile, with `auto` left open as None.

        Args:
            given: settings of profile and slot from the worker.
            data: path of the task's data; None if they come with a package.
        """
        shared = {field.name for field in fields(cls)}
        settings = given["trainer"]
        chosen = {name: v for name, v in (given | settings).items() if name in shared and v is not None and v != "auto"}
        if given["device"] == "cuda":
            chosen.setdefault("loader_workers", given["slot_threads"])
        # An explicit number of threads stands, but `auto` never exceeds the slot.
        chosen |= {"most_threads": given["slot_threads"], "sinks": tuple(settings["log"]), "data": data}
        if settings["peak_tflops"] is not None:
            chosen["peak_flops"] = 1e12 * settings["peak_tflops"]
        return cls(**chosen)

    def facts(self, group: ProcessGroup) -> Json:
        """Return the resolved settings that can change the last bits of a run, for its execution record."""
        return {
            "processes": group.world_size,
            "threads": self.threads,
            "micro_batch": self.micro_batch,
            "compile": self.compile,
            "activation_checkpointing": self.activation_checkpointing,
            "sharded": bool(self.sharded),
            **({"ensemble": self.stack_size} if self.stack_size > 1 else {}),
        }

    def for_stack(self, runs: int) -> "RuntimeSettings":
        """Return the settings of some runs in one stack, without anything that a stack cannot do."""
        return replace(self, stack_size=runs, compile=False, activation_checkpointing=False, sharded=False)


def resolve(
    spec: TransformerRun,
    device: torch.device,
    settings: RuntimeSettings,
    group: ProcessGroup,
    previous: Json,
    warn: Callable[[str], None],
) -> RuntimeSettings:
    """Return the settings with all open values resolved, equal in all processes of the group.

    An explicit setting wins, then the value of the previous attempt (for a bit-exact resume), then a default.

    Args:
        spec: the run.
        device: of this process.
        settings: of the launch profile.
        group: the processes that train the run; all must call this.
        previous: execution record of the previous attempt; empty if there is none.
        warn: takes one line of text.

    Raises:
        InputError: there are more devices than samples in a batch, or `compile` is requested but impossible.
        DeviceMemoryError: not even one sample fits.
    """
    if spec.batch_size < group.world_size:
        raise InputError(f"{group.world_size} devices cannot share a batch of {spec.batch_size}")
    # -all_max(-x) is the minimum: all take the most cautious value of any process.
    compiled = -group.all_max(-_compiles(spec, device, settings, previous, warn))[0]
    settings = replace(settings, compile=bool(compiled))
    threads = -group.all_max(-_threads(spec, device, settings, previous))[0]
    settings = resolve_by_size(spec.model, replace(settings, threads=threads), group)
    micro_batch = settings.micro_batch or previous.get("micro_batch")
    # A network file system may show the previous record to some processes only: take it if any process sees it.
    (size,) = group.all_max(micro_batch if isinstance(micro_batch, int) else 0)
    if not size and settings.stack_size > 1:
        size = spec.batch_size  # `fitting_runs` counts with a whole batch of each
    elif not size:
        size = fitting_micro_batch(
            spec,
            device,
            group,
            recompute=bool(settings.activation_checkpointing),
            sharded=bool(settings.sharded),
        )
    device_batch = -(-spec.batch_size // group.world_size)  # the largest share, as all processes use one size
    return replace(settings, micro_batch=-group.all_max(-min(size, device_batch))[0])


def _threads(spec: TransformerRun, device: torch.device, settings: RuntimeSettings, previous: Json) -> int:
    """Return the number of CPU threads, which changes the last bits of results.

    Small operators are no faster on more threads, so other cores are for other workers.
    """
    if settings.threads is not None:
        return settings.threads
    if device.type != "cpu":
        return settings.most_threads
    previous_threads = previous.get("threads")
    if isinstance(previous_threads, int) and 1 <= previous_threads <= cores():
        return previous_threads
    flops = settings.stack_size * spec.batch_size * train_flops_per_sample(spec.model)
    return max(1, min(settings.most_threads, int(flops / THREAD_FLOPS)))


def _compiles(
    spec: TransformerRun, device: torch.device, settings: RuntimeSettings, previous: Json, warn: Callable[[str], None]
) -> bool:
    """`True` if the model is compiled: as the profile says, else as in the previous attempt, else if it pays off."""
    requested = settings.compile
    if requested is None and isinstance(previous.get("compile"), bool):
        requested = previous["compile"]
    if requested is None:
        flops = train_flops_per_sample(spec.model) * spec.batch_size * spec.schedule.last_step * settings.alike
        requested = device.type == "cuda" and flops > COMPILE_FLOPS
    if not requested or not (reason := obstacle(device)):
        return requested
    if settings.compile:
        raise InputError(
            f"trainer.compile=true: torch.compile does not work here, {reason}; trainer.compile=auto runs without it"
        )
    warn(f"the model is not compiled, since torch.compile does not work here: {reason}")
    return False


def resolve_by_size(model: ModelSpec, settings: RuntimeSettings, group: ProcessGroup) -> RuntimeSettings:
    """Resolve what the model's size alone decides: these settings change last bits, so the machine must not matter."""
    large = parameter_count(model) > LARGE_PARAMETERS
    sharded, recompute = (
        large if setting is None else setting for setting in (settings.sharded, settings.activation_checkpointing)
    )
    return replace(settings, sharded=sharded and group.world_size > 1, activation_checkpointing=recompute)
