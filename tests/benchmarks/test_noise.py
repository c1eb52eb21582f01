"""`bench.noise` finds what was planted into the scores of a lattice."""

import sys
from pathlib import Path

import numpy as np
import pytest

from bench import noise
from ettsweep.study.surface import Array

CHECKOUT = Path(__file__).parents[2]


def planted(
    *, seeds: int = 400, common: float = 0.0, lr_length: float = 0.0, wd_length: float = 0.0, growth: float = 0.0
) -> Array:
    """Return log losses of 7 x 7 points: noise of sd .1 e^(growth lr), correlated as e^(-steps / length)."""
    rng = np.random.default_rng(0)
    steps = abs(np.subtract.outer(np.arange(7), np.arange(7)))
    roots = [np.linalg.cholesky(np.exp(-steps / n) if n else np.eye(7)) for n in (lr_length, wd_length)]
    e_LWS = np.einsum("ij,kl,jls->iks", *roots, rng.standard_normal((7, 7, seeds)))
    f_LW1 = np.add.outer((np.arange(7) - 3) ** 2, (np.arange(7) - 3) ** 2)[..., None] * 0.05
    return np.asarray(
        f_LW1 + 0.1 * np.exp(growth * np.arange(7))[:, None, None] * e_LWS + common * rng.standard_normal(seeds)
    )


def test_noise_and_what_is_common_to_a_seed_are_told_apart() -> None:
    y_LWS = planted(common=0.06)
    assert noise.noise_sd(y_LWS) == pytest.approx(0.1, rel=0.03)
    assert noise.common_sd(y_LWS) == pytest.approx(0.06, rel=0.1)


def test_independent_noise_shows_what_taking_out_means_does() -> None:
    """Of P points, a residual is correlated with each other by -1 / (P - 1)."""
    expected, chance = noise.independent_noise(planted(seeds=12))
    for name in ("r, lr 1", "r, lr 2", "r, wd 1", "r, wd 2"):
        assert expected[name] == pytest.approx(-1 / 48, abs=0.015)
        assert 0.02 < chance[name] < 0.08
    assert expected["excess kurtosis"] == pytest.approx(-6 / 13, abs=0.05)  # of 12 normal numbers


def test_planted_correlations_are_found() -> None:
    y_LWS = planted(common=0.05, wd_length=2.0)
    z_LWS = noise.standardised(y_LWS - y_LWS.mean(2, keepdims=True))
    for step in (1, 2, 4):  # the common part is a fifth of the variance
        assert noise.correlation(z_LWS, step, axis=1) == pytest.approx(0.2 + 0.8 * np.exp(-step / 2), abs=0.05)
        assert noise.correlation(z_LWS, step, axis=0) == pytest.approx(0.2, abs=0.05)
    assert noise.far_correlation(z_LWS) == pytest.approx(0.2, abs=0.1)
    measured = noise.residual_statistics(y_LWS)
    assert measured["r, wd 1"] > measured["r, wd 2"] > 0.2
    assert measured["r, lr 1"] == pytest.approx(measured["r, lr 2"], abs=0.05)


def test_where_runs_of_one_lr_part_is_found() -> None:
    """They share all, half and none of their noise; what is common to a seed does not count."""
    rng = np.random.default_rng(0)
    share = np.repeat([0.999, 0.5, 0.0], 3)[:, None, None]
    e_LWS = np.sqrt(share) * rng.standard_normal((9, 1, 800)) + np.sqrt(1 - share) * rng.standard_normal((9, 8, 800))
    y_LWS = 0.1 * e_LWS + 0.3 * rng.standard_normal(800)
    # Means of seeds take a little of what rows share with them.
    assert noise.shares_by_lr(y_LWS).reshape(3, 3).mean(1) == pytest.approx([0.999, 0.5, 0.04], abs=0.04)


def test_growth_of_the_noise_is_found() -> None:
    measured = noise.residual_statistics(planted(growth=0.2))
    assert measured["log sd a step of lr"] == pytest.approx(0.2, abs=0.02)
    assert measured["log sd a step of wd"] == pytest.approx(0, abs=0.02)


def test_heavy_tails_are_found() -> None:
    rng = np.random.default_rng(1)
    y_LWS = rng.laplace(size=(7, 7, 400))  # of excess kurtosis 3
    assert noise.residual_statistics(y_LWS)["excess kurtosis"] == pytest.approx(3, abs=0.5)


def test_it_prints_a_row_for_each_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(noise, "DRAWS", 20)
    tables = sorted((CHECKOUT / "results" / "lattices").glob("*-standard.csv"))
    monkeypatch.setattr(sys, "argv", ["noise", *map(str, tables)])
    noise.main()
    out = capsys.readouterr().out
    assert out.count("| digits-standard |") == out.count("| shapes-standard |") == 3
