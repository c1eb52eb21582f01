"""Commands that give a run twice the memory or time that it had."""

from ettsweep.launch.slots import Slot
from ettsweep.units import gib_text, minutes_text


def more_memory(run_id: str, mem_gb: float | None) -> str:
    """Return the command that gives a run's job more memory than so many GiB; None if the site decides."""
    if mem_gb is None:
        return f"try `ettsweep retry {run_id} --more-memory 64G`: its launch profile has no mem_gb"
    return f"`ettsweep retry {run_id} --more-memory {gib_text(2 * mem_gb)}`"


def more_time(run_id: str, time_min: int) -> str:
    """Return the command that gives a run's job more than so many minutes."""
    return f"`ettsweep retry {run_id} --more-time {minutes_text(2 * time_min)}`"


def gpu_memory_advice(run_id: str, slot: Slot) -> str:
    """Return advice on more GPU memory for a run."""
    if slot.sharers > 1:
        return f"`ettsweep retry {run_id} --launch-set workers_per_device=1` gives it a whole GPU"
    return "a smaller batch takes less, and a larger GPU has more"
