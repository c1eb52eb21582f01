"""`doctor` with a SLURM profile: what it says of a real cluster, with parts of it broken, and where there is none."""

import json
import os
from pathlib import Path

import pytest
from support.arrays import write_profile
from support.commandline import ettsweep
from support.devcluster import Cluster
from support.made_sweep import digits_spec, finish

from ettsweep.doctor.inventory import nodes, parse_minutes, partitions
from ettsweep.doctor.machine import _check_runs
from ettsweep.errors import CorruptError
from ettsweep.launch import slurm_api

Rows = dict[str, tuple[str, str]]


def examine(folder: Path, *options: object, code: int = 0, **profile: object) -> Rows:
    """Return state and detail of each row, as another process prints them."""
    launch = write_profile(folder / "slurm.yaml", **profile)
    arguments = ("doctor", "--launch", launch, "--results", folder / "results", "--format", "json", *options)
    rows = json.loads(ettsweep(*arguments, code=code).stdout)
    return {row["check"]: (row["state"], row["detail"]) for row in rows}


# --- what the cluster has -------------------------------------------------------------------------------------------


def test_it_says_what_the_cluster_has(cluster: Cluster, tmp_path: Path) -> None:
    rows = examine(tmp_path)
    version = cluster.run("sinfo", "--version").stdout.split()[1]
    assert rows["cluster"][0] == "ok"
    assert rows["cluster"][1].startswith(f"devcluster, SLURM {version}, ")
    nodes = f"up; {len(cluster.nodes)} nodes with 4 CPUs, 7.8 GiB, 2 GPUs; "
    assert rows["partition main (default)"] == ("ok", nodes + "no time limit; never preempted")
    assert rows["partition low"][1].endswith("preempted by main, high, short, then requeued after 5 s of grace")
    assert rows["partition nograce"][1].endswith("then requeued at once")
    assert rows["partition short"] == ("ok", nodes + "at most 5 min, 1 min by default; never preempted")
    for limit in ("1001 tasks an array", "50000 jobs", "5 sec from TERM to KILL", "JobRequeue 1"):
        assert limit in rows["limits"][1]
    warned = "preempt_send_user_signal" in cluster.conf.read_text()
    assert ("jobs get their own warning signal first" in rows["preemption"][1]) == warned
    assert rows["accounting"] == ("ok", "sacct answers")
    assert rows["account root"][1].startswith("of root; QOS normal")


# --- what the profile would get -------------------------------------------------------------------------------------


def test_a_profile_that_fits_gets_sbatchs_word_and_no_job(cluster: Cluster, tmp_path: Path) -> None:
    before = {job["id"] for job in cluster.squeue()}
    rows = examine(tmp_path, partition="low", cpus=2, mem_gb=1)
    state, messages = rows["sbatch --test-only"]
    assert state == "ok"
    assert "to start at" in messages
    assert "in partition low" in messages
    job = rows[f"profile {tmp_path / 'slurm.yaml'}"][1]
    assert job.startswith("a job: 1 node with 2 CPUs, 1 GiB; 1 h; ")
    assert not {"time_min", "cpus", "mem_gb", "gpus", "nodes", "warn_s", "partition"} & set(rows)
    assert {job["id"] for job in cluster.squeue()} <= before, "a job was submitted"  # old ones are forgotten
    assert {path.name for path in tmp_path.iterdir()} == {"slurm.yaml"}, "something was left behind"


def test_what_no_node_has_is_named(cluster: Cluster, tmp_path: Path) -> None:
    rows = examine(tmp_path, code=1, mem_gb=9)
    assert rows["mem_gb"] == ("failed", "9: no node of main has more than 7.8")
    assert rows["sbatch --test-only"][0] == "failed"


@pytest.mark.slow
def test_a_time_limit_above_the_partitions_fails_though_sbatch_takes_it(cluster: Cluster, tmp_path: Path) -> None:
    rows = examine(tmp_path, partition="short", time_min=6, code=1)
    assert rows["sbatch --test-only"][0] == "ok", "SLURM itself says so now: the row on time_min is not needed any more"
    state, messages = rows["time_min"]
    assert state == "failed"
    assert messages.startswith("6: partition short allows 5 min; ")
    assert messages.endswith("set time_min=5")
    assert "time_min" not in examine(tmp_path, partition="short", time_min=5, warn_s=60)
    assert "time_min" not in examine(tmp_path, partition="main,short", time_min=6), "one of the two takes it"


@pytest.mark.slow
def test_a_results_folder_that_nodes_cannot_see_is_questioned(cluster: Cluster, tmp_path: Path) -> None:
    disk = cluster.disk("1m")
    rows = examine(tmp_path, "--results", disk)
    assert rows["shared folder"][0] == "warning"
    assert f"{disk} (tmpfs at {disk}): each node has its own" in rows["shared folder"][1]


# --- what is broken, or not there -----------------------------------------------------------------------------------


def test_a_silent_controller_is_a_failure_in_its_words(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ctl("stop", "slurmctld")
    rows = examine(tmp_path, code=1)
    assert rows["cluster"][0] == "failed"
    assert rows["cluster"][1].startswith("SLURM does not answer: scontrol: ")
    assert rows["torch"][0] == "ok", "the rest is told all the same"
    assert "sbatch --test-only" not in rows


def test_where_there_is_no_slurm_a_profile_for_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = examine(tmp_path, code=1)
    assert rows["slurm"] == ("failed", "sbatch is not on the PATH")
    assert "cluster" not in rows


def test_finished_runs_are_read_anew_whatever_was_kept_of_them(results: Path) -> None:
    run = finish(results, digits_spec(None), 0.1)
    assert _check_runs(results) == "1 finished run, unchanged"
    status = run.metrics_path.stat()
    run.metrics_path.write_text(run.metrics_path.read_text().replace('"step": 40', '"step": 41'))
    os.utime(run.metrics_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptError, match=r"metrics\.jsonl: changed since the run finished"):
        _check_runs(results)


# --- other SLURMs than that of the test cluster ---------------------------------------------------------------------


def test_time_limits_are_read() -> None:
    limits = {"5:00": 5, "1:00:00": 60, "1-12:00:00": 2160, "2-0": 2880, "30": 30, "00:00:30": 0.5}
    assert {text: parse_minutes(text) for text in limits} == limits
    assert [parse_minutes(text) for text in ("UNLIMITED", "infinite", "NONE", "")] == [None] * 4


def test_nodes_are_read_as_any_slurm_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
n1|gpu|64|515000|gpu:a100:4(S:0-1)|mixed*
n2|gpu|64|515000+|gpu:tesla:2(S:0),gpu:kepler:1(S:1),shard:8|drained
n3|cpu|128|257000|(null)|idle~
a line that is none
n4|mig|32|1|gpu:nvidia_a100_3g.20gb:7(S:0,2)|down$
"""
    monkeypatch.setattr(slurm_api, "run_command", lambda *command: text)
    assert [(n.name, n.gpus, n.mem_mb, n.is_broken) for n in nodes()] == [
        ("n1", 4, 515000, False),
        ("n2", 3, 515000, True),
        ("n3", 0, 257000, False),
        ("n4", 7, 1, True),
    ]


def test_partitions_are_read_as_any_slurm_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "PartitionName=a Default=YES MaxTime=2-00:00:00 State=UP TRES=cpu=1,mem=2M New=\nPartitionName=b\n\nNo\n"
    monkeypatch.setattr(slurm_api, "run_command", lambda *command: text)
    first, second = partitions()
    assert (first.name, first.is_default, first.max_min, first.default_min) == ("a", True, 2880, None)
    assert (second.name, second.is_default, second.state == "UP", second.max_min) == ("b", False, True, None)
