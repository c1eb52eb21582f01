"""An architecture and a task from outside the package, as another package could bring them: a linear map on squares."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import Dims, Group
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.registry import Architecture
from ettsweep.trainer.models.transformer import Parameter
from ettsweep.trainer.specs import ModelSpec, TaskSpec
from ettsweep.trainer.tasks.registry import LOWEST_LOSS, TaskKind
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings


class ToySpec(ModelSpec):
    kind: Literal["toy"] = "toy"
    depth: int = 1
    heads: int = 1
    outputs: int = 2


class ToyTask(TaskSpec):
    """Weights are to become all ones: the loss is the same square along all of them, best with a step of 1."""

    kind: Literal["ones"] = "ones"
    train_size: int = 64


def misfits(task: ToyTask, model: ModelSpec, batch_size: int) -> list[str]:
    return [] if isinstance(model, ToySpec) else [f"model: task {task.kind} is for toys, got {model.kind}"]


class Toy(Network):
    def __init__(self, spec: ToySpec) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.empty(spec.outputs, spec.width))

    def forward(self, x_BD: Tensor) -> Tensor:
        return nn.functional.linear(x_BD, self.head)

    def residual_blocks(self) -> Iterator[nn.Module]:
        return iter(())


def build(spec: ToySpec, strategy: StrategySpec) -> Toy:
    return Toy(spec)


def example_inputs(spec: ToySpec, batch: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
    return (torch.randn(batch, spec.width, generator=generator, device=device),)


class Ones:
    fingerprint = ""

    def __init__(self, width: int, outputs: int, share: BatchShare) -> None:
        rows = torch.eye(width).repeat(-(-share.batch_size // width), 1)[: share.batch_size]
        x_BD = width**0.5 * rows  # the mean of x x is the identity
        self._all = Batch((x_BD,), x_BD.sum(1, keepdim=True).expand(-1, outputs))

    def batches(self, first_step: int) -> Iterator[Batch]:
        while True:
            yield self._all

    def validation(self) -> Iterator[Batch]:
        yield self._all

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - batch.targets).square().sum(1).mean() / 2

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.loss(outputs, batch).double()[None]

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"val_loss": sums[0]}


def load(
    task: ToyTask, model: ToySpec, seed: int, device: torch.device, share: BatchShare, loading: LoaderSettings
) -> Ones:
    return Ones(model.width, model.outputs, share)


TOY = Architecture(
    spec=ToySpec,
    presets={"toy-4": ToySpec(width=4)},
    name_letters={"outputs": "o"},
    dims=lambda model: Dims("vision", model.width, n_patch=None, n_out=model.outputs, mlp_ratio=model.mlp_ratio),
    parameters=lambda model: (Parameter("head", (Group.HEAD,), (model.outputs, model.width)),),
    forward_flops=lambda model: 2 * model.width * model.outputs,
    activation_bytes=lambda model, recompute: 4 * model.width,
    build="support.toy:build",
    example_inputs="support.toy:example_inputs",
)

ONES = TaskKind(
    spec=ToyTask,
    sample="image",
    metric=LOWEST_LOSS,
    incompatibilities=misfits,
    check_data=lambda task, model, data: None,
    describe_data=lambda task, data: "comes with the tests",
    load="support.toy:load",
    train_size=lambda task: int(task.train_size),
    data_kind=lambda task: "",
)
