"""Proposers by name: the surface's own, and Optuna's samplers, which are asked anew whenever a place is to be named.

Each time a study in memory is told all that is known. So what is on disk is the truth, and nothing has to be kept of a
sampler. Optuna's name places twice: one that is known is told its score again, at no cost, and the next is asked for.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ettsweep.errors import InputError, unknown_name
from ettsweep.seeding import derive_seed
from ettsweep.sweep.proposers import Known, Place, Proposer, surface
from ettsweep.sweep.verdict import MOST

if TYPE_CHECKING:
    import optuna

ASKED_AGAIN = 10
"""Times that a sampler may name places that are known, before the nearest other one is taken instead."""


def _tpe(known: Known, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _gp(known: Known, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed)


def _cmaes(known: Known, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(seed=seed, with_margin=True, warn_independent_sampling=False)


def _random(known: Known, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _qmc(known: Known, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import QMCSampler

    return QMCSampler(scramble=True, seed=seed, warn_independent_sampling=False, warn_asynchronous_seeding=False)


OPTUNA: dict[str, Callable[[Known, int], "optuna.samplers.BaseSampler"]] = {
    "tpe": _tpe,
    "gp": _gp,
    "cmaes": _cmaes,
    "random": _random,
    "qmc": _qmc,
}

SAMPLERS = ("surface", *OPTUNA)

REPLAYED = ("cmaes", "qmc")
"""Those that go by how often they were asked: they are asked from the first place on, and told what is known."""

TRIALS = 30
"""Points that a sampler of Optuna's may name where nobody says how many; the surface stops by itself."""

NEEDS = {"cmaes": "cmaes"}
"""Packages that Optuna needs for a sampler, beyond those that are there; extras of these names have them."""


def trials_for(name: str, stated: int | None) -> int:
    """Return how many points a proposer may name: as many as somebody has stated, else its default."""
    return stated or (TRIALS if name in OPTUNA else MOST)


def proposer(name: str, seed: int = 0) -> Proposer:
    """Return the proposer of a name; `seed` is that of all draws of Optuna's.

    Raises:
        InputError: there is none, or it needs a package that is missing.
    """
    if name == "surface":
        return surface
    if name not in OPTUNA:
        raise unknown_name("sampler", name, SAMPLERS)
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        raise InputError(f"--sampler {name}: it needs {package}: pip install 'ettsweep[{name}]'")
    return partial(_ask, name, seed)


def _ask(name: str, seed: int, known: Known, number: int) -> list[Place]:
    """Return the next free places that one of Optuna's samplers names."""
    chosen = [known.start] if known.start not in known.taken and number > 0 else []
    with quiet():
        study = _study(name, derive_seed(seed, name, *(() if name in REPLAYED else (len(known.taken),))), known)
        while len(chosen) < min(number, len(known.free)):
            chosen.append(_next(study, known, chosen))
    return chosen


def _next(study: "optuna.Study", known: Known, chosen: list[Place]) -> Place:
    """Return a free place that has not been chosen, as the sampler names one."""
    from optuna.trial import TrialState

    space = _space(known)
    for _ in range(ASKED_AGAIN + len(known.taken)):
        trial = study.ask(space)
        place = tuple(int(trial.params[name]) for name in space)
        if place not in known.taken and place not in chosen:
            return place  # its trial goes on, as the sampler is to see it
        if place in known.values:
            study.tell(trial, known.values[place])
        else:
            study.tell(trial, state=TrialState.FAIL)
    free = [other for other in known.free if other not in chosen]
    return min(free, key=lambda other: sum((a - b) ** 2 for a, b in zip(place, other, strict=True)))


def _study(name: str, seed: int, known: Known) -> "optuna.Study":
    """Return a study in memory of what is known."""
    import optuna
    from optuna.trial import TrialState, create_trial

    study = optuna.create_study(sampler=OPTUNA[name](known, seed % 2**32))
    if name in REPLAYED:
        return study
    space = _space(known)
    for place, value in known.values.items():
        if known.holds(place):
            params = dict(zip(space, place, strict=True))
            study.add_trial(create_trial(value=value, params=params, distributions=dict(space)))
    for place in known.awaited:
        params = dict(zip(space, place, strict=True))
        study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=dict(space)))
    return study


def _names(known: Known) -> list[str]:
    return [f"axis {k}" for k in range(len(known.low))]


def _space(known: Known) -> "dict[str, optuna.distributions.BaseDistribution]":
    from optuna.distributions import IntDistribution

    ends = zip(_names(known), known.low, known.high, strict=True)
    return {name: IntDistribution(low, high) for name, low, high in ends}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from telling of each study and trial, and of what is experimental in it."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
