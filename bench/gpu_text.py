"""Train bart-large and r2c2 on Python's documentation on a GPU: `make bench-gpu-text`. Prints a table in Markdown.

The real path: text files, `ettsweep data text` with an encoding of GPT-2's size, `ettsweep train` at the paper's points:
bart-large under standard and at the point that the map gives ntk, in fp16, some hundred steps; r2c2 a few dozen. The loss
must fall; what the table is for is speed, overflow steps and memory. `--small` tries the script itself where there is no GPU.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from support.texts import write_gpt2

from bench.gpu import ETTSWEEP, cell, shares, told, train
from ettsweep.tasks.text.pydoc import documents

SMALL = {"model.width": 32, "model.depth": 1, "model.heads": 2, "model.tokens": 64, "model.vocabulary": 608}

TOKENS = 514
"""Of a text, where the model is not a small one."""


def tokenised(root: Path, *, small: bool) -> Path:
    """Return the documentation in blocks, with a vocabulary of 50,265, or of 608."""
    (root / "text").mkdir()
    for number, text in enumerate(documents()):
        (root / "text" / f"{number:03}.txt").write_text(text)
    asked = ["--input", root / "text", "--out", root / "tokens"]
    asked += ["--bpe-tokens", 600] if small else ["--tokenizer", write_gpt2(root / "gpt2")]
    options = ["--documents", "file", "--val-fraction", "0.1"]
    subprocess.run([*ETTSWEEP, "data", "text", *map(str, asked), *options], check=True, capture_output=True)
    return root / "tokens"


def command(data: Path, model: str, strategy: str, steps: int, batch_size: int, *, small: bool) -> list[str]:
    """Return what trains one run, but for where its results go."""
    sets = {
        "batch_size": batch_size,
        "schedule.total_steps": steps,
        "schedule.warmup_steps": steps // 10,
        "schedule.eval_every": steps // 2,
        "schedule.stop_step": "null",
    } | (SMALL if small else {})
    options = [f"--set={key}={value}" for key, value in sets.items()]
    return [*ETTSWEEP, "train", "--model", model, "--strategy", strategy, "--data", str(data), *options]


def main() -> None:
    """Train all, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of bart-large; r2c2 takes a tenth")
    parser.add_argument("--batch-size", type=int, default=64, help="of bart-large; r2c2 takes a half")
    parser.add_argument("--small", action="store_true", help="small models, to try the script on a CPU")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.steps, arguments.batch_size = 40, 4
    elif not torch.cuda.is_available():
        sys.exit("there is no GPU here; --small tries the script itself")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    length = SMALL["model.tokens"] if arguments.small else TOKENS
    print(
        f"{device}, torch {torch.__version__}, {os.cpu_count()} cores; tokens are those of the target, {length} a text\n"
    )
    print("| model | strategy | batch | steps | status | first loss | last loss | val. loss, nats | bits | ", end="")
    print(
        "overflows (late) | tokens/s | utilisation, of data sheet | of measured peak | waits for data | memory, GiB |"
    )
    print(f"|{'---|' * 15}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = tokenised(root, small=arguments.small)
        for model, strategy, part in (("bart-large", "standard", 1), ("bart-large", "ntk", 1), ("r2c2", "ntk", 10)):
            steps, batch_size = arguments.steps // part, arguments.batch_size // (1 if part == 1 else 2)
            base = command(data, model, strategy, max(10, steps), batch_size, small=arguments.small)
            r = told(train(base, root / f"{model}-{strategy}"))
            print(
                f"| {model} | {strategy} | {batch_size} | {r['steps']} | {r['status']} | "
                f"{cell(r['first_loss'], '.3f')} | {cell(r['last_loss'], '.3f')} | {cell(r['final_loss'], '.3f')} | {cell(r['final_bits'], '.3f')} | "
                f"{r['overflow_steps']} ({r['late_overflows']}) | "
                f"{cell(r['samples_per_s'] * length, ',.0f')} | {shares(r)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
