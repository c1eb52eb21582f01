"""A results folder of a group (setgid, umask 002): nothing is executed from it, unless the group is trusted.

Two users that exist nowhere else share a group; root starts processes in their names.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import ettsweep, write_fake_grid

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="becomes other users"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv"),
]

GROUP, A, B = 54321, 54322, 54323
SLOT = ("slots=1", "devices=cpu", "threads=1", "heartbeat_s=1", "snapshot=true")
LAUNCH = tuple(word for setting in SLOT for word in ("--launch-set", setting))


def become(uid: int) -> list[str]:
    """Return the command that starts another in the name of a user, who may read all files: Python may be root's."""
    read_all = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    identity = [f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"]
    return ["setpriv", *identity, *read_all, "--bounding-set=-all,+dac_read_search"]


class Group:
    """A folder that users A and B share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"
        self.grid = write_fake_grid(folder / "small.yaml", lr={"range": [0, 1]})
        self.grid.chmod(0o644)

    def python(self, uid: int, *arguments: object, code: int = 0) -> str:
        """Run Python in the name of a user, and return all that it prints."""
        home = self.folder / f"home-{uid}"
        env = os.environ | {"HOME": str(home), "TMPDIR": str(home), "ETTSWEEP_SLOTS": str(home / "slots")}
        env.pop("ETTSWEEP_TRUST_GROUP", None)
        command = [*become(uid), "sh", "-c", 'umask 002; exec "$@"', "sh", sys.executable, *map(str, arguments)]
        ran = subprocess.run(
            command, env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        assert ran.returncode == code, ran.stdout
        assert "Traceback" not in ran.stdout, ran.stdout
        return ran.stdout

    def ettsweep(self, uid: int, *arguments: object, code: int = 0) -> str:
        return self.python(uid, "-m", "ettsweep", *arguments, "--results", self.results, code=code)


@contextlib.contextmanager
def shared_folder(mode: int) -> Iterator[Group]:
    """Make a folder of user A and of the group, beside whose results each user has a home."""
    folder = Path(tempfile.mkdtemp(prefix="ettsweep-group-"))
    try:
        os.chown(folder, A, GROUP)
        for uid in (A, B):
            (folder / f"home-{uid}").mkdir()
            os.chown(folder / f"home-{uid}", uid, GROUP)
        group = Group(folder)
        folder.chmod(mode)
        yield group
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def trained() -> Iterator[Group]:
    """Return a folder that only user A can write to, who has trained two runs there."""
    with shared_folder(0o755) as group:
        probe = [*become(A), "sh", "-c", 'exec "$0" -c "import ettsweep"', sys.executable]
        if subprocess.run(probe, capture_output=True, cwd=group.folder).returncode:
            pytest.skip("other users cannot run this Python")
        group.ettsweep(A, "grid", group.grid, *LAUNCH, "--follow")
        yield group


def test_a_folder_of_a_group_is_read_and_nothing_is_submitted_to_it(trained: Group) -> None:
    trained.results.chmod(0o755)
    writable = [path for path in trained.results.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert writable == [], "what ettsweep makes is unwritable for the group, whatever the umask"
    trained.results.chmod(0o2775)
    said = trained.ettsweep(A, "grid", trained.grid, "--seeds", "0,1", code=2)
    assert f"{trained.results} can be written by group {GROUP}, and ettsweep executes files in" in said
    assert f"(`chmod -R g-w {trained.results}`), or trust the group with --trust-group" in said
    rows = json.loads(trained.ettsweep(B, "status", "--format", "json"))
    assert [row["state"] for row in rows] == ["done"] * 2, "nothing is recorded"


def test_a_worker_refuses_a_folder_that_a_group_can_write_to_by_now(trained: Group) -> None:
    trained.results.chmod(0o2775)
    (submission,) = (trained.results / "jobs").iterdir()
    for uid, why in ((A, f"{trained.results} can be written by group {GROUP}"), (B, f"belongs to user {A}")):
        assert why in trained.python(uid, "-m", "ettsweep.worker", submission, "--slot", "cpu-0", code=2)


@pytest.mark.slow
@pytest.mark.usefixtures("trained", "undrawn")
def test_members_who_trust_their_group_extend_what_others_submit_and_a_report_says_so(tmp_path: Path) -> None:
    with shared_folder(0o2775) as group:
        group.ettsweep(A, "grid", group.grid, *LAUNCH, "--follow", "--trust-group")
        said = group.ettsweep(B, "grid", group.grid, "--seeds", "0,1", "--follow", "--trust-group")
        assert "4 of 4 runs finished" in said, said
        owners = {path.stat().st_uid for path in (group.results / "runs").glob("*/attempts/0001")}
        assert owners == {A, B}
        ettsweep("report", "--results", group.results, "--out", tmp_path / "report")
    note = "4 runs trained from folders that others could write to (--trust-group)"
    assert note in (tmp_path / "report" / "report.html").read_text()
