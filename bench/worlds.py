"""Worlds whose truth is known, for simulated sweeps: surfaces that are drawn at random, with noise.

Places are steps of the lattice from the point that a sweep asks for, (lr, wd). Seeds are counted from 0, in the order
in which a point gets them. True are, of a point, the log of its loss, or its accuracy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Literal, Protocol

import numpy as np

from ettsweep.errors import unknown_name
from ettsweep.seeding import derive_seed

Place = tuple[int, int]

HALF = 4
"""Steps from the centre to the border of the 9 x 9 places whose best a candidate is held to; surfaces go on beyond."""

COMMON = 0.6
"""Share of the noise that a seed adds to all points alike."""

TAILS_DOF = 3
"""Of Student's t, where the noise has heavy tails."""

GROWTH = 0.3
"""How much worse a point is, in log, where noise that grows has doubled."""

Tails = Literal["normal", "heavy"]


class World(Protocol):
    """What a simulated sweep finds."""

    def score(self, at: Place, seed: int) -> float | None:
        """Return the score of a run; None where it diverges."""

    def advantage(self, of: Place, others: Sequence[Place]) -> tuple[float, float]:
        """Return by how much the best of others is better in truth, and that less what the truth may be off by.

        Both are shares of a loss or differences of accuracies, 0 where none is better.
        """

    def regret(self, at: Place) -> float:
        """Return how much worse a place is than the best of the lattice, in truth."""

    @property
    def ends(self) -> tuple[Place, Place]:
        """Opposite corners of the lattice."""

    @property
    def best(self) -> Place:
        """The best place of the lattice, in truth."""


# --- made surfaces --------------------------------------------------------------------------------------------------

Height = Callable[[float, float], float]


@dataclass(frozen=True)
class Basin:
    """A bowl around an optimum near the centre, curved, tilted and steeper towards high lr.

    Attributes:
        lr, wd: where its bottom is.
        a, b: curvatures along lr and wd, of a log loss per squared step.
        tilt: how much of both goes together, -1 to 1.
    """

    lr: float
    wd: float
    a: float
    b: float
    tilt: float

    def at(self, lr: float, wd: float) -> float:
        u, v = lr - self.lr, wd - self.wd
        steep = 0.3 * self.a * u**3 if u > 0 else 0.0
        return self.a * u * u + self.b * v * v + self.tilt * math.sqrt(self.a * self.b) * u * v + steep


def _bowl(basin: Basin, rng: np.random.Generator) -> Height:
    return basin.at


def _ridge(basin: Basin, rng: np.random.Generator) -> Height:
    """A valley along lr wd = const, twenty times flatter along it than across."""

    def height(lr: float, wd: float) -> float:
        u, v = lr - basin.lr, wd - basin.wd
        return (basin.a * (u + v) ** 2 + 0.05 * basin.b * (u - v) ** 2) / 2

    return height


def _plateau(basin: Basin, rng: np.random.Generator) -> Height:
    """A bowl whose bottom, 5% deep, is all but flat."""
    return lambda lr, wd: max(basin.at(lr, wd) - 0.05, 0.0) + 0.002 * basin.at(lr, wd)


def _cliff(basin: Basin, rng: np.random.Generator) -> Height:
    """A bowl with a step of the loss within two steps of lr above its bottom."""
    edge, fall = basin.lr + rng.uniform(0.6, 1.6), rng.uniform(0.5, 2.0)
    return lambda lr, wd: basin.at(lr, wd) + (fall if lr > edge else 0.0)


def _several(basin: Basin, rng: np.random.Generator) -> Height:
    """A bowl with three narrow dips somewhere in it."""
    ranges = (-3.5, 3.5), (-3.5, 3.5), (0.03, 0.15), (0.6, 1.5)
    dips = [tuple(rng.uniform(*ends) for ends in ranges) for _ in range(3)]

    def height(lr: float, wd: float) -> float:
        apart = [((lr - x) ** 2 + (wd - y) ** 2) / (2 * w * w) for x, y, _, w in dips]
        return basin.at(lr, wd) - sum(dip[2] * math.exp(-a) for dip, a in zip(dips, apart, strict=True))

    return height


def _rough(basin: Basin, rng: np.random.Generator) -> Height:
    """A flatter bowl, each point of which is off by something of its own, 3%."""
    int_result = int(rng.integers(2**62))

    @cache
    def off(lr: float, wd: float) -> float:
        return float(np.random.default_rng(derive_seed(int_result, "rough", f"{lr:g}", f"{wd:g}")).normal(0, 0.03))

    return lambda lr, wd: 0.5 * basin.at(lr, wd) + off(lr, wd)


SURFACES: dict[str, Callable[[Basin, np.random.Generator], Height]] = {
    "bowl": _bowl,
    "ridge": _ridge,
    "plateau": _plateau,
    "cliff": _cliff,
    "several": _several,
    "rough": _rough,
    "growing": _bowl,
}
"""What draws a surface, by its name; of a growing one it is the noise that grows, with the loss."""


@dataclass(frozen=True)
class Made:
    """A surface drawn at random, and noise on it.

    Attributes:
        surface: its kind.
        noise: standard deviation of one run, as a share of the loss: of its log.
        tails: of the noise.
        number: which of all of its kind.
        seed: of all draws.
    """

    surface: str
    noise: float
    tails: Tails = "normal"
    number: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.surface not in SURFACES:
            raise unknown_name("surface", self.surface, SURFACES)

    @cached_property
    def height(self) -> Height:
        """The log loss at a place."""
        rng = self._rng("surface", self.surface)
        lr, wd = rng.uniform(-1.2, 1.2, 2)
        a, b = rng.uniform(0.03, 0.12, 2)
        return SURFACES[self.surface](Basin(lr, wd, a, b, rng.uniform(-0.9, 0.9)), rng)

    @property
    def ends(self) -> tuple[Place, Place]:
        return (-HALF, -HALF), (HALF, HALF)

    @cached_property
    def best(self) -> Place:
        steps = range(-HALF, HALF + 1)
        return min(product(steps, steps), key=lambda place: self.height(*place))

    @cached_property
    def least(self) -> float:
        """The log loss at the best place."""
        return self.height(*self.best)

    def score(self, at: Place, seed: int) -> float:
        height = self.height(*at)
        standard_normal_result = self._rng("common", seed).standard_normal()
        rng = self._rng("own", seed, *at)
        standard_normal_value = (
            rng.standard_normal() if self.tails == "normal" else rng.standard_t(TAILS_DOF) / math.sqrt(TAILS_DOF)
        )
        grown = 1 + (height - self.least) / GROWTH if self.surface == "growing" else 1.0
        off = self.noise * (COMMON * standard_normal_result + math.sqrt(1 - COMMON**2) * standard_normal_value * grown)
        return math.exp(min(height + off, 300.0))

    def advantage(self, of: Place, others: Sequence[Place]) -> tuple[float, float]:
        best = min(self.height(*other) for other in others)
        share = max(0.0, -math.expm1(best - self.height(*of)))
        return share, share

    def regret(self, at: Place) -> float:
        return max(0.0, math.expm1(self.height(*at) - self.least))

    def _rng(self, purpose: str, *position: int | str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, purpose, self.number, *position))
