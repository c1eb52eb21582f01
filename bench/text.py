"""Measure how fast text becomes a corpus, and how fast it is read again: `make bench-text`. It tests nothing.

The text is made here: paragraphs of Python's documentation in a random order, with other numbers in each. Memory is the
peak of any one process of the command, and of the sum of all (shared pages of a file are counted in each), at some
sizes of input. Reading is measured in CPU time.
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
from ettsweep.trainer.tasks.text.corpus import TextBlocks, open_corpus
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.denoising import Denoising
from ettsweep.trainer.tasks.text.shards import Texts
from ettsweep.trainer.tasks.text.text_task import DenoisingTask

MEASURE = """
import json, resource, subprocess, sys, tempfile
from pathlib import Path

def resident_mib(pid):
    folder = Path("/proc", str(pid))
    try:
        pages = int((folder / "statm").read_text().split()[1])
        children = [pid for task in (folder / "task").iterdir() for pid in (task / "children").read_text().split()]
    except OSError:
        return 0
    return pages * resource.getpagesize() / 2**20 + sum(map(resident_mib, children))

peak = 0
with tempfile.TemporaryFile("w+") as said:
    command = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=said)
    while True:
        try:
            code = command.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            peak = max(peak, resident_mib(command.pid))
    said.seek(0)
    text = said.read()
assert code == 0, text
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([text, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, peak]))
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
    """What a command took: the rate that it prints, that per second of CPU time of all of it, the peaks of memory."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    peak_mib: float
    peak_sum_mib: float


def tokenised(folder: Path, text: Path, workers: int, *tokenizer: object) -> Made:
    """Make a corpus with the command line."""
    out = folder / "out"
    subprocess.run(["rm", "-rf", out], check=True)
    command = [Path(sys.executable).with_name("ettsweep"), "data", "text", "--input", text, "--out", out]
    command += ["--workers", str(workers), *map(str, tokenizer)]
    completed = subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, text=True)
    messages, cpu_s, peak_mib, peak_sum_mib = json.loads(completed.stdout)
    search_result = re.search(r"([\d,]+) tokens in .* s: ([\d,]+) tokens/s", messages)
    assert search_result is not None, messages
    tokens, rate = (float(number.replace(",", "")) for number in search_result.groups())
    return Made(rate, tokens / cpu_s, peak_mib, peak_sum_mib)


class Repeated:
    """A shard, as often as is wanted."""

    def __init__(self, texts: Texts, times: int) -> None:
        self._texts, self._times = texts, times

    def __len__(self) -> int:
        return self._times

    def __getitem__(self, shard: int, /) -> Texts:
        """Return the documents of a shard."""
        return self._texts


def reading(folder: Path, blocks: int) -> dict[str, float]:
    """Return blocks per second that are found, and those that are read in a random order."""
    corpus = open_corpus(folder)
    mine = corpus.blocks("train", 512)
    rng = np.random.default_rng(0)
    start_s = time.process_time()
    for k in rng.integers(len(mine), size=20_000):
        mine.block(int(k))
    read = 20_000 / (time.process_time() - start_s)
    shards = mine._shards
    sizes = [len(TextBlocks(Repeated(shards[k], 1), 512)) for k in range(len(shards))]
    times = blocks // max(sizes)
    start_s = time.process_time()
    text_blocks = TextBlocks(Repeated(shards[int(np.argmax(sizes))], times), 512)
    return {
        "blocks": len(text_blocks),
        "found_per_s": len(text_blocks) / (time.process_time() - start_s),
        "read_per_s": read,
    }


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
            peak, peak_sum = (max(column) for column in list(zip(*runs, strict=True))[2:])
            print(
                f"{mb} MB on {core_count} cores: {wall:,.0f} tokens/s; {cpu:,.0f} a second of CPU time; "
                f"a process holds {peak:.0f} MiB at most, all together {peak_sum:.0f} MiB"
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
        print(f"and read in a random order at {blocks['read_per_s']:,.0f} a second")
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
