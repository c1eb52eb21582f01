"""Optimizer steps against the equations, written out here in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.made_runs import CPU, MakeSpec
from torch import nn

from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.models.parameter_scales import parameter_factors
from ettsweep.trainer.training.optimizer import build_optimizer, set_lr
from ettsweep.trainer.training.trainer import initial_network

Arrays = dict[str, Any]

ETAS = [0.02, 0.05, 0.04, 0.01, 0.03]
WD = 2.0


def factors_of(spec: RunSpec) -> dict[str, float]:
    """Return Lambda_G of each parameter, see `strategies/test_factors`."""
    return {name: lr for name, (lr, _) in parameter_factors(spec.model, spec.strategy, spec.optimizer).items()}


def values(model: nn.Module) -> Arrays:
    return {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}


def gradients(start: Arrays) -> list[Arrays]:
    """Return gradients for each step, over several orders of magnitude and with zeros."""
    rng = np.random.default_rng(0)
    return [
        {
            name: (rng.standard_normal(v.shape) * 10.0 ** rng.integers(-9, 1, v.shape) * (rng.random(v.shape) > 0.1))
            .astype(np.float32)
            .astype(np.float64)
            for name, v in start.items()
        }
        for _ in ETAS
    ]


def torch_steps(spec: RunSpec, grads: list[Arrays]) -> Arrays:
    model = initial_network(spec, CPU)
    optimizer = build_optimizer(model, spec)
    for eta, grad in zip(ETAS, grads, strict=True):
        set_lr(optimizer, eta)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(grad[name]).float()
        optimizer.step()
    return values(model)


def adamw_steps(
    theta: Arrays, grads: list[Arrays], spec: RunSpec, factors: dict[str, float], decays: dict[str, float]
) -> Arrays:
    """eq:AdamW1 .. eq:AdamW4."""
    o: Any = spec.optimizer
    theta, v, u = dict(theta), dict.fromkeys(theta, 0.0), dict.fromkeys(theta, 0.0)
    for t, (eta, grad) in enumerate(zip(ETAS, grads, strict=True), start=1):
        for name, g in grad.items():
            v[name] = o.beta1 * v[name] + (1 - o.beta1) * g
            u[name] = o.beta2 * u[name] + (1 - o.beta2) * g**2
            v_hat, u_hat = v[name] / (1 - o.beta1**t), u[name] / (1 - o.beta2**t)
            step = factors[name] * eta / (np.sqrt(u_hat) + o.eps) * v_hat
            theta[name] = (1 - eta * decays[name]) * theta[name] - step
    return theta


def sgd_steps(
    theta: Arrays, grads: list[Arrays], momentum: float, factors: dict[str, float], decays: dict[str, float]
) -> Arrays:
    """Gradient and decay both enter the momentum; the factor multiplies the gradient only."""
    theta, drive, shrink = dict(theta), dict.fromkeys(theta, 0.0), dict.fromkeys(theta, 0.0)
    for eta, grad in zip(ETAS, grads, strict=True):
        for name, g in grad.items():
            drive[name] = momentum * drive[name] + factors[name] * g
            shrink[name] = momentum * shrink[name] + decays[name] * theta[name]
            theta[name] = theta[name] - eta * (drive[name] + shrink[name])
    return theta


def assert_close(got: Arrays, expected: Arrays, start: Arrays) -> None:
    for name, value in expected.items():
        moved = np.abs(value - start[name]).max()
        assert moved > 0, name
        # float32 keeps about 7 digits of the value, and each step rounds once.
        tolerance = 1e-6 * np.abs(value).max() + 1e-5 * moved
        assert np.abs(got[name] - value).max() < tolerance, name


@pytest.mark.parametrize(("s", "with_mlp", "decay_pe"), [(None, False, True), (0.5, True, False)])
def test_adamw_is_the_equation(make_spec: MakeSpec, s: float | None, with_mlp: bool, decay_pe: bool) -> None:
    optimizer = {"kind": "adamw", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "decay_pe": decay_pe}
    mlp_factor = "include" if with_mlp else "ignore"
    spec = make_spec(wd=WD, lr=0.3, strategy={"s": s, "mlp_factor": mlp_factor}, optimizer=optimizer)
    start = values(initial_network(spec, CPU))
    grads = gradients(start)
    decays = {name: 0.0 if name == "head_bias" or (name == "pe" and not decay_pe) else WD for name in start}
    expected = adamw_steps(start, grads, spec, factors_of(spec), decays)
    assert_close(torch_steps(spec, grads), expected, start)


@pytest.mark.parametrize(("s", "with_mlp", "momentum"), [(None, False, 0.9), (1.0, True, 0.0)])
def test_sgd_decays_all_groups_alike(make_spec: MakeSpec, s: float | None, with_mlp: bool, momentum: float) -> None:
    mlp_factor = "include" if with_mlp else "ignore"
    optimizer = {"kind": "sgd", "momentum": momentum}
    spec = make_spec(wd=WD, lr=0.3, strategy={"s": s, "mlp_factor": mlp_factor}, optimizer=optimizer)
    start = values(initial_network(spec, CPU))
    grads = gradients(start)
    decays = {name: 0.0 if name == "head_bias" else WD for name in start}
    assert_close(torch_steps(spec, grads), sgd_steps(start, grads, momentum, factors_of(spec), decays), start)


def test_momentum_starts_from_zeros_where_the_loss_scaler_skips_the_first_step(make_spec: MakeSpec) -> None:
    spec = make_spec(optimizer={"kind": "sgd", "momentum": 0.9}, precision="fp16")
    model = initial_network(spec, CPU)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = build_optimizer(model, spec)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for gradient in (math.inf, 0.5):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient * float(scaler.get_scale()))
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
    old = {id(parameter): value for parameter, value in zip(model.parameters(), before, strict=True)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            value = old[id(parameter)]
            expected = value - group["lr"] * (0.5 + group["weight_decay"] * value)
            torch.testing.assert_close(parameter.detach(), expected)
