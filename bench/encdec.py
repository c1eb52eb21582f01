"""Measure a training step of bart-large against Hugging Face's MBart of the same shape: `make bench-encdec`. It tests nothing.

Both go through ettsweep's own Trainer.train_step (forward pass with dropout, cross-entropy over the vocabulary, backward
pass, norm of the gradient, clipping, fused AdamW), on the same padded token ids, in the same precision, taking turns:
A B A B. Speeds are medians over the turns; the ratio is the median of MBart's time by ours within a pair of turns, so
that a machine that others use too slows both. MBart has biases and affine LayerNorms, which ours has not, and holds all
logits at once. Tokens are those of the targets, [pad] among them.

On a GPU, r2c2 takes some dozen steps too: ours alone, with activation checkpointing.
"""

import argparse
from functools import partial

import torch
from torch import Tensor, nn

from bench import turns
from bench.mbart import mbart
from bench.tables import Row
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.token_ids import END, PAD
from ettsweep.trainer.models.build import example_inputs
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, Precision
from ettsweep.trainer.tasks.task import Batch, FixedBatchTask
from ettsweep.trainer.tasks.text.text_task import DenoisingTask
from ettsweep.trainer.training.trainer import Trainer

ALONE_STEPS = 36


def blocks(spec: TransformerRun, device: torch.device) -> FixedBatchTask:
    """Return a task of one batch that lies on the device: random tokens, padded as blocks of whole sentences are.

    A target lacks up to a tenth of its length, since the next sentence did not fit; of a source, a fifth more is gone.
    """
    source_BS, _, target_BT = example_inputs(spec.model, spec.batch_size, torch.device("cpu"))
    for sample, (source_S, target_T) in enumerate(zip(source_BS, target_BT, strict=True)):
        length = int(len(target_T) * (1 - 0.1 * (sample + 0.5) / spec.batch_size))
        target_T[length:] = PAD
        source_S[int(0.8 * length) :] = PAD
    previous_BT = target_BT.roll(1, 1)
    previous_BT[:, 0] = END
    previous_BT[target_BT == PAD] = PAD
    batch = Batch((source_BS.to(device), previous_BT.to(device), target_BT.to(device)), target_BT.to(device))
    tokens = int((target_BT != PAD).sum())
    return FixedBatchTask(batch, lambda outputs, batch: outputs / tokens)


class MBart(nn.Module):
    """MBart, called as ours is."""

    def __init__(self, spec: EncDecSpec) -> None:
        super().__init__()
        self.mbart = mbart(spec)

    def forward(self, source_BS: Tensor, previous_BT: Tensor, target_BT: Tensor) -> Tensor:
        labels_BT = target_BT.masked_fill(target_BT == PAD, -100)
        mean = self.mbart(source_BS, source_BS != PAD, previous_BT, labels=labels_BT).loss
        return mean * (target_BT != PAD).sum()


def run_spec(model: ModelSpec, precision: Precision, batch_size: int) -> TransformerRun:
    """Return a run with the recipe of the paper, but for its schedule."""
    optimizer = AdamWSpec(beta2=0.998, eps=1e-6, clip_norm=0.1)
    return turns.run_spec(model, precision, batch_size, DenoisingTask(kind="pydoc"), optimizer)


def our_trainer(spec: TransformerRun, device: torch.device, compiled: bool, recompute: bool = False) -> Trainer:
    return turns.our_trainer(spec, blocks(spec, device), device, compiled, recompute)


def mbart_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    model = MBart(spec.model)
    inner = model.mbart.model
    compiling = (*inner.encoder.layers, *inner.decoder.layers) if compiled else ()
    return turns.their_trainer(spec, blocks(spec, device), model, compiling, device)


BESIDE = {"ours": our_trainer, "mbart": mbart_trainer}
ALONE = {"ours": partial(our_trainer, recompute=True)}
"""Ours alone, with activation checkpointing."""


def measure(
    builds: dict[str, turns.Build],
    count: int,
    model: str,
    device: torch.device,
    precision: Precision,
    compiled: bool,
    batch_size: int,
) -> Row:
    """Let trainers take some turns at training steps."""
    spec = run_spec(model_spec(model), precision, batch_size)
    return {"model": model, **turns.measure(builds, spec, device, compiled, count, "tokens", spec.model.tokens)}


def contests(requested: argparse.Namespace, device: torch.device) -> turns.Contests:
    on_gpu, sizes = device.type == "cuda", requested.batch_sizes
    beside, alone = ("encdec-tiny", "encdec-small") if requested.small else ("bart-large", "r2c2")
    count = requested.turns or (turns.TURNS if on_gpu else 4)
    usual = [2] if requested.small else [8, 16, 32, 64]
    result: turns.Contests = {beside: (sizes or (usual if on_gpu else [1]), partial(measure, BESIDE, count, beside))}
    if on_gpu or requested.small:
        result[alone] = (sizes or usual[:3], partial(measure, ALONE, ALONE_STEPS, alone))
    return result


def main() -> None:
    turns.run(argparse.ArgumentParser(description=__doc__.split("\n")[0]), "transformers", contests)


if __name__ == "__main__":
    main()
