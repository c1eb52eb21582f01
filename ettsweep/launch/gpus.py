"""The GPUs of this machine as the driver reports them, without importing torch."""

import os
import re
import subprocess
from pathlib import Path

NO_MPS_NOTE = "in turn, since no daemon of NVIDIA's MPS runs (nvidia-cuda-mps-control -d starts one)"


def gpu_bytes() -> int:
    """Return the memory of the largest GPU of this machine in bytes; 0 if the driver reports none."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return 2**20 * max((int(mib) for mib in output.split() if mib.isdigit()), default=0)


def gpu_names() -> dict[str, str]:
    """Return GPU models of this machine, such as NVIDIA H200, by UUID; empty if the driver reports none."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        listing = ""
    return {uuid: name for name, uuid in re.findall(r"^GPU \d+: (.*) \(UUID: ([\w-]+)\)", listing, re.MULTILINE)}


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by UUID if the driver reports it.

    A UUID names the same card whatever CUDA_VISIBLE_DEVICES is, so all commands agree on its slot.
    """
    uuids = list(gpu_names())
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return uuids
    requested = [gpu.strip() for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    visible = [
        uuids[int(gpu)] if gpu.isdigit() and int(gpu) < len(uuids) else gpu
        for gpu in requested
        if gpu not in ("", "-1")
    ]
    return list(dict.fromkeys(visible))  # CUDA rejects duplicates, and a worker would wait for its own lock


def mps_is_running() -> bool:
    """`True` if NVIDIA's MPS daemon runs, which lets processes compute on a GPU in parallel, not in turn."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control").exists()
