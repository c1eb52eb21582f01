"""Faults that are planted in real models by hand: a check finds each, and says first what it is."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ettsweep.strategies.factors import Dims, Group
from ettsweep.theory import scaling_check, text_probe
from ettsweep.theory.expectations import Expectations
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.judge import CAUSES, Judgement
from ettsweep.theory.probe import Probe
from ettsweep.theory.scaling_check import CheckPlan, check_scaling, compute_expectations, make_check_plan
from ettsweep.token_ids import PAD
from ettsweep.trainer.models import build, encdec, parameter_scales
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.cross_entropy import linear_cross_entropy
from ettsweep.trainer.models.encdec import DecoderBlock
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import ModelSpec
from ettsweep.trainer.training import trainer

IMAGES, TEXT = model_spec("vit-digits"), model_spec("encdec-tiny")
BEYOND = model_spec("gpt-tiny").model_copy(update={"norm": "rms"})
"""A model that the theory does not cover: its initial values, factors and decay are checked all the same."""

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Theory = Callable[[CheckPlan, Probe], Expectations]

ATTENTION, LAYER_NORM, ADAMW = F.scaled_dot_product_attention, F.layer_norm, torch.optim.AdamW


def check(model: ModelSpec, strategy: str = "ntk") -> Judgement:
    """Check a model of one block, as fast as possible: the first finding needs no more seeds and steps."""
    plan = make_check_plan(model, strategy, 2**36, widths=(32, 64, 128), depth=1, seeds=2, steps=1)
    return check_scaling(plan).judgement


@pytest.fixture(scope="module")
def theory() -> Theory:
    """Return what predicts once for each model: no fault is planted in what is expected."""
    collected: dict[str, Expectations] = {}

    def expected(plan: CheckPlan, probe: Probe) -> Expectations:
        if plan.folder_name not in collected:
            collected[plan.folder_name] = compute_expectations(plan, probe)
        return collected[plan.folder_name]

    return expected


# --- initial values -------------------------------------------------------------------------------------------------


def start(tensor: str, change: Callable[[Tensor], object]) -> Plant:
    """Return what changes the initial values of one tensor in place."""
    right = build.initialise

    def initialise(network: Network, *rest: Any) -> None:
        right(network, *rest)
        with torch.no_grad():
            change(network.get_parameter(tensor))

    return lambda patch: patch.setattr(trainer, "initialise", initialise)


def normal_everywhere(patch: Patch) -> None:
    patch.setattr(build, "init_distribution", lambda group, domain: "normal")


# --- steps ----------------------------------------------------------------------------------------------------------


def growing_lr_factor(patch: Patch) -> None:
    """Have the factor of gains miss the width's power."""
    right = parameter_scales.lr_factor

    def planted(group: Group, dims: Dims, *rest: Any) -> float:
        return right(group, dims, *rest) * (math.sqrt(dims.width) if group is Group.GAIN else 1.0)

    patch.setattr(parameter_scales, "lr_factor", planted)


def decay_times_factor(patch: Patch) -> None:
    patch.setattr(parameter_scales, "wd_factor", lambda group, factor, decay_pe=True: 1.0)


def default_eps(patch: Patch) -> None:
    """Have AdamW not be given the eps of its spec."""
    patch.setattr(torch.optim, "AdamW", lambda groups, eps, **rest: ADAMW(groups, **rest))


# --- what is computed -----------------------------------------------------------------------------------------------


def tanh_gelu(patch: Patch) -> None:
    patch.setattr(F, "gelu", partial(F.gelu, approximate="tanh"))


def attention(scale: float = 1.0, **instead: Any) -> Plant:
    def planted(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, p: float = 0.0, causal: bool = False) -> Tensor:
        mapping = {"attn_mask": mask, "is_causal": causal} | instead
        return ATTENTION(q, k, v, dropout_p=p, scale=scale / math.sqrt(q.shape[-1]), **mapping)

    return lambda patch: patch.setattr(F, "scaled_dot_product_attention", planted)


def layer_norm_eps(wrong: Callable[[float], float]) -> Plant:
    def planted(x: Tensor, shape: Any, eps: float) -> Tensor:
        return torch.layer_norm(x, shape, None, None, wrong(eps))

    return lambda patch: patch.setattr(F, "layer_norm", planted)


def no_output_rescale(patch: Patch) -> None:
    patch.setattr(encdec, "output_rescale", lambda width, s: 1.0)


def loss_of_pad(patch: Patch) -> None:
    patch.setattr(
        encdec, "linear_cross_entropy", lambda h, we, target, ignored: linear_cross_entropy(h, we, target, -1)
    )


def cross_never_called(patch: Patch) -> None:
    def forward(self: DecoderBlock, x: Tensor, source: Tensor, read: Tensor) -> Tensor:
        x = x + self.attention(LAYER_NORM(x, x.shape[-1:], eps=self.ln_eps))
        return x + self.mlp(LAYER_NORM(x, x.shape[-1:], eps=self.ln_eps))

    patch.setattr(DecoderBlock, "forward", forward)


@pytest.fixture
def fast(theory: Theory, monkeypatch: Patch) -> None:
    """Make checks of text quick, too."""
    monkeypatch.setattr(text_probe, "VOCABULARY", 64)
    monkeypatch.setattr(scaling_check, "compute_expectations", theory)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("model", "plant", "line"),
    [
        (TEXT, start("decoder.0.cross.q", lambda q: q.mul_(1.2)), "q: the std of initial values is 0.024 at the widest, not 0.02, in decoder.0.cross.q"),
        (TEXT, start("we", lambda we: we[PAD].copy_(we[PAD + 1])), "we: the initial rms of the [pad] row, over that of the other rows, is 0.9799, not 0"),
        (IMAGES, normal_everywhere, "q: the mean magnitude of initial values, over their rms, is 0.797 at the widest, not 0.866 (uniform)"),
        (BEYOND, growing_lr_factor, "gain: the learning-rate factor scales as width^+0.00, not width^-0.50 (off by +0.50)"),
        (IMAGES, decay_times_factor, "patch: the decay of a step, divided by lr wd, scales as width^-0.50, not width^+0.00"),
        (TEXT, no_output_rescale, "we: the outputs' kernel (output rescale) scales as width^+"),
        (IMAGES, default_eps, "patch, pe, head, head_bias and 4 more: the eps of the optimizer, over the one that it is given, is 0.01049, not 1"),
        (TEXT, layer_norm_eps(lambda eps: 10 * eps), "encoder.stem, decoder.stem, we, encoder.0.attention.qkv and 5 more: the eps of LayerNorm, over the model's, is 9.999, not 1"),
        (TEXT, layer_norm_eps(lambda eps: 0.1), "encoder.stem, decoder.stem, encoder.0.attention.qkv, encoder.0.mlp.w and 4 more: the variance of tokens after LayerNorm"),
        (TEXT, loss_of_pad, "forward: the loss, over the cross-entropy of the logits, is 1.1"),
        (IMAGES, attention(1.25), "blocks.0.attention: the scale of the logits, over 1/sqrt(C), is 1.25, not 1"),
        (IMAGES, tanh_gelu, "blocks.0.mlp: the difference from the GELU, relative to it, is 0.0002"),
        (TEXT, attention(is_causal=False), "decoder.0.attention: the part of attention's output that masked softmax"),
        (TEXT, attention(attn_mask=None), "encoder and decoder: the change of outputs by [pad] after the source"),
        (TEXT, cross_never_called, "decoder.0.cross: the weight in the residual stream is 0, not 1"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named_first(model: ModelSpec, plant: Plant, line: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    judgement = check(model)
    assert judgement.verdict is ExponentTest.OFF
    assert judgement.findings[0].startswith(line), judgement.findings


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("model", "strategy"), [(IMAGES, "standard"), (TEXT, "ntk")])
def test_nothing_is_found_in_layers_and_initial_values_that_are_right(model: ModelSpec, strategy: str) -> None:
    off = [row for row in check(model, strategy).rows if row.subject in CAUSES and row.verdict is not ExponentTest.OK]
    assert off == []
