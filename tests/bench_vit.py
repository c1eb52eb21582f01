"""Measure a training step of ours against timm's VisionTransformer of the same shape: `make bench-vit`. It tests nothing.

Both go through ettsweep's own Trainer.train_step (forward pass, loss with soft, smoothed targets, backward pass, norm
of the gradient, fused AdamW), on the same images, in the same precision, taking turns: A B A B. Speeds are medians over
the turns; the ratio is the median of timm's time by ours within a pair of turns, so that a machine that others use too
slows both. timm's has affine LayerNorms and a bias in the patch embedding, which ours has not, and no other biases.
"""

import argparse
import gc
import itertools
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ettsweep.models.build import build_model, speed_up
from ettsweep.models.flops import peak_flops, train_flops_per_sample
from ettsweep.models.initialisation import initialise
from ettsweep.models.registry import MODELS
from ettsweep.spec import DigitsTask, ModelSpec, Precision, RunSpec, ScheduleSpec, StrategySpec
from ettsweep.tasks.base import Batch, Share, classification_loss
from ettsweep.training.distributed import ALONE
from ettsweep.training.loop import Trainer
from ettsweep.training.memory import is_out_of_memory
from ettsweep.training.optimizer import build_optimizer
from ettsweep.training.precision import loss_scaler, set_matmul_precision

TURNS = 9
TURN_S = 0.5
"""Seconds that a turn takes at least, where a step is shorter."""


Build = Callable[[RunSpec, torch.device, bool], Trainer]


class Noise:
    """A task of one batch that lies on the device: noise, and the targets that Mixup gives."""

    def __init__(self, spec: RunSpec, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        model, count = spec.model, spec.batch_size
        shape = (count, model.channels, model.image_size, model.image_size)
        one, other = (
            nn.functional.one_hot(torch.randint(model.classes, (count,), generator=generator), model.classes)
            for _ in range(2)
        )
        images_BCHW = torch.randn(shape, generator=generator)
        self.batch = Batch((images_BCHW.to(device),), (0.7 * one + 0.3 * other).to(device))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return classification_loss(outputs, batch.targets, 0.1)


def run_spec(model: ModelSpec, precision: Precision, batch_size: int) -> RunSpec:
    return RunSpec(
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


def our_trainer(spec: RunSpec, device: torch.device, compiled: bool) -> Trainer:
    model = build_model(spec.model)
    initialise(model, spec.model, spec.strategy, spec.seed)
    model.to(device)
    speed_up(model, compile_blocks=compiled, recompute=False)
    return trainer(spec, model, build_optimizer(model, spec), device)


def timm_trainer(spec: RunSpec, device: torch.device, compiled: bool) -> Trainer:
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
    o = spec.optimizer
    group = {"params": list(model.parameters()), "lr_factor": 1.0}
    optimizer = torch.optim.AdamW(
        [group], lr=spec.lr, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=spec.wd, fused=True
    )
    return trainer(spec, model, optimizer, device)


def trainer(spec: RunSpec, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Trainer:
    scaler = loss_scaler(spec.precision, device)
    share = Share(spec.batch_size)
    return Trainer(spec, model, model, Noise(spec, device), optimizer, scaler, device, share, ALONE)


class Contender:
    """A trainer that takes turns with another, and the seconds of its steps and memory while it did."""

    def __init__(self, build: Build, spec: RunSpec, device: torch.device, compiled: bool) -> None:
        self.device, before = device, allocated(device)
        self.trainer = build(spec, device, compiled)
        self._steps(1)  # compiles, tunes, and allocates the optimizer's state
        self.warm_step_s = self._steps(1)
        self._own_bytes = allocated(device) - before  # what it keeps between turns
        self.step_s: list[float] = []
        self.memory_bytes = 0

    def turn(self, steps: int) -> None:
        others = allocated(self.device) - self._own_bytes
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.step_s.append(self._steps(steps) / steps)
        if self.device.type == "cuda":
            self.memory_bytes = max(self.memory_bytes, torch.cuda.max_memory_allocated() - others)

    def _steps(self, count: int) -> float:
        """Take some steps; return their seconds, until the device is done."""
        batches = itertools.repeat(self.trainer.task.batch)
        started_s = time.perf_counter()
        for _ in range(count):
            self.trainer.train_step(1e-4, batches)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started_s


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


@dataclass(frozen=True)
class Row:
    """One line of the table: ours, and timm's beside it."""

    precision: Precision
    compiled: bool
    batch_size: int
    images_per_s: float
    step_s: float
    utilisation: float | None
    memory_gib: float | None
    timm_images_per_s: float
    timm_memory_gib: float | None
    ratio: float

    HEAD: ClassVar[str] = (
        "precision  compiled  batch   images/s  step (ms)  utilisation  memory (GiB)   timm images/s  timm GiB   ratio"
    )

    def __str__(self) -> str:
        def optional(value: float | None, form: str) -> str:
            return "-" if value is None else format(value, form)

        return (
            f"{self.precision:9}  {'yes' if self.compiled else 'no':8}  {self.batch_size:5}  {self.images_per_s:9.1f}"
            f"  {1000 * self.step_s:9.1f}  {optional(self.utilisation, '.1%'):>11}  {optional(self.memory_gib, '.1f'):>12}"
            f"  {self.timm_images_per_s:14.1f}  {optional(self.timm_memory_gib, '.1f'):>8}  {self.ratio:6.3f}"
        )


def measure(model: ModelSpec, device: torch.device, precision: Precision, compiled: bool, batch_size: int) -> Row:
    """Let ours and timm's take turns at training steps."""
    torch.compiler.reset()
    set_matmul_precision(precision)
    spec = run_spec(model, precision, batch_size)
    ours, theirs = (Contender(build, spec, device, compiled) for build in (our_trainer, timm_trainer))
    steps = math.ceil(TURN_S / ours.warm_step_s)
    for _ in range(TURNS):
        ours.turn(steps)
        theirs.turn(steps)
    step_s, timm_step_s = statistics.median(ours.step_s), statistics.median(theirs.step_s)
    peak = peak_flops(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None
    flops_per_s = train_flops_per_sample(model) * batch_size / step_s
    return Row(
        precision,
        compiled,
        batch_size,
        images_per_s=batch_size / step_s,
        step_s=step_s,
        utilisation=flops_per_s / peak if peak else None,
        memory_gib=ours.memory_bytes / 2**30 or None,
        timm_images_per_s=batch_size / timm_step_s,
        timm_memory_gib=theirs.memory_bytes / 2**30 or None,
        ratio=statistics.median(b / a for a, b in zip(ours.step_s, theirs.step_s, strict=True)),
    )


def rows(model: ModelSpec, device: torch.device, sizes: list[int]) -> Iterator[Row]:
    """Measure each precision, compiled and not where that is usual, with larger and larger batches until one fails."""
    on_gpu = device.type == "cuda"
    usual = itertools.product(("fp16", "bf16"), (False, True)) if on_gpu else (("fp32", False), ("bf16", False))
    for precision, compiled in usual:
        for size in sizes:
            try:
                row = measure(model, device, precision, compiled, size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                print(f"{precision:9}  {'yes' if compiled else 'no':8}  {size:5}  out of memory", flush=True)
                break
            finally:
                gc.collect()
                if on_gpu:
                    torch.cuda.empty_cache()
            yield row


def machine(device: torch.device) -> dict[str, object]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__}
    return {"device": name, "threads": torch.get_num_threads(), **versions}


def main() -> None:
    """Print a table, and write it as JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="vit-b16", choices=MODELS)
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="4 on the CPU, 64 to 1024 on a GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = asked.batch_sizes or ([64, 128, 256, 512, 1024] if device.type == "cuda" else [4])
    facts = {"model": asked.model, **machine(device)}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(Row.HEAD, flush=True)
    table = []
    for row in rows(MODELS[asked.model], device, sizes):
        print(row, flush=True)
        table.append(asdict(row))
    if asked.json:
        asked.json.write_text(json.dumps({**facts, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
