"""How long runs still take: closed forms, on made ledgers and as the monitor reads them from real folders."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ettsweep.launch.progress import ProgressMonitor
from ettsweep.processes import process_identity
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec, validated_spec
from ettsweep.runs.state import State, Status
from ettsweep.runs.timing import RunTimes, makespan_s


@pytest.mark.parametrize(
    ("running", "waiting", "at_once", "seconds"),
    [
        ([60.0], [100.0] * 3, 4, 100),  # three start at once beside it
        ([60.0, 10.0], [100.0] * 3, 2, 210),  # 10+100, 60+100, 110+100
        ([7.0] * 8, [50.0] * 81, 8, 557),
    ],
)
def test_each_that_waits_starts_as_soon_as_one_has_ended(
    running: list[float], waiting: list[float], at_once: int, seconds: float
) -> None:
    assert makespan_s(running, waiting, at_once) == pytest.approx(seconds)


def left(pace: RunTimes, *runs: tuple[RunSpec, Status], at_once: int = 1) -> float | None:
    specs = {spec.run_id: spec for spec, _ in runs}
    return pace.remaining_s(specs, {spec.run_id: status for spec, status in runs}, at_once)


QUEUED, STARTED = Status(State.QUEUED), Status(State.RUNNING)


def test_time_left_is_measured_or_not_told(results: Path, make_spec: Any) -> None:
    first, second, third = (make_spec(seed=seed) for seed in range(3))
    mup, wider = make_spec(strategy={"s": 1.0}), make_spec(model={"width": 16})
    half = Status(State.RUNNING, progress=0.5, remaining_s=100.0, remaining_slot_s=100.0)  # 200 s a run
    pace = RunTimes()
    assert left(pace, (first, STARTED), (second, QUEUED)) is None, "no rate"
    assert left(pace, (first, half)) == 100
    assert left(pace, (first, half), (second, QUEUED), (mup, Status(State.QUEUED, progress=0.75))) == 100 + 200 + 50
    assert left(pace, (first, half), (second, STARTED), (mup, QUEUED)) == 100 + 200
    assert left(pace, (first, half), (wider, QUEUED)) is None, "nothing like it was seen"
    assert left(pace, (first, half), (second, Status(State.HELD)), (third, Status(State.FAILED))) == 100
    RunDir.create(results, third).finish({"status": "done", "score": 1.0, "wall_s": 80.0}, [])
    pace = RunTimes.of(load_run_index(results))
    assert left(pace, (second, QUEUED)) is None, "nothing runs"
    assert left(pace, (first, STARTED), (second, QUEUED)) == 80 + 80
    assert left(pace, (first, half), (second, QUEUED)) == pytest.approx(100 + (80 + 100) / (1 + 0.5))


# --- recorded histories, as the monitor sees them -------------------------------------------------------------------

HISTORIES = Path(__file__).parent / "histories"


def submitted(results: Path, specs: list[RunSpec], workers: list[str]) -> None:
    """Write a local submission whose workers are this process."""
    folder = results / "jobs" / "000001-0123abcd"
    folder.mkdir(parents=True)
    me = process_identity().to_json()
    mapping = {"kind": "local", "runs": [spec.run_id for spec in specs], "profile": {}, "submitter": me}
    (folder / "submission.json").write_text(json.dumps(mapping | {"slots": [{"name": name} for name in workers]}))
    for name in workers:
        (folder / f"worker-{name}.json").write_text(json.dumps({"process": me, "leaving": False}))


def replay(results: Path, history: dict[str, Any], at_s: float) -> list[RunSpec]:
    """Write the folder of a recorded sweep as it was after so many seconds; return the specs of its runs."""
    workers, specs = sorted({item["worker"] for item in history["runs"]}), []
    pids = dict(zip(workers, (os.getpid(), os.getppid()), strict=True))
    for item in history["runs"]:
        spec = validated_spec(history["spec"] | item["spec"], "history")
        run = RunDir.create(results, spec)
        specs.append(spec)
        if item["ended_s"] <= at_s:
            execution = {"execution": {"processes": 1, "ensemble": item["ensemble"]}}
            assert run.finish(item["result"] | {"score": 1.0} | execution, [])
        elif item["claimed_s"] <= at_s:
            attempt = run.claim({"slot": "cpu-0"}, after=0)
            assert attempt
            owner = process_identity(pids[item["worker"]]).to_json()
            attempt.claim_path.write_text(json.dumps(attempt.claim() | {"process": owner}))
            attempt.record("execution", {"processes": 1, "ensemble": item["ensemble"]})
            lines = [dict(zip(("time", "progress", "wall_s", "device_s"), line, strict=True)) for line in item["lines"]]
            attempt.append(attempt.timings_path, [line for line in lines if line.pop("time") <= at_s])
    submitted(results, specs, workers)
    return specs


@pytest.mark.parametrize("path", sorted(HISTORIES.iterdir()), ids=lambda path: path.name.partition(".")[0])
def test_time_left_of_recorded_sweeps_is_right_within_a_fifth(tmp_path: Path, path: Path) -> None:
    """At a quarter, half and three quarters, in the median; by the files that were there then."""
    history = json.loads(gzip.decompress(path.read_bytes()))
    end_s, errors = max(item["ended_s"] for item in history["runs"]), []
    for share in (0.25, 0.5, 0.75):
        specs = replay(tmp_path / str(share), history, share * end_s)
        left_s = ProgressMonitor(tmp_path / str(share), specs).poll().remaining_s
        assert left_s is not None
        errors.append(left_s / ((1 - share) * end_s) - 1)
    assert abs(sorted(errors, key=abs)[1]) < 0.2, errors
