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
from bench.turns import fitting, plain_adamw, settings, trainer
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import Precision, ScheduleSpec
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.tasks.text.text_task import NextTokenTask
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.precision import DTYPES
from ettsweep.trainer.training.trainer import Trainer

MEMORY_STEPS = 1


class Window:
    """A task of one batch that lies on the device: random tokens."""

    def __init__(self, spec: TransformerRun, device: torch.device) -> None:
        tokens = spec.model.model_copy(update={"tokens": spec.model.tokens + 1})
        window_BT, _ = example_inputs(tokens, spec.batch_size, torch.device("cpu"))
        previous_BT, target_BT = window_BT[:, :-1].to(device), window_BT[:, 1:].to(device)
        self.batch = Batch((previous_BT, target_BT), target_BT)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs / batch.targets.numel()


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
        self.words, self.positions = (
            nn.Embedding(spec.vocabulary, spec.width),
            nn.Embedding(spec.tokens, spec.width),
        )
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
        self.optimizer, self.scaler = (
            plain_adamw(self.model, spec),
            torch.amp.GradScaler(enabled=spec.precision == "fp16"),
        )
        self.task = Window(spec, device)

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
    return TransformerRun(
        model=model,
        task=NextTokenTask(),  # any: the random tokens take its place
        optimizer=AdamWSpec(beta2=0.95, clip_norm=1.0),
        schedule=ScheduleSpec(total_steps=2, warmup_steps=1, eval_every=1),
        batch_size=batch_size,
        precision=precision,
        strategy=StrategySpec(s=None),
        lr=6e-4,
        wd=0.1,
        seed=0,
    )


def our_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    with device:
        model = build_model(spec.model, spec.strategy)
    initialise(model, spec.model, spec.strategy, spec.seed)
    if compiled:
        compile_blocks(model, spec.model, print)
    return trainer(spec, model, Window(spec, device), build_optimizer(model, spec), device)


def transformers_trainer(spec: TransformerRun, device: torch.device, compiled: bool) -> Trainer:
    model = TransformersGpt2(spec.model).to(device).train()
    for block in model.gpt2.transformer.h if compiled else ():
        block.compile()
    return trainer(spec, model, Window(spec, device), plain_adamw(model, spec), device)


OTHERS: dict[str, turns.Build] = {"transformers": transformers_trainer, "plain loop": PlainLoop}


def measure(
    other: str, model: GptSpec, device: torch.device, precision: Precision, compiled: bool, count: int, batch_size: int
) -> Row:
    """Let ours and another take turns at training steps; on a CPU, each then shows its memory."""
    spec = run_spec(model, precision, batch_size)
    builds = {"ours": our_trainer, "other": OTHERS[other]}
    row = {
        "depth": model.depth,
        "tokens": model.tokens,
        "beside": other,
        **turns.measure(builds, spec, device, compiled, count, "tokens", model.tokens),
    }
    if device.type == "cpu":
        row |= {"memory_gib": memory_gib("ours", spec), "other_memory_gib": memory_gib(other, spec)}
    return row


def memory_gib(name: str, spec: TransformerRun) -> float:
    """Return the peak of what a trainer takes on the CPU, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory_gib, (name, spec, torch.get_num_threads()))


def _memory_gib(name: str, spec: TransformerRun, threads: int) -> float:
    torch.set_num_threads(threads)
    build = {"ours": our_trainer, **OTHERS}[name]
    small = run_spec(model_spec("gpt-tiny"), spec.precision, 1)
    turns.Contender(build, small, torch.device("cpu"), False)  # imports, and what torch sets up once
    forget_peak()
    before = peak_resident_bytes()
    contender = turns.Contender(build, spec, torch.device("cpu"), False)
    contender.turn(MEMORY_STEPS)
    return (peak_resident_bytes() - before) / 2**30


def rows(requested: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Measure each precision, compiled and not where that is usual, with larger and larger batches until one fails."""
    on_gpu = device.type == "cuda"
    model = model_spec("gpt-tiny" if requested.small else "gpt2")
    depth, tokens = (
        requested.depth or (model.depth if on_gpu else 2),
        requested.tokens or (model.tokens if on_gpu else 256),
    )
    model = model.model_copy(update={"depth": min(depth, model.depth), "tokens": min(tokens, model.tokens)})
    for precision, compiled in settings(device):
        for other in OTHERS:
            text = f"{other}, {precision}, {'compiled' if compiled else 'eager'}"
            sizes = requested.batch_sizes or ([8, 16, 32, 64] if on_gpu else [2])
            yield from fitting(
                sizes, partial(measure, other, model, device, precision, compiled, requested.turns), text
            )


def main() -> None:
    """Print a table, and write it as JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="2 on the CPU, 8 to 64 on a GPU")
    parser.add_argument("--depth", type=int, help="blocks: 2 on the CPU, all 12 on a GPU")
    parser.add_argument("--tokens", type=int, help="of a window: 256 on the CPU, 1024 on a GPU")
    parser.add_argument("--turns", type=int, default=turns.TURNS, help=f"pairs of turns, {turns.TURNS} unless given")
    parser.add_argument("--small", action="store_true", help="the shape of gpt-tiny, to try the script itself")
    turns.run(parser, "transformers", rows)


if __name__ == "__main__":
    main()
