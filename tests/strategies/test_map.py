import itertools
from typing import Literal

import pytest

from ettsweep.strategies.factors import BULK, Dims, lr_factor
from ettsweep.strategies.strategy import bulk_exponent, map_point, transfer_point

STANDARD, NTK, HYBRID, MUP = None, 0.0, 0.5, 1.0
STRATEGIES = [STANDARD, NTK, 0.25, HYBRID, MUP]
OPTIMIZERS: tuple[Literal["adamw", "sgd"], ...] = ("adamw", "sgd")


@pytest.mark.parametrize(
    ("s", "adamw", "sgd"), [(STANDARD, 0, 0), (NTK, 1.5, 1), (0.25, 1.375, 0.75), (HYBRID, 1.25, 0.5), (MUP, 1, 0)]
)
def test_bulk_exponent(s: float | None, adamw: float, sgd: float) -> None:
    assert bulk_exponent(s, "adamw") == adamw
    assert bulk_exponent(s, "sgd") == sgd


@pytest.mark.parametrize(
    ("width", "point", "from_s", "to_s", "expected", "rel"),
    [
        (1024, (1e-3, 0.01), STANDARD, NTK, (32.768, 3.052e-7), 1e-4),
        (2048, (7e-4, 0.01), STANDARD, NTK, (64.877, 1.079e-7), 2e-4),
        (768, (1e-3, 0.8), STANDARD, NTK, (21.28, 3.76e-5), 1e-3),
        (768, (20, 4e-5), NTK, MUP, (0.722, 1.1e-3), 1e-2),
        (768, (1e-3, 0), STANDARD, NTK, (21.28, 0), 1e-3),
    ],
)
def test_the_papers_maps(
    width: int,
    point: tuple[float, float],
    from_s: float | None,
    to_s: float | None,
    expected: tuple[float, float],
    rel: float,
) -> None:
    assert map_point(*point, from_s, to_s, width) == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_map_keeps_the_bulk_step_and_the_decay_per_step(optimizer: Literal["adamw", "sgd"]) -> None:
    dims = Dims("vision", width=768, n_patch=48, n_out=10, mlp_ratio=4)
    for from_s, to_s in itertools.product(STRATEGIES, STRATEGIES):
        lr, wd = map_point(1e-3, 0.8, from_s, to_s, 768, optimizer)
        assert lr * wd == pytest.approx(8e-4, rel=1e-12)
        for group in BULK:
            before = 1e-3 * lr_factor(group, dims, from_s, optimizer, "ignore")
            assert lr * lr_factor(group, dims, to_s, optimizer, "ignore") == pytest.approx(before, rel=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "from_s", "to_s", "k"),
    [
        # Through maximal update lr is n^1 times that of standard, and n^-0.5 that of ntk; then back at width m.
        ("adamw", STANDARD, STANDARD, 16 / 256),
        ("adamw", NTK, NTK, (256 / 16) ** 0.5),
        ("adamw", MUP, MUP, 1),
        ("adamw", STANDARD, NTK, 16 * 256**0.5),
        # With SGD standard and maximal update have one bulk, and ntk has n times its lr.
        ("sgd", STANDARD, STANDARD, 1),
        ("sgd", NTK, NTK, 256 / 16),
        ("sgd", NTK, MUP, 1 / 16),
    ],
)
def test_closed_forms_from_width_16_to_256(
    optimizer: Literal["adamw", "sgd"], from_s: float | None, to_s: float | None, k: float
) -> None:
    moved = transfer_point(0.5, 0.25, (from_s, 16), (to_s, 256), optimizer)
    assert moved == pytest.approx((0.5 * k, 0.25 / k), rel=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_way_to_another_width_does_not_matter(optimizer: Literal["adamw", "sgd"]) -> None:
    for from_s, to_s in itertools.product(STRATEGIES, STRATEGIES):
        origin, target, between = (from_s, 48), (to_s, 768), (NTK, 100)
        moved = transfer_point(1e-3, 0.8, origin, target, optimizer)
        assert transfer_point(*moved, target, origin, optimizer) == pytest.approx((1e-3, 0.8), rel=1e-12)
        stopped = transfer_point(1e-3, 0.8, origin, between, optimizer)
        assert transfer_point(*stopped, between, target, optimizer) == pytest.approx(moved, rel=1e-12)
        mapped = map_point(1e-3, 0.8, from_s, to_s, 768, optimizer)
        assert transfer_point(1e-3, 0.8, (from_s, 768), (to_s, 768), optimizer) == mapped
        assert from_s != to_s or mapped == (1e-3, 0.8), "exactly"
