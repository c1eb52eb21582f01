"""What is measured of a device is what a watch says of the same work, and what is kept of it is found again."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.benchmark import Timer

from ettsweep.errors import StorageError
from ettsweep.models.cost import train_flops_per_sample
from ettsweep.spec import RunSpec
from ettsweep.training import loop, peak
from ettsweep.training.execution import Execution
from ettsweep.training.peak import keep_peaks, measure, measured_flops, median_s, peaks_path

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_seconds_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def work() -> None:
        now_s[0] += 0.004

    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    assert median_s(work, CPU, 0.02, 0.1) == pytest.approx(0.004, rel=1e-9)


def test_slow_work_is_done_a_few_times_all_the_same() -> None:
    calls: list[int] = []
    median_s(lambda: calls.append(time.sleep(0.002)), CPU, 0, 0)  # type: ignore[func-returns-value,arg-type]
    assert len(calls) == 2 + peak.TURNS


def test_products_are_counted_as_two_operations_for_each_of_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peak.SIZES, "cpu", (256,))
    monkeypatch.setattr(time, "perf_counter", time.thread_time)  # what others take meanwhile does not count
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    alone = Timer("torch.mm(a, b.T)", timer=time.thread_time, globals={"torch": torch, "a": a, "b": b})
    watched = 2 * 256**3 / alone.blocked_autorange(min_run_time=0.2).median
    reached = measure("fp32", CPU)
    assert (reached.precision, reached.size) == ("fp32", 256)
    assert watched / 3 < reached.flops < watched * 3


def test_the_best_size_counts_and_too_large_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def product_s(size: int, precision: str, device: torch.device) -> float:
        if size >= 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert torch.get_float32_matmul_precision() == "high"
        return {2: 1e-3, 4: 2e-3}[size]

    monkeypatch.setattr(peak, "_product_s", product_s)
    monkeypatch.setitem(peak.SIZES, "cpu", (2, 4, 8, 16))
    before = torch.get_float32_matmul_precision()
    assert measure("tf32", CPU) == peak.Reached("tf32", 4, 128 / 2e-3)
    assert torch.get_float32_matmul_precision() == before
    monkeypatch.setitem(peak.SIZES, "cpu", (8, 16))
    with pytest.raises(torch.OutOfMemoryError):
        measure("fp32", CPU)
    assert torch.get_float32_matmul_precision() == before


def test_what_is_kept_is_of_a_device_and_a_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured_flops("NVIDIA H200", "bf16") is None
    path = keep_peaks("NVIDIA H200", {"bf16": 7.9e14})
    assert keep_peaks("NVIDIA H200", {"fp32": 5e13}) == path
    assert [measured_flops("NVIDIA H200", precision) for precision in ("bf16", "fp32", "fp16")] == [7.9e14, 5e13, None]
    assert measured_flops("NVIDIA H200 NVL", "bf16") is None
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert measured_flops("NVIDIA H200", "bf16") is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"flops": 3}',
        '{"flops": {"bf16": "fast"}}',
        '{"flops": {"bf16": -1}}',
        '{"flops": {"bf16": 0}}',
    ],
)
def test_a_file_that_says_nothing_is_as_good_as_none(content: str) -> None:
    path = keep_peaks("card", {"bf16": 1e12})
    path.write_text(content)
    assert measured_flops("card", "bf16") is None
    keep_peaks("card", {"bf16": 2e12})
    assert measured_flops("card", "bf16") == 2e12


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(StorageError):
        keep_peaks("card", {"bf16": 1e12})
    assert measured_flops("card", "bf16") is None
    assert peaks_path("a/b: c").name.startswith("a-b-c-torch-")


def test_runs_are_told_both_peaks_of_all_their_devices(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    keep_peaks("NVIDIA H200", {"bf16": 7.9e14})
    spec = spec.model_copy(update={"precision": "bf16"})
    trainer = SimpleNamespace(
        spec=spec, device=torch.device("cuda"), group=SimpleNamespace(world=2), spent=None, step=0
    )
    timings = loop.timings_of(trainer, Execution(), time.monotonic)  # type: ignore[arg-type]
    assert (timings.peak_flops, timings.measured_flops) == pytest.approx((2 * 989.4e12, 2 * 7.9e14))
    assert timings.flops_per_sample == train_flops_per_sample(spec.model)
    trainer.device = CPU
    timings = loop.timings_of(trainer, Execution(peak_flops=1e12), time.monotonic)  # type: ignore[arg-type]
    assert (timings.peak_flops, timings.measured_flops) == (2e12, None)
