"""The GPUs of this machine as the driver lists them, and those that CUDA shows a process; without importing torch.

The rules are those of CUDA's Programming Guide ("CUDA Environment Variables", "Device Enumeration and Properties"), of
the Multi-Instance GPU User Guide ("CUDA Device Enumeration"), and, beyond these guides, of torch.cuda, compared with a
driver (pytorch/pytorch#92315).
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ettsweep.errors import InputError

NO_MPS_NOTE = "in turn, since NVIDIA's MPS daemon is not running (nvidia-cuda-mps-control -d starts it)"

VISIBLE = "CUDA_VISIBLE_DEVICES"

HIDES_ALL = ("", "-1", "none", "nodevfiles")
"""Values of CUDA_VISIBLE_DEVICES by which users and SLURM hide all GPUs; other such values are mistakes."""


@dataclass(frozen=True)
class Card:
    """A GPU that the driver lists.

    Attributes:
        uuid: such as GPU-8932f937-d72c-4106-c12f-20bd9faed9f6.
        name: its model, such as NVIDIA H200.
        instances: names of its MIG instances by UUID. If there are any, the card itself cannot be used.
    """

    uuid: str
    name: str
    instances: dict[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> dict[str, str]:
        """The devices of which a process can use one: the MIG instances or the card, with their names in torch."""
        return {uuid: f"{self.name} {name}" for uuid, name in self.instances.items()} or {self.uuid: self.name}


def listed_cards() -> list[Card]:
    """Return the GPUs of this machine in the order of their buses; none if the driver reports none."""
    cards: list[Card] = []
    for line in _nvidia_smi("-L").splitlines():
        if gpu := re.match(r"GPU \d+: (.*) \(UUID: ([\w-]+)\)", line):
            cards.append(Card(gpu[2], gpu[1]))
        elif cards and (instance := re.match(r"\s+(MIG \S+).*\(UUID: ([\w/-]+)\)", line)):
            cards[-1].instances[instance[2]] = instance[1]
    return cards


def gpu_bytes() -> int:
    """Return the memory of the largest GPU of this machine in bytes; 0 if the driver reports none."""
    output = _nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return 2**20 * max((int(mib) for mib in output.split() if mib.isdigit()), default=0)


def gpu_names() -> dict[str, str]:
    """Return GPU models of this machine, such as NVIDIA H200, by UUID; empty if the driver reports none."""
    return {uuid: name for card in listed_cards() for uuid, name in card.devices.items()}


@cache  # a worker asks for each of its runs
def gpu_name(gpu: str) -> str:
    """Return the model of a GPU, by its UUID or its number for CUDA; empty if the driver does not say."""
    cards = listed_cards()
    names = {uuid: name for card in cards for uuid, name in card.devices.items()}
    with contextlib.suppress(InputError):
        return next((names[uuid] for uuid in cuda_devices(gpu, cards) if uuid in names), "")
    return ""


def driver_version() -> str:
    """Return the version of NVIDIA's driver; empty if there is none."""
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text("utf-8", "replace")
        if found := re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text):
            return found[1]
    return ""


def _nvidia_smi(*arguments: str) -> str:
    """Return the output of the driver's tool; empty if it is missing or fails."""
    try:
        command = ["nvidia-smi", *arguments]
        completed = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=20, check=True
        )
        return completed.stdout
    except (OSError, subprocess.SubprocessError):
        return ""


# --- CUDA_VISIBLE_DEVICES -------------------------------------------------------------------------------------------


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by UUID if the driver reports it.

    A UUID names the same card for any CUDA_VISIBLE_DEVICES, so all commands agree on its slot. CUDA shows a process at
    most one MIG instance, but each worker needs only one, so workers can use all of them at once.

    Raises:
        InputError: CUDA_VISIBLE_DEVICES hides all GPUs by mistake, or has numbers whose order is unknown.
    """
    cards, value = listed_cards(), os.environ.get(VISIBLE)
    if value is None:
        return [uuid for card in cards for uuid in card.devices]
    visible = cuda_devices(value, cards)
    if not visible and value.strip().lower() not in HIDES_ALL:
        raise InputError(
            f"{VISIBLE}={value} hides all {len(cards)} GPUs of `nvidia-smi -L`: a repeated entry hides all, an "
            "invalid one itself and those after it; correct it, or pass `--launch-set devices=cpu`"
        )
    return visible


def cuda_devices(value: str, cards: Sequence[Card]) -> list[str]:
    """Return the devices that CUDA shows by a value of CUDA_VISIBLE_DEVICES, in its order.

    A card that is split stands for its first MIG instance. If the driver lists no cards, entries remain as they are.
    """
    entries = visible_entries(value)
    if not cards:
        return entries
    if entries and entries[0].isdigit():
        cards = _sort_as_cuda(cards)
    visible: list[str] = []
    for entry in entries:
        matches = _matching_devices(entry, cards)
        if len(matches) != 1:  # unknown or ambiguous: it hides itself and those after it
            break
        if matches[0] in visible:
            return []
        visible += matches
    return visible


def visible_entries(value: str) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES that CUDA reads: numbers, or UUIDs of the kind of the first.

    CUDA ignores text behind a number. An invalid entry ends the list, and a repeated one hides all.
    """
    prefix = next((prefix for prefix in ("GPU-", "MIG-") if value.startswith(prefix)), "")
    entries: list[str] = []
    for text in value.split(","):
        number = re.match(r"\s*([+-]?[0-9]+)", text)
        if prefix:
            entry = text if text.startswith(prefix) else ""
        else:
            entry = str(int(number[1])) if number and int(number[1]) >= 0 else ""
        if not entry:
            break
        if entry in entries:
            return []
        entries.append(entry)
    return entries


def _matching_devices(entry: str, cards: Sequence[Card]) -> list[str]:
    """Return the devices that an entry may name."""
    if entry.isdigit():
        return [next(iter(card.devices)) for card in cards[int(entry) : int(entry) + 1]]
    if entry.startswith("GPU-"):
        return [next(iter(card.devices)) for card in cards if card.uuid.startswith(entry)]
    # MIG-<GPU-UUID>/<GPU instance>/<compute instance> is also understood by drivers that list instances by UUID.
    if any(card.instances and entry.startswith(f"MIG-{card.uuid}/") for card in cards):
        return [entry]
    return [uuid for card in cards for uuid in card.instances if uuid.startswith(entry)]


def _sort_as_cuda(cards: Sequence[Card]) -> list[Card]:
    """Return the cards as CUDA numbers them: by bus or, which is the default, fastest first.

    Raises:
        InputError: the cards differ, and torch does not report which are the fastest.
    """
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({card.name for card in cards}) == 1:
        return list(cards)
    by_uuid = {card.uuid: card for card in cards}
    uuids = _torch_uuids()
    if set(uuids) != set(by_uuid):
        raise InputError(
            f"{VISIBLE}={os.environ.get(VISIBLE)}: the GPUs of this machine differ, and torch does not report CUDA's "
            "numbers; set CUDA_DEVICE_ORDER=PCI_BUS_ID for the numbers of nvidia-smi, or use UUIDs"
        )
    return [by_uuid[uuid] for uuid in uuids]


@cache  # importing torch takes seconds
def _torch_uuids() -> tuple[str, ...]:
    """Return the UUIDs of all GPUs in CUDA's order, as torch reports them in another process; none if it fails."""
    code = "import torch.cuda as c; print(*(f'GPU-{c.get_device_properties(k).uuid}' for k in range(c.device_count())))"
    environment = {name: value for name, value in os.environ.items() if name != VISIBLE}
    command = [sys.executable, "-c", code]
    return tuple(
        subprocess.run(
            command, env=environment, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
        ).stdout.split()
    )


def mps_is_running() -> bool:
    """`True` if NVIDIA's MPS daemon runs, which lets processes compute on a GPU in parallel, not in turn."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control").exists()
