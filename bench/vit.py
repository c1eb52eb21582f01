"""Measure a training step of ours against timm's VisionTransformer of the same shape: `make bench-vit`. It tests nothing.

Both go through ettsweep's own Trainer.train_step (forward pass, loss with soft, smoothed targets, backward pass, norm
of the gradient, fused AdamW), on the same images, in the same precision, taking turns: A B A B. Speeds are medians over
the turns; the ratio is the median of timm's time by ours within a pair of turns, so that a machine that others use too
slows both. timm's has affine LayerNorms and a bias in the patch embedding, which ours has not, and no other biases.
"""

import argparse
from functools import partial

import torch
from torch import nn

from bench import turns
from bench.tables import Row
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, Precision
from ettsweep.trainer.tasks.images.image_task import DigitsTask
from ettsweep.trainer.tasks.task import Batch, Classification, FixedBatchTask
from ettsweep.trainer.training.trainer import Trainer


def noise(spec: TransformerRun, device: torch.device) -> FixedBatchTask:
    """Return a task of one batch that lies on the device: noise, and the targets that Mixup gives."""
    generator = torch.Generator().manual_seed(0)
    model, count = spec.model, spec.batch_size
    item, other = (
        nn.functional.one_hot(torch.randint(model.classes, (count,), generator=generator), model.classes)
        for _ in range(2)
    )
    images_BCHW = torch.randn(count, model.channels, model.image_size, model.image_size, generator=generator)
    batch = Batch((images_BCHW.to(device),), (0.7 * item + 0.3 * other).to(device))
    return FixedBatchTask(batch, Classification(0.1).loss)


def run_spec(model: ModelSpec, precision: Precision, batch_size: int) -> TransformerRun:
    return turns.run_spec(model, precision, batch_size, DigitsTask(), AdamWSpec())


def our_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    return turns.our_trainer(spec, noise(spec, device), device, compiled)


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
    )
    return turns.their_trainer(spec, noise(spec, device), model, model.blocks if compiled else (), device)


def measure(count: int, model: str, device: torch.device, precision: Precision, compiled: bool, batch_size: int) -> Row:
    """Let ours and timm's take some turns at training steps."""
    spec = run_spec(model_spec(model), precision, batch_size)
    builds = {"ours": our_trainer, "timm": timm_trainer}
    return {"model": model, **turns.measure(builds, spec, device, compiled, count, "images", 1)}


def contests(requested: argparse.Namespace, device: torch.device) -> turns.Contests:
    model = "vit-digits" if requested.small else "vit-b16"
    sizes = requested.batch_sizes or ([64, 128, 256, 512, 1024] if device.type == "cuda" else [4])
    return {model: (sizes, partial(measure, requested.turns or turns.TURNS, model))}


def main() -> None:
    turns.run(argparse.ArgumentParser(description=__doc__.split("\n")[0]), "timm", contests)


if __name__ == "__main__":
    main()
