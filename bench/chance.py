"""Which shares of many simulated draws are less than stated, beyond what chance explains."""

from collections.abc import Iterable
from typing import TypeVar

from scipy.stats import binom

DOUBT = 0.01
"""Probability that any of the shares of a table is called too small although none is."""

Item = TypeVar("Item")


def too_small(tests: Iterable[tuple[int, int, float, Item]]) -> list[Item]:
    """Return the items whose number of successes, of so many draws, is too small for the stated share (Holm)."""
    found, by_p = [], sorted(((float(binom.cdf(k, n, p)), item) for k, n, p, item in tests), key=lambda pair: pair[0])
    for rank, (p_value, item) in enumerate(by_p):
        if p_value >= DOUBT / (len(by_p) - rank):
            break
        found.append(item)
    return found
