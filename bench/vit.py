"""Measure a training step of ours against timm's VisionTransformer of the same shape: `make bench-vit`. It tests nothing.

Both go through ettsweep's own Trainer.train_step (forward pass, loss with soft, smoothed targets, backward pass, norm
of the gradient, fused AdamW), on the same images, in the same precision, taking turns: A B A B. Speeds are medians over
the turns; the ratio is the median of timm's time by ours within a pair of turns, so that a machine that others use too
slows both. timm's has affine LayerNorms and a bias in the patch embedding, which ours has not, and no other biases.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from bench import turns
from bench.tables import Row
from bench.turns import fitting, plain_adamw, settings, trainer
from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.models.registry import model_spec, named_models
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, Precision, ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import DigitsTask
from ettsweep.trainer.tasks.task import Batch, Classification
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.trainer import Trainer


class Noise:
    """A task of one batch that lies on the device: noise, and the targets that Mixup gives."""

    def __init__(self, spec: TransformerRun, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        model, count = spec.model, spec.batch_size
        shape = (count, model.channels, model.image_size, model.image_size)
        item, other = (
            nn.functional.one_hot(torch.randint(model.classes, (count,), generator=generator), model.classes)
            for _ in range(2)
        )
        images_BCHW = torch.randn(shape, generator=generator)
        self.batch = Batch((images_BCHW.to(device),), (0.7 * item + 0.3 * other).to(device))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return Classification(0.1).loss(outputs, batch)


def run_spec(model: ModelSpec, precision: Precision, batch_size: int) -> TransformerRun:
    return TransformerRun(
        model=model,
        task=DigitsTask(),  # any: the noise takes its place
        schedule=ScheduleSpec(total_steps=2, warmup_steps=1, eval_every=1),
        batch_size=batch_size,
        precision=precision,
        strategy=StrategySpec(s=None),
        lr=1e-4,
        wd=0.05,
        seed=0,
    )


def our_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    model = build_model(spec.model, spec.strategy)
    initialise(model, spec.model, spec.strategy, spec.seed)
    model.to(device)
    if compiled:
        compile_blocks(model, spec.model, print)
    return trainer(spec, model, Noise(spec, device), build_optimizer(model, spec), device)


def timm_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    from timm.models.vision_transformer import VisionTransformer  # takes seconds

    m = spec.model
    model = VisionTransformer(
        img_size=m.image_size,
        patch_size=m.patch_size,
        in_chans=m.channels,
        num_classes=m.classes,
        global_pool="avg",
        embed_dim=m.width,
        depth=m.depth,
        num_heads=m.heads,
        mlp_ratio=m.mlp_ratio,
        qkv_bias=False,
        proj_bias=False,  # of attention and MLP
        class_token=False,
        fc_norm=False,
    ).to(device)
    for block in model.blocks if compiled else ():
        block.compile()
    return trainer(spec, model, Noise(spec, device), plain_adamw(model, spec), device)


def measure(
    model: str, device: torch.device, precision: Precision, compiled: bool, batch_size: int, count: int = turns.TURNS
) -> Row:
    """Let ours and timm's take turns at training steps."""
    spec = run_spec(model_spec(model), precision, batch_size)
    builds = {"ours": our_trainer, "timm": timm_trainer}
    return {"model": model, **turns.measure(builds, spec, device, compiled, count, "images", 1)}


def rows(requested: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Measure each precision, compiled and not where that is usual, with larger and larger batches until one fails."""
    sizes = requested.batch_sizes or ([64, 128, 256, 512, 1024] if device.type == "cuda" else [4])
    for precision, compiled in settings(device):
        text = f"{precision}, {'compiled' if compiled else 'eager'}"
        yield from fitting(sizes, partial(measure, requested.model, device, precision, compiled), text)


def main() -> None:
    """Print a table, and write it as JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="vit-b16", choices=named_models())
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="4 on the CPU, 64 to 1024 on a GPU")
    turns.run(parser, "timm", rows)


if __name__ == "__main__":
    main()
