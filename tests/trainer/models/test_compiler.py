"""Compiled blocks: once for all that are alike and each shape, and a word where they are not compiled after all.

The compiler's own part, which turns operations into code, is left out but where a test is slow.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.here import train_once
from support.made_runs import CPU, MakeSpec, numbers, result_of
from torch import Tensor, nn

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import StrategySpec
from ettsweep.runs.state import State
from ettsweep.trainer.models import compiler
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.training import runtime_settings
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.runtime_settings import RuntimeSettings

pytestmark = pytest.mark.filterwarnings("default")
"""The compiler warns of much."""

NTK = StrategySpec(s=0.0)
DIGITS = model_spec("vit-digits")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Have the compiler find out what is computed, and compute that as it is; return what it has compiled."""
    graphs = list[object]()

    def as_it_is(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=as_it_is))
    monkeypatch.setattr(compiler, "_LAST_KIND", [])
    compiler.raise_recompile_limits()
    torch._dynamo.reset()
    yield graphs
    torch._dynamo.reset()


def network(kind: str = "a", message: list[str] | None = None, **changes: Any) -> Network:
    spec = DIGITS.model_copy(update=changes)
    model = build_model(spec, NTK)
    initialise(model, spec, NTK, seed=0)
    head, generator = model.get_parameter("head"), torch.Generator().manual_seed(0)
    nn.init.normal_(head, std=0.1, generator=generator)  # else outputs are 0
    compile_blocks(model, kind, (message if message is not None else []).append)
    return model


def train(model: nn.Module, samples: int) -> Tensor:
    x = torch.ones(samples, 1, 8, 8)
    outputs: Tensor = model(x)
    outputs.sum().backward()
    return outputs.detach()


def test_blocks_that_are_alike_are_compiled_once_for_each_shape(compiled: list[object]) -> None:
    messages = list[str]()
    model = network(message=messages, depth=3)
    for _ in range(2):
        for samples in (8, 8, 5):  # as micro-batches of which the last is smaller
            train(model, samples)
    assert len(compiled) == 2
    assert model.compiled
    assert not messages


def test_a_run_says_and_records_that_it_is_not_compiled_after_all(
    make_spec: MakeSpec, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    eager, run = (RunDir.create(results / folder, spec) for folder in ("eager", "compiled"))
    train_once(eager, RuntimeSettings())
    monkeypatch.setattr(runtime_settings, "obstacle", lambda device: "")
    monkeypatch.setattr(compiler, "raise_recompile_limits", lambda: None)
    with torch._dynamo.config.patch(recompile_limit=1):
        train_once(run, RuntimeSettings(compile=True))
    assert "warning: some blocks of the model run uncompiled" in run.attempt(1).log_text()
    assert result_of(run)["execution"]["compile"] is False
    assert numbers(run) == numbers(eager)


def test_without_a_compiler_auto_trains_without_and_true_says_what_is_missing(
    make_spec: MakeSpec, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    monkeypatch.setattr(runtime_settings, "obstacle", lambda device: "no g++")
    run = RunDir.create(results, spec)
    train_once(run, RuntimeSettings(compile=True))
    assert run.status().state is State.FAILED
    message = "trainer.compile=true: torch.compile does not work here, no g++; trainer.compile=auto runs without it"
    assert message in run.attempt(1).log_text()
    warned = list[str]()
    settings = RuntimeSettings(micro_batch=4)
    resolved = runtime_settings.resolve(spec, CPU, settings, SINGLE_PROCESS, {"compile": True}, warned.append)
    assert resolved.compile is False
    assert warned == ["the model is not compiled, since torch.compile does not work here: no g++"]


def test_auto_compiles_for_all_runs_of_a_worker_and_stays_with_what_a_run_began_with(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    flops = 3 * runtime_settings.train_flops_per_sample(spec.model) * spec.batch_size * spec.schedule.last_step
    monkeypatch.setattr(runtime_settings, "COMPILE_FLOPS", flops)
    monkeypatch.setattr(runtime_settings, "obstacle", lambda device: "")
    cases: list[tuple[str, dict[str, Any], int, bool]] = [
        ("cuda", {}, 1, False),
        ("cuda", {}, 1000, True),
        ("cpu", {}, 1000, False),
        ("cuda", {"compile": False}, 1000, False),
        ("cuda", {"compile": True}, 1, True),
    ]
    for device, before, alike, expected in cases:
        settings = RuntimeSettings(micro_batch=4, alike=alike)
        resolved = runtime_settings.resolve(spec, torch.device(device), settings, SINGLE_PROCESS, before, print)
        assert resolved.compile is expected, (device, before, alike)
