"""Measurements that follow the theory to the letter, for tests to spoil."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from ettsweep.strategies.factors import Group, Optimizer, init_distribution, init_std, lr_factor
from ettsweep.theory.expectations import Expectations, Prediction, mean_between_samples, mean_over_positions
from ettsweep.theory.kernels import Kernels, encdec_kernels, gpt_kernels, vit_kernels
from ettsweep.theory.measure import Measurement
from ettsweep.theory.probe import LayerCheck
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.registry import dims, parameter_shapes
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec

MAGNITUDE = {"normal": 0.7978845608, "uniform": 0.8660254038}
SAMPLES, HEADS = 2, 4
WIDTHS = (32, 64, 128, 256)
IMAGES = VitSpec(width=256, depth=1, heads=HEADS, patch_size=2, image_size=4, classes=10)
DECODER = GptSpec(width=256, depth=1, heads=HEADS, vocabulary=50, tokens=4, head="untied")
TEXT = EncDecSpec(width=256, depth=1, heads=HEADS, vocabulary=50, tokens=4)
TOKENS = np.array([[5, 6, 7, 9], [6, 6, 8, 9]])


@cache
def kernels(model: ModelSpec, s: float | None) -> Kernels:
    """Return the kernels of a batch of two samples, whose tokens are alike in part."""
    if isinstance(model, EncDecSpec):
        return encdec_kernels(model, dims(model), s, TOKENS, TOKENS[::-1], draws=10)
    if isinstance(model, GptSpec):
        return gpt_kernels(model, dims(model), s, TOKENS, draws=10)
    assert isinstance(model, VitSpec)
    return vit_kernels(model, dims(model), s, 0.7 * np.eye(8) + 0.3, 2, draws=10)


def expectations(
    s: float | None, optimizer: Optimizer = "adamw", model: ModelSpec = IMAGES, widths: Sequence[int] = WIDTHS
) -> Expectations:
    """Return what is implied for a small model."""
    models = [model.model_copy(update={"width": n}) for n in widths]
    predictions = [Prediction.of(m, kernels(m, s)) for m in models]
    return Expectations(predictions, s, optimizer, "ignore")


def counts(model: ModelSpec) -> dict[Group, int]:
    """Return the parameters of each group that have a gradient."""
    sizes: dict[Group, int] = {}
    for parameter in parameter_shapes(model):
        for group in parameter.groups:
            sizes[group] = sizes.get(group, 0) + parameter.size // len(parameter.groups)
    return sizes | ({Group.WE: model.width} if Group.WE in sizes else {})


def perfect(expected: Expectations) -> list[Measurement]:
    """Return three networks of each width that show what is implied."""
    return [_network(expected, i, seed) for i in range(len(expected.widths)) for seed in range(3)]


def _network(expected: Expectations, i: int, seed: int) -> Measurement:
    prediction, n = expected.predictions[i], expected.widths[i]
    sizes, model = prediction.sizes, prediction.dims

    def each(value: Callable[[Group], float]) -> dict[Group, tuple[float, ...]]:
        return {group: (value(group),) * len(tensors) for group, tensors in sizes.items()}

    changes = {stage: expected.change(stage) for stage in expected.stages}
    contributions = {group: expected.contribution(group) for group in sizes}
    return Measurement(
        width=n,
        seed=seed,
        kernels={
            stage.name: (mean_over_positions(stage.kernel.value), mean_between_samples(SAMPLES)(stage.kernel.value))
            for stage in prediction.kernels.stages
        },
        stds=each(lambda group: init_std(group, model, expected.s)),
        mean_magnitudes=each(lambda group: MAGNITUDE[init_distribution(group, model.domain)]),
        stated_stds={group: init_std(group, model, expected.s) for group in sizes},
        factors=each(lambda group: lr_factor(group, model, expected.s, expected.optimizer, "ignore")),
        gradients=each(lambda group: mean_over_positions(prediction.kernels.tangent[group].value) / len(sizes[group])),
        changes=[{stage: n ** (0.0 if e is None else e.power) for stage, e in changes.items()}],
        function_changes={group: 0.01 * e.relative_values[i] * n**e.power for group, e in contributions.items()},
        layers={layer: {"blocks.0": layer.exact} for layer in LayerCheck} if seed == 0 else {},
        decay=each(lambda group: float(group is not Group.HEAD_BIAS)) if seed == 0 else {},
        contact=None if prediction.kernels.contact is None else 5.0,
    )
