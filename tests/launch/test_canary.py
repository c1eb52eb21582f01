"""Which runs may begin, by what those that a submission has begun have left: one, all, or none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.claims import claimed, finished
from support.fake import FakeRecipe

from ettsweep.files import dumps
from ettsweep.launch.canary import PATIENCE_S, Canaries, read_outlook
from ettsweep.launch.follow import _without_hopeless
from ettsweep.launch.submissions import Submission, next_name, read_submission
from ettsweep.processes import Process, process_identity
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import LocalLiveness
from ettsweep.study.plan import make_plan

ME = process_identity()
GONE = replace(ME, start_time="1")
UNSEEN = replace(ME, host="n7", boot_id="another")
IDS = tuple(f"{number:012x}" for number in range(8))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def submission(results: Path) -> Submission:
    """Return a submission of runs that share a canary."""
    return submitted(results)


def submitted(results: Path) -> Submission:
    folder = results / "jobs" / next_name(results)
    folder.mkdir(parents=True)
    (folder / "submission.json").write_text(json.dumps({"kind": "local", "runs": IDS, "canaries": [IDS]}))
    return read_submission(folder)


def begun(
    submission: Submission,
    number: int,
    *,
    step: int = 0,
    failure: str = "",
    exit_code: int | None = None,
    owner: Process = ME,
    attempt: int = 1,
) -> RunDir:
    """Have a run be begun for a submission, with metrics up to a step, and maybe fail."""
    run = RunDir(runs_dir(submission.results) / IDS[number])
    begun = run.attempt(attempt)
    begun.path.mkdir(parents=True)
    begun.claim_path.write_text(dumps({"process": owner.to_json(), "submission": submission.path.name}))
    if step:
        begun.append(begun.metrics_path, [{"step": step, "loss": 1.0}])
    if failure:
        begun.record_failure("error", failure, exit_code=exit_code)
    return run


def may_begin(submission: Submission, clock: Clock | None = None, canaries: Canaries | None = None) -> list[int]:
    """Return the numbers of the runs that a worker may begin, by what it sees now."""
    canaries = canaries or Canaries(submission, clock or Clock())
    canaries.look()
    runs = submission.run_dirs(IDS)
    allowed = [number for number, run in enumerate(runs) if canaries.may_begin(run)]
    held = [number for number, run in enumerate(runs) if canaries.is_held_back(run)]
    assert not (allowed and held)
    return allowed or [-1] * bool(held)


ALL, NONE, HELD = list(range(len(IDS))), list[int](), [-1]


def test_at_first_one_run_may_begin_and_then_none_until_there_is_news_of_it(submission: Submission) -> None:
    assert may_begin(submission) == [0]
    run = begun(submission, 0)
    assert may_begin(submission) == NONE
    run.attempt(1).append(run.attempt(1).metrics_path, [{"step": 1, "loss": 1.0}])
    assert may_begin(submission) == ALL


def test_one_that_has_finished_says_that_all_are_well(submission: Submission) -> None:
    for number in (1, 2, 3):
        begun(submission, number, failure="exit code 1: why")
    assert may_begin(submission) == HELD
    begun(submission, 4).finish({"status": "diverged", "diverged_step": 3}, [])
    assert may_begin(submission) == ALL


def test_one_that_a_retry_has_finished_says_so_too(submission: Submission) -> None:
    for number in (0, 1, 2):
        begun(submission, number, failure="exit code 1: why")
    (folder := submission.path.parent / next_name(submission.results)).mkdir()
    (folder / "submission.json").write_text(json.dumps({"kind": "local", "runs": [IDS[0]], "canaries": []}))
    run = begun(read_submission(folder), 0, attempt=2, step=1)
    assert may_begin(submission) == HELD, "it may fail as before"
    run.finish({"status": "diverged", "diverged_step": 3}, [])
    assert may_begin(submission) == ALL


def test_after_a_failure_the_next_run_goes_ahead_and_after_three_alike_none(submission: Submission) -> None:
    for number in range(3):
        assert may_begin(submission) == [number]
        begun(submission, number, step=number, failure=f"exit code 1: no {IDS[number]}/data after {number} s")
    assert may_begin(submission) == HELD
    assert read_outlook(submission, IDS, LocalLiveness()).held_back == (
        f"held back: the first 3 runs failed alike: exit code 1: no {IDS[0]}/data after 0 s; "
        f"see `ettsweep logs {IDS[0]}`, then `ettsweep retry`"
    )


@pytest.mark.parametrize("failures", [[("exit code 1: a", 1), ("exit code 2: a", 2)], [("a", None), ("b", None)]])
def test_runs_that_fail_for_other_reasons_do_not_fail_alike(
    submission: Submission, failures: list[tuple[str, int | None]]
) -> None:
    for number in range(4):
        reason, exit_code = failures[number % 2]
        begun(submission, number, failure=reason, exit_code=exit_code)
    assert may_begin(submission) == [4]


def test_one_that_gets_further_than_those_that_failed_shows_that_runs_can(submission: Submission) -> None:
    for number in range(3):
        begun(submission, number, step=50, failure="exit code 1: the loss is nan")
    run = begun(submission, 3, step=50)
    assert may_begin(submission) == NONE, "it may fail as the others did"
    run.attempt(1).append(run.attempt(1).metrics_path, [{"step": 51, "loss": 1.0}])
    assert may_begin(submission) == ALL


def test_a_canary_whose_worker_has_died_goes_ahead_again(submission: Submission) -> None:
    begun(submission, 0, owner=GONE)
    assert may_begin(submission) == [0]


def test_a_canary_that_is_not_heard_of_holds_nobody_up_for_ever(submission: Submission) -> None:
    begun(submission, 0, owner=UNSEEN)  # on a node that may be gone
    canaries = Canaries(submission, clock := Clock())
    assert may_begin(submission, canaries=canaries) == NONE
    clock.now_s += PATIENCE_S - 1
    assert may_begin(submission, canaries=canaries) == NONE
    clock.now_s += 1
    assert may_begin(submission, canaries=canaries) == ALL
    begun(submission, 5)
    assert may_begin(submission, canaries=canaries) == ALL, "another worker has begun another run"


def test_a_job_waits_for_the_first_run_of_another_job_but_not_for_ever(submission: Submission) -> None:
    """Its own run is the last: the first is that of a job that may not have started."""
    canaries = Canaries(submission, clock := Clock())
    assert may_begin(submission, canaries=canaries) == [0]
    clock.now_s += PATIENCE_S
    assert may_begin(submission, canaries=canaries) == ALL
    for number in range(3):
        begun(submission, number, failure="exit code 1: why")
    assert may_begin(submission, canaries=canaries) == HELD


def test_where_three_failed_alike_and_others_train_without_a_word_one_at_a_time_begins(submission: Submission) -> None:
    """Their scores may come at their ends; or their node is gone."""
    begun(submission, 3, owner=UNSEEN)
    for number in range(3):
        begun(submission, number, failure="exit code 1: why")
    canaries = Canaries(submission, clock := Clock())
    assert may_begin(submission, canaries=canaries) == NONE
    assert not read_outlook(submission, IDS, LocalLiveness()).held_back
    clock.now_s += PATIENCE_S
    assert may_begin(submission, canaries=canaries) == [4]
    begun(submission, 4)
    assert may_begin(submission, canaries=canaries) == NONE, "it has some time too"
    submission.run_dirs(IDS)[4].attempt(1).record_failure("error", "exit code 1: why")
    assert may_begin(submission, canaries=canaries) == [5]
    begun(submission, 5, failure="exit code 1: why")
    begun(submission, 6, failure="exit code 1: why")
    assert may_begin(submission, canaries=canaries) == HELD
    assert "held back: the first 6 runs failed alike" in read_outlook(submission, IDS, LocalLiveness()).held_back


def test_a_submission_is_held_back_for_ever_and_another_one_begins_anew(submission: Submission) -> None:
    """Jobs of the first that start late would train with the memory that was too little."""
    runs = [begun(submission, number, failure="exit code 1: why") for number in range(3)]
    for run in runs:
        run.retry()
    again = submitted(submission.results)
    assert (may_begin(submission), may_begin(again)) == (HELD, [0])
    begun(again, 0, step=3, attempt=2)
    assert (may_begin(submission), may_begin(again)) == (HELD, ALL)


def test_runs_that_die_without_a_word_fail_alike_too(submission: Submission) -> None:
    for number in range(3):
        for attempt in range(1, 7):
            begun(submission, number, owner=GONE, attempt=attempt)
    assert may_begin(submission) == HELD


def test_runs_without_a_group_need_no_canary(results: Path) -> None:
    folder = results / "jobs" / next_name(results)
    folder.mkdir(parents=True)
    (folder / "submission.json").write_text(json.dumps({"kind": "local", "runs": IDS, "canaries": [["../x"], 3]}))
    assert may_begin(read_submission(folder)) == ALL


@pytest.mark.parametrize("finished_runs", [0, 1])
def test_a_family_that_has_finished_a_run_is_not_given_up(
    results: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: int
) -> None:
    monkeypatch.setattr(FakeRecipe, "has_canary", True)
    recipe = FakeRecipe()
    specs = [RunSpec.of(recipe, StrategySpec(s=None), 2.0**-i, 0.5, 0) for i in range(5)]
    for spec in specs[:3]:
        claimed(RunDir.create(results, spec)).record_failure("error", "exit code 1: why")
    for spec in specs[3 : 3 + finished_runs]:
        finished(RunDir.create(results, spec))
    run_index, notes = load_run_index(results), list[str]()
    plan = _without_hopeless(make_plan(specs, run_index), run_index, notes.append)
    assert bool(plan.to_launch) == bool(finished_runs) == (not notes)
