"""Proposers: no place twice, none beyond the box, and where a run is expected to gain most."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from ettsweep.errors import InputError
from ettsweep.study.posterior import fit_scores
from ettsweep.study.samplers import DEFAULT_TRIALS, OPTUNA, SAMPLERS, make_sampler, resolve_trials
from ettsweep.study.surface_sampler import LatticePosition, Observations, _Design

MARGIN = 0.02


SEVERAL: dict[str, tuple[LatticePosition, ...]] = {
    "named": ((0, 0), (1, 1), (-2, 0), (2, -2), (0, 3)),
    "diverged": ((1, 1),),
    "awaited": ((0, 3),),
}


def bowl(place: LatticePosition) -> float:
    """A loss with its optimum at (2, -1)."""
    return float(np.exp(0.05 * (place[0] - 2) ** 2 + 0.08 * (sum(place[1:]) + 1) ** 2))


def known(
    loss: Callable[[LatticePosition], float] = bowl,
    named: tuple[LatticePosition, ...] = (),
    half: tuple[int, ...] = (3, 3),
    start: LatticePosition = (0, 0),
    diverged: tuple[LatticePosition, ...] = (),
    awaited: tuple[LatticePosition, ...] = (),
) -> Observations:
    """Return what is known once the named places have their scores, but for those that diverged or are awaited."""
    scores = {place: {0: loss(place)} for place in named if place not in (*diverged, *awaited)}
    low = tuple(-h for h in half)
    return Observations(low, half, start, scores, diverged, awaited, {*named}, MARGIN, lower_is_better=True)


@pytest.mark.parametrize("half", [(1, 2), (4,)])
@pytest.mark.parametrize("name", SAMPLERS)
def test_each_place_of_the_box_is_named_once_at_most(name: str, half: tuple[int, ...]) -> None:
    propose, start = make_sampler(name), (0,) * len(half)
    named: tuple[LatticePosition, ...] = ()
    box = set(product(*(range(-h, h + 1) for h in half)))
    while news := propose(known(named=named, half=half, start=start), 2):
        assert len(news) <= 2
        named += tuple(news)
        assert len(set(named)) == len(named)
    assert named[0] == start
    assert set(named) <= box
    assert name == "surface" or set(named) == box


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_proposer_is_a_function_of_what_is_known(name: str) -> None:
    assert make_sampler(name, 5)(known(**SEVERAL), 3) == make_sampler(name, 5)(known(**SEVERAL), 3)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_comes_near_the_optimum_of_a_bowl_within_its_trials(name: str, slots: int) -> None:
    """From a corner of 81 places, five steps off. One that goes by scores names places that are nearer than the rest."""
    propose, box = make_sampler(name), set(product(range(-4, 5), repeat=2))
    named: tuple[LatticePosition, ...] = ()
    trials = min(DEFAULT_TRIALS, resolve_trials(name, None))
    while news := propose(known(named=named, half=(4, 4), start=(-3, 3)), slots)[: trials - len(named)]:
        named += tuple(news)
    apart = {place: max(abs(place[0] - 2), abs(place[1] + 1)) for place in box}
    assert len(set(named)) == len(named) <= DEFAULT_TRIALS
    assert min(apart[place] for place in named) <= 1
    if name in ("tpe", "gp", "cmaes"):
        assert fmean(apart[place] for place in named[10:]) < 0.85 * fmean(apart.values())


def suggestions_of_optuna() -> list[list[LatticePosition]]:
    return [make_sampler(name, 5)(known(**SEVERAL), 3) for name in OPTUNA]


def test_optunas_samplers_name_the_same_in_another_process() -> None:
    code = "import test_surface_sampler as test; print(test.suggestions_of_optuna())"
    paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    environ = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == f"{suggestions_of_optuna()}\n"


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("half", [(4, 4), (4,)])
def test_the_surface_finds_the_best_place_of_a_bowl_and_stops(half: tuple[int, ...], slots: int) -> None:
    propose, start = make_sampler("surface"), (0,) * len(half)
    named: tuple[LatticePosition, ...] = ()
    while news := propose(known(named=named, half=half, start=start), slots):
        named += tuple(news)
        assert len(named) <= 40
    assert (2, -1)[: len(half)] in named


def test_a_box_of_thousands_of_places_is_searched_as_well() -> None:
    """Losses are those of a guess, 2.3, wherever lr is far off, as they are of real models."""
    named: tuple[LatticePosition, ...] = ()
    for _ in range(8):
        news = make_sampler("surface")(known(lambda place: min(bowl(place), 2.3), named, half=(20, 20)), 4)
        named += tuple(news)
    assert len(set(named)) == len(named)
    assert any(max(abs(lr - 2), abs(wd + 1)) <= 1 for lr, wd in named)


def test_more_places_than_there_are_can_be_asked_for() -> None:
    assert sorted(make_sampler("surface")(known(half=(1, 1)), 20)) == sorted(product((-1, 0, 1), repeat=2))


def test_what_a_place_is_expected_to_gain_is_that_of_draws_from_the_posterior() -> None:
    rng = np.random.default_rng(0)
    named = list(product(range(-2, 3), repeat=2))[::2]
    scores = {place: {0: bowl(place) * float(np.exp(rng.normal(0, 0.03)))} for place in named}
    fitted, _ = fit_scores(scores, loss=True) or (None, 0)
    assert fitted is not None
    free = [(1, -2), (2, -1), (2, 0), (1, 0), (4, -4)]
    design = _Design(fitted, free)
    surface = design._surface
    best = int(np.argmin(surface.mean[: len(named)]))
    ahead = surface.draws(best, [len(named) + k for k in range(len(free))])
    assert design.expected_gains() == pytest.approx(np.maximum(ahead, 0).mean(0).tolist(), rel=0.2, abs=1e-4)


def test_what_is_awaited_gains_no_more() -> None:
    """A place next to one that is under way is not worth what it was: the surface is told of the run to come."""
    named = tuple(product((-2, 0, 2), repeat=2))
    (first,) = make_sampler("surface")(known(named=named), 1)
    (second,) = make_sampler("surface")(known(named=(*named, first), awaited=(first,)), 1)
    assert make_sampler("surface")(known(named=named), 2) == [first, second]


def test_a_place_that_diverged_is_as_bad_as_the_worst() -> None:
    named = ((0, 0), (1, -1), (-1, 1), (3, 0))
    told = known(named=named, diverged=((3, 0),))
    assert told.values[3, 0] == max(bowl(place) for place in named[:3])
    assert (3, 0) not in make_sampler("surface")(told, 8)


def test_where_everything_diverged_a_lower_lr_is_looked_at_while_there_is_one() -> None:
    named: tuple[LatticePosition, ...] = ()
    while news := make_sampler("surface")(known(named=named, diverged=named), 1):
        named += tuple(news)
    first, rest = named[:4], named[4:]
    assert rest
    assert all(lr < min(other for other, _ in named[: 4 + k]) for k, (lr, _) in enumerate(rest))
    assert min(lr for lr, _ in named) == -3
    assert len(set(named)) == len(first) + len(rest) <= 7


def test_an_unknown_sampler_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"unknown sampler 'tpee'; .*tpe"):
        make_sampler("tpee")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--sampler cmaes: it needs cmaes: pip install 'ettsweep\[cmaes\]'"):
        make_sampler("cmaes")


def test_a_search_does_not_stop_before_eight_places_are_known() -> None:
    """All are alike, so that no further one is worth a run."""
    named: tuple[LatticePosition, ...] = ()
    while news := make_sampler("surface")(known(lambda place: 1.0, named=named), 1):
        named += tuple(news)
    assert len(named) == 8
