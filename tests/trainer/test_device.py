"""The device of a process that trains: what torch sees of it, and how its threads wait."""

import os
from types import SimpleNamespace

import pytest
import torch

from ettsweep.errors import LaunchError
from ettsweep.trainer import device
from ettsweep.trainer.device import check_gpu, prepare_device

CARD, OTHER = "GPU-5f0c6e1a-8ab0-1c3c-9a51-4bf5b8a1e9d2", "GPU-0e1c6e1a-8ab0-1c3c-9a51-4bf5b8a1e9d2"
INSTANCE = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"


@pytest.mark.parametrize(
    ("gpu", "uuid", "name", "right"),
    [
        (CARD, CARD, "NVIDIA H200", True),
        (CARD, OTHER, "NVIDIA H200", False),
        (INSTANCE, CARD, "NVIDIA H200 MIG 1g.18gb", True),  # some drivers report the card's UUID
        (INSTANCE, CARD, "NVIDIA H200", False),
        ("3", OTHER, "NVIDIA H200", True),
    ],
)
def test_torch_must_have_the_gpu_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, gpu: str, uuid: str, name: str, right: bool
) -> None:
    seen = SimpleNamespace(uuid=uuid[4:], name=name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen)
    if right:
        check_gpu(gpu)
        return
    with pytest.raises(LaunchError) as error:
        check_gpu(gpu)
    assert str(error.value).startswith(f"this worker is for GPU {gpu}, but torch has {name} (UUID {uuid[4:]}): ")


def test_a_gpu_is_shown_to_torch_alone_and_its_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    shares = list[float]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr(device, "check_gpu", lambda gpu: None)
    assert prepare_device("cuda", CARD, sharers=4) == torch.device("cuda")
    assert (os.environ["CUDA_VISIBLE_DEVICES"], shares) == (CARD, [0.25])
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64", "as the user has it"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LaunchError, match="torch sees no GPU"):
        prepare_device("cuda")
