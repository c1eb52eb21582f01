"""CUDA_VISIBLE_DEVICES means here what CUDA takes it for; the driver lists what a real one prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import InputError
from ettsweep.launch import gpus
from ettsweep.launch.gpus import cuda_devices, listed_cards, visible_gpus
from ettsweep.launch.local import LocalProfile

A = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
B = "GPU-8932a000-3c1f-0b77-9a10-5d2b1a9f0e11"
C = "GPU-b2b2b2b2-0000-4000-8000-000000000000"
M1 = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
M2 = "MIG-28fa2b8e-5e3c-52f2-8d33-6f2e4a5f9d10"
M3 = "MIG-0d8b1f60-45b1-5b5c-9f6f-0a7b6c1d2e3f"


def line(number: int, name: str, uuid: str) -> str:
    return f"GPU {number}: {name} (UUID: {uuid})"


H200 = "NVIDIA H200"
THREE = [line(0, H200, A), line(1, H200, B), line(2, H200, C)]
SPLIT = [
    line(0, H200, A),
    f"  MIG 3g.20gb     Device  0: (UUID: {M1})",
    f"  MIG 1g.5gb      Device  1: (UUID: {M2})",
    *THREE[1:],
    f"  MIG 7g.40gb     Device  0: (UUID: {M3})",
]

Driver = Callable[[list[str]], None]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return a function that has the driver's tool list GPUs."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    gpus._torch_uuids.cache_clear()

    def install(lines: list[str]) -> None:
        listed = {("-L",): "\n".join(lines) + "\n"}
        monkeypatch.setattr(gpus, "_nvidia_smi", lambda *arguments: listed[arguments])

    return install


WHOLE_CARDS = [
    pytest.param("0", [A], id="a number"),
    pytest.param("2,1", [C, B], id="the order is that of the entries"),
    pytest.param("0,2,-1,1", [A, C], id="an invalid index hides itself and those after it"),
    pytest.param("", [], id="an empty value hides all"),
    pytest.param("0,1,0", [], id="an index twice hides all"),
    pytest.param(" 0 , 1 ", [A, B], id="spaces around numbers"),
    pytest.param("GPU-b", [C], id="the beginning of a UUID"),
    pytest.param("GPU-b,GPU-8932,GPU-8932a", [C], id="that of two hides itself and those after it"),
    pytest.param("GPU-b,GPU-b2", [], id="a card twice hides all"),
    pytest.param("1,GPU-b", [B], id="no UUIDs among numbers"),
]


@pytest.mark.parametrize(("value", "expected"), WHOLE_CARDS)
def test_cards_are_those_that_cuda_shows(driver: Driver, value: str, expected: list[str]) -> None:
    driver(THREE)
    assert cuda_devices(value, listed_cards()) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), WHOLE_CARDS)
def test_torchs_own_reading_is_the_same(monkeypatch: pytest.MonkeyPatch, value: str, expected: list[str]) -> None:
    """It was compared with a driver."""
    import torch

    uuids = [A, B, C]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    parsed: list[Any] = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, uuids)
    known = next((k for k, number in enumerate(parsed) if number >= len(uuids)), len(parsed))
    assert [uuids[number] for number in parsed[:known]] == expected


@pytest.mark.parametrize(
    ("lines", "value", "expected"),
    [
        pytest.param(SPLIT, None, [M1, M2, B, M3], id="nothing is set: all instances, and cards that are whole"),
        pytest.param([], None, [], id="no driver"),
        pytest.param(SPLIT, "1,2,0", [B, M3, M1], id="numbers count cards, not instances"),
        pytest.param(SPLIT, A, [M1], id="the same by the card's UUID"),
        pytest.param(SPLIT, f"{M3},{M1}", [M3, M1], id="several, for a worker each"),
        pytest.param(SPLIT, f"{M2},{B}", [M2], id="no cards among instances"),
        pytest.param(SPLIT, f"MIG-{A}/2/0", [f"MIG-{A}/2/0"], id="an instance by its numbers"),
        pytest.param([], "3,1", ["3", "1"], id="without the driver's tool, CUDA alone knows"),
    ],
)
def test_instances_and_what_the_driver_does_not_list(
    driver: Driver, lines: list[str], value: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(lines)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == expected
    assert [slot.gpu for slot in LocalProfile().resolve_slots() if slot.gpu] == expected


def test_who_hides_all_gpus_by_mistake_is_not_sent_to_the_cpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(THREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    with pytest.raises(InputError, match=r"^CUDA_VISIBLE_DEVICES=0,0 hides all 3 GPUs of .*: a repeated entry hides"):
        LocalProfile().resolve_slots()
    for devices, value in (("cpu", "0,0"), ("auto", "NoDevFiles")):  # as SLURM hides them
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert {slot.device for slot in LocalProfile(devices=devices).resolve_slots()} == {"cpu"}


def test_different_cards_are_in_cudas_order(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In another process, a module in place of torch reports the second GPU first."""
    driver([line(0, "NVIDIA GeForce GTX 1080", A), line(1, "NVIDIA GeForce RTX 3090", B)])
    module = tmp_path / "modules" / "torch"
    module.mkdir(parents=True)
    (module / "__init__.py").touch()
    (module / "cuda.py").write_text(
        "import os; from types import SimpleNamespace as S; assert 'CUDA_VISIBLE_DEVICES' not in os.environ\n"
        f"uuids = {[B.removeprefix('GPU-'), A.removeprefix('GPU-')]}\n"
        "device_count = lambda: len(uuids); get_device_properties = lambda k: S(uuid=uuids[k])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(module.parent))
    for order, value, expected in (("FASTEST_FIRST", "0,1", [B, A]), ("PCI_BUS_ID", "0", [A]), ("", A, [A])):
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert visible_gpus() == expected
