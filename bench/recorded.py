"""Recorded lattices, for simulated sweeps: scores of every point over the same seeds.

Shapes: L values of lr, W of wd, S seeds, Q places.
"""

import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from bench.worlds import Place
from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.files import loads
from ettsweep.runs.spec import MAX_SEED
from ettsweep.seeding import derive_seed
from ettsweep.study.surface import Array

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

    def seeds(self, limit: int | None = None) -> int:
        """Return how many seeds a point can get, or that many where that is less."""
        recorded = int(self.y_LWS.shape[2])
        return recorded if limit is None else min(recorded, limit)

    @cached_property
    def truth(self) -> Array:
        """Log losses, or accuracies with their sign turned: less is better, [L, W, S]."""
        return np.log(self.y_LWS) if self.metric == "best_loss" else -self.y_LWS


def read_table(path: Path) -> Table:
    """Read a recorded lattice: JSON, maybe compressed by gzip, with `columns`, their names, and `rows`.

    Raises:
        InputError: it is none, a point lacks a seed that another has, or a score is no finite number.
    """
    try:
        data = path.read_bytes()
        content = loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        names, rows = list(content["columns"]), list(content["rows"])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, EOFError):
        raise InputError(f"{path}: a JSON object with `columns`, names, and `rows`, lists, is expected") from None
    metric = next((name for name in METRICS if name in names), METRICS[0])
    cases = ("log2_lr", "log2_wd", "seed", metric)
    if lacking := [name for name in cases if name not in names]:
        text = f"{', '.join(cases[:3])} and {' or '.join(METRICS)} are needed"
        raise InputError(f"{path}: columns lack {', '.join(lacking)}; {text}")
    if not rows:
        raise InputError(f"{path}: it has no rows")
    at = [names.index(name) for name in cases]
    scores: dict[tuple[float, float, int], float] = {}
    for number, row in enumerate(rows, 1):
        values = [row[k] for k in at] if isinstance(row, list) and len(row) == len(names) else []
        if not values or not all(type(v) in (int, float) and math.isfinite(v) for v in values):
            raise InputError(f"{path}: row {number}: {len(names)} finite numbers are expected, got {row}")
        lr, wd, seed, score = values
        if metric == "best_loss" and score <= 0:
            raise InputError(f"{path}: row {number}: a loss above 0 is expected, got {score:g}")
        if not (float(seed).is_integer() and 0 <= seed <= MAX_SEED):
            raise InputError(f"{path}: row {number}: a seed is expected, got {seed:g}")
        key = round(lr, 6), round(wd, 6), int(seed)
        if key in scores:
            raise InputError(
                f"{path}: row {number}: there is one of log2_lr {lr:g}, log2_wd {wd:g}, seed {seed:g} already"
            )
        scores[key] = score
    return _lattice(path, metric, scores)


def _lattice(path: Path, metric: str, scores: Mapping[tuple[float, float, int], float]) -> Table:
    """Return scores as a table, if they are of a whole lattice."""
    lrs, wds = (tuple(sorted({key[k] for key in scores})) for k in range(2))
    seeds = sorted({seed for _, _, seed in scores})
    for name, values in (("log2_lr", lrs), ("log2_wd", wds)):
        if len({round(b - a, 5) for a, b in pairwise(values)}) > 1:
            text = ", ".join(f"{value:g}" for value in values)
            raise InputError(f"{path}: {name}: values equally far from each other are expected, got {text}")
    if len(lrs) == len(wds) == 1:
        raise InputError(f"{path}: it has a single point, ({lrs[0]:g}, {wds[0]:g}); a lattice is needed")
    product_result = list(product(lrs, wds, seeds))
    if holes := [key for key in product_result if key not in scores]:
        lr, wd, seed = holes[0]
        text = f"{len(lrs)} x {len(wds)} points with {format_count(len(seeds), 'seed')} have {format_count(len(holes), 'hole')}"
        raise InputError(f"{path}: {text}; the first is log2_lr {lr:g}, log2_wd {wd:g}, seed {seed}")
    return Table(
        metric, lrs, wds, np.reshape([scores[key] for key in product_result], (len(lrs), len(wds), len(seeds)))
    )


@dataclass(frozen=True)
class Recorded:
    """A recorded lattice, whose seeds come in an order drawn at random, none twice.

    Its truth is the mean over all its seeds: the geometric one of losses. Beyond its border runs diverge: a made-up
    score there, however bad, would be a cliff that the fit would have to explain.
    """

    table: Table
    number: int = 0
    seed: int = 0

    @cached_property
    def _order(self) -> list[int]:
        rng = np.random.default_rng(derive_seed(self.seed, "order", self.number))
        return [int(s) for s in rng.permutation(self.table.y_LWS.shape[2])]

    def score(self, at: Place, seed: int) -> float | None:
        location = self._place(at)
        return None if location is None else float(self.table.y_LWS[(*location, self._order[seed])])

    def advantage(self, of: Place, others: Sequence[Place]) -> tuple[float, float]:
        """Return it, and the same less one standard error of the difference of two means of the table."""
        local, existing = self._place(of), [p for p in map(self._place, others) if p is not None]
        if local is None or not existing:
            return 0.0, 0.0
        ahead_QS = np.array([self.table.truth[local] - self.table.truth[p] for p in existing])
        error_Q = ahead_QS.std(1, ddof=1) / math.sqrt(ahead_QS.shape[1])
        return self._share(ahead_QS.mean(1).max()), self._share((ahead_QS.mean(1) - error_Q).max())

    def regret(self, at: Place) -> float:
        f_LW, location = self.table.truth.mean(2), self._place(at)
        float_result = float(f_LW[location] - f_LW.min()) if location else math.inf
        return math.expm1(float_result) if self.table.metric == "best_loss" else float_result

    @property
    def ends(self) -> tuple[Place, Place]:
        (i, j), (lrs, wds) = self.table.centre, self.table.y_LWS.shape[:2]
        return (-i, -j), (lrs - 1 - i, wds - 1 - j)

    @cached_property
    def best(self) -> Place:
        f_LW, (i, j) = self.table.truth.mean(2), self.table.centre
        lr, wd = np.unravel_index(int(np.argmin(f_LW)), f_LW.shape)
        return int(lr) - i, int(wd) - j

    def _share(self, difference: float) -> float:
        return max(0.0, -math.expm1(-difference) if self.table.metric == "best_loss" else float(difference))

    def _place(self, at: Place) -> Place | None:
        (i, j), (lrs, wds) = self.table.centre, self.table.y_LWS.shape[:2]
        lr, wd = i + at[0], j + at[1]
        return (lr, wd) if 0 <= lr < lrs and 0 <= wd < wds else None
