"""Settings of this trainer in a launch profile, under `trainer`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ettsweep.runs.trainable import Settings
from ettsweep.schema import Count, PositiveFloat, expect, is_whole

LoaderCount = Annotated[
    int | Literal["auto"],
    expect("a whole number, or auto,", lambda v: v == "auto" or is_whole(v, 0)),
]
Switch = Annotated[
    bool | Literal["auto"],
    expect("true, false or auto", lambda v: v == "auto" or isinstance(v, bool)),
]
PackMode = Literal["exact", "fast"]


class TrainerSettings(Settings):
    """How Transformers are trained, as far as it changes their numbers by rounding at most.

    Attributes:
        pack: most runs of one recipe that a worker trains at once. They share a loader, and in a stacked ensemble one
            forward pass. `auto` packs where data must be loaded, or where a short trial shows that stacking is faster.
        pack_mode: `exact` stacks runs only if each gets bit for bit the numbers of a run alone; `fast` also stacks
            where rounding differs, as on a GPU.
        micro_batch: samples that one device processes at once; gradients are accumulated over the rest of its share
            of the batch. `auto` takes what fits into the device's memory.
        loader_workers: image-loading processes per worker; `auto` is one per CPU of a worker with a GPU, else none.
        compile: use torch.compile; `auto` does on a GPU if a compiler is installed and the runs of a worker are long
            enough to make up for compilation.
        activation_checkpointing: recompute activations in the backward pass instead of storing them; `auto` does for
            models with more than a billion parameters.
        sharded: shard the model and the optimizer state over the `devices_per_run` devices; `auto` does for models
            with more than a billion parameters.
        corrupt_images: `skip` leaves out an image that cannot be decoded and logs its name; `fail` ends the run.
        log: where metrics are logged in addition to the run folder.
        peak_tflops: peak of one device in the precision used; needed for the utilisation of unlisted devices.
    """

    trainable: Literal["transformer"] = "transformer"
    pack: Count = "auto"
    pack_mode: PackMode = "exact"
    micro_batch: Count = "auto"
    loader_workers: LoaderCount = "auto"
    compile: Switch = "auto"
    activation_checkpointing: Switch = "auto"
    sharded: Switch = "auto"
    corrupt_images: Literal["skip", "fail"] = "skip"
    log: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Field(strict=False)] = ()
    peak_tflops: PositiveFloat | None = None

    per_core: ClassVar[tuple[str, ...]] = ("loader_workers",)
    recorded: ClassVar[tuple[str, ...]] = ("micro_batch", "compile", "activation_checkpointing", "sharded")
