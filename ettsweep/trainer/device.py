"""The device of a process that trains Transformers: prepared before torch is imported, and checked after."""

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError
from ettsweep.processes import signals_blocked, unbind_threads

if TYPE_CHECKING:
    import torch

OMP_SPIN_COUNT, OMP_BLOCK_MS = "10000", "1"
"""How long an OpenMP thread spins before it sleeps: iterations (some microseconds) for GNU, milliseconds for LLVM."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""mallopt parameters of glibc's malloc.h: bytes free at the top of the heap above which it returns them to the system,
and size above which a block is mapped, so that `free` returns it at once (at most 32 MiB)."""


def prepare_device(kind: str, gpu: str | None = None, sharers: int = 1, threads: int = 1) -> "torch.device":
    """Import torch on a device, and return it.

    Args:
        kind: `cpu` or `cuda`.
        gpu: the only GPU that torch is to see, as for CUDA_VISIBLE_DEVICES.
        sharers: number of processes that share it.
        threads: CPU threads.

    Raises:
        LaunchError: it is a GPU that torch does not see, or torch sees another one.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # must precede torch's first CUDA call
        # SLURM's signals to the whole job would kill Inductor's worker processes.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        if "PYTORCH_ALLOC_CONF" not in os.environ:
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # micro-batches differ in size
    limit_spinning()
    if names := unbind_threads():
        print(f"{', '.join(names)} ignored: all workers of a machine would compute on the same cores", file=sys.stderr)
    with signals_blocked(signal.SIGINT):  # torch's import swallows KeyboardInterrupt and continues with half of numpy
        import torch

    torch.set_num_threads(threads)
    if kind == "cpu":
        keep_freed_memory()
    if kind == "cuda" and not torch.cuda.is_available():
        raise LaunchError("torch sees no GPU; check CUDA_VISIBLE_DEVICES, or set `devices: cpu`")
    if gpu is not None:
        check_gpu(gpu)
    if sharers > 1:
        torch.cuda.set_per_process_memory_fraction(1 / sharers)
    return torch.device(kind)


def check_gpu(gpu: str) -> None:
    """Check that torch sees only the GPU of this worker.

    CUDA decides what a number means. For a MIG instance, drivers report its UUID or that of its card, but its name
    reveals it.

    Raises:
        LaunchError: it is another GPU, which may be another worker's.
    """
    import torch

    if gpu.isdigit():
        return
    seen = torch.cuda.get_device_properties(0)
    if f"{gpu[:4]}{seen.uuid}".startswith(gpu) or (gpu.startswith("MIG-") and " MIG " in seen.name):
        return
    raise LaunchError(
        f"this worker is for GPU {gpu}, but torch has {seen.name} (UUID {seen.uuid}): CUDA reads "
        f"CUDA_VISIBLE_DEVICES={gpu} differently, or the GPUs have changed; `nvidia-smi -L` lists them"
    )


def limit_spinning() -> None:
    """Let waiting OpenMP threads sleep soon, unless OMP_WAIT_POLICY is set.

    Spinning threads block cores of other processes: small operators on two threads were a hundred times slower beside
    work on both cores. Call it before importing torch, which reads these variables.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", OMP_SPIN_COUNT)  # GNU's OpenMP
        os.environ.setdefault("KMP_BLOCKTIME", OMP_BLOCK_MS)  # Intel's and LLVM's


def keep_freed_memory() -> None:
    """Let malloc keep the memory that a step frees for the next step; no effect without glibc.

    Otherwise each step of a stack maps most of its memory again, page by page, in a tenth of its time.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**30)
