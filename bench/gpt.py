"""Measure a training step of gpt2's shape beside transformers' GPT-2 and beside a plain loop: `make bench-gpt`. It tests nothing.

All take the step of a recipe of today (cross-entropy of the next token, gradient clipped at norm 1, fused AdamW) on the
same token ids, in the same precision, taking turns: A B A B. Ours and transformers' GPT-2 go through ettsweep's own
Trainer.train_step; the plain loop is what people write by hand: torch's modules and its optimizer, nothing of ettsweep.
Speeds are medians over the turns; the ratio is the median of the other's time by ours within a pair of turns, so that a
machine that others use too slows both. On a CPU, memory is the peak of a process of its own that takes some steps, less
what it had before it built the model. GPT-2 has biases and affine LayerNorms, which the other two have not.

gpt2 has 12 blocks, and windows of 1024 tokens: `--depth` and `--tokens` say how much of it is measured.
"""

# B batch, T tokens, D width, V vocabulary, H heads

import argparse
import multiprocessing
from collections.abc import Iterator
from functools import partial

import torch
from support.decoder_twins import gpt2
from support.resident import forget_peak, peak_resident_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from bench import turns
from bench.tables import Row
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.models.build import example_inputs
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.tasks.task import Batch, FixedBatchTask
from ettsweep.trainer.tasks.text.text_task import NextTokenTask
from ettsweep.trainer.training.precision import DTYPES
from ettsweep.trainer.training.trainer import Trainer

CPU = torch.device("cpu")


def window(spec: TransformerRun, device: torch.device) -> FixedBatchTask:
    """Return a task of one batch that lies on the device: random tokens."""
    tokens = spec.model.model_copy(update={"tokens": spec.model.tokens + 1})
    window_BT, _ = example_inputs(tokens, spec.batch_size, CPU)
    previous_BT, target_BT = window_BT[:, :-1].to(device), window_BT[:, 1:].to(device)
    return FixedBatchTask(
        Batch((previous_BT, target_BT), target_BT), lambda outputs, batch: outputs / batch.targets.numel()
    )


class TransformersGpt2(nn.Module):
    """GPT-2 of transformers, called as ours is."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.gpt2 = gpt2(spec)

    def forward(self, previous_BT: Tensor, target_BT: Tensor) -> Tensor:
        return summed_loss(self.gpt2(previous_BT).logits, target_BT)


def summed_loss(logits_BTV: Tensor, target_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), target_BT.flatten(), reduction="sum")


class PlainBlock(nn.Module):
    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        n, hidden = spec.width, spec.mlp_ratio * spec.width
        self.heads = spec.heads
        self.norm1, self.norm2 = (nn.LayerNorm(n, spec.ln_eps, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False)
        self.mlp = nn.Sequential(nn.Linear(n, hidden, bias=False), nn.GELU(), nn.Linear(hidden, n, bias=False))

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = (
            part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x_BTD)).split(D, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.mlp(self.norm2(x_BTD))


class PlainGpt(nn.Module):
    """The same decoder out of torch's modules."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = nn.Embedding(spec.tokens, spec.width)
        self.blocks = nn.Sequential(*(PlainBlock(spec) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.width, spec.ln_eps, elementwise_affine=False)
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        self.head.weight = self.words.weight
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, previous_BT: Tensor) -> Tensor:
        places = torch.arange(previous_BT.shape[1], device=previous_BT.device)
        return self.head(self.norm(self.blocks(self.words(previous_BT) + self.positions(places))))


class PlainLoop:
    """A loop as people write it, with the names that turns ask for."""

    def __init__(self, spec: TransformerRun, device: torch.device, compiled: bool) -> None:
        self.spec, self.device = spec, device
        self.model = PlainGpt(spec.model).to(device)
        for block in self.model.blocks if compiled else ():
            block.compile()
        self.optimizer = turns.plain_adamw(self.model, spec)
        self.scaler = torch.amp.GradScaler(enabled=spec.precision == "fp16")
        self.task = window(spec, device)

    def train_step(self, lr: float, batches: Iterator[Batch]) -> None:
        previous_BT, target_BT = next(batches).inputs
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast(self.device.type, DTYPES.get(self.spec.precision), enabled=self.spec.precision in DTYPES):
            logits_BTV = self.model(previous_BT)
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optimizer.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def run_spec(model: GptSpec, precision: Precision, batch_size: int) -> TransformerRun:
    """Return a run with the recipe of grids/gpt2.yaml, but for its schedule."""
    return turns.run_spec(model, precision, batch_size, NextTokenTask(), AdamWSpec(beta2=0.95, clip_norm=1.0))


def our_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    return turns.our_trainer(spec, window(spec, device), device, compiled)


def transformers_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    model = TransformersGpt2(spec.model)
    blocks = model.gpt2.transformer.h if compiled else ()
    return turns.their_trainer(spec, window(spec, device), model, blocks, device)


OTHERS: dict[str, turns.Build] = {"transformers": transformers_trainer, "plain loop": PlainLoop}


def measure(
    other: str, count: int, model: GptSpec, device: torch.device, precision: Precision, compiled: bool, batch_size: int
) -> Row:
    """Let ours and another take turns at training steps; on a CPU, each then shows its memory."""
    spec = run_spec(model, precision, batch_size)
    builds = {"ours": our_trainer, "other": OTHERS[other]}
    row = turns.measure(builds, spec, device, compiled, count, "tokens", model.tokens)
    if device.type == "cpu":
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a process of its own for each
            threads = torch.get_num_threads()
            both = pool.starmap(memory_gib, [(build, spec, threads) for build in builds.values()], chunksize=1)
        row |= dict(zip(("memory_gib", "other_memory_gib"), both, strict=True))
    return {"depth": model.depth, "tokens": model.tokens, "beside": other, **row}


def memory_gib(build: turns.Build, spec: TransformerRun, threads: int) -> float:
    """Return the peak of what a trainer takes on the CPU, in this process."""
    torch.set_num_threads(threads)
    turns.Contender(
        build, run_spec(model_spec("gpt-tiny"), spec.precision, 1), CPU, False
    )  # imports, and what torch sets up once
    forget_peak()
    before = peak_resident_bytes()
    turns.Contender(build, spec, CPU, False).turn(1)
    return (peak_resident_bytes() - before) / 2**30


def contests(requested: argparse.Namespace, device: torch.device) -> turns.Contests:
    on_gpu = device.type == "cuda"
    model = model_spec("gpt-tiny" if requested.small else "gpt2")
    depth = requested.depth or (model.depth if on_gpu else 2)
    tokens = requested.tokens or (model.tokens if on_gpu else 256)
    model = model.model_copy(update={"depth": min(depth, model.depth), "tokens": min(tokens, model.tokens)})
    sizes = requested.batch_sizes or ([8, 16, 32, 64] if on_gpu else [2])
    return {other: (sizes, partial(measure, other, requested.turns or turns.TURNS, model)) for other in OTHERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--depth", type=int, help="blocks: 2 on the CPU, all 12 on a GPU")
    parser.add_argument("--tokens", type=int, help="of a window: 256 on the CPU, 1024 on a GPU")
    turns.run(parser, "transformers", contests)


if __name__ == "__main__":
    main()
