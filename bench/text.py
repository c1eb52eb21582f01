"""Measure how fast text becomes a corpus, and how fast it is read again: `make bench-text`. It tests nothing.

The text is made here: paragraphs of Python's documentation in a random order, with other numbers in each. Memory is the
peak of any one process of the command, and of the sum of all, each time without pages of files; disk is the peak of the
folder that is written to. Reading is measured in CPU time.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil
import tokenizers
import torch
from support.texts import TOPICS, write_gpt2

from bench.commands import children_s
from ettsweep.processes import cores
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.task import BatchShare
from ettsweep.trainer.tasks.text.blocks import TextBlocks
from ettsweep.trainer.tasks.text.corpus import open_corpus
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.denoising import Denoising
from ettsweep.trainer.tasks.text.text_task import DenoisingTask

TIMES, BLOCKS, TEXTS = 3, 10_000_000, 6400
"""How often a corpus is made, and how many blocks are found and texts corrupted."""


def write_text(path: Path, size: int) -> None:
    """Write JSON lines of about so many bytes: documents of some paragraphs, no two alike."""
    rng = random.Random(size)
    paragraphs = [section for text in TOPICS for section in text.split("\n\n")]
    content, number = 0, 0
    with path.open("w") as file:
        while content < size:
            values = [
                f"{section} {number + k}." for k, section in enumerate(rng.choices(paragraphs, k=rng.randrange(4, 40)))
            ]
            number += len(values)
            content += file.write(json.dumps({"text": "\n\n".join(values)}) + "\n")


class Made(NamedTuple):
    """What a command took: the rate that it prints, that per second of CPU time of all of it, memory and disk."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    peak_mib: float
    peak_sum_mib: float
    peak_disk_mb: float
    disk_mb: float


def tokenised(folder: Path, text: Path, *tokenizer: object) -> Made:
    """Make a corpus with the command line."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "ettsweep", "data", "text", "--input", text, "--out", out]
    command += ["--workers", cores(), *tokenizer]
    before_s, peak, peak_sum, peak_disk = children_s(), 0.0, 0.0, 0.0
    with tempfile.TemporaryFile("w+") as said:
        process = psutil.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=said)
        while process.poll() is None:
            time.sleep(0.1)
            sizes = [own_mib(each) for each in family(process)]
            peak, peak_sum = max([peak, *sizes]), max(peak_sum, sum(sizes))
            peak_disk = max(peak_disk, disk_mb(out))
        said.seek(0)
        messages = said.read()
    search_result = re.search(r"([\d,]+) tokens in .* s: ([\d,]+) tokens/s", messages)
    assert search_result is not None, messages
    tokens, rate = (float(number.replace(",", "")) for number in search_result.groups())
    return Made(rate, tokens / (children_s() - before_s), peak, peak_sum, peak_disk, disk_mb(out))


def family(process: psutil.Process) -> list[psutil.Process]:
    """Return a process with all that it has started; none once it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def own_mib(process: psutil.Process) -> float:
    """Return the memory of a process without pages of files."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0.0
    return (memory.rss - memory.shared) / 2**20


def disk_mb(folder: Path) -> float:
    blocks = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                blocks += Path(parent, name).stat().st_blocks
    return blocks * 512 / 1e6


def reading(folder: Path) -> dict[str, float]:
    """Return blocks per second that are found, and those that are read in a random order; and windows likewise."""
    start_s = time.perf_counter()
    corpus = open_corpus(folder)
    open_s = time.perf_counter() - start_s
    rates = dict[str, float]()
    mine, windows = corpus.blocks("train", 512), corpus.windows("train", 1024)
    for name, count, read in (("read", len(mine), mine.block), ("windows_read", len(windows), windows.window)):
        indices = np.random.default_rng(0).integers(count, size=20_000).tolist()
        start_s = time.process_time()
        for k in indices:
            read(k)
        rates[f"{name}_per_s"] = 20_000 / (time.process_time() - start_s)
    parts = corpus._sides["train"]
    repeated = [parts[k % len(parts)] for k in range(len(parts) * -(-BLOCKS // len(mine)))]
    start_s = time.process_time()
    found = len(TextBlocks(repeated, 512))
    return {"blocks": found, "found_per_s": found / (time.process_time() - start_s), "open_s": open_s, **rates}


def corruption_ms(folder: Path) -> float:
    """Return the milliseconds of a core that a text of up to 512 tokens takes, read, corrupted and padded."""
    model = model_spec("bart-large")
    task = Denoising(DenoisingTask(kind="text"), model, open_corpus(folder), 0, torch.device("cpu"), BatchShare(64))
    batches = task.batches(1)
    next(batches)
    start_s = time.process_time()
    for _ in range(TEXTS // 64):
        next(batches)
    return 1e3 * (time.process_time() - start_s) / (TEXTS // 64 * 64)


def main() -> None:
    """Print the numbers, and all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="*", default=[10, 40])
    options = parser.parse_args()
    collected: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpt2 = write_gpt2(folder / "gpt2")
        for mb in options.mb:
            text = folder / f"{mb}.jsonl"
            write_text(text, mb * 10**6)
            runs = [tokenised(folder, text, "--tokenizer", gpt2) for _ in range(TIMES)]
            usual, most = pd.DataFrame(runs).median(), pd.DataFrame(runs).max()
            print(
                f"{mb} MB on {cores()} cores: {usual.tokens_per_s:,.0f} tokens/s; "
                f"{usual.tokens_per_cpu_s:,.0f} a second of CPU time; "
                f"a process holds {most.peak_mib:.0f} MiB at most, all together {most.peak_sum_mib:.0f} MiB; "
                f"on disk {most.peak_disk_mb:.0f} MB at most, {most.disk_mb:.0f} MB at the end"
            )
            collected[f"{mb} MB"] = [run._asdict() for run in runs]
        manifest = read_manifest(folder / "out")
        tokens, size = manifest.train.tokens + manifest.val.tokens, manifest.train.text_bytes + manifest.val.text_bytes
        print(f"{size / tokens:.2f} bytes a token; {tokens / manifest.train.documents:.0f} tokens a document")
        trained = tokenised(folder, folder / f"{options.mb[0]}.jsonl", "--bpe-tokens", "8192")
        print(
            f"with an encoding of 8,192 tokens trained on it first: {trained.tokens_per_s:,.0f} tokens/s, "
            f"{trained.tokens_per_cpu_s:,.0f} a second of CPU time, {trained.peak_mib:.0f} MiB"
        )
        blocks = reading(folder / "out")
        print(
            f"{blocks['blocks']:,.0f} blocks of 512 are found at {blocks['found_per_s']:,.0f} a second when a corpus is opened\n"
            f"and read in a random order at {blocks['read_per_s']:,.0f} a second, windows of 1,024 at "
            f"{blocks['windows_read_per_s']:,.0f}; the corpus is opened in {blocks['open_s']:.2f} s"
        )
        torch.set_num_threads(1)
        corrupted = corruption_ms(folder / "out")
        print(f"a text of up to 512 tokens is read, corrupted and padded in {corrupted:.3f} ms of a core")
    versions = {"python": platform.python_version(), "tokenizers": tokenizers.__version__, "numpy": np.__version__}
    collected |= {"corruption_ms": corrupted, "trained": trained._asdict(), "blocks": blocks}
    collected["bytes_per_token"] = size / tokens
    print(json.dumps({"versions": versions, "cores": cores(), "load": os.getloadavg()[0], **collected}))


if __name__ == "__main__":
    main()
