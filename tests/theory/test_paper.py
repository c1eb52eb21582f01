"""What the theory says of initial values and powers: numbers of the paper, and those that models start and train with."""

import itertools
import math
from typing import Literal

import numpy as np
import pytest

from ettsweep.strategies.factors import BULK, Dims, Group, init_distribution, init_std, lr_factor
from ettsweep.theory.paper import (
    MEAN_MAGNITUDE,
    MEAN_MAGNITUDE_ERROR,
    initial_distribution,
    initial_std,
    learning_rate_factor,
)
from ettsweep.trainer.models.registry import dims, model_spec

VISION = [group for group in Group if group is not Group.WE]
TEXT = (Group.WE, Group.PE, *BULK)
S = [None, 0.0, 0.25, 0.5, 1.0]


def test_factors_and_stds_of_vit_b16_are_those_of_the_paper() -> None:
    vit = dims(model_spec("vit-b16"))
    by_group = {
        Group.U: (4.698e-5, 2.473e-4, 1.302e-3),
        Group.W: (4.698e-5, 2.473e-4, 1.302e-3),
        Group.PE: (0.03608, 0.18996, 1.0),
        Group.PATCH: (0.03608 / 768, 0.18996 / 768, 1 / 768),
        Group.HEAD: (4.1175e-5,) * 3,
        Group.HEAD_BIAS: (0.03162,) * 3,
    }
    for group, values in by_group.items():
        factors = [learning_rate_factor(group, vit, s, "adamw", "ignore") for s in (0.0, 0.5, 1.0)]
        assert factors == pytest.approx(values, rel=2e-4), group
    for group, included in ((Group.W, 1 / 2), (Group.X, 1 / 4), (Group.U, 1.0)):  # M = 4
        assert learning_rate_factor(group, vit, 0.0, "adamw", "include") == pytest.approx(768**-1.5 * included)
    assert learning_rate_factor(Group.W, vit, 0.0, "sgd", "include") == pytest.approx(1 / 768)
    assert learning_rate_factor(Group.X, vit, 0.0, "sgd", "include") == pytest.approx(1 / 768 / 4)
    heads = [initial_std(Group.HEAD, vit, s) for s in (None, 0.0, 0.5, 1.0)]
    assert heads == pytest.approx([0.03608, 0.03608, 0.006855, 0.001302], rel=1e-3)


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_the_mean_magnitude_of_drawn_values_scatters_as_stated(distribution: str) -> None:
    rng = np.random.default_rng(0)
    draws = {"normal": rng.normal, "uniform": rng.uniform}[distribution]
    x = draws(*{"normal": (0, 3), "uniform": (-3, 3)}[distribution], (4000, 1000))
    magnitudes = np.abs(x).mean(1) / np.sqrt(np.square(x).mean(1))
    assert magnitudes.mean() == pytest.approx(MEAN_MAGNITUDE[distribution], abs=1e-3)  # type: ignore[index]
    error = MEAN_MAGNITUDE_ERROR[distribution] / math.sqrt(1000)  # type: ignore[index]
    assert magnitudes.std() == pytest.approx(error, rel=0.05)


def wide(width: int, domain: Literal["vision", "language"]) -> Dims:
    return Dims(domain, width, n_patch=48 if domain == "vision" else None, n_out=10, mlp_ratio=4)


@pytest.mark.parametrize("s", S)
def test_models_start_and_train_as_the_theory_says(s: float | None) -> None:
    for domain, groups in (("vision", VISION), ("language", TEXT)):
        narrow, broad = wide(64, domain), wide(128, domain)  # type: ignore[arg-type]
        for group in groups:
            for width in (narrow, broad):
                assert init_std(group, width, s) == pytest.approx(initial_std(group, width, s)), group
                for optimizer, m in itertools.product(("adamw", "sgd"), ("ignore", "include")):
                    factor = lr_factor(group, width, s, optimizer, m)  # type: ignore[arg-type]
                    assert factor == pytest.approx(learning_rate_factor(group, width, s, optimizer, m))  # type: ignore[arg-type]
            if group is not Group.HEAD_BIAS:
                assert init_distribution(group, narrow.domain) == initial_distribution(group, narrow.domain)
