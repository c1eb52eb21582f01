"""The trainer of a run: its network, optimizer and data share, and its steps and evaluations."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ettsweep.runs.attempt import NO_TIME, TimeSpent
from ettsweep.seeding import derive_seed
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.task import Batch, BatchShare, Task
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup, full_tensor, is_sharded, reshard
from ettsweep.trainer.training.optimizer import set_lr
from ettsweep.trainer.training.precision import autocast, loss_scaler


def initial_network(
    spec: TransformerRun, device: torch.device, group: ProcessGroup = SINGLE_PROCESS, *, sharded: bool = False
) -> Network:
    """Return the initialised network of a run; its values do not depend on the group or on sharding."""
    model = empty_network(spec, device, group, sharded=sharded)
    initialise(model, spec.model, spec.strategy, spec.seed)
    return model


def empty_network(
    spec: TransformerRun, device: torch.device, group: ProcessGroup = SINGLE_PROCESS, *, sharded: bool = False
) -> Network:
    """Return the network of a run on its device, with uninitialised values."""
    with torch.device("meta"):
        model = build_model(spec.model, spec.strategy)
    if sharded:
        group.shard(model, spec.precision)
    model.to_empty(device=device)  # after sharding: no device ever holds the whole model
    return model


@dataclass(eq=False)
class Trainer:
    """The objects of one run in training.

    Attributes:
        spec: the run.
        model: holds the parameters.
        optimizer: over the model's parameters.
        device: of this process.
        share: this process's slices of each batch.
        group: the processes that train the run together.
        task: data, loss and metrics; set after construction.
        network: the module to call: the model, or its DDP wrapper, which averages gradients over the group.
        scaler: loss scaler; disabled except in fp16.
        step: the last step done.
        spent: time that earlier attempts spent.
    """

    spec: TransformerRun
    model: Network
    optimizer: torch.optim.Optimizer
    device: torch.device
    share: BatchShare
    group: ProcessGroup = SINGLE_PROCESS
    task: Task = field(init=False)
    network: nn.Module = field(init=False)
    scaler: torch.amp.GradScaler = field(init=False)
    step: int = 0
    spent: TimeSpent = NO_TIME

    def __post_init__(self) -> None:
        self.network = self.model
        self.scaler = loss_scaler(self.spec.precision, self.device)

    def rebuild_gradient_buckets(self) -> None:
        """Make DDP rebuild its gradient buckets now, by a backward pass whose gradients are discarded.

        DDP reorders its buckets after its first backward pass, which changes the order of summation from the second
        step on. A resumed run would take its first step in the initial order, unlike an undisturbed run.
        """
        if self.group.world_size <= 2 or is_sharded(self.model):
            return  # the sum of two numbers has one order only
        self._dummy_forward(len(self.share.slices[0])).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)

    def seed_dropout(self) -> None:
        """Seed the next step's dropout by (seed, step, rank): a resumed run draws the same."""
        if self.model.draws_randomly:
            torch.manual_seed(derive_seed(self.spec.seed, "dropout", self.step + 1, self.share.rank))

    def train_step(self, lr: float, batches: Iterator[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """Take the next optimizer step, on one micro-batch per slice of the share; never waits for the device.

        Returns:
            Loss (this process's part of the mean over the batch, times the number of processes), gradient norm before
            clipping, and loss scale: scalars on the device.
        """
        loss = self.add_gradients(batches)
        grad_norm, loss_scale = self.update(lr)
        return loss, grad_norm, loss_scale

    def add_gradients(self, batches: Iterator[Batch]) -> Tensor:
        """Accumulate the gradients of a batch, times the loss scale, in the parameters; return its loss."""
        self.seed_dropout()
        loss = torch.zeros((), device=self.device)
        slices = self.share.slices
        for number in range(1, len(slices) + 1):
            batch = next(batches)
            last = number == len(slices)
            # Gradients are averaged over the processes once, in the backward pass of the last micro-batch.
            with contextlib.nullcontext() if last else self.group.no_sync(self.network):
                with autocast(self.spec.precision, self.device):
                    slice_loss = self.task.loss(self.network(*batch.inputs), batch)
                # Times the number of processes: averaging divides by it, but shares already sum to the batch.
                slice_loss = slice_loss * (batch.share * self.share.world)
                self.scaler.scale(slice_loss).backward()  # type: ignore[no-untyped-call]
            loss = loss + slice_loss.detach()
        # A sharded model gathers parameters in each pass, so all processes need the same number of passes.
        for _ in range(self._missing_slices()):
            self.scaler.scale(self._dummy_forward()).backward()  # type: ignore[no-untyped-call]
        return loss

    def update(self, lr: float) -> tuple[Tensor, Tensor]:
        """Take an optimizer step with the accumulated gradients, which include the loss scale, and clear them.

        In fp16 the loss scaler skips the step if a gradient is not finite.

        Returns:
            Gradient norm before clipping, and loss scale: scalars on the device.
        """
        set_lr(self.optimizer, lr)
        loss_scale = self.scaler.scale(torch.ones((), device=self.device))  # get_scale() would wait for the device
        self.scaler.unscale_(self.optimizer)  # before the norm and clipping, which need the true gradients
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
        """Return the task's metrics on the validation set; processes share its samples, and each counts once."""
        sums: Tensor | None = None
        slices = self.task.validation()
        for batch in self.group.in_lockstep(slices) if is_sharded(self.model) else slices:
            if batch is None:
                self.model.eval()
                self._dummy_forward()
                self.model.train()
                continue
            measured = self.measure(batch)
            sums = measured if sums is None else sums + measured
        return self.metrics(sums)

    @torch.no_grad()
    def measure(self, batch: Batch) -> Tensor:
        """Return the task's sums over a slice of the validation set, which add up over slices and processes."""
        return self.task.measure(self.outputs(batch), batch)

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Tensor:
        """Return the model's outputs on a slice of the validation set."""
        self.model.eval()
        try:
            with autocast(self.spec.precision, self.device):
                outputs: Tensor = self.model(*batch.inputs)
            return outputs
        finally:
            self.model.train()

    def metrics(self, sums: Tensor | None) -> dict[str, float]:
        """Return the task's metrics from the sums of all processes; `sums` is None in a process without slices."""
        reshard(self.model)
        # A process without slices does not know how many sums there are, but must join the reduction.
        mine = [] if sums is None else sums.tolist()
        (size,) = self.group.all_max(len(mine))
        return self.task.metrics(self.group.all_sum(mine or [0.0] * size))

    def _missing_slices(self) -> int:
        """Return how many slices fewer than the largest share this process has; 0 unless the model is sharded."""
        if not is_sharded(self.model):
            return 0
        others = (replace(self.share, rank=rank) for rank in range(self.share.world))
        return max(len(share.slices) for share in others) - len(self.share.slices)

    def _dummy_forward(self, size: int = 1) -> Tensor:
        """Return zero from a forward pass on example inputs, to join the collectives of the other processes."""
        with autocast(self.spec.precision, self.device):
            outputs: Tensor = self.network(*example_inputs(self.spec.model, size, self.device))
        return outputs.sum() * 0
