"""A results folder of a group (setgid, umask 002): what one member executes or writes to is never another's to choose.

Two users that exist nowhere else share a group; root starts processes in their names.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commandline import write_fake_grid

from ettsweep.launch.executors import CHECK_OWNER, check_owner
from ettsweep.ownership import tree_problem
from ettsweep.runs.attempt import Attempt

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

    def mine(self, uid: int, name: str) -> Path:
        """Return a file of a user that others cannot write."""
        path = self.folder / f"home-{uid}" / name
        path.write_text("precious")
        os.chown(path, uid, GROUP)
        path.chmod(0o644)
        return path


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
        probe = [*become(A), "sh", "-c", 'exec "$0" -c "import torch"', sys.executable]
        if subprocess.run(probe, capture_output=True, cwd=folder).returncode:
            pytest.skip("other users cannot run this Python")
        yield group
    finally:
        shutil.rmtree(folder)


REPLACE = """
import json, os, sys
from pathlib import Path
folder, evil = Path(sys.argv[1]), sys.argv[2]
content = json.loads((folder / "submission.json").read_text()) | {"code": evil}
folder.rename(folder.with_name("aside"))
folder.mkdir()
(folder / "submission.json").write_text(json.dumps(content))
"""

PLANT = """
import os, sys
from pathlib import Path
attempt, target = Path(sys.argv[1]), sys.argv[2]
try:
    (attempt / "log.txt").unlink()
except PermissionError:
    print("refused")
attempt.rename(attempt.with_name("aside"))
attempt.mkdir()
for name in ("heartbeat", "log.txt", "metrics.jsonl", "checkpoint.pt"):
    (attempt / name).symlink_to(target)
"""

WRITE = """
import contextlib, sys
from pathlib import Path
from ettsweep.errors import OwnershipError
from ettsweep.ownership import tree_problem
from ettsweep.runs.attempt import Attempt
attempt = Attempt(Path(sys.argv[1]), 1)
writes = [
    lambda: attempt.write_heartbeat(1),
    lambda: attempt.log("text"),
    lambda: attempt.append(attempt.metrics_path, [{"step": 1}]),
    lambda: attempt.save_checkpoint(lambda path: path.write_bytes(b"weights")),
    lambda: attempt.record_failure("error", "reason"),
]
for write in writes:
    try:
        write()
    except OwnershipError as error:
        print(error)
"""


@pytest.mark.slow
def test_members_extend_read_and_judge_what_others_submit(group: Group) -> None:
    group.ettsweep(A, "grid", "--grid", group.grid, *LAUNCH, "--follow")
    said = group.ettsweep(B, "grid", "--grid", group.grid, "--seeds", "0,1", "--follow")
    assert "4 of 4 runs finished" in said, said
    for uid in (A, B):
        rows = json.loads(group.ettsweep(uid, "status", "--format", "json"))
        assert [row["state"] for row in rows] == ["done"] * 4
        group.ettsweep(uid, "verify-optimum", "--dry-run", code=None)
        group.ettsweep(uid, "report", "--out", group.folder / f"home-{uid}" / "report", code=None)
    owners = {path.stat().st_uid for path in (group.results / "runs").glob("*/attempts/0001")}
    assert owners == {A, B}
    writable = [
        path
        for part in ("jobs", "code")
        for path in (group.results / part).glob("*/**/*")
        if path.name == "submission.json" or "code" in path.parts
        if path.stat().st_mode & 0o022
    ]
    assert writable == [], "others can change what is executed"
    assert len({path.stat().st_uid for path in (group.results / "code").iterdir()}) == 2, "each has code of their own"


@pytest.mark.slow
def test_a_submission_that_another_member_replaced_is_not_executed(group: Group) -> None:
    group.ettsweep(A, "grid", "--grid", group.grid, *LAUNCH, "--follow")
    submission, mark = group.submission(), group.folder / f"home-{A}" / "mark"
    write = "import sys; open(sys.argv[1], 'a').close()"
    with pytest.raises(AssertionError, match="PermissionError"):
        group.python(B, "-c", write, submission / "submission.json")
    evil = group.folder / f"home-{B}" / "evil"
    (evil / "ettsweep").mkdir(parents=True)
    (evil / "ettsweep" / "__init__.py").write_text(f"open({str(mark)!r}, 'w')\n")
    group.python(B, "-c", REPLACE, submission, evil)
    said = group.python(A, "-m", "ettsweep.worker", submission, "--slot", "cpu-0", code=1)
    assert f"belongs to user {B}" in said
    assert not mark.exists()


def test_links_that_another_member_laid_are_not_written_through(group: Group) -> None:
    claim = (
        "import sys; from pathlib import Path; from ettsweep.runs.folder import RunDir\n"
        "run = RunDir(Path(sys.argv[1])); run.attempts_path.mkdir(parents=True)\n"
        "attempt = run.claim({}, after=0); attempt.log('text'); print(attempt.path)"
    )
    run = group.results / "runs" / "0123456789ab"
    attempt = Path(group.python(A, "-c", claim, run).strip())
    retry = "import sys; from pathlib import Path; from ettsweep.runs.folder import RunDir; RunDir(Path(sys.argv[1])).retry()"
    group.python(B, "-c", retry, run)
    assert Attempt(run, 1).is_retried(), "what a member may ask for lies beside the attempt"
    precious = group.mine(A, "precious")
    assert group.python(B, "-c", PLANT, attempt, precious) == "refused\n", "an attempt is its owner's alone"
    said = group.python(A, "-c", WRITE, run)
    assert said.count(f"belongs to user {B}") == 5, said
    assert precious.read_text() == "precious"
    assert sorted(path.name for path in attempt.iterdir()) == ["checkpoint.pt", "heartbeat", "log.txt", "metrics.jsonl"]


SUBMIT = """
import json, sys
from pathlib import Path
from ettsweep.launch.submissions import Submission
from ettsweep.runs.folder import RunDir
from ettsweep.study.grid_file import load_sweep_spec
results, uid = Path(sys.argv[1]), sys.argv[3]
runs = [RunDir.create(results, spec) for spec in load_sweep_spec(Path(sys.argv[2]), [], []).specs()]
content = {"kind": "slurm", "runs": [run.id for run in runs], "user": uid, "name": "a"}
(results / "jobs").mkdir(exist_ok=True)
folder = results / "jobs" / "000001-0123abcd"
folder.mkdir(0o755)
(folder / "submission.json").write_text(json.dumps(content))
print(runs[0].id)
"""


def test_a_member_cancels_runs_whose_jobs_are_anothers(group: Group) -> None:
    run = group.python(A, "-c", SUBMIT, group.results, group.grid, A).strip()
    said = group.ettsweep(B, "cancel", run)
    assert "1 run cancelled" in said
    assert f"waiting jobs of user {A} stay until a command of theirs" in said
    assert (group.results / "runs" / run / "cancel.json").exists()
    withdraw = "import sys; from pathlib import Path; from ettsweep.launch.cancellation import withdraw_jobs\n"
    withdraw += "print([withdraw_jobs(Path(sys.argv[1])), len([*Path(sys.argv[1], 'jobs').glob('*.withdraw-*')])])"
    assert group.python(B, "-c", withdraw, group.results) == "['', 2]\n", "left to who may"


def test_code_that_another_member_laid_in_the_way_is_not_executed(group: Group) -> None:
    take = "import sys; from pathlib import Path; from ettsweep.launch.code_snapshot import take_snapshot\n"
    take += "print(take_snapshot(Path(sys.argv[1])))"
    theirs = Path(group.python(B, "-c", take, group.results).strip())
    mine = Path(group.python(A, "-c", take, group.results).strip())
    assert mine == theirs.with_name(f"{theirs.name}-{A}")
    assert (theirs.stat().st_uid, mine.stat().st_uid) == (B, A)
    assert Path(group.python(A, "-c", take, group.results).strip()) == mine
    shutil.rmtree(mine)
    theirs.rename(mine)
    theirs.mkdir()
    os.chown(theirs, B, GROUP)
    with pytest.raises(AssertionError, match=f"OwnershipError.*belongs to user {B}"):
        group.python(A, "-c", take, group.results)


@pytest.mark.slow
def test_a_profile_in_which_another_member_runs_commands_is_not_taken(group: Group) -> None:
    sweep = group.results / "sweeps" / "small"
    group.ettsweep(A, "grid", "--grid", group.grid, *LAUNCH, "--follow")
    first = sweep / "0001.yaml"
    assert first.stat().st_mode & 0o022 == 0
    text = first.read_text().replace("launch: local", "launch: slurm")
    text = text.replace("launch_set:", "launch_set:\n  - setup=[touch /tmp/x]")
    copy = f"import sys; from pathlib import Path; Path({str(sweep / '0002.yaml')!r}).write_text(sys.argv[1])"
    group.python(B, "-c", copy, text)
    for command in (("grid", "--grid", group.grid), ("verify-optimum",)):
        said = group.ettsweep(A, *command, code=2)
        assert f"0002.yaml: belongs to user {B}, and its launch profile runs commands (setup)" in said
        assert "--launch" in said
    theirs = group.mine(A, "theirs.yaml")
    theirs.write_text("kind: slurm\nsetup: [touch /tmp/x]\n")
    os.chown(theirs, B, GROUP)
    by_file = copy.replace("0002", "0003")
    group.python(B, "-c", by_file, first.read_text().replace("launch: local", "launch: theirs.yaml"))
    said = group.ettsweep(A, "grid", "--grid", group.grid, code=2)
    assert f"0003.yaml: belongs to user {B}, and its launch profile runs commands (theirs.yaml)" in said


def add_link(code: Path) -> None:
    (code / "ettsweep" / "link.py").symlink_to("x.py")


def give_away(code: Path) -> None:
    os.chown(code / "ettsweep", B, GROUP)


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        (lambda code: None, True),
        (lambda code: (code / "ettsweep" / "x.py").chmod(0o664), False),
        (lambda code: code.chmod(0o2775), False),
        (add_link, False),
        (give_away, False),
        (shutil.rmtree, False),
    ],
    ids=["private", "a file of the group", "a folder of the group", "a link", "a folder of another", "gone"],
)
def test_a_job_starts_only_from_code_that_is_its_users_alone(
    tmp_path: Path, change: Callable[[Path], None], starts: bool
) -> None:
    code = tmp_path / "a b"
    (code / "ettsweep").mkdir(parents=True)
    (code / "ettsweep" / "x.py").touch(0o644)
    change(code)
    script = CHECK_OWNER.format(path=shlex.quote(str(code))) + "\necho started"
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout
    assert (said == "started\n") is starts
    assert bool(tree_problem(code)) is not (starts or not code.exists())


@pytest.mark.parametrize("kept", [(os.geteuid() + 1, True), (os.geteuid(), False)], ids=["owner", "mode"])
def test_a_job_is_not_refused_where_the_file_system_keeps_no_owners_or_modes(
    tmp_path: Path, kept: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some SMB and sshfs mounts, which show one owner or mode for all files."""
    assert len(check_owner(tmp_path / "code")) == len(check_owner(tmp_path / "none" / "code")) == 1
    monkeypatch.setattr("ettsweep.ownership._kept_by", lambda folder, device: kept)
    assert check_owner(tmp_path / "code") == []


@pytest.mark.slow
def test_a_job_starts_while_others_compile_its_code(tmp_path: Path) -> None:
    script = CHECK_OWNER.format(path=shlex.quote(str(tmp_path))) + "\necho started"
    ended = threading.Event()

    def compile_modules(job: int) -> None:
        while not ended.is_set():
            for module in range(20):
                temporary = tmp_path / f"{module}.pyc.{job}"
                temporary.touch(0o644)
                temporary.replace(tmp_path / f"{module}.pyc")

    threads = [threading.Thread(target=compile_modules, args=[job]) for job in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            said = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout
            assert said == "started\n"
    finally:
        ended.set()
        for thread in threads:
            thread.join()
