"""Predicted kernels where they are known in closed form; ensembles of networks are in test_kernels_measured."""

import math
from typing import Any

import numpy as np
import pytest
from support.deviations import Array
from support.kernel_cases import gpt, input_kernel, patches, vit

from ettsweep.strategies.factors import BULK, Group
from ettsweep.theory.gaussian import GELU, RELU, pair_expectations
from ettsweep.theory.kernels import REPLICAS, gpt_kernels, vit_kernels
from ettsweep.trainer.models.registry import dims


def normalised(kernel_PP: Array, eps: float) -> tuple[Array, Array]:
    """Return F, and what a tangent kernel is multiplied by: eq:LN-kernel, eq:LN-mnemonic."""
    inverse_P = 1 / np.sqrt(np.diag(kernel_PP) + eps)
    return kernel_PP * np.outer(inverse_P, inverse_P), np.outer(inverse_P, inverse_P)


def test_images_of_one_token_are_a_chain_of_closed_forms() -> None:
    """Attention is 1 there. ReLU's Gaussian integrals are the arc-cosine kernels."""
    spec, inputs_PP = vit(64, tokens=1, ln_eps=0.1), input_kernel(patches(1))
    predicted = vit_kernels(spec, dims(spec), 0.5, inputs_PP, 2, draws=8, activation=RELU)
    stem = inputs_PP + 0.02**2
    f_1, scale_1 = normalised(stem, 0.1)
    attention = stem + f_1 / 6
    f_2, scale_2 = normalised(attention, 0.1)
    deviation = np.sqrt(0.4 * np.diag(f_2))
    angle = np.arccos(np.clip(0.4 * f_2 / np.outer(deviation, deviation), -1, 1))
    both_on = (math.pi - angle) / (2 * math.pi)
    activations = np.outer(deviation, deviation) * (np.sin(angle) / (2 * math.pi) + both_on * np.cos(angle))
    mlp = attention + 1.6 * activations
    f_3, scale_3 = normalised(mlp, 0.1)
    expected = {"stem": stem, "blocks.0.attention": attention, "blocks.0.mlp": mlp, "head": f_3 / 8}
    assert {stage.name for stage in predicted.stages} == expected.keys()
    for stage in predicted.stages:
        assert stage.kernel.value == pytest.approx(expected[stage.name], rel=1e-9), stage.name
        assert stage.kernel.error == pytest.approx(0, abs=1e-15)

    through_mlp = scale_3 * (1 + 1.6 * 0.4 * both_on * scale_2)
    through_both = through_mlp * (1 + scale_1 / 6)
    order_one = {
        Group.PATCH: inputs_PP * through_both,
        Group.PE: through_both,
        Group.Q: np.zeros((2, 2)),
        Group.K: np.zeros((2, 2)),
        Group.V: f_1 / 3 * through_mlp,
        Group.U: f_1 / 2 * through_mlp,
        Group.W: 1.6 * both_on * f_2 * scale_3,
        Group.X: activations * scale_3,
        Group.HEAD: f_3,
        Group.HEAD_BIAS: np.ones((2, 2)),
    }
    assert predicted.order_one.keys() == order_one.keys()
    for group, value in order_one.items():
        assert predicted.order_one[group].value == pytest.approx(value, rel=1e-9, abs=1e-15), group


@pytest.mark.parametrize("s", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_texts_of_one_token_are_a_chain_of_closed_forms(head: Any, s: float | None) -> None:
    """Attention is 1 there. GELU's Gaussian integrals are numbers of `gaussian`, which has tests of its own."""
    spec, ids = gpt(64, head, tokens=1), np.array([[5], [6], [5]])
    predicted = gpt_kernels(spec, dims(spec), s, ids, draws=8)
    c_we, c_pe, eps, square = (4e-4 if s is None else 1.0), 4e-4, spec.ln_eps, 0.02**2
    c_v = c_u = c_w = 64 * square
    c_x = 4 * 64 * square
    stem = c_we * np.equal.outer(ids.flatten(), ids.flatten()) + c_pe
    f_1, scale_1 = normalised(stem, eps)
    attention = stem + c_u * c_v * f_1
    f_2, scale_2 = normalised(attention, eps)
    activations = pair_expectations(GELU.sigma, c_w * f_2)
    slopes = pair_expectations(GELU.derivative, c_w * f_2)
    mlp = attention + c_x * activations
    f_3, scale_3 = normalised(mlp, eps)
    # Outputs: N^2 n C_WE F of a tied head, with N = n^(-(1+s)/2) or 1; the std of a head of its own is the same number.
    variance = {None: square, 0.0: 1 / 64, 0.5: 64**-1.5, 1.0: 64**-2.0}[s]
    outputs = 64 * variance * f_3
    expected = {"stem": stem, "blocks.0.attention": attention, "blocks.0.mlp": mlp, "head": outputs}
    assert [stage.name for stage in predicted.stages] == list(expected)
    for stage in predicted.stages:
        assert stage.kernel.value == pytest.approx(expected[stage.name], rel=1e-9), stage.name

    through_mlp = 64 * variance * scale_3 * (1 + c_x * c_w * slopes * scale_2)
    through_both = through_mlp * (1 + c_u * c_v * scale_1)
    words = np.equal.outer(ids.flatten(), ids.flatten()) * through_both
    # A tied head is multiplied by N, so its gradient is N h.
    of_head = 64 * f_3 * ({None: 1.0}.get(s, variance) if head == "tied" else 1.0)
    tangent = {
        Group.WE: words + (of_head if head == "tied" else 0.0),
        Group.PE: through_both,
        Group.Q: np.zeros((3, 3)),
        Group.K: np.zeros((3, 3)),
        Group.V: 64 * c_u * f_1 * through_mlp,
        Group.U: 64 * c_v * f_1 * through_mlp,
        Group.W: 64 * c_x * slopes * f_2 * 64 * variance * scale_3,
        Group.X: 4 * 64 * activations * 64 * variance * scale_3,
        **({Group.HEAD: of_head} if head == "untied" else {}),
    }
    assert predicted.tangent.keys() == tangent.keys()
    for group, value in tangent.items():
        assert predicted.tangent[group].value == pytest.approx(value, rel=1e-9, abs=1e-15), group
    assert (predicted.contact is None) == (head == "untied")


@pytest.mark.usefixtures("statistics")
def test_stated_errors_cover_what_sampling_misses() -> None:
    """Errors are the scatter of few replicas: Student's distribution, the 95% of which are wider than those of Gauss."""
    from scipy.stats import t as student_t

    spec, inputs_PP = vit(64), input_kernel(patches())
    exact = vit_kernels(spec, dims(spec), 0.0, inputs_PP, 2, draws=2**14, seed=10**6)
    covered = []
    for seed in range(40):
        predicted = vit_kernels(spec, dims(spec), 0.0, inputs_PP, 2, seed=seed)
        pairs = [(a.kernel, b.kernel) for a, b in zip(predicted.stages[1:], exact.stages[1:], strict=True)]
        pairs += [(predicted.tangent[group], exact.tangent[group]) for group in BULK | {Group.PATCH, Group.PE}]
        for estimate, reference in pairs:
            deviation = np.abs(estimate.value - reference.value) / np.hypot(estimate.error, reference.error)
            covered.append(deviation < student_t.ppf(0.975, REPLICAS - 1))
    share = np.mean(np.concatenate([c.flatten() for c in covered]))
    assert 0.925 < share < 0.985, share
