"""Ranges given as values of lr or wd, such as 1e-4:1e-2, instead of log2 steps from the centre."""

import math
from dataclasses import dataclass
from typing import Self

from ettsweep.powers import parse_number, power_and_decimal
from ettsweep.study.lattice import MAX_OFFSET, Axis


@dataclass(frozen=True)
class ValueRange:
    """A range from one value of lr or wd to another.

    Attributes:
        low, high: the values, positive.
        axis: has the step of the lattice.
    """

    low: float
    high: float
    axis: Axis

    @classmethod
    def parse(cls, axis: object) -> Self | None:
        """Return the range of an axis of a grid file, as YAML gave it; None if its bounds can be log2 steps."""
        if not isinstance(axis, dict):
            return None
        bounds = axis.get("range", [axis.get("low"), axis.get("high")])
        try:
            low, high = sorted(parse_number(str(bound)) for bound in bounds)
            step_axis = Axis(step=axis.get("step", 1.0))
        except (TypeError, ValueError):  # also pydantic's errors
            return None
        is_in_steps = high <= MAX_OFFSET and all(1 <= n == round(n) for n in map(step_axis.steps, (low, high)))
        if not 0 < low <= high < math.inf or (is_in_steps and not any("^" in str(bound) for bound in bounds)):
            return None
        return cls(low, high, step_axis)

    def nearest_offsets(self, centre: float) -> list[float]:
        """Return the ends in log2 from the centre, as the nearest multiples of the step that a range may have."""
        limit = math.floor(self.axis.steps(MAX_OFFSET))
        counts = [round(self.axis.steps(offset)) for offset in self._offsets(centre)]
        return [max(-limit, min(limit, count)) * self.axis.step for count in counts]

    def explain(self, name: str, strategy: str, centre: float, form: str) -> str:
        """Return the problem, and the range in log2 steps.

        Args:
            name: lr or wd.
            strategy: the strategy whose centre it is.
            centre: of the ranges.
            form: of a range of numbers a and b, such as `--range lr={}:{}`.
        """
        exact = form.format(*(f"{offset:.1f}" for offset in self._offsets(centre)))
        nearest = form.format(*(f"{offset:g}" for offset in self.nearest_offsets(centre)))
        return (
            f"a range is in log2 steps from the centre ({name} {power_and_decimal(centre)} under {strategy}), "
            f"multiples of {self.axis.step:g}; {name} from {self.low:g} to {self.high:g} is {exact}, nearest {nearest}"
        )

    def _offsets(self, centre: float) -> list[float]:
        return [math.log2(value / centre) for value in (self.low, self.high)]
