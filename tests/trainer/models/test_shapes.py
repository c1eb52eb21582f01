from typing import Any

import pytest
import torch

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import Dims, Group
from ettsweep.trainer.models.build import build_model
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.registry import dims, model_spec, named_models, parameter_count, parameter_shapes
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec

ODD = VitSpec(width=12, depth=3, heads=2, mlp_ratio=3, patch_size=5, image_size=15, channels=2, classes=7, ln_eps=1e-3)
ODD_TEXT = EncDecSpec(width=12, depth=2, heads=2, mlp_ratio=3, vocabulary=37, tokens=7)
PLAIN = GptSpec(width=12, depth=2, heads=2, mlp_ratio=3, vocabulary=37, tokens=7)
MODERN = PLAIN.model_copy(
    update={"head": "untied", "norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True}
)
SPECS: list[ModelSpec] = [*named_models().values(), ODD, ODD_TEXT, PLAIN, MODERN]


@pytest.mark.parametrize("spec", SPECS)
def test_shapes_are_those_of_the_torch_model(spec: ModelSpec) -> None:
    with torch.device("meta"):
        model = build_model(spec, StrategySpec(s=0.0))
    expected = [(name, tuple(tensor.shape)) for name, tensor in model.named_parameters()]
    assert [(parameter.name, parameter.shape) for parameter in parameter_shapes(spec)] == expected
    assert parameter_count(spec) == sum(tensor.numel() for tensor in model.parameters())
    assert not list(model.buffers())


@pytest.mark.parametrize(
    ("name", "count"),
    # vit-digits: 512 + 128 + 2 * 12 * 32^2 + 330.
    # gpt-tiny: (512 + 64) * 64 + 2 * 12 * 64^2; gpt2 likewise with 50265, 1024, 12 and 768.
    # encdec-tiny: 2048 * 64 + 2 * 64 * 64 + 2 * (12 + 16) * 64^2.
    [
        ("vit-b16", 86_444_008),
        ("vit-digits", 25_546),
        ("bart-large", 404_845_568),
        ("r2c2", 2_688_739_328),
        ("encdec-tiny", 368_640),
        ("gpt2", 124_324_608),
        ("gpt-tiny", 135_168),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameter_count(model_spec(name)) == count


@pytest.mark.parametrize(
    ("spec", "block", "expected"),
    [
        (
            MODERN,
            "blocks.1",
            {
                "attention_gain": ((Group.GAIN,), (12,)),
                "mlp_gain": ((Group.GAIN,), (12,)),
                "attention.q": ((Group.Q,), (12, 12)),
                "attention.kv": ((Group.K, Group.V), (6, 12)),
                "attention.u": ((Group.U,), (12, 12)),
                "attention.q_gain": ((Group.GAIN,), (6,)),
                "attention.k_gain": ((Group.GAIN,), (6,)),
                "mlp.w": ((Group.W,), (72, 12)),
                "mlp.x": ((Group.X,), (12, 36)),
            },
        ),
        (
            ODD_TEXT,
            "decoder.1",
            {
                "attention.qkv": ((Group.Q, Group.K, Group.V), (12, 12)),
                "attention.u": ((Group.U,), (12, 12)),
                "cross.q": ((Group.Q,), (12, 12)),
                "cross.kv": ((Group.K, Group.V), (12, 12)),
                "cross.u": ((Group.U,), (12, 12)),
                "mlp.w": ((Group.W,), (36, 12)),
                "mlp.x": ((Group.X,), (12, 36)),
            },
        ),
    ],
    ids=["a decoder of today", "the decoder of an encoder-decoder"],
)
def test_groups_and_shapes_of_a_block(spec: ModelSpec, block: str, expected: dict[str, Any]) -> None:
    """A Vision Transformer's follow from its updates, see `test_optimizer`."""
    parameters = {p.name: (p.groups, p.group_shape) for p in parameter_shapes(spec) if p.name.startswith(block)}
    assert parameters == {f"{block}.{name}": value for name, value in expected.items()}


def test_dims_keep_patch_width_and_classes_apart() -> None:
    assert dims(ODD) == Dims("vision", width=12, n_patch=50, n_out=7, mlp_ratio=3)
    assert dims(ODD_TEXT) == Dims("language", width=12, n_patch=None, n_out=37, mlp_ratio=3, tied_head=True)
    assert dims(MODERN) == Dims("language", width=12, n_patch=None, n_out=37, mlp_ratio=3, kv_share=0.5)
    assert dims(model_spec("vit-b16")) == Dims("vision", width=768, n_patch=768, n_out=1000, mlp_ratio=4)
