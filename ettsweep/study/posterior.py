"""The posterior of a candidate and its neighbours, fitted to their scores: how much better could a neighbour be?

Shapes: P points, Q other positions, E edges of stability.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Literal

import numpy as np
from scipy.special import stdtr

from ettsweep.metric import Metric
from ettsweep.study.stability import Stability
from ettsweep.study.surface import Array, Position, Surface, fit, point_scores

MEASURED_DOF = 4
"""Degrees of freedom of repeats that suffice to measure the noise."""

INFERRED_DOF = 8
"""Degrees of freedom of residuals that suffice to know the noise: more than of repeats, since a surface that fits too
closely hides noise."""

ROUGHNESS = 0.07
"""How much two points may differ beside the smooth surface, in units of a run's noise. Scores hardly show it, but
bounds far below the noise would rest on a surface smoother than real ones."""

BISECTIONS = 40
"""Halvings of the interval around a bound."""

Scores = Mapping[Position, Mapping[int, float]]
"""Finished scores by position and seed."""

_Table = tuple[tuple[Position, tuple[tuple[int, float], ...], Position], ...]


@dataclass(frozen=True)
class Difference:
    """How much worse a neighbour is than the candidate, with its standard error, both in the unit of margins."""

    mean: float
    error: float


@dataclass(frozen=True)
class NoiseEstimate:
    """The noise of a single run, without the common effect of its seed on all points.

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
        positions: positions with scores, the candidate's among them.
        surface: posterior of f at the positions; lower is better.
        is_log: whether logs of the sizes of scores were fitted.
        unit: a margin of 1 in f: 1 in log and for differences, the size of the candidate's score for other shares.
        noise: noise of a single run.
        stability: a nearby edge of stability, if any; the surface is then that of stable runs.
    """

    positions: tuple[Position, ...]
    surface: Surface
    is_log: bool
    unit: float
    noise: NoiseEstimate
    stability: Stability | None = None

    @property
    def is_reliable(self) -> bool:
        """`True` if the noise is known and no edge is near: only then the surface may predict between the points."""
        return self.noise.source != "unknown" and self.stability is None

    def index(self, position: Position) -> int:
        return self.positions.index(position)

    def seeds_to_measure_noise(self, positions: Sequence[Position]) -> int:
        """Return how many more seeds, of each of at least two positions, are needed to measure the noise."""
        scores, rows, seeds = self.surface.scores, [self.index(position) for position in positions], 0
        # This ends: once positions share a seed, each further one adds degrees of freedom.
        while scores.pure_dof < MEASURED_DOF:
            scores, seeds = scores.with_seed(rows), seeds + 1
        return seeds

    @property
    def has_repeats(self) -> bool:
        """`True` if any position has scores of several seeds."""
        return bool((self.surface.scores.scored_PS.sum(1) > 1).any())

    def to_margin(self, difference: float) -> float:
        """Return a difference of f in the unit of margins."""
        # In log, a difference d is log(own / other): 1 - exp(-d) is (own - other) / own.
        return -math.expm1(-difference) if self.is_log else difference / self.unit

    def from_margin(self, margin: float) -> float:
        """Return the difference of f that a margin stands for: the inverse of `to_margin`."""
        if not self.is_log:
            return margin * self.unit
        return -math.log1p(-margin) if margin < 1 else math.inf  # no advantage is larger than the score itself

    def bound(self, candidate: Position, others: Sequence[Position], confidence: float, margin: float = 0.0) -> float:
        """Return the upper bound, at a confidence, on how much better another position is: a margin of at least 0.

        It holds for all other positions together, by the product of their probabilities: a lower bound where advantages
        over one candidate are positively correlated, as nearly all are (Slepian).

        Args:
            candidate: position that is compared with the others.
            others: at least one.
            confidence: of the bound.
            margin: the smallest stated bound.
        """

        def holds(limit: float) -> bool:
            return bool(np.prod(1 - self._beyond(candidate, others, limit)) >= confidence)

        low = high = self.from_margin(margin)
        if holds(low):
            return margin
        step = self.surface.noise_sd
        while not holds(high):
            low, high, step = high, high + step, 2 * step
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return self.to_margin(high)

    def probabilities_better(self, candidate: Position, others: Sequence[Position], margin: float = 0.0) -> list[float]:
        """Return, for each other position, the probability that it is better by more than a margin."""
        return [float(p) for p in self._beyond(candidate, others, self.from_margin(margin))]

    def probability_best(self, candidate: Position, others: Sequence[Position]) -> float:
        """Return the probability that the candidate is better than all other positions."""
        return float(np.prod(1 - self._beyond(candidate, others, 0.0)))

    def challengers(self, candidate: Position, others: Sequence[Position], margin: float) -> list[Position]:
        """Return the other positions, the likeliest to be better by more than a margin first."""
        probabilities = self._beyond(candidate, others, self.from_margin(margin))
        return [others[q] for q in np.argsort(-probabilities, kind="stable")]

    def differences(self, candidate: Position, others: Sequence[Position]) -> list[Difference]:
        """Return how much worse each other position is."""
        advantage_Q, scale_Q = self.advantages(candidate, others)
        shift_QE, weight_E = self._shifts(candidate, others)
        mean_Q = advantage_Q + shift_QE @ weight_E
        variance_Q = (scale_Q * self.surface.error_of_scale) ** 2
        variance_Q += (shift_QE - (shift_QE @ weight_E)[:, None]) ** 2 @ weight_E
        return [
            # Delta method: the derivative of 1 - exp(-d) is exp(-d).
            Difference(-self.to_margin(m), e * math.exp(-m) if self.is_log else e / self.unit)
            for m, e in zip(mean_Q.tolist(), np.sqrt(variance_Q).tolist(), strict=True)
        ]

    def shared_seeds(self, position: Position, other: Position) -> int:
        """Return how many seeds two positions share."""
        scored_PS = self.surface.scores.scored_PS
        return int(scored_PS[self.index(position)] @ scored_PS[self.index(other)])

    @cached_property
    def means(self) -> Array:
        """Posterior mean of f over all seeds, the unstable ones included, [P]."""
        if self.stability is None:
            return self.surface.mean_P
        return np.asarray(self.surface.mean_P + [self.stability.expected_cost(p[0]) for p in self.positions])

    @cached_property
    def ranking(self) -> list[Position]:
        """Positions by posterior mean, the best first."""
        # Stable: ties keep the order of the positions, so equal scores give equal verdicts.
        return [self.positions[i] for i in np.argsort(self.means, kind="stable")]

    def _beyond(self, candidate: Position, others: Sequence[Position], limit: float) -> Array:
        """Return, for each other position, the probability that it is better by more than a difference of f, [Q]."""
        advantage_Q, scale_Q = self.advantages(candidate, others)
        shift_QE, weight_E = self._shifts(candidate, others)
        z_QE = (advantage_Q[:, None] + shift_QE - limit) / np.maximum(scale_Q, 1e-300)[:, None]
        return np.asarray(stdtr(self.surface.dof, z_QE) @ weight_E)

    def advantages(self, candidate: Position, others: Sequence[Position]) -> tuple[Array, Array]:
        """Return f of stable runs at the candidate minus f at others, [Q], and the scales of their Student t, [Q]."""
        own, rows = self.index(candidate), [self.index(other) for other in others]
        mean_P, cov_PP = self.surface.mean_P, self.surface.cov_PP
        variance_Q = cov_PP[own, own] + np.diag(cov_PP)[rows] - 2 * cov_PP[own, rows]
        scale_Q = np.hypot(np.sqrt(np.maximum(variance_Q, 0.0)), ROUGHNESS * self.surface.noise_sd)
        return mean_P[own] - mean_P[rows], scale_Q

    def _shifts(self, candidate: Position, others: Sequence[Position]) -> tuple[Array, Array]:
        """Return the effect of unstable seeds on advantages at each edge of stability, [Q, E], and its weight, [E]."""
        if self.stability is None:
            return np.zeros((len(others), 1)), np.ones(1)
        shifts = [self.stability.costs(candidate[0]) - self.stability.costs(other[0]) for other in others]
        return np.array(shifts), self.stability.weight_E


def fit_posterior(
    scores: Scores, candidate: Position, metric: Metric, places: Mapping[Position, Position] | None = None
) -> Posterior | None:
    """Fit the posterior to the scores around a candidate.

    If margins are shares, scores of one sign whose size is the smaller the better are fitted in log.

    Args:
        scores: finished scores by position and seed.
        candidate: position of the candidate, from which positions are counted.
        metric: of the scores.
        places: positions in the fit, if steps are unequal.

    Returns:
        None if the candidate has no score, or one of 0 that has no shares, or no two points share a seed.
    """
    return _fit_posterior(_table_of(scores, places or {}), candidate, metric)


# Cached: each round judges all studies, and most tables have not changed since the last one.
@lru_cache(maxsize=512)
def _fit_posterior(table: _Table, candidate: Position, metric: Metric) -> Posterior | None:
    own_scores = next((dict(seeds).values() for position, seeds, _ in table if position == candidate), ())
    level = abs(fmean(own_scores)) if own_scores else 0.0
    is_share = metric.margin_is == "share"
    if not own_scores or (is_share and not level) or (fitted := _fit_surface(table, metric)) is None:
        return None
    surface, is_log = fitted
    unit = level if is_share and not is_log else 1.0
    return Posterior(tuple(position for position, _, _ in table), surface, is_log, unit, _estimate_noise(surface, unit))


def fit_scores(scores: Scores, metric: Metric) -> tuple[Surface, float] | None:
    """Fit a surface to scores of any positions.

    Returns:
        The surface, and the size in its units of a margin of 1; None if no two points share a seed.
    """
    if (fitted := _fit_surface(_table_of(scores, {}), metric)) is None:
        return None
    surface, is_log = fitted
    if is_log or metric.margin_is == "difference":
        return surface, 1.0
    best = min if metric.mode == "min" else max
    return surface, abs(best(fmean(seeds.values()) for seeds in scores.values()))


def _table_of(scores: Scores, places: Mapping[Position, Position]) -> _Table:
    # Sorted and hashable: a key of the cache, and the same floats for any order of runs.
    items = sorted(scores.items())
    return tuple((position, tuple(sorted(seeds.items())), places.get(position, position)) for position, seeds in items)


@lru_cache(maxsize=512)
def _fit_surface(table: _Table, metric: Metric) -> tuple[Surface, bool] | None:
    """Return the surface fitted to scores, and whether to their logs; None if no two points share a seed."""
    by_position = {position: dict(seeds) for position, seeds, _ in table}
    is_log = is_fitted_in_log(by_position, metric)
    x_PD = np.array([place for _, _, place in table], dtype=float)
    scores = replace(point_scores(as_fitted(by_position, metric, is_log)), x_PD=x_PD)
    # Each seed has one score, which its own effect explains.
    return (fit(scores), is_log) if scores.dof > 0 else None


def is_fitted_in_log(scores: Scores, metric: Metric) -> bool:
    """`True` if margins are shares, and scores of one sign whose size is the smaller the better."""
    sign = 1.0 if metric.mode == "min" else -1.0
    values = [sign * score for seeds in scores.values() for score in seeds.values()]
    return metric.margin_is == "share" and min(values) > 0


def as_fitted(scores: Scores, metric: Metric, is_log: bool) -> dict[Position, dict[int, float]]:
    """Return scores as the values f of the model, whose lower ones are better."""
    sign = 1.0 if metric.mode == "min" else -1.0
    return {
        position: {seed: math.log(sign * score) if is_log else sign * score for seed, score in seeds.items()}
        for position, seeds in scores.items()
    }


def _estimate_noise(surface: Surface, unit: float) -> NoiseEstimate:
    """Return the noise of a surface in a unit of f."""
    sd, pure_dof, leftover_dof = surface.noise_sd / unit, surface.scores.pure_dof, surface.dof - surface.fitted_dof
    if pure_dof >= MEASURED_DOF:
        return NoiseEstimate(sd, pure_dof, "measured")
    if leftover_dof >= INFERRED_DOF:
        return NoiseEstimate(sd, leftover_dof, "inferred")
    return NoiseEstimate(sd, max(pure_dof, leftover_dof), "unknown")
