"""The log of a run, followed: lines as they come, attempts one after the other, and how it ends."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import (
    ETTSWEEP,
    FAKE,
    PATIENCE_S,
    ettsweep,
    runs_in,
    wait_for,
    write_fake_grid,
)
from support.slots import owner, stopped_at_checkpoint

from ettsweep.launch.log_follow import LogFollower, follow_log
from ettsweep.launch.progress import ProgressMonitor
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State

ONE_SLOT = ("--launch-set", "slots=1", "--launch-set", "threads=1")


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


@pytest.fixture
def submit_run(tmp_path: Path, results: Path, hold_runs: Callable[[int], None]) -> Callable[[], RunDir]:
    """Return a function that has a run submitted to a worker, and returns it; it holds at its first checkpoint."""
    hold_runs(1)

    def ask() -> RunDir:
        grid = write_fake_grid(tmp_path / "grid.yaml", run=FAKE, lr={"range": [0, 0]})
        ettsweep("grid", grid, "--results", results, *ONE_SLOT)
        (run,) = runs_in(results)
        return run

    return ask


def followed(run: RunDir, results: Path, output: Path) -> "tuple[subprocess.Popen[str], Callable[[str], Any]]":
    """Start to follow a run; return the process, and a function that waits for what it prints."""
    with output.open("w") as file:
        command = [ETTSWEEP, "logs", "-f", run.id, "--results", str(results)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True)
    return process, lambda text: wait_for(lambda: text in output.read_text(), f"{text!r} in the log")


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_it_goes_on_with_the_next_attempt(submit_run: Callable[[], RunDir], results: Path, tmp_path: Path) -> None:
    run = submit_run()
    attempt = stopped_at_checkpoint(results)
    process, observed = followed(run, results, tmp_path / "followed.txt")
    observed("== attempt 1")
    os.kill(owner(attempt), signal.SIGKILL)
    observed(f"`ettsweep retry {run.id} --results {results}` starts one")
    ettsweep("retry", run.id, "--results", results, *ONE_SLOT)
    observed("== attempt 2")
    assert process.wait(PATIENCE_S) == 0
    assert "step 24/24" in (tmp_path / "followed.txt").read_text()
