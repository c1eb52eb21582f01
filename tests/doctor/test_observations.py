"""What is concluded from curves and files: against draws whose origin is known."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.commandline import wait_for

from ettsweep.doctor.observations import conclude, repeats_batches, repeats_itself, resume_class, seeds_differ
from ettsweep.doctor.trial_record import Record, Resumed, TrialRun, Written
from ettsweep.doctor.written_files import named_paths, now_ns, written_since
from ettsweep.launch.profile import LocalProfile
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.study.criterion import Criterion
from ettsweep.study.tried import Observation

STEPS, STEP = 60, 20


def curve(batches: random.Random, first: int, noise: float) -> list[dict[str, float]]:
    """Return losses that fall, with a share that each batch adds."""
    return [{"step": s, "loss": 2 * 0.95**s + batches.gauss(0, noise)} for s in range(first, STEPS + 1)]


def resumed(undisturbed: list[dict[str, float]], batches: random.Random, noise: float) -> list[dict[str, float]]:
    return undisturbed[:STEP] + curve(batches, STEP + 1, noise)


@pytest.mark.parametrize("seed", range(20))
def test_batches_that_come_again_are_told_from_others(seed: int) -> None:
    undisturbed = curve(random.Random(seed), 1, 0.1)
    assert repeats_batches(undisturbed, resumed(undisturbed, random.Random(seed), 0.1), STEP)
    assert not repeats_batches(undisturbed, resumed(undisturbed, random.Random(seed + 100), 0.1), STEP)
    assert not repeats_batches(undisturbed, undisturbed, STEP), "as if it had never been killed"


def test_a_smooth_curve_says_nothing_of_batches() -> None:
    smooth = curve(random.Random(0), 1, 0.0)
    assert not repeats_batches(smooth, resumed(smooth, random.Random(0), 0.0), STEP)
    assert not repeats_batches(smooth[:25], smooth[:25], STEP), "too short"


def test_files_that_a_script_names_are_found_as_they_change(tmp_path: Path) -> None:
    outside, script = tmp_path / "outside", tmp_path / "train.py"
    outside.mkdir()
    script.write_text(f"open('{outside}/best.txt', 'w')  # and not {tmp_path}/nowhere\nsave(\"{outside}\")\n")
    (outside / "old.txt").touch()
    os.utime(outside / "old.txt", ns=(0, 0))
    since_ns = now_ns(tmp_path)
    wait_for(lambda: now_ns(tmp_path) > since_ns, "a tick of the file system's clock")
    (outside / "best.txt").touch()
    # Those of the system are left out.
    assert list(named_paths([], ["/usr/bin/env", "/dev/null", "/etc/passwd", "/", "//"])) == []
    assert list(named_paths([script], ["train.py", "/usr/bin/python3"])) == [outside, outside / "best.txt"]
    assert written_since(since_ns, outside, ()) == {"best.txt"}
    assert written_since(since_ns, tmp_path, {outside}) == set()
    assert written_since(since_ns, outside / "best.txt", ()) == {""}


def test_what_ettsweep_keeps_below_a_folder_is_left_out(tmp_path: Path) -> None:
    for name in ("a/runs/0123456789ab", "a/report", "b/sweeps/mine", "b/jobs/1", "runs/Nov27", "runs/sweeps"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "b" / "sweeps" / "mine" / "0001.yaml").touch()
    (tmp_path / "a" / "notes.txt").touch()
    assert written_since(0, tmp_path, ()) == {"a/notes.txt", "runs/Nov27/file", "runs/sweeps/file"}
    assert written_since(0, tmp_path / "b", ()) == set(), "also where it is that folder"


# --- two seeds --------------------------------------------------------------------------------------------------------


def recorded(
    spec: RunSpec, scores: list[float], losses: list[float] | None = None, seconds: list[float] | None = None
) -> TrialRun:
    """Return a finished run of a trial with a score at each step, and a training loss and times if there are any."""
    history: list[dict[str, float]] = [
        {"step": step, spec.metric.column: score} for step, score in enumerate(scores, 1)
    ]
    for line, loss in zip(history, losses or (), strict=False):
        line["train_loss"] = loss
    for line, each in zip(history, seconds or (), strict=False):
        line["step_time_s"] = each
    return TrialRun(spec, Status(State.DONE), history, {"code": 0}, (), 1.0, 1.0, 0, 1)


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
    assert f"the same {spec.metric.column}, and differ in train_loss" in seeds.seen
    assert "it has not moved yet" in seeds.seen


def test_a_score_that_moves_alike_is_called_coarse(spec: RunSpec, tmp_path: Path) -> None:
    moved = [0.1, 0.1, 0.2]
    record = trial(spec, recorded(spec, moved, LOSSES), recorded(spec, moved, OTHER_LOSSES))
    seeds = observed(record, "seeds", tmp_path)
    assert (seeds.state, "too coarse" in seeds.seen) == ("warning", True)


def test_seeds_whose_numbers_all_coincide_are_one(spec: RunSpec, tmp_path: Path) -> None:
    record = trial(spec, recorded(spec, CHANCE, LOSSES), recorded(spec, CHANCE, LOSSES))
    assert seeds_differ(record) is False
    seeds = observed(record, "seeds", tmp_path)
    assert (seeds.state, "loss too" in seeds.advice) == ("failed", False)
    without_loss = trial(spec, recorded(spec, CHANCE), recorded(spec, CHANCE))
    assert "have it record its loss too" in observed(without_loss, "seeds", tmp_path).advice


def test_rounding_of_any_metric_makes_no_other_seed(spec: RunSpec) -> None:
    rounded = [loss * (1 + 1e-7) for loss in LOSSES]
    record = trial(
        spec, recorded(spec, CHANCE, LOSSES), recorded(spec, CHANCE, rounded), recorded(spec, CHANCE, rounded)
    )
    assert seeds_differ(record) is False
    assert seeds_differ(trial(spec, recorded(spec, LOSSES), recorded(spec, OTHER_LOSSES))) is True


def test_times_make_no_other_seed(spec: RunSpec, tmp_path: Path) -> None:
    """They never repeat themselves: of two seeds that are one, they would be all that differs."""
    runs = [recorded(spec, LOSSES, seconds=[0.1 * run] * 3) for run in (1, 2, 3)]
    record = trial(spec, *runs)
    assert (seeds_differ(record), repeats_itself(record)) == (False, True)


# --- whole curves -----------------------------------------------------------------------------------------------------


def test_one_seed_repeats_itself_only_if_all_that_it_recorded_is_the_same(spec: RunSpec, tmp_path: Path) -> None:
    alone, other = recorded(spec, CHANCE, LOSSES), recorded(spec, LOSSES, OTHER_LOSSES)
    assert repeats_itself(trial(spec, alone, other, recorded(spec, CHANCE, LOSSES))) is True
    record = trial(spec, alone, other, recorded(spec, CHANCE, OTHER_LOSSES))
    assert repeats_itself(record) is False
    seen = observed(record, "repeat", tmp_path).seen
    assert f"the same {spec.metric.column}, but other numbers of train_loss, the second time, by up to 0.43%" in seen


@pytest.mark.parametrize(
    ("scores", "losses", "expected"),
    [
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.0, 1.0], "exact"),
        ([0.1, 0.1, 0.2, 0.3], [4.0, 3.0, 2.0, 1.0], "resumes"),
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.0, 1.1], "resumes"),
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.5, 1.0], "exact"),  # a mean over what the kill has cut
        ([0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.5], "resumes"),
    ],
)
def test_a_killed_run_is_exact_by_all_that_it_recorded(
    scores: list[float], losses: list[float], expected: str, spec: RunSpec, tmp_path: Path
) -> None:
    alone = recorded(spec, [0.1, 0.1, 0.2, 0.2], [4.0, 3.0, 2.0, 1.0], seconds=[1.0] * 4)
    record = trial(spec, alone, recorded(spec, LOSSES))
    record.resumed = Resumed(recorded(spec, scores, losses, seconds=[2.0] * 4), from_step=2, first_step=3)
    assert resume_class(record) == expected
    seen = observed(record, "resume", tmp_path).seen
    assert (f"though its {spec.metric.column} is the same: train_loss differ" in seen) == (
        expected == "resumes" and scores[-1] == 0.2
    )


@pytest.mark.parametrize(
    ("scores", "names", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], {"train_loss"}, "exact"),  # a mean since the program has started, at each step
        ([0.1, 0.2, 0.2, 0.2], {"train_loss"}, "resumes"),  # the score does not move, and vouches for nothing
        ([0.1, 0.2, 0.3, 0.4], {"train_loss", "grad_norm"}, "resumes"),
        ([0.1, 0.2, 0.3, 0.5], {"train_loss"}, "resumes"),
    ],
)
def test_a_running_mean_makes_no_killed_run_inexact(
    scores: list[float], names: set[str], expected: str, spec: RunSpec, tmp_path: Path
) -> None:
    def run(scores: list[float], others: list[float]) -> TrialRun:
        lines = zip(scores, others, strict=True)
        history = [
            {"step": step, spec.metric.column: score} | dict.fromkeys(names, other)
            for step, (score, other) in enumerate(lines, 1)
        ]
        return replace(recorded(spec, LOSSES), history=history)

    alone = run([0.1, 0.2, *([0.2, 0.2] if scores[2] == 0.2 else [0.3, 0.4])], [4.0, 3.5, 3.0, 2.5])
    record = trial(spec, alone, recorded(spec, OTHER_LOSSES))
    record.resumed = Resumed(run(scores, [4.0, 3.5, 2.0, 1.5]), from_step=1, first_step=2)
    assert resume_class(record) == expected
    resume = observed(record, "resume", tmp_path)
    assert resume.state == ("ok" if expected == "exact" else "warning")
    assert ("but for train_loss, which may be a mean since the program has started" in resume.seen) == (
        expected == "exact"
    )


@pytest.mark.parametrize(
    ("name", "is_of_the_machine"),
    [
        ("train_samples_per_second", True),
        ("samplesPerSecond", True),
        ("GPUMemUsed", True),
        ("wall_clock", True),
        ("walltime", True),
        ("train/tps", True),
        ("TFLOPs", True),
        ("trainLoss", False),
        ("wall_loss", False),
        ("topSimilarity", False),
    ],
)
def test_numbers_of_the_machine_are_told_by_their_names(name: str, is_of_the_machine: bool, spec: RunSpec) -> None:
    run = replace(recorded(spec, LOSSES), history=[{"step": 1, name: 1.0}])
    assert (name not in run.other_metrics) == is_of_the_machine


def test_what_one_seed_does_not_repeat_makes_no_killed_run_inexact(spec: RunSpec) -> None:
    alone, again = recorded(spec, LOSSES, LOSSES), recorded(spec, LOSSES, OTHER_LOSSES)
    record = trial(spec, alone, recorded(spec, OTHER_LOSSES), again)
    record.resumed = Resumed(recorded(spec, LOSSES, [2.31, 2.4, 2.5]), from_step=1, first_step=2)
    assert resume_class(record) == "exact"
    record.resumed = Resumed(recorded(spec, OTHER_LOSSES, LOSSES), from_step=1, first_step=2)
    assert resume_class(record) == "resumes"


# --- two at once ------------------------------------------------------------------------------------------------------


def written(*by_runs: str, by_any: tuple[str, ...] = ()) -> Written:
    return Written(frozenset(by_runs), frozenset(by_any))


@pytest.mark.parametrize(
    ("alone", "both", "state", "seen"),
    [
        (written(), written(), "ok", "all below {out}"),
        (written("best.txt"), written("best.txt"), "failed", "each run writes best.txt"),
        (written("best.txt", "1.log"), written("best.txt", "2.log", "3.log"), "failed", "each run writes best.txt:"),
        (written("best-0.txt"), written("best-0.txt", "best-1.txt"), "warning", "best-0.txt, best-1.txt"),
        (written("best.txt"), written(), "warning", "two at once write apart"),
        (written(by_any=("log",)), written(by_any=("log",)), "warning", "or by another process"),
        (written(), written(by_any=("log",)), "warning", "changed log"),
        (written("log"), written(by_any=("log",)), "warning", "changed log"),
    ],
)
def test_only_what_each_of_two_runs_wrote_has_failed(
    alone: Written, both: Written, state: str, seen: str, spec: RunSpec, tmp_path: Path
) -> None:
    record = trial(spec, recorded(spec, LOSSES), recorded(spec, OTHER_LOSSES))
    record.written = (alone, both)
    observation = observed(record, "side by side", tmp_path)
    assert (observation.state, seen in observation.seen) == (state, True), observation.seen


def test_memory_on_gpus_is_told_where_it_is_known(spec: RunSpec, tmp_path: Path) -> None:
    alone, other = recorded(spec, LOSSES), recorded(spec, OTHER_LOSSES)
    assert "GPU" not in observed(trial(spec, alone, other), "cost", tmp_path).seen
    record = trial(spec, replace(alone, gpu_bytes=3 * 2**30), other)
    assert "3 GiB on GPUs of" in observed(record, "cost", tmp_path).seen
