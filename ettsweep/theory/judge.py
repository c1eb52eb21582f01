"""What was measured at several widths held against what a scaling implies: a verdict per quantity."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ettsweep.strategies.factors import Group, tangent_contribution
from ettsweep.theory.expectations import Expectations, ExpectedValue, between, own
from ettsweep.theory.exponents import Exponent, ExponentTest, fit_power, growth, judge_power, relative_variances, worst
from ettsweep.theory.measurement import EXACT, Layer, Measurement, PerTensor
from ettsweep.theory.paper import factor_power

KERNEL_ALLOWANCE, CONTRIBUTION_ALLOWANCE = 5.0, 10.0
"""Times 1/C, by which a value at the widest may differ from its leading order beside the errors.

vit-b16 at C = 64, where four errors are small: kernels differ by 3% at most, contributions by 5%.
"""

VALUE_ERRORS = 4
DIRECT_POWER = 0.1
"""How far the power of a factor or an initial std may be off: the former has no noise, the latter little."""

STD_ERRORS, STD_ALLOWANCE = 5, 0.01
"""By which the std of a tensor's N initial values may be off at the widest: standard errors, each at most 1/sqrt(2N)
of it, and a part of it. The [pad] row of word embeddings is zero, which takes less."""

DECAY_TOLERANCE = 0.01


@dataclass(frozen=True)
class JudgedQuantity:
    """Something measured, and what it should be.

    Attributes:
        measured: at the widest, the mean over seeds; None where it is not finite.
        error: its standard error.
        predicted: at the widest; None where only the power is.
        power: of the width; None where there is none, since a value vanishes or is not finite.
        implied: power; None where the theory has none.
        where: of a group with several tensors, those that are off; the farthest speaks for it.
    """

    measured: float | None
    error: float
    predicted: float | None
    power: Exponent | None
    implied: float | None
    verdict: ExponentTest
    where: tuple[str, ...] = ()

    @property
    def off_by(self) -> float | None:
        """Return by how much the power differs from the implied one."""
        return None if self.power is None or self.implied is None else self.power.value - self.implied


@dataclass(frozen=True)
class JudgedRow:
    """What is judged of a part of the forward pass, by name.

    `kernel`, `kernel between samples`, `activation change`.
    """

    name: str
    quantities: Mapping[str, JudgedQuantity]

    @property
    def verdict(self) -> ExponentTest:
        """Return the worst of the verdicts."""
        return worst([quantity.verdict for quantity in self.quantities.values()])


class GroupRow(JudgedRow):
    """What is judged of a parameter group, by name.

    `initial std`, unless it starts from 0; `learning-rate factor`, `tangent contribution`, `function change`, `decay`.
    """

    @property
    def off_by(self) -> float | None:
        """Return by how much the power of what the group does to the outputs differs: in training, if it has one."""
        change, contribution = self.quantities["function change"], self.quantities["tangent contribution"]
        return contribution.off_by if change.off_by is None else change.off_by


class LayerRow(JudgedRow):
    """What is judged of one thing that layers are asked, by the place that answers."""

    @property
    def farthest(self) -> tuple[str, JudgedQuantity]:
        """Return the place that is the farthest off; places that could not answer are."""

        def distance(item: tuple[str, JudgedQuantity]) -> float:
            measured, predicted = item[1].measured, item[1].predicted
            return math.inf if measured is None or predicted is None else abs(measured - predicted)

        return max(self.quantities.items(), key=distance)


@dataclass(frozen=True)
class Judgement:
    """All rows, and the contact term of a tied head, (predicted, measured), which is not judged."""

    stages: tuple[JudgedRow, ...]
    groups: tuple[GroupRow, ...]
    layers: tuple[LayerRow, ...]
    contact: tuple[float, float] | None = None

    @property
    def verdict(self) -> ExponentTest:
        """Return the worst of the rows' verdicts."""
        return worst([row.verdict for row in (*self.stages, *self.groups, *self.layers)])


def judge(expected: Expectations, measured: Sequence[Measurement], heads: int, samples: int) -> Judgement:
    """Judge all stages and groups by at least one network of each width, given H and the samples of the batch."""
    table = _Table(expected.widths, [n // heads for n in expected.widths], measured)
    stages = tuple(_stage(name, expected, table, samples) for name in expected.stages)
    groups = tuple(_group(group, expected, table) for group in expected.groups)
    layers = tuple(_layers(expected, measured))
    contact = expected.predictions[-1].kernels.contact
    if contact is None:
        return Judgement(stages, groups, layers)
    logit, _ = table.widest(lambda m: math.nan if m.contact is None else m.contact)
    return Judgement(stages, groups, layers, (float(contact.logit.value.mean()), math.nan if logit is None else logit))


Read = Callable[[Measurement], float]


@dataclass(frozen=True)
class _Table:
    """Measurements by width, and C at each."""

    widths: Sequence[int]
    channels: Sequence[int]
    measured: Sequence[Measurement]

    def values(self, read: Read) -> list[list[float]]:
        return [[read(m) for m in self.measured if m.width == n] for n in self.widths]

    def widest(self, read: Read) -> tuple[float | None, float]:
        """Return the mean at the widest and its standard error; None where not all widths have finite values."""
        table = [np.array(row) for row in self.values(read) if all(map(math.isfinite, row))]
        if len(table) < len(self.widths):
            return None, 0.0
        mean = float(table[-1].mean())
        return mean, abs(mean) * math.sqrt(relative_variances(table)[-1] / len(table[-1]))

    def power(self, read: Read, relative_values: Sequence[float] | None = None) -> Exponent | None:
        """Return the fitted power; where a shape is expected, the shape's own and that of what is left."""
        relative_values = relative_values or [1.0 for _ in self.widths]
        rows = zip(self.values(read), relative_values, strict=True)
        remainder = fit_power(self.widths, [[value / relative for value in row] for row, relative in rows], self.channels)
        return None if remainder is None else Exponent(remainder.value + growth(self.widths, relative_values), remainder.error)

    def fitted(self, read: Read, expected: ExpectedValue | None, allowance: float = 0.0) -> JudgedQuantity:
        """Judge the power of a quantity, if one is implied, and its value at the widest, if one is predicted."""
        mean, error = self.widest(read)
        if expected is None:
            return JudgedQuantity(mean, error, None, self.power(read), None, ExponentTest.OK)
        power, implied = self.power(read, expected.shape), expected.implied(self.widths)
        verdict = worst([judge_power(power, implied), self.compared(mean, error, expected, allowance)])
        return JudgedQuantity(mean, error, expected.value, power, implied, verdict)

    def compared(self, mean: float | None, error: float, expected: ExpectedValue, allowance: float) -> ExponentTest:
        """Judge a value at the widest."""
        if mean is None:
            return ExponentTest.OFF
        if expected.value is None:
            return ExponentTest.OK
        errors = VALUE_ERRORS * math.hypot(error, expected.error)
        tolerance = errors + allowance / self.channels[-1] * abs(expected.value)
        return ExponentTest.OFF if abs(mean - expected.value) > tolerance else ExponentTest.OK

    def direct(self, read: Read, implied: float) -> JudgedQuantity:
        """Judge the power of what is read off a network, where finite widths have no corrections."""
        (mean, error), means = self.widest(read), [fmean(row) for row in self.values(read)]
        positive = all(math.isfinite(value) and value > 0 for value in means)
        power = Exponent(growth(self.widths, means), 0.0) if positive else None
        is_right = power is not None and abs(power.value - implied) <= DIRECT_POWER
        return JudgedQuantity(mean, error, None, power, implied, ExponentTest.OK if is_right else ExponentTest.OFF)


def _stage(name: str, expected: Expectations, table: _Table, samples: int) -> JudgedRow:
    between_samples, (mean, error) = expected.kernel(name, between(samples)), table.widest(lambda m: m.kernels[name][1])
    verdict = table.compared(mean, error, between_samples, KERNEL_ALLOWANCE)
    quantities = {
        "kernel": table.fitted(lambda m: m.kernels[name][0], expected.kernel(name, own), KERNEL_ALLOWANCE),
        "kernel between samples": JudgedQuantity(mean, error, between_samples.value, None, None, verdict),
        "activation change": table.fitted(lambda m: m.changes[-1][name], expected.change(name)),
    }
    return JudgedRow(name, quantities)


def _group(group: Group, expected: Expectations, table: _Table) -> GroupRow:
    contribution = expected.contribution(group)
    counts = {prediction.dims.width: prediction.count(group) for prediction in expected.predictions}

    def measured_contribution(m: Measurement) -> float:
        factor = fmean(m.factors[group])
        return tangent_contribution(sum(m.gradients[group]), factor, expected.optimizer, counts[m.width])

    quantities = {} if group is Group.HEAD_BIAS else {"initial std": _std(group, expected, table)}  # it starts from 0
    quantities |= {
        "learning-rate factor": _factor(group, expected, table),
        "tangent contribution": table.fitted(measured_contribution, contribution, CONTRIBUTION_ALLOWANCE),
        "function change": table.fitted(lambda m: m.function_changes[group], replace(contribution, value=None)),
        "decay": _decay(group, expected, table),
    }
    return GroupRow(group.value, quantities)


def _std(group: Group, expected: Expectations, table: _Table) -> JudgedQuantity:
    """Judge the stds of a group's tensors by their power and their value at the widest."""
    expected_std, (*_, widest) = expected.initial_std(group), expected.predictions
    assert expected_std.value is not None
    seeds, quantities = len(table.measured) / len(table.widths), dict[str, JudgedQuantity]()
    for index, (name, size) in enumerate(widest.sizes[group].items()):
        quantity, error = (
            table.direct(_of(lambda m: m.stds, group, index), expected_std.implied(table.widths)),
            1 / math.sqrt(2 * size * seeds),
        )
        is_off = quantity.measured is None or abs(quantity.measured / expected_std.value - 1) > STD_ERRORS * error + STD_ALLOWANCE
        verdict = ExponentTest.OFF if is_off else quantity.verdict
        quantities[name] = replace(
            quantity, error=error * (quantity.measured or 0.0), predicted=expected_std.value, verdict=verdict
        )
    return _farthest(quantities)


def _factor(group: Group, expected: Expectations, table: _Table) -> JudgedQuantity:
    """Judge the learning-rate factors of a group's tensors by their power."""
    implied = factor_power(group, expected.s, expected.optimizer)
    names = expected.predictions[-1].sizes[group]
    reads = (_of(lambda m: m.factors, group, index) for index in range(len(names)))
    return _farthest({name: table.direct(read, implied) for name, read in zip(names, reads, strict=True)})


def _decay(group: Group, expected: Expectations, table: _Table) -> JudgedQuantity:
    """Judge that a step shrinks each tensor by lr wd at every width, and the head bias not at all."""
    implied, quantities = 0.0 if group is Group.HEAD_BIAS else 1.0, dict[str, JudgedQuantity]()
    decay_table = replace(table, measured=[m for m in table.measured if m.decay])
    for index, name in enumerate(expected.predictions[-1].sizes[group]):
        read = _of(lambda m: m.decay, group, index)
        ratios = [value for row in decay_table.values(read) for value in row]
        is_right = all(abs(ratio - implied) <= DECAY_TOLERANCE for ratio in ratios)
        power = decay_table.power(read) if implied else None
        quantities[name] = JudgedQuantity(
            ratios[-1], 0.0, implied, power, 0.0, ExponentTest.OK if is_right else ExponentTest.OFF
        )
    return _farthest(quantities)


def _of(values: Callable[[Measurement], PerTensor], group: Group, index: int) -> Read:
    """Return what reads the number of one of a group's tensors."""
    return lambda m: values(m)[group][index]


def _farthest(quantities: Mapping[str, JudgedQuantity]) -> JudgedQuantity:
    """Return the quantity of the tensor that is the farthest off, with all that are."""

    def distance(quantity: JudgedQuantity) -> tuple[bool, float]:
        power = quantity.off_by
        return quantity.verdict is ExponentTest.OFF, math.inf if power is None else abs(power)

    off_tensors = tuple(name for name, quantity in quantities.items() if quantity.verdict is ExponentTest.OFF)
    return replace(max(quantities.values(), key=distance), where=off_tensors if len(quantities) > 1 else ())


def _layers(expected: Expectations, measured: Sequence[Measurement]) -> Iterator[LayerRow]:
    """Yield what layers show, in the order of what can be asked."""
    for layer in Layer:
        values = {location: value for m in measured for location, value in m.layers.get(layer, {}).items()}
        if layer is Layer.GRADIENT:
            values = {
                name: float(all(m.gradients[group][i] > 0 for m in measured))
                for group, sizes in expected.predictions[-1].sizes.items()
                for i, name in enumerate(sizes)
            }
        quantities = {location: _exact(value, *EXACT[layer]) for location, value in values.items()}
        if quantities:
            yield LayerRow(layer.value, quantities)


def _exact(value: float, exact_value: float, tolerance: float) -> JudgedQuantity:
    """Judge what has nothing but rounding in it."""
    verdict = ExponentTest.OK if abs(value - exact_value) <= tolerance else ExponentTest.OFF
    return JudgedQuantity(value if math.isfinite(value) else None, 0.0, exact_value, None, None, verdict)
