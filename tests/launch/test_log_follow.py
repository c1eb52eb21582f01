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
    ended,
    ettsweep,
    runs_in,
    start,
    wait_for,
    write_fake_grid,
)
from support.slots import held, owner, stopped_at_checkpoint

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


def test_what_was_followed_is_what_is_printed_afterwards(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    for number in range(3):
        attempt = run.claim({}, after=number)
        assert attempt
        attempt.log_path.write_text(f"line {number}\n")
        attempt.record_failure("error" if number == 2 else "interrupted", f"reason {number}")
    result = ettsweep("logs", "-f", run.id, "--results", results, code=1)
    assert result.stdout == ettsweep("logs", run.id, "--results", results).stdout
    assert "== attempt 3\nline 2\nended: reason 2\n" in result.stdout
    assert f"run {run.id} is failed: reason 2" in result.stderr


def test_a_run_that_was_cancelled_ends_it_with_1(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    run.cancel()
    assert f"run {run.id} is cancelled" in ettsweep("logs", "-f", run.id, "--results", results, code=1).stderr


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


def test_one_attempt_is_not_followed(results: Path, spec: RunSpec) -> None:
    RunDir.create(results, spec)
    stderr = ettsweep("logs", "--follow", spec.run_id, "--attempt", 1, "--results", results, code=2).stderr
    assert "leave out --attempt" in stderr


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


@pytest.mark.usefixtures("process")
def test_a_queued_run_is_waited_for_and_followed_until_it_is_done(
    submit_run: Callable[[], RunDir], results: Path, tmp_path: Path
) -> None:
    output = tmp_path / "followed.txt"
    with held("cpu-0"):
        run = submit_run()
        process, observed = followed(run, results, output)
        observed(f"run {run.id} is queued")
        assert "== attempt" not in output.read_text()
    observed("step 8/24")
    assert "step 24/24" not in output.read_text()
    os.kill(owner(stopped_at_checkpoint(results)), signal.SIGCONT)
    assert process.wait(PATIENCE_S) == 0
    text = output.read_text()
    assert text.count("== attempt") == 1
    assert "step 24/24" in text
    assert text.endswith(f"run {run.id} is done\n")
    lines = ettsweep("logs", run.id, "--results", results).stdout.splitlines()
    assert set(lines) <= set(text.splitlines()), "in the order in which they came"


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


@pytest.mark.usefixtures("process")
def test_ctrl_c_ends_it_without_a_traceback_and_the_run_goes_on(
    submit_run: Callable[[], RunDir], results: Path
) -> None:
    run = submit_run()
    attempt = stopped_at_checkpoint(results)
    process = start("logs", "--follow", run.id, "--results", results)
    assert process.stdout
    assert process.stdout.readline() == "== attempt 1\n"
    process.send_signal(signal.SIGINT)
    ended_result = ended(process, 130)
    assert "interrupted; the runs go on" in ended_result.stderr
    os.kill(owner(attempt), signal.SIGCONT)
    wait_for(run.result, "the result")
