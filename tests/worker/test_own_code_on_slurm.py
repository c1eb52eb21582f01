"""Functions and commands as runs of a SLURM cluster: warned, killed, cancelled, on a node that dies; each once."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.arrays import only_run, only_submission, wait_for_state, workers, write_profile
from support.commandline import ettsweep, runs_in, wait_for
from support.devcluster import Cluster
from support.own_code import processes_with

# --- the first runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs_per_job", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_an_array_whose_first_runs_fail_alike_ends_and_a_retry_may_have_more_memory_and_time(
    cluster: Cluster, tmp_path: Path, results: Path, runs_per_job: int
) -> None:
    mended = tmp_path / "mended"
    script = f"test -e {mended} || exit 3; echo '[ettsweep] {{{{\"step\": 1, \"err\": '$SLURM_MEM_PER_NODE'}}}}'"
    block = {"command": ["sh", "-c", f": {{lr}} {{seed}}; {script}"], "score": {"name": "err", "mode": "min"}}
    grid = tmp_path / "sweep.yaml"
    content = {"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}, "seeds": list(range(16))}
    grid.write_text(yaml.safe_dump(content))
    profile = write_profile(tmp_path / "slurm.yaml", mem_gb=0.5, runs_per_job=runs_per_job)
    ettsweep("grid", grid, "--launch", profile, "--results", results)
    rows = wait_for_state(results, "failed", "cancelled")
    assert sorted(row["state"] for row in rows.values()) == ["cancelled"] * 13 + ["failed"] * 3
    reasons = {row["reason"] for row in rows.values() if row["state"] == "cancelled"}
    assert all("3 runs failed with the same error: exit code 3: it printed nothing" in reason for reason in reasons)
    mended.touch()
    more = "--more-memory", "1G", "--more-time", "2h"
    ettsweep("retry", "--sweep", "sweep", "--yes", *more, "--results", results)
    wait_for_state(results, "done")
    assert {(run.result() or {})["score"] for run in runs_in(results)} == {1024.0}
    jobs = {str(attempt.job()["id"]) for run in runs_in(results) if (attempt := run.latest_attempt())}
    assert "TimeLimit=02:00:00" in cluster.run("scontrol", "show", "job", min(jobs)).stdout


# --- several devices --------------------------------------------------------------------------------------------------

TELLS = """import json, os, signal, socket, sys, time

out, told = sys.argv[3], []
signal.signal(signal.SIGTERM, lambda *_: told.append("TERM"))
node = os.environ["SLURMD_NODENAME"]
names = "CUDA_VISIBLE_DEVICES", "PET_NPROC_PER_NODE", "PET_NNODES", "MASTER_ADDR"
child = os.fork()
if child == 0:
    time.sleep(1000)
json.dump({"pids": [os.getpid(), child], **{name: os.environ.get(name) for name in names}}, open(f"{out}/{node}", "w"))
for step in range(200):
    if told or os.path.exists(f"{out}/go"):
        break
    time.sleep(0.1)
open(f"{out}/{node}.told", "w").write(" ".join(told))
if not told and os.environ["SLURM_NODEID"] == "0":
    print("[ettsweep]", json.dumps({"step": 1, "err": 1.0}), flush=True)
"""


def submit_command(tmp_path: Path, code: str, block: dict[str, Any], **profile: Any) -> None:
    """Submit one run of a script on several devices."""
    (tmp_path / "run.py").write_text(code)
    block = {
        "command": [sys.executable, "run.py", "{lr}", "{seed}", "{out}"],
        "score": {"name": "err", "mode": "min"},
        **block,
    }
    grid = tmp_path / "sweep.yaml"
    grid.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
    launch = write_profile(tmp_path / "slurm.yaml", **profile)
    ettsweep("grid", grid, "--launch", launch, "--results", tmp_path / "results")


def told_on(results: Path) -> dict[str, dict[str, Any]]:
    """Wait until the run has told of itself on two nodes; return what, by node."""
    out = only_run(results).path / "out"

    def look() -> dict[str, dict[str, Any]] | None:
        with contextlib.suppress(ValueError):  # half written
            found = {path.name: json.loads(path.read_text()) for path in out.glob("n?")}
            return found if len(found) == 2 else None
        return None

    return dict(wait_for(look, "the run on both nodes"))


def wait_until_gone(results: Path) -> None:
    """Wait until no process of the run is left on any node."""
    out = only_run(results).path.resolve() / "out"
    wait_for(lambda: not processes_with(f"ETTSWEEP_OUT={out}"), "the end of all")


def test_a_command_on_several_gpus_of_a_node_has_one_worker_and_sees_all(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    code = TELLS.replace("range(200)", "range(1)")
    submit_command(tmp_path, code, {"gpus": 2}, gpus=2, devices_per_run=2)
    wait_for_state(results, "done")
    run = only_run(results)
    (told,) = (json.loads(path.read_text()) for path in (run.path / "out").glob("n?"))
    assert (told["CUDA_VISIBLE_DEVICES"], told["PET_NPROC_PER_NODE"], told["PET_NNODES"]) == ("0,1", "2", "1")
    assert run.attempt_numbers() == [1]
    assert len(list(only_submission(results).path.glob("worker-*.json"))) == 1


TWO_NODES = {"nodes": 2, "gpus": 0, "devices_per_run": 2}


def test_a_command_on_two_nodes_runs_once_on_each_and_ends_on_both(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    submit_command(tmp_path, TELLS, {"nodes": 2}, **TWO_NODES)
    told = told_on(results)
    assert len({each["MASTER_ADDR"] for each in told.values()}) == 1
    (only_run(results).path / "out" / "go").touch()
    wait_for_state(results, "done")
    wait_until_gone(results)


@pytest.mark.slow
def test_a_cancelled_command_is_told_on_each_node_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    submit_command(tmp_path, TELLS, {"nodes": 2}, **TWO_NODES)
    nodes = told_on(results)
    run = only_run(results)
    ettsweep("cancel", run.id, "--results", results)
    wait_for_state(results, "cancelled")
    assert all((run.path / "out" / f"{node}.told").read_text() == "TERM" for node in nodes), "each leader once"
    wait_until_gone(results)


@pytest.mark.slow
def test_a_command_whose_worker_is_killed_leaves_nothing_on_any_node(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    submit_command(tmp_path, TELLS, {"nodes": 2}, **TWO_NODES)
    told_on(results)
    os.kill(workers(results)[0], signal.SIGKILL)
    wait_until_gone(results)
    wait_for_state(results, "interrupted", "failed")


def test_torchrun_meets_over_two_nodes(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    code = """import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1) * (1 + dist.get_rank())
dist.all_reduce(value)
if dist.get_rank() == 0:
    print('[ettsweep] {"step": 1, "err": %f}' % value.item(), flush=True)
dist.destroy_process_group()
os._exit(0)  # some versions of torch abort now and then as a process with gloo ends
"""
    command = [str(Path(sys.executable).with_name("torchrun")), "run.py", "{lr}", "{seed}", "{out}"]
    submit_command(tmp_path, code, {"nodes": 2, "gpus": 1, "command": command}, **TWO_NODES)
    wait_for_state(results, "done")
    result = only_run(results).result()
    assert result is not None
    assert result["score"] == 3.0
