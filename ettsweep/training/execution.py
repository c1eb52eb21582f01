"""How a run is trained here: what a launch profile says, and what changes its numbers by rounding at most."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Execution:
    """How one process of a run trains it.

    Attributes:
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
        micro_batch: samples that go through the model at once; None takes what fits.
        loader_workers: processes that load images; 0 loads in the training process.
        compile: use torch.compile; None does on a GPU, for a run that is long enough to make up for it.
        activation_checkpointing: compute activations again in the backward pass instead of keeping them; None does for
            models of more than a billion parameters.
        sharded: let each process hold a part of the model alone; None does for a large one.
        corrupt_images: what to do about an image that cannot be decoded.
        sinks: where metrics go beside the run folder.
        peak_flops: of the device in the precision used, per second; None where that is not known.
        data: where the data of the task are; None where they come with a package.
    """

    checkpoint_every_s: float = 300.0
    checkpoint_every_steps: int | None = None
    micro_batch: int | None = None
    loader_workers: int = 0
    compile: bool | None = None
    activation_checkpointing: bool | None = None
    sharded: bool | None = None
    corrupt_images: Literal["skip", "fail"] = "skip"
    sinks: tuple[str, ...] = ()
    peak_flops: float | None = None
    data: str | None = None
