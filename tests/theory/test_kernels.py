"""Predicted kernels where they are known in closed form; ensembles of networks are in test_kernels_measured."""

from typing import Any

import numpy as np
import pytest
from support.deviations import Array
from support.kernel_cases import gpt, input_kernel, patches, vit

from ettsweep.strategies.factors import BULK, Group
from ettsweep.theory.gaussian import GELU, pair_expectations
from ettsweep.theory.kernels import REPLICAS, gpt_kernels, vit_kernels
from ettsweep.trainer.models.registry import dims


def normalised(kernel_PP: Array, eps: float) -> tuple[Array, Array]:
    """Return F, and what a tangent kernel is multiplied by: eq:LN-kernel, eq:LN-mnemonic."""
    inverse_P = 1 / np.sqrt(np.diag(kernel_PP) + eps)
    return kernel_PP * np.outer(inverse_P, inverse_P), np.outer(inverse_P, inverse_P)


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
