"""A slot's device, and how a profile has runs trained on it."""

import os
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError
from ettsweep.files import Json
from ettsweep.launch.profiles import AnyProfile, Slot

if TYPE_CHECKING:
    import torch

    from ettsweep.training.execution import Execution


def prepare_device(slot: Slot) -> "tuple[torch.device, Json]":
    """Import torch, pinned to the slot; return the device and what a claim says of it.

    Raises:
        LaunchError: the slot is a GPU that torch does not see.
    """
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA starts
        # Else processes of the compiler's would take the signals that SLURM sends to all of a job, and die of them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    from ettsweep.training.run import environment

    torch.set_num_threads(slot.threads)
    device = torch.device(slot.device)
    if slot.device == "cuda" and not torch.cuda.is_available():
        raise LaunchError(f"slot {slot.name}: torch sees no GPU; check CUDA_VISIBLE_DEVICES, or set `devices: cpu`")
    return device, environment(device) | {"slot": slot.name}


def execution(profile: AnyProfile, slot: Slot, data: str | None = None) -> "Execution":
    """Return how a run is trained in a slot: as its profile says, on the data that lie there."""
    from ettsweep.training.execution import Execution

    loaders = profile.loader_workers
    if loaders == "auto":
        loaders = slot.threads if slot.device == "cuda" else 0
    return Execution(
        checkpoint_every_s=profile.checkpoint_every_s,
        checkpoint_every_steps=profile.checkpoint_every_steps,
        micro_batch=None if profile.micro_batch == "auto" else profile.micro_batch,
        loader_workers=loaders,
        compile=None if profile.compile == "auto" else profile.compile,
        activation_checkpointing=(
            None if profile.activation_checkpointing == "auto" else profile.activation_checkpointing
        ),
        sharded=None if profile.sharded == "auto" else profile.sharded,
        corrupt_images=profile.corrupt_images,
        sinks=profile.log,
        peak_flops=None if profile.peak_tflops is None else 1e12 * profile.peak_tflops,
        data=data,
    )
