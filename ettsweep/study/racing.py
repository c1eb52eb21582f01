"""Racing: choose the runs that narrow a bound most, and predict how many it takes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np

from ettsweep.study.posterior import Position, Posterior
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.surface import Array, contrast_variance
from ettsweep.study.verdict import MAX_NEEDED_RUNS

TARGET_SHARE = 0.5
"""Share of the margin that the bound of each single neighbour should reach, so that the joint bound is within it."""


@dataclass(frozen=True)
class BoundQuery:
    """The question that racing answers: is no other position better than the candidate by more than the margin?

    Attributes:
        seed_order: seeds in the order in which each position gets them.
        used_seeds: seeds of the runs at each position, finished or not; a pruned run does not count.
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

    The posterior covariance of a Gaussian process does not depend on the scores, so it can be updated without them.
    Shapes: H components, P positions, Q others, O options.
    """

    def __init__(self, query: BoundQuery) -> None:
        posterior, surface = query.posterior, query.posterior.surface
        self.query, self.weight_H = query, surface.weight_H
        self.variance_H = surface.variance_H
        self.cov_HPP = surface.cov_HPP
        self.candidate, self.others = (
            posterior.index(query.candidate),
            [posterior.index(other) for other in query.others],
        )
        advantage_HQ = surface.mean_HP[:, [self.candidate]] - surface.mean_HP[:, self.others]
        self.advantage_Q = self.weight_H @ advantage_HQ
        self.between_variance_Q = self.weight_H @ (advantage_HQ - self.advantage_Q) ** 2
        self.margin = posterior.from_share(query.margin)
        self.initial_variance_Q = self._within_variance()
        scored_PS = surface.layout.scored_PS
        self.seed_members: dict[int, Array] = {seed: scored_PS[:, s].copy() for s, seed in enumerate(posterior.seeds)}
        self.used_seeds = [set(query.used_seeds.get(position, ())) for position in posterior.positions]
        # Runs under way will narrow the bound as well: without them, racing would choose the same runs again.
        for position, seed in query.under_way:
            self.add_runs([(posterior.index(position), seed)])

    def best_option(self) -> list[tuple[int, int]]:
        """Return the run that narrows the bound most, or the two that share a new seed, as (position, seed).

        Options are compared by gain per run; empty if there is none.
        """
        options = [
            (option, contrast_P) for option in self._options() if (contrast_P := self._contrast(option)) is not None
        ]
        if not options:
            return []
        contrast_PO = np.stack([contrast_P for _, contrast_P in options], 1)
        covariance_HPO = self.cov_HPP @ contrast_PO
        variance_HO = 1 + (covariance_HPO * contrast_PO).sum(1)
        # Variance of candidate minus other drops by cov(difference, contrast)^2 / var(contrast score).
        reduction_HQO = (covariance_HPO[:, [self.candidate]] - covariance_HPO[:, self.others]) ** 2 / variance_HO[
            :, None
        ]
        current_HQO = contrast_variance(self.cov_HPP, self.candidate, self.others)[:, :, None]
        gain_O = (self._excess(current_HQO) - self._excess(current_HQO - reduction_HQO)) / [
            len(option) for option, _ in options
        ]
        return options[int(np.argmax(gain_O))][0]

    def add_runs(self, option: Sequence[tuple[int, int]], times: int = 1) -> None:
        """Update the posterior as if these runs were finished, `times` times over.

        A run is a rank-one update (Sherman-Morrison) along its contrast with the other runs of its seed.
        """
        if (contrast_P := self._contrast(option)) is not None:
            # That many runs weigh as one with the variance divided by their number.
            covariance_HP = np.sqrt(times) * self.cov_HPP @ contrast_P
            variance_H = 1 + np.sqrt(times) * covariance_HP @ contrast_P
            self.cov_HPP = (
                self.cov_HPP - covariance_HP[:, :, None] * covariance_HP[:, None, :] / variance_H[:, None, None]
            )
        for position, seed in option:
            self.seed_members.setdefault(seed, np.zeros(len(self.used_seeds)))[position] += 1.0
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
        return np.asarray(
            (self.weight_H * self.variance_H) @ contrast_variance(self.cov_HPP, self.candidate, self.others)
        )

    def _excess(self, cov_HQO: Array) -> Array:
        """Return how far the bounds of single neighbours exceed their target: the sum of squares for each option, [O].

        `cov_HQO` is the variance of the candidate minus each other after each option, in units of the noise variance.
        """
        within_QO = np.tensordot(self.weight_H * self.variance_H, np.maximum(cov_HQO, 0.0), 1)
        sd_QO = np.sqrt(within_QO + self.between_variance_Q[:, None])
        z = NormalDist().inv_cdf((1 + self.query.confidence) / 2)
        return np.asarray(
            (np.maximum(self.advantage_Q[:, None] + z * sd_QO - TARGET_SHARE * self.margin, 0.0) ** 2).sum(0)
        )

    def _options(self) -> Iterator[list[tuple[int, int]]]:
        """Yield single runs with seeds that other positions have, and pairs of runs that share a new seed.

        A single run with a new seed says nothing: the effect of the seed absorbs its score.
        """
        next_seed: dict[int, int] = {}
        for position, used_seeds in enumerate(self.used_seeds):
            if len(used_seeds) < self.query.max_seeds:
                next_seed[position] = next(seed for seed in self.query.seed_order if seed not in used_seeds)
        compared = [self.candidate, *self.others]
        for position, seed in next_seed.items():
            if seed in self.seed_members and self.seed_members[seed].any():
                yield [(position, seed)]
        # Only compared positions start a new seed: elsewhere a pair would say little about the candidate.
        for first, other in combinations([p for p in compared if p in next_seed], 2):
            # Two runs compare their positions only if they share the seed.
            if next_seed[first] == next_seed[other] not in self.seed_members:
                yield [(first, next_seed[first]), (other, next_seed[first])]

    def _contrast(self, option: Sequence[tuple[int, int]]) -> Array | None:
        """Return the contrast that runs measure: the last position minus the mean of those that share its seed, [P].

        It is scaled to be measured with the variance of one score; None if no other position has the seed.
        """
        position, seed = option[-1]
        shared_P = np.zeros(len(self.used_seeds)) if seed not in self.seed_members else self.seed_members[seed].copy()
        for other, _ in option[:-1]:
            shared_P[other] += 1.0
        if not (count := shared_P.sum()):
            return None
        contrast_P = -shared_P / count
        contrast_P[position] += 1
        # One score minus the mean of `count` others has a variance of 1 + 1 / count.
        return np.asarray(contrast_P * np.sqrt(count / (count + 1)))


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
    """Return the predicted number of further runs that would answer a query.

    None if that is more than `MAX_NEEDED_RUNS`, or if no further run is allowed.

    To be fast, runs are simulated in batches that grow with their number, up to a sixteenth of it.
    """
    allocation, n_runs = Allocation(query), 0
    while not allocation.is_resolved():
        option, times = allocation.best_option(), 1 + n_runs // 16
        if not option or n_runs > MAX_NEEDED_RUNS:
            return None
        allocation.add_runs(option, times)
        n_runs += times * len(option)
    # At least 1: the bound is too wide as it is, even where this simulation calls it resolved.
    return max(1, n_runs) if n_runs <= MAX_NEEDED_RUNS else None
