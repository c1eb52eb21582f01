"""What is concluded from curves that are known."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ettsweep.doctor.observations import conclude, resume_class, seeds_differ
from ettsweep.doctor.trial import Record, Resumed, TrialRun
from ettsweep.launch.local import LocalProfile
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.study.criterion import Criterion
from ettsweep.study.tried import Observation


def recorded(spec: RunSpec, scores: list[float], losses: Sequence[float] = (), **more: Sequence[float]) -> TrialRun:
    """Return a finished run of a trial with a score at each step, and other metrics if there are any."""
    columns = {spec.info.metric.column: scores, "train_loss": losses, **more}
    columns = {name: values for name, values in columns.items() if values}
    history = [
        {"step": step, **dict(zip(columns, line, strict=True))}
        for step, line in enumerate(zip(*columns.values(), strict=True), 1)
    ]
    return TrialRun(spec, Status(State.DONE), history, {"code": 0})


def trial(spec: RunSpec, alone: TrialRun, other: TrialRun, again: TrialRun | None = None) -> Record:
    return Record(base=spec, whole=spec, alone=alone, again=again or alone, other=other)


def observed(record: Record, name: str, tmp_path: Path) -> Observation:
    outcome = conclude(record, "family", 3, Criterion(), LocalProfile(devices="cpu", slots=1), tmp_path)
    (observation,) = [each for each in outcome.observations if each.observation == name]
    return observation


CHANCE, LOSSES, OTHER_LOSSES = [0.1, 0.1, 0.1], [2.31, 2.30, 2.29], [2.32, 2.30, 2.28]


def test_a_score_at_chance_for_two_seeds_says_nothing_of_them(spec: RunSpec, tmp_path: Path) -> None:
    record = trial(spec, recorded(spec, CHANCE, LOSSES), recorded(spec, CHANCE, OTHER_LOSSES))
    assert seeds_differ(record) is None
    seeds = observed(record, "seeds", tmp_path)
    assert seeds.state == "warning"
    assert f"differ in train_loss, but not in {spec.info.metric.column}" in seeds.seen
    assert "it has not moved yet" in seeds.seen
    moved = [0.1, 0.1, 0.2]
    record = trial(spec, recorded(spec, moved, LOSSES), recorded(spec, moved, OTHER_LOSSES))
    assert "it is too coarse" in observed(record, "seeds", tmp_path).seen


@pytest.mark.parametrize(("from_step", "first_step"), [(2, 1), (2, 2), (None, 1)])
def test_a_killed_run_restarts_that_goes_back_before_its_checkpoint(
    spec: RunSpec, tmp_path: Path, from_step: int | None, first_step: int
) -> None:
    record = trial(spec, recorded(spec, CHANCE, LOSSES), recorded(spec, CHANCE, OTHER_LOSSES))
    record.resumed = Resumed(recorded(spec, CHANCE, LOSSES), from_step, first_step)
    assert resume_class(record) == "restarts"
    assert f"it starts over at step {first_step}" in observed(record, "resume", tmp_path).seen


def test_seeds_whose_numbers_all_coincide_are_one(spec: RunSpec, tmp_path: Path) -> None:
    record = trial(spec, recorded(spec, CHANCE, LOSSES), recorded(spec, CHANCE, LOSSES))
    assert seeds_differ(record) is False
    seeds = observed(record, "seeds", tmp_path)
    assert (seeds.state, "loss too" in seeds.advice) == ("failed", False)
    without_loss = trial(spec, recorded(spec, CHANCE), recorded(spec, CHANCE))
    assert "record the training loss too" in observed(without_loss, "seeds", tmp_path).advice


def test_runs_that_cannot_share_a_machine_fail(spec: RunSpec, tmp_path: Path) -> None:
    locked_out = replace(recorded(spec, CHANCE), status=Status(State.FAILED, "its lock is taken"))
    start = observed(trial(spec, recorded(spec, CHANCE), locked_out), "start", tmp_path)
    assert (start.state, "of two at once, one is failed: its lock is taken" in start.seen) == ("failed", True)


# --- whole curves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "losses", "expected"),
    [
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.0, 1.0], "exact"),
        ([0.1, 0.1, 0.2, 0.3], [4.0, 3.0, 2.0, 1.0], "resumes"),
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.0, 1.1], "resumes"),
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.5, 1.0], "exact"),  # a mean over what the kill has cut
    ],
)
def test_a_killed_run_is_exact_by_all_that_it_recorded(
    scores: list[float], losses: list[float], expected: str, spec: RunSpec, tmp_path: Path
) -> None:
    alone = recorded(spec, [0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.0, 1.0], step_time_s=[1.0] * 4)
    record = trial(spec, alone, recorded(spec, LOSSES))
    record.resumed = Resumed(recorded(spec, scores, losses, step_time_s=[2.0] * 4), from_step=2, first_step=3)
    assert resume_class(record) == expected
    only_loss = "from an uninterrupted run (train_loss)" in observed(record, "resume", tmp_path).seen
    assert only_loss == (expected == "resumes" and scores[-1] == 0.2)


@pytest.mark.parametrize(
    ("scores", "names", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], ["losses"], "exact"),  # a mean since the program has started, at each step
        ([0.1, 0.2, 0.2, 0.2], ["losses"], "resumes"),  # the score does not move, and vouches for nothing
        ([0.1, 0.2, 0.3, 0.4], ["losses", "grad_norm"], "resumes"),
        ([0.1, 0.2, 0.3, 0.5], ["losses"], "resumes"),
    ],
)
def test_a_running_mean_makes_no_killed_run_inexact(
    scores: list[float], names: list[str], expected: str, spec: RunSpec, tmp_path: Path
) -> None:
    before, after = (dict.fromkeys(names, means) for means in ([4.0, 3.5, 3.0, 2.5], [4.0, 3.5, 2.0, 1.5]))
    alone = recorded(spec, [0.1, 0.2, 0.2, 0.2] if scores[2] == 0.2 else [0.1, 0.2, 0.3, 0.4], **before)
    record = trial(spec, alone, recorded(spec, OTHER_LOSSES))
    record.resumed = Resumed(recorded(spec, scores, **after), from_step=1, first_step=2)
    assert resume_class(record) == expected
    assert observed(record, "resume", tmp_path).state == ("ok" if expected == "exact" else "warning")


def test_numbers_of_the_machine_make_no_other_run(spec: RunSpec) -> None:
    """They are told by their names, and never repeat themselves: they would be all that differs."""
    machine = ["train_samples_per_second", "GPUMemUsed", "walltime", "train/tps", "TFLOPs", "step_time_s"]
    training = ["trainLoss", "wall_loss", "topSimilarity"]
    run = replace(recorded(spec, LOSSES), history=[{"step": 1} | dict.fromkeys([*machine, *training], 1.0)])
    assert run.other_metrics == sorted(training)


def test_the_start_of_a_program_counts_once_in_the_cost_of_a_whole_run(spec: RunSpec, tmp_path: Path) -> None:
    """Ten seconds until the first step, then one a step: 3 of some hundred steps take 13 seconds."""
    alone = replace(recorded(spec, LOSSES), wall_s=13.0, device_s=13.0, step_s=1.0)
    record = replace(trial(spec, alone, alone), base=spec.with_point(spec.point, 7))
    assert record.whole.info.steps
    assert f"a run takes {10 + record.whole.info.steps:.3g} s, by 3 of its" in observed(record, "cost", tmp_path).seen
    unknown = replace(alone, step_s=None)
    cost = observed(replace(record, alone=unknown, again=unknown, other=unknown), "cost", tmp_path)
    assert f"a run takes at most {13 + 13 / 3 * (record.whole.info.steps - 3):.3g} s, by 3 of its" in cost.seen
    assert "record twice" in cost.advice
