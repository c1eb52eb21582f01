"""`python -m bench.simulate` as a user types it, and the recorded lattices that it reads."""

import math
import re
import sys
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from bench import simulate
from bench.recorded import Recorded, Table, read_table
from ettsweep.errors import InputError


@pytest.mark.slow
def test_it_prints_a_row_for_each_rule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        sys, "argv", ["simulate", *["--surface", "bowl", "--noise", "2%", "--margin", "4%", "--sweeps", "1"]]
    )
    assert simulate.main() == 0
    out, err = capsys.readouterr()
    assert re.findall("bound|paper", out) == ["bound", "bound", "paper"]  # the first is a column: bound holds
    assert "1 sweep a rule; best_loss, margin 4%, confidence 0.95" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "one of the arguments --table --surface is required"),
        ("--surface bowel", "unknown surface 'bowel'; did you mean 'bowl'?"),
        ("--surface bowl --noise 6", "--noise: 6 is 600%; for 6% write 6% or 0.06"),
        ("--surface bowl --seeds 1,1", "--seeds: different whole numbers"),
        ("--table nowhere.csv", "nowhere.csv not found"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    options: str, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", *options.split()])
    try:
        code: object = simulate.main()
    except SystemExit as exit_:  # argparse's own
        code = exit_.code
    assert code == 2
    assert message in capfd.readouterr().err


def test_forecasts_are_held_to_races_without_an_end_too() -> None:
    """By Kaplan and Meier: of 4, one ends, one is cut off, one of the 2 that are left ends in time, one is late."""
    races = [("optimal", 0.5), ("unresolved", 0.8), ("optimal", 1.0), ("optimal", 2.0)]
    result = [
        simulate.Outcome(verdict, 20, 20, 0.0, 0.05, 0.05, 0.0, foreseen=(took, 4 * took, took / 4))
        for verdict, took in races
    ]
    told = simulate.summary(result)
    assert told["foreseen"] == pytest.approx(1 - 3 / 4 * 1 / 2)
    assert told["within"] == pytest.approx(1 - 0), "none within the low forecast, all within the high one"


def recorded(y_LWS: list[list[list[float]]]) -> Table:
    scores = np.array(y_LWS)
    log2_lr, log2_wd = (tuple(map(float, range(number))) for number in scores.shape[:2])
    return Table("best_loss", log2_lr, log2_wd, scores)


def test_a_recorded_lattice_is_held_to_its_truth() -> None:
    """Losses of two seeds: e^0 and e^.02 in the middle, e^-.1 and e^-.04 above it, e^.3 below."""
    table = recorded(np.exp([[[0.3, 0.3]], [[0.0, 0.02]], [[-0.1, -0.04]]]).tolist())
    world = Recorded(table, "means")
    assert world.advantage((0, 0), [(-1, 0), (1, 0), (2, 0)]) == pytest.approx(1 - np.exp(-0.08))
    assert world.regret((0, 0)) == pytest.approx(np.exp(0.08) - 1)
    assert world.score((2, 0), 0) is None
    # Recorded seeds are .01 and .03 off the means of these points, and lack a degree of freedom: sqrt(2) as much. Fresh
    # ones are near them, on either side, and no two are alike, as no two seeds are.
    bootstrap = Recorded(table, "means", "bootstrap")
    off = [(math.log(bootstrap.score((1, 0), seed) or 0) + 0.07) / (0.03 * math.sqrt(2)) for seed in range(4000)]
    assert len(set(off)) == len(off)
    width = (4 / 3) ** 0.2 * 2**-0.2  # Silverman's, for two values
    near, spread = 1 / math.hypot(1, width), width / math.hypot(1, width)
    assert (
        stats.kstest(off, lambda x: sum(stats.norm.cdf(x, sign * near, spread) for sign in (-1, 1)) / 2).pvalue > 0.01
    )


@pytest.mark.parametrize("noise", ["normal", "bootstrap"])
def test_fresh_seeds_scatter_as_the_recorded_ones(noise: Literal["normal", "bootstrap"]) -> None:
    """Covariances of three points over 4,000 fresh seeds, against the sample covariance of the 20 recorded ones."""
    rng = np.random.default_rng(0)
    table = recorded(np.exp(rng.normal(0, 0.1, (1, 3, 20)) @ np.diag(rng.uniform(0.2, 2, 20))).tolist())
    world = Recorded(table, "means", noise)
    places = [(0, wd) for wd in (-1, 0, 1)]
    fresh = np.log([[world.score(place, seed) or 0 for place in places] for seed in range(4000)])
    assert fresh.mean(0) == pytest.approx(table.values.mean(2)[0], abs=0.01)
    assert np.cov(fresh.T) == pytest.approx(np.cov(table.values[0]), abs=0.0015)


def test_smooth_truths_follow_a_smooth_table_and_leave_noise_out() -> None:
    x = np.stack(np.meshgrid(range(-2, 3), range(-2, 3), indexing="ij"), -1).astype(float)
    smooth = 0.08 * x[..., 0] ** 2 + 0.05 * x[..., 1] ** 2 + 0.02 * x.prod(-1)
    noise = np.random.default_rng(0).normal(0, 0.1, (5, 5, 20))
    truths = recorded(np.exp(smooth[..., None] + noise).tolist()).truths
    off = {name: float((truth - smooth).std()) for name, truth in truths.items()}
    assert off["means"] == pytest.approx(0.1 / math.sqrt(20), rel=0.25)
    assert max(off["process"], off["polynomial"]) < 0.8 * off["means"]


GOOD = [[lr, wd, seed, 0.1] for lr, wd, seed in product((1, 2), (1, 2), (7, 8))]


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (None, GOOD[:-1], "2 x 2 points with 2 seeds have 1 hole"),
        (None, [*GOOD, GOOD[0]], "a point has a seed twice"),
        ("lr,wd,seed,loss", GOOD, "columns lack best_loss"),
        (None, [*GOOD[:-1], [2, 2, 8, "inf"]], "line 9: finite numbers are expected"),
        (None, [*GOOD[:-1], [2, 2, 8]], "Line #9"),
        (None, [*GOOD[:-1], [2, 2, 8, 0.0]], "line 9: .* losses above 0"),
        (None, [[lr, 1, 0, 0.1] for lr in (1, 2, 8)], "log2 lr: two or more values equally far"),
    ],
)
def test_a_table_that_is_no_lattice_is_refused(
    tmp_path: Path, columns: str | None, rows: list[list[object]], message: str
) -> None:
    path = tmp_path / "table.csv"
    lines = [columns or "lr,wd,seed,best_loss", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        read_table(path)
