"""Worlds whose truth is known, for simulated sweeps: surfaces that are drawn at random, with noise.

Places are steps of the lattice from the point that a sweep asks for, (lr, wd). Seeds are counted from 0, in the order
in which a point gets them. True are, of a point, the log of its loss, or its accuracy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from statistics import NormalDist
from typing import Literal, Protocol

import numpy as np

from ettsweep.errors import unknown_name
from ettsweep.seeding import derive_seed

Place = tuple[int, int]

HALF = 4
"""Steps from the centre to the border of the 9 x 9 places whose best a candidate is held to; surfaces go on beyond."""

COMMON = 0.6
"""Share of the noise that a seed adds to all points alike."""

UNEVEN = 5.0
"""Ratio of the largest noise of a run to the smallest, where it depends on lr or wd."""

EDGE_SPREAD = 0.3
"""By how many steps of lr the edges of seeds differ: standard deviation."""

SPIKE, SPIKES = math.log(1.3), 0.05
"""Log loss that a spike costs, and the share of runs that have one."""

Tails = Literal["normal", "heavy"]


class World(Protocol):
    """What a simulated sweep finds."""

    def score(self, at: Place, seed: int) -> float | None:
        """Return the score of a run; None where it diverges."""

    def advantage(self, of: Place, others: Sequence[Place]) -> float:
        """Return by how much the best of others is better in truth, as a share of the loss or in accuracy; at least 0."""

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


def _one(lr: float, wd: float) -> float:
    return 1.0


@dataclass(frozen=True)
class Landscape:
    """The log loss of runs, and how seeds scatter around it.

    Attributes:
        height: the log loss in truth: its mean over seeds.
        spread: by how much the noise of a run is larger there than stated.
        draw_seed: draws the log loss as one seed has it, before the noise of each run; None where all have `height`.
        spikes: share of runs that end `SPIKE` worse.
    """

    height: Height
    spread: Height = _one
    draw_seed: Callable[[np.random.Generator], Height] | None = None
    spikes: float = 0.0


def _ridge(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A valley along lr wd = const, twenty times flatter along it than across."""

    def height(lr: float, wd: float) -> float:
        u, v = lr - basin.lr, wd - basin.wd
        return (basin.a * (u + v) ** 2 + 0.05 * basin.b * (u - v) ** 2) / 2

    return Landscape(height)


def _plateau(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl whose bottom, 5% deep, is all but flat."""
    return Landscape(lambda lr, wd: max(basin.at(lr, wd) - 0.05, 0.0) + 0.002 * basin.at(lr, wd))


def _cliff(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl with a step of the loss within two steps of lr above its bottom."""
    edge, fall = basin.lr + rng.uniform(0.6, 1.6), rng.uniform(0.5, 2.0)
    return Landscape(lambda lr, wd: basin.at(lr, wd) + fall * (lr > edge))


def _brink(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl with a step of the loss within one step of lr above its bottom, where the noise is five times as large."""
    edge, fall = basin.lr + rng.uniform(0.0, 1.0), rng.uniform(0.5, 2.0)
    last = math.floor(edge)
    return Landscape(lambda lr, wd: basin.at(lr, wd) + fall * (lr > edge), lambda lr, wd: UNEVEN if lr == last else 1.0)


def _edge(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl with a step of the loss above its bottom that each seed takes at another lr."""
    edge, fall = basin.lr + rng.uniform(0.6, 1.6), rng.uniform(0.5, 2.0)

    def draw_seed(seed_rng: np.random.Generator) -> Height:
        own = edge + EDGE_SPREAD * seed_rng.standard_normal()
        return lambda lr, wd: basin.at(lr, wd) + fall * (lr > own)

    below = NormalDist(edge, EDGE_SPREAD).cdf
    return Landscape(lambda lr, wd: basin.at(lr, wd) + fall * below(lr), draw_seed=draw_seed)


def _stability(basin: Basin, rng: np.random.Generator, spread: float) -> Landscape:
    """A loss that falls with lr until training blows up, for each seed at another lr; some runs have a spike."""
    edge, slope, fall = rng.uniform(-1.0, 1.0), rng.uniform(0.02, 0.12), math.log(rng.uniform(1.35, 3.3))
    normal = NormalDist(edge, spread)

    def draw_seed(seed_rng: np.random.Generator) -> Height:
        own = edge + spread * seed_rng.standard_normal()
        return lambda lr, wd: basin.b * (wd - basin.wd) ** 2 - slope * min(lr, own) + (fall if lr > own else 0.0)

    def height(lr: float, wd: float) -> float:
        # The mean of min(lr, own) over normal edges.
        mean = lr - (lr - edge) * normal.cdf(lr) - spread**2 * normal.pdf(lr)
        return basin.b * (wd - basin.wd) ** 2 - slope * mean + fall * normal.cdf(lr)

    return Landscape(height, draw_seed=draw_seed, spikes=SPIKES)


def _several(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl with three narrow dips somewhere in it."""
    ranges = (-3.5, 3.5), (-3.5, 3.5), (0.03, 0.15), (0.6, 1.5)
    dips = [tuple(rng.uniform(*ends) for ends in ranges) for _ in range(3)]

    def height(lr: float, wd: float) -> float:
        apart = [((lr - x) ** 2 + (wd - y) ** 2) / (2 * w * w) for x, y, _, w in dips]
        return basin.at(lr, wd) - sum(dip[2] * math.exp(-a) for dip, a in zip(dips, apart, strict=True))

    return Landscape(height)


def _rough(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A flatter bowl, each point of which is off by something of its own, 3%."""
    root = int(rng.integers(2**62))

    @cache
    def off(lr: float, wd: float) -> float:
        return float(np.random.default_rng(derive_seed(root, "rough", f"{lr:g}", f"{wd:g}")).normal(0, 0.03))

    return Landscape(lambda lr, wd: 0.5 * basin.at(lr, wd) + off(lr, wd))


def _ripples(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl with waves of 2.5% across it, two to four steps long."""
    length, angle, phase = rng.uniform(2.0, 4.0), rng.uniform(0, math.pi), rng.uniform(0, 2 * math.pi)
    x, y = (2 * math.pi / length * f(angle) for f in (math.cos, math.sin))
    return Landscape(lambda lr, wd: basin.at(lr, wd) + 0.025 * math.sin(x * lr + y * wd + phase))


def _growing(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl whose noise grows with the loss: it has doubled where a point is worse by 0.3, in log."""
    # Its lowest point may lie between two places: the noise there is hardly less.
    return Landscape(basin.at, lambda lr, wd: 1 + basin.at(lr, wd) / 0.3)


def _uneven(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl whose noise is five times as large two steps above the centre, along lr or along wd, as two steps below."""
    along = int(rng.integers(2))
    return Landscape(basin.at, lambda *at: UNEVEN ** (min(max(at[along], -2), 2) / 4))


def _tilting(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl that each seed tilts, in a direction of its own: by 0.08 of a log loss a step, standard deviation."""

    def draw_seed(seed_rng: np.random.Generator) -> Height:
        tilt, angle = 0.08 * seed_rng.standard_normal(), seed_rng.uniform(0, math.pi)
        x, y = tilt * math.cos(angle), tilt * math.sin(angle)
        return lambda lr, wd: basin.at(lr, wd) + x * lr + y * wd

    return Landscape(basin.at, draw_seed=draw_seed)


def _shifting(basin: Basin, rng: np.random.Generator) -> Landscape:
    """A bowl that each seed shifts by half a step, in one of eight directions."""
    shifts = [(0.5 * math.cos(math.pi * k / 4), 0.5 * math.sin(math.pi * k / 4)) for k in range(8)]

    def draw_seed(seed_rng: np.random.Generator) -> Height:
        x, y = shifts[seed_rng.integers(len(shifts))]
        return lambda lr, wd: basin.at(lr - x, wd - y)

    return Landscape(lambda lr, wd: sum(basin.at(lr - x, wd - y) for x, y in shifts) / len(shifts), draw_seed=draw_seed)


SURFACES: dict[str, Callable[[Basin, np.random.Generator], Landscape]] = {
    "bowl": lambda basin, rng: Landscape(basin.at),
    "ridge": _ridge,
    "plateau": _plateau,
    "cliff": _cliff,
    "several": _several,
    "rough": _rough,
    "ripples": _ripples,
    "growing": _growing,
    "uneven": _uneven,
    "brink": _brink,
    "edge": _edge,
    "tilting": _tilting,
    "shifting": _shifting,
    "sharp stability": partial(_stability, spread=0.15),
    "stability": partial(_stability, spread=0.35),
    "wide stability": partial(_stability, spread=0.6),
}
"""What draws a landscape, by its name."""


@dataclass(frozen=True)
class Made:
    """A surface drawn at random, and noise on it.

    Attributes:
        surface: its kind.
        noise: standard deviation of one run, as a share of the loss: of its log.
        tails: of the noise; heavy: Student's t of 3 degrees of freedom.
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
    def landscape(self) -> Landscape:
        rng = self._rng("surface", self.surface)
        lr, wd = rng.uniform(-1.2, 1.2, 2)
        a, b = rng.uniform(0.03, 0.12, 2)
        return SURFACES[self.surface](Basin(lr, wd, a, b, rng.uniform(-0.9, 0.9)), rng)

    @property
    def height(self) -> Height:
        """The log loss at a place, in truth."""
        return self.landscape.height

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
        landscape = self.landscape
        common = self._rng("common", seed).standard_normal()
        rng = self._rng("own", seed, *at)
        own = rng.standard_normal() if self.tails == "normal" else rng.standard_t(3) / math.sqrt(3)
        height = landscape.draw_seed(self._rng("seed", seed)) if landscape.draw_seed else landscape.height
        off = self.noise * (COMMON * common + math.sqrt(1 - COMMON**2) * own * landscape.spread(*at))
        if landscape.spikes and self._rng("spike", seed, *at).random() < landscape.spikes:
            off += SPIKE
        return math.exp(min(height(*at) + off, 300.0))

    def advantage(self, of: Place, others: Sequence[Place]) -> float:
        best = min(self.height(*other) for other in others)
        return max(0.0, -math.expm1(best - self.height(*of)))

    def regret(self, at: Place) -> float:
        return max(0.0, math.expm1(self.height(*at) - self.least))

    def _rng(self, purpose: str, *position: int | str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, purpose, self.number, *position))
