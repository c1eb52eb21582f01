"""The surface against the same model written out in full, and against ranks of ordinary design matrices."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from ettsweep.study import surface as module
from ettsweep.study.surface import WIDTH, Array, PointScores, fit

X = np.array([[0, 0], [1, 0], [0, 1], [1, -1], [-1, 1], [0, -1], [-1, 0]], dtype=float)
ELSEWHERE = np.array([[2.0, 0.0], [-1.0, -1.0], [0.5, 0.3], [30.0, 0.0]])
LENGTHS, RATIOS, SHARES = (1.0, 3.0), (20.0, 300.0), (0.0, 0.5)


def table_of(seed: int, missing: float = 0.3, seeds: int = 5) -> PointScores:
    """Return scores of a bowl, some of them missing; every point and every seed has some."""
    rng = np.random.default_rng(seed)
    scored = (rng.random((len(X), seeds)) > missing).astype(float)
    scored[:, 0] = scored[0] = 1.0
    f = 0.1 * (X[:, 0] - 0.3) ** 2 + 0.05 * X[:, 1] ** 2
    y = f[:, None] + rng.normal(size=seeds) + 0.1 * rng.normal(size=scored.shape)
    return PointScores(X, scored, y * scored)


def written_out(
    scores: PointScores, z: Array, lengths: tuple[float, float], ratio: float, share: float
) -> tuple[Array, Array, float, float]:
    """Return mean and covariance (sigma 1) of f at positions, less f at the first; square and log determinant.

    All scores are one Gaussian here. Effects of seeds get a variance so large that it stands for a flat prior.
    """
    p, s = np.nonzero(scores.scored_PS)
    x, y, flat = scores.x_PD[p], scores.y_PS[p, s], 1e7

    def kernel(a: Array, b: Array) -> Array:
        return np.asarray(ratio * np.exp(-0.5 * (((a[:, None] - b) / np.array(lengths)) ** 2).sum(2)))

    is_one_seed = s[:, None] == s
    shared = share * is_one_seed * (x[:, None, 0] == x[:, 0])
    cov = kernel(x, x) + flat * is_one_seed + shared + (1 - share) * np.eye(len(y))
    across, signs = kernel(z, x), np.eye(len(z)) - np.eye(len(z))[0]
    mean = signs @ across @ np.linalg.solve(cov, y)
    left = signs @ (kernel(z, z) - across @ np.linalg.solve(cov, across.T)) @ signs.T
    log_det = np.linalg.slogdet(cov)[1] - len(set(s)) * np.log(flat)
    return mean, left, float(y @ np.linalg.solve(cov, y)), float(log_det)


@pytest.fixture
def sum_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that has fits sum over some length scales, ratios and shares, and drop none of them."""

    def replace_grid(lengths: Sequence[float], ratios: Sequence[float], shares: Sequence[float]) -> None:
        for name, values in (("LENGTH_SCALES", lengths), ("SIGNAL_TO_NOISE", ratios), ("SHARED_NOISE", shares)):
            monkeypatch.setattr(module, name, values)
        monkeypatch.setattr(module, "NEGLIGIBLE_WEIGHT", 0.0)
        module._kernels.cache_clear()

    yield replace_grid
    module._kernels.cache_clear()


@pytest.mark.parametrize("seed", range(3))
def test_the_posterior_is_that_of_the_model_written_out(seed: int, sum_over: Callable[..., None]) -> None:
    """At the points and elsewhere: components weighted by marginal likelihood, and the moments of their mixture."""
    scores, z = table_of(seed), np.vstack([X, ELSEWHERE])
    logs, means, covs, variances = [], [], [], []
    for a, b, ratio, share in product(LENGTHS, LENGTHS, RATIOS, SHARES):
        mean, cov, square, log_det = written_out(scores, z, (a, b), ratio, share)
        prior = sum(np.log(length / module.TYPICAL_LENGTH_SCALE) ** 2 for length in (a, b))
        prior /= module.LENGTH_SCALE_SPREAD**2
        logs.append(-0.5 * (scores.dof * np.log(square) + log_det + prior))
        means.append(mean)
        covs.append(square / scores.dof * cov)
        variances.append(square / scores.dof)
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    mean = np.average(means, 0, weights)
    cov = np.average(covs, 0, weights) + np.cov(np.array(means).T, aweights=weights, ddof=0)
    sum_over(LENGTHS, RATIOS, SHARES)
    surface = fit(scores)
    assert np.sort(surface.weight_H) == pytest.approx(np.sort(weights), rel=1e-3)
    assert surface.noise_sd == pytest.approx(np.average(variances, weights=weights) ** 0.5, rel=1e-4)
    signs = np.eye(len(z)) - np.eye(len(z))[0]
    own = signs[: len(X), : len(X)]
    assert own @ surface.mean_P == pytest.approx(mean[: len(X)], abs=1e-4)
    assert own @ surface.cov_PP @ own.T == pytest.approx(WIDTH**2 * cov[: len(X), : len(X)], rel=1e-3, abs=1e-5)
    with_more = fit(scores.with_positions(ELSEWHERE))
    for mean_Z, cov_ZZ in ((surface.means_at(z), surface.covariance_at(z)), (with_more.mean_P, with_more.cov_PP)):
        assert signs @ mean_Z == pytest.approx(mean, abs=1e-4)
        assert signs @ cov_ZZ @ signs.T == pytest.approx(WIDTH**2 * cov, rel=1e-3, abs=1e-5)


def test_a_contrast_has_the_standard_error_of_students_t() -> None:
    surface, weight_P = fit(table_of(0)), np.array([1.0, -0.5, -0.5, 0, 0, 0, 0])
    mean, error = surface.contrast(weight_P)
    draws = np.random.default_rng(0).multivariate_normal(surface.mean_P, surface.cov_PP, 200_000) @ weight_P
    assert (mean, error) == pytest.approx(
        (draws.mean(), draws.std() * (surface.dof / (surface.dof - 2)) ** 0.5), rel=0.02
    )


@pytest.mark.parametrize("seed", range(5))
def test_degrees_of_freedom_are_those_of_the_two_way_layout(seed: int) -> None:
    scores = table_of(seed, missing=0.7)
    p, s = np.nonzero(scores.scored_PS)
    by_seed, by_point = np.eye(scores.scored_PS.shape[1])[s], np.eye(len(X))[p]
    assert scores.dof == len(p) - np.linalg.matrix_rank(by_seed)
    assert scores.pure_dof == len(p) - np.linalg.matrix_rank(np.hstack([by_seed, by_point]))
    more = scores.with_seed([0, 2])
    assert (more.dof, more.pure_dof) == (scores.dof + 1, scores.pure_dof + 1)


@pytest.mark.parametrize(("share", "ratio"), [(0.0, 1.0), (0.6, np.sqrt(1 - 0.6))])
def test_noise_that_runs_of_one_lr_share_leaves_their_differences_alone(share: float, ratio: float) -> None:
    """On a rough surface, errors are those of means: along wd they lack the noise that two points have in common."""
    rng = np.random.default_rng(0)
    x = np.array(list(product(range(5), repeat=2)), dtype=float)
    common = rng.normal(size=(5, 40))[x[:, 0].astype(int)]
    noise = np.sqrt(share) * common + np.sqrt(1 - share) * rng.normal(size=(25, 40))
    y = 5 * rng.normal(size=(25, 1)) + rng.normal(size=40) + 0.1 * noise
    surface = fit(PointScores(x, np.ones((25, 40)), y))
    error = {other: surface.contrast(np.eye(25)[12] - np.eye(25)[other])[1] for other in (11, 7)}
    assert error[11] / error[7] == pytest.approx(ratio, rel=0.05)
    assert error[7] == pytest.approx(WIDTH * 0.1 * np.sqrt(2 / 40), rel=0.05)


def test_fitted_parameters_are_the_trace_of_the_smoother(sum_over: Callable[..., None]) -> None:
    """Less one for each seed's effect: by how much each fitted score moves with the score itself."""
    sum_over([2.0], [5.0], [0.0])
    scores, trace = table_of(1), 0.0
    for p, s in np.argwhere(scores.scored_PS):
        unit_PS = np.zeros_like(scores.y_PS)
        unit_PS[p, s] = 1.0
        f_P, used_P = fit(PointScores(X, scores.scored_PS, unit_PS)).mean_P, scores.scored_PS[:, s]
        trace += f_P[p] + (1 - f_P @ used_P) / used_P.sum()
    assert fit(scores).fitted_dof == pytest.approx(trace - scores.scored_PS.shape[1])
