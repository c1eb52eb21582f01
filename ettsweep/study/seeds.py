"""Seeds by purpose: those of the sweep, those of racing, and fresh ones that never enter a verdict."""

from itertools import chain, count, islice

from ettsweep.runs.spec import MAX_SEED
from ettsweep.study.study import Study

RACING_SEEDS = range(1_000_000, 1_001_000)
"""Seeds of racing, far above those that people request. All sweeps use one range, so they share these runs."""


def is_verdict_seed(study: Study, seed: int) -> bool:
    """`True` if scores of a seed enter the bound: it is one of the sweep's or of racing."""
    return seed in study.seeds or seed in RACING_SEEDS


def seed_order(study: Study) -> list[int]:
    """Return seeds in the order in which a point gets them: the sweep's, then those of racing."""
    return [*study.seeds, *(seed for seed in RACING_SEEDS if seed not in study.seeds)]


def fresh_seeds(study: Study, number: int) -> list[int]:
    """Return seeds for reruns of an optimum: the next ones outside the sweep's and those of racing."""
    first = max(study.seeds) + 1
    # Beyond the largest seed, count from 0 again: lower seeds may be free.
    free = (seed for seed in chain(range(first, MAX_SEED + 1), count()) if not is_verdict_seed(study, seed))
    return list(islice(free, number))
