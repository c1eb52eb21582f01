"""How a run is trained changes its numbers by rounding at most: compiled blocks, and what a launch profile says."""

import shutil
from pathlib import Path

import pytest
from support.made_runs import CPU, MakeSpec, Train, numbers, result_of, stop_at

from ettsweep.launch.profiles import LocalProfile, Slot, load_profile
from ettsweep.runs.folder import RunDir
from ettsweep.training.execution import Execution
from ettsweep.training.run import train_run
from ettsweep.worker.devices import execution

CPU_SLOT, GPU_SLOT = Slot("cpu-0", "cpu", None, 3), Slot("gpu-0", "cuda", "0", 6)


def test_a_profile_says_how_a_run_is_trained() -> None:
    sets = ["compile=true", "micro_batch=7", "activation_checkpointing=true", "corrupt_images=fail", "peak_tflops=2"]
    profile = load_profile(
        "local", [*sets, "sharded=false", "log=[wandb]", "loader_workers=2", "checkpoint_every_steps=9"]
    )
    assert execution(profile, CPU_SLOT) == Execution(
        checkpoint_every_steps=9,
        most_threads=3,
        micro_batch=7,
        loader_workers=2,
        compile=True,
        activation_checkpointing=True,
        sharded=False,
        corrupt_images="fail",
        sinks=("wandb",),
        peak_flops=2e12,
    )


def test_what_a_profile_leaves_open_follows_from_the_slot() -> None:
    assert execution(LocalProfile(), CPU_SLOT) == Execution(most_threads=3)
    expected = Execution(loader_workers=6, most_threads=6)
    assert execution(LocalProfile(), GPU_SLOT) == expected, "a loader for each of its CPUs"
    assert execution(LocalProfile(threads=3), CPU_SLOT).threads == 3


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="compiles for the CPU")
@pytest.mark.filterwarnings("default")
def test_compiled_blocks_change_rounding_alone_and_a_compiled_run_is_resumed_bit_for_bit(
    train: Train, make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    spec = make_spec(lr=0.25, model={"depth": 2})

    def compiled(folder: str, *stops: int) -> RunDir:
        run = RunDir.create(tmp_path / folder, spec)
        for number, steps in enumerate([*stops, 99]):
            attempt, poll = run.claim({}, after=number), stop_at(steps)
            assert attempt is not None
            train_run(run, attempt, CPU, Execution(compile=True), lambda: poll(attempt))  # noqa: B023
        return run

    eager, calm, stopped = train(spec), compiled("calm"), compiled("stopped", 10, 7)
    losses = [[line["loss"] for line in run.history() if "loss" in line] for run in (eager, calm)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[1] != losses[0], "it was compiled"
    assert result_of(calm)["execution"]["compile"] is True
    assert stopped.numbers() == [1, 2, 3]
    assert numbers(stopped) == numbers(calm)
