import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.claims import claimed

from ettsweep.cli.run_tables import best_score, run_sort_key, state_note, status_row
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.study.sweep_store import StudiesByFamily

MakeSpec = Callable[..., RunSpec]


def start(results: Path, spec: RunSpec) -> Attempt:
    """Return a first attempt that this process owns."""
    attempt = RunDir.create(results, spec).claim({"slot": "cpu-0"}, after=0)
    assert attempt is not None
    return attempt


def evaluate(attempt: Attempt, steps: int, *losses: float | None) -> None:
    """Write the metrics of some steps, then some evaluations."""
    lines: list[dict[str, Any]] = [{"step": step, "loss": 2.0} for step in range(1, steps + 1)]
    lines += [{"step": steps, "val_loss": loss, "val_accuracy": 0.5} for loss in losses]
    attempt.append(attempt.metrics_path, lines)


def test_a_status_row_says_what_the_run_is_and_how_far(results: Path, spec: RunSpec) -> None:
    attempt = start(results, spec)
    evaluate(attempt, 6, 0.9, 0.8)
    first, last = {"step": 3, "progress": 0.125, "wall_s": 9.0}, {"step": 6, "progress": 0.25, "wall_s": 9.5}
    attempt.append(attempt.timings_path, [first, last])  # 4 s a run, once it has started
    row = status_row(load_run_index(results).runs[spec.run_id], StudiesByFamily(()))
    assert state_note(row) == f"on {socket.gethostname()}, about 3 s left"
    run = {"lr": 1.0, "wd": 2.0**-6, "log2_lr": 0.0, "log2_wd": -6.0, "seed": 0, "strategy": "ntk"}
    status = {"state": "running", "progress": 0.25, "best_score": 0.8, "slot": "cpu-0", "left_s": 3.0}
    assert (run | status).items() <= row.items()


def test_progress_is_of_the_steps_that_were_trained(results: Path, spec: RunSpec) -> None:
    """Whether the run diverged, or its result cannot be read: then the last attempt says how far, and the metrics how well."""
    attempt = start(results, spec)
    evaluate(attempt, 6, 0.9, 0.8)
    attempt.append(attempt.timings_path, [{"step": 6, "progress": 0.25}])
    history = attempt.history(every_step=False)
    assert RunDir(attempt.run).finish({"status": "diverged", "score": None, "diverged_step": 6}, history)

    def told() -> dict[str, object]:
        row = status_row(load_run_index(results).runs[spec.run_id], StudiesByFamily(()))
        return {key: row[key] for key in ("state", "progress", "best_score")}

    assert told() == {"state": "diverged", "progress": 6 / spec.schedule.total_steps, "best_score": None}
    RunDir(attempt.run).result_path.write_text("{")
    assert told() == {"state": "failed", "progress": 0.25, "best_score": 0.8}


def test_the_best_score_reaches_back_over_attempts(results: Path, spec: RunSpec) -> None:
    first = start(results, spec)
    evaluate(first, 4, 0.4)
    first.append(first.metrics_path, [{"step": 5, "loss": 1.0}, {"step": 5, "val_loss": 0.1}])  # after the checkpoint
    second = claimed(RunDir(first.run))
    second.record_resume(1, 4)
    evaluate_from_5 = [{"step": 5, "loss": 1.0}, {"step": 5, "val_loss": 0.6}]
    second.append(second.metrics_path, evaluate_from_5)
    assert best_score(load_run_index(results).runs[spec.run_id]) == 0.4


def test_runs_are_ordered_by_model_strategy_point_and_seed(results: Path, make_spec: MakeSpec) -> None:
    expected = [
        make_spec(model={"width": 16}, lr=9.0, seed=9),
        make_spec(strategy={"s": None}, lr=4.0),
        make_spec(lr=2.0, wd=0.0, seed=7),
        make_spec(lr=2.0, wd=0.25, seed=3),
        make_spec(lr=2.0, wd=0.25, seed=11),
        make_spec(lr=10.0, wd=0.0),
    ]
    for spec in expected:
        RunDir.create(results, spec)
    runs = sorted(load_run_index(results).runs.values(), key=run_sort_key)
    assert [run.spec for run in runs] == expected
