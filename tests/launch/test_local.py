"""Replacing workers that died: each slot a few times at most, and what goes wrong is said, not raised."""

import os
import signal
from pathlib import Path

import pytest
from support.commandline import wait_for

from ettsweep.files import dumps
from ettsweep.launch import local
from ettsweep.launch.local import MAX_RESPAWNS, WorkerRespawner, respawn_worker
from ettsweep.launch.submissions import Submission, VacantSlot, write_submission
from ettsweep.processes import process_identity


@pytest.fixture
def vacancy(results: Path) -> VacantSlot:
    return VacantSlot(submitted(results), "cpu-0", died=True)


def submitted(results: Path) -> Submission:
    """Write a submission to one slot."""
    return write_submission(results, {"kind": "local", "runs": [], "slots": [{"name": "cpu-0"}], "code": "/code"})


def test_a_slot_gets_a_few_workers_and_no_more(vacancy: VacantSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = list[VacantSlot]()
    monkeypatch.setattr(local, "respawn_worker", lambda vacancy: filled.append(vacancy) or True)
    replacer = WorkerRespawner(0.0)
    for _ in range(5):
        replacer.poll([vacancy])
    assert len(filled) == MAX_RESPAWNS


def test_a_worker_that_another_command_has_started_keeps_its_words_and_its_slot(vacancy: VacantSlot) -> None:
    path = vacancy.submission.report_path("cpu-0")
    report = dumps({"process": process_identity().to_json(), "claimed": True})
    path.write_text(report)
    assert respawn_worker(vacancy) is False
    assert path.read_text() == report
    assert {item.name for item in path.parent.iterdir()} == {path.name, "submission.json"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left to itself on purpose
def test_a_worker_has_its_own_session_and_log(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "snake"
    python.write_text('#!/bin/sh\necho "$@"; echo "$PYTHONPATH" >&2; exec sleep 60\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    submission = submitted(results)
    folder, pid = submission.path, local.start_worker(submission, "cpu-0").pid
    try:
        assert os.getsid(pid) == pid
        log = folder / f"{pid}_0_log.out"
        wait_for(lambda: log.read_text().count("\n") == 2, "its words")
        message, path = log.read_text().splitlines()
        assert message.split() == ["-u", "-P", "-m", "ettsweep.worker", str(folder), "--slot", "cpu-0"]
        assert path.split(":")[0] == "/code"
        assert list(folder.glob("*_log.out")) == [log]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
