"""Predicted kernels and tangent kernels against ensembles of real networks.

N networks, P positions (pairs of sample and token), n width. Widths differ at a fixed number of heads H, so that
C = n / H grows, and what is of order 1/C is of order 1/n.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.deviations import Array, Means, assert_tends_to_zero, relative, without
from support.ensembles import Pass, array, forward, kernel, tangent_kernels
from support.kernel_cases import KINDS, OUTPUTS, Case
from torch import Tensor

from ettsweep.strategies.factors import Group, lr_factor
from ettsweep.theory.kernels import Estimate, Kernels
from ettsweep.trainer.models.registry import dims


@dataclass(frozen=True)
class Measured:
    """A kernel of all networks, (N, P, P), what it is predicted to be, and the relative error of that by sampling."""

    kernel: Array
    predicted: Array
    error: float


def relative_error(estimate: Estimate) -> float:
    """Return the largest standard error of a prediction, in units of the standard deviations of its positions."""
    some_P = np.diag(estimate.value) > 0  # the first token of a text reads itself alone, whatever its query
    deviation_P = np.sqrt(np.diag(estimate.value)[some_P])
    return float((estimate.error[some_P][:, some_P] / np.outer(deviation_P, deviation_P)).max())


def stages(case: Case, observed: Pass, predicted: Kernels) -> Iterator[tuple[str, Measured]]:
    """Yield the kernels of the residual stream, by stage, of what each residual branch adds to it, and of the outputs.

    Some branches are small beside the stream, so that their errors show in themselves alone.
    """
    before = None
    for stage in predicted.stages:
        if stage.name == "head":
            outputs_NPK = observed.outputs[..., case.outputs].flatten(1, -2)
            measured = array(outputs_NPK @ outputs_NPK.mT) / len(case.outputs)
            yield "head", Measured(measured, stage.kernel.value, relative_error(stage.kernel))
            continue
        yield (
            stage.name,
            Measured(kernel(observed.streams[stage.name]), stage.kernel.value, relative_error(stage.kernel)),
        )
        if before is not None and not stage.name.endswith("stem"):
            added = kernel(observed.streams[stage.name] - observed.streams[before.name])
            value = stage.kernel.value - before.kernel.value
            # An MLP samples nothing: it errs by the share that what it reads errs by.
            sampled = relative_error(Estimate(value, stage.kernel.error))
            error = relative_error(before.kernel) if stage.name.endswith("mlp") else sampled
            yield f"what {stage.name} adds", Measured(added, value, error)
        before = stage


def tangents(grams: dict[Group, Array], predicted: Kernels) -> Iterator[tuple[str, Measured]]:
    """Yield the tangent kernel of each group, mean over output components."""
    for group, gram_NKKPP in grams.items():
        estimate = predicted.tangent[group]
        mean_NPP = np.einsum("niipq->npq", gram_NKKPP) / OUTPUTS
        yield f"tangent kernel of {group}", Measured(mean_NPP, estimate.value, relative_error(estimate))


def of_two_outputs(gram_NKKPP: Array, predicted: Estimate) -> Array:
    """Return the tangent kernel of two different components, in units of that of one, mean over all pairs, (N, 1)."""
    K = gram_NKKPP.shape[1]
    some_P = np.diag(predicted.value) > 0
    of_position_NKKP = np.einsum("nijpp->nijp", gram_NKKPP)[..., some_P]
    one_NKK = (of_position_NKKP / np.diag(predicted.value)[some_P]).mean(-1)
    return (one_NKK.sum((1, 2)) - np.einsum("nii->n", one_NKK))[:, None] / (K * (K - 1))


VISION = Case(
    kind="vit",
    s=0.0,
    networks={32: 1600, 64: 1000, 128: 600},
    draws=2048,
    resolution=0.011,
    signal=(Group.PE,),
)
# Logits with a variance of 4: attention is far from uniform, and each of its terms counts.
SHARP = Case(
    kind="vit",
    s=1.0,
    networks={32: 1600, 64: 1000, 128: 600},
    variances=dict.fromkeys((Group.Q, Group.K, Group.V), 2.0),
    draws=16384,
    resolution=0.012,
)
# As if all C_G of a language model were of order one.
LANGUAGE = Case(
    kind="encdec",
    s=0.5,
    networks={32: 900, 64: 600, 128: 300},
    variances=dict.fromkeys((Group.Q, Group.K, Group.V), 2.0) | dict.fromkeys((Group.U, Group.W, Group.X), 1.0),
    draws=16384,
    resolution=0.018,
)
STANDARD = Case(
    kind="encdec",
    s=None,
    networks={32: 900, 64: 600, 128: 300},
    draws=512,
    resolution=0.0155,
    signal=(Group.WE, Group.PE, Group.V, Group.U, Group.W, Group.X),
)
UNTIED = replace(LANGUAGE, kind="untied gpt", resolution=0.021)


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize(
    "case",
    [VISION, SHARP, LANGUAGE, STANDARD, UNTIED],
    ids=["vision", "sharp attention", "language", "standard language", "untied decoder"],
)
def test_mean_kernels_and_tangent_kernels_tend_to_the_predicted_like_one_over_n(case: Case) -> None:
    result, sampling = defaultdict(Means), defaultdict(float)
    for width in case.networks:
        ensemble, predicted = case.ensemble(width), case.predicted(width)
        passed = forward(ensemble, case.inputs)
        grams = tangent_kernels(ensemble, case.inputs, case.outputs[:OUTPUTS])
        grams.pop(Group.HEAD_BIAS, None)  # the same in all networks
        controls = case.controls(ensemble, passed)
        for name, subject in (*stages(case, passed, predicted), *tangents(grams, predicted)):
            if name != "stem":  # it is one of the controls
                result[name].add(width, without(relative(subject.kernel, subject.predicted), controls))
                sampling[name] = subject.error
        for group, gram in grams.items():
            if group is not Group.HEAD:
                result[f"{group}, two outputs"].add(width, of_two_outputs(gram, predicted.tangent[group]))
    assert_tends_to_zero(result, case.resolution, sampling)
    for group in case.signal:
        power, error = result[f"tangent kernel of {group}"].power()
        assert abs(power + 1) < 3 * error < 0.5, (group, power, error)


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("kind", ["encdec", "gpt"])
def test_language_models_at_the_stds_of_the_package_are_as_predicted_up_to_a_width_of_1024(kind: Any) -> None:
    """There C_G grows with the width, and the kernels with it."""
    case = Case(kind, s=0.0, networks={64: 100, 128: 100, 256: 60, 512: 24, 1024: 10})
    deviations = defaultdict(Means)
    for width in case.networks:
        predicted, observed = case.predicted(width), forward(case.ensemble(width), case.inputs)
        for name, subject in stages(case, observed, predicted):
            deviations[name].add(width, relative(subject.kernel, subject.predicted))
        assert predicted.contact is not None
        deviations["contact"].add(width, read_logits(observed, case.read) / predicted.contact.logit.value - 1)
    assert_tends_to_zero(deviations, resolution=0.017)


def read_logits(observed: Pass, read_BT: Tensor) -> Array:
    """Return the logit, at each position, of the token that the decoder reads there, (N, P)."""
    return array(observed.outputs.flatten(1, 2)[:, range(read_BT.numel()), read_BT.flatten()])


@pytest.mark.parametrize(("s", "power"), [(0.0, 0.5), (0.5, 0.25), (1.0, 0.0)])
def test_the_contact_logit_grows_as_the_strategy_implies(s: float, power: float) -> None:
    case = replace(LANGUAGE, s=s, draws=64)
    narrow, wide = (case.predicted(width).contact for width in (64, 1024))
    assert narrow is not None
    assert wide is not None
    assert wide.logit.value / narrow.logit.value == pytest.approx(16**power, rel=1e-12)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if "gpt" in kind else kind for kind in KINDS]
)
def test_contributions_with_the_factors_of_sgd_are_the_same_for_all_s(kind: Any) -> None:
    for s in (0.0, 0.25, 0.5, 1.0):
        case = Case(kind, s, networks={32: 3}, draws=64)
        spec, predicted = case.spec(32), case.predicted(32)
        grams = tangent_kernels(case.ensemble(32), case.inputs, case.outputs[:OUTPUTS])
        assert grams.keys() == predicted.tangent.keys() == predicted.order_one.keys()
        factors = {group: lr_factor(group, dims(spec), s, "sgd", "include") for group in grams}
        measured = {group: factors[group] * gram for group, gram in grams.items()}
        if kind == "vit":
            assert (grams[Group.HEAD_BIAS] == np.eye(OUTPUTS)[:, :, None, None]).all()
        order_one = {group: estimate.value for group, estimate in predicted.order_one.items()}
        if s == 0:
            first, first_predicted = measured, order_one
        for group, factor in factors.items():
            assert factor * predicted.tangent[group].value == pytest.approx(order_one[group], rel=1e-12)
            assert order_one[group] == pytest.approx(first_predicted[group], rel=1e-12)
            assert measured[group] == pytest.approx(first[group], rel=1e-4, abs=1e-6 * first[group].max()), (s, group)


def test_standard_vision_models_have_the_kernels_of_s_0() -> None:
    standard, s_0 = (Case(kind="vit", s=s, networks={32: 3}, draws=64).predicted(32) for s in (None, 0.0))
    for ours, others in zip(standard.stages, s_0.stages, strict=True):
        assert ours.kernel.value == pytest.approx(others.kernel.value, rel=1e-12)
    for group, estimate in standard.tangent.items():
        assert estimate.value == pytest.approx(s_0.tangent[group].value, rel=1e-12)
