"""A stack of runs: each takes the steps that it would take alone, within rounding."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from support.made_runs import CPU, MakeSpec

from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import Trainer

STEPS = 8
DIFFERENT: list[dict[str, Any]] = [
    {"lr": 2.0**-5, "wd": 0.25, "seed": 0, "strategy": {"s": None}},
    {"lr": 2.0**-3, "wd": 2.0**-6, "seed": 1, "strategy": {"s": 0.0}},
    {"lr": 2.0**-4, "wd": 2.0**-3, "seed": 0, "strategy": {"s": 1.0}},
]
ADAMW, SGD = {"kind": "adamw"}, {"kind": "sgd", "momentum": 0.9}

Told = list[list[float]]
"""Loss, gradient norm and loss scale of each step."""


def runs_of(make_spec: MakeSpec, micro_batch: int | None = None, **shared: Any) -> list[Trainer]:
    """Return three runs of one recipe that differ in all else."""
    settings = RuntimeSettings(micro_batch=micro_batch)
    return [prepare(make_spec(**own_part | shared), CPU, settings) for own_part in DIFFERENT]


def batches_of(trainer: Trainer, step: int) -> list[Batch]:
    return list(islice(trainer.task.batches(step), len(trainer.share.slices)))


def train_alone(trainer: Trainer) -> Told:
    told: Told = []
    for step in range(1, STEPS + 1):
        told.append([x.item() for x in trainer.train_step(trainer.spec.lr, iter(batches_of(trainer, step)))])
        trainer.step = step
    return told


def train_together(trainers: Sequence[Trainer], steps: int = STEPS) -> list[Told]:
    stack, told = Stack(trainers), {trainer: Told() for trainer in trainers}
    for step in range(1, steps + 1):
        losses, gradients = stack.gradients({trainer: batches_of(trainer, step) for trainer in trainers})
        updates = stack.update(gradients, {trainer: trainer.spec.lr for trainer in trainers})
        for trainer in trainers:
            told[trainer].append([x.item() for x in (losses[trainer], *updates[trainer])])
            trainer.step = step
    return list(told.values())


def assert_close(make_spec: MakeSpec, rel: float = 1e-5, **shared: Any) -> None:
    together, alone = (runs_of(make_spec, **shared) for _ in range(2))
    told = train_together(together)
    for trainer, single, messages in zip(together, alone, told, strict=True):
        assert messages == [pytest.approx(step, rel=rel) for step in train_alone(single)]
        assert trainer.evaluate() == pytest.approx(single.evaluate(), rel=rel, abs=0.02)
        for (name, ours), theirs in zip(trainer.model.named_parameters(), single.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=rel, atol=20 * rel, msg=name)


@pytest.mark.parametrize(
    ("shared", "micro_batch", "rel"),
    [
        ({"optimizer": ADAMW | {"clip_norm": 0.5}}, 20, 1e-4),
        ({"optimizer": SGD}, None, 1e-4),
        ({"optimizer": {"kind": "muon"}, "strategy": {"s": 1.0}}, 20, 1e-4),
        pytest.param({"precision": "fp16"}, None, 1e-2, marks=pytest.mark.slow),
    ],
)
def test_runs_train_as_they_would_alone(
    make_spec: MakeSpec, shared: dict[str, Any], micro_batch: int | None, rel: float
) -> None:
    """Of 32 samples, micro-batches have 20 and 12, or all."""
    assert_close(make_spec, micro_batch=micro_batch, rel=rel, **shared)


@pytest.mark.slow
def test_what_was_traced_of_one_task_is_not_taken_for_another(make_spec: MakeSpec) -> None:
    """Nor does a width of 12 matter, with which parameters of a stack do not all begin at a multiple of 64 bytes."""
    for smoothing in (0.0, 0.1):
        assert_close(make_spec, task={"label_smoothing": smoothing}, model={"width": 12}, rel=1e-4)
