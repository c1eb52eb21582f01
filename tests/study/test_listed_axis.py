"""Axes that list their values: decades in grid files and tables, their neighbours, and what lies beyond their ends."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.commandline import ettsweep, keep, write_fake_grid

from ettsweep.errors import EttsweepError, InputError
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.state import State, Status
from ettsweep.study.bound_rule import BoundRule
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Axis, neighbours
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import load_sweep_store

THIRDS = [1e-4, 3e-4, 1e-3, 3e-3]


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        (THIRDS, [1e-5, 3e-5, 1e-2, 3e-2]),
        ([3, 10], [0.3, 1, 30, 100]),
        ([1, 2, 5], [0.2, 0.5, 10, 20]),
        ([0.2, 0.5, 1.0], [0.05, 0.1, 2, 5]),
        ([0.01, 0.1, 1], [0.0001, 0.001, 10, 100]),
        ([0.5, 1, 2], [0.125, 0.25, 4, 8]),
        ([4, 6, 9], [4 / 2.25, 4 / 1.5, 13.5, 20.25]),
        ([1, 1.05, 1.1], [1 / 1.049**2, 1 / 1.049, 1.1 * 1.049, 1.1 * 1.049**2]),
        ([10, 20, 50, 200], [10 / 2.7**2, 10 / 2.7, 540, 1458]),  # mean ratio 2.71
    ],
)
def test_a_list_goes_on_by_its_own_pattern_or_its_mean_ratio(values: list[float], beyond: list[float]) -> None:
    axis = Axis.of(values)
    assert [axis.shifted(values[0], k) for k in (-2, -1)] == pytest.approx(beyond[:2], rel=1e-11)
    assert [axis.shifted(values[-1], k) for k in (1, 2)] == pytest.approx(beyond[2:], rel=1e-11)
    everything = [*beyond[:2], *values, *beyond[2:]]
    for (i, low), (j, high) in product(enumerate(everything), repeat=2):
        assert axis.distance(high, low) == j - i
        assert axis.shifted(low, j - i) == pytest.approx(high, rel=1e-11)


def test_between_two_values_steps_are_shares_of_the_log() -> None:
    axis = Axis.of(THIRDS)
    assert axis.distance(2e-3, 1e-3) == pytest.approx(math.log(2) / math.log(3))
    assert axis.shifted(1e-3, 0.25) == pytest.approx(1e-3 * 3**0.25)


def test_runs_train_at_the_values_as_they_are_written_and_strategies_scale_each_alike(tmp_path: Path) -> None:
    grid = write_fake_grid(tmp_path / "g.yaml", run={"width": 64}, strategies=["standard", "mup"], seeds=[0])
    text = grid.read_text()
    content = _without(text, "centre", "lr", "wd") + "lr: [1e-4, 3e-4, 1e-3]\nwd: [0.01, 0.1]\n"
    grid.write_text(content)
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


def _without(text: str, *keys: str) -> str:
    import yaml

    return yaml.safe_dump({key: value for key, value in yaml.safe_load(text).items() if key not in keys})


@pytest.mark.parametrize(
    ("lists", "options", "problem"),
    [
        (
            "lr: [1e-3]\nwd: fixed",
            {},
            "lr: two or more different numbers above 0 are expected, got [0.001]; for a single value",
        ),
        ("lr: [1e-3, x]\nwd: fixed", {}, "lr: two or more different numbers above 0"),
        ("lr: [0, 1e-3]\nwd: fixed", {}, "lr: two or more different numbers above 0"),
        ("lr: [1e-3, 1e-3]\nwd: fixed", {}, "lr: two or more different numbers above 0"),
        ("lr: [1e-3, 1e-2]\nwd: fixed\ncentre: {lr: 0.1}", {}, "centre: lr is the middle of its list; leave it out"),
        ("lr: [1e-3, 1e-2]\nwd: fixed\ncentre: 0.1", {}, "centre: a mapping is expected, got 0.1"),
        ("lr: [0.001, 0.0010001]\nwd: fixed", {}, "g.yaml: lr: step"),
        ("lr: [1e-3, 1e-2]\nwd: fixed", {"ranges": {"lr": "-1:1"}}, "--range lr: g.yaml lists the values of lr"),
    ],
)
def test_lists_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str, options: dict[str, str], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = write_fake_grid(Path("g.yaml"))
    grid.write_text(_without(grid.read_text(), "centre", "lr", "wd") + lists)
    with pytest.raises(InputError) as error:
        load_sweep_spec(grid, **options)  # type: ignore[arg-type]
    assert problem in str(error.value)


def test_a_mapped_list_goes_on_as_the_stated_one_does(tmp_path: Path) -> None:
    def ask(values: str) -> None:
        grid = write_fake_grid(tmp_path / "g.yaml", run={"width": 64}, strategies=["standard", "mup"], seeds=[0])
        grid.write_text(_without(grid.read_text(), "centre", "lr", "wd") + f"lr: {values}\nwd: [0.01, 0.1]\n")
        keep(tmp_path / "results", load_sweep_spec(grid))

    ask("[1e-3, 3e-3, 1e-2]")
    ask("[3e-4, 1e-3, 3e-3, 1e-2, 3e-2]")
    standard, mup = load_sweep_store(tmp_path / "results").select()[0].studies
    for study in (standard, mup):
        assert len(study.grid_points) == 10
        assert all(study.is_on_lattice(point) for point in study.grid_points)
        assert {study.cell(point, study.centre) for point in study.grid_points} == set(product(range(-2, 3), (0, 1)))


@pytest.mark.parametrize("lrs", [(0.001, 0.00103, 0.0012), (0.001, 0.00102, 0.01), (0.001, 0.00105, 0.0011)])
def test_close_values_of_a_table_are_steps_of_their_own(tmp_path: Path, lrs: tuple[float, ...]) -> None:
    rows = [f"{lr},{seed},{3 + 0.2 * (k - 1) ** 2 + 0.01 * seed}" for k, lr in enumerate(lrs) for seed in range(3)]
    (tmp_path / "scores.csv").write_text("\n".join(["lr,seed,loss", *rows]))
    verdict = json.loads(ettsweep("verdict", tmp_path / "scores.csv", "--format", "json", code=None).stdout)
    assert verdict["lr"] == lrs[1]


def test_a_sweep_takes_further_values_of_its_list_and_no_others(tmp_path: Path) -> None:
    def ask(values: str) -> None:
        grid = write_fake_grid(tmp_path / "g.yaml", seeds=[0])
        grid.write_text(_without(grid.read_text(), "centre", "lr", "wd") + f"lr: {values}\nwd: [0.01, 0.1]\n")
        keep(tmp_path / "results", load_sweep_spec(grid))

    ask("[1e-4, 3e-4, 1e-3]")
    ask("[1e-3, 3e-3, 1e-2]")
    (study,) = load_sweep_store(tmp_path / "results").select()[0].studies
    assert sorted({point["lr"] for point in study.grid_points}) == [*THIRDS, 1e-2]
    with pytest.raises(EttsweepError, match=r"lr is 0\.0001, 0\.0003, 0\.001 there, 0\.0001, 0\.0002, 0\.001 here"):
        ask("[1e-4, 2e-4, 1e-3]")


def _judged(study: Study, loss: Callable[[float, float], float], points: Sequence[Point]) -> BoundRule:
    rng, runs = np.random.default_rng(0), []
    for point, seed in product(points, (0, 1, 2)):
        spec = study.base.with_point(point, seed)
        score = {"score": loss(*point) * float(np.exp(rng.normal(0, 0.002)))}
        runs.append(Run(RunDir(Path(spec.run_id)), spec, Status(State.DONE), score))
    return BoundRule(study, runs)


def _study(tmp_path: Path, lr: str) -> Study:
    grid = write_fake_grid(tmp_path / "g.yaml", seeds=[0, 1, 2])
    grid.write_text(_without(grid.read_text(), "centre", "lr", "wd") + f"lr: {lr}\nwd: [0.01, 0.1, 1]\n")
    return load_sweep_spec(grid).studies()[0]


def test_a_climb_leaves_a_list_by_its_pattern(tmp_path: Path) -> None:
    study = _study(tmp_path, "[1e-4, 3e-4, 1e-3]")
    state = _judged(study, lambda lr, wd: 2 - 0.1 * math.log(lr) + math.log(wd / 0.1) ** 2 / 100, study.grid_points)
    verdict = state.verdict()
    assert (verdict.verdict, tuple(verdict.point or ())) == ("edge", (1e-3, 0.1))
    assert {spec.lr for spec in state.needed_specs(verdict)} == {1e-3, 3e-3}, "with a larger wd at its own lr"


def test_steps_off_by_more_than_a_quarter_count_as_what_they_are_in_the_fit(tmp_path: Path) -> None:
    for text, expected in (
        ("[1e-4, 3e-4, 1e-3]", [-1.0, 0.0, 1.0]),
        ("[1e-4, 2e-4, 1e-2]", [-math.log(2) / math.log(10), 0.0, math.log(50) / math.log(10)]),
    ):
        study = _study(tmp_path, text)
        state = _judged(study, lambda lr, wd: 2 + math.log(lr / study.centre["lr"]) ** 2 / 2000, study.grid_points)  # noqa: B023
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
