"""Which runs a worker may start, by what those that its submission has started have left: one, all, or none."""

from dataclasses import replace
from pathlib import Path

import pytest

from ettsweep.files import dumps
from ettsweep.launch.first_runs import PATIENCE_S, Gate, read_first_runs
from ettsweep.launch.submissions import Submission, write_submission
from ettsweep.processes import Process, process_identity
from ettsweep.runs.folder import RunDir, runs_dir

ME = process_identity()
UNSEEN = replace(ME, host="n7", boot_id="another")
IDS = tuple(f"{number:012x}" for number in range(6))
ALL, STOPPED = list(range(len(IDS))), [-1]


class Worker:
    """A worker of a submission, by a clock that a test sets."""

    def __init__(self, submission: Submission) -> None:
        self.now_s = 1000.0
        self._submission, self.gate = submission, Gate(submission, lambda: self.now_s)

    def may_start(self, after_s: float = 0.0) -> list[int]:
        """Return the numbers of the runs that it may start, if nobody has them; `STOPPED` if no more are to start."""
        self.now_s += after_s
        self.gate.look()
        runs = self._submission.run_dirs(IDS)
        allowed = [number for number, run in enumerate(runs) if self.gate.may_start(run)]
        stopped = [self.gate.is_stopped(run) for run in runs]
        assert not (allowed and any(stopped))
        return STOPPED if all(stopped) else allowed


def submitted(results: Path, **content: object) -> Submission:
    """Write a submission of runs whose family has finished none."""
    unproven = [*IDS, "../x", 3]
    return write_submission(results, {"kind": "local", "runs": IDS, "unproven": unproven, "sweeps": ["lr"]} | content)


@pytest.fixture
def submission(results: Path) -> Submission:
    return submitted(results)


@pytest.fixture
def worker(submission: Submission) -> Worker:
    return Worker(submission)


def start(submission: Submission, number: int, *, step: int = 0, attempt: int = 1, owner: Process = ME) -> RunDir:
    """Have a run be started for a submission, with metrics up to a step."""
    run = RunDir(runs_dir(submission.results) / IDS[number])
    started = run.attempt(attempt)
    started.path.mkdir(parents=True)
    started.claim_path.write_text(dumps({"process": owner.to_json(), "submission": submission.path.name}))
    if step:
        started.append(started.metrics_path, [{"step": step, "loss": 1.0}])
    return run


def fail(
    submission: Submission, number: int, why: str = "exit code 1: why", *, step: int = 0, attempt: int = 1
) -> None:
    run = start(submission, number, step=step, attempt=attempt)
    code = int(why.split(":")[0].removeprefix("exit code ")) if why.startswith("exit code") else None
    run.attempt(attempt).record_failure("error", why, exit_code=code)


def test_one_run_starts_first_and_the_others_wait_for_its_first_metric(submission: Submission, worker: Worker) -> None:
    assert worker.may_start() == [0]
    run = start(submission, 0)
    assert worker.may_start() == [0]
    assert read_first_runs(submission).wait_reason == f"waits for the first metric of run {IDS[0]}"
    run.attempt(1).append(run.attempt(1).metrics_path, [{"step": 1, "loss": 1.0}])
    assert worker.may_start() == ALL
    assert not read_first_runs(submission).wait_reason


def test_they_wait_a_minute_at_most_wherever_the_first_one_is(submission: Submission, worker: Worker) -> None:
    assert worker.may_start() == [0]
    assert worker.may_start(PATIENCE_S) == ALL, "its job has not started"
    start(submission, 0, owner=UNSEEN)
    later = Worker(submission)
    assert later.may_start() == later.may_start(PATIENCE_S - 1) == [0], "a worker that starts later waits as long"
    assert later.may_start(1) == ALL


def test_after_a_failure_the_next_run_starts_and_after_three_alike_none(submission: Submission, worker: Worker) -> None:
    lines = "no /data/{0}/x7 at 0x7f{0}a, lr 1e-0{0}", "no /data/12/x1 at 0x8, lr 0.5", "no /data/9/b2 at 3, lr 2"
    for number, line in enumerate(lines):
        assert worker.may_start() == [number]
        fail(submission, number, f"exit code 1: {line.format(3)}", step=number)
    assert worker.may_start() == worker.may_start(PATIENCE_S) == STOPPED
    assert read_first_runs(submission).stop_reason == (
        "not started: 3 runs failed with the same error: exit code 1: no /data/3/x7 at 0x7f3a, lr 1e-03; "
        f"see `ettsweep logs {IDS[0]}`, then `ettsweep retry --sweep lr`"
    )


@pytest.mark.parametrize("lines", [["exit code 1: a", "exit code 2: a"], ["a", "b"]])
def test_runs_that_fail_in_other_ways_stop_nothing(submission: Submission, worker: Worker, lines: list[str]) -> None:
    for number in range(4):
        fail(submission, number, lines[number % 2])
    assert worker.may_start() == ALL


def test_a_run_that_gets_further_than_those_that_failed_lets_all_start(submission: Submission, worker: Worker) -> None:
    for number in range(3):
        fail(submission, number, step=50)
    run = start(submission, 3, step=50)
    assert worker.may_start() == STOPPED, "it may fail as the others did"
    run.attempt(1).append(run.attempt(1).metrics_path, [{"step": 51, "loss": 1.0}])
    assert worker.may_start() == ALL


def test_runs_that_were_interrupted_or_cancelled_did_not_fail(submission: Submission, worker: Worker) -> None:
    for number in range(3):
        start(submission, number).attempt(1).record_failure("interrupted", "preempted")
    assert worker.may_start() == [0], "the first one is resumed first"
    RunDir(runs_dir(submission.results) / IDS[0]).cancel()
    assert worker.may_start() == [1]


def test_a_submission_stays_stopped_and_another_one_counts_anew(submission: Submission, worker: Worker) -> None:
    """Jobs of the first that start late would train with the memory that was too little."""
    for number in range(3):
        fail(submission, number)
    again = submitted(submission.results)
    other = Worker(again)
    assert (worker.may_start(), other.may_start()) == (STOPPED, [0])
    fail(again, 0, attempt=2)
    assert (worker.may_start(), other.may_start()) == (STOPPED, [1])
    assert "4 runs failed" in read_first_runs(submission, again).stop_reason, "those of all rounds of a command"
    start(again, 1, step=3, attempt=2)
    assert (worker.may_start(), other.may_start()) == (STOPPED, ALL)


def test_runs_of_a_family_that_has_finished_one_neither_wait_nor_stop(results: Path) -> None:
    submission = submitted(results, unproven=[])
    for number in range(3):
        fail(submission, number)
    assert Worker(submission).may_start() == ALL
