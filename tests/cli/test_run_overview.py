"""What `show` begins with: of runs that are finished, in training, diverged, broken, and of metrics that make no sense."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.claims import claimed
from support.commandline import ettsweep

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec


def started(
    results: Path, spec: RunSpec, losses: Sequence[float | None] = (), evaluations: dict[int, float] | None = None
) -> Attempt:
    """Have a run train: a loss for each step, and a validation loss at some."""
    attempt = claimed(RunDir.create(results, spec))
    attempt.append(attempt.metrics_path, lines(losses, evaluations))
    return attempt


def lines(losses: Sequence[float | None], evaluations: dict[int, float] | None = None) -> list[dict[str, Any]]:
    collected: list[dict[str, Any]] = []
    for step, loss in enumerate(losses, 1):
        collected.append({"step": step, "loss": loss, "grad_norm": 1.0})
        if step in (evaluations or {}):
            collected.append({"step": step, "val_loss": (evaluations or {})[step], "val_accuracy": 0.5})
    return collected


def shown(results: Path, spec: RunSpec, *options: object) -> dict[str, list[str]]:
    """Return what is shown, by label; lines without one belong to the one above."""
    out = ettsweep("show", spec.run_id, "--results", results, *options).stdout
    collected: dict[str, list[str]] = {}
    label = ""
    for line in out.splitlines():
        label = line[:11].strip() or label
        collected.setdefault(label, []).append(line[11:])
    return collected


def test_a_run_in_training_is_summed_up_as_far_as_it_is(results: Path, spec: RunSpec) -> None:
    losses: list[float | None] = [2.0**-k for k in range(8)]
    attempt = started(results, spec, losses, {4: 0.5, 8: 0.7})
    attempt.append(attempt.timings_path, [{"step": 8, "progress": 8 / 24, "wall_s": 90.0, "steps_per_s": 12.5}])
    observed = shown(results, spec)
    assert observed["run"] == [spec.run_id]
    assert observed["point"] == ["ntk, lr 2^0 (1), wd 2^-6 (0.015625), seed 0"]
    assert observed["state"][0].startswith("running: on ")
    assert observed["progress"] == ["8 of 24 steps"]
    assert observed["loss"] == ["1 at step 1, 0.00781 at 8, lowest 0.00781 at 8"]
    assert observed["val_loss"] == ["0.5 at step 4, 0.7 at 8, lowest 0.5 at 4"]
    assert observed["best"] == ["best_loss 0.5 at step 4"]
    assert observed["spikes"] == ["none"]
    assert observed["time"] == ["1 min 30 s, 12.5 steps/s"]
    assert observed["attempt 1"][0].startswith("from the start, ")
    assert observed["folder"] == [str(results / "runs" / spec.run_id)]


def test_a_diverged_run_says_at_which_step(results: Path, spec: RunSpec) -> None:
    attempt = started(results, spec)
    result = {"status": "diverged", "diverged_step": 3, "score": None, "steps": 3, "spike_events": []}
    assert RunDir(attempt.run).finish(result, lines([1.0, 2.0, None]))
    observed = shown(results, spec)
    assert observed["state"] == ["diverged: at step 3"]
    assert observed["loss"] == ["1 at step 1, 2 at 2, lowest 1 at 1; 1 of 3 values not finite"]
    assert observed["best"] == ["no score: ranks below all runs with one"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"loss": 1.0}\n', "metrics.jsonl was edited: it does not have the format that runs write"),
        ('{"step": 1, "loss": 1}\n{"step": 9, "loss": 1}\n', "steps are missing"),
    ],
)
def test_metrics_that_make_no_sense_are_told(lines: str, message: str, results: Path, spec: RunSpec) -> None:
    started(results, spec).metrics_path.write_text(lines)
    assert message in shown(results, spec)["metrics"][0]


def test_all_keys_follow_where_they_are_asked_for(results: Path, spec: RunSpec) -> None:
    started(results, spec, [1.0])
    short = ettsweep("show", spec.run_id, "--results", results)
    assert f"`ettsweep show {spec.run_id} --all --results {results}`" in short.stderr
    long = ettsweep("show", spec.run_id, "--all", "--results", results)
    assert long.stdout.startswith(short.stdout)
    assert "spec.model.width" in long.stdout
    assert "spec.model.width" not in short.stdout
