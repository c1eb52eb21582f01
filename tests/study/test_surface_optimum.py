"""The fitted optimum against bowls whose optimum is known."""

from itertools import product

import numpy as np

from ettsweep.study.posterior import Posterior, fit_posterior
from ettsweep.study.surface import WIDTH, Position
from ettsweep.study.surface_optimum import find_optimum
from ettsweep.trainer.tasks.registry import LOWEST_LOSS

AROUND = list(product(range(-2, 3), repeat=2))


def fitted(centre: tuple[float, float], sd: float, seed: int = 0, seeds: int = 3, reach: int = 2) -> Posterior:
    """Fit noisy scores of a bowl around a centre, whose axes are not those of the lattice."""
    draw, (a, b) = np.random.default_rng(seed), centre
    scores: dict[Position, dict[int, float]] = {
        (float(i), float(j)): {
            s: 1 + 0.05 * ((i - a) ** 2 + (i - a) * (j - b) + (j - b) ** 2) + 0.02 * s + draw.normal(0, sd)
            for s in range(seeds)
        }
        for i, j in AROUND
        if max(abs(i), abs(j)) <= reach
    }
    posterior = fit_posterior(scores, (0.0, 0.0), LOWEST_LOSS)
    assert posterior is not None
    return posterior


def test_the_optimum_is_found_between_points_within_its_errors() -> None:
    """Its errors, widened, are those that it has over many draws of the noise: squared, in units of theirs, 2 for two axes."""
    off, position_D = [], np.zeros(2)
    for seed in range(40):
        optimum = find_optimum(fitted((0.3, -0.2), 0.01, seed))
        assert optimum is not None
        assert optimum.cov_DD is not None
        position_D = optimum.position_D - (0.3, -0.2)
        off.append(position_D @ np.linalg.solve(optimum.cov_DD, position_D))
    assert 1.5 < WIDTH**2 * np.mean(off) < 3.0
    assert np.linalg.norm(position_D) < 0.2


def test_at_the_edge_there_is_no_error() -> None:
    optimum = find_optimum(fitted((4.0, 0.0), 0.01))
    assert optimum is not None
    assert (optimum.position_D[0], optimum.error) == (2.0, None)


def test_where_its_error_leaves_the_points_none_is_stated() -> None:
    """Both optima are a third of a step inside the edge; the noise is three times as large for the second."""
    known, unknown = (find_optimum(fitted((1.6, 0.0), sd)) for sd in (0.03, 0.1))
    assert known is not None
    assert unknown is not None
    assert max(known.position_D[0], unknown.position_D[0]) < 1.8
    assert known.error is not None
    assert unknown.error is None


def test_where_the_noise_is_unknown_there_is_no_optimum() -> None:
    assert find_optimum(fitted((0.0, 0.0), 0.01, seeds=1, reach=1)) is None
