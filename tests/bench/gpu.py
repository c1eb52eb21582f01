"""Train vit-b16 on made images for some hundred steps on a GPU: `make bench-gpu`. Prints tables in Markdown.

The real path: JPEG files, timm's augmentation, loader processes, `ettsweep train`. Every strategy in fp16 and bf16, at
the paper's point; how many steps overflowed; and, for each precision, how far the metrics of a run that was stopped and
resumed are from those of an undisturbed one. `--small` tries the script itself where there is no GPU.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from support.waves import CLASSES, write_images

from ettsweep.files import read_lines

ETTSWEEP = str(Path(sys.executable).with_name("ettsweep"))
STRATEGIES = ("standard", "ntk", "hybrid", "mup")
OVERFLOWS_AT_START = 20
"""Steps in which a loss scaler may still look for its scale."""


def command(
    arguments: argparse.Namespace, data: Path, counts: dict[str, int], strategy: str, precision: str
) -> list[str]:
    """Return what trains one run, but for where its results go."""
    sets = {
        "task.train_size": counts["train"],
        "task.val_size": counts["val"],
        "model.classes": CLASSES,
        "batch_size": arguments.batch_size,
        "precision": precision,
        "schedule.total_steps": arguments.steps,
        "schedule.warmup_steps": arguments.steps // 10,
        "schedule.eval_every": arguments.steps // 4,
    }
    if arguments.small:
        sets |= {"model.width": 32, "model.heads": 2, "model.depth": 2, "model.image_size": 64, "task.resize": 72}
    options = [f"--set={key}={value}" for key, value in sets.items()]
    return [ETTSWEEP, "train", "--model", "vit-b16", "--strategy", strategy, "--data", str(data), *options]


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
    (folder,) = (results / "runs").iterdir()
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
    arguments = parser.parse_args()
    if arguments.small:
        arguments.steps, arguments.batch_size, arguments.images = 12, 16, 160
    elif not torch.cuda.is_available():
        sys.exit("there is no GPU here; --small tries the script itself")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    counts = {"train": arguments.images, "val": CLASSES * (arguments.images // (8 * CLASSES))}
    print(f"{device}, torch {torch.__version__}, {os.cpu_count()} cores, batch {arguments.batch_size}, ", end="")
    print(f"{arguments.steps} steps on {arguments.images} made images\n")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_images(root / "data", counts, 72 if arguments.small else 256)
        print(
            "| strategy | precision | status | first loss | last loss | accuracy | overflows (late) | images/s | ",
            end="",
        )
        print("utilisation | waits for data | memory, GiB |\n|---|---|---|---|---|---|---|---|---|---|---|")
        undisturbed = {}
        for precision in ("fp16", "bf16"):
            for strategy in STRATEGIES:
                base = command(arguments, root / "data", counts, strategy, precision)
                r = undisturbed[strategy, precision] = train(base, root / f"{strategy}-{precision}")
                curve = losses(r)
                print(
                    f"| {strategy} | {precision} | {r['status']} | {curve[1]:.3f} | {curve[max(curve)]:.3f} | "
                    f"{cell(r['final_accuracy'], '.3f')} | {r['overflow_steps']} ({late_overflows(r)}) | "
                    f"{cell(r['samples_per_s'], '.0f')} | {cell(r['utilisation'], '.1%')} | {cell(r['data_wait'], '.1%')} | "
                    f"{cell(r['memory_gib'], '.1f')} |",
                    flush=True,
                )
        print("\n| resumed run | steps with equal loss | largest relative difference |\n|---|---|---|")
        for precision in ("fp16", "bf16"):
            base = command(arguments, root / "data", counts, "ntk", precision)
            resumed = losses(train(base, root / f"resumed-{precision}", stop_at=arguments.steps // 2))
            wanted = losses(undisturbed["ntk", precision])
            equal = sum(resumed.get(step) == loss for step, loss in wanted.items())
            worst = max(abs(resumed[step] / loss - 1) for step, loss in wanted.items())
            print(f"| ntk, {precision} | {equal} of {len(wanted)} | {worst:.2e} |", flush=True)


if __name__ == "__main__":
    main()
