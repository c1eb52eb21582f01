"""Activations against torch's own account of what it keeps."""

import weakref

import pytest
import torch
from support.smallest import SMALLEST
from torch import Tensor

from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.build import build_model, example_inputs
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.model_cost import activation_bytes
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import ModelSpec

LONG = EncDecSpec(width=32, depth=5, heads=2, mlp_ratio=2, vocabulary=50, tokens=96, dropout=0.1, attention_dropout=0.1)


def kept_bytes(spec: ModelSpec, samples: int, *, recompute: bool) -> int:
    """Return the bytes that autograd keeps of a forward pass, weights aside."""
    model = build_model(spec, StrategySpec(s=0.0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.recompute = recompute
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    collected: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            collected[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs: list[weakref.ref[Tensor]] = []
    for block in model.residual_blocks():
        block.register_forward_pre_hook(lambda _, args: inputs.extend(map(weakref.ref, args)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(*example_inputs(spec, samples, torch.device("cpu")))
    for reference in inputs:
        if (tensor := reference()) is not None:  # recomputation may keep it where no hook sees it
            keep(tensor)
    assert outputs.requires_grad
    return sum(collected.values())


def per_sample(spec: ModelSpec, *, recompute: bool = False) -> float:
    return (kept_bytes(spec, 8, recompute=recompute) - kept_bytes(spec, 4, recompute=recompute)) / 4


TODAYS = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True, "head": "untied"}
SMALL = SMALLEST | {
    "long": LONG,
    "gpt, long, with dropout": model_spec("gpt-tiny").model_copy(
        update={"tokens": 256, "dropout": 0.1, "attention_dropout": 0.1}
    ),
    "gpt of today": model_spec("gpt-tiny").model_copy(update=TODAYS | {"depth": 4}),
}


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL)
def test_activations_are_reckoned_as_autograd_keeps_them(spec: ModelSpec) -> None:
    """With recomputation, one block at a time keeps more than its input."""
    assert activation_bytes(spec, recompute=False) == pytest.approx(per_sample(spec), rel=0.1)
    kept = per_sample(spec, recompute=True)
    one, two = (per_sample(spec.model_copy(update={"depth": depth})) for depth in (1, 2))
    block = two - one  # or one of the encoder and one of the decoder
    assert kept + 0.5 * block < activation_bytes(spec, recompute=True) < kept + 1.05 * block
