"""What runs will cost and have cost: closed forms, from result files as they lie in real folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.states import save_state

from ettsweep.launch.cost import CostEstimator, format_device_hours
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.slurm import SlurmProfile
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.study.budget import Forecast
from ettsweep.study.plan import make_plan

HERE = LocalProfile(devices="cpu", slots=2, threads=1)
CPU: dict[str, Any] = {"device": "cpu", "threads": 1}

Specs = Callable[..., RunSpec]


def finish(results: Path, spec: RunSpec, device_s: float, location: Any = CPU, processes: int = 1, **more: Any) -> None:
    """Write a finished run."""
    result = {"status": "done", "score": 1.0, "steps": spec.schedule.last_step, "device_s": device_s}
    result |= {"environment": location, "execution": {"processes": processes}} | more
    assert RunDir.create(results, spec).finish(result, [])


def stop(results: Path, spec: RunSpec, progress: float, saved: bool = True) -> Attempt:
    """Write an attempt that ended there, with or without a checkpoint."""
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=len(run.attempt_numbers()))
    assert attempt
    attempt.append(attempt.timings_path, [{"progress": progress, "wall_s": 1.0}])
    attempt.record_failure("interrupted", "terminated")
    if saved:
        save_state(attempt)
    return attempt


def before(results: Path, specs: list[RunSpec], profile: AnyProfile = HERE) -> str:
    return CostEstimator(profile).describe_estimate(make_plan(specs, load_run_index(results)))


def test_device_hours_have_as_many_digits_as_anybody_wants() -> None:
    for seconds, hours in ((0.1, "0.0001 device hours"), (3600, "1 device hour"), (4.321e6, "1200 device hours")):
        assert format_device_hours(seconds) == hours


def test_runs_take_as_long_as_those_of_their_kind_did(results: Path, make_spec: Specs) -> None:
    new = [make_spec(seed=seed, strategy={"s": 1.0}, lr=2.0) for seed in range(5)]
    assert before(results, []) == ""
    assert before(results, new) == "5 runs to train"
    finish(results, make_spec(batch_size=16), 7200)
    assert before(results, new) == "5 runs to train", "nothing like them was timed"
    finish(results, make_spec(lr=4.0), 20, status="diverged", diverged_step=1, score=None, steps=0.24)
    assert before(results, new) == "5 runs to train", "it diverged: its 20 s may all be start-up, and not 1% of a run"
    finish(results, make_spec(), 700)
    finish(results, make_spec(lr=0.5), 740)
    assert before(results, new) == (
        "5 runs to train: about 1 device hour, 36 min 0 s on 2 slots (measured on 2 runs of the same kind)"
    )
    assert before(results, [*new, make_spec(model={"width": 16})]) == (
        "6 runs to train: about 1 device hour for 5 of them (measured on 2 runs of the same kind)"
    )


GPU = {"device": "cuda", "device_name": "NVIDIA H200", "threads": 4}


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this machine have that GPU."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-a1)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("location", "each", "profile", "fits"),
    [
        (CPU, 1, HERE, True),
        (CPU | {"threads": 2}, 1, HERE, False),
        (CPU, 2, HERE, False),
        (GPU, 1, LocalProfile(devices=[0]), True),
        (GPU | {"device_name": "NVIDIA L4"}, 1, LocalProfile(devices=[0]), False),
        (GPU | {"device_name": "NVIDIA L4"}, 1, SlurmProfile(kind="slurm"), True),
        (CPU | {"threads": 4}, 1, SlurmProfile(kind="slurm"), False),
    ],
)
@pytest.mark.usefixtures("one_gpu")
def test_only_such_devices_are_a_measure(
    results: Path, make_spec: Specs, location: Any, each: int, profile: AnyProfile, fits: bool
) -> None:
    finish(results, make_spec(), 3600, location=location, processes=each)
    told = before(results, [make_spec(seed=1)], profile)
    assert told.startswith("1 run to train: about 1 device hour") if fits else told == "1 run to train"


def test_at_the_end_it_is_told_what_runs_cost_and_saved(results: Path, make_spec: Specs) -> None:
    existing, fresh, taken_on, failed = (make_spec(seed=seed) for seed in range(4))
    finish(results, existing, 1800)
    stop(results, taken_on, 0.75)
    plan = make_plan([existing, fresh, taken_on, failed], load_run_index(results))
    now_s = iter([100.0, 1000.0])
    account = CostEstimator(HERE, clock=lambda: next(now_s))
    assert account.describe_estimate(plan).startswith("3 runs to train: about 1.1 device hours")
    assert account.describe_estimate(plan) == "", "they are the same, whose worker died"
    assert account.describe_cost(plan.run_index) == "1 run was finished already: 0.5 device hours saved"
    finish(results, fresh, 3600)
    finish(results, taken_on, 3600)  # a quarter of it by this command
    assert account.describe_cost(load_run_index(results)) == (
        "2 of 3 runs trained: 1.2 device hours in 15 min 0 s; 1 run was finished already: 0.5 device hours saved"
    )


def test_the_cost_to_come_is_announced_at_first_and_when_it_has_doubled(results: Path, make_spec: Specs) -> None:
    finish(results, make_spec(), 3600)
    cost_estimator = CostEstimator(HERE, in_rounds=True)

    def announce(seeds: Sequence[int], likely: int, at_most: float) -> str:
        plan = make_plan([make_spec(seed=seed) for seed in seeds], load_run_index(results))
        return cost_estimator.describe_estimate(plan, Forecast(likely, at_most))

    told = "about 6 runs left, at most 100: about 6 device hours, 3 h 0 min on 2 slots"
    assert announce([0, 1, 2], 6, 100) == f"{told} (measured on 1 run of the same kind)"
    assert announce([3, 4], 9, 98) == "", "2 + 9 are not twice as many as 6"
    assert announce([5], 8, 96) == "about 8 runs left, at most 96: about 8 device hours, 4 h 0 min on 2 slots"
    assert announce([6], 18, 95) == "", "it is compared with the last one, 4 + 8"
    assert announce([7], 19, 19) == "19 runs left: about 19 device hours, 10 h 0 min on 2 slots"
    assert cost_estimator.describe_cost(load_run_index(results)) == ""


def test_what_runs_took_that_were_cancelled_or_failed_is_part_of_the_cost(results: Path, make_spec: Specs) -> None:
    """Where nothing was trained to its end too; of a run that was begun before, what it has had since."""
    fresh, begun, failed = (make_spec(seed=seed) for seed in range(3))
    stop(results, begun, 0.2)
    account = CostEstimator(HERE, in_rounds=True, clock=lambda: 0.0)
    account.describe_estimate(make_plan([fresh, begun, failed], load_run_index(results)))
    for spec, progress in ((fresh, 0.5), (begun, 0.8), (failed, 0.1)):
        attempt = stop(results, spec, progress)
        attempt.append(attempt.timings_path, [{"progress": progress, "wall_s": 3600.0, "device_s": 3600.0}])
        if spec is not failed:
            RunDir(attempt.run).cancel()
    attempt.events_path.unlink()
    attempt.record_failure("error", "RuntimeError: out of luck")
    hours = 1 + 0.6 / 0.8 + 1
    told = account.describe_cost(load_run_index(results))
    assert told == f"0 of 3 runs trained, 2 cancelled, 1 failed: {hours:.2g} device hours in 0 s"
