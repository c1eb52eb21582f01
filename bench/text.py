"""Measure how fast text becomes a corpus, and how fast it is read again: `make bench-text`. It tests nothing.

The text is made here: paragraphs of Python's documentation in a random order, with other numbers in each. Memory is the
peak of any one process of the command, and of the sum of all, each time without pages of files; disk is the peak of the
folder that is written to. Reading is measured in CPU time.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
import torch
from support.texts import TOPICS, write_gpt2

from ettsweep.processes import cores
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.task import BatchShare
from ettsweep.trainer.tasks.text.blocks import TextBlocks
from ettsweep.trainer.tasks.text.corpus import open_corpus
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.denoising import Denoising
from ettsweep.trainer.tasks.text.text_task import DenoisingTask

MEASURE = """
import json, os, resource, subprocess, sys, tempfile
from pathlib import Path

def own_mib(pid):
    folder = Path("/proc", str(pid))
    try:
        resident, of_files = map(int, (folder / "statm").read_text().split()[1:3])
        children = [pid for task in (folder / "task").iterdir() for pid in (task / "children").read_text().split()]
    except OSError:
        return []
    mib = (resident - of_files) * resource.getpagesize() / 2**20
    return [mib, *(size for child in children for size in own_mib(child))]

def disk_mb(folder):
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                pass
    return size / 1e6

peak = peak_sum = peak_disk = 0
with tempfile.TemporaryFile("w+") as said:
    command = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=said)
    while True:
        try:
            code = command.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            sizes = own_mib(command.pid)
            peak, peak_sum = max([peak, *sizes]), max(peak_sum, sum(sizes))
            peak_disk = max(peak_disk, disk_mb(sys.argv[1]))
    said.seek(0)
    text = said.read()
assert code == 0, text
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([text, used.ru_utime + used.ru_stime, peak, peak_sum, peak_disk, disk_mb(sys.argv[1])]))
"""


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


def tokenised(folder: Path, text: Path, workers: int, *tokenizer: object) -> Made:
    """Make a corpus with the command line."""
    out = folder / "out"
    subprocess.run(["rm", "-rf", out], check=True)
    command = [sys.executable, "-m", "ettsweep", "data", "text", "--input", text, "--out", out]
    command += ["--workers", str(workers), *map(str, tokenizer)]
    completed = subprocess.run(
        [sys.executable, "-c", MEASURE, out, *command], check=True, capture_output=True, text=True
    )
    messages, cpu_s, *peaks = json.loads(completed.stdout)
    search_result = re.search(r"([\d,]+) tokens in .* s: ([\d,]+) tokens/s", messages)
    assert search_result is not None, messages
    tokens, rate = (float(number.replace(",", "")) for number in search_result.groups())
    return Made(rate, tokens / cpu_s, *peaks)


def reading(folder: Path, blocks: int) -> dict[str, float]:
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
    repeated = [parts[k % len(parts)] for k in range(len(parts) * -(-blocks // len(mine)))]
    start_s = time.process_time()
    found = len(TextBlocks(repeated, 512))
    return {"blocks": found, "found_per_s": found / (time.process_time() - start_s), "open_s": open_s, **rates}


def corruption_ms(folder: Path, texts: int) -> float:
    """Return the milliseconds of a core that a text of up to 512 tokens takes, read, corrupted and padded."""
    model = model_spec("bart-large")
    task = Denoising(DenoisingTask(kind="text"), model, open_corpus(folder), 0, torch.device("cpu"), BatchShare(64))
    batches = task.batches(1)
    next(batches)
    start_s = time.process_time()
    for _ in range(texts // 64):
        next(batches)
    return 1e3 * (time.process_time() - start_s) / (texts // 64 * 64)


def main() -> None:
    """Print the numbers, and all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="*", default=[10, 40])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--texts", type=int, default=6400)
    options = parser.parse_args()
    core_count = cores()
    collected: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpt2 = write_gpt2(folder / "gpt2")
        for mb in options.mb:
            text = folder / f"{mb}.jsonl"
            write_text(text, mb * 10**6)
            runs = [tokenised(folder, text, core_count, "--tokenizer", gpt2) for _ in range(options.times)]
            wall, cpu = (statistics.median(column) for column in list(zip(*runs, strict=True))[:2])
            peak, peak_sum, peak_disk, disk = (max(column) for column in list(zip(*runs, strict=True))[2:])
            print(
                f"{mb} MB on {core_count} cores: {wall:,.0f} tokens/s; {cpu:,.0f} a second of CPU time; "
                f"a process holds {peak:.0f} MiB at most, all together {peak_sum:.0f} MiB; "
                f"on disk {peak_disk:.0f} MB at most, {disk:.0f} MB at the end"
            )
            collected[f"{mb} MB"] = [run._asdict() for run in runs]
        manifest = read_manifest(folder / "out")
        tokens, size = manifest.train.tokens + manifest.val.tokens, manifest.train.text_bytes + manifest.val.text_bytes
        print(f"{size / tokens:.2f} bytes a token; {tokens / manifest.train.documents:.0f} tokens a document")
        trained = tokenised(folder, folder / f"{options.mb[0]}.jsonl", core_count, "--bpe-tokens", "8192")
        print(
            f"with an encoding of 8,192 tokens trained on it first: {trained.tokens_per_s:,.0f} tokens/s, "
            f"{trained.tokens_per_cpu_s:,.0f} a second of CPU time, {trained.peak_mib:.0f} MiB"
        )
        blocks = reading(folder / "out", options.blocks)
        print(
            f"{blocks['blocks']:,.0f} blocks of 512 are found at {blocks['found_per_s']:,.0f} a second when a corpus is opened"
        )
        print(
            f"and read in a random order at {blocks['read_per_s']:,.0f} a second, windows of 1,024 at "
            f"{blocks['windows_read_per_s']:,.0f}; the corpus is opened in {blocks['open_s']:.2f} s"
        )
        torch.set_num_threads(1)
        corrupted = corruption_ms(folder / "out", options.texts)
        print(f"a text of up to 512 tokens is read, corrupted and padded in {corrupted:.3f} ms of a core")
    versions = {"python": platform.python_version(), "tokenizers": tokenizers.__version__, "numpy": np.__version__}
    collected |= {
        "corruption_ms": corrupted,
        "trained": trained._asdict(),
        "blocks": blocks,
        "bytes_per_token": size / tokens,
    }
    print(json.dumps({"versions": versions, "cores": core_count, "load": os.getloadavg()[0], **collected}))


if __name__ == "__main__":
    main()
