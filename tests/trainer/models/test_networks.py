"""What holds for the module of every architecture."""

from typing import Any

import pytest
import torch
from support.smallest import SMALLEST
from torch import Tensor

from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import ModelSpec, TextModel

CPU, NTK = torch.device("cpu"), StrategySpec(s=0.0)

TODAYS = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 2, "qk_norm": True, "head": "untied"}
MODELS: dict[str, ModelSpec] = SMALLEST | {"gpt of today": model_spec("gpt-tiny").model_copy(update=TODAYS)}
EACH = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def initialised(model: ModelSpec) -> Network:
    network = build_model(model, NTK)
    initialise(network, model, NTK, seed=0)
    return network


def with_dropout() -> dict[str, ModelSpec]:
    fields: dict[str, Any] = {"dropout": 0.3, "attention_dropout": 0.3}
    drawn = {name: model for name, model in MODELS.items() if fields.keys() <= type(model).model_fields.keys()}
    return MODELS | {f"{name} with dropout": model.model_copy(update=fields) for name, model in drawn.items()}


@pytest.mark.parametrize("model", with_dropout().values(), ids=with_dropout())
def test_recomputation_gives_the_same_outputs_gradients_and_next_draws(model: ModelSpec) -> None:
    network, results = initialised(model).train(), []
    for recompute in (False, True):
        network.recompute = recompute
        network.zero_grad()
        torch.manual_seed(3)
        outputs = network(*example_inputs(model, 3, CPU))
        outputs.square().sum().backward()
        results.append((outputs.detach(), [p.grad for p in network.parameters()], torch.rand(2)))
    assert all(isinstance(gradient, Tensor) for gradient in results[0][1])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@EACH
def test_bf16_autocast_runs_close_to_fp32_and_gives_fp32_gradients(model: ModelSpec) -> None:
    network, inputs = initialised(model), example_inputs(model, 2, CPU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = network(*inputs)
    outputs.float().square().sum().backward()
    right = network(*inputs)
    error = ((outputs.float() - right).norm() / right.norm()).item()
    if isinstance(model, TextModel):
        assert (outputs.dtype, error < 1e-3) == (torch.float32, True), "a loss is summed in fp32"
    assert 0 < error < 0.02
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}
