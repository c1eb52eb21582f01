"""What holds for the module of every architecture."""

from typing import Any

import pytest
import torch
from support.smallest import SMALLEST
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import ModelSpec, TextModel

CPU, NTK = torch.device("cpu"), StrategySpec(s=0.0)

TODAYS = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 2, "qk_norm": True, "head": "untied"}
MODELS: dict[str, ModelSpec] = SMALLEST | {"gpt of today": model_spec("gpt-tiny").model_copy(update=TODAYS)}


def initialised(model: ModelSpec) -> Network:
    network = build_model(model, NTK)
    initialise(network, model, NTK, seed=0)
    return network


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_recomputation_gives_the_same_outputs_gradients_and_next_draws(model: ModelSpec) -> None:
    if isinstance(model, TextModel):
        model = model.model_copy(update={"dropout": 0.3, "attention_dropout": 0.3})
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


class Allowed(TorchFunctionMode):
    """Notes which kernels torch may take for each call of attention, with a mask or not."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[tuple[bool, frozenset[str]]]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            names = ("cudnn", "flash", "mem_efficient", "math")
            on = frozenset(name for name in names if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())
            self.found.append((args[3] is not None, on))
            return args[0]  # of the shape of what comes out; kernels would ask the GPU
        return function(*args, **kwargs or {})


def test_with_a_mask_no_kernel_of_a_gpu_is_allowed_whose_gradients_may_be_nan() -> None:
    """No GPU is needed where tensors only say what comes out."""
    spec = SMALLEST["encdec-tiny"]
    with FakeTensorMode(), Allowed() as allowed, torch.device("cuda"):
        words_BT = torch.ones((2, spec.tokens), dtype=torch.long)
        build_model(spec, NTK).hidden(words_BT, words_BT)  # type: ignore[operator]
    every_kernel = frozenset({"cudnn", "flash", "mem_efficient", "math"})
    assert len(allowed.found) == 3 * spec.depth
    assert set(allowed.found) == {(False, every_kernel), (True, frozenset({"mem_efficient", "math"}))}
