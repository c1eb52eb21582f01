"""`ettsweep try` with the user's profile of a SLURM cluster: it kills a job there, and another takes its run up."""

import json
import subprocess
from pathlib import Path
from unittest import mock

import pytest
from support.arrays import write_profile
from support.commandline import ettsweep, wait_for
from support.devcluster import Cluster
from support.trainers import write_walk

from ettsweep.launch import slurm_api


def _try(folder: Path, results: Path) -> dict[str, object]:
    """Return what is printed of a trial, in which all is well."""
    grid = write_walk(folder, run={"try": "--pause 0.05", "stop": {"grace": "5s"}})
    options = ("--launch", write_profile(folder / "slurm.yaml"), "--results", results, "--format", "json")
    outcome = json.loads(ettsweep("try", grid, *options, cwd=folder).stdout)
    assert {each["observation"]: each["state"] for each in outcome["observations"] if each["state"] != "ok"} == {}
    return outcome


def test_a_trainer_without_faults_is_exact_in_jobs(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    outcome = _try(tmp_path, results)
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (True, True, "exact")
    assert not list(results.glob(".try-*"))
    assert not [job for job in cluster.squeue() if job["state"] in ("RUNNING", "PENDING")]


@pytest.mark.slow
def test_a_killed_job_that_slurm_calls_cancelled_is_taken_up_all_the_same(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    """As it may call any that was killed, at once or a moment later: that is no wish to end the trial's run."""
    kill = slurm_api.kill_job

    def kill_and_cancel(id_: str) -> None:
        kill(id_)
        subprocess.run(["scancel", id_], check=True)
        wait_for(lambda: (id_, "CANCELLED") in [(job["id"], job["state"]) for job in cluster.squeue()], "its end")

    with mock.patch.object(slurm_api, "kill_job", kill_and_cancel):
        assert _try(tmp_path, results)["resume"] == "exact"
