"""Measure a training step of bart-large against Hugging Face's MBart of the same shape: `make bench-encdec`. It tests nothing.

Both go through ettsweep's own Trainer.train_step (forward pass with dropout, cross-entropy over the vocabulary, backward
pass, norm of the gradient, clipping, fused AdamW), on the same padded token ids, in the same precision, taking turns:
A B A B. Speeds are medians over the turns; the ratio is the median of MBart's time by ours within a pair of turns, so
that a machine that others use too slows both. MBart has biases and affine LayerNorms, which ours has not, and holds all
logits at once. Tokens are those of the targets, [pad] among them.

On a GPU, r2c2 takes some dozen steps too: ours alone, with activation checkpointing.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from bench import turns
from bench.mbart import mbart
from bench.tables import Row
from bench.turns import fitting, plain_adamw, settings, trainer
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.token_ids import END, PAD
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, Precision, ScheduleSpec
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.tasks.text.text_task import DenoisingTask
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.trainer import Trainer

ALONE_STEPS = 36


class Blocks:
    """A task of one batch that lies on the device: random tokens, padded as blocks of whole sentences are.

    A target lacks up to a tenth of its length, since the next sentence did not fit; of a source, a fifth more is gone.
    """

    def __init__(self, spec: TransformerRun, device: torch.device) -> None:
        source_BS, _, target_BT = example_inputs(spec.model, spec.batch_size, torch.device("cpu"))
        for sample, (source_S, target_T) in enumerate(zip(source_BS, target_BT, strict=True)):
            length = int(len(target_T) * (1 - 0.1 * (sample + 0.5) / spec.batch_size))
            target_T[length:] = PAD
            source_S[int(0.8 * length) :] = PAD
        previous_BT = target_BT.roll(1, 1)
        previous_BT[:, 0] = END
        previous_BT[target_BT == PAD] = PAD
        self.batch = Batch((source_BS.to(device), previous_BT.to(device), target_BT.to(device)), target_BT.to(device))
        self._tokens = int((target_BT != PAD).sum())

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs / self._tokens


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
    return TransformerRun(
        model=model,
        task=DenoisingTask(kind="pydoc"),  # any: the random tokens take its place
        optimizer=AdamWSpec(beta2=0.998, eps=1e-6, clip_norm=0.1),
        schedule=ScheduleSpec(total_steps=2, warmup_steps=1, eval_every=1),
        batch_size=batch_size,
        precision=precision,
        strategy=StrategySpec(s=None),
        lr=1e-4,
        wd=0.01,
        seed=0,
    )


def our_trainer(spec: TransformerRun, device: torch.device, compiled: bool, recompute: bool = False) -> Trainer:
    with device:
        model = build_model(spec.model, spec.strategy)
    initialise(model, spec.model, spec.strategy, spec.seed)
    model.recompute = recompute
    if compiled:
        compile_blocks(model, spec.model, print)
    return trainer(spec, model, Blocks(spec, device), build_optimizer(model, spec), device)


def mbart_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    model = MBart(spec.model).to(device).train()
    inner = model.mbart.model
    for block in (*inner.encoder.layers, *inner.decoder.layers) if compiled else ():
        block.compile()
    return trainer(spec, model, Blocks(spec, device), plain_adamw(model, spec), device)


def measure(name: str, device: torch.device, precision: Precision, compiled: bool, count: int, batch_size: int) -> Row:
    """Let ours and MBart take turns at training steps."""
    return _measure({"ours": our_trainer, "mbart": mbart_trainer}, name, device, precision, compiled, count, batch_size)


def measure_alone(name: str, device: torch.device, precision: Precision, compiled: bool, batch_size: int) -> Row:
    """Let ours take some dozen training steps, with activation checkpointing."""
    ours = {"ours": partial(our_trainer, recompute=True)}
    return _measure(ours, name, device, precision, compiled, ALONE_STEPS, batch_size)


def _measure(
    builds: dict[str, turns.Build],
    name: str,
    device: torch.device,
    precision: Precision,
    compiled: bool,
    count: int,
    batch_size: int,
) -> Row:
    spec = run_spec(model_spec(name), precision, batch_size)
    return {"model": name, **turns.measure(builds, spec, device, compiled, count, "tokens", spec.model.tokens)}


def rows(requested: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Measure each precision, compiled and not where that is usual, with larger and larger batches until one fails."""
    on_gpu = device.type == "cuda"
    beside, single = ("encdec-tiny", "encdec-small") if requested.small else ("bart-large", "r2c2")
    small_set, number = ([2], [2]) if requested.small else ([8, 16, 32, 64], [8, 16, 32])
    for precision, compiled in settings(device):
        text = f"{precision}, {'compiled' if compiled else 'eager'}"
        sizes = requested.batch_sizes or (small_set if on_gpu else [1])
        count = requested.turns or (turns.TURNS if on_gpu else 4)
        yield from fitting(sizes, partial(measure, beside, device, precision, compiled, count), f"{beside}, {text}")
        if on_gpu or requested.small:
            partial_result = partial(measure_alone, single, device, precision, compiled)
            yield from fitting(requested.batch_sizes or number, partial_result, f"{single}, {text}")


def main() -> None:
    """Print a table, and write it as JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="1 on the CPU, 8 to 64 on a GPU")
    parser.add_argument("--turns", type=int, help="pairs of turns: 4 on the CPU, 9 on a GPU")
    parser.add_argument("--small", action="store_true", help="small models, to try the script itself")
    turns.run(parser, "transformers", rows)


if __name__ == "__main__":
    main()
