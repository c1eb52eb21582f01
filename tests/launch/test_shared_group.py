"""A results folder of a group (setgid, umask 002): nothing is executed from it, unless the group is trusted.

Two users that exist nowhere else share a group; root starts processes in their names.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import write_fake_grid

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="becomes other users"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv"),
]

GROUP, A, B = 54321, 54322, 54323
SLOT = ("slots=1", "devices=cpu", "threads=1", "heartbeat_s=1", "snapshot=true")
LAUNCH = tuple(word for setting in SLOT for word in ("--launch-set", setting))


def become(uid: int) -> list[str]:
    """Return the command that starts another in the name of a user, who may read all files: Python may be root's."""
    read_all = (
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    )
    return ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups", *read_all]


class Group:
    """A folder that users A and B share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"
        self.grid = write_fake_grid(folder / "small.yaml", lr={"range": [0, 1]})
        self.grid.chmod(0o644)

    def python(self, uid: int, *arguments: object, code: int | None = 0) -> str:
        """Run Python in the name of a user, and return all that it prints."""
        home = self.folder / f"home-{uid}"
        env = os.environ | {"HOME": str(home), "TMPDIR": str(home), "ETTSWEEP_SLOTS": str(home / "slots")}
        env.pop("ETTSWEEP_TRUST_GROUP", None)
        command = [*become(uid), "sh", "-c", 'umask 002; exec "$@"', "sh", sys.executable, *map(str, arguments)]
        ran = subprocess.run(
            command, env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        assert code is None or ran.returncode == code, ran.stdout
        assert "Traceback" not in ran.stdout, ran.stdout
        return ran.stdout

    def ettsweep(self, uid: int, *arguments: object, code: int | None = 0) -> str:
        return self.python(uid, "-m", "ettsweep", *arguments, "--results", self.results, code=code)

    def submission(self) -> Path:
        (folder,) = (self.results / "jobs").iterdir()
        return folder


@pytest.fixture
def group() -> Iterator[Group]:
    folder = Path(tempfile.mkdtemp(prefix="ettsweep-group-"))
    try:
        os.chown(folder, A, GROUP)
        folder.chmod(0o2775)
        for uid in (A, B):
            (folder / f"home-{uid}").mkdir()
            os.chown(folder / f"home-{uid}", uid, GROUP)
        group = Group(folder)
        probe = [*become(A), "sh", "-c", 'exec "$0" -c "import ettsweep.worker.worker"', sys.executable]
        if subprocess.run(probe, capture_output=True, cwd=folder).returncode:
            pytest.skip("other users cannot run this Python")
        yield group
    finally:
        shutil.rmtree(folder)


TRUST = "--trust-group"


def test_a_folder_of_a_group_is_read_and_nothing_is_submitted_to_it(group: Group) -> None:
    said = group.ettsweep(A, "grid", group.grid, *LAUNCH, code=2)
    assert f"{group.folder} can be written by group {GROUP}, and ettsweep executes files in" in said
    assert f"remove that right (`chmod g-w {group.folder}`), or trust the group with --trust-group" in said
    assert not group.results.exists(), "nothing is recorded"
    group.ettsweep(A, "grid", group.grid, *LAUNCH, "--dry-run")
    subprocess.run(["chmod", "g-w", group.folder], check=True)
    group.ettsweep(A, "grid", group.grid, *LAUNCH, "--follow")
    writable = [path for path in group.results.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert writable == [], "what ettsweep makes is unwritable for the group, whatever the umask"
    group.results.chmod(0o2775)
    again = group.ettsweep(A, "grid", group.grid, "--seeds", "0,1", code=2)
    assert f"{group.results} can be written by group {GROUP}" in again
    assert f"`chmod -R g-w {group.results}`" in again
    for uid in (A, B):
        rows = json.loads(group.ettsweep(uid, "status", "--format", "json"))
        assert [row["state"] for row in rows] == ["done"] * 2
        group.ettsweep(uid, "verify-optimum", "--dry-run", code=None)
        group.ettsweep(uid, "report", "--out", group.folder / f"home-{uid}" / "report", code=None)


def test_a_worker_refuses_a_folder_that_a_group_can_write_to_by_now(group: Group) -> None:
    group.folder.chmod(0o755)
    group.ettsweep(A, "grid", group.grid, *LAUNCH, "--follow")
    group.results.chmod(0o2775)
    said = group.python(A, "-m", "ettsweep.worker", group.submission(), "--slot", "cpu-0", code=2)
    assert f"{group.results} can be written by group {GROUP}" in said
    said = group.python(B, "-m", "ettsweep.worker", group.submission(), "--slot", "cpu-0", code=2)
    assert f"belongs to user {A}" in said


@pytest.mark.slow
def test_members_who_trust_their_group_extend_read_and_judge_what_others_submit(group: Group) -> None:
    group.ettsweep(A, "grid", group.grid, *LAUNCH, "--follow", TRUST)
    said = group.ettsweep(B, "grid", group.grid, "--seeds", "0,1", "--follow", TRUST)
    assert "4 of 4 runs finished" in said, said
    owners = {path.stat().st_uid for path in (group.results / "runs").glob("*/attempts/0001")}
    assert owners == {A, B}
    group.ettsweep(B, "verify-optimum", "--dry-run", code=None)
    out = group.folder / f"home-{B}" / "report"
    group.ettsweep(B, "report", "--out", out, code=None)
    assert "4 runs trained from folders that others could write to (--trust-group)" in (out / "report.html").read_text()
