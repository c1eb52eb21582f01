"""Run folders: whole files under kills, one winner among claims, states, lineages, and damaged files."""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import CorruptError, StorageError
from ettsweep.files import dumps, finite, read_json, read_lines, write_atomic
from ettsweep.processes import Life, Process, boot_id, process, start_time
from ettsweep.runs.folder import MAX_LOST_ATTEMPTS, Attempt, Owner, Prospect, RunDir, State, ThisMachine, is_run_id
from ettsweep.spec import RunSpec

SmallDisk = Callable[[str], Path]


@pytest.fixture
def run(results: Path, spec: RunSpec) -> RunDir:
    return RunDir.create(results, spec)


def claimed(run: RunDir, owner: Process | None = None) -> Attempt:
    """Claim the next attempt, in the name of another process if one is given."""
    attempt = run.claim({"device": "cpu"}, after=max(run.numbers(), default=0))
    assert attempt is not None
    if owner is not None:
        (attempt.path / "claim.json").write_text(dumps({"process": owner.to_json()}))
    return attempt


def dead_process() -> Process:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return Process(socket.gethostname(), boot_id(), child.pid, "1")


def train(attempt: Attempt, first: int, last: int, tag: str = "") -> None:
    """Append the metrics of some steps, with an evaluation every fourth step."""
    lines: list[dict[str, Any]] = []
    for step in range(first, last + 1):
        lines.append({"step": step, "loss": 1 / step, "by": tag})
        if step % 4 == 0:
            lines.append({"step": step, "val_loss": 2 / step, "by": tag})
    attempt.append(attempt.metrics_path, lines)


def finished(run: RunDir, **result: object) -> RunDir:
    claimed(run)
    assert run.finish({"status": "done", "score": 0.5} | result, [{"step": 1, "loss": 0.5}])
    return run


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


def python(script: str, *arguments: object) -> str:
    """Run a script in another process, since this one may have threads, and return what it prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


# --- files --------------------------------------------------------------------------------------------------

REWRITE_UNDER_KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from ettsweep.files import write_atomic

path, rng, seen = Path(sys.argv[1]), random.Random(0), set()
contents = [letter * 300_000 for letter in (b"a", b"b")]
write_atomic(path, contents[0])
for _ in range(60):
    pid = os.fork()
    if pid == 0:
        while True:
            for content in contents:
                write_atomic(path, content)
    time.sleep(rng.uniform(0.001, 0.015))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    seen.add(contents.index(path.read_bytes()))
print(len(seen))
"""


def test_file_is_the_old_or_the_new_one_after_a_kill_at_any_instant(tmp_path: Path) -> None:
    assert python(REWRITE_UNDER_KILLS, tmp_path / "file") == "2\n", "both contents were met"


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def half(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("the writer broke")

    with pytest.raises(RuntimeError):
        write_atomic(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.rglob("*file*")) == [path]


def test_exclusive_write_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_atomic(path, "first", exclusive=True)
    assert not write_atomic(path, "second", exclusive=True)
    assert path.read_text() == "first"
    assert list(tmp_path.rglob("*file*")) == [path]


RACE = """
import os, sys
from pathlib import Path
from ettsweep.files import write_atomic
from ettsweep.rundir import RunDir

def race(act):
    '''Let 12 processes act at once; return how many had their way.'''
    ready, go = os.pipe(), os.pipe()
    pids = []
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            os.close(go[1])
            os.write(ready[1], b".")
            os.read(go[0], 1)  # returns in all of them when the parent closes its end
            os._exit(1 if act() else 0)
        pids.append(pid)
    got = 0
    while got < 12:
        got += len(os.read(ready[0], 12))
    os.close(go[1])
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)

folder = Path(sys.argv[1])
for number in range(20):
    path = folder / f"file-{number}"
    assert race(lambda: write_atomic(path, str(os.getpid()), exclusive=True)) == 1
run = RunDir(folder / "0123456789ab")
for number in range(20):
    assert race(lambda: run.claim({}, after=number)) == 1
print(run.numbers() == list(range(1, 21)), len(list((run.path / "attempts").iterdir())))
"""


def test_one_of_many_processes_wins_each_file_and_each_claim(tmp_path: Path) -> None:
    assert python(RACE, tmp_path) == "True 20\n"


def test_cut_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3')
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"step": 2}')
    assert read_lines(path) == [{"step": 1}], "a line counts once it has its end"


@pytest.mark.parametrize("broken", ["{nonsense}", "[2]", "", "\x00\x00"])
def test_nothing_is_read_after_a_broken_line(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{broken}\n{{"step": 3}}\n')
    assert read_lines(path) == [{"step": 1}]
    assert read_lines(tmp_path / "none") == []


def test_json_never_holds_nan() -> None:
    line = {"step": 3, "loss": float("nan"), "grad_norm": float("-inf"), "lr": 0.5}
    assert finite(line) == {"step": 3, "loss": None, "grad_norm": None, "lr": 0.5, "nonfinite": True}
    assert finite({"step": 3, "loss": 1e308}) == {"step": 3, "loss": 1e308}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"loss": float("nan")})


def test_only_ids_become_paths() -> None:
    assert is_run_id("0123456789ab")
    for name in ("0123456789AB", "0123456789a", "0123456789abc", "../456789abcd", "", "0123456789a\n"):
        assert not is_run_id(name), name


# --- owners -------------------------------------------------------------------------------------------------


def test_this_process_is_alive_and_survives_json() -> None:
    me = process()
    assert me.pid == os.getpid()
    assert me.liveness() == "alive"
    assert Process.from_json(json.loads(dumps(me.to_json()))) == me


def test_running_and_ended_and_unreaped_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = process(child.pid)
    assert owner.liveness() == "alive"
    child.kill()
    deadline_s = time.monotonic() + 10
    while owner.liveness() == "alive" and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert owner.liveness() == "dead", "it waits for its parent, but will not write again"
    child.communicate()
    assert owner.liveness() == "dead"
    assert start_time(child.pid) is None


def test_reused_pid_is_another_process() -> None:
    me = process()
    assert Process(me.host, me.boot_id, me.pid, f"{me.start_time}0").liveness() == "dead"


def test_processes_of_other_boots_and_machines() -> None:
    me = process()
    assert Process(me.host, "another boot", me.pid, me.start_time).liveness() == "dead"
    assert Process("elsewhere", "another boot", me.pid, me.start_time).liveness() == "unknown"
    assert Process("renamed", me.boot_id, me.pid, me.start_time).liveness() == "alive"


def test_a_process_number_of_another_namespace_says_nothing() -> None:
    me = process()
    assert replace(me, namespace="pid:[1]").liveness() == "unknown"
    gone = replace(me, namespace="pid:[1]", boot_id="another boot")
    assert gone.liveness() == "dead", "no container outlives its machine"
    without = {key: value for key, value in me.to_json().items() if key != "namespace"}
    older = Process.from_json(without)
    assert older is not None
    assert (older.namespace, older.liveness()) == ("", "alive")


@pytest.mark.parametrize("data", [None, [], {"host": "a"}, {**process().to_json(), "pid": "many"}])
def test_claim_that_names_no_process_is_dead(run: RunDir, data: object) -> None:
    assert Process.from_json(data) is None
    attempt = claimed(run)
    (attempt.path / "claim.json").write_text(dumps({"process": data}))
    assert attempt.liveness() == "dead"
    assert attempt.host() == "an unreadable claim"


# --- claims -------------------------------------------------------------------------------------------------


def test_claim_holds_what_it_was_given_and_the_process(run: RunDir) -> None:
    attempt = run.claim({"device": "cpu"}, after=0)
    assert attempt is not None
    assert attempt.number == 1
    assert attempt.claim()["device"] == "cpu"
    assert Process.from_json(attempt.claim()["process"]) == process()
    latest = run.latest()
    assert latest is not None
    assert latest.number == 1


def test_second_claim_of_the_same_attempt_fails_and_leaves_nothing(run: RunDir) -> None:
    first = claimed(run)
    token = first.claim()["token"]
    assert run.claim({}, after=0) is None
    assert first.claim()["token"] == token
    assert temporaries(run.path) == []


def test_attempt_knows_when_it_is_superseded(run: RunDir) -> None:
    first = claimed(run)
    assert not first.superseded()
    second = claimed(run)
    assert first.superseded()
    assert not second.superseded()
    assert run.numbers() == [1, 2]


def test_creating_a_run_twice_keeps_its_spec(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    before = run.spec_path.stat()
    assert RunDir.create(results, spec).path == run.path == results / "runs" / spec.run_id
    assert run.spec_path.stat().st_ino == before.st_ino
    assert run.spec() == spec


# --- states -------------------------------------------------------------------------------------------------


class Look(ThisMachine):
    """An outlook that says what a test wants it to say of every run, or asks this machine."""

    def __init__(self, *queued: str, life: Life | None = None, prospect: Prospect | None = None) -> None:
        self.queued, self.life, self.told = queued, life, prospect

    def owner(self, attempt: Attempt) -> Owner:
        return Owner(self.life, "n1") if self.life else super().owner(attempt)

    def prospect(self, run_id: str) -> Prospect | None:
        return Prospect(State.QUEUED) if run_id in self.queued else self.told


def state(run: RunDir, *queued: str) -> tuple[State, str]:
    status = run.status(Look(*queued))
    return status.state, status.reason


def test_missing_then_queued_then_running_then_done(run: RunDir) -> None:
    assert state(run) == (State.MISSING, "")
    assert state(run, run.id) == (State.QUEUED, "")
    claimed(run)
    assert state(run, run.id) == (State.RUNNING, "")
    run.finish({"status": "done"}, [])
    assert state(run, run.id) == (State.DONE, "")
    assert run.status().progress == 1.0
    assert State.DONE.finished


def test_diverged_is_finished_and_says_where(run: RunDir) -> None:
    finished(run, status="diverged", diverged_step=17)
    assert state(run) == (State.DIVERGED, "at step 17")
    assert State.DIVERGED.finished


def test_owner_that_died_leaves_an_interrupted_run(run: RunDir) -> None:
    attempt = claimed(run, dead_process())
    assert state(run) == (State.INTERRUPTED, "its worker died")
    assert state(run, run.id) == (State.QUEUED, "to be resumed")
    attempt.fail("interrupted", "terminated")
    assert state(run) == (State.INTERRUPTED, "terminated")


def test_failure_is_kept_even_while_its_worker_lives_and_is_queued(run: RunDir) -> None:
    claimed(run).fail("error", "ValueError: no", "Traceback ...")
    assert state(run, run.id) == (State.FAILED, "ValueError: no")
    assert not State.FAILED.finished


def test_interruption_recorded_by_a_living_worker_is_over(run: RunDir) -> None:
    claimed(run).fail("interrupted", "terminated")
    assert state(run) == (State.INTERRUPTED, "terminated")


def test_cancellation_is_obeyed_before_it_is_true(run: RunDir) -> None:
    run.cancel()
    assert state(run, run.id) == (State.CANCELLED, "")
    attempt = claimed(run)
    assert state(run) == (State.RUNNING, "cancelling")
    attempt.fail("interrupted", "cancelled")
    assert state(run) == (State.CANCELLED, "")
    run.retry()
    assert state(run) == (State.INTERRUPTED, "cancelled")


def test_owner_on_another_machine_is_unknown(run: RunDir) -> None:
    claimed(run, Process("node7", "its boot", 1, "1"))
    assert state(run, run.id) == (State.UNKNOWN, "claimed on node7, which cannot be asked from here")
    assert run.status(Look(life="alive")).state is State.RUNNING
    assert run.status(Look(life="dead")).state is State.INTERRUPTED


def test_how_its_job_ended_says_what_became_of_a_run(run: RunDir) -> None:
    def seen(told: State, reason: str = "why") -> tuple[State, str, str]:
        status = run.status(Look(prospect=Prospect(told, reason, "7_1")))
        return status.state, status.reason, status.job

    assert seen(State.INTERRUPTED) == (State.MISSING, "why", "7_1")
    assert seen(State.CANCELLED) == (State.CANCELLED, "why", "7_1")
    attempt = claimed(run, dead_process())
    assert seen(State.INTERRUPTED) == (State.INTERRUPTED, "why", "7_1")
    assert seen(State.INTERRUPTED, "")[1] == "its worker died"
    assert seen(State.QUEUED) == (State.QUEUED, "to be resumed; why", "7_1")
    assert seen(State.UNKNOWN) == (State.UNKNOWN, "why", "7_1")
    assert seen(State.FAILED) == (State.FAILED, "why", "7_1")
    attempt.fail("interrupted", "out of time or preempted")
    assert seen(State.INTERRUPTED, "") == (State.INTERRUPTED, "out of time or preempted", "7_1")
    attempt.fail("error", "ValueError: no")
    assert seen(State.INTERRUPTED, "")[1] == "out of time or preempted", "the first reason stands"
    (attempt.path / "failure.json").unlink()
    attempt.fail("error", "ValueError: no")
    assert seen(State.QUEUED)[:2] == (State.FAILED, "ValueError: no")
    finished(run)
    assert seen(State.CANCELLED)[0] is State.DONE


def test_attempts_that_the_scheduler_ended_are_not_lost(run: RunDir) -> None:
    owner = dead_process()
    for restart in range(MAX_LOST_ATTEMPTS + 2):
        numbers = run.numbers()
        job = {"cluster": "c", "id": "5_0", "restart": restart}
        attempt = run.claim({"job": job}, after=numbers[-1] if numbers else 0)
        assert attempt is not None
        claim = attempt.claim() | {"process": owner.to_json()}
        (attempt.path / "claim.json").write_text(json.dumps(claim))
        assert run.status().state is State.INTERRUPTED


def test_progress_is_that_of_the_lineage(run: RunDir) -> None:
    first = claimed(run, dead_process())
    assert run.status().progress == 0.0
    first.append(first.timings_path, [{"step": 6, "progress": 0.25}, {"step": 12, "progress": 0.5}])
    assert run.status().progress == 0.5
    claimed(run).resume_from(1, 12)
    assert run.status().progress == 0.5
    third = claimed(run)
    assert run.status().progress == 0.0, "it began anew"
    third.timings_path.write_text('{"step": 6, "progress": 0.25}\n{"step": 12, "prog')
    assert run.status().progress == 0.25


# --- lost attempts ------------------------------------------------------------------------------------------


def test_attempts_lost_in_a_row_are_a_failure_until_retried(run: RunDir) -> None:
    owner = dead_process()
    for _ in range(MAX_LOST_ATTEMPTS - 1):
        claimed(run, owner)
        assert run.status().state is State.INTERRUPTED
    claimed(run, owner)
    what = f"{MAX_LOST_ATTEMPTS} attempts died without a word; see `ettsweep logs {run.id}`"
    assert state(run, run.id) == (State.FAILED, what)
    run.retry()
    assert state(run) == (State.INTERRUPTED, "its worker died")
    for _ in range(MAX_LOST_ATTEMPTS - 1):
        claimed(run, owner)
        assert run.status().state is State.INTERRUPTED
    claimed(run, owner)
    assert run.status().state is State.FAILED


def test_lost_attempts_that_got_further_are_bad_luck(run: RunDir) -> None:
    owner = dead_process()
    for number in range(1, 6):
        claimed(run, owner).resume_from(number - 1, 10 * number)
        assert run.status().state is State.INTERRUPTED
    for _ in range(MAX_LOST_ATTEMPTS - 2):
        claimed(run, owner).resume_from(5, 50)
        assert run.status().state is State.INTERRUPTED
    claimed(run, owner).resume_from(5, 50)
    assert run.status().state is State.FAILED, "the last ones did not"


def written_parts(attempt: Attempt, step: int) -> Path:
    folder = attempt.parts_folder(step)
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"weights")
    return folder


def test_parts_count_from_the_moment_that_they_are_named_and_the_ones_before_go(run: RunDir) -> None:
    attempt = run.claim({}, after=0)
    assert attempt is not None
    first = written_parts(attempt, 4)
    assert (attempt.has_checkpoint(), attempt.unfinished_checkpoints()) == (False, [first])
    attempt.save_parts(4, {"run": run.id})
    assert (attempt.has_checkpoint(), attempt.unfinished_checkpoints()) == (True, [])
    second = written_parts(attempt, 12)
    assert attempt.checkpoints() == [attempt.parts_path, first, second]
    assert attempt.unfinished_checkpoints() == [second]
    attempt.save_parts(12, {"run": run.id})
    assert attempt.checkpoints() == [attempt.parts_path, second]
    assert read_json(attempt.parts_path) == {"step": 12, "run": run.id}


def test_parts_that_the_next_owner_may_be_reading_stay(run: RunDir) -> None:
    attempt = run.claim({}, after=0)
    assert attempt is not None
    first = written_parts(attempt, 4)
    attempt.save_parts(4, {})
    second = written_parts(attempt, 8)
    assert run.claim({}, after=1) is not None
    attempt.save_parts(8, {})
    assert attempt.checkpoints() == [attempt.parts_path, first, second]


@pytest.mark.parametrize("parts", [False, True])
def test_lost_attempt_with_a_checkpoint_of_its_own_got_further(run: RunDir, parts: bool) -> None:
    owner = dead_process()
    for _ in range(MAX_LOST_ATTEMPTS):
        attempt = claimed(run, owner)
    assert run.status().state is State.FAILED
    if parts:
        attempt.save_parts(4, {})
    else:
        attempt.save_checkpoint(lambda path: path.touch())
    assert run.status().state is State.INTERRUPTED


def test_an_attempt_that_said_why_it_ended_is_not_lost(run: RunDir) -> None:
    owner = dead_process()
    claimed(run, owner)
    claimed(run, owner).fail("interrupted", "terminated")
    for _ in range(MAX_LOST_ATTEMPTS - 1):
        claimed(run, owner)
    assert run.status().state is State.INTERRUPTED


# --- history ------------------------------------------------------------------------------------------------


def test_history_is_stitched_along_the_lineage(run: RunDir) -> None:
    first, second, third = claimed(run), claimed(run), claimed(run)
    train(first, 1, 10, "first")
    second.resume_from(1, 6)
    train(second, 7, 12, "second")
    third.resume_from(2, 8)
    train(third, 9, 11, "third")
    with third.metrics_path.open("a") as file:
        file.write('{"step": 12, "lo')
    lines = [(line["step"], line["by"], "loss" in line) for line in third.history()]
    assert lines == [
        *((step, "first", True) for step in (1, 2, 3, 4)),
        (4, "first", False),
        *((step, "first", True) for step in (5, 6)),
        *((step, "second", True) for step in (7, 8)),
        (8, "second", False),
        *((step, "third", True) for step in (9, 10, 11)),
    ]
    assert [line["step"] for line in third.history(until=5)] == [1, 2, 3, 4, 4, 5]
    assert [line["by"] for line in second.history(until=8)][-3:] == ["second"] * 3


def test_attempt_of_another_lineage_is_left_out(run: RunDir) -> None:
    first, second, third = claimed(run), claimed(run), claimed(run)
    train(first, 1, 4, "first")
    train(second, 1, 8, "second")
    third.resume_from(1, 3)
    train(third, 4, 4, "third")
    assert {line["by"] for line in third.history()} == {"first", "third"}


@pytest.mark.parametrize(
    "steps",
    [[2, 3, 4], [1, 3, 4], [1, 2, 2, 3, 4], [1, 3, 3, 4], [1, 3, 2, 4], [1, 2, 3], []],
    ids=["start", "hole", "twice", "hole and twice", "order", "end", "all"],
)
def test_missing_steps_are_noticed(run: RunDir, steps: list[int]) -> None:
    attempt = claimed(run)
    attempt.append(attempt.metrics_path, [{"step": s, "loss": 1.0} for s in steps])
    with pytest.raises(CorruptError, match="steps are missing before step 4") as error:
        attempt.history(until=4)
    assert str(attempt.metrics_path) in str(error.value)


def test_lineage_with_a_cut_parent_is_noticed(run: RunDir) -> None:
    first, second = claimed(run), claimed(run)
    train(first, 1, 6)
    second.resume_from(1, 6)
    train(second, 7, 8)
    assert len(second.history()) == 8 + 2
    content = first.metrics_path.read_text().splitlines(keepends=True)
    first.metrics_path.write_text("".join(content[:-1]))
    with pytest.raises(CorruptError, match="steps are missing before step 6"):
        second.history()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"attempt": 2, "step": 3}', '{"attempt": "1", "step": 3}'])
def test_unreadable_resume_is_a_fresh_start(run: RunDir, content: str) -> None:
    claimed(run)
    second = claimed(run)
    (second.path / "resume.json").write_text(content)
    assert second.resumed_from() == (0, 0)


# --- results ------------------------------------------------------------------------------------------------


def test_first_result_stays(run: RunDir) -> None:
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None, "nonfinite": True}]
    assert run.finish({"status": "done", "score": 0.25}, history)
    before = run.result_path.read_bytes(), run.metrics_path.read_bytes()
    assert not run.finish({"status": "done", "score": 0.75}, [])
    assert (run.result_path.read_bytes(), run.metrics_path.read_bytes()) == before
    result = run.result()
    assert result is not None
    assert (result["run"], result["score"]) == (run.id, 0.25)
    assert run.history() == history


def test_retry_keeps_a_sound_result(run: RunDir) -> None:
    finished(run)
    before = run.result_path.read_bytes()
    run.retry()
    assert run.result_path.read_bytes() == before
    assert state(run) == (State.DONE, "")


def test_retry_forgives_a_failure_between_metrics_and_result(run: RunDir) -> None:
    attempt = claimed(run)
    write_atomic(run.metrics_path, '{"step": 1, "loss": 0.5}\n')  # the disk was full when the result came
    attempt.fail("error", "disk full")
    assert run.status().state is State.FAILED
    run.retry()
    assert run.status().state is State.INTERRUPTED
    assert run.metrics_path.exists(), "nothing is wrong with them"


def test_an_attempt_that_was_given_up_is_dead_though_its_process_lives(run: RunDir) -> None:
    attempt = claimed(run)
    assert run.status().state is State.RUNNING
    run.retry()
    assert attempt.liveness() == "alive"
    assert state(run) == (State.INTERRUPTED, "its worker died")
    claimed(run)
    assert run.status().state is State.RUNNING, "the next attempt is not given up"


DAMAGED_RESULTS: dict[str, Callable[[RunDir], object]] = {
    "cut": lambda run: run.result_path.write_text(run.result_path.read_text()[:20]),
    "empty": lambda run: run.result_path.write_text(""),
    "list": lambda run: run.result_path.write_text("[]"),
    "other run": lambda run: run.result_path.write_text('{"run": "0123456789ab", "status": "done"}'),
    "status": lambda run: run.result_path.write_text(dumps({"run": run.id, "status": "great"})),
    "no diverged step": lambda run: run.result_path.write_text(dumps({"run": run.id, "status": "diverged"})),
}


@pytest.mark.parametrize("damage", DAMAGED_RESULTS)
def test_damaged_result_is_named_and_retry_trains_again(run: RunDir, damage: str) -> None:
    finished(run)
    DAMAGED_RESULTS[damage](run)
    with pytest.raises(CorruptError) as error:
        run.result()
    assert str(run.result_path) in str(error.value)
    assert f"`ettsweep retry {run.id}` trains it again" in str(error.value)
    assert state(run) == (State.FAILED, str(error.value))
    run.retry()
    assert not run.result_path.exists()
    assert not run.metrics_path.exists()
    assert not run.status().state.finished


@pytest.mark.parametrize("damage", ["edited", "cut", "gone"])
def test_damaged_metrics_are_named_and_retry_trains_again(run: RunDir, damage: str) -> None:
    finished(run)
    if damage == "gone":
        run.metrics_path.unlink()
    else:
        text = run.metrics_path.read_text()
        run.metrics_path.write_text(text.replace("0.5", "0.4") if damage == "edited" else text[:-3])
    with pytest.raises(CorruptError) as error:
        run.history()
    assert str(run.metrics_path) in str(error.value)
    assert f"`ettsweep retry {run.id}` trains it again" in str(error.value)
    run.retry()
    assert not run.status().state.finished


def edited(spec: RunSpec, **changes: object) -> str:
    return dumps(json.loads(spec.model_dump_json()) | changes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lambda spec: edited(spec)[:40], "no valid JSON"),
        (lambda spec: "[1]", "not a JSON object"),
        (lambda spec: edited(spec, lr=-1), "lr: input should be greater than 0, got -1"),
        (lambda spec: edited(spec, dropout=0.1), "dropout: unknown key"),
        (lambda spec: edited(spec, lr=spec.lr * 2), "edited by hand"),
        (None, "is missing"),
    ],
    ids=["cut", "list", "illegal", "unknown key", "other run", "gone"],
)
def test_damaged_spec_is_named(
    run: RunDir, spec: RunSpec, content: Callable[[RunSpec], str] | None, expected: str
) -> None:
    run.spec_path.unlink()
    if content is not None:
        run.spec_path.write_text(content(spec))
    with pytest.raises(CorruptError, match=expected) as error:
        run.spec()
    assert str(run.spec_path) in str(error.value)
    assert "the command that asked for the run writes it anew" in str(error.value)
    assert RunDir.create(run.path.parent.parent, spec).spec() == spec


def edited_result(run: RunDir, **changes: object) -> None:
    content = json.loads(run.result_path.read_text()) | changes
    run.result_path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"score": 0.001},
        {"score": "0.5"},
        {"score": math.nan},
        {"best_loss": None},
        {"more": 1},
        {"sha256": "0"},
        {"sha256": None},
        {"score": math.nan, "sha256": None},
    ],
    ids=str,
)
def test_a_result_edited_by_hand_is_not_believed(run: RunDir, changes: dict[str, object]) -> None:
    run.finish({"status": "done", "score": 0.5, "best_loss": 0.5}, [{"step": 1, "loss": 1.0}])
    edited_result(run)
    assert run.status().state is State.DONE, "the same content in another layout is the same result"
    edited_result(run, **changes)
    with pytest.raises(CorruptError, match=f"ettsweep retry {run.id}") as error:
        run.result()
    assert str(run.result_path) in str(error.value)
    assert run.status().state is State.FAILED


def test_a_live_process_of_another_container_is_unknown(run: RunDir) -> None:
    me = process()
    assert me.liveness() == "alive"
    assert replace(me, namespace="pid:[1]").liveness() == "unknown"
    attempt = claimed(run, replace(me, namespace="pid:[1]"))
    assert run.status().state is State.UNKNOWN
    run.retry()
    assert attempt.retried()
    assert run.status().state is State.INTERRUPTED, "a person has given the claim up"


def test_reading_what_is_not_there_is_told_apart_from_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(CorruptError, match="cannot be read"):
        read_json(tmp_path / "folder.json")


def test_damaged_failure_is_a_failure(run: RunDir) -> None:
    attempt = claimed(run)
    (attempt.path / "failure.json").write_text("{")
    assert run.status().state is State.FAILED
    assert str(attempt.path / "failure.json") in run.status().reason


def test_log_tells_how_an_attempt_ended(run: RunDir) -> None:
    attempt = claimed(run)
    assert attempt.log() == "(it logged nothing)\n"
    attempt.log_path.write_bytes(b"step 1\n\xff\n")
    attempt.fail("error", "ValueError: no")
    assert attempt.log() == "step 1\n\N{REPLACEMENT CHARACTER}\nended: ValueError: no\n"


# --- storage ------------------------------------------------------------------------------------------------


def test_results_folder_below_a_file_is_refused(tmp_path: Path, spec: RunSpec) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory") as error:
        RunDir.create(tmp_path / "file" / "results", spec)
    assert str(tmp_path / "file") in str(error.value)


def test_read_only_folder_says_what_would_help(small_disk: SmallDisk, spec: RunSpec) -> None:
    disk = small_disk("1m")
    run = RunDir.create(disk, spec)
    attempt = claimed(run)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    attempts: list[Callable[[], object]] = [
        lambda: RunDir.create(disk / "other", spec),
        lambda: run.claim({}, after=1),
        lambda: attempt.append(attempt.metrics_path, [{"step": 1}]),
        lambda: attempt.fail("error", "no"),
        lambda: run.finish({"status": "done"}, []),
        run.cancel,
        run.retry,
    ]
    for act in attempts:
        with pytest.raises(StorageError, match=r"cannot be written .*--results or ETTSWEEP_RESULTS"):
            act()
    assert run.status().state is State.RUNNING, "reading needs no writing"


def test_full_disk_keeps_the_old_file_and_says_what_would_help(small_disk: SmallDisk, spec: RunSpec) -> None:
    disk = small_disk("96k")
    run = RunDir.create(disk, spec)
    attempt = claimed(run)
    path = attempt.path / "file"
    write_atomic(path, "old")
    full = r"the disk is full; free some space \(`ettsweep clean`"
    with pytest.raises(StorageError, match=full) as error:
        write_atomic(path, bytes(200_000))
    assert str(path) in str(error.value)
    assert path.read_text() == "old"
    assert temporaries(disk) == []
    with pytest.raises(StorageError, match=full):
        attempt.append(attempt.metrics_path, [{"step": step, "loss": 1.0} for step in range(10_000)])
    with pytest.raises(StorageError, match=full):
        run.claim({}, after=1)
    assert temporaries(disk) == []
    assert run.numbers() == [1]
    steps = [line["step"] for line in read_lines(attempt.metrics_path)]
    assert steps == list(range(len(steps))), "whole lines are still read"
