"""Run folders: one winner among claims, results, damaged files, storage."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.claims import claimed, finished, python, state, temporaries, train

from ettsweep.errors import CorruptError, StorageError
from ettsweep.files import dumps, read_lines, write_atomic
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State

SmallDisk = Callable[[str], Path]


RACE = """
import os, sys
from pathlib import Path
from ettsweep.files import write_atomic
from ettsweep.runs.folder import RunDir

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
for number in range(5):
    path = folder / f"file-{number}"
    assert race(lambda: write_atomic(path, str(os.getpid()), exclusive=True)) == 1
run = RunDir(folder / "0123456789ab")
for number in range(5):
    assert race(lambda: run.claim({}, after=number)) == 1
attempts = sorted(int(path.name) for path in (run.path / "attempts").iterdir())
print(attempts == list(range(1, 6)), len(attempts))
"""


def test_one_of_many_processes_wins_each_file_and_each_claim(tmp_path: Path) -> None:
    assert python(RACE, tmp_path) == "True 5\n"


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


DAMAGES: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[:20],
    "edited": lambda text: text.replace('"done"', '"diverged"'),
    "no number": lambda text: text.replace("{", '{"loss": NaN,', 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_result_is_named_and_retry_trains_again(run: RunDir, damage: str) -> None:
    finished(run)
    run.result_path.write_text(DAMAGES[damage](run.result_path.read_text()))
    with pytest.raises(CorruptError) as error:
        run.result()
    assert str(run.result_path) in str(error.value)
    assert f"`ettsweep retry {run.id}` trains it again" in str(error.value)
    assert state(run) == (State.FAILED, str(error.value))
    run.retry()
    assert not run.result_path.exists()
    assert not run.metrics_path.exists()
    assert not run.status().state.finished


def test_the_result_of_another_run_is_not_taken(results: Path, make_spec: Callable[..., RunSpec]) -> None:
    run, other = (finished(RunDir.create(results, make_spec(seed=seed))) for seed in (0, 1))
    run.result_path.write_bytes(other.result_path.read_bytes())
    with pytest.raises(CorruptError, match=f"not the result that run {run.id} wrote"):
        run.result()


def test_damaged_metrics_are_named_and_retry_trains_again(run: RunDir) -> None:
    finished(run)
    run.metrics_path.write_text(run.metrics_path.read_text().replace("0.5", "0.4"))
    with pytest.raises(CorruptError) as error:
        run.history()
    assert str(run.metrics_path) in str(error.value)
    assert f"`ettsweep retry {run.id}` trains it again" in str(error.value)
    run.retry()
    assert not run.status().state.finished


@pytest.mark.parametrize(
    ("changes", "expected"),
    [(None, "not valid JSON"), ({"dropout": 0.1}, "dropout: unknown key"), ({"lr": 0.125}, "edited by hand")],
)
def test_damaged_spec_is_named(run: RunDir, spec: RunSpec, changes: dict[str, float] | None, expected: str) -> None:
    text = run.spec_path.read_text()
    run.spec_path.write_text(text[:40] if changes is None else dumps(json.loads(text) | changes))
    with pytest.raises(CorruptError, match=expected) as error:
        run.spec()
    assert str(run.spec_path) in str(error.value)
    assert "repeat the command that requested the run, which rewrites it" in str(error.value)
    assert RunDir.create(run.path.parent.parent, spec).spec() == spec


def test_read_only_folder_says_what_would_help(small_disk: SmallDisk, spec: RunSpec) -> None:
    disk = small_disk("1m")
    run = RunDir.create(disk, spec)
    attempt = claimed(run)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    attempts: list[Callable[[], object]] = [
        lambda: RunDir.create(disk / "other", spec),
        lambda: run.claim({}, after=1),
        lambda: attempt.append(attempt.metrics_path, [{"step": 1}]),
        lambda: run.finish({"status": "done"}, []),
        run.cancel,
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
    assert run.attempt_numbers() == [1]
    steps = [line["step"] for line in read_lines(attempt.metrics_path)]
    assert steps == list(range(len(steps))), "whole lines are still read"


def test_evaluations_are_those_of_the_lineage_and_then_of_the_result(run: RunDir) -> None:
    def steps() -> list[int]:
        return [line["step"] for line in run.evaluations("val_loss") if line["val_loss"] == 2 / line["step"]]

    train(claimed(run), 1, 14)
    second = claimed(run)
    second.record_resume(1, 10)
    assert steps() == [4, 8]
    train(second, 11, 17)
    with second.metrics_path.open("a") as file:
        file.write('{"step": 20, "val_')
    assert steps() == [4, 8, 12, 16]
    run.finish({"status": "done"}, [{"step": 1, "loss": 1.0}, {"step": 4, "val_loss": 0.5}])
    assert steps() == [4]
