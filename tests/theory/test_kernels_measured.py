"""Predicted kernels and tangent kernels against ensembles of real networks.

N networks, P positions (pairs of sample and token), n width. Widths differ at a fixed number of heads H, so that
C = n / H grows, and what is of order 1/C is of order 1/n.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.deviations import Array, Means, assert_tends_to_zero, relative, without
from support.ensembles import Pass, array, forward, kernel, tangent_kernels
from support.kernel_cases import OUTPUTS, Case
from torch import Tensor

from ettsweep.strategies.factors import Group
from ettsweep.theory.kernels import Estimate, Kernels


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


VISION = Case(
    kind="vit",
    s=0.0,
    networks={32: 1600, 64: 1000, 128: 600},
    draws=2048,
    resolution=0.011,
    signal=(Group.PE,),
)
# As if all C_G of a language model were of order one. Logits have a variance of 4: attention is far from uniform, and
# each of its terms counts.
LANGUAGE = Case(
    kind="encdec",
    s=0.5,
    networks={32: 900, 64: 600, 128: 300},
    variances=dict.fromkeys((Group.Q, Group.K, Group.V), 2.0) | dict.fromkeys((Group.U, Group.W, Group.X), 1.0),
    draws=16384,
    resolution=0.018,
)
UNTIED = replace(LANGUAGE, kind="untied gpt", resolution=0.021)


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("case", [VISION, LANGUAGE, UNTIED], ids=["vision", "language", "untied decoder"])
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
    assert_tends_to_zero(result, case.resolution, sampling)
    for group in case.signal:
        power, error = result[f"tangent kernel of {group}"].power()
        assert abs(power + 1) < 3 * error < 0.5, (group, power, error)


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("kind", ["encdec", "gpt"])
def test_language_models_at_the_stds_of_the_package_are_as_predicted_up_to_a_width_of_1024(kind: str) -> None:
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
