"""A stack: runs of one recipe whose forward and backward passes are one vectorised call.

A stack holds the parameters of its members in one (K, ...) tensor per name; the parameters of each member's model are
views of it. Loss scalers and checkpoints stay per run. Results differ from those of runs alone in the last bits.

Shapes: K members, B samples of a micro-batch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.ensemble.stacked_adamw import StackedAdamW
from ettsweep.trainer.ensemble.vmapped import Parameters, VmappedModel
from ettsweep.trainer.tasks.task import Batch
from ettsweep.trainer.training.trainer import Trainer

T = TypeVar("T")


class Stack:
    """The shared parameters of K runs of one recipe, with equal micro-batches.

    Attributes:
        trainers: the K members.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        """Copy the parameters of runs into stacked tensors; members of an earlier stack leave it."""
        assert len({(trainer.spec.info.key, trainer.share) for trainer in trainers}) == 1, "runs of one recipe"
        self.trainers = tuple(trainers)
        self._model = VmappedModel(trainers[0].spec, trainers[0].device)
        self._parameters = Parameters()
        members = [dict(trainer.model.named_parameters()) for trainer in trainers]
        for name in members[0]:
            stacked = torch.stack([parameters[name].detach() for parameters in members])
            for parameters, view in zip(members, stacked.unbind(), strict=True):
                parameters[name].data = view  # the member's optimizer now updates the stacked tensor in place
            self._parameters[name] = stacked
        optimizer = trainers[0].spec.optimizer
        self._adamw = (
            StackedAdamW(optimizer, self.trainers, self._parameters) if isinstance(optimizer, AdamWSpec) else None
        )

    def gradients(self, batches: Mapping[Trainer, Sequence[Batch]]) -> tuple[dict[Trainer, Tensor], Parameters]:
        """Return each member's loss on its batch, and the gradients times the loss scale, (K, ...) by name.

        Parameters, optimizers and the `grad` of the models stay as they are.

        Args:
            batches: micro-batches of members; the others compute on any, and their losses mean nothing.
        """
        first, scales_K = self.trainers[0], self._loss_scales()
        losses_K, total = torch.zeros_like(scales_K), Parameters()
        for slices in zip(*self._for_all(batches), strict=True):
            batch, share = _stack_batches(slices), slices[0].share
            slice_losses_K, gradients = self._model.gradients(first.task, self._parameters, scales_K * share, batch)
            losses_K = losses_K + slice_losses_K * share
            total = {name: total[name] + gradient for name, gradient in gradients.items()} if total else gradients
        return dict(zip(self.trainers, losses_K.unbind(), strict=True)), total

    def update(self, gradients: Parameters, lrs: Mapping[Trainer, float]) -> dict[Trainer, tuple[Tensor, Tensor]]:
        """Take the optimizer step of some members; return what `Trainer.update` would return for each.

        Args:
            gradients: of loss times loss scale, (K, ...) by name.
            lrs: learning rates of the members that take a step.
        """
        if self._adamw is not None:
            return self._adamw.update(gradients, self._loss_scales(), lrs)
        self._distribute(gradients, lrs.keys())
        return {trainer: trainer.update(lr) for trainer, lr in lrs.items()}

    def outputs(self, batches: Mapping[Trainer, Batch]) -> dict[Trainer, Tensor]:
        """Return the model outputs of members on a slice of the validation set; those of the others mean nothing."""
        with torch.no_grad():
            outputs_K = self._model.outputs(self._parameters, _stack_batches(self._for_all(batches)).inputs)
        return dict(zip(self.trainers, outputs_K.unbind(), strict=True))

    def _for_all(self, of_some: Mapping[Trainer, T]) -> list[T]:
        anything = next(iter(of_some.values()))
        return [of_some.get(trainer, anything) for trainer in self.trainers]

    def _loss_scales(self) -> Tensor:
        unit_loss = torch.ones((), device=self.trainers[0].device)
        return torch.stack([trainer.scaler.scale(unit_loss) for trainer in self.trainers])

    def _distribute(self, gradients: Parameters, trainers: Collection[Trainer]) -> None:
        """Set `grad` of some members' parameters."""
        # In the parameters' layout: torch's fused optimizers walk through memory and ignore strides.
        laid_out = {name: gradients[name].contiguous() for name in self._parameters}
        assert all(laid_out[name].stride() == stacked.stride() for name, stacked in self._parameters.items())
        members = zip(self.trainers, *(stacked.unbind() for stacked in laid_out.values()), strict=True)
        for trainer, *member_gradients in members:
            if trainer in trainers:
                for parameter, gradient in zip(trainer.model.parameters(), member_gradients, strict=True):
                    parameter.grad = gradient


def _stack_batches(slices: Sequence[Batch]) -> Batch:
    """Stack one micro-batch of each member along a new first dimension, (K, B, ...)."""
    assert len({batch.share for batch in slices}) == 1
    inputs = zip(*(batch.inputs for batch in slices), strict=True)
    return Batch(tuple(map(torch.stack, inputs)), torch.stack([batch.targets for batch in slices]))
