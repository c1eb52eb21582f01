"""What is measured of a network, held against the network taken apart by hand."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.strategies.factors import Group
from ettsweep.strategies.optimizers import AdamWSpec, SgdSpec
from ettsweep.theory import measure as coordinates
from ettsweep.theory.layers import logits, observe
from ettsweep.theory.measure import (
    CPU,
    function_changes,
    measure,
    shrinkage,
    split_by_group,
    squared_gradients,
    train_network,
)
from ettsweep.theory.probe import Probe, make_probe, small_model
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.blocks import Network, layer_norm
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.models.vit import Vit
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import DigitsTask
from ettsweep.trainer.training.trainer import initial_network


def small_run(name: str, **changes: Any) -> tuple[RunSpec, Probe]:
    model = small_model(model_spec(name), 2).model_copy(update={"width": 16})
    if not isinstance(model, VitSpec):
        model = model.model_copy(update={"vocabulary": 64, "tokens": 4})
    fields: dict[str, Any] = {"optimizer": AdamWSpec(), "strategy": StrategySpec(s=0.0), "lr": 0.01, **changes}
    schedule = ScheduleSpec(total_steps=3, warmup_steps=0, eval_every=3)
    spec = TransformerRun(model=model, task=DigitsTask(), schedule=schedule, batch_size=4, wd=0.0, seed=1, **fields)
    return spec, make_probe(model)


def network_of(spec: RunSpec) -> Network:
    return initial_network(spec, CPU)


def test_stages_are_the_residual_stream_after_each_branch() -> None:
    spec, probe = small_run("vit-digits")
    network = network_of(spec)
    assert isinstance(network, Vit)
    observed = observe(network, probe)
    stream, names = observed["stem"], ["stem"]
    with torch.no_grad():
        for number, block in enumerate(network.blocks):
            for branch in ("attention", "mlp"):
                stream = stream + getattr(block, branch)(layer_norm(stream, network.ln_eps))
                names.append(f"blocks.{number}.{branch}")
                torch.testing.assert_close(observed[names[-1]], stream)
    assert list(observed) == [*names, "head"]


@pytest.mark.parametrize(("name", "outputs_of_a_sample"), [("vit-digits", 3), ("encdec-tiny", 4)])
def test_squared_gradients_are_those_of_each_output(
    name: str, outputs_of_a_sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, probe = small_run(name)
    probe = replace(probe, unread_K=probe.unread_K[: 3 if name == "vit-digits" else 1])
    network = network_of(spec)
    names, parameters = zip(*network.named_parameters(), strict=True)
    outputs = logits(network, probe)[..., probe.unread_K].flatten()
    exact = dict[tuple[Group, int], float]()
    for output in outputs:
        gradients = torch.autograd.grad(output, parameters, retain_graph=True)
        by_name = dict(zip(names, gradients, strict=True))
        for group, members in split_by_group(by_name, spec.model).items():
            for i, section in enumerate(members):
                exact[group, i] = exact.get((group, i), 0.0) + section.square().sum().item() / len(outputs)
    collected = []
    for pattern in itertools.product((1.0, -1.0), repeat=outputs_of_a_sample):  # of random signs, each as likely
        monkeypatch.setattr(coordinates, "_random_signs", lambda count, seed, p=pattern: torch.tensor(p))
        collected.append(squared_gradients(network, probe, seed=0))
    mean = {(group, i): sum(d[group][i] for d in collected) / len(collected) for group, i in exact}
    assert mean == pytest.approx(exact, rel=1e-4)


def test_what_a_group_changes_is_what_a_network_with_its_new_values_alone_says() -> None:
    spec, probe = small_run("vit-digits")
    network, other = network_of(spec), network_of(spec)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    train_network(network, spec, probe, 2)
    changes = function_changes(network, probe, before)
    new, old = dict(network.named_parameters()), dict(other.named_parameters())
    with torch.no_grad():
        for block in range(2):  # v is the last third of the rows
            name = f"blocks.{block}.attention.qkv"
            old[name][32:] = new[name][32:]
        moved = (other(*probe.batch.inputs) - network_of(spec)(*probe.batch.inputs))[:, probe.trained_K]
    assert changes[Group.V] == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-3)
    assert set(changes) == set(split_by_group(before, spec.model))


def test_changes_that_fp32_would_not_show_are_seen() -> None:
    spec, probe = small_run("vit-digits")

    def change(size: float) -> float:
        network, generator = network_of(spec), torch.Generator().manual_seed(0)
        before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        with torch.no_grad():
            k = dict(network.named_parameters())["blocks.0.attention.qkv"][16:32]
            k += size * torch.randn(k.shape, generator=generator)
        return function_changes(network, probe, before)[Group.K]

    assert 0 < change(1e-6) < 1e-6
    assert change(4e-6) / change(1e-6) == pytest.approx(4, rel=0.02)


def test_training_is_that_of_torch_alone() -> None:
    spec, probe = small_run("vit-digits", lr=0.05, strategy=StrategySpec(s=None))
    network, other = network_of(spec), network_of(spec)
    start, changes, factors = train_network(network, spec, probe, 3)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.05, weight_decay=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(other(*probe.batch.inputs), probe.batch.targets).backward()
        optimizer.step()
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    now = observe(other, probe)
    assert changes[-1]["stem"] == pytest.approx(float((now["stem"] - start["stem"]).square().mean().sqrt()), rel=1e-4)
    moved = (now["head"] - start["head"])[:, probe.trained_K]
    assert changes[-1]["head"] == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-4)
    assert len(changes) == 3
    assert {factor for several in factors.values() for factor in several} == {1.0}


@pytest.mark.parametrize("optimizer", [AdamWSpec(), SgdSpec(momentum=0.9)])
def test_a_step_without_gradient_shrinks_all_groups_alike(optimizer: AdamWSpec | SgdSpec) -> None:
    spec, _ = small_run("vit-digits", optimizer=optimizer, strategy=StrategySpec(s=0.5))
    network = network_of(spec)
    groups = split_by_group(dict(network.named_parameters()), spec.model)
    shrunk = shrinkage(network, spec)
    for group, tensors in groups.items():
        right = 0.0 if group is Group.HEAD_BIAS else 1.0
        assert shrunk[group] == pytest.approx([right] * len(tensors), abs=1e-4)


def test_initial_values_are_those_that_are_drawn() -> None:
    spec, probe = small_run("encdec-tiny")
    measured, we = measure(spec, probe, 1, decay=False, by_layer=False), network_of(spec).get_parameter("we")
    others = we.detach()[[i for i in range(len(we)) if i != PAD]]
    assert not we[PAD].any()
    assert measured.stds[Group.WE] == pytest.approx([others.square().mean().sqrt().item()])
    magnitude = others.abs().mean() / others.square().mean().sqrt()
    assert measured.mean_magnitudes[Group.WE] == pytest.approx([magnitude.item()])
    assert measured.stated_stds == dict.fromkeys(measured.stds, 0.02) | {Group.WE: 1.0}
