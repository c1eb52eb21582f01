"""The surface against the same model written out in full, ordinary least squares, and scipy's distributions."""

import functools
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy import stats

from ettsweep.study import point_scores, seed_noise
from ettsweep.study import surface as module
from ettsweep.study.point_scores import PointScores
from ettsweep.study.seed_noise import Array
from ettsweep.study.surface import fit, fit_pairs, student_quantile

X = np.array([[0, 0], [1, 0], [0, 1], [1, -1], [-1, 1], [0, -1], [-1, 0]], dtype=float)


def layout_of(seed: int, noise: float = 0.1, missing: float = 0.3, seeds: int = 5) -> PointScores:
    """Return scores of a bowl, some of them missing; every point and every seed has some."""
    rng = np.random.default_rng(seed)
    scored = (rng.random((len(X), seeds)) > missing).astype(float)
    scored[:, 0] = scored[0] = 1.0
    f = 0.1 * (X[:, 0] - 0.3) ** 2 + 0.05 * X[:, 1] ** 2
    y = f[:, None] + rng.normal(size=seeds) + noise * rng.normal(size=scored.shape)
    return PointScores(X, scored, y * scored)


def written_out(
    layout: PointScores,
    lengths: tuple[float, float],
    ratio: float,
    own_value: float,
    parting_lr: float | None = None,
    unstable_lr: float | None = None,
) -> tuple[Array, Array, float, float]:
    """Return mean and covariance (sigma 1) of f less its value at the first point, square and log determinant.

    As one Gaussian of all scores, seeds' effects with a variance so large that it stands for a flat prior.
    """
    at = np.argwhere(layout.scored_PS > 0)
    y = layout.y_PS[at[:, 0], at[:, 1]]
    x = layout.x_PD
    k = (1 - own_value) * np.exp(
        -0.5 * (((x[:, None] - x[None]) / np.array(lengths)) ** 2).sum(2)
    ) + own_value * np.eye(len(x))
    flat = 1e7
    is_one_seed = at[:, None, 1] == at[None, :, 1]
    lr = x[at[:, 0], 0]
    # Noise grows along both axes as the table has it, or is larger at one lr; runs of one seed and one lr share
    # some of it, the less, the larger lr is.
    is_unstable = np.where(lr == unstable_lr, seed_noise.UNSTABLE_NOISE, 1.0)
    scale = np.exp(0.5 * x[at[:, 0]] @ layout.growth) if unstable_lr is None else is_unstable
    odds = 0.0 if parting_lr is None else np.exp(-1.1 * (lr - parting_lr))
    share = np.minimum(odds / (1 + odds), 0.9) * np.ones(len(y))
    one_lr = is_one_seed * (lr[:, None] == lr)
    noise = ((1 - share) * np.eye(len(y)) + share * one_lr) * np.outer(scale, scale)
    cov = ratio * k[np.ix_(at[:, 0], at[:, 0])] + flat * is_one_seed + noise
    across = ratio * k[:, at[:, 0]]
    signs = np.eye(len(x)) - np.eye(len(x))[0]
    mean = signs @ across @ np.linalg.solve(cov, y)
    left = signs @ (ratio * k - across @ np.linalg.solve(cov, across.T)) @ signs.T
    seeds = layout.scored_PS.shape[1]
    return mean, left, float(y @ np.linalg.solve(cov, y)), float(np.linalg.slogdet(cov)[1] - seeds * np.log(flat))


@pytest.fixture
def known_unknowns(monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, float, float]:
    """Have the fit integrate over one value of each unknown: length scale 2, ratio 5, own share 0.1, parting at lr 0.5."""
    monkeypatch.setattr(module, "LENGTH_SCALES", (2.0,))
    monkeypatch.setattr(module, "SIGNAL_TO_NOISE", (5.0,))
    monkeypatch.setattr(module, "OWN_SHARES", (0.1,))
    growing = functools.partial(seed_noise.SeedNoise, 0.5)
    monkeypatch.setattr(point_scores, "candidates", lambda growth_D, *_: [growing(tuple(growth_D.tolist()))])
    module._kernel_grid.cache_clear()
    yield 2.0, 5.0, 0.1, 0.5
    module._kernel_grid.cache_clear()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("further", [0, 2])
def test_the_posterior_is_that_of_the_model_written_out(
    seed: int, further: int, known_unknowns: tuple[float, float, float, float]
) -> None:
    """Also of points that have no score."""
    length, ratio, own_part, parting_lr = known_unknowns
    layout = layout_of(seed)
    surface = fit(layout).with_positions(np.array([[2.0, 0.0], [-1.0, -1.0]])[:further])
    layout = surface.layout
    mean, cov, square, _ = written_out(layout, (length, length), ratio, own_part, parting_lr)
    signs = np.eye(len(layout.x_PD)) - np.eye(len(layout.x_PD))[0]
    assert signs @ surface.mean == pytest.approx(mean, abs=1e-5)
    assert signs @ surface.cov_HPP[0] @ signs.T == pytest.approx(cov, abs=1e-5)
    assert surface.variance_H[0] * layout.dof == pytest.approx(square, rel=1e-4)


def test_values_of_the_unknowns_are_weighed_by_their_marginal_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LENGTH_SCALES", (1.0, 3.0))
    monkeypatch.setattr(module, "SIGNAL_TO_NOISE", (2.0, 20.0))
    monkeypatch.setattr(module, "OWN_SHARES", (0.0, 0.1))
    monkeypatch.setattr(module, "COARSE_LENGTH_SCALE", 3.0)
    monkeypatch.setattr(module, "UNLIKELY_NOISE", 1e-300)
    module._kernel_grid.cache_clear()
    layout = layout_of(1)
    weights = {}
    # Stable noise of runs that share none, or part around each lr or beyond; larger noise at each lr, parted there or not.
    noises = {(None, None): 0.9 * 0.25}
    noises |= {(t, None): 0.9 * 0.75 / 5 for t in (-1.5, -0.5, 0.5, 1.5, 3.0)}
    noises |= {(t, lr): 0.1 / 3 / 2 for lr in (-1.0, 0.0, 1.0) for t in (None, lr - 0.5)}
    values = (1.0, 3.0), (1.0, 3.0), (2.0, 20.0), (0.0, 0.1), noises.items()
    for a, b, ratio, own_part, ((parting_lr, unstable_lr), share) in product(*values):
        _, _, square, logdet = written_out(layout, (a, b), ratio, own_part, parting_lr, unstable_lr)
        prior = np.log(share) + (
            -0.5
            * sum(np.log(length / module.TYPICAL_LENGTH_SCALE) ** 2 for length in (a, b))
            / module.LENGTH_SCALE_SPREAD**2
        )
        weights[a, b, ratio, own_part, parting_lr, unstable_lr] = np.exp(
            -0.5 * layout.dof * np.log(square) - 0.5 * logdet + prior
        )
    weight_H = sorted(fit(layout).weight_H)
    module._kernel_grid.cache_clear()
    kept = np.array(sorted(weights.values())[-len(weight_H) :])
    assert kept.sum() > 0.99 * sum(weights.values())
    assert weight_H == pytest.approx(kept / kept.sum(), rel=1e-3)


def test_pairs_are_least_squares_of_the_two_way_layout() -> None:
    layout = layout_of(4)
    at = np.argwhere(layout.scored_PS > 0)
    design = np.hstack([np.eye(len(X))[at[:, 0]][:, 1:], np.eye(layout.scored_PS.shape[1])[at[:, 1]]])
    y = layout.y_PS[at[:, 0], at[:, 1]]
    coefficients, square, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    surface = fit_pairs(layout)
    assert surface.dof == len(y) - rank
    assert surface.noise_sd == pytest.approx(np.sqrt(square[0] / surface.dof), rel=1e-6)
    others = list(range(1, len(X)))
    mean, error = surface.differences(0, others)
    assert -mean == pytest.approx(coefficients[: len(X) - 1], abs=1e-6)
    exact = np.sqrt(square[0] / surface.dof * np.diag(np.linalg.inv(design.T @ design))[: len(X) - 1])
    assert error == pytest.approx(module.WIDTH * exact * np.sqrt(surface.dof / (surface.dof - 2)), rel=1e-5)


def test_draws_are_those_of_students_t() -> None:
    surface = fit_pairs(layout_of(2))
    mean, error = surface.differences(0, [3])
    scale = error[0] / np.sqrt(surface.dof / (surface.dof - 2))
    draws_result = sum(surface.draws(0, [3]))[:, 0]
    assert stats.kstest((draws_result - mean[0]) / scale, stats.t(surface.dof).cdf).pvalue > 0.01
    assert (draws_result == sum(surface.draws(0, [3]))[:, 0]).all(), "the same scores give the same verdict"


@pytest.mark.parametrize("seeds", [2, 3])
def test_few_degrees_of_freedom_give_draws_the_tails_of_students_t(seeds: int) -> None:
    surface = fit_pairs(layout_of(0, seeds=seeds, missing=0.0))
    assert surface.dof == 6 * (seeds - 1)
    mean, error = surface.differences(0, [3])
    scale = error[0] / np.sqrt(surface.dof / (surface.dof - 2))
    draws = (sum(surface.draws(0, [3]))[:, 0] - mean[0]) / scale
    tails = 0.01, 0.05, 0.95, 0.99
    assert np.quantile(draws, tails) == pytest.approx(stats.t(surface.dof).ppf(tails), rel=0.07)


def test_draws_do_not_depend_on_the_signs_of_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ between machines, as turns do among those of one eigenvalue."""
    surface = fit_pairs(layout_of(3))
    drawing, eigh = sum(surface.draws(0, [1, 2, 3])), np.linalg.eigh

    def turned(matrices: Array) -> tuple[Array, Array]:
        values, vectors = eigh(matrices)
        return values, vectors * [-1.0, 1.0, -1.0]

    monkeypatch.setattr(np.linalg, "eigh", turned)
    assert sum(surface.draws(0, [1, 2, 3])) == pytest.approx(drawing, rel=1e-9)


@pytest.mark.parametrize("probability", [0.8, 0.95, 0.999, 0.9999])
@pytest.mark.parametrize("dof", [8, 20, 100])
def test_quantiles_of_students_t(probability: float, dof: int) -> None:
    assert student_quantile(probability, dof) == pytest.approx(stats.t.ppf(probability, dof), rel=0.03)


def test_a_point_off_the_surface_is_seen() -> None:
    rng = np.random.default_rng(0)
    x = np.array([[i, j] for i in range(-2, 3) for j in range(-2, 3)], dtype=float)
    f = 0.05 * (x**2).sum(1)
    even = f[:, None] + 0.01 * rng.normal(size=(25, 4))
    assert np.abs(fit(PointScores(x, np.ones((25, 4)), even)).misfits()).max() < 4
    raised = even.copy()
    raised[7] += 0.5
    shift = fit(PointScores(x, np.ones((25, 4)), raised)).misfits()
    assert int(np.argmax(shift)) == 7
    assert shift[7] > 4


def test_nearly_noiseless_scores_are_tested_as_exactly_as_others() -> None:
    """By the residual's covariance, A - A cov A, in arithmetic of 60 digits: in floats rounding is all that is left of it."""
    surface = fit(layout_of(0, noise=1e-6, missing=0.0))
    h = int(np.argmax(np.where(surface.process.own_share_H == 0, surface.weight_H, 0.0)))
    with mpmath.workdps(60):
        information = mpmath.matrix(surface.information_MPP[surface.process.noise_H[h]].tolist())
        weighted = mpmath.matrix(surface.weighted_MP[surface.process.noise_H[h]].tolist())
        prior = mpmath.matrix(module._kernel(X, surface.process.length_HD[[h]], np.zeros(1))[0].tolist())
        cov = (information + (float(surface.process.ratio_H[h]) * prior) ** -1) ** -1
        residual = weighted - information * cov * weighted
        variance = information - information * cov * information
        sigma = mpmath.sqrt(float(surface.variance_H[h]))
        expected = [residual[p] / mpmath.sqrt(variance[p, p]) / sigma for p in range(len(X))]
    assert surface.misfits() == pytest.approx([float(x) for x in expected], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("growth", [(0.0, 0.0), (0.6, -0.3)])
def test_noise_that_grows_along_an_axis_is_estimated_and_drawn_to_none(growth: tuple[float, float]) -> None:
    """Over many tables, each of which knows it to about .15 a step; prior and single step take a quarter of it."""
    x, found = np.array(list(product(range(-2, 3), repeat=2)), dtype=float), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        scored = (rng.random((25, 6)) < 0.6).astype(float)
        sd = 0.1 * np.exp(0.5 * x @ np.array(growth))
        y = 0.05 * (x**2).sum(1)[:, None] + rng.normal(size=6) + sd[:, None] * rng.normal(size=(25, 6))
        found.append(PointScores(x, scored, y * scored).growth)
    assert np.mean(found, 0) == pytest.approx(0.75 * np.array(growth), abs=0.08)
    assert np.std(found, 0).max() < 0.25


@pytest.mark.parametrize(("parting_lr", "shares"), [(-9.0, (0.0, 0.0)), (0.5, (0.94, 0.16)), (3.5, (1.0, 0.84))])
def test_where_runs_of_one_lr_part_is_learned_from_the_scores(parting_lr: float, shares: tuple[float, float]) -> None:
    """Nowhere do they share any noise, up to the middle, or everywhere: at the lowest and at the largest lr."""
    rng = np.random.default_rng(1)
    x = np.array(list(product(range(-2, 3), repeat=2)), dtype=float)
    share = 1 / (1 + np.exp(1.1 * (x[:, :1] - parting_lr)))
    rows = rng.normal(size=(5, 6))[(x[:, 0] + 2).astype(int)]
    noise = np.sqrt(share) * rows + np.sqrt(1 - share) * rng.normal(size=(25, 6))
    surface = fit(PointScores(x, np.ones((25, 6)), 0.05 * (x**2).sum(1)[:, None] + 0.1 * noise))
    for lr, expected in zip((-2.0, 2.0), shares, strict=True):
        covariance = surface.noise_covariance(np.array([[lr, 0.0], [lr, 1.0], [lr - 1, 0.0]]))
        correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
        assert correlation == pytest.approx(expected, abs=0.25)
        assert covariance[0, 2] == pytest.approx(0, abs=1e-12)
    assert surface.noise_sd == pytest.approx(0.1, rel=0.5)


def test_points_that_share_no_seed_are_hardly_known_to_each_other() -> None:
    scored = np.zeros((3, 4))
    scored[:2, :2], scored[2, 2:] = 1, 1
    layout = PointScores(X[:3], scored, scored * np.random.default_rng(0).normal(size=(3, 4)))
    _, error = fit_pairs(layout).differences(0, [1, 2])
    assert error[1] > 1000 * error[0]


@pytest.mark.parametrize("unstable_lr", [None, 2.0])
def test_an_lr_whose_noise_is_larger_is_found(unstable_lr: float | None) -> None:
    rng = np.random.default_rng(2)
    x = np.array(list(product(range(-2, 3), repeat=2)), dtype=float)
    sd = np.where(x[:, 0] == unstable_lr, 0.3, 0.06)
    layout = PointScores(x, np.ones((25, 8)), 0.05 * (x**2).sum(1)[:, None] + sd[:, None] * rng.normal(size=(25, 8)))
    surface = fit(layout)
    sd_unstable, sd_stable = np.sqrt(np.diag(surface.noise_covariance(np.array([[2.0, 0.0], [0.0, 0.0]]))))
    assert sd_stable == pytest.approx(0.06, rel=0.3)
    assert sd_unstable / sd_stable == pytest.approx(5.0 if unstable_lr else 1.0, rel=0.3)


def test_a_surface_seen_from_elsewhere_is_the_same_surface() -> None:
    rng = np.random.default_rng(3)
    layout = layout_of(3)
    noise = np.where(X[:, 0] == 1, 0.5, 0.1)[:, None] * rng.normal(size=layout.y_PS.shape)
    surface = fit(PointScores(X, layout.scored_PS, (0.1 * (X**2).sum(1)[:, None] + noise) * layout.scored_PS))
    assert any(noise.unstable_lr is not None for noise in surface.noises)
    from_there = surface.seen_from(np.array([1.0, -1.0]))
    assert from_there.noise_sd == pytest.approx(np.sqrt(surface.noise_covariance(np.array([[1.0, -1.0]]))[0, 0]))
    there, elsewhere = np.array([[1.0, -1.0]]), np.array([[2.0, 1.0]])
    mean, error = surface.with_positions(elsewhere).differences(0, [1, 5, 7])
    mean_from_there, error_from_there = from_there.with_positions(elsewhere - there).differences(0, [1, 5, 7])
    assert (mean_from_there, error_from_there) == (pytest.approx(mean), pytest.approx(error))
    assert from_there.misfits() == pytest.approx(surface.misfits())
    assert from_there.fitted_dof == pytest.approx(surface.fitted_dof)
