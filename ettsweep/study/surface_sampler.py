"""Observations of samplers, and the sampler `surface`: expected improvement under the surface of verdicts.

A sampler is a pure function of the observations, so a killed search resumes as if nothing had happened: only suggested
points are stored. Positions are whole lattice steps from the centre along each free axis.

Shapes: P positions of a fit, Q candidates.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from statistics import fmean

import numpy as np
from scipy.special import ndtr

from ettsweep.metric import Metric
from ettsweep.study.posterior import Scores, fit_scores
from ettsweep.study.surface import WIDTH, Array, Position, Surface, fit

LatticePosition = tuple[int, ...]

INITIAL_OFFSETS = {1: ((0.5,), (-0.5,)), 2: ((0.5, -0.25), (-0.25, 0.5), (-0.25, -0.25))}
"""Initial positions around the start, by number of free axes, as shares of half the box: a surface needs a few."""

INNER_SHARE = 0.75
"""Share of the box for further initial positions, if more workers are free than there are offsets above."""

MIN_POSITIONS = 8
"""Positions with scores before a search may stop: fewer say little about the noise."""

MIN_GAIN = 1.0
"""Expected improvement, in margins, below which a position is not worth a run."""

SHORTLIST_SIZE = 32
"""Candidates left once pending runs are added: a box may have thousands of positions."""

BATCH_SIZE = 128
"""Candidates whose expected improvement is computed together, from their covariance matrix."""


@dataclass(frozen=True)
class Observations:
    """Observations of a study for samplers.

    Attributes:
        low, high: opposite corners of the box to suggest from.
        start: position where the search starts.
        scores: finished scores by position and seed, outside the box as well.
        diverged: positions with a diverged run.
        pending: positions without a score, with a run that will have one.
        unavailable: all positions that were suggested or run, whatever their state.
        margin: the criterion's margin.
        metric: of the scores.
    """

    low: LatticePosition
    high: LatticePosition
    start: LatticePosition
    scores: Mapping[LatticePosition, Mapping[int, float]]
    diverged: Collection[LatticePosition]
    pending: Collection[LatticePosition]
    unavailable: Collection[LatticePosition]
    margin: float
    metric: Metric

    @cached_property
    def free(self) -> list[LatticePosition]:
        """Positions of the box that may be suggested."""
        box = product(*(range(low, high + 1) for low, high in zip(self.low, self.high, strict=True)))
        return [position for position in box if position not in self.unavailable]

    @cached_property
    def values(self) -> dict[LatticePosition, float]:
        """Mean score of each position, negated if higher is better; a diverged position gets the worst of all."""
        sign = 1 if self.metric.mode == "min" else -1
        means = {position: sign * fmean(scores.values()) for position, scores in self.scores.items()}
        return means | dict.fromkeys(self.diverged, max(means.values(), default=0.0))

    @cached_property
    def best(self) -> LatticePosition | None:
        """The position of the box with the best mean score; None without scores."""
        return min(filter(self.contains, self.scores), key=lambda position: self.values[position], default=None)

    def contains(self, position: LatticePosition) -> bool:
        """`True` if a position lies in the box."""
        return all(low <= x <= high for low, x, high in zip(self.low, position, self.high, strict=True))


Sampler = Callable[[Observations, int], list[LatticePosition]]
"""Returns up to so many free positions to run at once; none if no run is worth it."""


def suggest_by_surface(observations: Observations, limit: int) -> list[LatticePosition]:
    """Suggest the positions with the most expected improvement over the best one, under the surface of verdicts.

    Each is chosen as if earlier choices and pending runs had scored as predicted. The search stops once
    `MIN_POSITIONS` are known and no position is expected to improve by `MIN_GAIN` margins: racing around the best
    point decides the rest.

    Returns:
        Up to `limit` free positions; initial ones until a surface can be fitted.
    """
    initial = _initial_positions(observations)
    others = (
        position for position in _space_filling(observations, initial) if position not in observations.unavailable
    )
    # As many diverged runs as initial positions end this phase too.
    if len(observations.scores) < len(initial) and len(observations.diverged) < len(initial):
        return list(islice(others, limit))
    if not observations.scores:  # all diverged: only a lower lr may help
        lowest = min(position[0] for position in observations.diverged)
        return list(islice((position for position in others if position[0] < lowest), limit))
    if not observations.free:
        return []
    if (fit_result := fit_scores(_scores_with_diverged(observations), observations.metric)) is None:
        return list(islice(others, limit))
    fitted, unit = fit_result
    shortlist = [
        position
        for position, _ in sorted(_expected_gains(observations, fitted), key=lambda pair: -pair[1])[:SHORTLIST_SIZE]
    ]
    design = _Design(fitted, [*observations.pending, *shortlist], len(observations.pending))
    chosen: list[LatticePosition] = []
    while len(chosen) < limit:
        may_stop = len(observations.scores) + len(observations.pending) + len(chosen) >= MIN_POSITIONS
        if (best := design.take_best(MIN_GAIN * observations.margin * unit if may_stop else 0.0)) is None:
            break
        chosen.append(best)
    return chosen


def _initial_positions(observations: Observations) -> list[LatticePosition]:
    """Return the start and positions around it."""
    half = [(high - low) / 2 for low, high in zip(observations.low, observations.high, strict=True)]
    initial = [observations.start]
    for shares in INITIAL_OFFSETS[len(half)]:
        moved = (s + _round_away(share * h) for s, share, h in zip(observations.start, shares, half, strict=True))
        initial.append(tuple(map(_clip, moved, observations.low, observations.high)))
    # In a small box, several of them may be one position.
    return list(dict.fromkeys(initial))


def _space_filling(observations: Observations, initial: Sequence[LatticePosition]) -> Iterator[LatticePosition]:
    """Yield the initial positions, then free ones of the inner box, farthest from all others first, then the rest."""
    yield from initial
    ends = list(zip(observations.low, observations.high, strict=True))
    inner = np.array([[(a + b - INNER_SHARE * (b - a)) / 2, (a + b + INNER_SHARE * (b - a)) / 2] for a, b in ends])
    free_QD = np.array(observations.free, dtype=float).reshape(-1, len(ends))
    inner_indices = set(np.flatnonzero(((free_QD >= inner[:, 0]) & (free_QD <= inner[:, 1])).all(1)).tolist())
    remaining = [k for k, position in enumerate(observations.free) if k in inner_indices and position not in initial]
    others_ED = np.array([*initial, *observations.unavailable], dtype=float)
    distance_Q = ((free_QD[:, None] - others_ED) ** 2).sum(2).min(1) if len(free_QD) else np.zeros(0)
    while remaining:
        q = max(remaining, key=lambda k: distance_Q[k])
        remaining.remove(q)
        # Farthest-point sampling: distances include the chosen position from now on.
        distance_Q = np.minimum(distance_Q, ((free_QD - free_QD[q]) ** 2).sum(1))
        yield observations.free[q]
    yield from (
        position for k, position in enumerate(observations.free) if k not in inner_indices and position not in initial
    )


def _round_away(x: float) -> int:
    """Round to the nearest integer, halves away from zero: Python's `round` takes them to even numbers."""
    return int(np.sign(x) * np.floor(abs(x) + 0.5))


def _clip(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def _scores_with_diverged(observations: Observations) -> Scores:
    """Return scores, with the worst score of all at diverged positions: a surface needs a number there."""
    scores: dict[Position, Mapping[int, float]] = dict(observations.scores.items())
    values = [score for scores_by_seed in scores.values() for score in scores_by_seed.values()]
    worst = max(values, key=observations.metric.sort_key)
    # A seed of other points: alone with its seed, a score says nothing.
    seed = min(seed for scores_by_seed in scores.values() for seed in scores_by_seed)
    return scores | {position: {seed: worst} for position in observations.diverged}


def _expected_gains(observations: Observations, fitted: Surface) -> Iterator[tuple[LatticePosition, float]]:
    """Yield each free position with its expected improvement under a normal of the fit's mean and covariance."""
    best = fitted.scores.x_PD[[int(np.argmin(fitted.mean_P))]]
    for k in range(0, len(observations.free), BATCH_SIZE):
        positions = observations.free[k : k + BATCH_SIZE]
        at_ZD = np.vstack([best, np.array(positions, dtype=float)])
        mean_Z, cov_ZZ = fitted.means_at(at_ZD), fitted.covariance_at(at_ZD)
        var_Z = cov_ZZ[0, 0] + np.diag(cov_ZZ) - 2 * cov_ZZ[0]
        yield from zip(
            positions,
            _expected_improvement(mean_Z[0] - mean_Z, np.sqrt(np.maximum(var_Z, 1e-300)))[1:].tolist(),
            strict=True,
        )


def _expected_improvement(mean: Array, sd: Array) -> Array:
    """Return E max(x, 0) for normal x: expected improvement in closed form."""
    z = mean / sd
    return np.asarray(mean * ndtr(z) + sd * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))


class _Design:
    """A fitted surface; added runs score as predicted (a kriging believer).

    The first `n_pending` of the positions are runs that are under way.
    """

    def __init__(self, fitted: Surface, positions: Sequence[LatticePosition], n_pending: int = 0) -> None:
        self._positions = positions
        self._n_fitted = len(fitted.scores.x_PD)
        self._surface = fit(fitted.scores.with_positions(np.array(positions, dtype=float))) if positions else fitted
        self._cov_PP = self._surface.cov_PP  # updated by each added run; means stay, since it scores as predicted
        runs_P = self._surface.scores.scored_PS.sum(1)
        self._run_share_P = runs_P / runs_P.sum()
        self._remaining = list(range(len(positions)))
        for k in range(n_pending):
            self._add_run(k)

    def expected_gains(self) -> list[float]:
        """Return the expected improvement of each remaining position over the best one that was run.

        That is E max(f(best) - f(position), 0).
        """
        mean_P, others = self._surface.mean_P, [self._n_fitted + k for k in self._remaining]
        best = int(np.argmin(mean_P[: self._n_fitted]))
        variance_Q = self._cov_PP[best, best] + np.diag(self._cov_PP)[others] - 2 * self._cov_PP[best, others]
        sd_Q = np.sqrt(np.maximum(variance_Q, 1e-300))  # above 0, since the improvement is divided by it
        return [float(gain) for gain in _expected_improvement(mean_P[best] - mean_P[others], sd_Q)]

    def take_best(self, min_gain: float) -> LatticePosition | None:
        """Add a run at the position with the most expected improvement, and return it; None if that is too little."""
        gains = self.expected_gains()
        if not gains or max(gains) < min_gain:
            return None
        chosen = self._remaining[int(np.argmax(gains))]
        self._add_run(chosen)
        return self._positions[chosen]

    def _add_run(self, k: int) -> None:
        # The seed of the run is unknown: compare with the mean over all runs.
        contrast_P = -self._run_share_P
        contrast_P[self._n_fitted + k] += 1
        covariance_P: Array = self._cov_PP @ contrast_P
        # One score minus the mean of n others has a variance of 1 + 1/n, widened as that of f is.
        noise = (WIDTH * self._surface.noise_sd) ** 2 * (1 + 1 / self._surface.scores.scored_PS.sum())
        self._cov_PP = self._cov_PP - np.outer(covariance_P, covariance_P) / (noise + covariance_P @ contrast_P)
        self._remaining.remove(k)
