import math

import pytest
import torch
from torch import Tensor, nn

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import BULK, Group, init_std
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import dims, model_spec, parameter_shapes
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec

TEXT = EncDecSpec(width=64, depth=2, heads=4, vocabulary=100, tokens=50)
SPEC = VitSpec(width=64, depth=2, heads=4, patch_size=8, image_size=64, channels=1, classes=50)


def initialised(spec: ModelSpec = SPEC, s: float | None = 0.0, seed: int = 0) -> nn.Module:
    model = build_model(spec, StrategySpec(s=s))
    initialise(model, spec, StrategySpec(s=s), seed)
    return model


def parts(model: nn.Module, spec: ModelSpec) -> list[tuple[str, Group, Tensor]]:
    tensors = dict(model.named_parameters())
    return [
        (parameter.name, group, tensor.detach())
        for parameter in parameter_shapes(spec)
        for group, tensor in zip(parameter.groups, tensors[parameter.name].chunk(len(parameter.groups)), strict=True)
    ]


@pytest.mark.parametrize("s", [None, 0.25, 1.0])
def test_measured_mean_and_std_are_the_groups_and_values_are_uniform_in_the_bulk(s: float | None) -> None:
    for name, group, tensor in parts(initialised(s=s), SPEC):
        if group is Group.HEAD_BIAS:
            assert not tensor.any()
            continue
        std = init_std(group, dims(SPEC), s)
        # The relative error of a measured std is at most sqrt(1 / 2N), of a mean sqrt(1 / N) stds.
        assert tensor.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * tensor.numel())), (name, group)
        assert abs(tensor.mean().item()) < 5 * std / math.sqrt(tensor.numel()), (name, group)
        largest = tensor.abs().max().item() / std
        if group in BULK:
            assert 0.99 * math.sqrt(3) < largest <= math.sqrt(3) * (1 + 1e-6), (name, group)
        else:
            assert largest > 2.5, (name, group)


@pytest.mark.parametrize("s", [None, 0.0])
def test_a_language_model_is_normal_with_one_std_but_for_its_words_and_pad(s: float | None) -> None:
    for name, group, tensor in parts(initialised(TEXT, s), TEXT):
        std = 1.0 if group is Group.WE and s is not None else 0.02
        if group is Group.WE:
            assert not tensor[PAD].any()
            assert tensor.any(1).sum() == len(tensor) - 1
            tensor = torch.cat((tensor[:PAD], tensor[PAD + 1 :]))
        assert tensor.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * tensor.numel())), (name, group)
        assert abs(tensor.mean().item()) < 5 * std / math.sqrt(tensor.numel()), (name, group)
        assert 2.5 < tensor.abs().max().item() / std < 6, (name, group)


def test_draws_depend_on_seed_and_name_alone() -> None:
    """Neither on order, depth, dtype nor torch's own generator; no two tensors or parts share them."""
    before = torch.get_rng_state()
    first = dict(initialised().named_parameters())
    assert torch.equal(torch.get_rng_state(), before)
    repeated, other = (dict(initialised(seed=seed).named_parameters()) for seed in (0, 1))
    shallow = dict(initialised(SPEC.model_copy(update={"depth": 1})).named_parameters())
    double = build_model(SPEC, StrategySpec(s=0.0)).double()
    initialise(double, SPEC, StrategySpec(s=0.0), 0)
    of_double = dict(double.named_parameters())
    for name, tensor in first.items():
        assert torch.equal(tensor, repeated[name]), name
        assert torch.equal(tensor.double(), of_double[name]), name
        assert torch.equal(tensor, shallow.get(name, tensor)), name
        assert name == "head_bias" or not torch.equal(tensor, other[name]), name
    firsts = [
        round(float(tensor.flatten()[0]) / init_std(group, dims(SPEC), 0.0), 5)
        for _, group, tensor in parts(initialised(), SPEC)
        if group is not Group.HEAD_BIAS
    ]
    assert len(set(firsts)) == len(firsts)


def test_initial_values_stay_what_they_were() -> None:
    """Runs of an earlier version can be repeated only while this value stays."""
    spec = model_spec("vit-digits")
    qkv = dict(initialised(spec).named_parameters())["blocks.0.attention.qkv"]
    assert qkv[0, 0].item() == pytest.approx(-0.10133177, rel=1e-6)
