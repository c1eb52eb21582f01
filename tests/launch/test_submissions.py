"""Submissions on disk: which workers live, what they list, and what may be damaged."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import CorruptError
from ettsweep.launch.outlook import LiveOutlook
from ettsweep.launch.profiles import LocalProfile
from ettsweep.launch.submissions import read_submission
from ettsweep.processes import Process, process
from ettsweep.rundir import State


def live_workers(folder: Path) -> list[Process]:
    return read_submission(folder).live_workers()


def queued_runs(results: Path) -> set[str]:
    prospect = LiveOutlook(results).prospect("0123456789ab")
    return {"0123456789ab"} if prospect and prospect.state is State.QUEUED else set()


# --- live workers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def submission(results: Path) -> Callable[..., Path]:
    """Return a function that writes the submission of one run to two slots, as its command would."""

    def make(submitter: Process | None, *workers: Process) -> Path:
        folder = results / "jobs" / "20260101-000000-00000000"
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "runs": ["0123456789ab"],
            "slots": [asdict(slot) for slot in LocalProfile(slots=2).resolve()],
            "submitter": submitter.to_json() if submitter else None,
        }
        (folder / "submission.json").write_text(json.dumps(content))
        if workers:
            (folder / "workers.json").write_text(json.dumps({"workers": [worker.to_json() for worker in workers]}))
        return folder

    return make


def says(folder: Path, slot: str, worker: Process, leaving: bool = False) -> None:
    content = {"process": worker.to_json(), "leaving": leaving}
    (folder / f"worker-{slot}.json").write_text(json.dumps(content))


ME = process()
GONE = replace(ME, start_time="1")
UNSEEN = replace(ME, host="node7", boot_id="another")


def test_a_submission_lives_while_its_command_is_starting_workers(submission: Any, results: Path) -> None:
    assert live_workers(submission(ME)) == [ME, ME]
    assert queued_runs(results) == {"0123456789ab"}
    assert live_workers(submission(GONE)) == []
    assert live_workers(submission(None)) == []
    assert queued_runs(results) == set()


def test_jobs_speak_for_workers_that_have_not_started(submission: Any) -> None:
    assert live_workers(submission(ME, GONE, GONE)) == [], "whoever submitted them is not asked any more"
    assert live_workers(submission(GONE, ME, GONE)) == [ME]


def test_a_worker_that_has_started_speaks_for_itself(submission: Any) -> None:
    folder = submission(GONE, ME, ME)
    says(folder, "cpu-0", GONE)
    assert live_workers(folder) == [ME]
    folder = submission(GONE, GONE, GONE)
    says(folder, "cpu-0", ME)
    assert live_workers(folder) == [ME]


def test_a_worker_that_cannot_be_seen_may_live(submission: Any) -> None:
    assert live_workers(submission(GONE, UNSEEN, GONE)) == [UNSEEN]


def test_a_worker_that_is_leaving_takes_no_more_runs(submission: Any, results: Path) -> None:
    folder = submission(ME, ME, ME)
    says(folder, "cpu-0", ME, leaving=True)
    assert live_workers(folder) == [ME]
    says(folder, "cpu-1", ME, leaving=True)
    assert live_workers(folder) == []
    assert queued_runs(results) == set()
    says(folder, "cpu-0", ME)
    assert queued_runs(results) == {"0123456789ab"}, "it found one after all"


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"process": 3}', '{"process": {"pid": 1}}'])
def test_what_a_worker_wrote_may_be_damaged(submission: Any, damage: str) -> None:
    folder = submission(GONE, GONE, ME)
    (folder / "worker-cpu-0.json").write_text(damage)
    assert live_workers(folder) == [ME]


@pytest.mark.parametrize("damage", [None, "{", '{"runs": ["../../etc"]}', "{}", '{"runs": [], "kind": "cloud"}'])
def test_a_damaged_submission_has_no_workers(submission: Any, results: Path, damage: str | None) -> None:
    path = submission(ME) / "submission.json"
    path.unlink()
    if damage is not None:
        path.write_text(damage)
    with pytest.raises(CorruptError):
        read_submission(path.parent)
    assert queued_runs(results) == set()
