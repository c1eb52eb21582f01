"""What a run that lacked memory or time is told to be given, as commands that `retry` understands."""

import pytest

from ettsweep.launch.remedies import gpu_memory_advice, more_memory, more_time
from ettsweep.launch.slots import Slot


@pytest.mark.parametrize(
    ("mem_gb", "command"),
    [
        (32.0, "`ettsweep retry ab12 --more-memory 64G`"),
        (0.25, "`ettsweep retry ab12 --more-memory 512M`"),
        (None, "try `ettsweep retry ab12 --more-memory 64G`: its launch profile has no mem_gb"),
    ],
)
def test_twice_the_memory_is_asked_for(mem_gb: float | None, command: str) -> None:
    assert more_memory("ab12", mem_gb) == command


@pytest.mark.parametrize(("time_min", "text"), [(240, "8h"), (45, "90min")])
def test_twice_the_time_is_asked_for(time_min: int, text: str) -> None:
    assert more_time("ab12", time_min) == f"`ettsweep retry ab12 --more-time {text}`"


@pytest.mark.parametrize(("sharers", "advice"), [(2, "--launch-set workers_per_device=1` gives"), (1, "a larger GPU")])
def test_a_run_that_shares_its_gpu_is_given_the_whole_of_it(sharers: int, advice: str) -> None:
    assert advice in gpu_memory_advice("ab12", Slot("gpu-0", "cuda", "0", 1, sharers))
