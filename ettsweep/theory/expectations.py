"""Predictions of theory at several widths: values at the widest, and powers of the width (docs/theory.md)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ettsweep.strategies.factors import (
    Dims,
    Group,
    MlpFactor,
    Optimizer,
    adamw_order_one,
    steps_of,
    tangent_contribution,
)
from ettsweep.strategies.strategy import bulk_exponent
from ettsweep.theory.exponents import log_slope
from ettsweep.theory.kernels import Kernels
from ettsweep.theory.paper import initial_std, learning_rate_factor, output_scale
from ettsweep.theory.recursion import Array
from ettsweep.trainer.models.registry import dims, parameter_shapes
from ettsweep.trainer.specs import ModelSpec

HEAD = "head"
"""Name of the last stage, the outputs."""

CONSTANT_POWER = 0.01
"""Power of the width up to which a contribution counts as constant."""


@dataclass(frozen=True)
class ExpectedValue:
    """Theory's expectation for one quantity.

    Attributes:
        value: value at the widest; None if only the power is known.
        error: standard error of `value`, from sampling attention.
        power: power of the width, apart from `relative_values`.
        relative_values: other dependence on the width, up to a factor, one number per width. Not constant in language
            models, whose C_G grow with the width.
    """

    value: float | None
    error: float
    power: float
    relative_values: tuple[float, ...]

    def implied_power(self, widths: Sequence[int]) -> float:
        """Return the power of the width that a fit should find."""
        return self.power + log_slope(widths, self.relative_values)


@dataclass(frozen=True)
class Prediction:
    """Kernels of one model at leading order in the width.

    Attributes:
        dims: the model's dimensions.
        sizes: number of elements of each tensor, by group and name. Groups fused in one tensor have a name each, such
            as `blocks.0.attention.q`.
        kernels: the predicted kernels; of a model beyond the theory, those of its plain twin.
    """

    dims: Dims
    sizes: Mapping[Group, Mapping[str, int]]
    kernels: Kernels

    @classmethod
    def of(cls, model: ModelSpec, kernels: Kernels) -> "Prediction":
        """Combine a model's dimensions and tensor sizes with its kernels."""
        sizes: dict[Group, dict[str, int]] = {}
        for parameter in parameter_shapes(model):
            module, fused = parameter.name.rpartition(".")[0], len(parameter.groups) > 1
            for group in parameter.groups:
                name = f"{module}.{group}" if fused else parameter.name
                # A fused tensor (qkv) holds its groups in equal parts.
                sizes.setdefault(group, {})[name] = parameter.size // len(parameter.groups)
        return cls(dims(model), sizes, kernels)

    def count(self, group: Group) -> int:
        """Return how many parameters of a group get a gradient (see `tangent_contribution`).

        Of a word embedding, only the row of the token read: `width` parameters.
        """
        return self.dims.width if group is Group.WE else sum(self.sizes[group].values())


@dataclass(frozen=True)
class Expectations:
    """Predictions for a strategy and an optimizer, for each width in ascending order.

    Standard (s is None) is outside the family: its learning rate can absorb one power of the width. That power is
    taken from the bulk, and the other groups show their deviation from it.

    If the theory does not cover the model (`is_covered`), only initial values, factors and decay are the model's.
    """

    predictions: Sequence[Prediction]
    s: float | None
    optimizer: Optimizer
    mlp_factor: MlpFactor
    is_covered: bool = True

    @property
    def widths(self) -> list[int]:
        return [prediction.dims.width for prediction in self.predictions]

    @property
    def groups(self) -> list[Group]:
        """The model's parameter groups, from stem to head."""
        return [group for group in Group if group in self.predictions[-1].sizes]

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages in the order of the forward pass."""
        return tuple(stage.name for stage in self.predictions[-1].kernels.stages)

    def initial_stds(self, group: Group) -> list[float]:
        """Return the std of a group's initial values at each width; 0 for the head bias."""
        return [initial_std(group, prediction.dims, self.s) for prediction in self.predictions]

    def factors(self, group: Group) -> list[float]:
        """Return a group's learning-rate factor at each width."""
        return [
            learning_rate_factor(group, prediction.dims, self.s, self.optimizer, self.mlp_factor)
            for prediction in self.predictions
        ]

    def kernel(self, stage: str, mean: Callable[[Array], float]) -> ExpectedValue:
        """Return an average of a stage's kernel; `mean` averages a (P, P) kernel, such as `mean_over_positions`."""
        estimates = [
            next(predicted.kernel for predicted in prediction.kernels.stages if predicted.name == stage)
            for prediction in self.predictions
        ]
        power, scales = 0.0, [1.0 for _ in self.widths]
        if stage == HEAD:
            # The output scale is counted in `power`, so it is divided out of the other dependence on the width.
            power, scales = self.output_power, [output_scale(p.dims, self.s) for p in self.predictions]
        relative_values = tuple(mean(estimate.value) / scale for estimate, scale in zip(estimates, scales, strict=True))
        return ExpectedValue(mean(estimates[-1].value), mean(estimates[-1].error), power, relative_values)

    def contribution(self, group: Group) -> ExpectedValue:
        """Return a group's contribution to the optimizer's tangent kernel, at one sample."""
        curve = [self._order_one_contribution(prediction, group) for prediction in self.predictions]
        value, error = curve[-1]
        if self.s is None:
            # Standard's factors are not the paper's: compute the value again, and keep the curve's shape.
            widest = self.predictions[-1]
            raw, factor = mean_over_positions(widest.kernels.tangent[group].value), self.factors(group)[-1]
            scale = tangent_contribution(raw, factor, steps_of(group, self.optimizer), widest.count(group)) / value
            value, error = value * scale, error * scale
        return ExpectedValue(value, error, self.common_power, tuple(value for value, _ in curve))

    def change(self, stage: str) -> ExpectedValue | None:
        """Return the power of the width by which a stage changes in the first steps of training.

        In the family: -(1-s)/2 for hidden activations, 0 for the outputs. None if an upstream group has a C_G that
        grows with the width, as in language models, since its effect on single stages is not predicted.
        """
        if not self.is_covered:
            return None
        stages_so_far = self.stages[: self.stages.index(stage) + 1]
        stem = max(i for i, name in enumerate(stages_so_far) if name.endswith("stem"))
        if not any(name.endswith(".cross") for name in stages_so_far):
            stages_so_far = stages_so_far[stem:]  # before its first cross-attention a stack reads nothing of another
        upstream = {
            group
            for predicted in self.predictions[-1].kernels.stages
            if predicted.name in stages_so_far
            for group in predicted.groups
        }
        curves = [self.contribution(group).relative_values for group in upstream]
        if any(abs(log_slope(self.widths, curve)) > CONSTANT_POWER for curve in curves):
            return None
        power = self.common_power if stage == HEAD else self.hidden_power
        return ExpectedValue(None, 0.0, power, tuple(1.0 for _ in self.widths))

    @property
    def hidden_power(self) -> float:
        """Power of the width by which hidden activations change if all C_G are of order one."""
        # Hidden activations do not contain the head's scale, so it is taken out again.
        shared_power = self.common_power - (self.output_power / 2 if self.s is None else 0.0)
        return shared_power - (1 - (self.s or 0.0)) / 2

    @property
    def output_power(self) -> float:
        """Power of the width of the outputs' kernel that is due to the output scale."""
        return log_slope(self.widths, [output_scale(prediction.dims, self.s) for prediction in self.predictions])

    @property
    def common_power(self) -> float:
        """Power of the width that all groups share: 0 in the family, the bulk's for standard."""
        if self.s is not None:
            return 0.0
        # The bulk's power at s = 0, times the output scale: of the tangent kernel for SGD, its square root for others.
        through_outputs = self.output_power * (1.0 if self.optimizer == "sgd" else 0.5)
        # A step of Muon is as large at every width, and gradients of outputs grow as the root of the width.
        bulk = 0.5 if self.optimizer == "muon" else bulk_exponent(0.0, self.optimizer)
        return bulk + through_outputs

    def _order_one_contribution(self, prediction: Prediction, group: Group) -> tuple[float, float]:
        """Return a contribution with the paper's factors, which cancel all powers of the width, and its error."""
        estimate = prediction.kernels.order_one[group]
        value, error = mean_over_positions(estimate.value), mean_over_positions(estimate.error)
        m = prediction.dims.mlp_ratio if group is Group.X else 1
        if self.optimizer == "sgd":
            # `order_one` has M in the factor of x; without it there, the contribution is M times as large.
            missing_m = m if self.mlp_factor == "ignore" else 1
            return missing_m * value, missing_m * error
        if steps_of(group, self.optimizer) == "muon":
            factor = learning_rate_factor(group, prediction.dims, self.s, self.optimizer, self.mlp_factor)
            root = factor * math.sqrt(m * value)
        else:
            root = adamw_order_one(group, value, prediction.dims, prediction.count(group), self.mlp_factor)
        return root, root * error / (2 * value)  # error of a square root


def mean_over_positions(kernel: Array) -> float:
    """Return the mean of a kernel's diagonal."""
    return float(np.diag(kernel).mean())


def mean_between_samples(samples: int) -> Callable[[Array], float]:
    """Return a function that averages a (P, P) kernel over pairs of positions from different samples."""

    def mean(kernel_PP: Array) -> float:
        tokens = len(kernel_PP) // samples
        mask_PP = np.kron(1 - np.eye(samples), np.ones((tokens, tokens)))
        return float((kernel_PP * mask_PP).sum() / mask_PP.sum())

    return mean
