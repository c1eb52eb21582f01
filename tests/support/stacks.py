"""Steps of a stack outside a pack, and members that leave it."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training.trainer import Trainer


def step(stack: Stack, lrs: Sequence[float], batches: Sequence[Iterable[Batch]]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Take one optimizer step of every member; return loss, gradient norm and loss scale of each."""
    losses_K, gradients = stack.gradients(batches)
    stack.distribute_gradients(gradients, stack.trainers)
    updates = [trainer.update(lr) for trainer, lr in zip(stack.trainers, lrs, strict=True)]
    return [(loss, *update) for loss, update in zip(losses_K.unbind(), updates, strict=True)]


def release(trainer: Trainer) -> None:
    """Give a member parameters of its own again, so that it trains alone."""
    for parameter in trainer.model.parameters():
        parameter.data = parameter.detach().clone()
