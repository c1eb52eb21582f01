"""What a proposer knows of a family; and the surface's own: where a further run is expected to gain most.

A proposer is a function of what is known alone, so a search that is killed goes on as if it had not been: nothing is
kept of one but the places that it has named. Places are whole steps from the centre along each free axis.

Shapes: P positions of a fit, Q candidates, H components.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from statistics import fmean

import numpy as np
from scipy.special import ndtr

from ettsweep.study.posterior import Position, Scores, fit_scores
from ettsweep.study.surface import Array, Surface, contrast, fit

Place = tuple[int, ...]

AROUND = {1: ((0.5,), (-0.5,)), 2: ((0.5, -0.25), (-0.25, 0.5), (-0.25, -0.25))}
"""Where a search looks around its start before a surface can be fitted, by its axes: shares of half the box."""

INNER = 0.75
"""Share of the box within which further first places lie, where more runs than these train at once."""

LEAST = 8
"""Places with scores before which a search does not stop: fewer say little of how noisy they are."""

WORTH = 1.0
"""Shares of the margin that a further place must be expected to gain."""

SHORTLIST = 32
"""Candidates that are weighed together, over each component of the fit: a box may have thousands of places."""

AT_A_TIME = 128
"""Candidates that are looked at together for that list."""


@dataclass(frozen=True)
class Observations:
    """What a proposer knows of a family.

    Attributes:
        low, high: opposite corners of the box.
        start: where the search begins.
        scores: finished ones by place and seed; those beyond the box as well. All losses, or all accuracies.
        diverged: places with a diverged run.
        awaited: places whose first score is to come.
        taken: all places that were proposed or run, whatever became of them.
        margin: by how much a place may be better, a share of a loss or of all samples.
        loss: whether the least is best.
    """

    low: Place
    high: Place
    start: Place
    scores: Mapping[Place, Mapping[int, float]]
    diverged: Collection[Place]
    awaited: Collection[Place]
    taken: Collection[Place]
    margin: float
    loss: bool

    @cached_property
    def free(self) -> list[Place]:
        """Places of the box that may be proposed."""
        box = product(*(range(low, high + 1) for low, high in zip(self.low, self.high, strict=True)))
        return [position for position in box if position not in self.taken]

    @cached_property
    def values(self) -> dict[Place, float]:
        """The mean score of each place, less is better; one that diverged is as bad as the worst."""
        sign = 1 if self.loss else -1
        means = {position: sign * fmean(scores.values()) for position, scores in self.scores.items()}
        return means | dict.fromkeys(self.diverged, max(means.values(), default=0.0))

    @cached_property
    def best(self) -> Place | None:
        """The place of the box whose mean score is best; None where none has a score."""
        return min(filter(self.holds, self.scores), key=lambda position: self.values[position], default=None)

    def holds(self, position: Place) -> bool:
        """Say whether a place lies in the box."""
        return all(low <= x <= high for low, x, high in zip(self.low, position, self.high, strict=True))


Sampler = Callable[[Observations, int], list[Place]]
"""Returns free places, up to a number that are run at once; none where no further run is worth it."""


def surface(observations: Observations, number: int) -> list[Place]:
    """Return the places that are expected to gain most over the best one, by the surface that verdicts rest on.

    Each is chosen as if those before it, and those awaited, had scored as expected. None is returned once `LEAST` are
    known and no further one is expected to gain `WORTH` margins: the rest is for the race around the best one.
    """
    initial = _first_places(observations)
    others = (position for position in _spread(observations, initial) if position not in observations.taken)
    if len(observations.scores) < len(initial) and len(observations.diverged) < len(initial):
        return list(islice(others, number))
    if not observations.scores:  # where all diverged, a lower lr may not
        lowest = min(position[0] for position in observations.diverged)
        return list(islice((position for position in others if position[0] < lowest), number))
    if not observations.free:
        return []
    if (fit_result := fit_scores(_with_diverged(observations), loss=observations.loss)) is None:
        return list(islice(others, number))
    fitted, level = fit_result
    shortlist = [
        position for position, _ in sorted(_ranked(observations, fitted), key=lambda pair: -pair[1])[:SHORTLIST]
    ]
    design = _Design(fitted, [*observations.awaited, *shortlist], len(observations.awaited))
    chosen: list[Place] = []
    while len(chosen) < number:
        may_stop = len(observations.scores) + len(observations.awaited) + len(chosen) >= LEAST
        if (best := design.best(WORTH * observations.margin * level if may_stop else 0.0)) is None:
            break
        chosen.append(best)
    return chosen


def _first_places(observations: Observations) -> list[Place]:
    """Return the start and places around it."""
    half = [(high - low) / 2 for low, high in zip(observations.low, observations.high, strict=True)]
    initial = [observations.start]
    for shares in AROUND[len(half)]:
        moved = (s + _away(share * h) for s, share, h in zip(observations.start, shares, half, strict=True))
        initial.append(tuple(map(_clip, moved, observations.low, observations.high)))
    return list(dict.fromkeys(initial))


def _spread(observations: Observations, initial: Sequence[Place]) -> Iterator[Place]:
    """Yield some places, then free ones of the inner box that are farthest from all others, and then all free ones."""
    yield from initial
    ends = list(zip(observations.low, observations.high, strict=True))
    inner = np.array([[(a + b - INNER * (b - a)) / 2, (a + b + INNER * (b - a)) / 2] for a, b in ends])
    free_QD = np.array(observations.free, dtype=float).reshape(-1, len(ends))
    inner_indices = set(np.flatnonzero(((free_QD >= inner[:, 0]) & (free_QD <= inner[:, 1])).all(1)).tolist())
    remaining = [k for k, position in enumerate(observations.free) if k in inner_indices and position not in initial]
    others_ED = np.array([*initial, *observations.taken], dtype=float)
    distance_Q = ((free_QD[:, None] - others_ED) ** 2).sum(2).min(1) if len(free_QD) else np.zeros(0)
    while remaining:
        q = max(remaining, key=lambda k: distance_Q[k])
        remaining.remove(q)
        distance_Q = np.minimum(distance_Q, ((free_QD - free_QD[q]) ** 2).sum(1))
        yield observations.free[q]
    yield from (
        position for k, position in enumerate(observations.free) if k not in inner_indices and position not in initial
    )


def _away(x: float) -> int:
    """Round to the whole number that is farther from zero, where both are as near."""
    return int(np.sign(x) * np.floor(abs(x) + 0.5))


def _clip(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def _with_diverged(observations: Observations) -> Scores:
    """Return scores, with the worst of all where a run diverged."""
    scores: dict[Position, Mapping[int, float]] = dict(observations.scores.items())
    values = [score for scores_by_seed in scores.values() for score in scores_by_seed.values()]
    worst = max(values) if observations.loss else min(values)
    seed = min(seed for scores_by_seed in scores.values() for seed in scores_by_seed)
    return scores | {position: {seed: worst} for position in observations.diverged}


def _ranked(observations: Observations, fitted: Surface) -> Iterator[tuple[Place, float]]:
    """Yield each free place with about what it is expected to gain: as if the fit had one component."""
    best = fitted.layout.x_PD[[int(np.argmin(fitted.mean))]]
    for k in range(0, len(observations.free), AT_A_TIME):
        positions = observations.free[k : k + AT_A_TIME]
        at_ZD = np.vstack([best, np.array(positions, dtype=float)])
        mean_Z, cov_ZZ = fitted.means_at(at_ZD), fitted.covariance_at(at_ZD)
        var_Z = cov_ZZ[0, 0] + np.diag(cov_ZZ) - 2 * cov_ZZ[0]
        yield from zip(
            positions, _gain(mean_Z[0] - mean_Z, np.sqrt(np.maximum(var_Z, 1e-300)))[1:].tolist(), strict=True
        )


def _gain(mean: Array, sd: Array) -> Array:
    """Return E max(x, 0) of normal x."""
    z = mean / sd
    return np.asarray(mean * ndtr(z) + sd * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))


class _Design:
    """A fitted surface that is told of further runs, each of which scores as is expected of it."""

    def __init__(self, fitted: Surface, places: Sequence[Place], awaited: int = 0) -> None:
        self._places = places
        self._known = len(fitted.layout.x_PD)
        self._surface = fit(fitted.layout.wider(np.array(places, dtype=float))) if places else fitted
        self._cov_HPP = self._surface.cov_HPP
        runs_P = self._surface.layout.scored_PS.sum(1)
        self._share_P = runs_P / runs_P.sum()
        self._left = list(range(len(places)))
        for k in range(awaited):
            self._tell(k)

    def gains(self) -> list[float]:
        """Return what each place that is left is expected to gain over the best one that was run.

        That is E max(f(best) - f(place), 0), over the components.
        """
        surface_fit, others = self._surface, [self._known + k for k in self._left]
        best = int(np.argmin(surface_fit.mean[: self._known]))
        ahead_HQ = surface_fit.mean_HP[:, [best]] - surface_fit.mean_HP[:, others]
        widened = surface_fit.dof / max(surface_fit.dof - 2, 1)
        sd_HQ = np.sqrt(widened * surface_fit.variance_H[:, None] * contrast(self._cov_HPP, best, others) + 1e-300)
        return [float(gain) for gain in surface_fit.weight_H @ _gain(ahead_HQ, sd_HQ)]

    def best(self, worth: float) -> Place | None:
        """Return the place that is expected to gain most, and tell of its run; None where that is not worth it."""
        gains = self.gains()
        if not gains or max(gains) < worth:
            return None
        chosen = self._left[int(np.argmax(gains))]
        self._tell(chosen)
        return self._places[chosen]

    def _tell(self, k: int) -> None:
        contrast_P = -self._share_P
        contrast_P[self._known + k] += 1
        covariance_HP: Array = self._cov_HPP @ contrast_P
        variance_H = 1 + 1 / self._surface.layout.scored_PS.sum() + covariance_HP @ contrast_P
        self._cov_HPP = (
            self._cov_HPP - covariance_HP[:, :, None] * covariance_HP[:, None, :] / variance_H[:, None, None]
        )
        self._left.remove(k)
