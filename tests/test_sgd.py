"""SGD as the optimizer of a sweep: its own factors and map, and a search that starts where SGD trains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import ettsweep, write_grid
from support.here import train_once

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import StopReason
from ettsweep.strategies.factors import BULK, Group
from ettsweep.strategies.strategy import map_point, parse_strategy
from ettsweep.trainer.models.registry import parameter_shapes
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import initial_network

MakeSpec = Callable[..., RunSpec]
CPU = torch.device("cpu")
N, N_PATCH, N_OUT = 16, 16, 10
"""Powers of two, so that factors of s = 0 are exact."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a small grid that only knows where AdamW starts."""
    write_grid(tmp_path / "adamw.yaml", strategies=["ntk"])
    return tmp_path


# --- where it starts ------------------------------------------------------------------------------------------------


def test_a_grid_that_only_knows_where_adamw_starts_is_refused_and_nothing_is_written(folder: Path) -> None:
    options = ("grid", "adamw.yaml", "--set", "optimizer=sgd", "--results", "results")
    error = ettsweep(*options, code=2, cwd=folder).stderr
    assert error.startswith("ettsweep: adamw.yaml with --set optimizer=sgd: no centre for sgd")
    assert not (folder / "results").exists()
    text = error.split("--set '")[1].split("'")[0].replace("LR", "4").replace("WD", "1e-4").replace("standard", "ntk")
    rows = json.loads(ettsweep(*options, "--set", text, "--dry-run", "--format", "json", cwd=folder).stdout)
    assert {(row["lr"], row["wd"]) for row in rows} == {(lr, 1e-4) for lr in (2, 4, 8)}


# --- factors and the map --------------------------------------------------------------------------------------------


def specification(make_spec: MakeSpec, strategy: str, **changes: Any) -> RunSpec:
    """Return a run of SGD without decay, at the image of standard lr 0.5."""
    lr, _ = map_point(0.5, 1.0, None, parse_strategy(strategy), N, "sgd")
    recipe: dict[str, Any] = {"optimizer": {"kind": "sgd"}, "model": {"width": N}, "wd": 0.0, "lr": lr}
    return make_spec(**{**recipe, "strategy": {"s": parse_strategy(strategy)}, **changes})


@pytest.mark.parametrize("strategy", ["ntk", "s=0.25", "mup"])
def test_the_optimizer_has_the_factors_of_sgd(make_spec: MakeSpec, strategy: str) -> None:
    spec = specification(make_spec, strategy, lr=1.0, wd=1.0)
    s = spec.strategy.s
    assert s is not None
    expected = {**dict.fromkeys(BULK, N ** (s - 1)), Group.PATCH: N**s / N_PATCH, Group.PE: N**s}
    expected |= {Group.HEAD: 1 / N, Group.HEAD_BIAS: 1.0}
    for group, entry in groups(spec).items():
        assert entry["lr"] == pytest.approx(expected[group], rel=1e-12), group
        decay = 0.0 if group is Group.HEAD_BIAS else 1.0
        assert entry["lr"] * entry["weight_decay"] == pytest.approx(decay, rel=1e-12), "all shrink alike"


def groups(spec: RunSpec) -> dict[Group, dict[str, Any]]:
    """Return each parameter group's entry of the real optimizer."""
    model = initial_network(spec, CPU)
    optimizer = build_optimizer(model, spec)
    entry = {id(parameter): entry for entry in optimizer.param_groups for parameter in entry["params"]}
    tensors = dict(model.named_parameters())
    return {group: entry[id(tensors[p.name])] for p in parameter_shapes(spec.model) for group in p.groups}


def test_standard_and_its_image_in_ntk_take_the_same_first_step_in_the_bulk(results: Path, make_spec: MakeSpec) -> None:
    """They start from the same weights, so the same gradient meets the same lr times factor: equal to the last bit.

    The steps that the map does not keep are those of patch, pe and head_bias: n / n_patch, n and n times as long.
    """
    changes = {"optimizer": {"kind": "sgd", "momentum": 0.9}}
    steps = {
        strategy: first_step(results, specification(make_spec, strategy, **changes)) for strategy in ("standard", "ntk")
    }
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


def first_step(results: Path, spec: RunSpec) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Train one step as a worker would; return each parameter before and after it."""
    run = RunDir.create(results, spec)
    polled = iter([None, StopReason.TERMINATED])
    attempt = train_once(run, RuntimeSettings(), lambda attempt: next(polled))
    saved = checkpoint.load_checkpoint(attempt.state_path(1), run.id)
    assert saved.step == 1
    before = {name: tensor.detach() for name, tensor in initial_network(spec, CPU).named_parameters()}
    return {name: (before[name], saved.tensors[f"model/{name}"]) for name in before}
