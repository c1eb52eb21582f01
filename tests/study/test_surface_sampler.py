"""Proposers: no place twice, none beyond the box, and where a run is expected to gain most."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from ettsweep import extras
from ettsweep.errors import InputError, PackageMissingError
from ettsweep.study.posterior import fit_scores
from ettsweep.study.samplers import DEFAULT_TRIALS, SAMPLERS, make_sampler, resolve_trials
from ettsweep.study.surface import Position
from ettsweep.study.surface_sampler import LatticePosition, Observations, _Design
from ettsweep.trainer.tasks.registry import LOWEST_LOSS

MARGIN = 0.02


def bowl(location: LatticePosition) -> float:
    """A loss with its optimum at (2, -1)."""
    return float(np.exp(0.05 * (location[0] - 2) ** 2 + 0.08 * (sum(location[1:]) + 1) ** 2))


def known(
    loss: Callable[[LatticePosition], float] = bowl,
    selected: tuple[LatticePosition, ...] = (),
    half: tuple[int, ...] = (3, 3),
    start: LatticePosition = (0, 0),
    diverged: tuple[LatticePosition, ...] = (),
    awaited: tuple[LatticePosition, ...] = (),
) -> Observations:
    """Return what is known once the named places have their scores, but for those that diverged or are awaited."""
    scores = {location: {0: loss(location)} for location in selected if location not in (*diverged, *awaited)}
    low = tuple(-h for h in half)
    return Observations(low, half, start, scores, diverged, awaited, {*selected}, MARGIN, LOWEST_LOSS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "gp" else []) for name in SAMPLERS]
)
def test_each_place_of_the_box_is_named_once_at_most(name: str) -> None:
    propose, start = make_sampler(name), (0, 0)
    collected: tuple[LatticePosition, ...] = ()
    box = set(product(range(-1, 2), range(-2, 3)))
    while news := propose(known(selected=collected, half=(1, 2), start=start), 2):
        assert len(news) <= 2
        collected += tuple(news)
        assert len(set(collected)) == len(collected)
    assert collected[0] == start
    assert set(collected) <= box
    assert name == "surface" or set(collected) == box


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "gp"])
def test_a_sampler_comes_near_the_optimum_of_a_bowl_within_its_trials(name: str) -> None:
    """From a corner of 81 places, five steps off. One that goes by scores names places that are nearer than the rest."""
    propose, box = make_sampler(name), set(product(range(-4, 5), repeat=2))
    collected: tuple[LatticePosition, ...] = ()
    trials = min(DEFAULT_TRIALS, resolve_trials(name, None))
    while news := propose(known(selected=collected, half=(4, 4), start=(-3, 3)), 4)[: trials - len(collected)]:
        collected += tuple(news)
    apart = {location: max(abs(location[0] - 2), abs(location[1] + 1)) for location in box}
    assert len(set(collected)) == len(collected) <= DEFAULT_TRIALS
    assert min(apart[location] for location in collected) <= 1
    if name in ("tpe", "cmaes"):
        assert fmean(apart[location] for location in collected[10:]) < 0.85 * fmean(apart.values())


def suggestions() -> list[list[LatticePosition]]:
    """Return what each sampler makes of five places: one of them diverged, another is awaited."""
    places = ((0, 0), (1, 1), (-2, 0), (2, -2), (0, 3))
    observations = known(selected=places, diverged=((1, 1),), awaited=((0, 3),))
    return [make_sampler(name, 5)(observations, 3) for name in SAMPLERS]


@pytest.mark.slow
def test_samplers_name_the_same_in_another_process() -> None:
    code = "import test_surface_sampler as test; print(test.suggestions())"
    paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    environ = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert completed.stdout == f"{suggestions()}\n"


def test_what_a_place_is_expected_to_gain_is_that_of_draws_from_the_posterior() -> None:
    rng = np.random.default_rng(0)
    places = list(product(range(-2, 3), repeat=2))[::2]
    scores: dict[Position, dict[int, float]] = {
        location: {0: bowl(location) * float(np.exp(rng.normal(0, 0.03)))} for location in places
    }
    fitted, _ = fit_scores(scores, LOWEST_LOSS) or (None, 0)
    assert fitted is not None
    free = [(1, -2), (2, -1), (2, 0), (1, 0), (4, -4)]
    design = _Design(fitted, free)
    surface = design._surface
    best = int(np.argmin(surface.mean_P[: len(places)]))
    draws = np.random.default_rng(0).multivariate_normal(surface.mean_P, surface.cov_PP, 200_000)
    ahead = draws[:, [best]] - draws[:, len(places) :]
    assert design.expected_gains() == pytest.approx(np.maximum(ahead, 0).mean(0).tolist(), rel=0.03, abs=1e-5)


def test_a_place_that_diverged_is_as_bad_as_the_worst() -> None:
    observations = known(selected=((0, 0), (1, -1), (-1, 1), (3, 0)), diverged=((3, 0),))
    assert observations.values[3, 0] == bowl((-1, 1)) == max(observations.values.values())


def test_where_everything_diverged_a_lower_lr_is_looked_at_while_there_is_one() -> None:
    collected: tuple[LatticePosition, ...] = ()
    while news := make_sampler("surface")(known(selected=collected, diverged=collected), 1):
        collected += tuple(news)
    first, remaining = collected[:4], collected[4:]
    assert remaining
    assert all(lr < min(other for other, _ in collected[: 4 + k]) for k, (lr, _) in enumerate(remaining))
    assert min(lr for lr, _ in collected) == -3
    assert len(set(collected)) == len(first) + len(remaining) <= 7


def test_an_unknown_sampler_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"unknown sampler 'tpee'; .*tpe"):
        make_sampler("tpee")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for name, needs in (("cmaes", "cmaes, which is not installed: pip install cmaes"), ("gp", "torch, ")):
        with pytest.raises(PackageMissingError, match=f"--sampler {name} needs {needs}"):
            make_sampler(name)
