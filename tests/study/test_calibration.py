"""Stated confidences are kept: the real rounds, on worlds whose truth is known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from bench.simulate import Outcome, Series, centre_alone, open_workers, run_series, simulate
from bench.verdicts import falling_short, row, worlds
from bench.worlds import Made, Place
from ettsweep.processes import cores
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion, Rule

SWEEPS = 40


def simulated(
    world: Made, margin: float, rule: Rule = "bound", confidence: float = 0.95, runs: int = 60, sweeps: int = SWEEPS
) -> list[Outcome]:
    study = centre_alone((0, 1), Criterion(rule=rule, margin=margin, confidence=confidence))
    with open_workers(min(2, cores())) as pool:
        return [outcome for (outcome,) in run_series(pool, Series(study, world, Budget(runs=runs)), range(sweeps))]


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize(("surface", "noise"), [("bowl", 0.15), ("rough", 0.06)])
def test_a_bound_holds_as_often_as_it_says(surface: str, noise: float) -> None:
    """So often that no less would be a chance of one in a hundred."""
    holds = [
        item.holds for item in simulated(Made(surface, noise), 0.05, confidence=0.9, runs=30) if item.holds is not None
    ]
    assert sum(holds) >= binom.ppf(0.01, SWEEPS, 0.9)
    assert len(holds) > 0.9 * SWEEPS


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("name", ["digits-ntk, polynomial", "tilting .06", "stability .04"])
def test_a_bound_holds_where_seeds_are_as_real_ones(name: str) -> None:
    """At all three confidences, strictly: the truth is known exactly, and all seeds are fresh.

    Beside an edge of stability, too, which differs by seed.
    """
    world, table = worlds()[name]
    study = centre_alone((0, 1), Criterion(margin=0.05), table)
    with open_workers(min(2, cores())) as pool:
        result = list(run_series(pool, Series(study, world, Budget(80), confidences=(0.8, 0.9)), range(SWEEPS // 2)))
    rows = [row(name, "bound", stated, 0.05, sweeps) for stated, *sweeps in zip((0.8, 0.9, 0.95), *result, strict=True)]
    assert falling_short(rows) == []
    # Eight in ten over all worlds; single ones, of 20 sweeps, have less.
    assert float(rows[-1]["within"] or 0) > 0.3
    assert (float(rows[-1]["edge"] or 0) > 0.5) == name.startswith("stability")


def test_a_sweep_at_a_lower_confidence_is_the_first_part_of_one_at_a_higher() -> None:
    """With one run at a time: of several, those of one round are fewer the less is needed."""
    world = Made("bowl", 0.04)
    sure, less_sure = (centre_alone((0, 1), Criterion(margin=0.02, confidence=c)) for c in (0.95, 0.8))
    of_both, at_most = simulate(sure, world, Budget(200), confidences=(0.8,))
    (alone,) = simulate(less_sure, world, Budget(200))
    assert of_both == replace(alone, foreseen=())
    assert alone.runs <= at_most.runs


@pytest.mark.usefixtures("statistics")
def test_means_alone_declare_more_and_are_right_less_often() -> None:
    world, margin = Made("bowl", 0.08), 0.02
    bound, paper = (
        [item for item in simulated(world, margin, rule, sweeps=20) if item.declared] for rule in ("bound", "paper")
    )
    assert len(paper) > len(bound) > 0
    assert sum(item.right for item in paper) / len(paper) < 0.8 < sum(item.right for item in bound) / len(bound)


class Slope:
    """A loss that falls by a thousandth with each step of wd, for ever, under next to no noise."""

    number = 0
    ends: tuple[Place, Place] = (-9, -9), (9, 9)
    best: Place = (0, 9)

    def score(self, at: Place, seed: int) -> float:
        noise = np.random.default_rng((seed, at[0] + 99, at[1] + 99)).normal(0, 1e-5)
        return float(np.exp(0.05 * at[0] ** 2 - 0.001 * at[1] + noise))

    def advantage(self, of: Place, others: Sequence[Place]) -> float:
        return 0.001

    def regret(self, at: Place) -> float:
        return 0.0


@pytest.mark.parametrize(("margin", "verdict"), [(0.02, "optimal"), (0.0, "edge")])
def test_a_climb_that_gains_less_than_the_margin_ends_on_the_lattice_with_a_verdict(
    margin: float, verdict: str
) -> None:
    study = centre_alone((0,), Criterion(margin=margin))
    assert simulate(study, Slope(), Budget(runs=80))[0].verdict == verdict
