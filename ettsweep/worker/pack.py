"""Which runs a worker trains at once: how many its launch profile, its list and the memory allow, and of what kind."""

import math
from typing import TYPE_CHECKING

from ettsweep.errors import CorruptError
from ettsweep.launch.profiles import AnyProfile
from ettsweep.models.architectures import parameter_count
from ettsweep.output import count
from ettsweep.processes import GIB
from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec

if TYPE_CHECKING:
    import torch

STATE_BYTES = 16
"""Of a parameter: its value, gradient and two moments in fp32."""

STATES = 0.5
"""Share of the free memory that these may take; the rest is for activations, which one run at a time has."""


def same_batches(run: RunDir, spec: RunSpec) -> bool:
    """Say whether a run sees the batches of another one, as those do that differ in lr, wd and strategy alone."""
    try:
        other = run.spec()
    except CorruptError:
        return False
    return (other.kind, other.seed) == (spec.kind, spec.seed)


def pack_size(
    profile: AnyProfile, spec: RunSpec, device: "torch.device", waiting: int, workers: int
) -> tuple[int, str]:
    """Return how many runs like one a worker takes at once, and what the log should say of that.

    It leaves each other worker its part of the runs that wait.
    """
    from ettsweep.training.memory import available_bytes

    wanted = min(profile.together(spec.task), math.ceil(waiting / workers))
    if wanted < 2:
        return 1, ""
    state_bytes, free_bytes = STATE_BYTES * parameter_count(spec.model), available_bytes(device)
    if device.type == "cpu":
        free_bytes //= workers  # they share it
    fitting = int(STATES * free_bytes / state_bytes)
    if fitting >= 2:
        return min(wanted, fitting), ""
    return 1, (
        f"trains alone: of the {count(wanted, 'run')} that could train at once, with {state_bytes / GIB:.2g} GiB of "
        f"weights and moments each, no two fit into half of the {free_bytes / GIB:.2g} GiB that are free"
    )
