"""How a run is trained changes its numbers by rounding at most: compiled blocks, and what a launch profile says."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.here import train_once
from support.made_runs import CPU, MakeSpec, Train, curve, numbers, result_of, stop_at

from ettsweep.launch.local import LocalProfile
from ettsweep.launch.profile import AnyProfile, load_profile
from ettsweep.launch.slots import Slot
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import find_grid, load_sweep_spec
from ettsweep.trainer.models.model_cost import train_flops_per_sample
from ettsweep.trainer.training import runtime_settings as module
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve
from ettsweep.worker.commands import trainer_settings

CPU_SLOT, GPU_SLOT = Slot("cpu-0", "cpu", None, 3), Slot("gpu-0", "cuda", "0", 6)


def slot_settings(profile: AnyProfile, slot: Slot) -> RuntimeSettings:
    return RuntimeSettings.of(trainer_settings(profile, slot), None)


def test_a_profile_says_how_a_run_is_trained() -> None:
    sets = ["compile=true", "micro_batch=7", "activation_checkpointing=true", "corrupt_images=fail", "peak_tflops=2"]
    sets += ["sharded=false", "log=[wandb]", "loader_workers=2"]
    profile = load_profile("local", [*(f"trainer.{text}" for text in sets), "checkpoint_every_steps=9"])
    assert slot_settings(profile, CPU_SLOT) == RuntimeSettings(
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
    assert slot_settings(LocalProfile(), CPU_SLOT) == RuntimeSettings(most_threads=3)
    expected = RuntimeSettings(loader_workers=6, most_threads=6)
    assert slot_settings(LocalProfile(), GPU_SLOT) == expected, "a loader for each of its CPUs"
    assert slot_settings(LocalProfile(threads=3), CPU_SLOT).threads == 3


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
        for steps in [*stops, 99]:
            train_once(run, RuntimeSettings(compile=True), stop_at(steps))
        return run

    eager, calm, stopped = train(spec), compiled("calm"), compiled("stopped", 10)
    assert curve(calm) == pytest.approx(curve(eager), rel=1e-5)
    assert curve(calm) != curve(eager), "it was compiled"
    assert result_of(calm)["execution"]["compile"] is True
    assert numbers(stopped) == numbers(calm)


@pytest.fixture
def one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def resolved(spec: RunSpec, settings: RuntimeSettings, before: dict[str, object] | None = None) -> RuntimeSettings:
    return resolve(spec, CPU, settings, SINGLE_PROCESS, before or {}, print)


def threads_for(spec: RunSpec, limit: int, stack_size: int = 1) -> int | None:
    return resolved(spec, RuntimeSettings(most_threads=limit, stack_size=stack_size, micro_batch=1)).threads


@pytest.mark.parametrize(("grid", "threads"), [("vit-digits", 1), ("encdec-tiny", 2), ("bart-large", 64)])
def test_threads_follow_from_the_work_of_a_step_and_the_cores_of_the_slot(grid: str, threads: int) -> None:
    """A thread for each 1e9 FLOPs: vit-digits has 64 samples of 6.2e5, encdec-tiny 16 of 1.6e8."""
    spec = load_sweep_spec(find_grid(grid)).studies()[0].base
    assert threads_for(spec, 64) == threads
    assert threads_for(spec, 1) == 1
    assert threads_for(spec, 64, stack_size=10**6) == 64


def test_a_profile_or_what_a_run_had_before_comes_first_if_this_machine_has_it(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THREAD_FLOPS", 1.0)
    monkeypatch.setattr(module, "cores", lambda: 4)
    for requested, before, expected in (
        (None, {}, 2),
        (3, {"threads": 1}, 3),
        (None, {"threads": 4}, 4),
        (None, {"threads": 5}, 2),
    ):
        settings = RuntimeSettings(threads=requested, most_threads=2)
        assert resolved(make_spec(), settings, before).threads == expected


@pytest.mark.usefixtures("one_thread_afterwards")
def test_a_run_is_trained_with_them_and_says_so(make_spec: MakeSpec, results: Path) -> None:
    run, seen = RunDir.create(results, make_spec()), set[int]()
    attempt = train_once(run, RuntimeSettings(threads=2), lambda attempt: seen.add(torch.get_num_threads()))
    assert seen == {2}
    assert attempt.execution()["threads"] == result_of(run)["environment"]["threads"] == 2


def test_runs_of_a_stack_have_the_same_micro_batch_and_threads_for_a_step_as_large_as_all_of_theirs(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, settings = make_spec(), RuntimeSettings(most_threads=8)
    monkeypatch.setattr(module, "THREAD_FLOPS", spec.batch_size * train_flops_per_sample(spec.model))
    of_five = resolved(spec, settings.for_stack(5))
    assert (of_five.threads, of_five.micro_batch) == (5, spec.batch_size)
    assert resolved(spec, settings).threads == 1
    assert of_five.facts(SINGLE_PROCESS)["ensemble"] == 5
