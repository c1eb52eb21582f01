"""Who lives and which jobs list a run: what is concluded from processes, SLURM's answers, silence and heartbeats."""

import json
import os
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import SlurmUnavailableError
from ettsweep.launch import slurm_api
from ettsweep.launch.cancellation import withdraw_jobs
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.slurm_api import ArrayTask
from ettsweep.launch.slurm_cache import QUERY_MAX_S, QUERY_MIN_S, SlurmCache, watch_heartbeats
from ettsweep.launch.submissions import Submission, submissions, write_submission
from ettsweep.processes import Life, Process, process_identity
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.state import State

ME = process_identity()
GONE = replace(ME, start_time="1")
UNSEEN = replace(ME, host="n7", boot_id="another")

RUN, OTHER = "0123456789ab", "ba9876543210"
NAME = "vit-ntk.1a2b3c4d"


@dataclass
class Cluster:
    """What stands for SLURM: what squeue and sacct tell, and how often each was asked."""

    tasks: dict[str, ArrayTask] = field(default_factory=dict)
    ended: dict[str, ArrayTask] = field(default_factory=dict)
    silence: str = ""
    no_history: str = ""
    asked: int = 0
    asked_history: list[list[str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def has(self, id_: str, state: str, name: str = NAME, **more: Any) -> None:
        self.tasks[id_] = ArrayTask(id_, name, state, **more)

    def had(self, id_: str, state: str, name: str = NAME, **more: Any) -> None:
        self.ended[id_] = ArrayTask(id_, name, state, **more)

    def queue(self, *asked: Any) -> dict[str, ArrayTask]:
        self.asked += 1
        if self.silence:
            raise SlurmUnavailableError(self.silence)
        return dict(self.tasks)

    def history(self, arrays: Collection[str]) -> dict[str, ArrayTask]:
        self.asked_history.append(list(arrays))
        if self.no_history:
            raise SlurmUnavailableError(self.no_history)
        return {id_: task for id_, task in self.ended.items() if id_.partition("_")[0] in arrays}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster called toy."""
    cluster = Cluster()
    monkeypatch.setattr(slurm_api, "queue", cluster.queue)
    monkeypatch.setattr(slurm_api, "history", cluster.history)
    monkeypatch.setattr(slurm_api, "cluster_name", lambda: "toy")
    monkeypatch.setattr(slurm_api, "cancel_jobs", lambda ids: cluster.cancelled.extend(ids))
    return cluster


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def submitted(
    results: Path,
    *runs: str,
    array: str | None = "7",
    name: str = NAME,
    submitter: Process = GONE,
    kind: str = "slurm",
    unproven: Sequence[str] = (),
    **profile: Any,
) -> Submission:
    """Write a submission; later ones are newer."""
    content = {
        "kind": kind,
        "runs": runs or (RUN,),
        "profile": {"nodes": 1, "gpus": 0, "runs_per_job": 1, **profile},
        "submitter": submitter.to_json(),
        "slots": [{"name": "cpu-0"}],
        "cluster": "toy",
        "user": str(os.getuid()),
        "name": name,
        "unproven": unproven,
    }
    submission = write_submission(results, content)
    if array:
        submission.record_array(array)
    return submission


def claimed(results: Path, owner: Process | None = UNSEEN, run: str = RUN, job: Any = None, **claim: Any) -> Attempt:
    """Write an attempt whose owner has not said how it ended."""
    attempt = RunDir(runs_dir(results) / run).attempt(1)
    attempt.path.mkdir(parents=True)
    content = claim | {"process": owner.to_json() if owner else {"pid": "x"}} | ({"job": job} if job else {})
    attempt.claim_path.write_text(json.dumps(content))
    return attempt


def by(id_: str = "7_0", restart: int = 0, cluster: str = "toy") -> dict[str, Any]:
    """Return what a claim says of its job."""
    return {"cluster": cluster, "id": id_, "restart": restart, "node": "n7"}


def look(results: Path, run: str = RUN, slurm_cache: SlurmCache | None = None) -> tuple[State, str, str]:
    job = SchedulerLiveness(results, slurm_cache).job_status(run)
    assert job
    return job.state, job.reason, job.job


# --- owners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restart", "state", "restarts", "life"),
    [
        (2, "RUNNING", 2, "alive"),
        (0, "RUNNING", 1, "dead"),  # SLURM has started the job anew: it gave up this copy
        (1, "RUNNING", 0, "alive"),  # the answer is older than the claim
        (0, "PENDING", 0, "alive"),  # so is this one: the job has started since
        (0, "COMPLETING", 0, "alive"),  # it has been told to end, and may be saving
        (0, "SUSPENDED", 0, "alive"),
        (0, "NEW_WORD_OF_SLURM", 0, "unknown"),
        (0, "OUT_OF_MEMORY", 0, "dead"),
        (0, "PREEMPTED", 0, "dead"),
        (1, "NODE_FAIL", 0, "alive"),
        (0, "", 0, "dead"),  # squeue does not list it
    ],
)
def test_an_owner_lives_as_long_as_its_life_of_the_job(
    slurm: Cluster, results: Path, restart: int, state: str, restarts: int, life: Life
) -> None:
    submitted(results)
    slurm.has("7_0" if state else "7_1", state or "RUNNING", restarts=restarts)
    owner = SchedulerLiveness(results).owner(claimed(results, job=by(restart=restart)))
    assert (owner.life, owner.host) == (life, "n7")


@pytest.mark.parametrize(("owner", "life"), [(ME, "alive"), (GONE, "dead"), (None, "dead")])
def test_a_process_in_sight_needs_no_slurm(slurm: Cluster, results: Path, owner: Process | None, life: Life) -> None:
    submitted(results)
    assert SchedulerLiveness(results).owner(claimed(results, owner, job=by())).life == life
    assert slurm.asked == 0


@pytest.mark.parametrize(
    ("place", "silence", "reason"),
    [
        ("toy", "no controller", "SLURM does not answer: no controller"),
        ("moon", "", "this machine is on cluster toy and cannot query moon"),
    ],
)
def test_a_beating_heart_proves_life_where_slurm_cannot_be_asked_and_a_still_one_nothing(
    slurm: Cluster, results: Path, place: str, silence: str, reason: str
) -> None:
    submitted(results)
    slurm.has("7_0", "CANCELLED")
    slurm.silence = silence
    attempt = claimed(results, job=by(cluster=place), heartbeat_s=10)
    clock = Clock()
    slurm_cache = SlurmCache(clock=clock)
    attempt.write_heartbeat(0)
    owner = SchedulerLiveness(results, slurm_cache).owner(attempt)
    assert (owner.life, owner.reason) == ("unknown", reason)
    attempt.write_heartbeat(1)
    assert SchedulerLiveness(results, slurm_cache).owner(attempt).life == "alive"
    clock.now_s += 1000
    assert SchedulerLiveness(results, slurm_cache).owner(attempt).life == "unknown"


# --- jobs of runs -----------------------------------------------------------------------------------------------------


RELEASE = "run `scontrol release 7_0`"
OR_REPLACE = "or `cancel` and `retry`"


@pytest.mark.parametrize(
    ("state", "reason", "expected", "told"),
    [
        ("PENDING", "Resources", State.QUEUED, "Resources, expected to start 2027-11-21 10:01:05"),
        ("RUNNING", "", State.QUEUED, "its job runs on n2"),
        ("CONFIGURING", "", State.QUEUED, "its job starts"),
        ("COMPLETING", "", State.QUEUED, "its job is ending"),
        ("REQUEUE_HOLD", "", State.HELD, f"REQUEUE_HOLD: {RELEASE}, {OR_REPLACE}"),
        ("PENDING", "JobHeldUser", State.HELD, f"JobHeldUser: {RELEASE}, {OR_REPLACE}"),
        ("PENDING", "launch failed requeued held", State.HELD, f"launch failed requeued held: {RELEASE}, {OR_REPLACE}"),
        ("PENDING", "JobHeldAdmin", State.HELD, f"JobHeldAdmin: {RELEASE} by an administrator, {OR_REPLACE}"),
        ("CANCELLED", "", State.CANCELLED, "job 7_0 was cancelled in SLURM"),
        ("OUT_OF_MEMORY", "", State.FAILED, f"job 7_0 ran out of memory; `ettsweep retry {RUN} --more-memory 8G`"),
        ("TIMEOUT", "", State.INTERRUPTED, f"job 7_0: timed out; `ettsweep retry {RUN} --more-time 3h`"),
        ("NODE_FAIL", "", State.INTERRUPTED, "job 7_0: its node failed"),
        ("FAILED", "why", State.INTERRUPTED, "job 7_0 failed (why)"),
        ("COMPLETED", "", State.INTERRUPTED, ""),
    ],
)
def test_a_job_says_whether_it_will_take_the_run_or_how_it_ended(
    slurm: Cluster, results: Path, state: str, reason: str, expected: State, told: str
) -> None:
    submitted(results, mem_gb=4, time_min=90)
    node = "" if state == "CONFIGURING" else "n2"
    slurm.has("7_0", state, reason=reason, node=node, start="2027-11-21T10:01:05")
    assert look(results) == (expected, told, "7_0")


def test_a_number_that_slurm_has_given_to_another_job_since_says_nothing(slurm: Cluster, results: Path) -> None:
    submitted(results)
    slurm.has("7_0", "CANCELLED", name="of-someone-else")
    assert look(results) == (State.INTERRUPTED, "job 7_0 has ended", "7_0")


@pytest.mark.parametrize(
    ("task", "no_history", "expected", "reason"),
    [
        ({"state": "CANCELLED"}, "", State.CANCELLED, "job 7_0 was cancelled in SLURM"),
        ({"state": "CANCELLED", "name": "of-someone-else"}, "", State.INTERRUPTED, "job 7_0 has ended"),
        ({"state": "RUNNING"}, "", State.INTERRUPTED, "job 7_0 has ended"),  # it is behind the controller for seconds
        ({}, "", State.INTERRUPTED, "job 7_0 has ended"),
        ({}, "it is disabled", State.INTERRUPTED, "job 7_0 has ended; reason unknown: it is disabled"),
    ],
)
def test_of_a_job_that_the_controller_has_forgotten_the_accounting_says_how_it_ended(
    slurm: Cluster, results: Path, task: dict[str, Any], no_history: str, expected: State, reason: str
) -> None:
    submitted(results)
    slurm.no_history = no_history
    if task:
        slurm.had("7_0", **task)
    assert look(results) == (expected, reason, "7_0")
    assert slurm.asked_history == [["7"]]


@pytest.mark.parametrize(("idle_lives", "reason"), [(5, "job 7_0 failed (why)"), (6, "without time for a single step")])
def test_a_job_without_time_for_a_step_needs_more(slurm: Cluster, results: Path, idle_lives: int, reason: str) -> None:
    submission = submitted(results, time_min=45)
    submission.report_path("0-0").write_text(json.dumps({"idle_lives": idle_lives}))
    slurm.has("7_0", "FAILED", reason="why")
    state, told, _ = look(results)
    assert state is State.INTERRUPTED
    assert reason in told
    assert told.endswith(f"`ettsweep retry {RUN} --more-time 90min`") is (idle_lives == 6)


def test_runs_are_not_started_whatever_slurm_says_of_their_jobs(slurm: Cluster, results: Path) -> None:
    *failed, last = ids = [f"{number:012x}" for number in range(4)]
    submission = submitted(results, *ids, unproven=ids)
    for run in failed:
        claimed(results, run=run, submission=submission.path.name).record_failure("error", "why")
    slurm.has("7_3", "PENDING", reason="Priority")
    status = SchedulerLiveness(results).job_status(last)
    assert status
    assert (status.state, status.is_stopped) == (State.CANCELLED, True)
    assert status.reason.startswith("not started: 3 runs failed with the same error: why;")
    assert slurm.asked == 0, "the folders tell"
    submitted(results, *ids, array="8", name="next", unproven=ids)
    slurm.has("8_3", "PENDING", name="next")
    assert look(results, last) == (State.QUEUED, "", "8_3")


@pytest.mark.parametrize(
    ("submitter", "expected"),
    [(ME, (State.QUEUED, "being submitted")), (GONE, (State.INTERRUPTED, "its submission was interrupted"))],
)
def test_a_submission_without_a_number_is_as_alive_as_its_submitter(
    slurm: Cluster, results: Path, submitter: Process, expected: tuple[State, str]
) -> None:
    submitted(results, array=None, submitter=submitter)
    slurm.has("9_0", "PENDING", name="another.1")
    assert look(results)[:2] == expected


def test_jobs_whose_submitter_did_not_live_to_record_them_are_found_by_name(slurm: Cluster, results: Path) -> None:
    submitted(results, OTHER, RUN, array=None)
    slurm.has("6_1", "RUNNING", name="another.1")
    slurm.has("8_1", "RUNNING", node="n1")
    assert look(results) == (State.QUEUED, "its job runs on n1", "8_1")
    assert look(results, OTHER) == (State.CANCELLED, "job 8_0 was cancelled in SLURM before it started", "8_0")


def test_a_job_whose_workers_all_leave_takes_no_more_runs(slurm: Cluster, results: Path) -> None:
    submission = submitted(results, gpus=2)
    slurm.has("7_0", "RUNNING", node="n1", restarts=1)
    for worker, state in (("0-0", State.QUEUED), ("0-1", State.INTERRUPTED)):
        submission.report_path(worker).write_text(json.dumps({"leaving": True, "restart": 1}))
        assert look(results)[0] is state


# --- several submissions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ("PENDING", "CANCELLED", (State.QUEUED, "7_0")),
        ("RUNNING", "PENDING", (State.QUEUED, "8_0")),
        ("SPECIAL_EXIT", "PENDING", (State.QUEUED, "8_0")),
        ("TIMEOUT", "CANCELLED", (State.CANCELLED, "8_0")),
    ],
)
def test_a_job_that_will_take_the_run_comes_first_and_then_the_newest(
    slurm: Cluster, results: Path, older: str, newer: str, expected: tuple[State, str]
) -> None:
    submitted(results, array="7", name="a.1")
    submitted(results, array="8", name="a.2")
    slurm.has("7_0", older, name="a.1")
    slurm.has("8_0", newer, name="a.2")
    state, _, job = look(results)
    assert (state, job) == expected


# --- how often SLURM is asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("silence", ["", "no controller"])
def test_slurm_is_asked_at_once_and_then_ever_more_seldom(slurm: Cluster, results: Path, silence: str) -> None:
    submitted(results)
    slurm.has("7_0", "PENDING")
    slurm.silence = silence
    clock, times = Clock(), []
    slurm_cache, start_s = SlurmCache(clock=clock), clock.now_s
    while clock.now_s - start_s <= 130:
        before = slurm.asked
        SchedulerLiveness(results, slurm_cache).job_status(RUN)
        if slurm.asked > before:
            times.append(clock.now_s - start_s)
        clock.now_s += 0.25
    assert times[0] == 0
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == [QUERY_MIN_S, 2, 4, 8, 16, QUERY_MAX_S, QUERY_MAX_S, QUERY_MAX_S]


def test_jobs_made_since_slurm_was_asked_are_asked_about_first(slurm: Cluster, results: Path) -> None:
    submission = submitted(results, array=None, submitter=ME)
    slurm_cache = SlurmCache(clock=Clock())
    assert look(results, slurm_cache=slurm_cache)[1] == "being submitted"
    submission.record_array("7")  # sbatch has answered; the job starts at once, and claims its run
    slurm.has("7_0", "RUNNING", node="n7")
    assert SchedulerLiveness(results, slurm_cache).owner(claimed(results, job=by())).life == "alive"
    assert look(results, slurm_cache=slurm_cache)[0] is State.QUEUED


# --- heartbeats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promise", "lives"),
    [
        ({"heartbeat_s": 10}, ["unknown", "unknown", "dead"]),
        ({"heartbeat_s": 0}, ["unknown"] * 3),
        ({}, ["unknown"] * 3),
    ],
)
def test_a_heart_that_promised_to_beat_is_dead_after_three_intervals_of_the_observer(
    results: Path, promise: dict[str, Any], lives: list[Life]
) -> None:
    attempt, clock = claimed(results, **promise), Clock()
    slurm_cache = SlurmCache(clock=clock)
    for after_s, life in zip((0, 29.9, 0.1), lives, strict=True):
        clock.now_s += after_s
        assert slurm_cache.heartbeat_life(attempt) == life
    assert SlurmCache(clock=clock).heartbeat_life(attempt) == "unknown", "another observer has seen nothing yet"


def test_hearts_are_watched_until_each_beat_or_stood_still(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living = claimed(results, heartbeat_s=0.05, run="a" * 12)
    claimed(results, heartbeat_s=0.05, run="b" * 12)
    claimed(results, run="c" * 12)
    counts, sleep = count(1), time.sleep

    def beat(seconds: float) -> None:
        living.write_heartbeat(next(counts))
        sleep(0.005)

    monkeypatch.setattr(time, "sleep", beat)
    runs = [RunDir(runs_dir(results) / (letter * 12)) for letter in "abcd"]
    start_s = time.monotonic()
    assert watch_heartbeats(runs) == {"a" * 12}
    assert time.monotonic() - start_s >= 3 * 0.05


# --- withdrawing ----------------------------------------------------------------------------------------------------


def cancel(results: Path, *runs: str) -> None:
    for submission in submissions(results):
        if not set(runs).isdisjoint(submission.runs):
            submission.request_withdrawal()
    for run in runs:
        folder = RunDir(runs_dir(results) / run)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.cancel()


def test_jobs_that_would_find_nothing_but_cancelled_runs_are_withdrawn(slurm: Cluster, results: Path) -> None:
    runs = [f"{number:012x}" for number in range(6)]
    submitted(results, *runs, runs_per_job=2)
    for index in range(3):
        slurm.has(f"7_{index}", "PENDING")
    cancel(results, *runs[:3])
    assert withdraw_jobs(results) == "1 waiting job withdrawn from SLURM"
    assert slurm.cancelled == ["7_0"], "the second job has a run that is still wanted"
    asked = slurm.asked
    assert (withdraw_jobs(results), slurm.asked) == ("", asked), "it is done"
    cancel(results, runs[3])
    assert withdraw_jobs(results) == "2 waiting jobs withdrawn from SLURM"
    assert slurm.cancelled == ["7_0", "7_0", "7_1"]


@pytest.mark.parametrize(
    ("id_", "state", "name"),
    [
        ("7_0", "PENDING", "of-someone-else"),  # the number was given again
        ("8_0", "PENDING", NAME),  # our name, and not the array that we know
        ("7_0", "RUNNING", NAME),  # left to its workers
    ],
)
def test_a_job_that_has_started_or_is_not_surely_ours_is_never_withdrawn(
    slurm: Cluster, results: Path, id_: str, state: str, name: str
) -> None:
    submitted(results)
    slurm.has(id_, state, name=name)
    cancel(results, RUN)
    assert withdraw_jobs(results) == ""
    assert slurm.cancelled == []


@pytest.mark.parametrize("retried", [False, True])
def test_jobs_are_withdrawn_once_slurm_answers_unless_retried(slurm: Cluster, results: Path, retried: bool) -> None:
    submitted(results)
    slurm.has("7_0", "PENDING")
    cancel(results, RUN)
    slurm.silence = "no controller"
    for _ in range(2):
        with pytest.raises(SlurmUnavailableError, match="no controller; waiting jobs of cancelled runs remain: "):
            withdraw_jobs(results)
    slurm.silence = ""
    if retried:
        RunDir(runs_dir(results) / RUN).retry()
    assert withdraw_jobs(results) == ("" if retried else "1 waiting job withdrawn from SLURM")
    assert (withdraw_jobs(results), slurm.cancelled) == ("", [] if retried else ["7_0"])


# --- SLURM's own words ----------------------------------------------------------------------------------------------


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a program on PATH which prints something."""
    slurm_api.configuration.cache_clear()
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def program(name: str, stdout: str = "", stderr: str = "", first: str = ":") -> None:
        out, err = shlex.quote(stdout), shlex.quote(stderr)
        path = folder / name
        path.write_text(f"#!/bin/sh\n{first}\nprintf %s {out}\nprintf %s {err} >&2\n")
        path.chmod(0o755)

    return program


QUEUE = """\
58_0|A|COMPLETED|None|n1|2026-11-21T10:01:01|0|
59_3|B|PENDING|Resources||2027-11-21T10:01:05|0|
61|A|PENDING|JobHeldUser||N/A|0|
59_1|B|RUNNING|None|n1|2026-11-21T10:01:05|2|
68_1|A|FAILED|NonZeroExitCode|n1|2026-11-21T10:02:17|0|
69_0|A|COMPLETING|None|n[1-2]|Unknown|1|

"""
"""As squeue prints what slurm_api.queue asks for, on a real cluster."""


def test_the_queue_is_read_as_squeue_prints_it(answers: Any) -> None:
    answers("squeue", QUEUE)
    assert list(slurm_api.queue(["0"]).values()) == [
        ArrayTask("58_0", "A", "COMPLETED", "", "n1", "2026-11-21T10:01:01", 0),
        ArrayTask("59_3", "B", "PENDING", "Resources", "", "2027-11-21T10:01:05", 0),
        ArrayTask("61", "A", "PENDING", "JobHeldUser", "", "", 0),
        ArrayTask("59_1", "B", "RUNNING", "", "n1", "2026-11-21T10:01:05", 2),
        ArrayTask("68_1", "A", "FAILED", "NonZeroExitCode", "n1", "2026-11-21T10:02:17", 0),
        ArrayTask("69_0", "A", "COMPLETING", "", "n[1-2]", "", 1),
    ]


HISTORY = """\
46_0|A|CANCELLED by 0|0:0|n1
33_7|A|FAILED|15:0|n2
75_[0-1,3,5%2]|B|CANCELLED by 1000|0:0|None assigned
46_0.batch|batch|CANCELLED|0:15|n1
82_[0,2,4,...]|B|CANCELLED by 0|0:0|None assigned
"""


def test_the_history_is_read_as_sacct_prints_it(answers: Any) -> None:
    answers("sacct", HISTORY)
    tasks = slurm_api.history(["46", "33", "75", "82"])
    assert {id_: task.state for id_, task in tasks.items()} == {
        "46_0": "CANCELLED",
        "33_7": "FAILED",
        **dict.fromkeys(["75_0", "75_1", "75_3", "75_5"], "CANCELLED"),
    }
    assert tasks["33_7"] == ArrayTask("33_7", "A", "FAILED", "exit code 15:0", "n2")


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller\n", "Unable to contact slurm controller"),
        ("sacct: error: slurm_persist_conn_open_without_init: failed to open: refused\n", "failed to open: refused"),
        ("squeue: fatal: Could not establish a configuration source\n", "Could not establish a configuration source"),
        ("sbatch: error: a\nsbatch: error: a\n\nsbatch: error: b\n", "a; b"),
    ],
)
def test_slurms_words_are_told_without_the_names_of_its_functions(stderr: str, message: str) -> None:
    assert slurm_api.clean_message(stderr) == message


def test_a_queue_that_comes_with_an_error_is_no_answer(answers: Any) -> None:
    """For a user that it does not know squeue exits with 0, and prints nothing of use."""
    answers("squeue", "\n", "squeue: error: Invalid user: nosuchuser\n")
    with pytest.raises(SlurmUnavailableError, match=r"^squeue: Invalid user: nosuchuser$"):
        slurm_api.queue(["0"])


def test_a_command_that_takes_too_long_is_no_answer(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_api, "TIMEOUT_S", 0.2)
    answers("squeue", first="exec sleep 60")
    with pytest.raises(SlurmUnavailableError, match=r"^squeue did not answer within 0 s$"):
        slurm_api.queue(["0"])


def test_variables_of_the_user_have_no_effect(answers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ignored = {"SQUEUE_STATES", "SACCT_FORMAT", "SCANCEL_INTERACTIVE", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS"}
    for name in (*ignored, "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    answers("squeue", first=f"env > {tmp_path / 'seen'}")
    slurm_api.queue(["0"])
    environment = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert environment & {*ignored, "SLURM_CONF"} == {"SLURM_CONF"}
    assert "SLURM_BITSTR_LEN" in environment, "by default lists of tasks are cut"
