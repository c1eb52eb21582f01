"""A run in training: its network at initial values, the objects around it, and what one step does with them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ettsweep.runs.attempt import NOTHING, TimeSpent
from ettsweep.runs.spec import RunSpec
from ettsweep.seeding import derive_seed
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.tasks.task import Batch, BatchShare, Task
from ettsweep.trainer.training.distributed import ALONE, ProcessGroup, full_tensor, is_sharded, reshard
from ettsweep.trainer.training.optimizer import set_lr
from ettsweep.trainer.training.precision import autocast, loss_scaler


def initial_network(
    spec: RunSpec, device: torch.device, group: ProcessGroup = ALONE, *, sharded: bool = False
) -> Network:
    """Return the network of a run with its initial values, which are the same however the group shares it out."""
    model = empty_network(spec, device, group, sharded=sharded)
    initialise(model, spec.model, spec.strategy, spec.seed)
    return model


def empty_network(
    spec: RunSpec, device: torch.device, group: ProcessGroup = ALONE, *, sharded: bool = False
) -> Network:
    """Return the network of a run with whatever values memory holds."""
    with torch.device("meta"):
        model = build_model(spec.model, spec.strategy)
    if sharded:
        group.shard(model, spec.precision)
    model.to_empty(device=device)
    return model


@dataclass(eq=False)
class Trainer:
    """The objects of one run in training.

    Attributes:
        model: the parameters, by name.
        network: what is called: the model, or what averages its gradients over the processes of the group.
        share: what this process trains on.
        task: what it trains on and measures itself by, once that is known.
        step: the last one done.
        spent: by earlier attempts.
    """

    spec: RunSpec
    model: Network
    optimizer: torch.optim.Optimizer
    device: torch.device
    share: BatchShare
    group: ProcessGroup = ALONE
    task: Task = field(init=False)
    network: nn.Module = field(init=False)
    scaler: torch.amp.GradScaler = field(init=False)
    step: int = 0
    spent: TimeSpent = NOTHING

    def __post_init__(self) -> None:
        self.network = self.model
        self.scaler = loss_scaler(self.spec.precision, self.device)

    def lay_out_gradients(self) -> None:
        """Have more than two processes lay out their gradients, in a backward pass that counts for nothing.

        torch sums them in the order of the first backward pass from the second step on: what goes on at a checkpoint
        would take one step more in the other order than an undisturbed run.
        """
        if self.group.world <= 2 or is_sharded(self.model):
            return  # two numbers have one sum
        self._go_along(len(self.share.slices[0])).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)

    def seed_dropout(self) -> None:
        """Let what a model draws in its next step depend on (seed, step, rank) alone."""
        if self.model.draws:
            torch.manual_seed(derive_seed(self.spec.seed, "dropout", self.step + 1, self.share.rank))

    def train_step(self, lr: float, batches: Iterator[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """Take the next optimizer step on as many micro-batches as the share has slices; nothing waits for the device.

        Returns:
            Loss (this process's part of the mean over the batch, times the number of processes), gradient norm before
            clipping, and loss scale, all on the device.
        """
        loss = self.add_gradients(batches)
        grad_norm, loss_scale = self.update(lr)
        return loss, grad_norm, loss_scale

    def add_gradients(self, batches: Iterator[Batch]) -> Tensor:
        """Leave the gradients of a batch, times the loss scale, in the parameters; return its loss."""
        self.seed_dropout()
        loss = torch.zeros((), device=self.device)
        slices = self.share.slices
        for number in range(1, len(slices) + 1):
            batch = next(batches)
            last = number == len(slices)
            with contextlib.nullcontext() if last else self.group.accumulating(self.network):
                with autocast(self.spec.precision, self.device):
                    slice_loss = self.task.loss(self.network(*batch.inputs), batch)
                # The processes' gradients are averaged.
                slice_loss = slice_loss * (batch.share * self.share.world)
                self.scaler.scale(slice_loss).backward()  # type: ignore[no-untyped-call]
            loss = loss + slice_loss.detach()
        for _ in range(self._fewer_slices()):
            self.scaler.scale(self._go_along()).backward()  # type: ignore[no-untyped-call]
        return loss

    def update(self, lr: float) -> tuple[Tensor, Tensor]:
        """Step by the gradients that are in the parameters, times the loss scale, and empty them.

        Returns:
            Gradient norm before clipping, and loss scale, on the device.
        """
        set_lr(self.optimizer, lr)
        loss_scale = self.scaler.scale(torch.ones((), device=self.device))
        self.scaler.unscale_(self.optimizer)
        parameters = list(self.model.parameters())
        grad_norm = full_tensor(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        if self.spec.optimizer.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.spec.optimizer.clip_norm, grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm, loss_scale

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the task's metrics of the validation set; each process measures its part, each sample counts once."""
        sums: Tensor | None = None
        slices = self.task.validation()
        for batch in self.group.abreast(slices) if is_sharded(self.model) else slices:
            if batch is None:
                self.model.eval()
                self._go_along()
                self.model.train()
                continue
            measured = self.measure(batch)
            sums = measured if sums is None else sums + measured
        return self.metrics(sums)

    @torch.no_grad()
    def measure(self, batch: Batch) -> Tensor:
        """Return the task's sums over a slice of the validation set."""
        return self.task.measure(self.outputs(batch), batch)

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Tensor:
        """Return what the model makes of a slice of the validation set."""
        self.model.eval()
        try:
            with autocast(self.spec.precision, self.device):
                outputs: Tensor = self.model(*batch.inputs)
            return outputs
        finally:
            self.model.train()

    def metrics(self, sums: Tensor | None) -> dict[str, float]:
        """Return the task's metrics, from the sums of all processes over their slices."""
        reshard(self.model)
        mine = [] if sums is None else sums.tolist()
        (size,) = self.group.agree(len(mine))
        return self.task.metrics(self.group.total(mine or [0.0] * size))

    def _fewer_slices(self) -> int:
        """Return how many micro-batches others have more than this process, which a sharded model goes through too."""
        if not is_sharded(self.model):
            return 0
        others = (replace(self.share, rank=rank) for rank in range(self.share.world))
        return max(len(share.slices) for share in others) - len(self.share.slices)

    def _go_along(self, size: int = 1) -> Tensor:
        """Go through the model with what counts for nothing, such as while others go through it with samples."""
        with autocast(self.spec.precision, self.device):
            outputs: Tensor = self.network(*example_inputs(self.spec.model, size, self.device))
        return outputs.sum() * 0
