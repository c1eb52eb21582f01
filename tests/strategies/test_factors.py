import math
from typing import Literal

import pytest

from ettsweep.strategies.factors import (
    BULK,
    Dims,
    Group,
    init_distribution,
    init_std,
    lr_factor,
    output_rescale,
    wd_factor,
)

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
def test_lr_factors_with_and_without_the_mlp_ratio(
    optimizer: Literal["adamw", "sgd"], dims: Dims, s: float, row: tuple[float, ...]
) -> None:
    included = by_group(row)
    ignored = included | dict.fromkeys((Group.W, Group.X), included[Group.Q])
    assert included.keys() == set(Group)
    for group in Group:
        assert lr_factor(group, dims, s, optimizer, "include") == pytest.approx(included[group], rel=1e-14)
        assert lr_factor(group, dims, s, optimizer, "ignore") == pytest.approx(ignored[group], rel=1e-14)
        assert lr_factor(group, dims, None, optimizer, "include") == 1.0


# Columns: patch, q k v, u, w, x; then the std of the head under standard, s = 0, 0.25, 0.5 and 1.
@pytest.mark.parametrize(
    ("dims", "variances", "heads"),
    [
        (NARROW, (1 / 48, 1 / 32, 1 / 48, 1 / 40, 1 / 40), (1 / 4, 1 / 4, 1 / 4 / R2, 1 / 8, 1 / 16)),
        (WIDE, (1 / 12, 1 / 512, 1 / 768, 1 / 640, 1 / 320), (1 / 16, 1 / 16, 1 / 32, 1 / 64, 1 / 256)),
    ],
)
def test_initial_stds_of_vision(dims: Dims, variances: tuple[float, ...], heads: tuple[float, ...]) -> None:
    patch, qkv, u, w, x = variances
    expected = {Group.PATCH: patch, Group.Q: qkv, Group.K: qkv, Group.V: qkv, Group.U: u, Group.W: w, Group.X: x}
    for s, head in zip(STRATEGIES, heads, strict=True):
        assert {group: init_std(group, dims, s) ** 2 for group in expected} == pytest.approx(expected, rel=1e-14)
        assert init_std(Group.HEAD, dims, s) == pytest.approx(head, rel=1e-14)
        assert (init_std(Group.PE, dims, s), init_std(Group.HEAD_BIAS, dims, s)) == (0.02, 0)


LANGUAGE = BULK | {Group.WE, Group.PE}


@pytest.mark.parametrize("s", STRATEGIES)
def test_language_starts_with_one_std_but_for_words_and_an_untied_head(s: float | None) -> None:
    assert init_std(Group.WE, TEXT, s) == (0.02 if s is None else 1.0)
    assert {init_std(group, TEXT, s) for group in LANGUAGE - {Group.WE}} == {0.02}
    assert {init_std(Group.GAIN, dims, s) for dims in (TEXT, VIT_B16)} == {0.0}, "added to one"
    vision = Dims("vision", TEXT.width, n_patch=1, n_out=TEXT.n_out, mlp_ratio=4)
    assert init_std(Group.HEAD, TEXT, s) == (0.02 if s is None else init_std(Group.HEAD, vision, s))
    for optimizer in ("adamw", "sgd"):
        of_text, of_vision = (lr_factor(Group.HEAD, dims, s, optimizer, "ignore") for dims in (TEXT, vision))
        assert of_text == of_vision


# The reference values of the paper's two widths: 1 / 32 is 1024^-1/2.
@pytest.mark.parametrize(
    ("width", "s", "rescale"), [(1024, None, 1), (1024, 0.0, 1 / 32), (1024, 0.5, 1024**-0.75), (2048, 0.0, 0.022097)]
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


def test_decay_is_not_scaled_and_biases_do_not_decay() -> None:
    for group in set(Group) - {Group.HEAD_BIAS}:
        for s in STRATEGIES:
            factor = lr_factor(group, NARROW, s, "adamw", "include")
            assert factor * wd_factor(group, factor) == pytest.approx(1, rel=1e-14)
    assert wd_factor(Group.HEAD_BIAS, 0.25) == 0
    assert wd_factor(Group.PE, 0.25, decay_pe=False) == 0
    assert wd_factor(Group.HEAD, 0.25, decay_pe=False) == 4
