"""Where a step is measured: versions, device, commit, and what matrix products reach there at that moment."""

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from typing import Any

import torch

from ettsweep import __version__
from ettsweep.models.cost import peak_flops
from ettsweep.provenance import provenance
from ettsweep.training.peak import keep_peaks, measure

PACKAGES = ("timm", "torchvision", "transformers", "triton", "numpy")
PEAKS = ("bf16", "fp16")
"""Precisions of the benchmarks."""


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def facts() -> list[dict[str, Any]]:
    """Return one row. On a GPU its peaks are kept, so that what follows tells its utilisation of them too."""
    where, code = device(), provenance()
    row: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if where.type == "cuda" else None,
        "driver": asked_of_driver("driver_version"),
        "power_limit": asked_of_driver("power.limit"),
        "ettsweep": __version__,
        "commit": (code["git"] or {}).get("commit"),
        "dirty": (code["git"] or {}).get("dirty"),
        "code": code["code"],
        "device": torch.cuda.get_device_name() if where.type == "cuda" else platform.machine(),
        "memory_gib": torch.cuda.get_device_properties(where).total_memory / 2**30 if where.type == "cuda" else None,
        "cores": len(os.sched_getaffinity(0)),
    }
    for package in PACKAGES:
        row[package] = None
        with suppress(importlib.metadata.PackageNotFoundError):
            row[package] = importlib.metadata.version(package)
    if where.type == "cuda":
        reached = {precision: measure(precision, where).flops for precision in PEAKS}
        keep_peaks(row["device"], reached)
        row |= {f"measured_{precision}_tflops": flops / 1e12 for precision, flops in reached.items()}
        row |= {f"sheet_{p}_tflops": (peak_flops(row["device"], p) or 0) / 1e12 or None for p in PEAKS}
    return [row]


def asked_of_driver(field: str) -> str | None:
    """Return what nvidia-smi says of the first GPU; None where there is none."""
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
