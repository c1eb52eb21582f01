"""Racing: choose the runs that narrow a bound, and forecast how many it takes."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from ettsweep.study.posterior import Posterior
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.surface import Position
from ettsweep.study.verdict import RunsNeeded

CHALLENGERS = 3
"""Neighbours that get further seeds: those likeliest to be better by more than the margin (LUCB)."""

STABLE_SEEDS = 20
"""Most seeds that racing gives a candidate beside an edge of stability: if none is unstable, at most 14% are (95%)."""

MAX_ROUNDS = 30
"""Most rounds of a plan: in longer ones, luck and better neighbours decide."""

LIKELY, LOW, HIGH = (1.25, 0.93), (0.7, 0.75), (6.0, 0.85)
"""Runs of a race as a factor and power of those of a plan: in the median, and in one and nine of ten races, on
simulated sweeps of all worlds, undecided ones included (Kaplan and Meier)."""

PLANNED_CONFIDENCE = 0.95
"""Confidence at which racing turns from neighbours to an edge of stability, whatever the stated one: a higher
confidence then adds runs to the same race."""

LEAST_GAP = 0.25
"""Least share of the margin by which a plan assumes neighbours to stay within it: with less, it might never end."""


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

    @property
    def is_open_for_edge_alone(self) -> bool:
        """`True` if nothing but an edge of stability keeps the bound open."""
        return self.posterior.stability is not None and not self.is_open(max(self.confidence, PLANNED_CONFIDENCE))

    def is_open(self, confidence: float, width: float = 1.0, least_gap: float | None = None) -> bool:
        """`True` if the bound would exceed the margin, were all seeds stable.

        Args:
            confidence: of the bound.
            width: factor on all errors.
            least_gap: margins by which each neighbour is assumed to stay within the margin at least.
        """
        limit = self.posterior.from_margin(self.margin)
        advantage_Q, scale_Q = self.posterior.advantages(self.candidate, self.others)
        gap_Q = limit - advantage_Q
        if least_gap is not None:
            gap_Q = np.maximum(gap_Q, least_gap * limit)
        within_Q = stdtr(self.posterior.surface.dof, gap_Q / np.maximum(width * scale_Q, 1e-300))
        return bool(np.prod(within_Q) < confidence)


def next_runs(query: BoundQuery, limit: int) -> list[tuple[Position, int]]:
    """Return about `limit` runs, as (position, seed), that narrow the bound; empty if no run is allowed.

    While the noise is unknown, each compared position without a run under way gets one more seed, all at once, whatever
    the limit. Then each challenger in turn gets a seed that it shares with the candidate. If only an edge of stability
    keeps the bound open, the candidate gets seeds.
    """
    used = {position: set(query.used_seeds.get(position, ())) for position in (query.candidate, *query.others)}
    for position, seed in query.under_way:
        used.setdefault(position, set()).add(seed)
    chosen: list[tuple[Position, int]] = []

    def add(position: Position, seed: int) -> None:
        if seed not in used[position] and len(used[position]) < query.max_seeds:
            used[position].add(seed)
            chosen.append((position, seed))

    if query.posterior.noise.source == "unknown":
        pending = {position for position, _ in query.under_way}
        for position in [position for position in used if position not in pending]:
            add(position, next(seed for seed in query.seed_order if seed not in used[position]))
        return chosen
    if query.posterior.stability and not query.is_open(PLANNED_CONFIDENCE):
        most = min(STABLE_SEEDS, query.max_seeds)
        while len(chosen) < limit and len(used[query.candidate]) < most:
            add(query.candidate, next(seed for seed in query.seed_order if seed not in used[query.candidate]))
        if chosen or query.is_open_for_edge_alone:
            return chosen
    challengers = query.posterior.challengers(query.candidate, query.others, query.margin)[:CHALLENGERS]
    before = -1
    while before < len(chosen) < limit:
        before = len(chosen)
        for other in challengers:
            seed = _seed_to_share(query.seed_order, used[query.candidate], used[other])
            lacking = [position for position in (other, query.candidate) if seed not in used[position]]
            if len(chosen) < limit and all(len(used[position]) < query.max_seeds for position in lacking):
                for position in lacking:
                    add(position, seed)
    return chosen


def _seed_to_share(seed_order: Sequence[int], own: Collection[int], other: Collection[int]) -> int:
    """Return the next seed for two positions to share: one that one of them has, else a new one."""
    new = (seed for seed in seed_order if seed not in own and seed not in other)
    return next((seed for seed in seed_order if (seed in own) != (seed in other)), next(new, seed_order[-1]))


def runs_needed(query: BoundQuery) -> RunsNeeded | None:
    """Forecast how many further runs answer a query; None if no further run is allowed.

    The plan is rounds of one seed for the candidate and open neighbours. It assumes that errors shrink as one over the
    root of the candidate's seeds, and that differences stay.
    """
    if not next_runs(query, 1):
        return None
    seeds, rounds = max(1, len(query.used_seeds[query.candidate])), 1
    most = math.inf
    if query.is_open_for_edge_alone:
        most = planned = max(1.0, STABLE_SEEDS - seeds)
    else:
        while rounds < MAX_ROUNDS and query.is_open(query.confidence, (seeds / (seeds + rounds)) ** 0.5, LEAST_GAP):
            rounds += 1 + rounds // 8
        planned = rounds * (1.0 + min(CHALLENGERS, len(query.others)))
    runs = [math.ceil(min(factor * planned**power, most)) for factor, power in (LIKELY, LOW, HIGH)]
    likely, low, high = (max(1, number) for number in runs)
    return RunsNeeded(likely, low, high)
