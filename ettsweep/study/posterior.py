"""The posterior of a candidate and its neighbours, fitted to their scores: how much better could a neighbour be?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Literal

import numpy as np

from ettsweep.metric import Metric
from ettsweep.study.point_scores import MEASURED_DOF, PointScores
from ettsweep.study.seed_noise import Array
from ettsweep.study.surface import (
    FALSE_ALARM_RATE,
    Surface,
    finer_width,
    fit,
    fit_pairs,
    log_likelihoods,
    student_quantile,
)

INFERRED_DOF = 8
"""Degrees of freedom of the residuals of a fit at which the noise counts as known. Residuals need more than repeats do,
since a surface that fits too closely hides noise."""

BISECTIONS = 12
"""Halvings of the interval that a bound is known to lie in: to a part in thousands of it."""

BEYOND_MARGIN = 1.5
"""By how much a bound that is not within the margin is widened: races that stay open are those whose surfaces differ
from what the model has. On results/benchmarks/verdicts.md their bounds hold as often as they say with it; without,
those of the worst world in 80% where 95% were stated. Where a race ends does not depend on it."""

DECIDING_CONFIDENCE = 0.95
"""At which the position that decides is found. Not a sweep's: which runs a race chooses depends on no confidence."""

Position = tuple[float, ...]
"""Lattice steps from the candidate along each free axis."""

Scores = Mapping[Position, Mapping[int, float]]
"""Finished scores by position and seed."""

_Table = tuple[tuple[Position, tuple[tuple[int, float], ...]], ...]


@dataclass(frozen=True)
class Difference:
    """How much worse a neighbour is than the candidate, with its standard error, both in the unit of margins."""

    mean: float
    error: float


@dataclass(frozen=True)
class NoiseEstimate:
    """The noise of a single run, once the common effect of its seed on all points is taken out.

    Attributes:
        sd: standard deviation, in the unit of margins.
        dof: degrees of freedom of the estimate.
        source: `measured` by repeated seeds, `inferred` from the residuals of the fit, or `unknown`.
    """

    sd: float
    dof: float
    source: Literal["measured", "inferred", "unknown"]


@dataclass(frozen=True)
class Posterior:
    """The posterior of a candidate and the points around it.

    Attributes:
        positions: positions with scores, the candidate's among them, then further ones to predict.
        seeds: seeds of the scores, in the order of the layout's columns.
        surface: posterior of f at the positions; lower is better.
        is_log: whether logs of the sizes of scores were fitted.
        level: the size of the candidate's score.
        unit: that of margins, in scores: the level for shares, 1 for differences.
        noise: noise of a single run.
        caveat: why points are compared pair by pair instead of by a smooth surface; empty if they are not.
        misfit: the position that fits worst, if the surface does not fit.
    """

    positions: tuple[Position, ...]
    seeds: tuple[int, ...]
    surface: Surface
    is_log: bool
    level: float
    unit: float
    noise: NoiseEstimate
    caveat: str = ""
    misfit: Position | None = None

    @property
    def is_reliable(self) -> bool:
        """`True` if a smooth surface fits and the noise is known: only then may it predict between the points."""
        return self.surface.is_smooth and not self.caveat and self.noise.source != "unknown"

    def index(self, position: Position) -> int:
        return self.positions.index(position)

    def with_positions(self, positions: Sequence[Position]) -> "Posterior":
        """Return the posterior with predictions at further positions; unchanged if it has no smooth surface."""
        if not positions or not self.surface.is_smooth:  # paired comparisons say nothing of points without scores
            return self
        surface = self.surface.with_positions(np.array(positions, dtype=float))
        return replace(self, positions=(*self.positions, *positions), surface=surface)

    def seeds_to_measure_noise(self, positions: Sequence[Position]) -> int:
        """Return how many more seeds, of each of at least two positions, are needed to measure the noise."""
        layout, rows, seeds = self.surface.layout, [self.index(position) for position in positions], 0
        # This ends: once the positions share a seed, each further one adds degrees of freedom.
        while layout.pure_dof < MEASURED_DOF:
            layout, seeds = layout.with_seed(rows), seeds + 1
        return seeds

    @property
    def has_repeats(self) -> bool:
        """`True` if any position has scores of several seeds."""
        return bool((self.surface.layout.scored_PS.sum(1) > 1).any())

    def to_margin(self, difference: float) -> float:
        """Return a difference of f in the unit of margins."""
        # In log, a difference d is log(own / other): 1 - exp(-d) is (own - other) / own.
        return (-float(np.expm1(-difference)) * self.level if self.is_log else difference) / self.unit

    def from_margin(self, margin: float) -> float:
        """Return the difference of f that a margin stands for: the inverse of `to_margin`."""
        if not self.is_log:
            return margin * self.unit
        share = margin * self.unit / self.level
        return -float(np.log1p(-share)) if share < 1 else np.inf  # no advantage is larger than the score itself

    def bound(self, candidate: Position, others: Sequence[Position], confidence: float, margin: float = 0.0) -> float:
        """Return the upper bound, at a confidence, on how much better another position is: a margin of at least 0.

        It is a joint bound: the quantile of the largest advantage over all other positions, by draws whose deviations
        are widened the more, the smaller it is (`finer_width`). One that is larger than the margin is widened once more
        (`BEYOND_MARGIN`).

        Args:
            candidate: position that is compared with the others.
            others: at least one.
            confidence: of the bound.
            margin: the smallest bound that is stated; 0 for any, without these two.
        """
        # One row for each other position: the largest of each draw is found fast.
        mean, deviation = (np.ascontiguousarray(draws.T) for draws in self._draws(candidate, others))

        def quantile(bound: float) -> float:
            """Return the bound of draws that are widened for a bound."""
            return float(np.quantile((mean + finer_width(bound, noise_sd) * deviation).max(0), confidence))

        # Paired comparisons rest on no surface.
        noise_sd = self.surface.noise_sd if self.surface.is_smooth and margin > 0 else 0.0
        low = high = self.from_margin(margin)
        if (stated := quantile(low)) <= low:
            return margin
        if noise_sd:
            # The quantile falls as the bound that it is widened for grows: they meet at the bound.
            while quantile(high) > high:
                low, high = high, 2 * high
            for _ in range(BISECTIONS):
                middle = (low + high) / 2
                low, high = (middle, high) if quantile(middle) > middle else (low, middle)
            stated = high
        return self.to_margin(BEYOND_MARGIN * stated if margin > 0 else stated)

    def decider(self, candidate: Position, others: Sequence[Position]) -> Position:
        """Return the other position that may be better by most: whose own bound, at 95%, is the largest."""
        bounds = np.quantile(self._advantage_draws(candidate, others), DECIDING_CONFIDENCE, axis=0)
        return others[int(np.argmax(bounds))]

    def shared_seeds(self, position: Position, other: Position) -> int:
        """Return how many seeds two positions share."""
        scored_PS = self.surface.layout.scored_PS
        return int(scored_PS[self.index(position)] @ scored_PS[self.index(other)])

    def probability_best(self, candidate: Position, others: Sequence[Position]) -> float:
        """Return the probability that the candidate is better than all other positions."""
        return float((self._advantage_draws(candidate, others).max(1) <= 0).mean())

    def probabilities_better(self, candidate: Position, others: Sequence[Position], margin: float = 0.0) -> list[float]:
        """Return, for each other position, the probability that it is better by more than a margin."""
        return [float(p) for p in (self._advantage_draws(candidate, others) > self.from_margin(margin)).mean(0)]

    def differences(self, candidate: Position, others: Sequence[Position]) -> list[Difference]:
        """Return how much worse each other position is."""
        mean, error = self.surface.differences(self.index(candidate), [self.index(other) for other in others])
        return [
            # Delta method: the derivative of 1 - exp(-d) is exp(-d).
            Difference(-self.to_margin(m), e * (self.level * np.exp(-m) if self.is_log else 1.0) / self.unit)
            for m, e in zip(mean.tolist(), error.tolist(), strict=True)
        ]

    def _advantage_draws(self, candidate: Position, others: Sequence[Position]) -> Array:
        mean, deviation = self._draws(candidate, others)
        return mean + deviation

    def _draws(self, candidate: Position, others: Sequence[Position]) -> tuple[Array, Array]:
        # One verdict needs the same draws for its bound, its probabilities and its reason.
        key = candidate, tuple(others)
        if key not in self._draws_cache:
            self._draws_cache[key] = self.surface.draws(self.index(candidate), [self.index(other) for other in others])
        return self._draws_cache[key]

    @cached_property
    def _draws_cache(self) -> dict[tuple[Position, tuple[Position, ...]], tuple[Array, Array]]:
        return {}

    @cached_property
    def ranking(self) -> list[Position]:
        """Positions by posterior mean, the best first."""
        # Stable: ties keep the order of the positions, so equal scores give equal verdicts.
        return [self.positions[i] for i in np.argsort(self.surface.mean, kind="stable")]


def fit_posterior(scores: Scores, candidate: Position, metric: Metric) -> Posterior | None:
    """Fit the posterior to the scores around a candidate.

    Scores of one sign, whose size is the smaller the better, are fitted in log if that has the higher marginal
    likelihood. If no smooth surface fits, points are compared pair by pair, and the posterior has a caveat.

    Args:
        scores: finished scores by position and seed.
        candidate: position of the candidate, from which positions are counted.
        metric: whether lower is better, and what a margin is.

    Returns:
        None if the candidate has no score, or one of 0 that has no shares, or no two points share a seed.
    """
    return _fit_table(_point_scores(scores), candidate, metric.mode == "min", metric.margin_is == "share")


# Cached: each round judges all studies anew, and most tables have not changed since the last one.
@lru_cache(maxsize=512)
def _fit_table(table: _Table, candidate: Position, lower_is_better: bool, has_shares: bool) -> Posterior | None:
    candidate_scores = [score for position, seeds in table if position == candidate for _, score in seeds]
    level = abs(float(np.mean(candidate_scores))) if candidate_scores else 0.0
    unit = level if has_shares else 1.0
    # Counted from their lowest corner: candidates near each other share a fit.
    positions = tuple(position for position, _ in table)
    corner = tuple(map(min, zip(*positions, strict=True)))
    from_corner = tuple((_less(position, corner), seeds) for position, seeds in table)
    fitted = _fit_surface(from_corner, lower_is_better)
    if fitted is None or not candidate_scores or not unit:
        return None
    surface, is_log = fitted[0].seen_from(-np.array(corner)), fitted[1]
    seeds = tuple(sorted({seed for _, scores in table for seed, _ in scores}))
    caveat, misfit = _find_misfit(surface, positions)
    if caveat and surface.layout.pure_dof >= 1:  # paired comparisons need repeats to estimate the noise
        surface = fit_pairs(surface.layout)
    noise = _estimate_noise(surface, unit / level if is_log else unit)
    return Posterior(positions, seeds, surface, is_log, level, unit, noise, caveat, misfit)


def fit_scores(scores: Scores, metric: Metric) -> tuple[Surface, float] | None:
    """Fit a surface to scores of any positions, for a sampler: unlike a verdict's, it need not pass tests of its fit.

    Returns:
        The surface, and the size in its units of a margin of 1; None if no two points share a seed.
    """
    if (fitted := _fit_surface(_point_scores(scores), metric.mode == "min")) is None:
        return None
    surface, is_log = fitted
    best = min if metric.mode == "min" else max
    level = abs(best(fmean(seeds.values()) for seeds in scores.values()))
    unit = level if metric.margin_is == "share" else 1.0
    return surface, unit / level if is_log else unit


def _point_scores(scores: Scores) -> _Table:
    # Sorted and hashable: a key of the cache, and the same floats whatever the order of the runs.
    return tuple((position, tuple(sorted(seeds.items()))) for position, seeds in sorted(scores.items()))


def _less(position: Position, other: Position) -> Position:
    return tuple(a - b for a, b in zip(position, other, strict=True))


@lru_cache(maxsize=512)
def _fit_surface(table: _Table, lower_is_better: bool) -> tuple[Surface, bool] | None:
    """Return the surface fitted to scores, and whether to their logs; None if no two points share a seed."""
    # Lower is better within the model, so other scores are negated.
    sign = 1.0 if lower_is_better else -1.0
    values = [sign * score for _, seeds in table for _, score in seeds]
    column = {seed: s for s, seed in enumerate(sorted({seed for _, seeds in table for seed, _ in seeds}))}
    x_PD = np.array([position for position, _ in table], dtype=float)
    y_PS, scored_PS = np.zeros((2, len(table), len(column)))
    for p, (_, seeds) in enumerate(table):
        for seed, score in seeds:
            y_PS[p, column[seed]], scored_PS[p, column[seed]] = sign * score, 1.0
    raw = PointScores(x_PD, scored_PS, y_PS)
    # Each seed has one score, and its own effect explains that score whatever it is.
    if raw.dof < 1:
        return None
    raw_M = log_likelihoods(raw)
    if min(values) > 0:
        # The inner `where` takes log 1 where there is no score: y is 0 there.
        logs = PointScores(x_PD, scored_PS, np.where(scored_PS > 0, np.log(np.where(scored_PS > 0, y_PS, 1.0)), 0.0))
        # Likelihoods of y and log y are comparable after the Jacobian of the logarithm: the product of all 1 / y.
        logs_M = log_likelihoods(logs)
        if logs_M.max() >= raw_M.max() + raw.dof * float(np.mean(np.log(values))):
            return fit(logs, logs_M), True
    return fit(raw, raw_M), False


def _estimate_noise(surface: Surface, unit: float) -> NoiseEstimate:
    """Return the noise of a surface in a unit of f."""
    sd = surface.noise_sd / unit
    pure_dof, leftover_dof = surface.layout.pure_dof, surface.dof - surface.fitted_dof if surface.is_smooth else 0.0
    if pure_dof >= MEASURED_DOF:
        return NoiseEstimate(sd, pure_dof, "measured")
    if leftover_dof >= INFERRED_DOF:
        return NoiseEstimate(sd, leftover_dof, "inferred")
    return NoiseEstimate(sd, max(pure_dof, leftover_dof), "unknown")


def _find_misfit(surface: Surface, positions: Sequence[Position]) -> tuple[str, Position | None]:
    """Return why a surface does not fit, and the position that fits worst; empty and None if it fits."""
    shift = surface.misfits()
    worst = int(np.argmax(np.abs(shift)))
    # Bonferroni: the worst of all points is tested, on both sides.
    if abs(shift[worst]) > student_quantile(
        1 - FALSE_ALARM_RATE / (2 * len(positions)), max(surface.dof, INFERRED_DOF)
    ):
        problem = "there is a cliff" if shift[worst] > 0 else "a point is better than the points around it predict"
        return f"no smooth surface fits: {problem}", positions[worst]
    return "", None
