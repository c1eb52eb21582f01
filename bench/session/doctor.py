"""Step 5: what `ettsweep doctor` measures, and whether a training step makes the host wait for the device."""

import itertools
import json
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from support.stacks import step

from bench import encdec, pack, vit
from bench.session import NotMeasuredError
from bench.session.environment import device
from ettsweep.models.architectures import model_spec
from ettsweep.spec import Precision
from ettsweep.training.stack import Stack

WARM_STEPS = 4


def doctor(options: list[str], rows: list[str]) -> list[dict[str, Any]]:
    """Return those rows of the doctor's whose names have one of some words, with the numbers in them."""
    command = [sys.executable, "-m", "ettsweep", "doctor", *options, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("["):
        raise RuntimeError(done.stderr.strip())
    found = [row for row in json.loads(done.stdout) if set(rows) & set(row["check"].split())]
    return [row | _numbers(row["detail"]) for row in found]


def _numbers(detail: str) -> dict[str, float]:
    patterns = {
        "micro_batch": r"micro_batch=(\d+)",
        "memory_gib": r"([\d.]+) GiB of",
        "samples_per_s": r"([\d,.]+) (?!TFLOP)\w+/s",
        "tflops": r"([\d.]+) TFLOP/s measured",
    }
    found = {name: re.search(pattern, detail) for name, pattern in patterns.items()}
    return {name: float(match[1].replace(",", "")) for name, match in found.items() if match}


def waits(model: str, precision: Precision, compiled: bool, batch_size: int, steps: int) -> list[dict[str, Any]]:
    """Count how often the host waits for the device in steps of one run; CUDA itself tells."""
    where, module = _gpu(), vit if model.startswith("vit") else encdec
    spec = module.run_spec(model_spec(model), precision, batch_size)
    trainer = module.our_trainer(spec, where, compiled)
    batches = itertools.repeat(trainer.task.batch)
    counted = _waits(lambda: trainer.train_step(1e-4, batches), steps)
    return [{**counted, "compiled": bool(trainer.model.compiled) if compiled else False}]


def waits_of_stack(members: int, compiled: bool, steps: int) -> list[dict[str, Any]]:
    """Count them in steps of a stack of small runs."""
    where = _gpu()
    trainers = [pack.made(pack.point(pack.DIGITS, k, 4), where) for k in range(members)]
    batches = [[next(trainer.task.batches(1))] for trainer in trainers]
    stack = Stack(trainers, compiled=compiled)
    return [_waits(lambda: step(stack, [0.001] * members, batches), steps)]


def _gpu() -> torch.device:
    if device().type != "cuda":
        raise NotMeasuredError("a CPU has computed when a call returns: there is nothing to wait for")
    return device()


def _waits(take: Callable[[], object], steps: int) -> dict[str, Any]:
    for _ in range(WARM_STEPS):
        take()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(steps):
                take()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = [warning for warning in caught if "synchroniz" in str(warning.message)]
    places = Counter(f"{warning.filename}:{warning.lineno}" for warning in told)
    return {"steps": steps, "waits": len(told), "where": "; ".join(f"{n} x {p}" for p, n in places.most_common(8))}
