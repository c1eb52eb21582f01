"""What a device really reaches in matrix products: measured, and kept, so that runs tell their utilisation of it."""

import math
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from ettsweep.files import Json, cache_folder, dumps, json_or_empty, number, storage_errors, write_atomic
from ettsweep.spec import Precision
from ettsweep.training.memory import is_out_of_memory
from ettsweep.training.precision import DTYPES, set_matmul_precision
from ettsweep.training.timing import now_s

SIZES = {"cuda": (4096, 8192, 16384), "cpu": (512, 1024, 2048)}
"""Rows and columns of the factors that are tried, by kind of device."""

PRECISIONS: dict[str, tuple[Precision, ...]] = {"cuda": ("bf16", "fp16", "tf32", "fp32"), "cpu": ("fp32", "bf16")}

TENSOR_CORES = (8, 0)
"""Compute capability from which on cards have units for bf16 and tf32."""

TURNS = 7


@dataclass(frozen=True)
class Reached:
    """What a device reached in products of `size` rows and columns, in FLOP/s."""

    precision: Precision
    size: int
    flops: float


def median_s(work: Callable[[], object], device: torch.device, warm_s: float = 0.2, measured_s: float = 0.5) -> float:
    """Return the seconds that some work takes a device: the median over a few turns, each of calls on end.

    The first seconds are for clocks to rise, and for libraries to choose their kernels.
    """
    calls, began_s = 0, now_s(device)
    while (took_s := now_s(device) - began_s) < warm_s or calls < 2:
        work()
        calls += 1
    each = max(1, math.ceil(measured_s / TURNS / (took_s / calls)))
    turns = _turns_on_gpu(work, each) if device.type == "cuda" else _turns_here(work, each)
    return statistics.median(turns) / each


def measure(precision: Precision, device: torch.device) -> Reached:
    """Return the best that square products of several sizes reach in a precision.

    Raises:
        RuntimeError: the device cannot compute them, or has no room for the smallest.
    """
    before = torch.get_float32_matmul_precision()
    try:
        set_matmul_precision(precision)
        return max(_of_sizes(precision, device), key=lambda reached: reached.flops)
    finally:
        torch.set_float32_matmul_precision(before)


def measurable(device: torch.device) -> tuple[Precision, ...]:
    """Return the precisions of runs that a device has units for."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < TENSOR_CORES:
        return ("fp16", "fp32")
    return PRECISIONS[device.type]


def _of_sizes(precision: Precision, device: torch.device) -> Iterator[Reached]:
    for size in SIZES[device.type]:
        try:
            yield Reached(precision, size, 2 * size**3 / _product_s(size, precision, device))
        except RuntimeError as error:
            if size == SIZES[device.type][0] or not is_out_of_memory(error):
                raise
            return


def _product_s(size: int, precision: Precision, device: torch.device) -> float:
    """Return the seconds of a product with a weight, as models take them; of noise, since zeros cost less power."""
    dtype = DTYPES.get(precision, torch.float32)
    x, weight = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    return median_s(lambda: torch.mm(x, weight.T, out=out), device)


def _turns_here(work: Callable[[], object], calls: int) -> list[float]:
    turns = []
    for _ in range(TURNS):
        began_s = time.perf_counter()
        for _ in range(calls):
            work()
        turns.append(time.perf_counter() - began_s)
    return turns


def _turns_on_gpu(work: Callable[[], object], calls: int) -> list[float]:
    """Return the seconds of turns by the GPU's own clock, so that the host's launches do not count."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(TURNS + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(calls):
            work()
        mark.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in pairwise(marks)]


# --- what is kept ---------------------------------------------------------------------------------------------------


def peaks_path(device_name: str) -> Path:
    """Return where the measured peaks of a device are kept: with another torch they may be others."""
    name = re.sub(r"[^\w.+-]+", "-", f"{device_name} torch {torch.__version__}")
    return cache_folder() / "peaks" / f"{name}.json"


def keep_peaks(device_name: str, flops: dict[Precision, float]) -> Path:
    """Keep what was measured, beside what was in other precisions; return where.

    Raises:
        StorageError: it cannot be written.
    """
    path = peaks_path(device_name)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    peaks = _kept(device_name) | flops
    write_atomic(path, dumps({"device": device_name, "torch": torch.__version__, "flops": peaks}) + "\n")
    return path


def measured_flops(device_name: str, precision: Precision) -> float | None:
    """Return the FLOP/s that `doctor --peak` measured on such a device; None where it did not."""
    flops = number(_kept(device_name).get(precision))
    return flops if flops and flops > 0 else None


def _kept(device_name: str) -> Json:
    flops = json_or_empty(peaks_path(device_name)).get("flops")
    return flops if isinstance(flops, dict) else {}
