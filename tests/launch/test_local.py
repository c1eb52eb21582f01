"""Replacing workers that died: each slot a few times at most, and what goes wrong is said, not raised."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.commandline import wait_for

from ettsweep.errors import LaunchError
from ettsweep.files import dumps
from ettsweep.launch import local
from ettsweep.launch.local import MAX_RESPAWNS, WorkerRespawner, respawn_worker
from ettsweep.launch.submissions import Submission, VacantSlot, read_submission
from ettsweep.processes import process_identity


@pytest.fixture
def vacancy(tmp_path: Path) -> VacantSlot:
    return VacantSlot(submission_in(tmp_path), "cpu-0", died=True)


def submission_in(folder: Path) -> Submission:
    """Write a submission to one slot."""
    content = {"kind": "local", "runs": [], "slots": [{"name": "cpu-0"}], "code": "/code"}
    (folder / "submission.json").write_text(dumps(content))
    return read_submission(folder)


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


def test_words_come_back_where_no_worker_can_be_started(vacancy: VacantSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    path = vacancy.submission.report_path("cpu-0")
    path.write_text("{}")
    monkeypatch.setattr(local.subprocess, "Popen", refuse)
    with pytest.raises(LaunchError, match="Resource temporarily unavailable"):
        respawn_worker(vacancy)
    assert {item.name for item in path.parent.iterdir()} == {path.name, "submission.json"}, "it is replaced later"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left to itself on purpose
def test_a_worker_has_a_session_and_a_log_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "snake"
    python.write_text('#!/bin/sh\necho "$@"; echo "$PYTHONPATH" >&2; exec sleep 60\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    folder = tmp_path / "submission"
    folder.mkdir()
    pid = local.start_worker(submission_in(folder), "cpu-0").pid
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
