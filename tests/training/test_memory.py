"""How much memory a step takes, what is recomputed to save some, and what is said where it does not suffice."""

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import PATIENCE_S, runs_in, write_grid
from support.made_runs import CPU, MakeSpec, Train, numbers, result_of, stop_at

from ettsweep.models import architectures as registry
from ettsweep.models.vit_spec import VitSpec
from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec
from ettsweep.training import memory
from ettsweep.training.execution import Execution
from ettsweep.training.memory import (
    GIB,
    Fit,
    TrialModel,
    TrialStep,
    activation_bytes,
    evenly,
    fitting_micro_batch,
    largest_batches,
)
from ettsweep.training.run import train_run

MODELS = {
    "patches": VitSpec(width=64, depth=6, heads=4, patch_size=4, image_size=32, channels=3, classes=10),
    "narrow-mlp": VitSpec(width=96, depth=3, heads=2, patch_size=2, image_size=16, classes=10, mlp_ratio=2),
}
WIDE = {"width": 128, "depth": 4, "heads": 2, "patch_size": 1, "image_size": 8, "channels": 1, "classes": 10}
"""Some 2 MiB of activations a sample, so that they count beside Python and torch."""


# --- activations ----------------------------------------------------------------------------------------------------


def test_recomputed_activations_change_no_bit(train: Train, make_spec: MakeSpec, tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        spec = make_spec(precision=precision, model={"depth": 2})
        run = RunDir.create(tmp_path / "recomputed", spec)
        attempt = run.claim({}, after=0)
        assert attempt is not None
        train_run(run, attempt, CPU, Execution(activation_checkpointing=True), lambda: None)
        assert result_of(run)["execution"]["activation_checkpointing"] is True
        assert numbers(run) == numbers(train(spec))


# --- micro-batches --------------------------------------------------------------------------------------------------


def test_a_batch_is_cut_into_parts_of_one_size_or_into_as_few_and_as_alike_as_fit() -> None:
    cases = ((8, 8), (8, 99), (9, 8), (100, 33), (7, 1), (5, 0), (4096, 1400), (100, 39), (97, 50))
    assert [evenly(samples, at_most) for samples, at_most in cases] == [8, 8, 5, 25, 1, 1, 1024, 25, 49]
    for samples, at_most in itertools.product(range(1, 40), range(1, 40)):
        size = evenly(samples, at_most)
        assert size <= at_most
        needed = math.ceil(samples / at_most)
        assert math.ceil(samples / size) == needed or (samples % size == 0 and samples / size < 2 * needed + 1)


def test_on_the_cpu_micro_batches_follow_from_the_model_alone(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(model=WIDE, batch_size=100)
    assert fitting_micro_batch(spec, 100, CPU, recompute=False) == 100
    each = activation_bytes(spec.model, recompute=False)
    monkeypatch.setattr(memory, "CPU_ACTIVATIONS", 40 * each)
    assert fitting_micro_batch(spec, 100, CPU, recompute=False) == 25
    assert fitting_micro_batch(spec, 100, CPU, recompute=True) == 100
    monkeypatch.setattr(memory, "CPU_ACTIVATIONS", 1)
    assert fitting_micro_batch(spec, 100, CPU, recompute=False) == 1


class Tried(TrialModel):
    """A device on which a sample takes 10 bytes, the model 100, and no more than `full` bytes are there."""

    def __init__(self, full: int) -> None:
        self.full, self.sizes = full, list[int]()

    def step(self, size: int) -> TrialStep:
        self.sizes.append(size)
        if 100 + 10 * size > self.full:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return TrialStep(size, 1.0, 100 + 10 * size)


@pytest.mark.parametrize(
    ("full", "samples", "fits"),
    [(1000, 1024, 90), (1000, 90, 90), (1000, 12, 12), (1000, 8, 8), (300, 1024, 8), (200, 12, 8), (150, 1024, 1)],
)
def test_two_small_steps_tell_what_fits_and_neither_is_larger_than_asked_for(
    full: int, samples: int, fits: int
) -> None:
    trial = Tried(full)
    done = trial.two_steps(*memory.trial_sizes(samples, 1, full))
    assert max(1, memory.reckoned(done, samples, full)) == fits
    assert max(trial.sizes, default=0) <= samples


def attempt_with(spec: RunSpec, folder: Path, execution: Execution, stop_after: int | None = None) -> RunDir:
    run = RunDir.create(folder, spec)
    attempt = run.claim({}, after=max(run.numbers(), default=0))
    assert attempt is not None
    poll = stop_at(stop_after) if stop_after is not None else None
    train_run(run, attempt, CPU, execution, lambda: poll(attempt) if poll else None)
    return run


def test_a_run_goes_on_with_the_micro_batches_that_it_began_with_and_else_says_so(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec(batch_size=33)
    calm = attempt_with(spec, tmp_path / "calm", Execution(micro_batch=5))
    kept = attempt_with(spec, tmp_path / "kept", Execution(micro_batch=5), stop_after=10)
    attempt_with(spec, tmp_path / "kept", Execution())
    assert numbers(kept) == numbers(calm)
    assert kept.attempt(2).execution() == kept.attempt(1).execution()
    assert "warning" not in kept.attempt(2).log()

    changed = attempt_with(spec, tmp_path / "changed", Execution(micro_batch=5), stop_after=10)
    attempt_with(spec, tmp_path / "changed", Execution(micro_batch=7, activation_checkpointing=True))
    log = changed.attempt(2).log()
    assert "warning: micro_batch was 5, is 7: metrics can differ in the last bits from an undisturbed run's" in log
    assert "warning: activation_checkpointing was False, is True" in log
    losses = [[line["loss"] for line in run.history() if "loss" in line] for run in (changed, calm)]
    assert losses[0][:10] == losses[1][:10]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# --- out of memory --------------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys, torch._dynamo.config
from pathlib import Path
import ettsweep.training.run
from ettsweep.cli import main
torch.optim.SGD([torch.zeros(1)]).step()  # it imports more
here = 1024 * int(Path("/proc/self/status").read_text().partition("VmSize:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_AS, (here + int(sys.argv.pop(1)),) * 2)
main()
"""
"""The command line, with so many bytes more than it has when all is imported."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its size from Linux's /proc")
def test_a_step_that_does_not_fit_fails_with_words_that_help(tmp_path: Path) -> None:
    path = write_grid(
        tmp_path / "grid.yaml",
        model=WIDE,
        recipe={"batch_size": 512, "schedule": {"total_steps": 1, "warmup_steps": 0, "eval_every": 1}},
    )

    def train(*sets: str) -> "subprocess.CompletedProcess[str]":
        options = [word for setting in ("slots=1", "threads=1", *sets) for word in ("--launch-set", setting)]
        command = [
            "train",
            "--grid",
            path,
            "--set",
            "task.train_size=1700",
            "--results",
            tmp_path / "results",
            *options,
        ]
        limited = [sys.executable, "-c", LIMITED, str(950 * 2**20), *map(str, command)]
        return subprocess.run(limited, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    failed = train()
    assert failed.returncode == 1
    assert "out of memory: a micro-batch of 512 (of a batch of 512) does not fit into the memory of this machine" in (
        failed.stderr
    )
    assert "try --launch-set micro_batch=256, or --launch-set activation_checkpointing=true" in failed.stderr
    assert "`ettsweep doctor --grid FILE --fit` finds the largest that fits" in failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr
    done = train("activation_checkpointing=true")
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(tmp_path / "results")
    assert (result_of(run)["steps"], result_of(run)["execution"]["micro_batch"], run.numbers()) == (1, 512, [1, 2])


# --- the largest that fits ------------------------------------------------------------------------------------------


def fits(spec: RunSpec, samples: int, monkeypatch: pytest.MonkeyPatch, room: int | None = None) -> Sequence[Fit]:
    """Return what fits without and with recomputation, into `room` bytes more than this process has now."""
    if room is not None:
        total = int((memory.peak_resident_bytes() + room) / memory.ROOM)
        monkeypatch.setattr(memory, "available_bytes", lambda device: total)
    return list(largest_batches(spec, samples, CPU))


@pytest.mark.slow
def test_where_there_is_room_the_batch_is_the_limit(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fits(make_spec(), 32, monkeypatch)
    assert [(f.activation_checkpointing, f.micro_batch, f.limited) for f in found] == [
        (False, 32, "batch"),
        (True, 32, "batch"),
    ]
    assert all(f.samples_per_s > 0 for f in found)
    assert all(0 < f.memory_gib < 8 for f in found)
    assert [f.micro_batch for f in fits(make_spec(), 5, monkeypatch)] == [5, 5], "no more than asked for is tried"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures peaks through Linux's /proc")
def test_where_memory_is_the_limit_recomputation_fits_more(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(model=WIDE)
    each = activation_bytes(spec.model, recompute=False)
    memory.forget_peak()
    plain, recomputed = fits(spec, 10_000, monkeypatch, room=200 * each)
    assert (plain.limited, recomputed.limited) == ("memory", "memory")
    assert 100 < plain.micro_batch < 300
    assert recomputed.micro_batch > plain.micro_batch
    assert plain.micro_batch % 8 == recomputed.micro_batch % 8 == 0
    assert not plain.tried
    total = memory.available_bytes(CPU)
    assert plain.memory_gib == pytest.approx(memory.ROOM * total / GIB, rel=0.1)


def test_memory_of_this_machine_is_what_it_has_left_and_what_this_process_has() -> None:
    total = {line.split()[0]: line.split()[1:] for line in Path("/proc/meminfo").read_text().splitlines()}
    assert 0 < memory.available_bytes(CPU) <= 1024 * int(total["MemTotal:"][0])


def test_a_fit_on_the_cpu_measures_what_a_step_really_adds(make_spec: MakeSpec) -> None:
    """Peaks of the process, which know nothing of the formula."""
    spec: Any = make_spec(model=WIDE)
    trial = TrialModel(spec, CPU, recompute=False)
    trial.step(8)
    first, second = trial.step(8), trial.step(48)
    each = memory.slope_bytes(first, second)
    assert activation_bytes(spec.model, recompute=False) == pytest.approx(each, rel=0.5)


def test_what_a_sharded_model_takes_is_its_share_and_what_is_gathered() -> None:
    """R2C2 (2,688,739,328 parameters): 40.1 GiB of state, its 105 million embeddings, blocks of 16 n^2 parameters."""
    r2c2 = registry.model_spec("r2c2")
    state, outside, block = 16 * 2_688_739_328, 50265 * 2048 + 2 * 514 * 2048, 16 * 2048**2
    for processes in (1, 2, 8):
        assert memory.sharded_bytes(r2c2, processes) == state // processes + 14 * outside + 12 * block


def test_trials_are_of_few_samples_where_a_few_may_fill_the_device() -> None:
    assert memory.trial_sizes(512, 10, 1000) == (8, 24)
    assert memory.trial_sizes(512, 100, 1000) == (1, 3)
    assert memory.trial_sizes(2, 10, 1000) == (2, 2)


def test_a_worker_that_shares_a_gpu_plans_with_its_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5)
    for part, expected in ((1.0, 60), (0.5, 45), (0.25, 20)):
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda part=part: part)
        assert memory.available_bytes(torch.device("cuda")) == expected
