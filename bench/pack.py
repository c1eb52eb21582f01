"""Measure what runs gain by training in one process: `make bench-pack`. It prints tables, and tests nothing.

Steps: training steps of vit-digits, and of vit-cifar10 on a GPU: alone, in turn on one batch, in a stack, a few steps
each way, and again; each figure is a median over turns. Loader: whole runs on JPEG files, alone and in a pack.
Commands: grids of vit-digits through the command line, worker start and evaluations included; all ways in turn, and again.
With --checkout FOLDER, grids are trained by the code there too.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import torch

import ettsweep
from bench.tables import Row, facts, show
from bench.waves import CLASSES, write_images
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.ensemble.pack import Pack
from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.models.build import example_inputs
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, DigitsTask, ImageNetTask
from ettsweep.trainer.tasks.task import Batch, Classification, FixedBatchTask
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.run import ClaimedRun, build_trainer, environment, prepare, training_coroutine
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import Trainer
from ettsweep.worker.devices import keep_freed_memory

ETTSWEEP = (sys.executable, "-P", "-m", "ettsweep")  # also where it is not installed, but on the path
HERE = Path(ettsweep.__file__).parents[1]
DIGITS = TransformerRun(
    model=model_spec("vit-digits"),
    task=DigitsTask(),
    optimizer=AdamWSpec(),
    schedule=ScheduleSpec(total_steps=240, warmup_steps=24, eval_every=12),
    batch_size=64,
    strategy=StrategySpec(s=None),
    lr=2.0**-7,
    wd=0.5,
    seed=0,
)
PHOTOS = DIGITS.model_copy(
    update={
        "model": VitSpec(width=64, depth=2, heads=4, patch_size=16, image_size=96, classes=CLASSES),
        "task": ImageNetTask(train_size=240, val_size=60, resize=110),
        "schedule": ScheduleSpec(total_steps=30, warmup_steps=5, eval_every=15),
        "batch_size": 32,
    }
)


def point(spec: TransformerRun, k: int, seeds: int = 1) -> TransformerRun:
    """Return the k-th point of a lattice."""
    return spec.with_point(spec.lr * 2.0 ** (k % 3 - 1), spec.wd * 2.0 ** (k // 3 % 3 - 1) * (1 + k // 9), k % seeds)


CIFAR = DIGITS.model_copy(update={"model": model_spec("vit-cifar10"), "task": Cifar10Task()})
MODELS = {"vit-digits": DIGITS, "vit-cifar10": CIFAR}


def made(spec: TransformerRun, device: torch.device) -> Trainer:
    """Return what trains a run; CIFAR's images are made, and the same in each step."""
    if spec.task.kind == "digits":
        return prepare(spec, device)
    trainer = build_trainer(spec, device, RuntimeSettings(), SINGLE_PROCESS)
    labels = torch.arange(spec.batch_size, device=device) % 10
    trainer.task = FixedBatchTask(
        Batch(example_inputs(spec.model, spec.batch_size, device), labels), Classification(0.0).loss
    )
    return trainer


def now_s(device: torch.device) -> float:
    """Return CPU seconds of this process; on a GPU wall seconds, once it has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def stacked(spec: TransformerRun, members: int, device: torch.device, *, at_once: bool = True) -> Callable[[], object]:
    """Return what takes a training step of many runs in a stack, and updates them at once, as with pack_mode=fast."""
    trainers = [made(point(spec, k, 4), device) for k in range(members)]
    batches = [[next(trainer.task.batches(1))] for trainer in trainers]
    stack = Stack(trainers)

    def step() -> None:
        _, gradients = stack.gradients(batches)
        if at_once:
            stack.update(gradients, dict.fromkeys(stack.trainers, 0.001))
            return
        stack.distribute_gradients(gradients, stack.trainers)
        for trainer in stack.trainers:
            trainer.update(0.001)

    return step


def steps(model: str, members: int, device: torch.device, turns: int, steps_a_turn: int) -> list[Row]:
    """Return, of each way to train so many runs, milliseconds a run-step, and how many times as fast as alone that is."""
    spec = MODELS[model]
    trainers, others = ([made(point(spec, k), device) for k in range(members)] for _ in range(2))
    batches, batch = [trainer.task.batches(1) for trainer in trainers], [next(others[0].task.batches(1))]
    mapping: dict[str, Callable[[int], object]] = {
        "alone": lambda n: [t.train_step(0.001, b) for t, b in zip(trainers, batches, strict=True) for _ in range(n)],
        "lockstep": lambda n: [trainer.train_step(0.001, iter(batch)) for _ in range(n) for trainer in others],
    }
    if members > 1:
        for method, at_once in (("exact stack", False), ("fast stack", True)):
            step = stacked(spec, members, device, at_once=at_once)
            mapping[method] = lambda n, step=step: [step() for _ in range(n)]  # type: ignore[misc]
    took: dict[str, list[float]] = {method: [] for method in mapping}
    for turn in range(turns + 1):
        for method, take in mapping.items():
            began_s = now_s(device)
            take(steps_a_turn)
            if turn:  # the first traces, and warms caches
                took[method].append((now_s(device) - began_s) / steps_a_turn / members)
    single = took["alone"]
    return [
        {
            "model": model,
            "members": members,
            "way": method,
            "ms a run-step": 1000 * statistics.median(seconds),
            "times as fast": statistics.median(a / s for a, s in zip(single, seconds, strict=True)),
        }
        for method, seconds in took.items()
    ]


def loader(members: int, folder: Path) -> list[Row]:
    """Return what whole runs on JPEG files cost, alone and in a pack: CPU seconds of a run, and their data_wait."""
    data = folder / "data"
    if not data.exists():
        write_images(data, {"train": PHOTOS.task.train_size, "val": 60}, 160)  # type: ignore[attr-defined]
    cpu, rows = torch.device("cpu"), []
    for method, size in (("alone", 1), ("pack", members)):
        runs = [RunDir.create(folder / f"{method}-{members}", point(PHOTOS, k)) for k in range(members)]
        began_s = time.process_time()
        for first in range(0, members, size):
            pack, subset = Pack(cpu, size), runs[first : first + size]
            settings = RuntimeSettings(data=str(data))
            attempts = [(run, run.claim(environment(cpu), after=0)) for run in subset]
            pack.train(
                [training_coroutine(ClaimedRun(run, a, cpu, settings, lambda: None), pack) for run, a in attempts if a]
            )
        each_s = (time.process_time() - began_s) / members
        results = [run.result() or {} for run in runs]
        rows.append(
            {
                "members": members,
                "way": method,
                "CPU s a run": each_s,
                "data_wait": statistics.median(result["data_wait"] for result in results),
            }
        )
    return [row | {"times as fast": rows[0]["CPU s a run"] / row["CPU s a run"]} for row in rows]


def commands(
    slots: int,
    runs: int,
    ways: Sequence[str],
    folder: Path,
    checkouts: Sequence[Path] = (HERE,),
    repeats: int = 1,
    options: Sequence[str] = (),
) -> list[Row]:
    """Return how long a grid of 9 points takes through the command line, by the code of each checkout, in each way.

    All take their turn, and then again: each figure is the least, since others can only lengthen it.
    """
    took: dict[tuple[Path, str], list[float]] = {(code, method): [] for code in checkouts for method in ways}
    seeds = ",".join(map(str, range(runs // 9)))
    for turn, (code, method) in itertools.product(range(repeats), took):
        grid = ["grid", "--model", "vit-digits", "--strategy", "standard", "--seeds", seeds, *options]
        settings = [f"slots={slots}", "threads=1", *method.split()]
        launch = [section for setting in settings for section in ("--launch-set", setting)]
        results = folder / f"{slots}-{runs}-{turn}-{checkouts.index(code)}-{method.replace(' ', '-')}"
        path = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "ETTSWEEP_SLOTS": str(folder / "slots")}
        began_s = time.perf_counter()
        command = [*ETTSWEEP, *grid, *launch, "--results", str(results), "--follow"]
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder)
        took[code, method].append(time.perf_counter() - began_s)
    first_s = min(next(iter(took.values())))
    rows: list[Row] = []
    for (code, method), seconds in took.items():
        mapping = {"code": code.name} if len(checkouts) > 1 else {}
        wall_s = min(seconds)
        rows.append({"slots": slots, **mapping, "way": method, "runs": runs, "wall s": wall_s})
        rows[-1] |= {"longest s": max(seconds), "times as fast": first_s / wall_s}
    return rows


def main() -> None:
    """Print the tables, and write them as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, help="of steps; by default vit-digits, on a GPU all")
    parser.add_argument("--members", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--loader", type=int, nargs="*", default=[8])
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--runs", type=int, nargs="*", default=[18, 72, 108], help="of a command: multiples of 9")
    parser.add_argument(
        "--ways", nargs="*", default=["trainer.pack=1", "trainer.pack=auto"], help="of a command: launch settings"
    )
    parser.add_argument(
        "--checkout", type=Path, nargs="*", default=[], help="whose code trains the grids too, before ours"
    )
    parser.add_argument("--repeats", type=int, default=1, help="of the commands")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = list(MODELS) if device.type == "cuda" else ["vit-digits"]
    capability = torch.backends.cpu.get_cpu_capability()
    versions = facts("torch") | {"device": torch.cuda.get_device_name() if device.type == "cuda" else capability}
    print(json.dumps(versions))
    result = dict[str, list[Row]]()
    with tempfile.TemporaryDirectory() as folder:
        every = itertools.product(options.models or models, options.members)
        result["steps"] = show(
            chain.from_iterable(steps(*size, device, options.turns, options.steps) for size in every)
        )
        print()
        result["loader"] = show(chain.from_iterable(loader(members, Path(folder)) for members in options.loader))
        print()
        codes = [*(path.resolve() for path in options.checkout), HERE]
        sizes = itertools.product(options.slots, options.runs)
        each = (commands(*size, options.ways, Path(folder), codes, options.repeats) for size in sizes)
        result["commands"] = show(chain.from_iterable(each))
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
