"""Racing: choose the runs that narrow a bound most, and predict how many it takes."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import NormalDist

import numpy as np

from ettsweep.study.posterior import Position, Posterior
from ettsweep.study.seed_noise import Array
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.surface import WIDTH, contrast_variance, finer_width

TARGET_SHARE = 0.5
"""Share of the margin that the bound of each single neighbour should reach, so that the joint bound is within it."""

PLANNED_RUNS = 10_000
"""Runs after which a plan is not followed further."""

NEEDED_FACTOR, NEEDED_POWER = 2.5, 0.7
"""A race takes at most this factor times this power of the runs of its plan in about three of four cases, on simulated
sweeps of made and recorded worlds with 1 to 3,000 runs in the plan: about so where races are longest (much noise, a
margin of 2%, a confidence of 95%), and more often elsewhere."""

TARGET_Z = 1.96
"""Standard errors above its mean at which the bound of a single neighbour is aimed at, whatever the confidence: so the
runs of a sweep are the first ones of the same sweep at a higher confidence."""


@dataclass(frozen=True)
class BoundQuery:
    """The question that racing answers: is no other position better than the candidate by more than the margin?

    Attributes:
        seed_order: seeds in the order in which each position gets them.
        used_seeds: seeds of the runs at each position, finished or not.
        under_way: runs, as (position, seed), without a score yet.
        max_seeds: most seeds of a position.
    """

    posterior: Posterior
    candidate: Position
    others: Sequence[Position]
    confidence: float
    margin: float
    seed_order: Sequence[int]
    used_seeds: Mapping[Position, Collection[int]]
    under_way: Sequence[tuple[Position, int]] = ()
    max_seeds: int = len(RACING_SEEDS)


class Allocation:
    """A simulation of the posterior after further runs, each of which scores as predicted.

    The posterior covariance of a Gaussian process does not depend on the scores, so it can be updated without them. To
    be fast, it is that of all components on average, and so is the noise. Both are widened as for a bound as large as
    the margin.

    Shapes: P positions, Q others, O options, N new runs of a seed.
    """

    def __init__(self, query: BoundQuery) -> None:
        posterior, surface = query.posterior, query.posterior.surface
        self.query = query
        self.margin = posterior.from_margin(query.margin)
        width = finer_width(self.margin, surface.noise_sd) if surface.is_smooth and self.margin > 0 else 1.0
        variance_H = surface.weight_H * surface.scale * width**2
        self.cov_PP = np.tensordot(variance_H, surface.cov_HPP, 1)
        self.noise_PP = (WIDTH * width) ** 2 * surface.noise_covariance(surface.layout.x_PD)
        self.candidate = posterior.index(query.candidate)
        self.others = [posterior.index(other) for other in query.others]
        advantage_HQ = surface.mean_HP[:, [self.candidate]] - surface.mean_HP[:, self.others]
        self.advantage_Q = surface.weight_H @ advantage_HQ
        self.between_variance_Q = surface.weight_H @ (advantage_HQ - self.advantage_Q) ** 2
        self.initial_variance_Q = self._within_variance()
        scored_PS = surface.layout.scored_PS
        self.seed_members = {seed: np.flatnonzero(scored_PS[:, s]).tolist() for s, seed in enumerate(posterior.seeds)}
        self._contrasts_of_seed: dict[int, Array] = {}
        self.used_seeds = [set(query.used_seeds.get(position, ())) for position in posterior.positions]
        # Runs under way will narrow the bound as well: without them, racing would choose the same runs again.
        for position, seed in query.under_way:
            self.add_runs([(posterior.index(position), seed)])

    def best_option(self) -> list[tuple[int, int]]:
        """Return the run that narrows the bound most, or the two that share a new seed, as (position, seed).

        Options are compared by gain per run; empty if there is none.
        """
        options, contrast_PO = self._options()
        if not options:
            return []
        covariance_PO = self.cov_PP @ contrast_PO
        variance_O = 1 + (covariance_PO * contrast_PO).sum(0)
        # Variance of candidate minus other drops by cov(difference, contrast)^2 / var(contrast score).
        reduction_QO = (covariance_PO[[self.candidate]] - covariance_PO[self.others]) ** 2 / variance_O
        current_QO = self._within_variance()[:, None]
        gain_O = (self._excess(current_QO) - self._excess(current_QO - reduction_QO)) / [
            len(option) for option in options
        ]
        return options[int(np.argmax(gain_O))]

    def add_runs(self, option: Sequence[tuple[int, int]], times: int = 1) -> None:
        """Update the posterior as if these runs were finished, `times` times over.

        A run is a rank-one update (Sherman-Morrison) along its contrast with the other runs of its seed.
        """
        position, seed = option[-1]
        contrasts_PP = self._contrasts_of_seed.pop(seed, None)
        if members := [*self.seed_members.get(seed, ()), *(other for other, _ in option[:-1])]:
            if contrasts_PP is None:
                contrasts_PP = self._contrasts(members)
            # That many runs weigh as one with the variance divided by their number.
            contrast_P = np.sqrt(times) * contrasts_PP[:, position]
            covariance_P = self.cov_PP @ contrast_P
            self.cov_PP = self.cov_PP - np.outer(covariance_P, covariance_P) / (1 + covariance_P @ contrast_P)
        for position, seed in option:
            self.seed_members.setdefault(seed, []).append(position)
            self.used_seeds[position].add(seed)

    def is_resolved(self) -> bool:
        """`True` if the bound would be within the margin, provided that neighbours stay as far behind as they are.

        The variance between components is scaled down with that within: further runs narrow the length scales, too.
        """
        within_Q = self._within_variance()
        # 1e-300 avoids 0 / 0, here and below.
        var_Q = within_Q + self.between_variance_Q * within_Q / np.maximum(self.initial_variance_Q, 1e-300)
        z_Q = (self.advantage_Q - self.margin) / np.sqrt(np.maximum(var_Q, 1e-300))
        # Union bound over neighbours: slightly pessimistic, and needs no draws.
        return sum(map(NormalDist().cdf, z_Q.tolist())) <= 1 - self.query.confidence

    def _within_variance(self) -> Array:
        """Return the variance of each difference from the candidate, averaged over components, [Q]."""
        return np.asarray(contrast_variance(self.cov_PP[None], self.candidate, self.others)[0])

    def _excess(self, within_QO: Array) -> Array:
        """Return how far the bounds of single neighbours exceed their target: the sum of squares for each option, [O].

        `within_QO` is the variance of the candidate minus each other after each option, averaged over components.
        """
        sd_QO = np.sqrt(np.maximum(within_QO, 0.0) + self.between_variance_Q[:, None])
        return np.asarray(
            (np.maximum(self.advantage_Q[:, None] + TARGET_Z * sd_QO - TARGET_SHARE * self.margin, 0.0) ** 2).sum(0)
        )

    def _options(self) -> tuple[list[list[tuple[int, int]]], Array]:
        """Return single runs with seeds that other positions have, and pairs of runs that share a new seed.

        A single run with a new seed says nothing: the effect of the seed absorbs its score.

        Returns:
            The options, as (position, seed), and what each measures: contrasts, [P, O].
        """
        positions_by_seed: dict[int, list[int]] = {}
        for position, used_seeds in enumerate(self.used_seeds):
            if len(used_seeds) < self.query.max_seeds:
                seed = next(seed for seed in self.query.seed_order if seed not in used_seeds)
                positions_by_seed.setdefault(seed, []).append(position)
        options, contrasts = list[list[tuple[int, int]]](), list[Array]()
        for seed, positions in positions_by_seed.items():
            if members := self.seed_members.get(seed):
                if seed not in self._contrasts_of_seed:
                    self._contrasts_of_seed[seed] = self._contrasts(members)
                options += [[(position, seed)] for position in positions]
                contrasts.append(self._contrasts_of_seed[seed][:, positions])
                continue
            # Only compared positions start a new seed: elsewhere a pair would say little about the candidate.
            pairs = [k for k, pair in enumerate(self._pairs) if all(position in positions for position in pair)]
            options += [[(position, seed) for position in self._pairs[k]] for k in pairs]
            contrasts.append(self._pair_contrasts[:, pairs])
        return options, np.concatenate(contrasts, 1) if contrasts else np.zeros((len(self.used_seeds), 0))

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        """Pairs of compared positions."""
        return list(combinations((self.candidate, *self.others), 2))

    @cached_property
    def _pair_contrasts(self) -> Array:
        """What both runs of each pair measure if they share a new seed, [P, pairs]: their difference."""
        first, second = np.array(self._pairs).T
        variance_P, columns = np.diag(self.noise_PP), np.arange(len(first))
        contrasts = np.zeros((len(variance_P), len(first)))
        contrasts[second, columns] = 1.0
        contrasts[first, columns] = -1.0
        variance = variance_P[first] + variance_P[second] - 2 * self.noise_PP[first, second]
        return np.asarray(contrasts / np.sqrt(np.maximum(variance, 1e-300)))

    def _contrasts(self, members: Sequence[int]) -> Array:
        """Return what a run at each position measures if its seed has runs at `members` already, [P, P].

        That is f there, less what the seed's other scores predict of its noise (kriging with an unknown mean: the
        effect of the seed). It is scaled to be measured with a variance of 1.
        """
        inverse = np.linalg.inv(self.noise_PP[np.ix_(members, members)])
        across = self.noise_PP[members]
        ones = inverse.sum(1)
        weights = inverse @ across
        gap = 1 - weights.sum(0)
        variance = np.diag(self.noise_PP) - (across * weights).sum(0) + gap**2 / ones.sum()
        weights = weights + np.outer(ones, gap) / ones.sum()
        contrasts = np.eye(len(self.noise_PP))
        contrasts[members] -= weights
        return np.asarray(contrasts / np.sqrt(np.maximum(variance, 1e-300)))


def next_runs(query: BoundQuery, limit: int) -> list[tuple[Position, int]]:
    """Return up to `limit` runs, as (position, seed), that narrow the bound most; empty if no run is allowed.

    While the noise is unknown, these are one more seed of each compared position that has no run under way; they come
    together, whatever the limit.
    """
    positions = query.posterior.positions
    allocation, chosen = Allocation(query), list[tuple[int, int]]()
    if query.posterior.noise.source == "unknown":
        pending = {positions.index(position) for position, _ in query.under_way}
        for position in [allocation.candidate, *allocation.others]:
            if position not in pending and len(allocation.used_seeds[position]) < query.max_seeds:
                chosen.append(
                    (position, next(seed for seed in query.seed_order if seed not in allocation.used_seeds[position]))
                )
        return [(positions[p], seed) for p, seed in chosen]
    # An option of two runs may exceed the limit by one.
    while len(chosen) < limit and (option := allocation.best_option()):
        allocation.add_runs(option)
        chosen += option
    return [(positions[p], seed) for p, seed in chosen]


def runs_needed(query: BoundQuery) -> int | None:
    """Return how many further runs answer a query in about three of four cases; None if no further run is allowed.

    Of a plan whose runs all score as predicted, few are needed: scores vary, and a race ends when they come out well.

    To be fast, runs are simulated in batches that grow with their number, up to a quarter of it. A plan that does not
    end within `PLANNED_RUNS` counts as that many.
    """
    allocation, n_runs = Allocation(query), 0
    while n_runs < PLANNED_RUNS and not allocation.is_resolved():
        option, times = allocation.best_option(), 1 + n_runs // 4
        if not option:
            return None
        allocation.add_runs(option, times)
        n_runs += times * len(option)
    # At least 1: the bound is too wide as it is, even where this simulation calls it resolved.
    return max(1, math.ceil(NEEDED_FACTOR * math.pow(min(n_runs, PLANNED_RUNS), NEEDED_POWER)))
