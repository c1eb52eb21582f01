"""One update of all members of a stack, against the update of each run by itself. On a GPU too, where there is one."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.made_runs import MakeSpec
from torch import Tensor

from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.ensemble.vmapped import Parameters
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.trainer import Trainer

DEVICES = [torch.device("cpu"), *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]
POINTS: list[dict[str, Any]] = [
    {"lr": 2.0**-5, "wd": 0.25, "strategy": {"s": None}},
    {"lr": 2.0, "wd": 2.0**-6, "strategy": {"s": 0.0}},
    {"lr": 0.25, "wd": 0.0, "strategy": {"s": 1.0}},
]
REL = {"cpu": 2e-6, "cuda": 2e-5}
"""On a GPU torch's fused kernel has 1 - beta2 in fp32, 1.3e-5 of it off."""

pytestmark = pytest.mark.parametrize("device", DEVICES, ids=str)


def runs_of(make_spec: MakeSpec, device: torch.device, **shared: Any) -> list[Trainer]:
    """Return three runs of one shape with other lr, wd and factors; in fp16 they double their scale every other step."""
    trainers = [prepare(make_spec(**shared | own_part), device) for own_part in POINTS]
    for trainer in trainers:
        if trainer.scaler.is_enabled():
            trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"growth_interval": 2})
            trainer.scaler.scale(torch.ones((), device=device))  # makes the scale that update() changes
    return trainers


def drawn(trainers: Sequence[Trainer], seed: int) -> Parameters:
    """Return gradients times loss scale; those of the first run are small, so that they are not clipped."""
    generator = torch.Generator().manual_seed(seed)
    gradients = Parameters()
    for name, parameter in trainers[0].model.named_parameters():
        values = torch.randn(len(trainers), *parameter.shape, generator=generator)
        values[0] *= 1e-3
        gradients[name] = values.to(parameter) * trainers[0].scaler.get_scale()
    return gradients


def update_alone(trainer: Trainer, gradients: Parameters, k: int, lr: float) -> tuple[Tensor, Tensor]:
    for name, parameter in trainer.model.named_parameters():
        parameter.grad = gradients[name][k].clone()
    return trainer.update(lr)


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    state = {
        name: tensor.clone() for name, tensor in checkpoint.named_tensors(trainer.model, trainer.optimizer).items()
    }
    return state | {f"scaler/{key}": torch.tensor(value) for key, value in trainer.scaler.state_dict().items()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Tensors agree within rounding of their largest entries; step counts and all of the loss scaler are equal."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if name.startswith("scaler/") or name.endswith("/step"):
            assert ours[name].item() == expected.item(), name
        else:
            atol = REL[expected.device.type] * float(expected.abs().max())
            torch.testing.assert_close(ours[name], expected, rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize(("precision", "clip_norm"), [("fp32", None), ("fp16", 0.5)])
def test_members_take_the_steps_of_runs_alone(
    make_spec: MakeSpec, device: torch.device, precision: str, clip_norm: float | None
) -> None:
    """One waits in two steps and falls behind; in fp16, the gradient of another overflows once."""
    shared = {"precision": precision, "optimizer": {"clip_norm": clip_norm}}
    together, alone = (runs_of(make_spec, device, **shared) for _ in range(2))
    stack = Stack(together)
    for step in range(6):
        lrs = {trainer: trainer.spec.lr / (1 + step) for trainer in together}
        if step in (2, 3):
            del lrs[together[2]]
        gradients = drawn(alone, step)
        if precision == "fp16" and step == 4:
            gradients["head_bias"][1, 3] = torch.inf
        results = stack.update(gradients, lrs)
        assert list(results) == list(lrs)
        for k, (trainer, single) in enumerate(zip(together, alone, strict=True)):
            if trainer in lrs:
                norm, scale = update_alone(single, gradients, k, lrs[trainer])
                torch.testing.assert_close(results[trainer][0], norm, rtol=REL[device.type], atol=0)
                assert results[trainer][1] == scale
            assert_close(state_of(trainer), state_of(single))
    counts = [int(trainer.optimizer.state[trainer.model.get_parameter("head")]["step"]) for trainer in together]
    assert counts == [6, 5 if precision == "fp16" else 6, 4]
