"""The log of a run, followed: lines as they come, attempts one after the other, and how it ends."""

from pathlib import Path

import pytest

from ettsweep.launch import log_follow
from ettsweep.launch.log_follow import LogFollower, follow_log
from ettsweep.launch.progress import ProgressMonitor
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and wait only a moment for the last lines: the worker of these runs is this process, and lives."""
    monkeypatch.setattr(log_follow, "POLL_S", 0.01)
    monkeypatch.setattr(log_follow, "FINAL_LINES_S", 0.1)


def test_only_whole_lines_are_passed_on_each_once(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    tail = LogFollower(run)
    assert tail.read_new_lines() == tail.read_ending() == ""
    first = run.claim({}, after=0)
    assert first
    assert tail.read_new_lines() == "== attempt 1\n"
    with first.log_path.open("ab") as log:
        log.write(b"one\ntw")
        log.flush()
        assert tail.read_new_lines() == "one\n"
        log.write("o \u00e4".encode()[:-1])  # a character is cut in two
        log.flush()
        assert tail.read_new_lines() == ""
        log.write("\u00e4".encode()[1:] + b"\n")
        log.flush()
        assert tail.read_new_lines() == "two \u00e4\n"
        log.write(b"cut")
    first.record_failure("interrupted", "the slot was needed")
    assert run.claim({}, after=1)
    assert tail.read_new_lines() == "cutended: the slot was needed\n== attempt 2\n"
    assert tail.read_ending() == "(it logged nothing)\n"


def test_what_a_worker_logs_after_the_result_is_passed_on(results: Path, spec: RunSpec) -> None:
    """It ends as soon as the worker is gone, or a moment later where the worker trains on."""
    run, messages = RunDir.create(results, spec), list[str]()
    attempt = run.claim({}, after=0)  # by this process, which lives
    assert attempt
    attempt.log_path.write_text("step 1\n")
    assert run.finish({"status": "done", "score": 0.1}, [])

    def say(text: str) -> None:
        messages.append(text)
        if len(messages) == 2:
            with attempt.log_path.open("a") as log:
                log.write("finished\n")

    assert follow_log(ProgressMonitor(results, [spec]), run, say, messages.append).state is State.DONE
    assert "".join(messages) == "== attempt 1\nstep 1\nfinished\n"


def test_it_goes_on_with_the_next_attempt_which_it_says_how_to_start(results: Path, spec: RunSpec) -> None:
    run, messages, notes = RunDir.create(results, spec), list[str](), list[str]()
    first = run.claim({}, after=0)
    assert first
    first.log_path.write_text("step 1\n")
    first.record_failure("interrupted", "the slot was needed")

    def note(text: str) -> None:
        notes.append(text)
        second = run.claim({}, after=1)
        assert second
        second.log_path.write_text("step 2\n")
        assert run.finish({"status": "done", "score": 0.1}, [])

    assert follow_log(ProgressMonitor(results, [spec]), run, messages.append, note).state is State.DONE
    assert "".join(messages) == "== attempt 1\nstep 1\nended: the slot was needed\n== attempt 2\nstep 2\n"
    (told,) = notes
    assert told.endswith(f"no worker has it: `ettsweep retry {run.id}` starts one")
