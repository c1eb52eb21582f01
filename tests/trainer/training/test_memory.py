"""How much memory a step takes, what is recomputed to save some, and what is said where it does not suffice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.here import train_once
from support.made_runs import CPU, MakeSpec, Train, never, numbers, result_of, stop_at

from ettsweep.errors import DeviceMemoryError
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.models.registry import parameter_count
from ettsweep.trainer.models.vit import Vit
from ettsweep.trainer.training import memory
from ettsweep.trainer.training.memory import TrialStep, activation_bytes, even_micro_batch, fitting_micro_batch
from ettsweep.trainer.training.runtime_settings import RuntimeSettings

WIDE = {"width": 128, "depth": 4, "heads": 2, "patch_size": 1, "image_size": 8, "channels": 1, "classes": 10}
"""Some 2 MiB of activations a sample, so that they count beside Python and torch."""


def test_recomputed_activations_change_no_bit(train: Train, make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(precision="bf16", model={"depth": 2})
    run = RunDir.create(tmp_path / "recomputed", spec)
    train_once(run, RuntimeSettings(activation_checkpointing=True))
    assert result_of(run)["execution"]["activation_checkpointing"] is True
    assert numbers(run) == numbers(train(spec))


def test_a_batch_is_cut_into_parts_of_one_size_or_into_as_few_and_as_alike_as_fit() -> None:
    cases = ((8, 8), (8, 99), (9, 8), (100, 33), (7, 1), (5, 0), (4096, 1400), (100, 39), (97, 50))
    assert [even_micro_batch(samples, at_most) for samples, at_most in cases] == [8, 8, 5, 25, 1, 1, 1024, 25, 49]


def test_on_the_cpu_micro_batches_follow_from_the_model_alone(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(model=WIDE, batch_size=100)
    monkeypatch.setattr(memory, "_trial_step", lambda *asked: TrialStep(asked[5], 1.0, 0))  # there is room
    each = activation_bytes(spec.model, recompute=False)
    for limit, recompute, expected in (
        (100 * each, False, 100),
        (40 * each, False, 25),
        (40 * each, True, 100),
        (1, False, 1),
    ):
        memory._largest_cpu_step.cache_clear()
        monkeypatch.setattr(memory, "CPU_ACTIVATION_BYTES", limit)
        assert fitting_micro_batch(spec, CPU, recompute=recompute) == expected


class Full:
    """A device on which a model has no memory for more than `most` samples at once, and says so as torch's CPU does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        self.most, self.sizes, forward = limit, list[int](), Vit.forward
        self.says = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"

        def limited(model: Vit, images: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():  # what is evaluated keeps little
                self.sizes.append(len(images))
                if len(images) > self.most:
                    raise RuntimeError(self.says)
            return forward(model, images)

        monkeypatch.setattr(Vit, "forward", limited)


@pytest.fixture(autouse=True)
def nothing_tried() -> Iterator[None]:
    memory._largest_cpu_step.cache_clear()
    yield
    memory._largest_cpu_step.cache_clear()


def test_a_batch_that_does_not_fit_is_halved_until_it_does_or_that_is_told(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two micro-batches of what fits are tried: beside the gradients of the first."""
    full = Full(monkeypatch, 49)
    assert fitting_micro_batch(make_spec(batch_size=97), CPU, recompute=False) == 33, "cut alike where it can be"
    assert full.sizes == [97, 33, 33]
    full.most = 0
    with pytest.raises(DeviceMemoryError, match="a micro-batch of 1 "):
        fitting_micro_batch(make_spec(), CPU, recompute=False)
    full.says = "shapes cannot be multiplied"
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fitting_micro_batch(make_spec(batch_size=31), CPU, recompute=False)


def test_a_step_that_leaves_too_little_of_a_gpu_does_not_fit(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample takes 10 bytes, the model 100, and 85 of a hundred bytes are planned with."""
    monkeypatch.setattr(memory, "_trial_step", lambda *asked: TrialStep(asked[5], 1.0, 100 + 10 * asked[5]))
    spec = make_spec(batch_size=100)

    def found(free_bytes: int) -> int:
        monkeypatch.setattr(memory, "available_bytes", lambda device: free_bytes)
        step = memory.largest_step(spec, CPU, recompute=False)
        return step.size if step else 0

    assert [found(free_bytes) for free_bytes in (1300, 1100, 1000, 600)] == [100, 50, 50, 25]
    assert found(0) == 1, "what did go through, if with little to spare"


def test_the_runs_of_an_ensemble_fit_into_half_of_the_memory(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(batch_size=32)
    state_bytes = 16 * parameter_count(spec.model)
    sample_bytes = activation_bytes(spec.model, recompute=False)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * 5 * (state_bytes + 32 * sample_bytes))
    assert [memory.fitting_runs(spec, CPU, None, workers) for workers in (1, 2)] == [5, 2]
    assert memory.fitting_runs(spec, CPU, 1, workers=2) > 2


def test_a_run_halves_its_micro_batches_before_its_first_step_and_keeps_to_that(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(batch_size=32)
    calm = attempt_with(spec, tmp_path / "calm", RuntimeSettings(micro_batch=8))
    full = Full(monkeypatch, 8)
    halved = attempt_with(spec, tmp_path / "halved", RuntimeSettings(), stop_after=10)
    assert halved.attempt(1).execution()["micro_batch"] == 8
    assert full.sizes[:5] == [32, 16, 8, 8, 8]
    full.most, full.sizes = 1000, []
    attempt_with(spec, tmp_path / "halved", RuntimeSettings())
    assert set(full.sizes) == {8}, "nothing is tried again"
    assert len(full.sizes) == 4 * 14
    assert halved.attempt(2).resumed_from() == (1, 10)
    assert "warning" not in halved.attempt(2).log_text()
    assert numbers(halved) == numbers(calm)


def attempt_with(spec: RunSpec, folder: Path, settings: RuntimeSettings, stop_after: int | None = None) -> RunDir:
    run = RunDir.create(folder, spec)
    train_once(run, settings, never if stop_after is None else stop_at(stop_after))
    return run


def test_micro_batches_that_a_user_wants_and_that_do_not_fit_fail_with_words_that_help(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Full(monkeypatch, 8)
    failed = attempt_with(make_spec(batch_size=32), tmp_path, RuntimeSettings(micro_batch=16))
    assert failed.status().reason == (
        "out of memory: a micro-batch of 16 (of a batch of 32) does not fit into the memory of this machine; "
        "try --launch-set trainer.micro_batch=8, or --launch-set trainer.activation_checkpointing=true; "
        "`ettsweep doctor FILE --fit` finds the largest that fits"
    )
    assert "Traceback" not in failed.attempt(1).log_text()


def test_memory_is_what_a_machine_has_left_and_a_worker_that_shares_a_gpu_has_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = {line.split()[0]: line.split()[1:] for line in Path("/proc/meminfo").read_text().splitlines()}
    assert 0 < memory.available_bytes(CPU) <= 1024 * int(total["MemTotal:"][0])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5)
    for part, expected in ((1.0, 60), (0.5, 45), (0.25, 20)):
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda part=part: part)
        assert memory.available_bytes(torch.device("cuda")) == expected
