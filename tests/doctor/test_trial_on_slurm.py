"""`ettsweep try` with the user's profile of a SLURM cluster: it kills a job there, and another takes its run up."""

import json
from pathlib import Path

from support.arrays import write_profile
from support.commandline import ettsweep
from support.devcluster import Cluster
from support.trainers import write_walk


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
