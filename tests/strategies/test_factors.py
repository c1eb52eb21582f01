import math
import subprocess
import sys
from typing import Literal

import pytest

from ettsweep.strategies.factors import (
    BULK,
    Dims,
    Group,
    MlpFactor,
    init_distribution,
    init_std,
    lr_factor,
    output_rescale,
    wd_factor,
)
from ettsweep.strategies.strategy import bulk_exponent

FAMILY = [0.0, 0.25, 0.5, 1.0]
STRATEGIES = [None, *FAMILY]

# Widths whose fractional powers are powers of 2; n_patch, n_out and M differ from them and from one another.
NARROW = Dims("vision", width=16, n_patch=48, n_out=100, mlp_ratio=4)
WIDE = Dims("vision", width=256, n_patch=12, n_out=25, mlp_ratio=2)
TEXT = Dims("language", width=1024, n_patch=None, n_out=50265, mlp_ratio=4)
VIT_B16 = Dims("vision", width=768, n_patch=768, n_out=1000, mlp_ratio=4)

R2 = math.sqrt(2)

# Columns: patch; we and pe; q, k, v and u; w and x with M; head; head_bias.
ADAMW = {
    (NARROW, 0.0): (1 / 192, 1 / 4, 1 / 64, 1 / 128, 1 / 256, 1 / 160, 1 / 10),
    (NARROW, 0.25): (R2 / 192, R2 / 4, R2 / 64, R2 / 128, R2 / 256, 1 / 160, 1 / 10),
    (NARROW, 0.5): (1 / 96, 1 / 2, 1 / 32, 1 / 64, 1 / 128, 1 / 160, 1 / 10),
    (NARROW, 1.0): (1 / 48, 1, 1 / 16, 1 / 32, 1 / 64, 1 / 160, 1 / 10),
    (WIDE, 0.0): (1 / 192, 1 / 16, 1 / 4096, 1 / 4096 / R2, 1 / 8192, 1 / 1280, 1 / 5),
    (WIDE, 0.25): (1 / 96, 1 / 8, 1 / 2048, 1 / 2048 / R2, 1 / 4096, 1 / 1280, 1 / 5),
    (WIDE, 0.5): (1 / 48, 1 / 4, 1 / 1024, 1 / 1024 / R2, 1 / 2048, 1 / 1280, 1 / 5),
    (WIDE, 1.0): (1 / 12, 1, 1 / 256, 1 / 256 / R2, 1 / 512, 1 / 1280, 1 / 5),
}
SGD = {
    (NARROW, 0.0): (1 / 48, 1, 1 / 16, 1 / 16, 1 / 64, 1 / 16, 1),
    (NARROW, 0.25): (1 / 24, 2, 1 / 8, 1 / 8, 1 / 32, 1 / 16, 1),
    (NARROW, 0.5): (1 / 12, 4, 1 / 4, 1 / 4, 1 / 16, 1 / 16, 1),
    (NARROW, 1.0): (1 / 3, 16, 1, 1, 1 / 4, 1 / 16, 1),
    (WIDE, 0.0): (1 / 12, 1, 1 / 256, 1 / 256, 1 / 512, 1 / 256, 1),
    (WIDE, 0.25): (1 / 3, 4, 1 / 64, 1 / 64, 1 / 128, 1 / 256, 1),
    (WIDE, 0.5): (4 / 3, 16, 1 / 16, 1 / 16, 1 / 32, 1 / 256, 1),
    (WIDE, 1.0): (64 / 3, 256, 1, 1, 1 / 2, 1 / 256, 1),
}
FACTORS: list[tuple[Literal["adamw", "sgd"], Dims, float, tuple[float, ...]]] = [
    *(("adamw", dims, s, row) for (dims, s), row in ADAMW.items()),
    *(("sgd", dims, s, row) for (dims, s), row in SGD.items()),
]


def by_group(row: tuple[float, ...]) -> dict[Group, float]:
    patch, embedding, attention, w, x, head, head_bias = row
    return {
        Group.PATCH: patch,
        Group.WE: embedding,
        Group.PE: embedding,
        Group.GAIN: embedding,
        **dict.fromkeys((Group.Q, Group.K, Group.V, Group.U), attention),
        Group.W: w,
        Group.X: x,
        Group.HEAD: head,
        Group.HEAD_BIAS: head_bias,
    }


@pytest.mark.parametrize(("optimizer", "dims", "s", "row"), FACTORS)
def test_lr_factors_with_the_mlp_ratio(
    optimizer: Literal["adamw", "sgd"], dims: Dims, s: float, row: tuple[float, ...]
) -> None:
    expected = by_group(row)
    assert expected.keys() == set(Group)
    for group in Group:
        assert lr_factor(group, dims, s, optimizer, "include") == pytest.approx(expected[group], rel=1e-14)


@pytest.mark.parametrize(("optimizer", "dims", "s", "row"), FACTORS)
def test_lr_factors_without_the_mlp_ratio(
    optimizer: Literal["adamw", "sgd"], dims: Dims, s: float, row: tuple[float, ...]
) -> None:
    expected = by_group(row)
    expected[Group.W] = expected[Group.X] = expected[Group.Q]
    for group in Group:
        assert lr_factor(group, dims, s, optimizer, "ignore") == pytest.approx(expected[group], rel=1e-14)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("mlp_factor", ["ignore", "include"])
@pytest.mark.parametrize("dims", [NARROW, WIDE])
def test_standard_scales_no_group(optimizer: Literal["adamw", "sgd"], mlp_factor: MlpFactor, dims: Dims) -> None:
    assert {lr_factor(group, dims, None, optimizer, mlp_factor) for group in Group} == {1.0}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("s", STRATEGIES)
def test_bulk_shares_one_float_and_its_exponent(optimizer: Literal["adamw", "sgd"], s: float | None) -> None:
    factors = {lr_factor(group, VIT_B16, s, optimizer, "ignore") for group in BULK}
    assert len(factors) == 1
    assert factors.pop() == pytest.approx(768 ** -bulk_exponent(s, optimizer), rel=1e-13)


# Reference values for ViT-B/16, to the digits that they are given with.
@pytest.mark.parametrize(
    ("group", "values"),
    [
        (Group.Q, (4.698e-5, 2.473e-4, 1.302e-3)),
        (Group.PE, (0.03608, 0.18996, 1)),
        (Group.HEAD, (4.1175e-5, 4.1175e-5, 4.1175e-5)),
        (Group.HEAD_BIAS, (0.03162, 0.03162, 0.03162)),
    ],
)
def test_reference_factors_of_vit_b16(group: Group, values: tuple[float, float, float]) -> None:
    for s, value in zip((0.0, 0.5, 1.0), values, strict=True):
        assert lr_factor(group, VIT_B16, s, "adamw", "ignore") == pytest.approx(value, rel=2e-4)


def test_mup_embedding_factor_is_exactly_one() -> None:
    assert lr_factor(Group.PE, VIT_B16, 1.0, "adamw", "ignore") == 1.0


# Columns: patch, q k v, u, w, x.
@pytest.mark.parametrize("s", STRATEGIES)
@pytest.mark.parametrize(
    ("dims", "variances"),
    [
        (NARROW, (1 / 48, 1 / 32, 1 / 48, 1 / 40, 1 / 40)),
        (WIDE, (1 / 12, 1 / 512, 1 / 768, 1 / 640, 1 / 320)),
    ],
)
def test_init_stds_below_the_head_do_not_depend_on_s(dims: Dims, variances: tuple[float, ...], s: float | None) -> None:
    patch, qkv, u, w, x = variances
    expected = {
        Group.PATCH: patch,
        Group.Q: qkv,
        Group.K: qkv,
        Group.V: qkv,
        Group.U: u,
        Group.W: w,
        Group.X: x,
    }
    for group, variance in expected.items():
        assert init_std(group, dims, s) ** 2 == pytest.approx(variance, rel=1e-14)
    assert init_std(Group.PE, dims, s) == 0.02
    assert init_std(Group.HEAD_BIAS, dims, s) == 0


@pytest.mark.parametrize(
    ("dims", "s", "std"),
    [
        (NARROW, None, 1 / 4),
        (NARROW, 0.0, 1 / 4),
        (NARROW, 0.25, 1 / 4 / R2),
        (NARROW, 0.5, 1 / 8),
        (NARROW, 1.0, 1 / 16),
        (WIDE, None, 1 / 16),
        (WIDE, 0.0, 1 / 16),
        (WIDE, 0.25, 1 / 32),
        (WIDE, 0.5, 1 / 64),
        (WIDE, 1.0, 1 / 256),
    ],
)
def test_head_std_shrinks_with_s(dims: Dims, s: float | None, std: float) -> None:
    assert init_std(Group.HEAD, dims, s) == pytest.approx(std, rel=1e-14)


@pytest.mark.parametrize(("s", "std"), [(0.0, 0.03608), (0.5, 0.006855), (1.0, 0.001302)])
def test_reference_head_std_of_vit_b16(s: float, std: float) -> None:
    assert init_std(Group.HEAD, VIT_B16, s) == pytest.approx(std, rel=2e-4)


@pytest.mark.parametrize("s", STRATEGIES)
def test_an_untied_language_head_starts_and_learns_as_a_head(s: float | None) -> None:
    """Under standard, language has one std for all."""
    text, vision = TEXT, Dims("vision", TEXT.width, n_patch=1, n_out=TEXT.n_out, mlp_ratio=4)
    assert init_std(Group.HEAD, text, s) == (0.02 if s is None else init_std(Group.HEAD, vision, s))
    for optimizer in ("adamw", "sgd"):
        of_text, of_vision = (lr_factor(Group.HEAD, dims, s, optimizer, "ignore") for dims in (text, vision))
        assert of_text == of_vision


def test_gains_start_from_nothing_added_to_one() -> None:
    assert {init_std(Group.GAIN, dims, s) for dims in (TEXT, VIT_B16) for s in STRATEGIES} == {0.0}


LANGUAGE = BULK | {Group.WE, Group.PE}


def test_word_embedding_is_of_order_one_in_the_family_only() -> None:
    assert init_std(Group.WE, TEXT, None) == 0.02
    assert {init_std(Group.WE, TEXT, s) for s in FAMILY} == {1.0}


@pytest.mark.parametrize("s", STRATEGIES)
def test_all_else_of_a_language_model_starts_with_one_std_in_all_strategies(s: float | None) -> None:
    assert {init_std(group, TEXT, s) for group in LANGUAGE - {Group.WE}} == {0.02}


# The reference values of the paper's two widths: 1 / 32 is 1024^-1/2.
@pytest.mark.parametrize(
    ("width", "s", "rescale"),
    [
        (1024, None, 1),
        (1024, 0.0, 1 / 32),
        (1024, 0.5, 1024**-0.75),
        (1024, 1.0, 1 / 1024),
        (2048, None, 1),
        (2048, 0.0, 0.022097),
        (256, 0.25, 1 / 32),
    ],
)
def test_output_rescale_is_what_the_std_of_a_head_would_be(width: int, s: float | None, rescale: float) -> None:
    assert output_rescale(width, s) == pytest.approx(rescale, rel=1e-4)
    if s is not None:
        head = init_std(Group.HEAD, Dims("vision", width=width, n_patch=1, n_out=2, mlp_ratio=4), s)
        assert output_rescale(width, s) == head


def test_factors_of_bart_large_are_the_papers() -> None:
    """Embeddings learn faster than the bulk by a factor of the width, and wd = 0.01 is mapped to 3.05e-7."""
    embedding, bulk = (lr_factor(group, TEXT, 0.0, "adamw", "ignore") for group in (Group.WE, Group.Q))
    assert embedding / bulk == pytest.approx(1024)
    assert bulk == pytest.approx(1 / 32768)
    assert lr_factor(Group.PE, TEXT, 0.0, "adamw", "ignore") == embedding == pytest.approx(1 / 32)


def test_bulk_is_uniform_and_the_rest_normal() -> None:
    assert {group for group in Group if init_distribution(group, "vision") == "uniform"} == BULK
    assert {init_distribution(group, "language") for group in LANGUAGE} == {"normal"}


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.HEAD_BIAS])
@pytest.mark.parametrize("s", STRATEGIES)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_decay_is_not_scaled(group: Group, s: float | None, optimizer: Literal["adamw", "sgd"]) -> None:
    factor = lr_factor(group, NARROW, s, optimizer, "include")
    assert factor * wd_factor(group, factor) == pytest.approx(1, rel=1e-14)


def test_head_bias_never_decays_and_pe_only_if_asked() -> None:
    assert wd_factor(Group.HEAD_BIAS, 0.25) == 0
    assert wd_factor(Group.PE, 0.25) == 4
    assert wd_factor(Group.PE, 0.25, decay_pe=False) == 0
    assert wd_factor(Group.HEAD, 0.25, decay_pe=False) == 4


def test_scaling_imports_no_torch() -> None:
    code = (
        "import sys, ettsweep.strategies.factors, ettsweep.strategies.strategy;"
        "sys.exit(', '.join({'torch', 'numpy', 'pydantic'} & sys.modules.keys()) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
