"""Muon against torch's own, and against closed forms: what a step does to the singular values of its gradient."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commandline import ettsweep, write_grid
from support.made_runs import CPU, MakeSpec
from torch import Tensor, nn

from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec, MuonSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.parameter_scales import parameter_factors, scale_table
from ettsweep.trainer.training.optimizer import build_optimizer, set_lr
from ettsweep.trainer.training.trainer import initial_network

ETAS = [0.02, 0.05, 0.04]
WD, RATIO = 2.0, 0.25
MATRICES = {"qkv": 3, "q": 1, "kv": 2, "u": 1, "w": 1, "x": 1}
"""How many matrices each parameter of a block fuses."""

DECODER = GptSpec(
    **{"width": 16, "depth": 2, "heads": 4, "vocabulary": 20, "tokens": 8, "kv_heads": 2},
    **{"head": "untied", "norm": "rms", "positions": "rotary", "mlp": "swiglu"},
)

MUON: dict[str, Any] = {"kind": "muon", "adamw_lr_ratio": RATIO, "beta2": 0.99, "momentum": 0.9}


def gradients(model: nn.Module, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(p.shape, generator=generator) * 10.0**-step for name, p in model.named_parameters()}


def is_matrix(name: str) -> bool:
    return name.rpartition(".")[2] in MATRICES


def fused(spec: RunSpec, name: str) -> int:
    """Return how many matrices a parameter fuses."""
    kind = name.rpartition(".")[2]
    return MATRICES[kind] * (2 if kind == "w" and getattr(spec.model, "mlp", "gelu") == "swiglu" else 1)


@pytest.mark.parametrize(
    ("model", "strategy", "adjustment"),
    [(None, None, "original"), (DECODER, 1.0, "spectral_unclamped")],
    ids=["a Vision Transformer", "a decoder of today"],
)
def test_steps_are_those_of_torch_with_each_matrix_as_a_parameter(
    make_spec: MakeSpec, strategy: float | None, adjustment: str, model: GptSpec | None
) -> None:
    spec = make_spec(optimizer=MUON, strategy={"s": strategy}, wd=WD)
    spec = spec.model_copy(update={"model": model or spec.model})
    mine, theirs = initial_network(spec, CPU), initial_network(spec, CPU)
    optimizer = build_optimizer(mine, spec)
    parts = {
        name: [nn.Parameter(part.clone()) for part in p.detach().chunk(fused(spec, name))]
        for name, p in theirs.named_parameters()
        if is_matrix(name)
    }
    every_part = [part for each in parts.values() for part in each]
    try:
        muon = torch.optim.Muon(every_part, weight_decay=WD, momentum=0.9, adjust_lr_fn=adjustment)
    except ValueError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")  # 2.9 has no adjustment for maximal update yet
    by_name = parameter_factors(spec.model, spec.strategy, spec.optimizer)
    rest = {name: p for name, p in theirs.named_parameters() if not is_matrix(name)}
    adamw = torch.optim.AdamW(
        [{"params": [p], "weight_decay": WD * by_name[name][1]} for name, p in rest.items()], betas=(0.9, 0.99)
    )
    plain = parameter_factors(spec.model, spec.strategy, AdamWSpec())
    for step, eta in enumerate(ETAS):
        set_lr(optimizer, eta)
        for group in muon.param_groups:
            group["lr"] = eta
        for name, group in zip(rest, adamw.param_groups, strict=True):
            group["lr"] = eta * RATIO * plain[name][0]
        for name, gradient in gradients(mine, step).items():
            dict(mine.named_parameters())[name].grad = gradient.clone()
            if name in rest:
                rest[name].grad = gradient.clone()
            else:
                for part, of_part in zip(parts[name], gradient.chunk(len(parts[name])), strict=True):
                    part.grad = of_part.clone()
        optimizer.step()
        muon.step()
        adamw.step()
    for name, parameter in mine.named_parameters():
        expected = rest[name] if name in rest else torch.cat([part.detach() for part in parts[name]])
        torch.testing.assert_close(parameter.detach(), expected.detach(), rtol=1e-6, atol=1e-7, msg=name)


def newton_schulz(singular_values: np.ndarray, steps: int) -> np.ndarray:
    """Return what the iteration makes of the singular values of a matrix: an odd polynomial, applied to each."""
    x = singular_values / math.sqrt((singular_values**2).sum())
    for _ in range(steps):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    return x


def test_singular_values_of_a_step_are_those_of_newton_schulz_times_factor_and_lr(make_spec: MakeSpec) -> None:
    spec = make_spec(optimizer=MUON | {"ns_steps": 3}, strategy={"s": 1.0}, wd=0.0)
    spec = spec.model_copy(update={"model": DECODER})
    model = initial_network(spec, CPU)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, spec)
    set_lr(optimizer, 0.5)
    for name, gradient in gradients(model, 0).items():
        model.get_parameter(name).grad = gradient
    optimizer.step()
    for name, parameter in model.named_parameters():
        if not is_matrix(name):
            continue
        given, step = parameter.grad, parameter.detach() - before[name]
        assert given is not None
        for part, of_part in zip(given.chunk(fused(spec, name)), step.chunk(fused(spec, name)), strict=True):
            fan_out, fan_in = part.shape
            # Of the momentum; its first value is proportional to the gradient, and scale does not count.
            expected = np.sort(newton_schulz(np.linalg.svd(part.numpy(), compute_uv=False), 3))
            values = np.sort(np.linalg.svd(of_part.numpy(), compute_uv=False)) / (0.5 * math.sqrt(fan_out / fan_in))
            # torch iterates in bf16, of 8 bits.
            np.testing.assert_allclose(values, expected, rtol=0, atol=0.05 * expected.max(), err_msg=name)


def test_factors_depend_on_ratios_of_widths_alone(make_spec: MakeSpec) -> None:
    def factors(width: int, s: float | None) -> dict[str, float]:
        spec = make_spec(model={"width": width})
        rows = scale_table(spec.model, StrategySpec(s=s), MuonSpec(adamw_lr_ratio=RATIO), lr=None)
        assert all(row["wd_factor"] == pytest.approx(1 / row["lr_factor"]) or not row["wd_factor"] for row in rows)
        return {row["group"]: row["lr_factor"] for row in rows}

    for width in (8, 64):
        standard, mup = factors(width, None), factors(width, 1.0)
        assert [standard[g] for g in "qkvuwx"] == [1, 1, 1, 1, 2, 1]
        assert [mup[g] for g in "qkvuwx"] == [1, 1, 1, 1, 2, 0.5]
        assert {standard[g] for g in ("patch", "pe", "head", "head_bias")} == {RATIO}
        assert mup["head"] == pytest.approx(RATIO / (width * math.sqrt(10)))
        assert (mup["pe"], mup["patch"]) == (RATIO, RATIO / 16)
    rows = scale_table(DECODER, StrategySpec(s=1.0), MuonSpec(), lr=None)
    factors_of = [row["lr_factor"] for row in rows if row["group"] in {*"qkvuwx"}]
    assert factors_of == pytest.approx([1, math.sqrt(0.5), math.sqrt(0.5), 1, 2, 0.5])  # half the keys, M = 4


def test_neural_tangent_strategies_are_refused(tmp_path: Path) -> None:
    write_grid(tmp_path / "g.yaml", strategies=["standard", "mup"], centre_muon={"standard": {"lr": 0.02, "wd": 0.1}})
    muon = ["grid", "g.yaml", "--set", "optimizer=muon", "--dry-run"]
    assert "runs would be submitted" in ettsweep(*muon, cwd=tmp_path).stderr
    refused = ettsweep(*muon, "--strategy", "s=0.25", cwd=tmp_path, code=2)
    assert "strategy s=0.25: muon supports standard and mup only; neural-tangent factors make up" in refused.stderr
