"""Stated confidences are kept: the real rounds, on worlds whose truth is known."""

import numpy as np
import pytest
from scipy.stats import binom

from bench.simulate import Outcome, Series, centre_alone, open_workers, outcomes, simulate
from bench.worlds import Made
from ettsweep.processes import cores
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion, Rule

SWEEPS = 40


def simulated(
    world: Made, margin: float, rule: Rule = "bound", confidence: float = 0.95, runs: int = 60
) -> list[Outcome]:
    study = centre_alone((0, 1), Criterion(rule=rule, margin=margin, confidence=confidence))
    with open_workers(min(2, cores())) as pool:
        return list(outcomes(pool, Series(study, world, Budget(runs=runs)), SWEEPS))


@pytest.mark.parametrize(("surface", "noise"), [("bowl", 0.15), ("rough", 0.06)])
def test_a_bound_holds_as_often_as_it_says(surface: str, noise: float) -> None:
    """So often that no less would be a chance of one in a hundred."""
    holds = [
        item.holds for item in simulated(Made(surface, noise), 0.05, confidence=0.9, runs=30) if item.holds is not None
    ]
    assert sum(holds) >= binom.ppf(0.01, SWEEPS, 0.9)
    assert len(holds) > 0.9 * SWEEPS


def test_means_alone_declare_more_and_are_right_less_often() -> None:
    world, margin = Made("bowl", 0.08), 0.02
    bound, paper = ([item for item in simulated(world, margin, rule) if item.declared] for rule in ("bound", "paper"))
    assert len(paper) > len(bound) > 0
    assert sum(item.right for item in paper) / len(paper) < 0.8 < sum(item.right for item in bound) / len(bound)


def test_slots_cost_runs_and_save_time() -> None:
    study, world = centre_alone((0, 1), Criterion(margin=0.05)), Made("bowl", 0.12)
    item, eight = (simulate(study, world, Budget(runs=60), slots) for slots in (1, 8))
    assert item.wall == item.runs <= eight.runs
    assert eight.wall < item.wall / 3


class Slope:
    """A loss that falls by a thousandth with each step of wd, for ever, under next to no noise."""

    def score(self, at: tuple[int, int], seed: int) -> float:
        noise = np.random.default_rng((seed, at[0] + 99, at[1] + 99)).normal(0, 1e-5)
        return float(np.exp(0.05 * at[0] ** 2 - 0.001 * at[1] + noise))

    def advantage(self, of: tuple[int, int], others: list[tuple[int, int]]) -> tuple[float, float]:
        return 0.001, 0.001

    def regret(self, at: tuple[int, int]) -> float:
        return 0.0


@pytest.mark.parametrize(("margin", "verdict"), [(0.02, "optimal"), (0.0, "edge")])
def test_a_climb_that_gains_less_than_the_margin_ends_on_the_lattice_with_a_verdict(
    margin: float, verdict: str
) -> None:
    study = centre_alone((0,), Criterion(margin=margin))
    assert simulate(study, Slope(), Budget(runs=80)).verdict == verdict
