"""Runs on a SLURM cluster, as a user types them: a profile, grids of some seconds, and who trains what."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ettsweep.launch.submissions import Submission, submissions
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from support.commandline import LONG, LONG_FAKE, runs_in, status, wait_for, write_fake_grid, write_grid

PROFILE: dict[str, Any] = {
    "kind": "slurm",
    "gpus": 0,
    "cpus": 1,
    "time_min": 60,
    "environment": {"OMP_NUM_THREADS": 1},
    "heartbeat_s": 0.5,
}
"""Jobs of one CPU."""

LATER = {"begin": "now+1hour"}
"""Options of sbatch that have jobs wait until `Cluster.begin`."""


def write_profile(path: Path, **changes: Any) -> Path:
    """Write the launch profile, with other values for some keys."""
    path.write_text(yaml.safe_dump(PROFILE | changes))
    return path


def asks(folder: Path, runs: int = 1, steps: int = 600, **profile: Any) -> tuple[object, ...]:
    """Return the arguments of a `grid` command for some runs of some steps on SLURM; results go to folder/results.

    They are those of the fake trainable, which saves a checkpoint every 25 steps.
    """
    grid = write_fake_grid(folder / "grid.yaml", run=LONG_FAKE | {"last_step": steps}, lr={"range": [0, runs - 1]})
    return _asked(folder, grid, profile)


def asks_trainer(folder: Path, runs: int = 1, steps: int = 600, **profile: Any) -> tuple[object, ...]:
    """Return the same for runs of the Transformer trainer, which are trained in ensembles and by several processes."""
    recipe: Mapping[str, Any] = LONG | {"schedule": LONG["schedule"] | {"total_steps": steps}}  # type: ignore[operator]
    grid = write_grid(folder / "grid.yaml", recipe=dict(recipe), lr={"range": [-7, runs - 8]})
    return _asked(folder, grid, {"checkpoint_every_steps": 25} | profile)


def _asked(folder: Path, grid: Path, profile: Mapping[str, Any]) -> tuple[object, ...]:
    launch = write_profile(folder / "slurm.yaml", **profile)
    return "grid", grid, "--launch", launch, "--results", folder / "results"


def only_run(results: Path) -> RunDir:
    """Return the one run of a results folder."""
    (run,) = runs_in(results)
    return run


def only_submission(results: Path) -> Submission:
    """Return the one submission of a results folder."""
    (submission,) = submissions(results)
    return submission


def attempt_at_work(results: Path) -> Attempt:
    """Wait until the one run has saved a checkpoint in an attempt of its own."""
    attempt = only_run(results).attempt(1)
    wait_for(attempt.has_checkpoint, "a checkpoint of attempt 1")
    return attempt


def state(results: Path) -> tuple[str, str]:
    """Return state and reason of the one run, as another process says."""
    (row,) = status(results).values()
    return row["state"], row["reason"]


def wait_for_state(results: Path, *states: str) -> dict[str, dict[str, Any]]:
    """Wait until all runs are in one of some states, as other processes say; return what `status` says then."""

    def look() -> dict[str, dict[str, Any]] | None:
        rows = status(results)
        return rows if {row["state"] for row in rows.values()} <= set(states) else None

    for_result = wait_for(look, f"all runs to be {' or '.join(states)}")
    assert isinstance(for_result, dict)
    return for_result


def workers(results: Path, node: str = "") -> list[int]:
    """Return the processes, as this machine numbers them, that train runs of a results folder on a node."""
    collected, on_node = [], f"SLURMD_NODENAME={node}\0".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program, *words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_worker = "ettsweep.worker" in words and not Path(program).name.startswith(("srun", "slurm"))
            is_there = not node or on_node in (path / "environ").read_bytes()
            if is_worker and is_there and any(str(results) in word for word in words):
                collected.append(int(path.name))
    return collected


def node_of(attempt: Attempt) -> str:
    return str(attempt.job()["node"])
