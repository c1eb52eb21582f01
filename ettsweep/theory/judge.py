"""Compare measurements at several widths with predictions: a table of rows, and the faults in words."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Literal

import numpy as np

from ettsweep.strategies.factors import Group, steps_of, tangent_contribution
from ettsweep.theory.expectations import (
    HEAD,
    Expectations,
    ExpectedValue,
    mean_between_samples,
    mean_over_positions,
)
from ettsweep.theory.exponents import (
    POWER_TOLERANCE,
    Exponent,
    ExponentTest,
    fit_power,
    format_exponent,
    judge_power,
    log_slope,
    relative_variances,
    worst_verdict,
)
from ettsweep.theory.measure import Measurement, PerTensor
from ettsweep.theory.paper import MEAN_MAGNITUDE, MEAN_MAGNITUDE_ERROR, initial_distribution
from ettsweep.theory.probe import LayerCheck

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

CAUSES = {
    "initial std": "the std of initial values",
    "initial shape": "the mean magnitude of initial values, over their rms,",
    **{layer.value: layer.words for layer in LayerCheck},
    "output scale": "the outputs' kernel",
    "learning-rate factor": "the learning-rate factor",
    "decay": "the decay of a step, divided by lr wd,",
}
"""Words for quantities read off a network and its optimizer, in the order of findings: faults explain others."""

EFFECTS = {
    "tangent contribution": "the contribution to the tangent kernel",
    "function change": "the change of the outputs in training",
    "kernel": "the kernel",
    "kernel between samples": "the kernel between samples",
    "activation change": "the change of activations in training",
}
"""Words for their effects."""

WORDS = CAUSES | EFFECTS

Kind = Literal["block", "group", "layers"]


@dataclass(frozen=True)
class Row:
    """A judged quantity: its measurement, prediction, deviation, verdict and sentence.

    Attributes:
        kind: `block` for a stage of the forward pass, `group` for parameters, `layers` for an exact property.
        name: the stage, the group or the property (`LayerCheck`).
        quantity: the measured quantity; of an exact property, the place in the network.
        measured: mean over seeds at the widest; None if not finite.
        error: standard error of `measured`.
        predicted: theory's value at the widest; None if theory implies only a power.
        power: fitted power of the width; None if a value vanishes or is not finite, or if no power is fitted.
        power_error: its standard error.
        implied: theory's power of the width; None if theory implies none.
        off_by: fitted power minus implied power.
        verdict: whether the measurement agrees. If a group has several tensors, a row is of the one farthest off.
        sentence: the fault, without the row's name; empty unless the verdict is `off`.
    """

    kind: Kind
    name: str
    quantity: str
    measured: float | None
    error: float
    predicted: float | None
    power: float | None
    power_error: float | None
    implied: float | None
    off_by: float | None
    verdict: ExponentTest
    sentence: str

    @property
    def subject(self) -> str:
        """The key of `WORDS`."""
        return self.name if self.kind == "layers" else self.quantity

    @property
    def distance(self) -> float:
        """Distance of the measured from the predicted value; infinite if one is missing."""
        if self.measured is None or self.predicted is None:
            return math.inf
        return abs(self.measured - self.predicted)


@dataclass(frozen=True)
class Judgement:
    """All judged rows, and the faults in words, causes first.

    `contact` is (predicted, measured) mean contact logit of a tied head. It is reported, but not judged.
    """

    rows: tuple[Row, ...]
    findings: tuple[str, ...]
    contact: tuple[float, float] | None = None

    @property
    def verdict(self) -> ExponentTest:
        """The worst verdict of all rows."""
        return worst_verdict([row.verdict for row in self.rows])

    def by_name(self, kind: Kind) -> dict[str, dict[str, Row]]:
        """Return the rows of a kind by name and quantity."""
        rows: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            if row.kind == kind:
                rows.setdefault(row.name, {})[row.quantity] = row
        return rows


def group_off_by(quantities: Mapping[str, Row]) -> float | None:
    """Return the difference between measured and implied power of a group's effect on the outputs.

    Taken from training if a power was fitted there, otherwise from the tangent kernel.
    """
    effects = (quantities.get(name) for name in ("function change", "tangent contribution"))
    return next((row.off_by for row in effects if row and row.off_by is not None), None)


def judge_measurements(
    expectations: Expectations, measurements: Sequence[Measurement], heads: int, samples: int
) -> Judgement:
    """Compare measurements with expectations: only what the theory covers.

    Args:
        expectations: predictions at each width.
        measurements: at least one network of each width.
        heads: H, so that C = width / H.
        samples: B, samples of the probe batch.
    """
    judge = _Judge(expectations, measurements, heads)
    stages = expectations.stages if expectations.is_covered else ()
    rows = [row for stage in stages for row in judge.stage(stage, samples)]
    rows += [row for group in expectations.groups for row in judge.group(group)]
    rows += judge.layers()
    contact = expectations.predictions[-1].kernels.contact if expectations.is_covered else None
    judgement = Judgement(tuple(rows), tuple(_findings(rows)))
    if contact is None:
        return judgement
    logit, _ = judge.mean_at_widest(lambda m: math.nan if m.contact is None else m.contact)
    return replace(judgement, contact=(float(contact.logit.value.mean()), math.nan if logit is None else logit))


ReadValue = Callable[[Measurement], float]
Key = tuple[Kind, str, str]
"""Kind, name and quantity of a row."""


def _row(
    key: Key,
    measured: float | None,
    error: float,
    predicted: float | None,
    power: Exponent | None,
    implied: float | None,
    verdict: ExponentTest,
    note: str = "",
) -> Row:
    """Return a row with its sentence, which ends in `note`."""
    value, value_error = (None, None) if power is None else (power.value, power.error)
    off_by = None if value is None or implied is None else value - implied
    row = Row(*key, measured, error, predicted, value, value_error, implied, off_by, verdict, "")
    if verdict is not ExponentTest.OFF:
        return row
    return replace(row, sentence=f"{WORDS[row.subject]} {_miss(row)}{note}")


def _key(group: Group, quantity: str) -> Key:
    return "group", group.value, quantity


def _test(is_right: bool) -> ExponentTest:
    return ExponentTest.OK if is_right else ExponentTest.OFF


@dataclass(frozen=True)
class _Judge:
    """Makes rows from measurements; widths ascend."""

    expectations: Expectations
    measurements: Sequence[Measurement]
    heads: int

    @property
    def widths(self) -> Sequence[int]:
        return self.expectations.widths

    @property
    def channels(self) -> list[int]:
        """C at each width."""
        return [n // self.heads for n in self.widths]

    # --- numbers ------------------------------------------------------------------------------------------------------

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

    # --- rows of one quantity -----------------------------------------------------------------------------------------

    def fitted(
        self, key: Key, read: ReadValue, expected: ExpectedValue | None, allowance: float = 0.0, *, fit: bool = True
    ) -> Row:
        """Judge a noisy quantity: its power if one is implied and fitted, and its value if one is predicted.

        `allowance` is in units of 1/C of the expected value.
        """
        mean, error = self.mean_at_widest(read)
        verdict = _test(mean is not None)  # None: training blew up, or an initial value is not finite
        predicted = None if expected is None else expected.value
        if mean is not None and expected is not None and predicted is not None:
            # Corrections to leading order have relative size 1/C, which is smallest at the widest.
            corrections = allowance / self.channels[-1] * abs(predicted)
            verdict = _test(abs(mean - predicted) <= VALUE_ERRORS * math.hypot(error, expected.error) + corrections)
        power = self.fitted_power(read, None if expected is None else expected.relative_values) if fit else None
        implied = expected.implied_power(self.widths) if fit and expected is not None else None
        if implied is not None:
            verdict = worst_verdict([judge_power(power, implied), verdict])
        return _row(key, mean, error, predicted, power, implied, verdict)

    def exact(
        self, key: Key, read: ReadValue, expected: Sequence[float], tolerances: Sequence[float], note: str = ""
    ) -> Row:
        """Judge a quantity without finite-width corrections by its value at each width, within relative tolerances."""

        def power(values: Sequence[float]) -> float | None:
            is_positive = all(math.isfinite(value) and value > 0 for value in values)
            return log_slope(self.widths, values) if is_positive else None

        (mean, error), means = self.mean_at_widest(read), [fmean(row) for row in self.values(read)]
        rows, fitted = zip(means, expected, tolerances, strict=True), power(means)
        verdict = _test(all(abs(value - right) <= tolerance * right for value, right, tolerance in rows))  # not if nan
        exponent = None if fitted is None else Exponent(fitted, 0.0)
        return _row(key, mean, error, expected[-1], exponent, power(expected), verdict, note)

    def each_tensor(self, group: Group, values: Callable[[Measurement], PerTensor], judge: "JudgeTensor") -> Row:
        """Judge a number of each tensor of a group; return the row of the farthest off, which lists all such."""

        def distance(row: Row) -> tuple[bool, float]:
            # Off before ok, and then by distance: a tensor without a power (vanishing or not finite) is farthest.
            return row.verdict is ExponentTest.OFF, math.inf if row.off_by is None else abs(row.off_by)

        rows: dict[str, Row] = {}
        for index, name in enumerate(self.expectations.predictions[-1].sizes[group]):
            sizes = [prediction.sizes[group][name] for prediction in self.expectations.predictions]
            rows[name] = judge(lambda m, index=index: values(m)[group][index], sizes)  # type: ignore[misc]
        worst, off = max(rows.values(), key=distance), [name for name, row in rows.items() if row.sentence]
        # A group's only tensor needs no name: the row has the group's.
        return replace(worst, sentence=f"{worst.sentence}, in {_join_names(off)}") if off and len(rows) > 1 else worst

    # --- rows of a stage, a group, and layers -------------------------------------------------------------------------

    def stage(self, name: str, samples: int) -> Iterator[Row]:
        own, between = (
            self.expectations.kernel(name, mean) for mean in (mean_over_positions, mean_between_samples(samples))
        )
        yield self.fitted(("block", name, "kernel"), lambda m: m.kernels[name][0], own, KERNEL_ALLOWANCE)
        key: Key = ("block", name, "kernel between samples")
        yield self.fitted(key, lambda m: m.kernels[name][1], between, KERNEL_ALLOWANCE, fit=False)
        # Of the last step: changes are cumulative.
        change = self.expectations.change(name)
        yield self.fitted(("block", name, "activation change"), lambda m: m.changes[-1][name], change)

    def group(self, group: Group) -> Iterator[Row]:
        expectations = self.expectations
        yield self._initial_std(group)
        if any(expectations.initial_stds(group)):  # what starts from 0 has no shape
            distribution = initial_distribution(group, expectations.predictions[-1].dims.domain)
            magnitude, error = MEAN_MAGNITUDE[distribution], MEAN_MAGNITUDE_ERROR[distribution]
            key = _key(group, "initial shape")
            magnitudes, note = [magnitude for _ in self.widths], f" ({distribution})"
            yield self._drawn(group, key, lambda m: m.mean_magnitudes, magnitudes, error / magnitude, note)
        factors, rounding = expectations.factors(group), [ROUNDING for _ in self.widths]
        factor_key = _key(group, "learning-rate factor")
        yield self.each_tensor(
            group, lambda m: m.factors, lambda read, sizes: self.exact(factor_key, read, factors, rounding)
        )
        if expectations.is_covered:
            yield from self._effects(group)
        yield self._decay(group)

    def _initial_std(self, group: Group) -> Row:
        """Judge the std of each tensor's initial values, and the one that the strategy states."""
        stds, key = self.expectations.initial_stds(group), _key(group, "initial std")
        drawn = self._drawn(group, key, lambda m: m.stds, stds, STD_ERROR)
        stated = self.exact(key, lambda m: m.stated_stds[group], stds, [ROUNDING for _ in stds])
        # The drawn values are too few to show a std that is slightly wrong; the stated number is exact.
        return stated if drawn.verdict is ExponentTest.OK and stated.verdict is ExponentTest.OFF else drawn

    def _drawn(
        self,
        group: Group,
        key: Key,
        values: Callable[[Measurement], PerTensor],
        expected: Sequence[float],
        error: float,
        note: str = "",
    ) -> Row:
        """Judge a number of each tensor's N initial values; `error` is its relative standard error times sqrt(N)."""
        seeds = len(self.measurements) / len(self.widths)

        def judge(read: ReadValue, sizes: Sequence[int]) -> Row:
            errors = [error / math.sqrt(size * seeds) for size in sizes]
            row = self.exact(key, read, expected, [DRAWN_ERRORS * relative for relative in errors], note)
            return replace(row, error=errors[-1] * (row.measured or 0.0))

        return self.each_tensor(group, values, judge)

    def _effects(self, group: Group) -> Iterator[Row]:
        """Judge a group's contribution to the tangent kernel, and the change of the outputs by its steps."""
        expectations = self.expectations
        counts = {prediction.dims.width: prediction.count(group) for prediction in expectations.predictions}

        def contribution(m: Measurement) -> float:
            # One factor for the group: tensors with different factors are reported by "learning-rate factor".
            factor, steps = fmean(m.factors[group]), steps_of(group, expectations.optimizer)
            return tangent_contribution(sum(m.gradients[group]), factor, steps, counts[m.width])

        expected = expectations.contribution(group)
        key = _key(group, "tangent contribution")
        rows = [self.fitted(key, contribution, expected, CONTRIBUTION_ALLOWANCE)]
        # Its value depends on the lr, so only its power is judged: that of the tangent contribution.
        key = _key(group, "function change")
        rows.append(self.fitted(key, lambda m: m.function_changes[group], replace(expected, value=None)))
        off_by = group_off_by({row.quantity: row for row in rows})
        if expectations.s is None and off_by is not None and abs(off_by) > POWER_TOLERANCE:
            verb = "fall" if off_by < 0 else "grow"
            sentence = f"steps {verb} as width^{format_exponent(off_by)} against the bulk's"
            rows = [replace(row, sentence=row.sentence and sentence) for row in rows]
        yield from rows

    def _decay(self, group: Group) -> Row:
        """Judge whether a step shrinks each tensor by lr wd at every width, and the head bias not at all."""
        implied = 0.0 if group is Group.HEAD_BIAS else 1.0
        # Decay does not depend on the seed, so it is measured for the first seed of each width only.
        measured = replace(self, measurements=[m for m in self.measurements if m.decay])

        def judge(read: ReadValue, sizes: Sequence[int]) -> Row:
            ratios = [value for row in measured.values(read) for value in row]
            # The head bias does not decay, and zeros have no power.
            power = measured.fitted_power(read) if implied else None
            verdict = _test(all(abs(ratio - implied) <= DECAY_TOLERANCE for ratio in ratios))
            return _row(_key(group, "decay"), ratios[-1], 0.0, implied, power, 0.0, verdict)

        return self.each_tensor(group, lambda m: m.decay, judge)

    def layers(self) -> Iterator[Row]:
        """Judge each exact property wherever it is measured, in the enum's order."""
        for layer in LayerCheck:
            # At most one network is measured by layer, so no location overwrites another's value.
            values = {place: value for m in self.measurements for place, value in m.layers.get(layer, {}).items()}
            if layer is LayerCheck.GRADIENT:
                # Not measured by layer, but known from the squared gradients of every network.
                values = {
                    name: fmean(m.gradients[group][i] > 0 for m in self.measurements)
                    for group, sizes in self.expectations.predictions[-1].sizes.items()
                    for i, name in enumerate(sizes)
                }
            for place, value in values.items():
                measured = value if math.isfinite(value) else None
                verdict = _test(layer.is_right(value))
                yield _row(("layers", layer.value, place), measured, 0.0, layer.exact, None, None, verdict)


JudgeTensor = Callable[[ReadValue, Sequence[int]], Row]
"""(how to read a tensor's number, its size at each width) -> its row."""


# --- words ----------------------------------------------------------------------------------------------------------


def _findings(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each fault, causes first, then for noisy quantities; nothing if all is ok."""
    off = [row for row in rows if row.verdict is ExponentTest.OFF]
    causes = [row for row in (*off, *_output_scale(rows)) if row.subject in CAUSES]
    # Consequences are only listed; without a known cause, they are described in full.
    if causes:
        yield from _lines(causes)
        excluded = {row.name for row in causes if row.kind == "group"}
        groups, stages = (
            dict.fromkeys(row.name for row in off if row.kind == kind and row.name not in excluded)
            for kind in ("group", "block")
        )
        if consequences := [*groups, *([_join_names(list(stages))] if stages else [])]:
            yield f"also off, possibly as a consequence: {', '.join(consequences)}"
    else:
        # One line for each: of a group the change of the outputs, of a stage the kernel, if several are off.
        of_groups = {row.name: row for row in off if row.kind == "group"}
        of_stages = {row.name: row for row in reversed(off) if row.kind == "block"}
        yield from _lines([*of_groups.values(), *reversed(of_stages.values())])
    noisy = [row for row in rows if row.verdict is ExponentTest.UNCLEAR]
    if names := [f"{row.name} ({row.quantity})" for kind in ("group", "block") for row in noisy if row.kind == kind]:
        yield f"too noisy to judge: {_join_names(names)}; use more --seeds, or --widths farther apart"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each group's row, and one for all stages or places with the same fault."""
    subjects = list(WORDS)

    def order(row: Row) -> int:
        position = subjects.index(row.subject)
        return min(position, len(CAUSES)) if row.kind == "group" else position  # effects: group by group

    rows = sorted(rows, key=order)
    for _, found in groupby(rows, key=lambda row: (row.subject, row.name if row.kind == "group" else "")):
        first, *others = found
        if first.kind == "layers":
            places = _join_names([row.quantity for row in (first, *others)])
            yield f"{places}: {max((first, *others), key=lambda row: row.distance).sentence}"
        else:
            # Later stages are made of the first.
            yield f"{_join_names([row.name for row in (first, *others)])}: {first.sentence}"


def _output_scale(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row if only the outputs have a wrong scale, although layers and the head's initial values are right."""
    off = {(row.name, row.quantity): row for row in rows if row.verdict is ExponentTest.OFF}
    is_other_off = any(row.kind == "layers" or (row.quantity == "kernel" and row.name != HEAD) for row in off.values())
    is_tied = not any(row.kind == "group" and row.name == Group.HEAD for row in rows)
    head = Group.WE if is_tied else Group.HEAD
    if (outputs := off.get((HEAD, "kernel"))) and not is_other_off and (head, "initial std") not in off:
        rescale = " (output rescale)" if is_tied else ""
        sentence = f"{WORDS['output scale']}{rescale} {_miss(outputs)}, while hidden kernels are right"
        yield replace(outputs, kind="group", name=head.value, quantity="output scale", sentence=sentence)


def _miss(row: Row) -> str:
    """Return measured and predicted value; or measured and implied power, if it is wrong or the value is right."""
    if row.kind == "layers":
        if row.measured is None:
            return "cannot be measured: not finite, or not computed by F.linear with the weights"
        # Without the noise of rounding, unless that is all there is. Adding 0.0 turns -0.0 into 0.0.
        rounded = round(row.measured, 6) + 0.0
        values = _format_apart(rounded, row.predicted, 4) or _format_apart(row.measured, row.predicted, 4)
        assert values is not None  # a value that is off differs from the exact one
        return f"is {values[0]}, not {values[1]}"
    values = _format_apart(row.measured, row.predicted, 3)
    if row.power is not None and row.off_by is not None and (values is None or abs(row.off_by) > POWER_TOLERANCE):
        wrong, right = format_exponent(row.power), format_exponent(row.power - row.off_by)
        return f"scales as width^{wrong}, not width^{right} (off by {row.off_by:+.2f})"
    return "vanishes or is not finite" if values is None else f"is {values[0]} at the widest, not {values[1]}"


def _format_apart(measured: float | None, predicted: float | None, digits: int) -> tuple[str, str] | None:
    """Format two numbers with some digits, or more, up to eight, until they differ; None if they never do."""
    if measured is None or predicted is None:
        return None
    pairs = ((f"{measured:.{precision}g}", f"{predicted:.{precision}g}") for precision in range(digits, 9))
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def _join_names(names: Sequence[str], limit: int = 4) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
