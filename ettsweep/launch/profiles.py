"""Launch profiles: where and how runs train, which never changes their numbers."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ettsweep.errors import InputError, unknown_name
from ettsweep.resources import shipped
from ettsweep.spec import Frozen, NonNegative, Positive, expect, is_whole, validate
from ettsweep.sweep.gridfile import read_yaml, split_override

Count = Annotated[
    int | Literal["auto"],
    expect("a whole number of at least 1, or auto,", lambda v: v == "auto" or is_whole(v, 1)),
]
Devices = Annotated[
    list[int] | Literal["auto", "cpu"],
    expect(
        "auto, cpu or a list of GPU numbers",
        lambda v: v in ("auto", "cpu") or (isinstance(v, list) and bool(v) and all(is_whole(n, 0) for n in v)),
    ),
]


@dataclass(frozen=True)
class Slot:
    """A share of this machine that trains one run at a time: a GPU, or some CPU threads."""

    name: str
    device: Literal["cpu", "cuda"]
    gpu: str | None
    threads: int


class LocalProfile(Frozen):
    """Workers on this machine.

    Attributes:
        devices: `auto` takes the GPUs, or the CPU where there is none; `cpu`; or a list of GPU numbers.
        slots: workers on the CPU; `auto` is one per core. GPUs have one each.
        threads: CPU threads of a worker; `auto` shares the cores among the slots. A resumed run repeats itself
            bit for bit only with as many threads as before.
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
    """

    kind: Literal["local"] = "local"
    devices: Devices = "auto"
    slots: Count = "auto"
    threads: Count = "auto"
    checkpoint_every_s: NonNegative = 300.0
    checkpoint_every_steps: Positive | None = None

    def resolve(self) -> list[Slot]:
        """Return the slots on this machine."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        gpus = []
        if self.devices != "cpu":
            gpus = visible_gpus()
        if isinstance(self.devices, list):
            if absent := [number for number in self.devices if number >= len(gpus)]:
                raise InputError(
                    f"devices: there is no GPU {absent[0]}; {len(gpus)} found here (`devices: cpu` uses none)"
                )
            gpus = [gpus[number] for number in self.devices]
        count = len(gpus) or (cores if self.slots == "auto" else self.slots)
        threads = max(1, cores // count) if self.threads == "auto" else self.threads
        if gpus:
            return [Slot(f"gpu-{gpu.replace('/', '_')}", "cuda", gpu, threads) for gpu in gpus]
        return [Slot(f"cpu-{number}", "cpu", None, threads) for number in range(count)]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by UUID where the driver tells, without importing torch.

    A UUID names the same card whatever CUDA_VISIBLE_DEVICES is, so that all commands meet at one slot.
    """
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        listing = ""
    found = re.findall(r"^GPU \d+: .*\(UUID: ([\w-]+)\)", listing, re.MULTILINE)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return found
    named = [gpu.strip() for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    return [
        found[int(gpu)] if gpu.isdigit() and int(gpu) < len(found) else gpu for gpu in named if gpu not in ("", "-1")
    ]


def load_profile(name: str, overrides: Sequence[str] = ()) -> LocalProfile:
    """Read a profile by file, or by name from ./launch and then from those shipped.

    Raises:
        InputError: there is none of that name, or it has unknown keys or values.
    """
    path = find_profile(name)
    data = read_yaml(path)
    for override in overrides:
        key, value = split_override(override)
        data[key] = value
    return validate(LocalProfile, data, str(path))


def find_profile(name: str) -> Path:
    """Return the file of a profile."""
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        path = Path(name)
        if not path.is_file():
            raise InputError(f"{path}: no such launch profile")
        return path
    folders = (Path("launch"), shipped("launch"))
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    raise unknown_name("launch profile", name, {p.stem for folder in folders for p in folder.glob("*.yaml")})
