"""Recorded lattices, for simulated sweeps: scores of every point over the same seeds.

Shapes: L values of lr, W of wd, S seeds, Q places.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from bench.worlds import Place
from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.seeding import derive_seed
from ettsweep.study.surface import Array, PointScores, fit

METRICS = ("best_loss", "best_accuracy")
"""Columns of a table that a verdict can compare; the first that is there counts."""


@dataclass(frozen=True)
class Table:
    """Scores of every point of a lattice over the same seeds.

    Attributes:
        metric: what they are.
        log2_lr, log2_wd: coordinates of rows and columns, equally far from each other.
        y_LWS: scores.
    """

    metric: str
    log2_lr: tuple[float, ...]
    log2_wd: tuple[float, ...]
    y_LWS: Array

    @property
    def centre(self) -> Place:
        """Indices of the point in the middle."""
        return len(self.log2_lr) // 2, len(self.log2_wd) // 2

    def seeds(self) -> int:
        """Return how many seeds each point was recorded with."""
        return int(self.y_LWS.shape[2])

    @cached_property
    def values(self) -> Array:
        """Log losses, or accuracies with their sign turned: less is better."""
        return np.log(self.y_LWS) if self.metric == "best_loss" else -self.y_LWS

    @cached_property
    def residuals(self) -> Array:
        """What each seed is off the mean of its point, [L, W, S]."""
        return np.asarray(self.values - self.values.mean(2, keepdims=True))

    @cached_property
    def truths(self) -> dict["Truth", Array]:
        """The means over all seeds, [L, W], as they are and smoothed."""
        mean_LW = self.values.mean(2)
        shape = mean_LW.shape
        x_PD = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1).reshape(-1, 2).astype(float)
        y_PS = self.values.reshape(len(x_PD), -1)
        process_P = fit(PointScores(x_PD, np.ones_like(y_PS), y_PS)).mean_P
        # Terms of up to the degree along both axes together, as many as an axis with that few values can have.
        u_PD = x_PD - x_PD.mean(0)
        powers = [(a, b) for a in range(DEGREE + 1) for b in range(DEGREE + 1 - a) if a < shape[0] and b < shape[1]]
        terms_PT = np.stack([u_PD[:, 0] ** a * u_PD[:, 1] ** b for a, b in powers], 1)
        polynomial_P = terms_PT @ np.linalg.lstsq(terms_PT, mean_LW.ravel(), rcond=None)[0]
        return {
            # A fitted process knows differences between points alone.
            "process": (process_P - process_P.mean() + mean_LW.mean()).reshape(shape),
            "polynomial": polynomial_P.reshape(shape),
            "means": mean_LW,
        }


def read_table(path: Path) -> Table:
    """Read a recorded lattice: CSV with columns lr, wd, seed, and best_loss or best_accuracy.

    Raises:
        InputError: it is none, a point lacks a seed that another has, or a score is no finite number.
    """
    try:
        frame = pd.DataFrame(np.genfromtxt(path, delimiter=",", names=True, ndmin=1, encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    metric = next((name for name in METRICS if name in frame and frame[name].notna().any()), METRICS[0])
    needed = ["lr", "wd", "seed", metric]
    if lacking := [name for name in needed if name not in frame]:
        raise InputError(f"{path}: columns lack {', '.join(lacking)}; {', '.join(needed)} are needed")
    frame = frame[needed].copy()
    above_0 = frame[["lr", "wd", *needed[3:] * (metric == "best_loss")]] > 0
    wrong = np.flatnonzero(~(np.isfinite(frame.to_numpy()).all(axis=1) & above_0.to_numpy().all(axis=1)))
    if wrong.size:
        raise InputError(f"{path}: line {wrong[0] + 2}: finite numbers are expected, and lr, wd and losses above 0")
    frame[["lr", "wd"]] = np.log2(frame[["lr", "wd"]]).round(6)
    if frame.duplicated(["lr", "wd", "seed"]).any():
        raise InputError(f"{path}: a point has a seed twice")
    by_point = frame.pivot(index=["lr", "wd"], columns="seed", values=metric)
    lrs, wds = (tuple(sorted(map(float, frame[name].unique()))) for name in ("lr", "wd"))
    for name, values in (("log2 lr", lrs), ("log2 wd", wds)):
        if len(set(np.diff(values).round(5))) != 1:
            text = ", ".join(f"{value:g}" for value in values)
            raise InputError(f"{path}: {name}: two or more values equally far from each other are expected, got {text}")
    scores = by_point.reindex(pd.MultiIndex.from_product([lrs, wds])).to_numpy()
    if holes := int(np.isnan(scores).sum()):
        size = f"{len(lrs)} x {len(wds)} points with {format_count(scores.shape[1], 'seed')}"
        raise InputError(f"{path}: {size} have {format_count(holes, 'hole')}")
    return Table(metric, lrs, wds, scores.reshape(len(lrs), len(wds), -1))


Truth = Literal["process", "polynomial", "means"]
TRUTHS: tuple[Truth, ...] = get_args(Truth)
"""What a recorded lattice may be in truth: the mean of a Gaussian process fitted to it, a polynomial, or its own means."""

Noise = Literal["normal", "bootstrap"]
NOISES: tuple[Noise, ...] = get_args(Noise)
"""How a fresh seed differs from the truth: normal with the recorded covariance, or nearly as one of the recorded seeds."""

SILVERMAN = (4 / 3) ** 0.2
"""Width of a normal kernel, in standard deviations, times the number of values to the power of 1/5: Silverman's rule."""

DEGREE = 4
"""Of the polynomial in lr and wd that a recorded lattice is smoothed by."""


@dataclass(frozen=True)
class Recorded:
    """A recorded lattice whose truth is known exactly, with fresh seeds that scatter as the recorded ones do.

    Smoothed means stand for the truth, and what each recorded seed is off the means for the noise, over all points
    jointly. Any number of seeds can be drawn. Beyond its border runs diverge: a made-up score there, however bad, would
    be a cliff that the fit would have to explain.
    """

    table: Table
    truth: Truth = "process"
    noise: Noise = "normal"
    number: int = 0
    seed: int = 0

    @cached_property
    def f(self) -> Array:
        """The truth: log losses, or accuracies with their sign turned."""
        return self.table.truths[self.truth]

    def score(self, at: Place, seed: int) -> float | None:
        if (place := self._place(at)) is None:
            return None
        value = float(self.f[place] + self._residuals(seed)[place])
        return math.exp(value) if self.table.metric == "best_loss" else -value

    def _residuals(self, seed: int) -> Array:
        """Return what a seed adds to each point, [L, W]."""
        if seed not in self._residuals_cache:
            rng = np.random.default_rng(derive_seed(self.seed, "recorded", self.number, seed))
            seeds = self.table.seeds()
            # Residuals lack the degree of freedom that the mean has taken.
            weight_S = rng.standard_normal(seeds) / math.sqrt(seeds - 1)
            if self.noise == "bootstrap":
                # Smoothed, of the recorded covariance (Silverman and Young 1987). A recorded seed that is drawn twice
                # were two runs with the same numbers, which no two seeds have: a noise of 0.
                drawn_S = np.eye(seeds)[rng.integers(seeds)] * math.sqrt(seeds / (seeds - 1))
                smoothing = SILVERMAN * seeds**-0.2
                weight_S = (drawn_S + smoothing * weight_S) / math.sqrt(1 + smoothing**2)
            self._residuals_cache[seed] = self.table.residuals @ weight_S
        return self._residuals_cache[seed]

    @cached_property
    def _residuals_cache(self) -> dict[int, Array]:
        return {}

    def advantage(self, of: Place, others: Sequence[Place]) -> float:
        place, existing = self._place(of), [p for p in map(self._place, others) if p is not None]
        if place is None or not existing:
            return 0.0
        ahead = max(float(self.f[place] - self.f[p]) for p in existing)
        return max(0.0, -math.expm1(-ahead) if self.table.metric == "best_loss" else ahead)

    def regret(self, at: Place) -> float:
        if (place := self._place(at)) is None:
            return math.inf
        behind = float(self.f[place] - self.f.min())
        return math.expm1(behind) if self.table.metric == "best_loss" else behind

    @property
    def ends(self) -> tuple[Place, Place]:
        (i, j), (lrs, wds) = self.table.centre, self.table.y_LWS.shape[:2]
        return (-i, -j), (lrs - 1 - i, wds - 1 - j)

    @cached_property
    def best(self) -> Place:
        i, j = self.table.centre
        lr, wd = np.unravel_index(int(np.argmin(self.f)), self.f.shape)
        return int(lr) - i, int(wd) - j

    def _place(self, at: Place) -> Place | None:
        (i, j), (lrs, wds) = self.table.centre, self.table.y_LWS.shape[:2]
        lr, wd = i + at[0], j + at[1]
        return (lr, wd) if 0 <= lr < lrs and 0 <= wd < wds else None
