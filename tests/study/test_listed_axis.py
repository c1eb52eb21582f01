"""Axes that list their values: decades in grid files and tables, their neighbours, and what lies beyond their ends."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from study.scored_runs import scored_run
from support.commandline import ettsweep, write_fake_grid

from ettsweep.errors import InputError
from ettsweep.study.bound_rule import BoundRule
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Axis, neighbours
from ettsweep.study.study import Study

THIRDS = [1e-4, 3e-4, 1e-3, 3e-3]


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        (THIRDS, [1e-5, 3e-5, 1e-2, 3e-2]),
        ([0.2, 0.5, 1.0], [0.05, 0.1, 2, 5]),
        ([0.01, 0.1, 1], [0.0001, 0.001, 10, 100]),
        ([0.5, 1, 2], [0.125, 0.25, 4, 8]),
        ([4, 6, 9], [4 / 2.25, 4 / 1.5, 13.5, 20.25]),
        ([10, 20, 50, 200], [10 / 2.7**2, 10 / 2.7, 540, 1458]),  # mean ratio 2.71
    ],
)
def test_a_list_goes_on_by_its_own_pattern_or_its_mean_ratio(values: list[float], beyond: list[float]) -> None:
    axis = Axis.of(values)
    everything = [*beyond[:2], *values, *beyond[2:]]
    for (i, low), (j, high) in product(enumerate(everything), repeat=2):
        assert axis.distance(high, low) == j - i
        assert axis.shifted(low, j - i) == pytest.approx(high, rel=1e-11)


def test_runs_train_at_the_values_as_they_are_written_and_strategies_scale_each_alike(tmp_path: Path) -> None:
    changes = {"run": {"width": 64}, "strategies": ["standard", "mup"], "seeds": [0]}
    grid = _written(tmp_path / "g.yaml", "lr: [1e-4, 3e-4, 1e-3]\nwd: [0.01, 0.1]\n", **changes)
    standard, mup = load_sweep_spec(grid).studies()
    assert {tuple(point) for point in standard.grid_points} == set(product(THIRDS[:3], [0.01, 0.1]))
    assert tuple(standard.centre) == (3e-4, 0.01), "the middle, or the lower one of two"
    ratios = [
        (a["lr"] / b["lr"], a["wd"] / b["wd"]) for a, b in zip(mup.grid_points, standard.grid_points, strict=True)
    ]
    np.testing.assert_allclose(ratios, [ratios[0]] * len(ratios), rtol=1e-11)
    assert ratios[0] != pytest.approx((1, 1))
    (at,) = (point for point in standard.grid_points if tuple(point) == (1e-3, 0.1))
    around = {tuple(point) for point in neighbours(at, standard.axes)}
    assert around == {(3e-3, 0.1), (1e-3, 1.0), (3e-3, 0.01), (3e-4, 1.0), (1e-3, 0.01), (3e-4, 0.1)}


def _written(path: Path, lists: str, **changes: object) -> Path:
    """Write a grid file with these lists in place of its centre and ranges."""
    content = yaml.safe_load(write_fake_grid(path, **changes).read_text())
    kept = {key: value for key, value in content.items() if key not in ("centre", "lr", "wd")}
    path.write_text(yaml.safe_dump(kept) + lists)
    return path


@pytest.mark.parametrize(
    ("lists", "ranges", "problem"),
    [
        ("lr: [1e-3, 1e-3]", {}, "lr: two or more different numbers above 0"),
        ("lr: [1e-3, 1e-2]\ncentre: {lr: 0.1}", {}, "centre: lr is the middle of its list; leave it out"),
        ("lr: [1e-3, 1e-2]", {"lr": "-1:1"}, r"--range lr: .*g\.yaml lists the values of lr"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path: Path, lists: str, ranges: dict[str, str], problem: str) -> None:
    grid = _written(tmp_path / "g.yaml", f"wd: fixed\n{lists}")
    with pytest.raises(InputError, match=problem):
        load_sweep_spec(grid, ranges=ranges)


def _judged(study: Study, loss: Callable[[float, float], float]) -> BoundRule:
    rng = np.random.default_rng(0)
    runs = [
        scored_run(study.base.with_point(point, seed), loss(*point) * math.exp(rng.normal(0, 0.002)))
        for point, seed in product(study.grid_points, (0, 1, 2))
    ]
    return BoundRule(study, runs)


def test_steps_off_by_more_than_a_quarter_count_as_what_they_are_in_the_fit(tmp_path: Path) -> None:
    for text, expected in (
        ("[1e-4, 3e-4, 1e-3]", [-1.0, 0.0, 1.0]),
        ("[1e-4, 2e-4, 1e-2]", [-math.log(2) / math.log(10), 0.0, math.log(50) / math.log(10)]),
    ):
        grid = _written(tmp_path / "g.yaml", f"lr: {text}\nwd: [0.01, 0.1, 1]\n", seeds=[0, 1, 2])
        (study,) = load_sweep_spec(grid).studies()
        state = _judged(study, lambda lr, wd: 2 + math.log(lr / study.centre["lr"]) ** 2 / 2000)  # noqa: B023
        posterior = state.posterior(study.centre)
        assert posterior is not None
        at = {position[0]: x for position, x in zip(posterior.positions, posterior.surface.scores.x_PD, strict=True)}
        assert [at[k][0] for k in (-1.0, 0.0, 1.0)] == pytest.approx(expected)
        assert state.verdict().verdict == "optimal"


def test_a_table_of_decades_is_judged_at_its_values(tmp_path: Path) -> None:
    table = tmp_path / "scores.csv"
    rng, lines = np.random.default_rng(0), ["lr,wd,seed,val_loss"]
    for (k, lr), wd, seed in product(enumerate(("1e-4", "3e-4", "1e-3")), ("0.01", "0.1", "1"), (0, 1, 2)):
        loss = 3 + 0.2 * (k - 1) ** 2 + 0.1 * math.log10(float(wd) / 0.1) ** 2 + rng.normal(0, 0.002)
        lines.append(f"{lr},{wd},{seed},{loss}")
    table.write_text("\n".join(lines))
    result = ettsweep("verdict", table, "--format", "json")
    verdict = json.loads(result.stdout)
    assert (verdict["lr"], verdict["wd"]) == (0.0003, 0.1)
    assert {row["lr"] for row in verdict["neighbours"]} == {1e-4, 3e-4, 1e-3}
    answer = (
        "Use lr 0.0003, wd 0.1. A step up or down in lr (0.0001 or 0.001) or wd (0.01 or 1) gains at most 2% (95%)."
    )
    assert verdict["answer"] == answer
    assert "lr: ettsweep treats values as evenly spaced (x3.16, off by up to 5% of a step)" in result.stderr
