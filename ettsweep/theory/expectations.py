"""What a scaling should show at several widths: values at the widest, and powers of the width (theory.md 7)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ettsweep.runs.spec import ModelSpec
from ettsweep.strategies.factors import Dims, Group, MlpFactor, Optimizer, adamw_order_one, tangent_contribution
from ettsweep.strategies.strategy import bulk_exponent
from ettsweep.theory.exponents import growth
from ettsweep.theory.kernels import Kernels
from ettsweep.theory.paper import initial_std, output_scale
from ettsweep.theory.recursion import Array
from ettsweep.trainer.models.registry import dims, parameter_shapes

HEAD = "head"
"""The stage of the outputs."""

FLAT = 0.01
"""Power of the width below which a contribution counts as constant."""


@dataclass(frozen=True)
class ExpectedValue:
    """What a quantity should be.

    Attributes:
        value: at the widest; None where only the power is known.
        error: its standard error.
        power: of the width, where nothing but that changes.
        shape: at each width, what else changes, up to a factor: C_G of language models grow.
    """

    value: float | None
    error: float
    power: float
    shape: tuple[float, ...]

    def implied(self, widths: Sequence[int]) -> float:
        """Return the power of the width that a fit should find."""
        return self.power + growth(widths, self.shape)


@dataclass(frozen=True)
class Prediction:
    """Kernels at leading order, and what they were computed for.

    `sizes` are the numbers in each of a group's tensors, by name: those that one tensor holds have names of their own.
    """

    dims: Dims
    sizes: Mapping[Group, Mapping[str, int]]
    kernels: Kernels

    @classmethod
    def of(cls, model: ModelSpec, kernels: Kernels) -> "Prediction":
        """Return the prediction for a model."""
        sizes: dict[Group, dict[str, int]] = {}
        for parameter in parameter_shapes(model):
            module, fused = parameter.name.rpartition(".")[0], len(parameter.groups) > 1
            for group in parameter.groups:
                name = f"{module}.{group}" if fused else parameter.name
                sizes.setdefault(group, {})[name] = parameter.size // len(parameter.groups)
        return cls(dims(model), sizes, kernels)

    def count(self, group: Group) -> int:
        """Return a group's parameters that have a gradient, for `tangent_contribution`: of words, those of one."""
        return self.dims.width if group is Group.WE else sum(self.sizes[group].values())


@dataclass(frozen=True)
class Expectations:
    """What is implied for a strategy and an optimizer, with predictions at each width, ascending.

    Standard (s is None) is outside the family: its learning rate can take up one power of the width. It is the bulk's,
    so that the other groups show by how much they miss it.
    """

    predictions: Sequence[Prediction]
    s: float | None
    optimizer: Optimizer
    mlp_factor: MlpFactor

    @property
    def widths(self) -> list[int]:
        return [prediction.dims.width for prediction in self.predictions]

    @property
    def groups(self) -> list[Group]:
        """Return the model's groups, from the stem to the head."""
        return [group for group in Group if group in self.predictions[-1].sizes]

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages in the order of the forward pass."""
        return tuple(stage.name for stage in self.predictions[-1].kernels.stages)

    def initial_std(self, group: Group) -> ExpectedValue:
        """Return the std of a group's initial values, which has neither noise nor corrections."""
        curve = tuple(initial_std(group, prediction.dims, self.s) for prediction in self.predictions)
        return ExpectedValue(curve[-1], 0.0, 0.0, curve)

    def kernel(self, stage: str, mean: Callable[[Array], float]) -> ExpectedValue:
        """Return a mean of a stage's kernel, over positions or over pairs of them."""
        estimates = [
            next(predicted.kernel for predicted in prediction.kernels.stages if predicted.name == stage)
            for prediction in self.predictions
        ]
        power, scales = 0.0, [1.0 for _ in self.widths]
        if stage == HEAD:
            power, scales = self.output_power, [output_scale(p.dims, self.s) for p in self.predictions]
        shape = tuple(mean(estimate.value) / scale for estimate, scale in zip(estimates, scales, strict=True))
        return ExpectedValue(mean(estimates[-1].value), mean(estimates[-1].error), power, shape)

    def contribution(self, group: Group) -> ExpectedValue:
        """Return a group's contribution, for one sample, to the tangent kernel that the optimizer's steps have."""
        curve = [self._order_one(prediction, group) for prediction in self.predictions]
        value, error = curve[-1]
        if self.s is None:
            widest = self.predictions[-1]
            raw = own(widest.kernels.tangent[group].value)
            scale = tangent_contribution(raw, 1.0, self.optimizer, widest.count(group)) / value
            value, error = value * scale, error * scale
        return ExpectedValue(value, error, self.outside, tuple(value for value, _ in curve))

    def change(self, stage: str) -> ExpectedValue | None:
        """Return the power by which a stage's activations, or the outputs, change in the first steps of training.

        -(1-s)/2 of hidden activations and 0 of the outputs; None where a C_G that grows is upstream, since what it
        makes of each stage is not predicted here.
        """
        stages_so_far = self.stages[: self.stages.index(stage) + 1]
        if stage.startswith("decoder") and not any(name.endswith(".cross") for name in stages_so_far):
            stages_so_far = tuple(name for name in stages_so_far if name.startswith("decoder"))  # reads nothing of the encoder yet
        upstream = {group for predicted in self.predictions[-1].kernels.stages if predicted.name in stages_so_far for group in predicted.groups}
        curves = [self.contribution(group).shape for group in upstream]
        if any(abs(growth(self.widths, curve)) > FLAT for curve in curves):
            return None
        power = self.outside if stage == HEAD else self.hidden_power
        return ExpectedValue(None, 0.0, power, tuple(1.0 for _ in self.widths))

    @property
    def hidden_power(self) -> float:
        """Return the power by which hidden activations change, where all C_G are of order one."""
        # Unlike the outputs, they do not have the head's scale in them.
        outside = self.outside - (self.output_power / 2 if self.s is None else 0.0)
        return outside - (1 - (self.s or 0.0)) / 2

    @property
    def output_power(self) -> float:
        """Return the power of the width that the outputs' kernel has by its scale alone."""
        return growth(self.widths, [output_scale(prediction.dims, self.s) for prediction in self.predictions])

    @property
    def outside(self) -> float:
        """Return the power of the width that all groups have in common: 0 in the family, the bulk's for standard."""
        if self.s is not None:
            return 0.0
        of_outputs = self.output_power * (1.0 if self.optimizer == "sgd" else 0.5)
        return bulk_exponent(0.0, self.optimizer) + of_outputs

    def _order_one(self, prediction: Prediction, group: Group) -> tuple[float, float]:
        """Return a contribution with the paper's factors, which have no power of the width, and its error."""
        estimate = prediction.kernels.order_one[group]
        value, error = own(estimate.value), own(estimate.error)
        if self.optimizer == "sgd":
            ignored = prediction.dims.mlp_ratio if group is Group.X and self.mlp_factor == "ignore" else 1
            return ignored * value, ignored * error
        count = prediction.count(group)
        root = adamw_order_one(group, value, prediction.dims, count, self.mlp_factor)
        return root, root * error / (2 * value)


def own(kernel: Array) -> float:
    """Return the mean over positions of a kernel."""
    return float(np.diag(kernel).mean())


def between(samples: int) -> Callable[[Array], float]:
    """Return what takes the mean over pairs of positions of different samples of a kernel."""

    def mean(kernel_PP: Array) -> float:
        tokens = len(kernel_PP) // samples
        mask_PP = np.kron(1 - np.eye(samples), np.ones((tokens, tokens)))
        return float((kernel_PP * mask_PP).sum() / mask_PP.sum())

    return mean
