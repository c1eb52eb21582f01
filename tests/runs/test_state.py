"""States: derived from what a folder says, from owners and from jobs."""

import json

import pytest
from support.claims import StubLiveness, claimed, dead_process, finished, state

from ettsweep.processes import Process
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import MAX_LOST_ATTEMPTS, Owner, State, Status


def test_missing_then_queued_then_running_then_done(run: RunDir) -> None:
    assert state(run) == (State.MISSING, "")
    assert state(run, run.id) == (State.QUEUED, "")
    claimed(run)
    assert state(run, run.id) == (State.RUNNING, "")
    run.finish({"status": "done"}, [])
    assert state(run, run.id) == (State.DONE, "")
    assert run.status().progress == 1.0
    assert State.DONE.finished


def test_owner_that_died_leaves_an_interrupted_run(run: RunDir) -> None:
    attempt = claimed(run, dead_process())
    assert state(run) == (State.INTERRUPTED, "its worker died")
    assert state(run, run.id) == (State.QUEUED, "to resume")
    attempt.record_failure("interrupted", "terminated")
    assert state(run) == (State.INTERRUPTED, "terminated")


def test_cancellation_is_obeyed_before_it_is_true(run: RunDir) -> None:
    run.cancel()
    assert state(run, run.id) == (State.CANCELLED, "")
    attempt = claimed(run)
    assert state(run) == (State.RUNNING, "cancelling")
    attempt.record_failure("interrupted", "cancelled")
    assert state(run) == (State.CANCELLED, "")
    run.retry()
    assert state(run) == (State.INTERRUPTED, "cancelled")


def test_owner_on_another_machine_is_unknown(run: RunDir) -> None:
    claimed(run, Process("node7", "its boot", 1, "1"))
    assert state(run, run.id) == (State.UNKNOWN, "claimed on node7, which cannot be reached from here")
    assert run.status(StubLiveness(life="alive")).state is State.RUNNING
    assert run.status(StubLiveness(life="dead")).state is State.INTERRUPTED


def test_how_its_job_ended_says_what_became_of_a_run(run: RunDir) -> None:
    def seen(told: State, reason: str = "why") -> tuple[State, str, str]:
        status = run.status(StubLiveness(job_status=Status(told, reason, job="7_1")))
        return status.state, status.reason, status.job

    assert seen(State.INTERRUPTED) == (State.MISSING, "why", "7_1")
    assert seen(State.CANCELLED) == (State.CANCELLED, "why", "7_1")
    attempt = claimed(run, dead_process())
    assert seen(State.INTERRUPTED) == (State.INTERRUPTED, "why", "7_1")
    assert seen(State.INTERRUPTED, "")[1] == "its worker died"
    assert seen(State.QUEUED) == (State.QUEUED, "to resume; why", "7_1")
    assert seen(State.UNKNOWN) == (State.UNKNOWN, "why", "7_1")
    assert seen(State.FAILED) == (State.FAILED, "why", "7_1")
    attempt.record_failure("interrupted", "out of time or preempted")
    assert seen(State.INTERRUPTED, "") == (State.INTERRUPTED, "out of time or preempted", "7_1")
    attempt.record_failure("error", "ValueError: no")
    assert seen(State.INTERRUPTED, "")[1] == "out of time or preempted", "the first reason stands"
    attempt.events_path.unlink()
    attempt.record_failure("error", "ValueError: no")
    assert seen(State.QUEUED)[:2] == (State.FAILED, "ValueError: no")
    finished(run)
    assert seen(State.CANCELLED)[0] is State.DONE


def test_progress_is_that_of_the_lineage(run: RunDir) -> None:
    first = claimed(run, dead_process())
    assert run.status().progress == 0.0
    first.append(first.timings_path, [{"step": 6, "progress": 0.25}, {"step": 12, "progress": 0.5}])
    assert run.status().progress == 0.5
    claimed(run).record_resume(1, 12)
    assert run.status().progress == 0.5
    third = claimed(run)
    assert run.status().progress == 0.0, "it began anew"
    third.timings_path.write_text('{"step": 6, "progress": 0.25}\n{"step": 12, "prog')
    assert run.status().progress == 0.25


def test_attempts_lost_in_a_row_are_a_failure_until_retried(run: RunDir) -> None:
    owner = dead_process()
    for _ in range(MAX_LOST_ATTEMPTS - 1):
        claimed(run, owner)
        assert run.status().state is State.INTERRUPTED
    claimed(run, owner)
    text = f"{MAX_LOST_ATTEMPTS} attempts died without an error; see `ettsweep logs {run.id}`"
    assert state(run, run.id) == (State.FAILED, text)
    RunDir(run.path).attempt(MAX_LOST_ATTEMPTS).record_failure("lost", "killed by SIGKILL")
    assert state(run, run.id) == (
        State.FAILED,
        text.replace("died without an error", "got no further: killed by SIGKILL"),
    )
    run.retry()
    assert state(run) == (State.INTERRUPTED, "killed by SIGKILL")


def test_lost_attempts_that_got_further_are_bad_luck(run: RunDir) -> None:
    owner = dead_process()
    for number in range(1, 6):
        claimed(run, owner).record_resume(number - 1, 10 * number)
        assert run.status().state is State.INTERRUPTED
    for _ in range(MAX_LOST_ATTEMPTS - 2):
        claimed(run, owner).record_resume(5, 50)
        assert run.status().state is State.INTERRUPTED
    claimed(run, owner).record_resume(5, 50)
    assert run.status().state is State.FAILED, "the last ones did not"


@pytest.mark.parametrize(
    ("reason", "expected"), [("out of time or preempted", State.INTERRUPTED), ("terminated", State.FAILED)]
)
def test_an_attempt_that_ran_out_of_time_is_not_lost_and_a_terminated_one_is(
    run: RunDir, reason: str, expected: State
) -> None:
    owner = dead_process()
    claimed(run, owner)
    claimed(run, owner).record_failure("interrupted", reason)
    for _ in range(MAX_LOST_ATTEMPTS - 2):
        claimed(run, owner)
    assert run.status().state is expected


def test_an_attempt_that_was_given_up_is_dead_though_its_process_lives(run: RunDir) -> None:
    attempt = claimed(run)
    assert run.status().state is State.RUNNING
    run.retry()
    assert attempt.liveness() == "alive"
    assert state(run) == (State.INTERRUPTED, "its worker died")
    claimed(run)
    assert run.status().state is State.RUNNING, "the next attempt is not given up"


def test_requeued_attempts_do_not_count_as_lost(run: RunDir) -> None:
    """One of six in a row whose job the scheduler has requeued is its doing, and a seventh counts."""
    owner = dead_process()
    for number in range(MAX_LOST_ATTEMPTS + 1):
        attempt = claimed(run, owner)
        job = {"id": "5", "restart": number} if number < 2 else None
        attempt.claim_path.write_text(json.dumps(attempt.claim() | {"job": job}))
        expected = State.INTERRUPTED if number < MAX_LOST_ATTEMPTS else State.FAILED
        assert run.status().state is expected


def test_a_run_that_finishes_while_its_owner_is_asked_about_was_not_interrupted(run: RunDir) -> None:
    """To ask SLURM may take seconds: its job may be over by then."""

    class Slow(StubLiveness):
        def owner(self, attempt: Attempt) -> Owner:
            run.finish({"status": "done"}, [])
            return Owner("dead", "n1")

    claimed(run)
    assert run.status_and_result(Slow()) == (Status(State.DONE, "", 1.0), run.result())
