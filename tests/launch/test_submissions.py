"""Submissions on disk: which workers live, what they list, and what may be damaged."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ettsweep.errors import CorruptError, SlurmUnavailableError
from ettsweep.launch import slurm_api
from ettsweep.launch.cleanup import find_waste, remove
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slurm_api import ArrayTask
from ettsweep.launch.submissions import Submission, next_name, read_submission, submission_folders, write_submission
from ettsweep.processes import Life, Process, process_identity
from ettsweep.runs.folder import RunDir, runs_dir

RUN = "0123456789ab"
ME = process_identity()
GONE = replace(ME, start_time="1")
UNSEEN = replace(ME, host="node7", boot_id="another")


def test_the_newest_submission_has_the_highest_number_whatever_clocks_say(results: Path) -> None:
    for name in ("000001-ffffffff", "000009-00000000", "1000000-00000000", "notes"):
        (results / "jobs" / name).mkdir(parents=True)
    names = [folder.name for folder in submission_folders(results)]
    assert names == ["notes", "000001-ffffffff", "000009-00000000", "1000000-00000000"]
    assert next_name(results).startswith("1000001-")
    assert next_name(results / "none").startswith("000001-")


# --- live workers ---------------------------------------------------------------------------------------------------


def here(results: Path, submitter: Process | None, *workers: Process) -> Submission:
    """Write the submission of one run to two slots or more, as its command would."""
    slots = [asdict(slot) for slot in LocalProfile(slots=max(2, len(workers))).resolve_slots()]
    content = {"runs": [RUN], "slots": slots, "submitter": submitter.to_json() if submitter else None}
    submission = write_submission(results, content)
    if workers:
        submission.record_workers(workers)
    return submission


def says(submission: Submission, slot: str, worker: Process, **more: bool) -> None:
    submission.report_path(slot).write_text(json.dumps({"process": worker.to_json(), **more}))


def vacant(submission: Submission) -> dict[str, bool]:
    """Return the vacant slots, each with whether its worker died."""
    return {v.slot: v.died for v in submission.vacant_slots()}


def test_a_submission_lives_while_its_command_is_starting_workers(results: Path) -> None:
    for submitter, live in ((GONE, []), (None, []), (ME, [ME, ME])):
        assert here(results, submitter).live_workers() == live
        assert (SchedulerLiveness(results).job_status(RUN) is not None) is bool(live)


def test_a_worker_that_has_started_speaks_for_itself(results: Path) -> None:
    for started, says_it_is in ((ME, GONE), (GONE, ME)):
        submission = here(results, GONE, started, started)
        says(submission, "cpu-0", says_it_is)
        assert submission.live_workers() == [ME]


def test_a_slot_is_vacant_where_its_worker_is_dead_and_another_lives(results: Path) -> None:
    assert vacant(here(results, GONE, ME, ME)) == {}
    assert vacant(here(results, GONE, GONE, GONE)) == {}, "its runs are nobody's, and are submitted again"
    submission = here(results, GONE, GONE, ME)
    assert vacant(submission) == {"cpu-0": False}, "it never said a word"
    says(submission, "cpu-0", GONE)
    assert vacant(submission) == {"cpu-0": False}, "it has claimed nothing: the next would do no better"
    says(submission, "cpu-0", GONE, claimed=True)
    assert vacant(submission) == {"cpu-0": True}
    says(submission, "cpu-0", GONE, claimed=True, leaving=True)
    assert vacant(submission) == {"cpu-0": False}, "it was done, or told to end"
    says(submission, "cpu-0", GONE, claimed=True)
    says(submission, "cpu-1", ME, leaving=True)
    assert vacant(submission) == {}, "soon none is left"


def test_no_more_slots_are_vacant_than_runs_wait(results: Path) -> None:
    says(here(results, GONE, GONE, GONE, ME), "cpu-1", GONE, claimed=True)
    liveness = SchedulerLiveness(results)
    assert [v.slot for v in liveness.vacant_slots([RUN])] == ["cpu-1"], "where one died first"
    assert liveness.vacant_slots([]) == liveness.vacant_slots(["ba9876543210"]) == []


@pytest.mark.parametrize("damaged", ["{", '{"runs": ["../../etc"]}'])
def test_a_damaged_submission_has_no_workers(results: Path, damaged: str) -> None:
    submission = here(results, ME)
    (submission.path / "submission.json").write_text(damaged)
    with pytest.raises(CorruptError):
        read_submission(submission.path)
    assert SchedulerLiveness(results).job_status(RUN) is None


# --- SLURM ----------------------------------------------------------------------------------------------------------


RUNS = [f"{number:012x}" for number in range(7)]


def on_slurm(
    results: Path,
    array: str | None = None,
    submitter: Process | None = GONE,
    cluster: str = "toy",
    **profile: int,
) -> Submission:
    """Write a submission to SLURM, as its command would."""
    content = {
        "kind": "slurm",
        "runs": RUNS,
        "profile": {"gpus": 0, "nodes": 1, "runs_per_job": 1} | profile,
        "submitter": submitter.to_json() if submitter else None,
        "cluster": cluster,
        "user": "1000",
        "name": "vit-ntk.1a2b3c4d",
    }
    submission = write_submission(results, content)
    if array:
        submission.record_array(array)
    return submission


@pytest.mark.parametrize("per_job", [2, 7])
def test_each_run_belongs_to_one_task_in_order(results: Path, per_job: int) -> None:
    submission = on_slurm(results, runs_per_job=per_job)
    tasks = [submission.task_runs(index) for index in range(-(-7 // per_job))]
    assert [run for task in tasks for run in task] == RUNS
    assert [submission.task_index(run) for run in RUNS] == [index for index, task in enumerate(tasks) for _ in task]
    assert all(len(task) == per_job for task in tasks[:-1])
    assert submission.task_runs(len(tasks)) == ()


def test_the_number_of_the_array_is_recorded_once_by_whoever_knows_it_first(results: Path) -> None:
    submission = on_slurm(results)
    assert submission.array_id() is None
    submission.record_array("12")
    submission.record_array("13")
    assert submission.array_id() == read_submission(submission.path).array_id() == "12"
    assert [path.name for path in submission.path.glob(".*")] == [], "nothing is left behind"


@pytest.mark.parametrize(("submitter", "life"), [(ME, "alive"), (UNSEEN, "unknown"), (None, "dead")])
def test_a_submission_is_being_made_until_its_number_is_known_or_its_command_gives_up(
    results: Path, submitter: Process | None, life: Life
) -> None:
    submission = on_slurm(results, submitter=submitter)
    assert submission.submitter_life() == life
    submission.record_unanswered()
    assert submission.submitter_life() == "dead"
    submission = on_slurm(results, submitter=submitter, array="12")
    assert submission.submitter_life() == "dead"


def test_a_task_is_as_far_as_all_its_workers_in_this_life_of_the_job(results: Path) -> None:
    submission = on_slurm(results, nodes=2, gpus=1)
    for first, second, saved, leaving in (
        ({}, {"saved": True}, False, False),
        ({"leaving": True}, {"saved": True}, True, False),
        ({"leaving": True}, {"leaving": True}, True, True),
        ({"leaving": True, "restart": 0}, {"leaving": True}, False, False),
    ):
        for rank, messages in enumerate((first, second)):
            submission.report_path(f"3-{rank}").write_text(json.dumps({"restart": 1} | messages))
        assert (submission.all_saved(3, 1), submission.all_leaving(3, 1)) == (saved, leaving)
        assert not submission.all_saved(2, 1)


def test_the_last_words_of_a_worker_are_its_own(results: Path) -> None:
    submission = on_slurm(results)
    assert submission.last_output() == f"no output, as if killed (all output: {submission.path})"
    log = submission.path / "12_0_0_log.out"
    log.write_text("starting\nno GPU here\nsrun: error: n1: task 0: Exited\nslurmstepd: error: x\n\n")
    assert submission.last_output() == f"no GPU here (full output: {log})"


# --- what is cleaned up ---------------------------------------------------------------------------------------------


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, ArrayTask]:
    """Return what squeue tells, for a test to fill."""
    collected: dict[str, ArrayTask] = {}
    monkeypatch.setattr(slurm_api, "queue", lambda *asked: dict(collected))
    monkeypatch.setattr(slurm_api, "history", lambda arrays: {})
    monkeypatch.setattr(slurm_api, "cluster_name", lambda: "toy")
    return collected


def finish(results: Path, *runs: str) -> None:
    for run in runs:
        folder = runs_dir(results) / run
        folder.mkdir(parents=True, exist_ok=True)
        assert RunDir(folder).finish({"status": "done"}, [])


def cleaned(results: Path) -> set[str]:
    """Clean up and return the names of what is gone of the submissions."""
    before = {path.name for path in submission_folders(results)}
    remove(find_waste(results))
    return before - {path.name for path in submission_folders(results)}


@pytest.mark.usefixtures("tasks")
def test_a_submission_that_has_ended_goes_once_all_its_runs_are_finished(results: Path) -> None:
    submission = on_slurm(results, array="12")
    finish(results, *RUNS[:-1])
    assert cleaned(results) == set(), "it tells why the last run is not finished"
    finish(results, RUNS[-1])
    assert cleaned(results) == {submission.path.name}


def test_a_submission_with_jobs_stays(results: Path, tasks: dict[str, ArrayTask]) -> None:
    submission = on_slurm(results, array="12")
    finish(results, *RUNS)
    for state in ("PENDING", "COMPLETING"):
        tasks["12_6"] = ArrayTask("12_6", submission.name, state)
        assert cleaned(results) == set()
    tasks["12_6"] = ArrayTask("12_6", submission.name, "COMPLETED")
    tasks["13_0"] = ArrayTask("13_0", "another.1", "RUNNING")
    assert cleaned(results) == {submission.path.name}


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("reason", ["silence", "another cluster"])
def test_no_submission_goes_while_slurm_is_silent(results: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def no_answer(*asked: object) -> dict[str, ArrayTask]:
        raise SlurmUnavailableError("no controller")

    on_slurm(results, array="12", cluster="moon" if reason == "another cluster" else "toy")
    finish(results, *RUNS)
    if reason == "silence":
        monkeypatch.setattr(slurm_api, "queue", no_answer)
    assert cleaned(results) == set()


def test_a_submission_that_came_alive_since_is_not_removed(results: Path, tasks: dict[str, ArrayTask]) -> None:
    submission = on_slurm(results, array="12")
    finish(results, *RUNS)
    waste = find_waste(results)
    assert [(item.path, item.reason) for item in waste] == [(submission.path, "submission that has ended")]
    tasks["12_0"] = ArrayTask("12_0", submission.name, "RUNNING")  # requeued by hand
    remove(waste)
    assert submission.path.is_dir()
