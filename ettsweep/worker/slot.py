"""The devices and threads of a worker's slot, for its programs and claims."""

import os
import platform

from ettsweep import __version__
from ettsweep.files import Json
from ettsweep.launch.gpus import driver_version, gpu_name
from ettsweep.launch.slots import Slot


def pin_devices(slot: Slot) -> None:
    """Show programs of this process only the devices and threads of its slot."""
    gpus = [each.gpu for each in (slot, *slot.others) if each.gpu is not None]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    elif slot.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    threads = str(slot.threads * (1 + len(slot.others)))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = threads


def device_facts(slot: Slot) -> Json:
    """Return the facts on this machine for a claim."""
    gpu = "" if slot.gpu is None else gpu_name(slot.gpu)
    return {
        "device": slot.device,
        "device_name": gpu or platform.processor() or platform.machine(),
        **({"driver": driver} if gpu and (driver := driver_version()) else {}),
        "threads": slot.threads,
        "slot": slot.name,
        "ettsweep": __version__,
        "python": platform.python_version(),
    }
