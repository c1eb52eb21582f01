"""Which shares of many simulated draws are less than stated, beyond what chance explains."""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from scipy.stats import binom

DOUBT = 0.01
"""Probability that any of the shares of a table is called too small although none is."""

Item = TypeVar("Item")


def too_small(tests: Iterable[tuple[int, int, float, Item]]) -> list[Item]:
    """Return the items whose number of successes, of so many draws, is too small for the stated share (Holm)."""
    tests = list(tests)
    p_values = binom.cdf(*np.transpose([test[:3] for test in tests])) if tests else np.array([])
    found = []
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] >= DOUBT / (len(tests) - rank):
            break
        found.append(tests[index][3])
    return found
