"""The test cluster itself: what tests on it rely on when they break it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commandline import wait_for
from support.devcluster import Cluster

pytestmark = pytest.mark.slow

LONG = "sleep 600"


def running_in(cluster: Cluster, partition: str, *options: str, script: str = LONG) -> str:
    job = cluster.sbatch(script, f"--partition={partition}", *options)
    cluster.wait_state(job, "RUNNING")
    return job


def restarts(cluster: Cluster, job: str) -> int:
    (row,) = cluster.squeue("--jobs", job)
    return int(row["restarts"])


def test_a_job_runs_on_each_node_under_the_name_of_the_node(cluster: Cluster, tmp_path: Path) -> None:
    names = tmp_path / "names"
    jobs = [cluster.sbatch(f"hostname >> {names}", f"--nodelist={node}") for node in cluster.nodes]
    for job, node in zip(jobs, cluster.nodes, strict=True):
        cluster.wait_state(job, "COMPLETED")
        assert cluster.node_of(job) == node
    if len(set(names.read_text().split())) > 1:  # nodes have host names of their own where the system allows
        assert sorted(names.read_text().split()) == cluster.nodes


def test_gpus_are_given_out(cluster: Cluster, tmp_path: Path) -> None:
    script = f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/$SLURM_ARRAY_TASK_ID; {LONG}"
    job = cluster.sbatch(script, "--gres=gpu:1", "--array=0-1", f"--nodelist={cluster.nodes[0]}")
    wait_for(lambda: all((tmp_path / task).exists() and (tmp_path / task).read_text() for task in "01"), job)
    assert {(tmp_path / task).read_text().strip() for task in "01"} == {"0", "1"}


def test_a_job_of_a_dead_node_runs_again_elsewhere(cluster: Cluster) -> None:
    job = running_in(cluster, "main")
    dead = cluster.node_of(job)
    cluster.node("kill", dead)
    wait_for(lambda: restarts(cluster, job) == 1 and cluster.state(job) == "RUNNING", "the second start")
    assert cluster.node_of(job) != dead


def test_a_frozen_node_is_lost_while_its_job_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    job = running_in(cluster, "main", script=f"while sleep 0.1; do date >> {tmp_path}/$SLURMD_NODENAME; done")
    cut_off = cluster.node_of(job)
    cluster.node("freeze", cut_off)
    wait_for(lambda: restarts(cluster, job) == 1 and cluster.state(job) == "RUNNING", "the second start")
    size = (tmp_path / cut_off).stat().st_size
    wait_for(lambda: (tmp_path / cut_off).stat().st_size > size, "the first copy to go on")


@pytest.mark.parametrize("partition", ["low", "nograce"])
def test_preemption_requeues(cluster: Cluster, partition: str) -> None:
    job = running_in(cluster, partition, "--exclusive")
    urgent = cluster.sbatch(LONG, "--partition=high", "--exclusive", f"--nodelist={cluster.node_of(job)}")
    cluster.wait_state(urgent, "RUNNING")
    wait_for(lambda: restarts(cluster, job) == 1 and cluster.state(job) == "RUNNING", "the second start")
    wait_for(
        lambda: [row["state"] for row in cluster.sacct("--duplicates", "--jobs", job)][:1] == ["PREEMPTED"],
        "the record",
    )


def test_a_requeued_job_is_back_within_seconds(cluster: Cluster) -> None:
    job = running_in(cluster, "main")
    assert "cred_expire=5" in cluster.run("scontrol", "show", "config").stdout, "SLURM's default of 120 s is in force"
    cluster.run("scontrol", "requeue", job)
    wait_for(lambda: restarts(cluster, job) == 1 and cluster.state(job) == "RUNNING", "the second start")


def test_the_short_partition_has_limits(cluster: Cluster) -> None:
    cluster.sbatch(LONG, "--partition=short", "--hold")
    too_long = cluster.sbatch(LONG, "--partition=short", "--time=6")
    limits = cluster.run("squeue", "--noheader", "--format=%l", "--states=all", "--partition=short").stdout.split()
    assert "1:00" in limits
    wait_for(lambda: cluster.squeue("--jobs", too_long)[0]["reason"] == "PartitionTimeLimit", "the reason")


def saved_since(cluster: Cluster, when_s: float) -> Callable[[], bool]:
    """Return what says whether the controller has saved its jobs since then, as it does every few seconds."""
    return lambda: (cluster.folder / "state" / "job_state").stat().st_mtime > when_s


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_queue_outlives_the_controller(cluster: Cluster, end: str) -> None:
    runs = running_in(cluster, "main")
    waits = cluster.sbatch(LONG, "--hold", "--array=0-2")
    if end == "kill":
        wait_for(saved_since(cluster, time.time()), "the controller to save its state")  # a kill takes the rest with it
    cluster.ctl(end, "slurmctld")
    assert cluster.run("squeue", check=False).returncode != 0
    cluster.ctl("start", "slurmctld")
    assert cluster.state(runs) == "RUNNING"
    assert {row["id"] for row in cluster.squeue("--jobs", waits)} == {f"{waits}_{task}" for task in range(3)}


def test_without_accounting_the_queue_works(cluster: Cluster) -> None:
    job = running_in(cluster, "main")
    cluster.ctl("stop", "slurmdbd")
    assert cluster.run("sacct", check=False).returncode != 0
    assert cluster.state(job) == "RUNNING"
    cluster.ctl("start", "slurmdbd")
    cluster.run("scancel", job)
    wait_for(lambda: [row["state"].split()[0] for row in cluster.sacct("--jobs", job)] == ["CANCELLED"], "the record")


def test_all_nodes_see_a_small_disk(cluster: Cluster) -> None:
    disk = cluster.disk("1m")
    jobs = [cluster.sbatch(f"touch {disk}/{node}", f"--nodelist={node}") for node in cluster.nodes]
    for job in jobs:
        cluster.wait_state(job, "COMPLETED")
    assert sorted(path.name for path in disk.iterdir()) == cluster.nodes
    full = cluster.sbatch(f"head -c 2M /dev/zero > {disk}/full")
    cluster.wait_state(full, "FAILED")


def test_everything_broken_is_mended(cluster: Cluster) -> None:
    cluster.sbatch(LONG, "--array=0-20")
    first, second, third = cluster.nodes
    cluster.node("kill", first)
    cluster.node("freeze", second)
    cluster.run("scontrol", "update", f"nodename={third}", "state=drain", "reason=test")
    cluster.ctl("kill", "slurmdbd")
    cluster.ctl("freeze", "slurmctld")
    cluster.heal()
    assert not cluster.run("squeue", "--noheader").stdout
    states = cluster.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").stdout.split()
    assert states == ["idle"] * 3
    assert cluster.run("sacct").returncode == 0
