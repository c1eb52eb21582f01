"""Models by their names and sizes, and the groups and shapes of their parameters."""

import pytest
import torch

from ettsweep.errors import InputError
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import Dims
from ettsweep.trainer.models.build import build_model
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.registry import (
    ARCHITECTURES,
    dims,
    model_name,
    model_spec,
    named_models,
    parameter_count,
    parameter_shapes,
    short_form,
)
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec

# --- names ----------------------------------------------------------------------------------------------------------


def test_named_models_are_those_of_the_papers() -> None:
    assert all(model_name(model_spec(name)) == name for name in named_models())
    vit = {"mlp_ratio": 4, "patch_size": 16, "image_size": 224, "channels": 3, "classes": 1000, "ln_eps": 1e-6}
    assert model_spec("vit-b16") == VitSpec(width=768, depth=12, heads=12, **vit)  # type: ignore[arg-type]
    text = {"vocabulary": 50265, "tokens": 514, "ln_eps": 1e-5, "dropout": 0.1, "attention_dropout": 0.1}
    bart = EncDecSpec(width=1024, depth=12, heads=16, mlp_ratio=4, **text)  # type: ignore[arg-type]
    assert model_spec("bart-large") == bart
    assert model_spec("r2c2") == bart.model_copy(update={"width": 2048, "depth": 22, "heads": 32})


@pytest.mark.parametrize(
    ("name", "like", "fields"),
    [
        ("64x4", "vit-digits", {"width": 64, "depth": 4, "heads": 8, "image_size": 8, "channels": 1}),
        ("96x3", "vit-b16", {"width": 96, "depth": 3, "heads": 1, "image_size": 224, "classes": 1000}),
        ("10x1", "vit-digits", {"width": 10, "depth": 1, "heads": 1}),  # 8 channels a head leave one head
    ],
)
def test_a_model_of_a_size_is_otherwise_like_another(name: str, like: str, fields: dict[str, int]) -> None:
    model = model_spec(name, like)
    assert {field: getattr(model, field) for field in fields} == fields
    assert short_form(model) == name


def test_what_is_no_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown model .* WIDTHxDEPTH"):
        model_spec("0x4")
    with pytest.raises(InputError, match=r"unknown model 'vit-b61'; did you mean 'vit-b16'"):
        model_spec("vit-b61")


def test_a_model_without_a_name_is_described_by_what_differs() -> None:
    assert model_name(model_spec("vit-b16").model_copy(update={"depth": 6, "mlp_ratio": 2})) == "vit-n768-l6-h12-m2"
    digits = model_spec("vit-digits").model_copy(update={"width": 64})
    assert model_name(digits) == "vit-n64-l2-h4-p4-i8-c1-k10"
    for entry in ARCHITECTURES.values():
        assert {"kind", "width", "depth", "heads", *entry.name_letters} == set(entry.spec.model_fields)


# --- parameters -----------------------------------------------------------------------------------------------------

ODD = VitSpec(width=12, depth=3, heads=2, mlp_ratio=3, patch_size=5, image_size=15, channels=2, classes=7, ln_eps=1e-3)
ODD_TEXT = EncDecSpec(width=12, depth=2, heads=2, mlp_ratio=3, vocabulary=37, tokens=7)
PLAIN = GptSpec(width=12, depth=2, heads=2, mlp_ratio=3, vocabulary=37, tokens=7)
MODERN = PLAIN.model_copy(
    update={"head": "untied", "norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True}
)


@pytest.mark.parametrize("spec", [*named_models().values(), ODD, ODD_TEXT, PLAIN, MODERN])
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
        *(("vit-b16", 86_444_008), ("vit-digits", 25_546), ("bart-large", 404_845_568), ("r2c2", 2_688_739_328)),
        *(("encdec-tiny", 368_640), ("gpt2", 124_324_608), ("gpt-tiny", 135_168)),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameter_count(model_spec(name)) == count


MODERN_BLOCK = {"attention_gain": "gain", "attention.q": "q", "attention.kv": "k v", "attention.u": "u"}
MODERN_BLOCK |= {"attention.q_gain": "gain", "attention.k_gain": "gain", "mlp_gain": "gain", "mlp.w": "w", "mlp.x": "x"}
CROSSING_BLOCK = {"attention.qkv": "q k v", "attention.u": "u", "cross.q": "q", "cross.kv": "k v", "cross.u": "u"}
CROSSING_BLOCK |= {"mlp.w": "w", "mlp.x": "x"}


@pytest.mark.parametrize(
    ("spec", "block", "expected"),
    [
        (ODD, "blocks.1", {"attention.qkv": "q k v", "attention.u": "u", "mlp.w": "w", "mlp.x": "x"}),
        (MODERN, "blocks.1", MODERN_BLOCK),
        (ODD_TEXT, "decoder.1", CROSSING_BLOCK),
    ],
)
def test_parameters_of_a_block_are_of_these_groups(spec: ModelSpec, block: str, expected: dict[str, str]) -> None:
    parameters = [p for p in parameter_shapes(spec) if p.name.startswith(f"{block}.")]
    assert {p.name.removeprefix(f"{block}."): " ".join(p.groups) for p in parameters} == expected


def test_dims_keep_patch_width_and_classes_apart() -> None:
    assert dims(ODD) == Dims("vision", width=12, n_patch=50, n_out=7, mlp_ratio=3)
    assert dims(ODD_TEXT) == Dims("language", width=12, n_patch=None, n_out=37, mlp_ratio=3, tied_head=True)
    assert dims(MODERN) == Dims("language", width=12, n_patch=None, n_out=37, mlp_ratio=3, kv_share=0.5)
