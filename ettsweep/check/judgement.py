"""What was measured at several widths held against what a scaling implies: a verdict per quantity."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ettsweep.check.expectations import Expectations, Expected, between, factor_power, init_power, own
from ettsweep.check.powers import Agreement, Power, fit_power, growth, judge_power, relative_variances, worst
from ettsweep.scaling.factors import Group, tangent_contribution

KERNEL_ALLOWANCE, CONTRIBUTION_ALLOWANCE = 5.0, 10.0
"""Times 1/C, by which a value at the widest may differ from its leading order beside the errors.

vit-b16 at C = 64, where four errors are small: kernels differ by 3% at most, contributions by 5%.
"""

VALUE_ERRORS = 4
DIRECT_POWER = 0.1
"""How far the power of a factor or an initial std may be off: the former has no noise, the latter little."""

DECAY_TOLERANCE = 0.01

Changes = Sequence[Mapping[str, float]]
"""Of each step, the rms change of each stage since before training."""


@dataclass(frozen=True)
class Measured:
    """What one network of some width showed.

    Attributes:
        width: n.
        seed: of its initial values.
        kernels: of each stage, the mean over tokens, and that over pairs of tokens of different samples.
        stds: of each group's initial values.
        factors: of each group, what the optimizer multiplies the learning rate of each of its tensors by.
        gradients: of each group, the sum over its parameters of (df_i/dtheta)^2, mean over outputs i and samples.
        changes: of its stages in training.
        function_changes: the rms change of the outputs that each group's steps make by themselves.
        decay: of each group, the shrinkage in a step with zero gradients, divided by lr wd; empty if not measured.
        contact: mean logit of the token that the decoder reads, of language models.
    """

    width: int
    seed: int
    kernels: Mapping[str, tuple[float, float]]
    stds: Mapping[Group, float]
    factors: Mapping[Group, tuple[float, ...]]
    gradients: Mapping[Group, float]
    changes: Changes
    function_changes: Mapping[Group, float]
    decay: Mapping[Group, float]
    contact: float | None = None


@dataclass(frozen=True)
class Quantity:
    """Something measured, and what it should be.

    Attributes:
        measured: at the widest, the mean over seeds; None where it is not finite.
        error: its standard error.
        predicted: at the widest; None where only the power is.
        power: of the width; None where there is none, since a value vanishes or is not finite.
        implied: power; None where the theory has none.
    """

    measured: float | None
    error: float
    predicted: float | None
    power: Power | None
    implied: float | None
    verdict: Agreement

    @property
    def off_by(self) -> float | None:
        """Return by how much the power differs from the implied one."""
        return None if self.power is None or self.implied is None else self.power.value - self.implied


@dataclass(frozen=True)
class Row:
    """What is judged of a part of the forward pass, by name.

    `kernel`, `kernel between samples`, `activation change`.
    """

    name: str
    quantities: Mapping[str, Quantity]

    @property
    def verdict(self) -> Agreement:
        """Return the worst of the verdicts."""
        return worst([quantity.verdict for quantity in self.quantities.values()])


class GroupRow(Row):
    """What is judged of a parameter group, by name.

    `initial std`, unless it starts from 0; `learning-rate factor`, `tangent contribution`, `function change`, `decay`.
    """

    @property
    def off_by(self) -> float | None:
        """Return by how much the power of what the group does to the outputs differs: in training, if it has one."""
        change, contribution = self.quantities["function change"], self.quantities["tangent contribution"]
        return contribution.off_by if change.off_by is None else change.off_by


@dataclass(frozen=True)
class Judgement:
    """All rows, and the contact term of a tied head, (predicted, measured), which is not judged."""

    stages: tuple[Row, ...]
    groups: tuple[GroupRow, ...]
    contact: tuple[float, float] | None = None

    @property
    def verdict(self) -> Agreement:
        """Return the worst of the rows' verdicts."""
        return worst([row.verdict for row in (*self.stages, *self.groups)])


def judge(expected: Expectations, measured: Sequence[Measured], heads: int, samples: int) -> Judgement:
    """Judge all stages and groups by at least one network of each width, given H and the samples of the batch."""
    table = _Table(expected.widths, [n // heads for n in expected.widths], measured)
    stages = tuple(_stage(name, expected, table, samples) for name in expected.stages)
    groups = tuple(_group(group, expected, table) for group in expected.groups)
    contact = expected.predictions[-1].kernels.contact
    if contact is None:
        return Judgement(stages, groups)
    logit, _ = table.widest(lambda m: math.nan if m.contact is None else m.contact)
    return Judgement(stages, groups, (float(contact.logit.value.mean()), math.nan if logit is None else logit))


Read = Callable[[Measured], float]


@dataclass(frozen=True)
class _Table:
    """Measurements by width, and C at each."""

    widths: Sequence[int]
    channels: Sequence[int]
    measured: Sequence[Measured]

    def values(self, read: Read) -> list[list[float]]:
        return [[read(m) for m in self.measured if m.width == n] for n in self.widths]

    def widest(self, read: Read) -> tuple[float | None, float]:
        """Return the mean at the widest and its standard error; None where not all widths have finite values."""
        table = [np.array(row) for row in self.values(read) if all(map(math.isfinite, row))]
        if len(table) < len(self.widths):
            return None, 0.0
        mean = float(table[-1].mean())
        return mean, abs(mean) * math.sqrt(relative_variances(table)[-1] / len(table[-1]))

    def power(self, read: Read, shape: Sequence[float] | None = None) -> Power | None:
        """Return the fitted power; where a shape is expected, the shape's own and that of what is left."""
        shape = shape or [1.0 for _ in self.widths]
        rows = zip(self.values(read), shape, strict=True)
        left = fit_power(self.widths, [[value / by for value in row] for row, by in rows], self.channels)
        return None if left is None else Power(left.value + growth(self.widths, shape), left.error)

    def fitted(self, read: Read, expected: Expected | None, allowance: float = 0.0) -> Quantity:
        """Judge the power of a quantity, if one is implied, and its value at the widest, if one is predicted."""
        mean, error = self.widest(read)
        if expected is None:
            return Quantity(mean, error, None, self.power(read), None, Agreement.OK)
        power, implied = self.power(read, expected.shape), expected.implied(self.widths)
        verdict = worst([judge_power(power, implied), self.compared(mean, error, expected, allowance)])
        return Quantity(mean, error, expected.value, power, implied, verdict)

    def compared(self, mean: float | None, error: float, expected: Expected, allowance: float) -> Agreement:
        """Judge a value at the widest."""
        if mean is None:
            return Agreement.OFF
        if expected.value is None:
            return Agreement.OK
        errors = VALUE_ERRORS * math.hypot(error, expected.error)
        tolerance = errors + allowance / self.channels[-1] * abs(expected.value)
        return Agreement.OFF if abs(mean - expected.value) > tolerance else Agreement.OK

    def direct(self, read: Read, implied: float) -> Quantity:
        """Judge the power of what is read off a network, where finite widths have no corrections."""
        (mean, error), means = self.widest(read), [fmean(row) for row in self.values(read)]
        positive = all(math.isfinite(value) and value > 0 for value in means)
        power = Power(growth(self.widths, means), 0.0) if positive else None
        right = power is not None and abs(power.value - implied) <= DIRECT_POWER
        return Quantity(mean, error, None, power, implied, Agreement.OK if right else Agreement.OFF)


def _stage(name: str, expected: Expectations, table: _Table, samples: int) -> Row:
    apart, (mean, error) = expected.kernel(name, between(samples)), table.widest(lambda m: m.kernels[name][1])
    agree = table.compared(mean, error, apart, KERNEL_ALLOWANCE)
    quantities = {
        "kernel": table.fitted(lambda m: m.kernels[name][0], expected.kernel(name, own), KERNEL_ALLOWANCE),
        "kernel between samples": Quantity(mean, error, apart.value, None, None, agree),
        "activation change": table.fitted(lambda m: m.changes[-1][name], expected.change(name)),
    }
    return Row(name, quantities)


def _group(group: Group, expected: Expectations, table: _Table) -> GroupRow:
    contribution = expected.contribution(group)
    counts = {prediction.dims.width: prediction.counts[group] for prediction in expected.predictions}

    def contributed(m: Measured) -> float:
        factor = fmean(m.factors[group])
        return tangent_contribution(m.gradients[group], factor, expected.optimizer, counts[m.width])

    quantities = {}
    if group is not Group.HEAD_BIAS:  # it starts from 0
        implied = init_power(group, expected.predictions[-1].dims.domain, expected.s)
        quantities["initial std"] = table.direct(lambda m: m.stds[group], implied)
    quantities |= {
        "learning-rate factor": _factor(group, expected, table),
        "tangent contribution": table.fitted(contributed, contribution, CONTRIBUTION_ALLOWANCE),
        "function change": table.fitted(lambda m: m.function_changes[group], replace(contribution, value=None)),
        "decay": _decay(group, table),
    }
    return GroupRow(group.value, quantities)


def _factor(group: Group, expected: Expectations, table: _Table) -> Quantity:
    """Judge the learning-rate factors of a group's tensors; the one whose power is the farthest off speaks for all."""
    implied = factor_power(group, expected.s, expected.optimizer)

    def of_tensor(index: int) -> Quantity:
        return table.direct(lambda m: m.factors[group][index], implied)

    judged = map(of_tensor, range(len(table.measured[0].factors[group])))
    return max(judged, key=lambda quantity: math.inf if quantity.off_by is None else abs(quantity.off_by))


def _decay(group: Group, table: _Table) -> Quantity:
    """Judge that a step shrinks a group by lr wd at every width, and the head bias not at all."""
    implied = 0.0 if group is Group.HEAD_BIAS else 1.0
    seen = replace(table, measured=[m for m in table.measured if m.decay])
    ratios = [value for row in seen.values(lambda m: m.decay[group]) for value in row]
    right = all(abs(ratio - implied) <= DECAY_TOLERANCE for ratio in ratios)
    power = seen.power(lambda m: m.decay[group]) if implied else None
    return Quantity(ratios[-1], 0.0, implied, power, 0.0, Agreement.OK if right else Agreement.OFF)
