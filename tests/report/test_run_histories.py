"""Histories: what is kept of steps and evaluations, what spikes say, and how often files are read."""

from pathlib import Path
from typing import Any

from support.made_sweep import digits_spec

from ettsweep.files import Json
from ettsweep.report.run_histories import RunHistories, RunHistory, rows_per_run, seeds_per_point
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, load_run_index
from ettsweep.trainer.specs import ScheduleSpec

STEPS = 100
SPEC = digits_spec(None).model_copy(update={"schedule": ScheduleSpec(total_steps=STEPS, warmup_steps=4, eval_every=5)})


def lines_of(steps: int = STEPS, first: int = 1) -> list[Json]:
    """Return metrics: the loss is the step, the gradient norm its square; every fifth step is evaluated."""
    lines: list[Json] = []
    for step in range(first, steps + 1):
        lines.append({"step": step, "loss": float(step), "grad_norm": float(step**2), "lr": 1.0})
        if step % 5 == 0:
            lines.append({"step": step, "val_loss": 1000.0 - step, "val_accuracy": step / 1000})
    return lines


def recorded(results: Path, lines: list[Json], **result: Any) -> Run:
    """Return a finished run that recorded some lines."""
    folder = RunDir.create(results, SPEC)
    assert folder.finish({"status": "done", "score": 0.1, "steps": STEPS} | result, lines)
    (run,) = load_run_index(results).runs.values()
    return run


def history_of(run: Run, rows: int = 1000) -> RunHistory:
    get_result = RunHistories(rows).get(run)
    assert get_result is not None
    return get_result


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_steps_are_thinned_to_means_that_end_at_the_last_one(results: Path) -> None:
    """Of 100 rows, 12 are left room for: means of nine, the last of one."""
    history = history_of(recorded(results, lines_of()), rows=12)
    assert len(history.training) == 12
    assert history.training[0] == (9, sum(range(1, 10)) / 9, sum(k * k for k in range(1, 10)) / 9)
    assert history.training[-1] == (100, 100.0, 10000.0)
    assert [row[0] for row in history.evaluations] == [20, 40, 60, 80, 100], "every fourth: six at most"
    assert history.evaluations[0] == (20, 980.0, 0.02)


def test_of_many_runs_fewer_rows_and_of_very_many_fewer_seeds_are_kept() -> None:
    for runs, rows in ((0, 200), (500, 200), (1000, 100), (100_000, 10)):
        assert rows_per_run(runs) == rows
    for runs, points, seeds in ((10_000, 25, None), (10_001, 25, 400), (60_000, 60_000, 1), (10_001, 0, 10_000)):
        assert seeds_per_point(runs, points) == seeds


# --- spikes -----------------------------------------------------------------------------------------------------------


def test_spikes_have_their_place_their_value_and_words(results: Path) -> None:
    events = [
        {"kind": "loss", "step": 7, "last_step": 9, "sigmas": 12.345},
        {"kind": "grad", "step": 8, "last_step": 8, "sigmas": 6.1},
        {"kind": "accuracy", "step": 10, "depth": 0.0213, "length": 3, "recovered": True},
        {"kind": "eval_loss", "step": 15, "depth": 0.25, "length": 1, "recovered": False},
        {"kind": "of another version", "step": 3},
        {"kind": "loss", "step": None},
    ]
    spikes = history_of(recorded(results, lines_of(), spike_events=events)).spikes
    assert [(spike.step, spike.quantity, spike.value, spike.text) for spike in spikes] == [
        (7, "loss", 7.0, "training loss at steps 7 to 9: 12.3 standard deviations above the mean of the 128 before"),
        (8, "grad_norm", 64.0, "gradient norm at step 8: 6.1 standard deviations above the mean of the 128 before"),
        (10, "val_accuracy", 0.01, "validation accuracy at step 10: down by 2.13 points, back after 3 evaluations"),
        (15, "val_loss", 985.0, "validation loss at step 15: up by 0.25, never back"),
    ]


def test_where_a_run_diverged_is_told_with_its_last_finite_loss(results: Path) -> None:
    lines = [*lines_of(42), {"step": 43, "loss": None, "grad_norm": None}]
    (spike,) = history_of(recorded(results, lines, status="diverged", score=None, diverged_step=43), rows=2).spikes
    assert (spike.step, spike.quantity, spike.value) == (43, "loss", 42.0)
    assert spike.text == "diverged at step 43: the loss was not finite"


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_has_what_all_its_attempts_recorded(results: Path) -> None:
    """Its first attempt died at step 30, with a checkpoint of step 20, and the second writes a line at step 26."""
    folder = RunDir.create(results, SPEC)
    for number, lines in enumerate((lines_of(30), lines_of(25, first=21))):
        attempt = folder.claim({}, after=number)
        assert attempt
        attempt.append(attempt.metrics_path, lines)
    attempt.record_resume(1, 20)
    with attempt.metrics_path.open("a") as file:
        file.write('{"loss": 1.0}\n{"step": 26, "lo')  # what has no step, and a line that breaks off
    (run,) = load_run_index(results).runs.values()
    history = history_of(run)
    assert [step for step, _, _ in history.training] == list(range(1, 26))
    assert [step for step, _, _ in history.evaluations] == [5, 10, 15, 20, 25]
