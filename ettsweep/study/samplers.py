"""Samplers by name: `surface`, and those of Optuna.

Each round, a sampler of Optuna gets a new in-memory study: points with scores are finished trials, points under way are
running ones. No state of a sampler is stored: it follows from the runs on disk.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ettsweep.errors import unknown_name
from ettsweep.extras import check_installed
from ettsweep.seeding import derive_seed
from ettsweep.study.budget import MAX_TRIALS
from ettsweep.study.surface_sampler import LatticePosition, Observations, Sampler, suggest_by_surface

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

OPTUNA = ("tpe", "gp", "cmaes", "random", "qmc")

SAMPLERS = ("surface", *OPTUNA)

DEFAULT_TRIALS = 30
"""Points per study that a sampler of Optuna suggests by default; `surface` stops by itself."""

MAX_ASKS = 10
"""Attempts to get an unused position from a sampler, before the nearest free one is taken instead."""

CMAES_REPEATS = 10
"""Repeats of finished trials as CMA-ES's source: it starts from the best tenth, and fails if that is empty."""


def resolve_trials(name: str, trials: int | None) -> int:
    """Return how many points a sampler may suggest: `trials` if given, else the sampler's default."""
    return trials or (DEFAULT_TRIALS if name in OPTUNA else MAX_TRIALS)


def make_sampler(name: str, seed: int = 0) -> Sampler:
    """Return a sampler by name.

    Args:
        name: one of `SAMPLERS`.
        seed: seed of all random draws of Optuna's samplers.

    Raises:
        InputError: the name is unknown.
        PackageMissingError: the sampler needs a package that is not installed.
    """
    if name == "surface":
        return suggest_by_surface
    if name not in OPTUNA:
        raise unknown_name("sampler", name, SAMPLERS)
    check_installed(f"--sampler {name}", *{"gp": ("torch",), "cmaes": ("cmaes",)}.get(name, ()))
    return partial(_ask_optuna, name, seed)


def _ask_optuna(name: str, seed: int, observations: Observations, limit: int) -> list[LatticePosition]:
    """Return up to `limit` free positions that a sampler of Optuna suggests, the start first."""
    import optuna
    from optuna.distributions import IntDistribution
    from optuna.trial import TrialState, create_trial

    ends = enumerate(zip(observations.low, observations.high, strict=True))
    space: dict[str, BaseDistribution] = {f"axis {k}": IntDistribution(low, high) for k, (low, high) in ends}

    def trial(position: LatticePosition, value: float | None) -> "FrozenTrial":
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        return create_trial(
            state=state, value=value, params=dict(zip(space, position, strict=True)), distributions=dict(space)
        )

    chosen = [] if observations.start in observations.unavailable else [observations.start]
    n_skipped = len(observations.unavailable) if name == "qmc" else 0  # QMC repeats its one sequence from the start
    with quiet_optuna():
        finished = [
            trial(position, value) for position, value in observations.values.items() if observations.contains(position)
        ]
        under_way = [
            trial(position, None) for position in (*filter(observations.contains, observations.pending), *chosen)
        ]
        study = optuna.create_study(sampler=_optuna_sampler(name, seed, len(observations.unavailable), finished))
        # Running trials matter: TPE counts them as bad (constant liar), so suggestions spread out.
        study.add_trials([*finished, *under_way])
        # No more than are free, or `_nearest_free` would find none.
        while len(chosen) < min(limit, len(observations.free)):
            for _ in range(MAX_ASKS + n_skipped):  # these trials stay running, so the sampler sees its own suggestions
                params = study.ask(space).params
                position = tuple(int(params[axis]) for axis in space)
                if position not in observations.unavailable and position not in chosen:
                    break
            else:
                position = _nearest_free(position, (free for free in observations.free if free not in chosen))
            chosen.append(position)
    return chosen


def _optuna_sampler(name: str, seed: int, n_unavailable: int, finished: "list[FrozenTrial]") -> "BaseSampler":
    """Return a sampler of Optuna for a round, seeded by the number of positions used so far."""
    from optuna import samplers

    # Optuna seeds NumPy's RandomState, which takes 32 bits.
    round_seed = derive_seed(seed, name, n_unavailable) % 2**32
    match name:
        case "tpe":
            return samplers.TPESampler(seed=round_seed, multivariate=True, constant_liar=True)
        case "gp":
            return samplers.GPSampler(seed=round_seed)
        case "cmaes":
            # with_margin: on integers, CMA-ES may else settle on a single value.
            source = CMAES_REPEATS * finished or None
            return samplers.CmaEsSampler(
                seed=round_seed, with_margin=True, warn_independent_sampling=False, source_trials=source
            )
        case "random":
            return samplers.RandomSampler(seed=round_seed)
        case _:  # quasi-Monte Carlo: one sequence for all rounds, or it would not fill the space evenly
            sequence_seed = derive_seed(seed, name) % 2**32
            return samplers.QMCSampler(seed=sequence_seed, scramble=True, warn_independent_sampling=False)


def _nearest_free(position: LatticePosition, free: Iterable[LatticePosition]) -> LatticePosition:
    return min(free, key=lambda other: sum((a - b) ** 2 for a, b in zip(position, other, strict=True)))


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log of studies and trials, and its warnings about experimental features."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
