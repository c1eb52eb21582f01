"""Train vit-b16 on made images for some hundred steps on a GPU: `make bench-gpu`. Prints tables in Markdown.

The real path: JPEG files, timm's augmentation, loader processes, `ettsweep train`. Every strategy in fp16 and bf16, at
the paper's point; how many steps overflowed; and, for each precision, how far the metrics of a run that was stopped and
resumed are from those of an undisturbed one. `--small` tries the script itself where there is no GPU.
"""

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.waves import CLASSES, write_images
from ettsweep.files import read_lines

ETTSWEEP = (sys.executable, "-m", "ettsweep")  # also where it is not installed, but on the path
STRATEGIES = ("standard", "ntk", "hybrid", "mup")
OVERFLOWS_AT_START = 20
"""Steps in which a loss scaler may still look for its scale."""


def made_images(root: Path, images: int, *, small: bool) -> None:
    """Write so many training images, and an eighth as many for validation."""
    write_images(root, counts(images), 72 if small else 256)


def counts(images: int) -> dict[str, int]:
    return {"train": images, "val": CLASSES * (images // (8 * CLASSES))}


def command(
    data: Path, strategy: str, precision: str, steps: int, batch_size: int, images: int, *, small: bool
) -> list[str]:
    """Return what trains one run, but for where its results go."""
    sets = {
        "task.train_size": counts(images)["train"],
        "task.val_size": counts(images)["val"],
        "model.classes": CLASSES,
        "batch_size": batch_size,
        "precision": precision,
        "schedule.total_steps": steps,
        "schedule.warmup_steps": steps // 10,
        "schedule.eval_every": steps // 4,
    }
    if small:
        sets |= {"model.width": 32, "model.heads": 2, "model.depth": 2, "model.image_size": 64, "task.resize": 72}
    options = [f"--set={key}={value}" for key, value in sets.items()]
    return [*ETTSWEEP, "train", "--model", "vit-b16", "--strategy", strategy, "--data", str(data), *options]


def train(base: list[str], results: Path, stop_at: int | None = None) -> dict[str, Any]:
    """Train a run to its end, or once stop and resume it after a step; return its result with its metrics."""
    full = [*base, "--results", str(results)]
    if stop_at is not None:
        with subprocess.Popen(full, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if f" step {stop_at}/" in line:
                    process.send_signal(signal.SIGTERM)
    done = subprocess.run(full, capture_output=True, text=True, check=False)
    folder = next(results.glob("runs/*"), results)
    if not (folder / "result.json").exists():
        sys.exit(f"{' '.join(full)}\n{done.stdout}\n{done.stderr}")
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result | {"metrics": list(read_lines(folder / "metrics.jsonl"))}


def losses(result: dict[str, Any]) -> dict[int, float]:
    """Return the training loss of each step."""
    return {line["step"]: line["loss"] for line in result["metrics"] if line.get("loss") is not None}


def late_overflows(result: dict[str, Any]) -> int:
    """Return the overflow steps after the loss scale should have been found."""
    return sum(1 for line in result["metrics"] if line.get("overflow") and line["step"] > OVERFLOWS_AT_START)


def told(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a table says of a run: how it ended, what came out, and how fast."""
    curve = losses(result)
    return {
        "status": result["status"],
        "steps": result["steps"],
        "first_loss": curve.get(1),
        "last_loss": curve[max(curve)] if curve else None,
        **{name: result[name] for name in ("final_loss", "final_accuracy", "final_bits", "overflow_steps")},
        "late_overflows": late_overflows(result),
        **{name: result[name] for name in ("samples_per_s", "utilisation", "utilisation_measured", "data_wait")},
        "memory_gib": result["memory_gib"],
        **{name: result["execution"][name] for name in ("compile", "micro_batch")},
    }


def resumed(result: dict[str, Any], undisturbed: dict[str, Any]) -> dict[str, Any]:
    """Return how far the losses of a resumed run are from those of an undisturbed one."""
    found, wanted = losses(result), losses(undisturbed)
    away = [abs(found.get(step, math.inf) / loss - 1) for step, loss in wanted.items()]
    equal = sum(found.get(step) == loss for step, loss in wanted.items())
    return {"attempts": result["attempts"], "equal": equal, "of": len(wanted), "largest_difference": max(away)}


def cell(value: float | None, form: str) -> str:
    """Return a number for a table."""
    return "" if value is None else format(value, form)


def main() -> None:
    """Train all, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--images", type=int, default=5120, help="training images")
    parser.add_argument("--small", action="store_true", help="a small model, to try the script on a CPU")
    asked = parser.parse_args()
    if asked.small:
        asked.steps, asked.batch_size, asked.images = 12, 16, 160
    elif not torch.cuda.is_available():
        sys.exit("there is no GPU here; --small tries the script itself")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    print(f"{device}, torch {torch.__version__}, {os.cpu_count()} cores, batch {asked.batch_size}, ", end="")
    print(f"{asked.steps} steps on {asked.images} made images\n")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        made_images(root / "data", asked.images, small=asked.small)

        def run(strategy: str, precision: str) -> list[str]:
            size = asked.steps, asked.batch_size, asked.images
            return command(root / "data", strategy, precision, *size, small=asked.small)

        print("| strategy | precision | status | first loss | last loss | accuracy | overflows (late) | ", end="")
        print("images/s | utilisation, of data sheet | of measured peak | waits for data | memory, GiB |")
        print(f"|{'---|' * 12}")
        undisturbed = {}
        for precision in ("fp16", "bf16"):
            for strategy in STRATEGIES:
                result = train(run(strategy, precision), root / f"{strategy}-{precision}")
                undisturbed[strategy, precision] = result
                r = told(result)
                print(
                    f"| {strategy} | {precision} | {r['status']} | {cell(r['first_loss'], '.3f')} | "
                    f"{cell(r['last_loss'], '.3f')} | {cell(r['final_accuracy'], '.3f')} | "
                    f"{r['overflow_steps']} ({r['late_overflows']}) | {cell(r['samples_per_s'], '.0f')} | {shares(r)}",
                    flush=True,
                )
        print("\n| resumed run | steps with equal loss | largest relative difference |\n|---|---|---|")
        for precision in ("fp16", "bf16"):
            result = train(run("ntk", precision), root / f"resumed-{precision}", stop_at=asked.steps // 2)
            r = resumed(result, undisturbed["ntk", precision])
            print(f"| ntk, {precision} | {r['equal']} of {r['of']} | {r['largest_difference']:.2e} |", flush=True)


def shares(told: dict[str, Any]) -> str:
    """Return the last cells of a line: shares of both peaks, waiting, memory."""
    names = ("utilisation", "utilisation_measured", "data_wait")
    return " | ".join([*(cell(told[name], ".1%") for name in names), cell(told["memory_gib"], ".1f")]) + " |"


if __name__ == "__main__":
    main()
