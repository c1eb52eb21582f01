"""Retries with more memory or time: in the jobs of that submission, and only where there are jobs."""

from pathlib import Path

import pytest
from support.arrays import write_profile

from ettsweep.errors import InputError
from ettsweep.launch.profile import load_profile, with_more
from ettsweep.study.sweep import LaunchSettings


@pytest.fixture
def launch(tmp_path: Path) -> LaunchSettings:
    """Return settings with a profile of SLURM."""
    profile = write_profile(tmp_path / "slurm.yaml", mem_gb=16, warn_s=60)
    return LaunchSettings(profile=str(profile), overrides=("cpus=2",))


def test_jobs_of_a_retry_have_the_memory_and_the_time_that_it_asks_for(launch: LaunchSettings) -> None:
    before, more = (with_more(launch, *texts) for texts in ((None, None), ("64G", "90.5min")))
    profile = load_profile(more.profile, more.overrides)
    assert profile == load_profile(before.profile, before.overrides).model_copy(update={"mem_gb": 64.0, "time_min": 91})


@pytest.mark.parametrize(
    ("memory", "time", "problems"),
    [
        ("64", "soon", ["a size is expected, such as 64G", "a time is expected, such as 30s"]),
        ("16G", "1h", ["must be above mem_gb: 16 of the launch", "must be above time_min: 60 of the launch"]),
    ],
)
def test_what_is_no_more_is_refused(launch: LaunchSettings, memory: str, time: str, problems: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        with_more(launch, memory, time)
    assert all(problem in str(refused.value) for problem in problems)


def test_runs_of_this_machine_have_no_limit_to_raise() -> None:
    with pytest.raises(InputError, match=r"^--more-time 2h: these runs train on this machine; only SLURM jobs have"):
        with_more(LaunchSettings(), None, "2h")
