"""Write the results folders of the goldens from recorded specs and metrics, through the code as it is today.

    python -m support.recorded_folder OUT      (in tests/) writes OUT/results and OUT/near

`results` holds three sweeps, two of them of one family; an optimum that a climb reached, with fresh seeds; runs in all
states but running; a run that no grid asked for; a folder that is no run; a submission to SLURM.
`near` holds runs at points that are 1e-7 apart in log2(lr).
Scores, spikes, digests and states are derived anew; only what training or a machine gave is recorded.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from ettsweep.files import dumps
from ettsweep.processes import boot_id, process_identity
from ettsweep.runs.attempt import Attempt, TimeSpent
from ettsweep.runs.folder import RunDir, jobs_dir, make_result, runs_dir
from ettsweep.runs.spec import validated_spec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep import LaunchSettings
from ettsweep.study.sweep_store import extend_sweep
from support.states import save_state

RECORDED = Path(__file__).parents[1] / "frozen" / "recorded"

HERE = "HERE"
"""In a recorded claim: this machine, whose process has ended."""

BROKEN = "0123456789ab"
"""A folder whose spec.json cannot be read."""

ENDED_S = 1763776800
"""When the first run ended, in seconds since the epoch; the next ones a second later each."""

Json = dict[str, Any]


def write_recorded(out: Path) -> None:
    """Write the folders `results` and `near`."""
    recipes = json.loads((RECORDED / "recipes.json").read_text())
    for name in ("results", "near"):
        recorded = json.loads((RECORDED / f"{name}.json").read_text())
        for sweep, asked in recorded["sweeps"].items():
            write_sweep(out / name, sweep, asked)
        for number, entry in enumerate(recorded["runs"]):
            write_run(out / name, entry, recipes[entry["recipe"]], ENDED_S + number)
        for submission, files in recorded["jobs"].items():
            folder = jobs_dir(out / name) / submission
            folder.mkdir(parents=True)
            for file, content in files.items():
                (folder / file).write_text(dumps(content))
    broken = runs_dir(out / "results") / BROKEN
    broken.mkdir()
    (broken / "spec.json").write_text("{")


def write_sweep(results: Path, name: str, asked: Json) -> None:
    """Make a sweep of a grid file, as `grid` does."""
    path = results.parent / "grid.yaml"
    path.write_text(yaml.safe_dump(asked["grid"]))
    launch = LaunchSettings(profile=asked["launch"], overrides=tuple(asked["launch_set"]))
    extend_sweep(results, name, load_sweep_spec(path), launch)
    path.unlink()


def write_run(results: Path, entry: Json, recipe: Json, ended_s: int) -> None:
    """Write a run with its attempts, and its result if it has one."""
    point = {key: entry[key] for key in ("strategy", "lr", "wd", "seed")}
    spec = validated_spec(recipe | point, entry["run"])
    assert spec.run_id == entry["run"], "ids stay"
    run, attempt = RunDir.create(results, spec), None
    for number, recorded in enumerate(entry.get("attempts", ())):
        attempt = write_attempt(run, number, recorded)
    if entry.get("cancelled"):
        run.cancel()
    if (recorded := entry.get("result")) and attempt:
        history, spent = attempt.history(), TimeSpent(recorded["wall_s"], recorded["device_s"])
        diverged = recorded["status"] == "diverged"
        result = make_result(spec, history, recorded["steps"], attempt, spent, diverged=diverged)
        assert run.finish(result | recorded["facts"], history)
        os.utime(run.result_path, (ended_s, ended_s))


def write_attempt(run: RunDir, number: int, recorded: Json) -> Attempt:
    """Claim an attempt in the name of a process that has ended, and write what it left."""
    attempt = run.claim({key: value for key, value in recorded["claim"].items() if key != "process"}, after=number)
    assert attempt
    process = recorded["claim"]["process"]
    if process["host"] == HERE:
        process = process | {"host": process_identity().host, "boot_id": boot_id()}
    attempt.claim_path.write_text(dumps(json.loads(attempt.claim_path.read_text()) | {"process": process}))
    if "provenance" in recorded:
        attempt.record("started", {"provenance": recorded["provenance"]})
    if "execution" in recorded:
        attempt.record("execution", recorded["execution"])
    if "resume" in recorded:
        attempt.record_resume(recorded["resume"]["attempt"], recorded["resume"]["step"])
    if "heartbeat" in recorded:
        attempt.write_heartbeat(0)
    if "log" in recorded:
        attempt.log_path.write_text(recorded["log"])
    attempt.append(attempt.metrics_path, recorded["metrics"])
    attempt.append(attempt.timings_path, recorded["timings"])
    if "checkpoint_bytes" in recorded:
        save_state(attempt, content=bytes(recorded["checkpoint_bytes"]))
    if "failure" in recorded:
        attempt.record_failure(**recorded["failure"])
    if "retried" in recorded:
        attempt.mark_retried()
    return attempt


if __name__ == "__main__":
    write_recorded(Path(sys.argv[1]))
