"""How long runs still take: closed forms, on made ledgers and as the monitor reads them from real folders."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ettsweep.launch.progress import ProgressMonitor, SweepStatus
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


# --- as the monitor sees it -----------------------------------------------------------------------------------------


def submitted(results: Path, specs: list[RunSpec], workers: dict[str, dict[str, Any]]) -> None:
    """Write a local submission whose workers are this process, with what each says of itself."""
    folder = results / "jobs" / "000001-0123abcd"
    folder.mkdir(parents=True)
    me = process_identity().to_json()
    mapping = {"kind": "local", "runs": [spec.run_id for spec in specs], "profile": {}, "submitter": me}
    (folder / "submission.json").write_text(json.dumps(mapping | {"slots": [{"name": name} for name in workers]}))
    for name, messages in workers.items():
        (folder / f"worker-{name}.json").write_text(json.dumps({"process": me, "leaving": False} | messages))


def trains(results: Path, spec: RunSpec, *pace: tuple[float, float], pid: int | None = None, **execution: int) -> None:
    """Write an attempt of a process, this one by default, with so many seconds at each share of its steps.

    An ensemble of so many has had the device for all of them.
    """
    attempt = RunDir(results / "runs" / spec.run_id).claim({"slot": "cpu-0"}, after=0)
    assert attempt
    attempt.claim_path.write_text(json.dumps(attempt.claim() | {"process": process_identity(pid).to_json()}))
    attempt.record("execution", execution)
    devices = execution.get("processes", 1) / execution.get("ensemble", 1)
    lines = [{"progress": share, "wall_s": seconds, "device_s": devices * seconds} for share, seconds in pace]
    attempt.append(attempt.timings_path, lines)


def look(results: Path, specs: list[RunSpec]) -> SweepStatus:
    return ProgressMonitor(results, specs).poll()


def test_the_first_look_counts_all_slots_and_not_how_long_a_run_took_to_start(results: Path, make_spec: Any) -> None:
    slots = 4
    specs = [make_spec(seed=seed) for seed in range(17)]
    for spec in specs:
        RunDir.create(results, spec)
    submitted(results, specs, {f"cpu-{n}": {} for n in range(slots)})
    assert look(results, specs).remaining_s is None, "nothing runs"
    trains(results, specs[0], (0.001, 60.0), pid=os.getppid())
    assert look(results, specs).remaining_s is None, "a minute for the first step is no rate"
    trains(results, specs[1], (0.001, 60.0), (0.201, 80.0))  # 100 s a run
    sweep_status = look(results, specs)
    assert sweep_status.statuses[specs[1].run_id].remaining_s == pytest.approx(79.9)
    ends = sorted([99.9, 79.9] + [0.0] * (slots - 2))
    for _ in range(15):
        ends = sorted([ends[0] + 100, *ends[1:]])
    assert sweep_status.remaining_s == pytest.approx(ends[-1])


# --- recorded histories ---------------------------------------------------------------------------------------------

HISTORIES = Path(__file__).parent / "histories"


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
            trains(results, spec, pid=pids[item["worker"]], processes=1, ensemble=item["ensemble"])
            attempt = run.latest_attempt()
            assert attempt
            lines = [dict(zip(("time", "progress", "wall_s", "device_s"), line, strict=True)) for line in item["lines"]]
            attempt.append(attempt.timings_path, [line for line in lines if line.pop("time") <= at_s])
    submitted(results, specs, {worker: {} for worker in workers})
    return specs


@pytest.mark.parametrize("path", sorted(HISTORIES.iterdir()), ids=lambda path: path.name.partition(".")[0])
def test_time_left_of_recorded_sweeps_is_right_within_a_fifth(tmp_path: Path, path: Path) -> None:
    """At a quarter, half and three quarters, in the median; by the files that were there then."""
    history = json.loads(gzip.decompress(path.read_bytes()))
    end_s, errors = max(item["ended_s"] for item in history["runs"]), []
    for share in (0.25, 0.5, 0.75):
        specs = replay(tmp_path / str(share), history, share * end_s)
        left_s = look(tmp_path / str(share), specs).remaining_s
        assert left_s is not None
        errors.append(left_s / ((1 - share) * end_s) - 1)
    assert abs(sorted(errors, key=abs)[1]) < 0.2, errors
