"""Settings of the built-in trainer: the block `trainer` of a launch profile."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ettsweep.schema import Count, Positive, PositiveFloat, StrictModel, expect, is_whole

LoaderCount = Annotated[
    int | Literal["auto"],
    expect("a whole number, or auto,", lambda v: v == "auto" or is_whole(v, 0)),
]
Switch = Annotated[
    bool | Literal["auto"],
    expect("true, false or auto", lambda v: v == "auto" or isinstance(v, bool)),
]


class TrainerSettings(StrictModel):
    """Settings of training that change numbers by rounding at most.

    Attributes:
        ensemble: most runs of one recipe that a worker trains at once in one vectorised call; numbers differ from
            single runs by rounding.
        micro_batch: samples that one device processes at once; gradients are accumulated over the rest of its share
            of the batch. `auto` takes what fits into the device's memory.
        loader_workers: image-loading processes per worker; `auto` is one per CPU of a worker with a GPU, else none.
        compile: use torch.compile; `auto` does on a GPU if a compiler is installed and a worker's runs are long enough
            to pay for it.
        activation_checkpointing: recompute activations in the backward pass instead of storing them; `auto` does for
            models with more than a billion parameters.
        sharded: shard the model and the optimizer state over the `devices_per_run` devices; `auto` does for models
            with more than a billion parameters.
        corrupt_images: for an image that cannot be decoded, `skip` logs its name and `fail` ends the run.
        log: where metrics are logged in addition to the run folder.
        peak_tflops: peak of one device in the precision used; needed for the utilisation of unlisted devices.
    """

    ensemble: Positive = 1
    micro_batch: Count = "auto"
    loader_workers: LoaderCount = "auto"
    compile: Switch = "auto"
    activation_checkpointing: Switch = "auto"
    sharded: Switch = "auto"
    corrupt_images: Literal["skip", "fail"] = "skip"
    log: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Field(strict=False)] = ()
    peak_tflops: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check_ensemble(self) -> Self:
        for name in ("compile", "activation_checkpointing", "sharded"):
            if self.ensemble > 1 and getattr(self, name) is True:
                raise ValueError(f"ensemble: {self.ensemble} and {name}: true exclude each other; drop one")
        return self
