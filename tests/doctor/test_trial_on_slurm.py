"""`ettsweep try` with the user's profile of a SLURM cluster: it kills a job there, and another takes its run up."""

import json
from pathlib import Path

import pytest
from support.arrays import write_profile
from support.commandline import ettsweep
from support.devcluster import Cluster
from support.trainers import write_walk


@pytest.mark.usefixtures("cluster")
def test_a_trainer_without_faults_is_exact_in_jobs(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, run={"try": "--pause 0.05", "stop": {"grace": "5s"}})
    options = ("--launch", write_profile(tmp_path / "slurm.yaml"), "--results", results, "--format", "json")
    outcome = json.loads(ettsweep("try", grid, *options, cwd=tmp_path).stdout)
    assert {each["observation"]: each["state"] for each in outcome["observations"] if each["state"] != "ok"} == {}
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (True, True, "exact")
    assert not list(results.glob(".try-*"))
    assert not [job for job in cluster.squeue() if job["state"] in ("RUNNING", "PENDING")]
