"""A secret among a profile's variables: jobs have it, and nobody else; on a real cluster, as a user types it."""

import hashlib
from pathlib import Path

from support.arrays import asks
from support.commandline import ettsweep, keep, typed, write_fake_grid
from support.devcluster import Cluster

from ettsweep.study.grid_file import load_sweep_spec

PASSWORD, TOKEN = "hunter2-of-the-profile", "hunter3-of-the-command"
AGAIN = ("--launch-set", f"environment.TOKEN={TOKEN}")


def test_values_reach_jobs_and_are_neither_shown_nor_kept_for_others(cluster: Cluster, tmp_path: Path) -> None:
    results, observed, messages = tmp_path / "results", tmp_path / "seen", []
    setup = f'printf %s "$PASSWORD$TOKEN" | sha256sum > {observed}'
    requested = asks(tmp_path, steps=200, environment={"PASSWORD": PASSWORD}, setup=[setup], snapshot=True)
    wrong = (*requested, "--launch-set", f"environment.TOKEN=[{TOKEN}]")
    messages.append(typed(*requested, *AGAIN, "--dry-run"))
    assert "PASSWORD, TOKEN" in messages[-1].stdout
    messages += [typed(*wrong, code=2), typed("doctor", *requested[2:], *AGAIN), typed(*requested, *AGAIN, "--follow")]
    assert observed.read_text().split()[0] == hashlib.sha256(f"{PASSWORD}{TOKEN}".encode()).hexdigest()

    (run,) = (path.name for path in (results / "runs").iterdir())
    values = ("--results", results)
    for command in (("show", run), ("show", run, "--format", "json"), ("status",), ("sweeps",), ("logs", run)):
        messages.append(ettsweep(*command, *values))
    messages.append(ettsweep("verify-optimum", *values, "--dry-run", code=2))
    assert "environment.TOKEN=***: sweeps do not store this value" in messages[-1].stderr
    messages.append(ettsweep("verify-optimum", *values, *AGAIN, "--dry-run", code=1))
    for message in messages:
        assert not any(secret in message.stdout + message.stderr for secret in (PASSWORD, TOKEN)), message.args

    items = [path for path in results.rglob("*") if path.is_file() and b"hunter" in path.read_bytes()]
    assert [path.relative_to(results).parts[::2] for path in items] == [("jobs", "environment.sh")]
    assert [path.stat().st_mode & 0o777 for path in items] == [0o600]
    assert (results / "jobs").stat().st_mode & 0o055 == 0o055, "the folder hides nothing"


def test_what_was_typed_is_repeated_without_values(tmp_path: Path) -> None:
    (tmp_path / "slurm.yaml").write_text("kind: slurm\n")
    grid = write_fake_grid(tmp_path / "grid.yaml")
    keep(tmp_path / "results", load_sweep_spec(grid))
    values = ("grid", grid, "--results", tmp_path / "results")
    other = (*values, "--launch", tmp_path / "slurm.yaml", "--dry-run", "--set", "last_step=16")
    under_another_name = ettsweep(*other, *AGAIN, code=2).stderr
    assert "--name" in under_another_name
    where_launch_set_was_meant = ettsweep(*values, "--set", f"environment.TOKEN={TOKEN}", code=2).stderr
    for told in (under_another_name, where_launch_set_was_meant):
        assert "environment.TOKEN=***" in told
        assert TOKEN not in told
