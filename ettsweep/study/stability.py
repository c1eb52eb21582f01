"""The edge of stability above a candidate: the lr from which on training blows up, which differs by seed.

A few seeds that trained well at the last stable lr say little about the next seed. If runs a step of lr up diverged, or
are worse than the surface below them predicts, the edge of a seed, in lattice steps of lr from the candidate, is normal
around `edge` with the deviation `spread`. The posterior of both is summed over a grid. It gives the share of seeds that
are unstable at any lr, and their mean cost.

Shapes: E values of edge and spread, P points.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from scipy.special import ndtr
from scipy.stats import beta

from ettsweep.study.surface import Array, Position, Surface, fit, point_scores

FLAG_Z = 2.5
"""Standard errors above the surface of the lower lr at which a run counts as unstable."""

NORMAL_MAD = 1.48
"""Standard deviations of a normal distribution in its median absolute deviation."""

EDGES = np.arange(0.05, 2.01, 0.05)
"""Edges, in steps of lr above the candidate, with a uniform prior."""

SPREADS = (0.1, 0.2, 0.35, 0.6)
"""Spreads of the edge over seeds, in steps of lr, with a prior of 1 / spread."""

DIVERGED_COST = 0.5
"""Assumed cost of a diverged run, as a share of the candidate's score."""

FIT_RADIUS = 2
"""Steps from the candidate within which points predict the score of a stable run."""

CONFIDENCE = 0.95
"""Confidence of the share of seeds that may be unstable."""


@dataclass(frozen=True)
class Stability:
    """The edge of stability above a candidate.

    Attributes:
        weight_E, edge_E, spread_E: posterior of edge and spread; the weights sum to 1.
        cost: by how much an unstable run is worse, as a difference of f.
        stable, seeds: stable and all seeds of the candidate.
    """

    weight_E: Array
    edge_E: Array
    spread_E: Array
    cost: float
    stable: int
    seeds: int

    def costs(self, lr: float) -> Array:
        """Return the cost of unstable seeds in the mean of f, at each edge and spread, [E]."""
        return np.asarray(self.cost * ndtr((lr - self.edge_E) / self.spread_E))

    def expected_cost(self, lr: float) -> float:
        """Return the expected cost of unstable seeds in the mean of f."""
        return float(self.weight_E @ self.costs(lr))

    @property
    def may_be_unstable(self) -> float:
        """The share of seeds that may be unstable at the candidate (95%, Clopper and Pearson)."""
        unstable = self.seeds - self.stable
        return float(beta.ppf(CONFIDENCE, unstable + 1, self.stable)) if self.stable else 1.0


def find_edge(
    f: Mapping[Position, Mapping[int, float]],
    diverged: Mapping[Position, Collection[int]],
    least: float,
    diverged_cost: float = DIVERGED_COST,
) -> tuple[Stability, set[tuple[Position, int]]] | None:
    """Look for an edge of stability within a step of lr above the candidate, the origin.

    Args:
        f: scores as fitted, lower is better, by position and seed.
        diverged: seeds of diverged runs by position.
        least: excess of f below which no run counts as unstable.
        diverged_cost: of a diverged run, as an excess of f.

    Returns:
        The edge, and the unstable runs; None if no run a step of lr above the candidate is unstable.
    """
    origin = (0.0,) * len(next(iter(f)))
    near = {p: seeds for p, seeds in f.items() if max(map(abs, p)) <= FIT_RADIUS}
    # If runs of every lr diverge, lr is not the reason.
    columns = {p[1:] for p in near if p[0] <= 0}
    diverged = {p: seeds for p, seeds in diverged.items() if max(map(abs, p)) <= FIT_RADIUS and p[1:] in columns}
    level = median_low(f[origin].values())
    far_above = [y - level for p, seeds in near.items() if p[0] == 1 for y in seeds.values() if y - level > least]
    lost = [diverged_cost for p, seeds in diverged.items() if p[0] == 1 for _ in seeds]
    far_above += lost
    if not far_above:
        return None
    below = {p: seeds for p, seeds in near.items() if p[0] <= 0}
    unstable = _outliers(below, max(least, median_low(far_above) / 2))
    stable = {p: {s: y for s, y in seeds.items() if (p, s) not in unstable} for p, seeds in below.items()}
    stable_below = {p: seeds for p, seeds in stable.items() if seeds}
    excess = dict(_excesses(stable_below, {p: seeds for p, seeds in near.items() if p[0] == 1}, least))
    if not excess and not lost:
        return None
    unstable |= excess.keys()
    brackets = _brackets(near, diverged, unstable)
    if all(high > 1 for _, high in brackets):
        return None  # spikes alone
    cost = median_low([*excess.values(), *lost])
    own, own_stable = len(f[origin]), len(stable_below.get(origin, ()))
    return Stability(*_posterior(brackets), cost, own_stable, own), unstable


def _outliers(below: Mapping[Position, Mapping[int, float]], least: float) -> set[tuple[Position, int]]:
    """Return the runs that stand out from the others of their point by more than `least` and the noise.

    The difference of a seed that is worse at every lower lr is subtracted first.
    """
    off = {(p, seed): y - median_low(seeds.values()) for p, seeds in below.items() for seed, y in seeds.items()}
    lower = defaultdict[int, list[float]](list)
    for (p, seed), by in off.items():
        if p[0] < 0:
            lower[seed].append(by)
    # The least of many differences is low by chance, so a better seed gets no correction.
    worse = {seed: max(0.0, min(each)) for seed, each in lower.items()}
    off = {(p, seed): by - worse.get(seed, 0.0) for (p, seed), by in off.items()}
    noise = NORMAL_MAD * median_low([abs(by) for by in off.values() if by] or [0.0])
    return {run for run, by in off.items() if by > max(least, FLAG_Z * noise)}


def _posterior(brackets: Iterable[tuple[float, float]]) -> tuple[Array, Array, Array]:
    """Return weight, edge and spread, [E] each, given bounds on the edge of each seed."""
    edge_E, spread_E = (x.ravel() for x in np.meshgrid(EDGES, SPREADS, indexing="ij"))
    log_E = -np.log(spread_E)
    for low, high in brackets:
        share_E = ndtr((high - edge_E) / spread_E) - ndtr((low - edge_E) / spread_E)
        log_E = log_E + np.log(np.maximum(share_E, 1e-300))
    weight_E = np.exp(log_E - log_E.max())
    return weight_E / weight_E.sum(), edge_E, spread_E


def _excesses(
    below: Mapping[Position, Mapping[int, float]], above: Mapping[Position, Mapping[int, float]], least: float
) -> Iterator[tuple[tuple[Position, int], float]]:
    """Yield runs that are worse than the stable surface of lower lr predicts by more than `least`, with the excess."""
    if not above or not below or (scores := point_scores(below)).dof < 1:
        return
    surface = fit(scores.with_positions(np.array([*above], dtype=float)))
    columns = {seed: s for s, seed in enumerate(sorted({seed for seeds in below.values() for seed in seeds}))}
    for k, (position, seeds) in enumerate(above.items()):
        for seed, y in seeds.items():
            by, error = _excess(surface, len(below) + k, y, columns.get(seed))
            if by > max(least, FLAG_Z * error):
                yield (position, seed), by


def _excess(surface: Surface, row: int, y: float, column: int | None) -> tuple[float, float]:
    """Return the excess of a score over the prediction for its point, and its standard error.

    The prediction is from the other scores of its seed, or from all if there are none.
    """
    scored_PS, y_PS = surface.scores.scored_PS, surface.scores.y_PS
    count_P = scored_PS.sum(1) if column is None else scored_PS[:, column]
    total = float(y_PS.sum() if column is None else y_PS[:, column].sum())
    contrast_P = -count_P / count_P.sum()
    contrast_P[row] += 1
    predicted, error = surface.contrast(contrast_P)
    noise = surface.noise_sd * (1 + 1 / count_P.sum()) ** 0.5
    return y - total / count_P.sum() - predicted, float(np.hypot(error, noise))


def _brackets(
    f: Mapping[Position, Mapping[int, float]],
    diverged: Mapping[Position, Collection[int]],
    unstable: Collection[tuple[Position, int]],
) -> list[tuple[float, float]]:
    """Return the bounds on the edge of each seed: its last stable lr, and the first unstable one above."""
    votes: dict[int, dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for position, seeds in f.items():
        for seed in seeds:
            if position[0] <= 1:
                votes[seed][position[0]].append((position, seed) in unstable)
    for position, diverged_seeds in diverged.items():
        for seed in diverged_seeds:
            votes[seed][position[0]] = [True]  # no spike
    brackets = []
    for by_lr in votes.values():
        is_unstable = {lr: 2 * sum(flags) >= len(flags) for lr, flags in by_lr.items()}
        # A spike is no edge: a run above it is stable again.
        low = max((lr for lr, flag in is_unstable.items() if not flag), default=-np.inf)
        brackets.append((low, min((lr for lr, flag in is_unstable.items() if flag and lr > low), default=np.inf)))
    return brackets
