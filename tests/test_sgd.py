"""SGD as the optimizer of a sweep: what the map keeps between strategies, and what it does not."""

from pathlib import Path
from typing import Any

import torch
from support.here import train_once
from support.made_runs import CPU, MakeSpec, stop_at

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.strategies.factors import BULK, Group
from ettsweep.strategies.strategy import map_point, parse_strategy
from ettsweep.trainer.models.registry import parameter_shapes
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import initial_network

N, N_PATCH = 16, 16
"""Powers of two, so that factors of s = 0 are exact."""


def specification(make_spec: MakeSpec, strategy: str) -> RunSpec:
    """Return a run of SGD without decay, at the image of standard lr 0.5."""
    s = parse_strategy(strategy)
    lr, _ = map_point(0.5, 1.0, None, s, N, "sgd")
    optimizer: dict[str, Any] = {"kind": "sgd", "momentum": 0.9}
    return make_spec(optimizer=optimizer, model={"width": N}, wd=0.0, lr=lr, strategy={"s": s})


def first_step(results: Path, spec: RunSpec) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Train one step as a worker would; return each parameter before and after it."""
    run = RunDir.create(results, spec)
    attempt = train_once(run, RuntimeSettings(), stop_at(1))
    saved = checkpoint.load_checkpoint(attempt.state_path(1), run.id)
    before = {name: tensor.detach() for name, tensor in initial_network(spec, CPU).named_parameters()}
    return {name: (before[name], saved.tensors[f"model/{name}"]) for name in before}


def test_standard_and_its_image_in_ntk_take_the_same_first_step_in_the_bulk(results: Path, make_spec: MakeSpec) -> None:
    """They start from the same weights, so the same gradient meets the same lr times factor: equal to the last bit.

    The steps that the map does not keep are those of patch, pe and head_bias: n / n_patch, n and n times as long.
    """
    steps = {strategy: first_step(results, specification(make_spec, strategy)) for strategy in ("standard", "ntk")}
    times = {Group.PATCH: N / N_PATCH, Group.PE: float(N), Group.HEAD_BIAS: float(N)}
    for parameter in parameter_shapes(specification(make_spec, "ntk").model):
        before, standard = steps["standard"][parameter.name]
        same, ntk = steps["ntk"][parameter.name]
        assert torch.equal(before, same)
        assert not torch.equal(before, standard), parameter.name
        group = parameter.groups[0]
        if group in BULK or group is Group.HEAD:
            assert torch.equal(standard, ntk), parameter.name
        torch.testing.assert_close(ntk - before, times.get(group, 1.0) * (standard - before), rtol=1e-3, atol=1e-6)
