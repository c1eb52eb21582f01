"""Compare measurements at several widths with what a scaling implies: a verdict for each quantity."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ettsweep.strategies.factors import Group, steps_of, tangent_contribution
from ettsweep.theory.expectations import Expectations, ExpectedValue, mean_between_samples, mean_over_positions
from ettsweep.theory.exponents import (
    Exponent,
    ExponentTest,
    fit_power,
    judge_power,
    log_slope,
    relative_variances,
    worst_verdict,
)
from ettsweep.theory.measurement import EXACT_VALUES, LayerCheck, Measurement, PerTensor
from ettsweep.theory.paper import MEAN_MAGNITUDE, MEAN_MAGNITUDE_ERROR, initial_distribution

KERNEL_ALLOWANCE, CONTRIBUTION_ALLOWANCE = 5.0, 10.0
"""Relative difference from leading order allowed at the widest, in units of 1/C, on top of the standard errors.

For comparison, vit-b16 at C = 64 differs by at most 3% in kernels and 5% in contributions.
"""

VALUE_ERRORS = 4
"""Standard errors by which a value at the widest may differ from its prediction."""

ROUNDING = 1e-6
"""Relative tolerance of plain numbers: learning-rate factors, and initial stds as the strategy states them."""

DRAWN_ERRORS = 5
"""Standard errors by which std and mean magnitude of a tensor's N initial values may differ from what they are drawn
with. Errors fall as 1/sqrt(N). One right tensor in two million is beyond five, and seeds are fixed: what passes once
passes always."""

STD_ERROR = math.sqrt(1 / 2)
"""Relative standard error of the std of N Gaussian values, times sqrt(N); that of uniform values is smaller."""

DECAY_TOLERANCE = 0.01
"""Absolute tolerance for the decay of a step divided by lr wd, which should be 1."""


@dataclass(frozen=True)
class JudgedQuantity:
    """A measured quantity, what theory implies for it, and the verdict.

    Attributes:
        measured: mean over seeds at the widest; None if not finite.
        error: standard error of `measured`.
        predicted: theory's value at the widest; None if theory implies only a power.
        power: fitted power of the width; None if a value vanishes or is not finite, or if no power is fitted.
        implied_power: theory's power of the width; None if theory implies none.
        verdict: whether the measurement agrees.
        off_tensors: for a group with several tensors, those that are off. The other fields are of the tensor that is
            farthest off.
    """

    measured: float | None
    error: float
    predicted: float | None
    power: Exponent | None
    implied_power: float | None
    verdict: ExponentTest
    off_tensors: tuple[str, ...] = ()

    @property
    def off_by(self) -> float | None:
        """Fitted power minus implied power."""
        return None if self.power is None or self.implied_power is None else self.power.value - self.implied_power


@dataclass(frozen=True)
class JudgedRow:
    """The judged quantities of one stage of the forward pass.

    Keys: `kernel`, `kernel between samples`, `activation change`.
    """

    name: str
    quantities: Mapping[str, JudgedQuantity]

    @property
    def verdict(self) -> ExponentTest:
        """The worst verdict of the quantities."""
        return worst_verdict([quantity.verdict for quantity in self.quantities.values()])


class GroupRow(JudgedRow):
    """The judged quantities of one parameter group.

    Keys: `initial std`, `initial shape` (unless the group starts from 0), `learning-rate factor`, `decay`; and
    `tangent contribution`, `function change` if the theory covers the model.
    """

    @property
    def off_by(self) -> float | None:
        """Difference between measured and implied power of the group's effect on the outputs.

        Taken from training if a power was fitted there, otherwise from the tangent kernel.
        """
        effects = (self.quantities.get(name) for name in ("function change", "tangent contribution"))
        return next((effect.off_by for effect in effects if effect and effect.off_by is not None), None)


class LayerRow(JudgedRow):
    """One exact property of layers (`LayerCheck`), judged at each location in the network."""

    @property
    def farthest_off(self) -> tuple[str, JudgedQuantity]:
        """Return the location that is farthest off; a location without a finite measurement counts as farthest."""

        def distance(item: tuple[str, JudgedQuantity]) -> float:
            measured, predicted = item[1].measured, item[1].predicted
            return math.inf if measured is None or predicted is None else abs(measured - predicted)

        return max(self.quantities.items(), key=distance)


@dataclass(frozen=True)
class Judgement:
    """All judged rows.

    `contact` is (predicted, measured) mean contact logit of a tied head. It is reported, but not judged.
    """

    stages: tuple[JudgedRow, ...]
    groups: tuple[GroupRow, ...]
    layers: tuple[LayerRow, ...]
    contact: tuple[float, float] | None = None

    @property
    def verdict(self) -> ExponentTest:
        """The worst verdict of all rows."""
        return worst_verdict([row.verdict for row in (*self.stages, *self.groups, *self.layers)])


def judge_measurements(
    expectations: Expectations, measurements: Sequence[Measurement], heads: int, samples: int
) -> Judgement:
    """Compare measurements with expectations: only what the theory covers.

    Args:
        expectations: what theory implies at each width.
        measurements: at least one network of each width.
        heads: H, so that C = width / H.
        samples: B, samples of the probe batch.
    """
    table = _WidthTable(expectations.widths, [n // heads for n in expectations.widths], measurements)
    covered_stages = expectations.stages if expectations.is_covered else ()
    stages = tuple(_judge_stage(name, expectations, table, samples) for name in covered_stages)
    groups = tuple(_judge_group(group, expectations, table) for group in expectations.groups)
    layers = tuple(_judge_layers(expectations, measurements))
    contact = expectations.predictions[-1].kernels.contact
    if contact is None or not expectations.is_covered:
        return Judgement(stages, groups, layers)
    logit, _ = table.mean_at_widest(lambda m: math.nan if m.contact is None else m.contact)
    return Judgement(stages, groups, layers, (float(contact.logit.value.mean()), math.nan if logit is None else logit))


ReadValue = Callable[[Measurement], float]


@dataclass(frozen=True)
class _WidthTable:
    """Measurements with the widths and the channels per head C of each width, both ascending."""

    widths: Sequence[int]
    channels: Sequence[int]
    measurements: Sequence[Measurement]

    def values(self, read: ReadValue) -> list[list[float]]:
        return [[read(m) for m in self.measurements if m.width == n] for n in self.widths]

    def mean_at_widest(self, read: ReadValue) -> tuple[float | None, float]:
        """Return mean and standard error at the widest; (None, 0) if the values of some width are not finite."""
        table = [np.array(row) for row in self.values(read) if all(map(math.isfinite, row))]
        if len(table) < len(self.widths):
            return None, 0.0
        mean = float(table[-1].mean())
        return mean, abs(mean) * math.sqrt(relative_variances(table)[-1] / len(table[-1]))

    def fitted_power(self, read: ReadValue, relative_values: Sequence[float] | None = None) -> Exponent | None:
        """Fit the power of the width.

        Dividing by the expected relative values before the fit leaves a straight line in log-log, although the
        expectation itself may be no pure power.
        """
        relative_values = relative_values or [1.0 for _ in self.widths]
        rows = zip(self.values(read), relative_values, strict=True)
        divided = [[value / relative for value in row] for row, relative in rows]
        remainder = fit_power(self.widths, divided, self.channels)
        if remainder is None:
            return None
        return Exponent(remainder.value + log_slope(self.widths, relative_values), remainder.error)

    def judge_fitted(self, read: ReadValue, expected: ExpectedValue | None, allowance: float = 0.0) -> JudgedQuantity:
        """Judge a noisy quantity: its power if one is implied, and its value at the widest if one is predicted."""
        mean, error = self.mean_at_widest(read)
        if expected is None:
            verdict = self.judge_value(mean, error, None, allowance)
            return JudgedQuantity(mean, error, None, self.fitted_power(read), None, verdict)
        power, implied = self.fitted_power(read, expected.relative_values), expected.implied_power(self.widths)
        verdict = worst_verdict([judge_power(power, implied), self.judge_value(mean, error, expected, allowance)])
        return JudgedQuantity(mean, error, expected.value, power, implied, verdict)

    def judge_value(
        self, mean: float | None, error: float, expected: ExpectedValue | None, allowance: float
    ) -> ExponentTest:
        """Judge a mean at the widest; `allowance` is in units of 1/C of the expected value."""
        if mean is None:  # training blew up, or an initial value is not finite
            return ExponentTest.OFF
        if expected is None or expected.value is None:
            return ExponentTest.OK
        errors = VALUE_ERRORS * math.hypot(error, expected.error)
        # Corrections to leading order have relative size 1/C, which is smallest at the widest.
        tolerance = errors + allowance / self.channels[-1] * abs(expected.value)
        return ExponentTest.OFF if abs(mean - expected.value) > tolerance else ExponentTest.OK

    def judge_values(self, read: ReadValue, expected: Sequence[float], tolerances: Sequence[float]) -> JudgedQuantity:
        """Judge a quantity without finite-width corrections by its value at each width, within relative tolerances."""

        def power(values: Sequence[float]) -> float | None:
            is_positive = all(math.isfinite(value) and value > 0 for value in values)
            return log_slope(self.widths, values) if is_positive else None

        (mean, error), means = self.mean_at_widest(read), [fmean(row) for row in self.values(read)]
        is_right = all(
            abs(value - right) <= tolerance * right  # false for nan
            for value, right, tolerance in zip(means, expected, tolerances, strict=True)
        )
        fitted, verdict = power(means), ExponentTest.OK if is_right else ExponentTest.OFF
        exponent = None if fitted is None else Exponent(fitted, 0.0)
        return JudgedQuantity(mean, error, expected[-1], exponent, power(expected), verdict)


def _judge_stage(name: str, expectations: Expectations, table: _WidthTable, samples: int) -> JudgedRow:
    between_samples, (mean, error) = (
        expectations.kernel(name, mean_between_samples(samples)),
        table.mean_at_widest(lambda m: m.kernels[name][1]),
    )
    verdict = table.judge_value(mean, error, between_samples, KERNEL_ALLOWANCE)
    quantities = {
        "kernel": table.judge_fitted(
            lambda m: m.kernels[name][0], expectations.kernel(name, mean_over_positions), KERNEL_ALLOWANCE
        ),
        "kernel between samples": JudgedQuantity(mean, error, between_samples.value, None, None, verdict),
        # Of the last step: changes are cumulative.
        "activation change": table.judge_fitted(lambda m: m.changes[-1][name], expectations.change(name)),
    }
    return JudgedRow(name, quantities)


def _judge_group(group: Group, expectations: Expectations, table: _WidthTable) -> GroupRow:
    counts = {prediction.dims.width: prediction.count(group) for prediction in expectations.predictions}

    def measured_contribution(m: Measurement) -> float:
        # One factor for the group: tensors with different factors are reported by "learning-rate factor".
        factor = fmean(m.factors[group])
        steps = steps_of(group, expectations.optimizer)
        return tangent_contribution(sum(m.gradients[group]), factor, steps, counts[m.width])

    quantities = {"initial std": _judge_std(group, expectations, table)}
    if any(expectations.initial_stds(group)):  # what starts from 0 has no shape
        quantities["initial shape"] = _judge_shape(group, expectations, table)
    quantities["learning-rate factor"] = _judge_factor(group, expectations, table)
    if expectations.is_covered:
        contribution = expectations.contribution(group)
        quantities |= {
            "tangent contribution": table.judge_fitted(measured_contribution, contribution, CONTRIBUTION_ALLOWANCE),
            # Its value depends on the lr, so only its power is judged: that of the tangent contribution.
            "function change": table.judge_fitted(
                lambda m: m.function_changes[group], replace(contribution, value=None)
            ),
        }
    quantities["decay"] = _judge_decay(group, expectations, table)
    return GroupRow(group.value, quantities)


def _judge_std(group: Group, expectations: Expectations, table: _WidthTable) -> JudgedQuantity:
    """Judge the std of each tensor's initial values, and the one that the strategy states."""
    stds = expectations.initial_stds(group)
    drawn = _judge_drawn(lambda m: m.stds, stds, STD_ERROR, group, expectations, table)
    stated = table.judge_values(lambda m: m.stated_stds[group], stds, [ROUNDING for _ in stds])
    # The drawn values are too few to show a std that is slightly wrong; the stated number is exact.
    return stated if drawn.verdict is ExponentTest.OK and stated.verdict is ExponentTest.OFF else drawn


def _judge_shape(group: Group, expectations: Expectations, table: _WidthTable) -> JudgedQuantity:
    """Judge the mean magnitude of each tensor's initial values over their rms, which normal and uniform differ in."""
    distribution = initial_distribution(group, expectations.predictions[-1].dims.domain)
    magnitude, error = MEAN_MAGNITUDE[distribution], MEAN_MAGNITUDE_ERROR[distribution]
    magnitudes = [magnitude for _ in table.widths]
    return _judge_drawn(lambda m: m.mean_magnitudes, magnitudes, error / magnitude, group, expectations, table)


def _judge_drawn(
    values: Callable[[Measurement], PerTensor],
    expected: Sequence[float],
    error: float,
    group: Group,
    expectations: Expectations,
    table: _WidthTable,
) -> JudgedQuantity:
    """Judge a number of each tensor's N initial values; `error` is its relative standard error times sqrt(N)."""
    seeds, quantities = len(table.measurements) / len(table.widths), dict[str, JudgedQuantity]()
    for index, name in enumerate(expectations.predictions[-1].sizes[group]):
        sizes = [prediction.sizes[group][name] for prediction in expectations.predictions]
        errors = [error / math.sqrt(size * seeds) for size in sizes]
        tolerances = [DRAWN_ERRORS * relative_error for relative_error in errors]
        quantity = table.judge_values(_tensor_reader(values, group, index), expected, tolerances)
        quantities[name] = replace(quantity, error=errors[-1] * (quantity.measured or 0.0))
    return _farthest_off(quantities)


def _judge_factor(group: Group, expectations: Expectations, table: _WidthTable) -> JudgedQuantity:
    """Judge the learning-rate factor of each tensor."""
    factors, names = expectations.factors(group), expectations.predictions[-1].sizes[group]
    reads = (_tensor_reader(lambda m: m.factors, group, index) for index in range(len(names)))
    tolerances = [ROUNDING for _ in factors]
    return _farthest_off(
        {name: table.judge_values(read, factors, tolerances) for name, read in zip(names, reads, strict=True)}
    )


def _judge_decay(group: Group, expectations: Expectations, table: _WidthTable) -> JudgedQuantity:
    """Judge whether a step shrinks each tensor by lr wd at every width, and the head bias not at all."""
    implied, quantities = 0.0 if group is Group.HEAD_BIAS else 1.0, dict[str, JudgedQuantity]()
    # Decay does not depend on the seed, so it is measured for the first seed of each width only.
    decay_table = replace(table, measurements=[m for m in table.measurements if m.decay])
    for index, name in enumerate(expectations.predictions[-1].sizes[group]):
        read = _tensor_reader(lambda m: m.decay, group, index)
        ratios = [value for row in decay_table.values(read) for value in row]
        is_right = all(abs(ratio - implied) <= DECAY_TOLERANCE for ratio in ratios)
        # The head bias does not decay, and zeros have no power.
        power = decay_table.fitted_power(read) if implied else None
        quantities[name] = JudgedQuantity(
            ratios[-1], 0.0, implied, power, 0.0, ExponentTest.OK if is_right else ExponentTest.OFF
        )
    return _farthest_off(quantities)


def _tensor_reader(values: Callable[[Measurement], PerTensor], group: Group, index: int) -> ReadValue:
    """Return a function that reads one tensor's number from a measurement."""
    return lambda m: values(m)[group][index]


def _farthest_off(quantities: Mapping[str, JudgedQuantity]) -> JudgedQuantity:
    """Return the quantity of the tensor that is farthest off, with the names of all tensors that are off."""

    def distance(quantity: JudgedQuantity) -> tuple[bool, float]:
        power = quantity.off_by
        # Off before ok, and then by distance: a tensor without a power (vanishing or not finite) is farthest.
        return quantity.verdict is ExponentTest.OFF, math.inf if power is None else abs(power)

    # A group's only tensor needs no name: the row has the group's.
    off_tensors = tuple(name for name, quantity in quantities.items() if quantity.verdict is ExponentTest.OFF)
    return replace(max(quantities.values(), key=distance), off_tensors=off_tensors if len(quantities) > 1 else ())


def _judge_layers(expectations: Expectations, measurements: Sequence[Measurement]) -> Iterator[LayerRow]:
    """Yield a row for each layer check, in the enum's order; checks without a measurement are left out."""
    for layer in LayerCheck:
        # At most one network is measured by layer, so no location overwrites another's value.
        values = {location: value for m in measurements for location, value in m.layers.get(layer, {}).items()}
        if layer is LayerCheck.GRADIENT:
            # Not measured by layer, but known from the squared gradients of every network.
            values = {
                name: float(all(m.gradients[group][i] > 0 for m in measurements))
                for group, sizes in expectations.predictions[-1].sizes.items()
                for i, name in enumerate(sizes)
            }
        quantities = {location: _judge_exact(value, *EXACT_VALUES[layer]) for location, value in values.items()}
        if quantities:
            yield LayerRow(layer.value, quantities)


def _judge_exact(value: float, exact_value: float, tolerance: float) -> JudgedQuantity:
    """Judge a value that is exact up to rounding."""
    verdict = ExponentTest.OK if abs(value - exact_value) <= tolerance else ExponentTest.OFF
    return JudgedQuantity(value if math.isfinite(value) else None, 0.0, exact_value, None, None, verdict)
