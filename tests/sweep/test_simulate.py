"""Stated confidences are kept: the real rounds, on worlds whose truth is known."""

import gzip
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from ettsweep.errors import InputError
from ettsweep.processes import cores
from ettsweep.sweep.criterion import Criterion, Rule
from ettsweep.sweep.recorded import Recorded, Table, read_table
from ettsweep.sweep.simulate import Outcome, Series, centre_alone, open_workers, outcomes, simulate
from ettsweep.sweep.verify import Budget
from ettsweep.sweep.worlds import Made

SWEEPS = 40


def simulated(
    world: Made, margin: float, rule: Rule = "bound", confidence: float = 0.95, runs: int = 60
) -> list[Outcome]:
    search = centre_alone((0, 1), Criterion(rule=rule, margin=margin, confidence=confidence))
    with open_workers(min(2, cores())) as pool:
        return list(outcomes(pool, Series(search, world, Budget(runs=runs)), SWEEPS))


@pytest.mark.parametrize(("surface", "noise"), [("bowl", 0.15), ("rough", 0.06)])
def test_a_bound_holds_as_often_as_it_says(surface: str, noise: float) -> None:
    """So often that no less would be a chance of one in a hundred."""
    found = [
        one.holds for one in simulated(Made(surface, noise), 0.05, confidence=0.9, runs=30) if one.holds is not None
    ]
    assert sum(found) >= binom.ppf(0.01, SWEEPS, 0.9)
    assert len(found) > 0.9 * SWEEPS


def test_means_alone_declare_more_and_are_right_less_often() -> None:
    world, margin = Made("bowl", 0.08), 0.02
    bound, paper = ([one for one in simulated(world, margin, rule) if one.declared] for rule in ("bound", "paper"))
    assert len(paper) > len(bound) > 0
    assert sum(one.right for one in paper) / len(paper) < 0.8 < sum(one.right for one in bound) / len(bound)


def test_slots_cost_runs_and_save_time() -> None:
    search, world = centre_alone((0, 1), Criterion(margin=0.05)), Made("bowl", 0.12)
    one, eight = (simulate(search, world, Budget(runs=60), slots) for slots in (1, 8))
    assert one.wall == one.runs <= eight.runs
    assert eight.wall < one.wall / 3


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
    search = centre_alone((0,), Criterion(margin=margin))
    assert simulate(search, Slope(), Budget(runs=80)).verdict == verdict


def recorded(y_LWS: list[list[list[float]]]) -> Table:
    scores = np.array(y_LWS)
    return Table("best_loss", *(tuple(map(float, range(n))) for n in scores.shape[:2]), scores)


def test_a_recorded_lattice_is_held_to_its_own_means() -> None:
    """Losses of two seeds: e^0 and e^.02 in the middle, e^-.1 and e^-.04 above it, e^.3 below."""
    world = Recorded(recorded(np.exp([[[0.3, 0.3]], [[0.0, 0.02]], [[-0.1, -0.04]]]).tolist()))
    advantage, allowed = world.advantage((0, 0), [(-1, 0), (1, 0), (2, 0)])
    assert advantage == pytest.approx(1 - np.exp(-0.08))
    assert allowed == pytest.approx(1 - np.exp(-0.06))  # differences of .1 and .06 have a mean that is known to .02
    assert world.regret((0, 0)) == pytest.approx(np.exp(0.08) - 1)
    assert world.score((2, 0), 0) is None
    assert sorted(world.score((0, 0), seed) for seed in range(2)) == pytest.approx([1, np.exp(0.02)])


def test_a_sweep_on_a_table_uses_each_recorded_seed_once() -> None:
    rng = np.random.default_rng(0)
    table = recorded(np.exp(rng.normal(0, 0.1, (5, 5, 3))).tolist())
    search = centre_alone((0, 1), Criterion(margin=0.0), table)
    found = simulate(search, Recorded(table), Budget(runs=300, seeds=table.seeds()))
    assert not found.declared
    assert found.runs <= 7 * 7 * 3


GOOD = [[lr, wd, seed, 0.1] for lr, wd, seed in product((0, 1), (0, 1), (7, 8))]


@pytest.mark.parametrize(
    ("columns", "rows", "told"),
    [
        (None, GOOD[:-1], "2 x 2 points with 2 seeds have 1 hole; the first is log2_lr 1, log2_wd 1, seed 8"),
        ("log2_lr log2_wd seed loss", GOOD, "columns lack best_loss"),
        (None, [], "it has no rows"),
        (None, [*GOOD[:-1], [1, 1, 8, 1e999]], "row 8: 4 finite numbers are expected"),
        (None, [*GOOD[:-1], [1, 1, 8, None]], "row 8: 4 finite numbers are expected"),
        (None, [*GOOD[:-1], [1, 1, 8]], "row 8: 4 finite numbers are expected"),
        (None, [*GOOD[:-1], [1, 1, 8, 0.0]], "row 8: a loss above 0 is expected"),
        (None, [*GOOD[:-1], [1, 1, 7.5, 0.1]], "row 8: a seed is expected, got 7.5"),
        (None, [[lr, 0, 0, 0.1] for lr in (0, 1, 3)], "log2_lr: values equally far from each other"),
        (None, GOOD[:1], "it has a single point"),
    ],
)
def test_a_table_that_is_no_lattice_is_refused(tmp_path: Path, columns: str | None, rows: object, told: str) -> None:
    path = tmp_path / "table.json.gz"
    names = (columns or "log2_lr log2_wd seed best_loss").split()
    path.write_bytes(gzip.compress(json.dumps({"columns": names, "rows": rows}).replace("Infinity", "1e999").encode()))
    with pytest.raises(InputError, match=told):
        read_table(path)


@pytest.mark.parametrize("text", ["", "[]", '{"columns": 1, "rows": 2}'])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(InputError, match="a JSON object with `columns`, names, and `rows`, lists, is expected"):
        read_table(path)
