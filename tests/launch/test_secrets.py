"""A secret among a profile's variables: jobs have it, and nobody else; on a real cluster, as a user types it."""

import hashlib
import os
from pathlib import Path

import pytest
from support.arrays import asks
from support.commandline import ettsweep, typed, write_fake_grid
from support.devcluster import Cluster

PASSWORD, TOKEN = "hunter2-of-the-profile", "hunter3-of-the-command"
AGAIN = ("--launch-set", f"environment.TOKEN={TOKEN}")


@pytest.fixture
def umask() -> int:
    """Return the umask of all tests, which must be one that hides nothing."""
    before = os.umask(0o022)
    os.umask(before)
    assert before & 0o044 == 0, "or these tests hold nothing"
    return before


@pytest.mark.usefixtures("umask")
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
    for command in (("show", run), ("status",), ("sweeps",), ("logs", run)):
        messages += [ettsweep(*command, *values)]
        messages += [ettsweep(*command, *values, "--format", "json")] if command[0] not in ("logs",) else []
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
    """Where a command is told back to its user: under another name, and where --launch-set was meant."""
    (tmp_path / "slurm.yaml").write_text("kind: slurm\n")
    values = ("grid", write_fake_grid(tmp_path / "grid.yaml"), "--results", tmp_path / "results")
    ettsweep(*values, "--follow")
    other = (*values, "--launch", tmp_path / "slurm.yaml", "--dry-run", "--set", "last_step=16")
    for option in (AGAIN, (f"--launch-set=environment.TOKEN={TOKEN}",)):
        refused = ettsweep(*other, *option, code=2)
        assert "--name" in refused.stderr
        assert "environment.TOKEN=***" in refused.stderr
        assert TOKEN not in refused.stderr
    misplaced = ettsweep(*values, "--set", f"environment.TOKEN={TOKEN}", code=2)
    assert "environment.TOKEN=***: environment.TOKEN is not a field of the recipe; use --launch-set" in misplaced.stderr
    assert TOKEN not in misplaced.stderr
