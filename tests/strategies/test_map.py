import itertools
from typing import Literal

import pytest

from ettsweep.strategies.factors import BULK, Dims, Group, lr_factor
from ettsweep.strategies.strategy import bulk_exponent, map_point, transfer_point

STANDARD, NTK, HYBRID, MUP = None, 0.0, 0.5, 1.0
STRATEGIES = [STANDARD, NTK, 0.25, HYBRID, MUP]


@pytest.mark.parametrize(
    ("s", "adamw", "sgd"),
    [(STANDARD, 0, 0), (NTK, 1.5, 1), (0.25, 1.375, 0.75), (HYBRID, 1.25, 0.5), (MUP, 1, 0)],
)
def test_bulk_exponent(s: float | None, adamw: float, sgd: float) -> None:
    assert bulk_exponent(s, "adamw") == adamw
    assert bulk_exponent(s, "sgd") == sgd


@pytest.mark.parametrize(
    ("width", "point", "from_s", "to_s", "expected", "rel"),
    [
        (1024, (1e-3, 0.01), STANDARD, NTK, (32.768, 0.01 / 32768), 1e-12),
        (1024, (1e-3, 0.01), STANDARD, NTK, (32.768, 3.052e-7), 1e-4),
        (2048, (7e-4, 0.01), STANDARD, NTK, (64.877, 1.079e-7), 2e-4),
        (768, (1e-3, 0.8), STANDARD, NTK, (21.28, 3.76e-5), 1e-3),
        (768, (20, 4e-5), NTK, HYBRID, (3.80, 2.1e-4), 5e-3),
        (768, (20, 4e-5), NTK, MUP, (0.722, 1.1e-3), 1e-2),
        (16, (1.0, 1.0), STANDARD, NTK, (64, 1 / 64), 1e-12),
        (16, (1.0, 1.0), STANDARD, HYBRID, (32, 1 / 32), 1e-12),
        (16, (1.0, 1.0), STANDARD, MUP, (16, 1 / 16), 1e-12),
        (256, (1.0, 1.0), STANDARD, 0.25, (2048, 1 / 2048), 1e-12),
        (256, (1.0, 1.0), MUP, NTK, (16, 1 / 16), 1e-12),
    ],
)
def test_closed_form_maps_with_adamw(
    width: int,
    point: tuple[float, float],
    from_s: float | None,
    to_s: float | None,
    expected: tuple[float, float],
    rel: float,
) -> None:
    assert map_point(*point, from_s, to_s, width) == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize(
    ("from_s", "to_s", "k"), [(STANDARD, NTK, 256), (STANDARD, MUP, 1), (NTK, HYBRID, 1 / 16), (0.25, NTK, 4)]
)
def test_closed_form_maps_with_sgd(from_s: float | None, to_s: float | None, k: float) -> None:
    assert map_point(0.5, 0.25, from_s, to_s, 256, "sgd") == pytest.approx((0.5 * k, 0.25 / k), rel=1e-12)


@pytest.mark.parametrize(("from_s", "to_s"), list(itertools.product(STRATEGIES, STRATEGIES)))
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("width", [48, 768])
def test_map_keeps_the_bulk_step_and_the_decay_per_step(
    from_s: float | None, to_s: float | None, optimizer: Literal["adamw", "sgd"], width: int
) -> None:
    dims = Dims("vision", width=width, n_patch=48, n_out=10, mlp_ratio=4)
    lr, wd = map_point(1e-3, 0.8, from_s, to_s, width, optimizer)
    assert lr * wd == pytest.approx(8e-4, rel=1e-12)
    for group in BULK:
        before = 1e-3 * lr_factor(group, dims, from_s, optimizer, "ignore")
        assert lr * lr_factor(group, dims, to_s, optimizer, "ignore") == pytest.approx(before, rel=1e-12)
    assert map_point(lr, wd, to_s, from_s, width, optimizer) == pytest.approx((1e-3, 0.8), rel=1e-12)


def test_map_moves_the_steps_outside_the_bulk() -> None:
    dims = Dims("vision", width=768, n_patch=768, n_out=1000, mlp_ratio=4)
    lr, _ = map_point(1e-3, 0.8, STANDARD, NTK, 768)
    assert lr * lr_factor(Group.PE, dims, NTK, "adamw", "ignore") == pytest.approx(0.768, rel=1e-12)


def test_map_to_the_same_strategy_changes_nothing() -> None:
    for s in STRATEGIES:
        assert map_point(1e-3, 0.8, s, s, 768) == (1e-3, 0.8)


def test_no_decay_stays_no_decay() -> None:
    assert map_point(1e-3, 0.0, STANDARD, NTK, 768)[1] == 0


def test_bulk_step_of_the_papers_vit_optimum() -> None:
    dims = Dims("vision", width=768, n_patch=768, n_out=1000, mlp_ratio=4)
    assert 20 * lr_factor(Group.U, dims, NTK, "adamw", "ignore") == pytest.approx(9.40e-4, rel=5e-4)


# --- from width to width ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "from_s", "to_s", "k"),
    [
        # Through maximal update lr is n^1 times that of standard, and n^-0.5 that of ntk; then back at width m.
        ("adamw", STANDARD, STANDARD, 16 / 256),
        ("adamw", NTK, NTK, (256 / 16) ** 0.5),
        ("adamw", HYBRID, HYBRID, (256 / 16) ** 0.25),
        ("adamw", MUP, MUP, 1),
        ("adamw", STANDARD, MUP, 16),
        ("adamw", STANDARD, NTK, 16 * 256**0.5),
        ("adamw", NTK, STANDARD, 16**-0.5 / 256),
        # With SGD standard and maximal update have one bulk, and ntk has n times its lr.
        ("sgd", STANDARD, STANDARD, 1),
        ("sgd", NTK, NTK, 256 / 16),
        ("sgd", STANDARD, NTK, 256),
        ("sgd", NTK, MUP, 1 / 16),
    ],
)
def test_closed_forms_from_width_16_to_256(
    optimizer: Literal["adamw", "sgd"], from_s: float | None, to_s: float | None, k: float
) -> None:
    assert transfer_point(0.5, 0.25, (from_s, 16), (to_s, 256), optimizer) == pytest.approx(
        (0.5 * k, 0.25 / k), rel=1e-12
    )


@pytest.mark.parametrize(("from_s", "to_s"), list(itertools.product(STRATEGIES, STRATEGIES)))
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_to_another_width_and_back_changes_nothing_and_a_stop_between_leads_to_the_same_point(
    from_s: float | None, to_s: float | None, optimizer: Literal["adamw", "sgd"]
) -> None:
    origin, target, between = (from_s, 48), (to_s, 768), (NTK, 100)
    transfer_point_result = transfer_point(1e-3, 0.8, origin, target, optimizer)
    assert transfer_point(*transfer_point_result, target, origin, optimizer) == pytest.approx((1e-3, 0.8), rel=1e-12)
    stopped = transfer_point(1e-3, 0.8, origin, between, optimizer)
    assert transfer_point(*stopped, between, target, optimizer) == pytest.approx(transfer_point_result, rel=1e-12)
    assert transfer_point_result[0] * transfer_point_result[1] == pytest.approx(8e-4, rel=1e-12), (
        "the decay per step is the same"
    )


@pytest.mark.parametrize(("from_s", "to_s"), list(itertools.product(STRATEGIES, STRATEGIES)))
def test_at_one_width_a_point_is_mapped_alone(from_s: float | None, to_s: float | None) -> None:
    assert transfer_point(1e-3, 0.8, (from_s, 768), (to_s, 768)) == map_point(1e-3, 0.8, from_s, to_s, 768)
