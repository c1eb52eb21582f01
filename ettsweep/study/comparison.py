"""Two lists of scores: is one better, by how much, and how many more seeds would tell?"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import norm, t

from ettsweep.errors import InputError

Scores = Mapping[int, float | None]
"""Score by seed, or by number where there are no seeds; None of a run that diverged."""

MIN_SCORES = 2
"""Fewest scores of a list, or pairs: less says nothing of chance."""

POWER = 0.75
"""Share of cases in which as many more seeds as are said suffice, if the difference is what it seems."""

MAX_SEEDS = 10_000
"""Seeds beyond which nobody is told a number."""


@dataclass(frozen=True)
class Comparison:
    """How much better one list is than another.

    Attributes:
        verdict: of the first list.
        advantage: by how much its mean is better.
        low, high: the interval of the advantage, at the confidence.
        pairs: number of seeds that both have, by which they were compared; 0 where the lists were compared as they are.
        more_seeds: further seeds of each that would tell if the difference is what it seems; None if it is told, or
            where there would be too many.
        diverged: number of diverged runs of each, which were left out.
    """

    verdict: Literal["better", "worse", "unresolved"]
    advantage: float
    low: float
    high: float
    confidence: float
    pairs: int
    more_seeds: int | None
    diverged: tuple[int, int]


def compare(first: Scores, second: Scores, mode: Literal["min", "max"], confidence: float, paired: bool) -> Comparison:
    """Compare two lists of scores: by the differences of common seeds, or else by Welch's test.

    A list with diverged runs is called better by nobody: they are left out, and a diverged run ranks last.

    Args:
        first: is said to be better or worse.
        second: it is compared with.
        mode: whether lower or higher is better.
        confidence: of the interval, two-sided.
        paired: whether equal keys are equal seeds.

    Raises:
        InputError: fewer than two scores.
    """
    sign = -1.0 if mode == "min" else 1.0
    lists = [{seed: sign * score for seed, score in each.items() if score is not None} for each in (first, second)]
    diverged = len(first) - len(lists[0]), len(second) - len(lists[1])
    if min(map(len, lists)) < MIN_SCORES:
        raise InputError("at least two scores of each are needed, to tell a difference from luck")
    common = sorted(lists[0].keys() & lists[1].keys()) if paired else []
    # Fewer pairs say less than the lists themselves, whatever seeds have in common.
    is_paired = len(common) >= max(MIN_SCORES, min(map(len, lists)) / 2)
    if is_paired:
        samples = [[lists[0][seed] - lists[1][seed] for seed in common]]
    else:
        samples = [list(each.values()) for each in lists]
    advantage = fmean(samples[0]) - (0.0 if is_paired else fmean(samples[1]))
    half = _half_width(samples, [len(each) for each in samples], confidence)
    low, high = advantage - half, advantage + half
    verdict: Literal["better", "worse", "unresolved"] = "unresolved"
    if low > 0 and not diverged[0]:
        verdict = "better"
    elif high < 0 and not diverged[1]:
        verdict = "worse"
    more = None if verdict != "unresolved" or low > 0 or high < 0 else _more_seeds(samples, advantage, confidence)
    return Comparison(verdict, advantage, low, high, confidence, len(common) * is_paired, more, diverged)


def summary(name: str, scores: Scores) -> dict[str, object]:
    """Return a row on a list: its mean, its standard deviation and its number of scores."""
    values = [score for score in scores.values() if score is not None]
    return {"scores": name, "mean": fmean(values), "std": stdev(values), "runs": len(values)}


def _half_width(samples: Sequence[Sequence[float]], counts: Sequence[int], confidence: float) -> float:
    """Return half the width of the interval, as if each sample had so many values of its own spread."""
    error, dof = _error(samples, counts)
    return error * float(t.ppf((1 + confidence) / 2, dof)) if error else 0.0


def _error(samples: Sequence[Sequence[float]], counts: Sequence[int]) -> tuple[float, float]:
    """Return the standard error of the advantage, and its degrees of freedom (Welch-Satterthwaite)."""
    squares = [stdev(each) ** 2 / n for each, n in zip(samples, counts, strict=True)]
    spread = sum(square**2 / (n - 1) for square, n in zip(squares, counts, strict=True))
    return math.sqrt(sum(squares)), sum(squares) ** 2 / spread if spread else math.inf


def _more_seeds(samples: Sequence[Sequence[float]], advantage: float, confidence: float) -> int | None:
    """Return how many more seeds of each tell in `POWER` of cases; None beyond `MAX_SEEDS`."""

    def tells(more: int) -> bool:
        counts = [len(each) + more for each in samples]
        slack = float(norm.ppf(POWER)) * _error(samples, counts)[0]
        return _half_width(samples, counts, confidence) + slack < abs(advantage)

    # More seeds tell the more surely: bisection finds the fewest.
    more = bisect_left(range(MAX_SEEDS + 1), True, lo=1, key=tells)
    return more if more <= MAX_SEEDS else None
