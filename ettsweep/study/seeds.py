"""Whose seeds are whose: those of the sweep, those of racing, and fresh ones that never move a verdict."""

from itertools import chain, count, islice

from ettsweep.runs.spec import MAX_SEED
from ettsweep.study.study import Study

RACING = range(1_000_000, 1_001_000)
"""Seeds of further runs that a verdict asks for; one range for all sweeps, so that they share these runs too."""


def counts(study: Study, seed: int) -> bool:
    """Say whether the scores of a seed are among those that a bound is found from."""
    return seed in study.seeds or seed in RACING


def in_turn(study: Study) -> list[int]:
    """Return the seeds that a point gets one after the other: the search's, then those of racing."""
    return [*study.seeds, *(seed for seed in RACING if seed not in study.seeds)]


def fresh_seeds(study: Study, number: int) -> list[int]:
    """Return seeds for reruns of an optimum: the next ones, disjoint from the search's and from those of racing."""
    first = max(study.seeds) + 1
    free = (seed for seed in chain(range(first, MAX_SEED + 1), count()) if not counts(study, seed))
    return list(islice(free, number))
