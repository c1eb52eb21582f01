"""Runs of one shape that train at once: the model goes through all of them in one call, each keeps all else its own.

A stack holds the parameters of its members, run by run, in one storage; those of a member's model are views of it. Its
optimizer, loss scaler, evaluation and checkpoints go on as if it trained alone, and so do its numbers, bit for bit,
where a `trial` says so.

K members, B samples of a micro-batch.
"""

import contextlib
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ettsweep.errors import error_line
from ettsweep.models.architectures import architecture
from ettsweep.models.compiler import COMPILED
from ettsweep.spec import RunSpec
from ettsweep.tasks.base import Batch
from ettsweep.training.distributed import is_sharded
from ettsweep.training.memory import TrialModel, give_back
from ettsweep.training.precision import autocast
from ettsweep.training.timing import now_s
from ettsweep.training.trainer import Trainer
from ettsweep.training.vmapped import Parameters, Vmapped

NEAR = 0.02
"""Standard deviation of what is added to parameters for a trial: that of a standard initialisation."""


TRIES = 2
"""How often a trial measures each time: the least counts, since others use the machine too."""


def obstacle(trainer: Trainer) -> str:
    """Return why a run cannot train in a stack, or "" where it can."""
    model = trainer.model
    if not architecture(trainer.spec.model).stacks:
        return f"what a model of kind {trainer.spec.model.kind} computes depends on its strategy"
    if model.draws:
        return "dropout would draw otherwise"
    if trainer.group.world > 1 or is_sharded(model):
        return "several processes train it"
    if model.recompute:
        return "its activations are computed again in the backward pass"
    if model.compiled:
        return "its blocks are compiled"
    return ""


def shape_of(trainer: Trainer) -> Hashable:
    """Return what runs must have in common to train in one stack; they may differ in all else."""
    spec = trainer.spec
    return spec.model, spec.task, trainer.share, spec.precision, trainer.device


T = TypeVar("T")


def compiled_for(shape: Hashable) -> Collection[int]:
    """Return which sizes of stacks of a shape have been compiled in this process, and are still."""
    return COMPILED[shape]


class Stack:
    """Runs that train at once.

    A member leaves by becoming one of another stack, or by parameters of its own; this one is of no use from then on.

    Attributes:
        trainers: the members.
    """

    def __init__(self, trainers: Sequence[Trainer], *, compiled: bool = False, size: int | None = None) -> None:
        """Copy the parameters of runs of one shape into one storage.

        Args:
            trainers: the members; those of another stack leave it.
            compiled: compute faster, and other numbers by rounding. It takes seconds, once for each shape and size in a
                process.
            size: of the stack; what it has more than members goes through the model, and is nobody's.
        """
        assert len({shape_of(trainer) for trainer in trainers}) == 1, "runs of one shape"
        assert not any(map(obstacle, trainers)), "runs that can train in a stack"
        self.trainers = tuple(trainers)
        self._compiled = compiled
        self._model = Vmapped(trainers[0].spec, trainers[0].device, compiled=compiled)
        self._parameters = Parameters()
        self._empty = (size or len(trainers)) - len(trainers)
        members = [dict(trainer.model.named_parameters()) for trainer in trainers]
        for name in members[0]:
            whole = torch.stack([parameters[name].detach() for parameters in self._filled(members)])
            for parameters, mine in zip(members, whole.unbind(), strict=not self._empty):
                parameters[name].data = mine
            self._parameters[name] = whole

    def gradients(self, batches: Sequence[Iterable[Batch]]) -> tuple[Tensor, Parameters]:
        """Return the losses of a batch of each member, (K,), and its gradients; nothing is changed."""
        self._check_members()
        first = self.trainers[0]
        one = torch.ones((), device=first.device)
        scales_K = torch.stack(self._filled([trainer.scaler.scale(one) for trainer in self.trainers]))
        losses_K, total = torch.zeros_like(scales_K), Parameters()
        taken = [list(islice(mine, len(first.share.slices))) for mine in batches]
        for slices in zip(*self._filled(taken), strict=True):
            batch, share = _stacked(slices), slices[0].share
            parts_K, found, outputs_K = self._model.gradients(first.task, self._parameters, scales_K * share, batch)
            if not self._compiled and first.device.type == "cpu":
                parts_K = self._losses(outputs_K, slices)
            losses_K = losses_K + parts_K * share
            total = {name: total[name] + new for name, new in found.items()} if total else found
        if self._compiled:
            COMPILED[shape_of(first)].add(len(scales_K))
        return losses_K[: len(self.trainers)], total

    def outputs(self, batches: Sequence[Batch]) -> Tensor:
        """Return what the model of each member makes of a slice of its validation set, (K, B, ...)."""
        self._check_members()
        with torch.no_grad():
            outputs_K = self._model.outputs(self._parameters, _stacked(self._filled(batches)).inputs)
        return outputs_K[: len(self.trainers)]

    def _filled(self, those: Sequence[T]) -> list[T]:
        """Return what there is of each member, and that of the first for each place that is nobody's."""
        return [*those, *[those[0]] * self._empty]

    def _losses(self, outputs_K: Tensor, slices: Sequence[Batch]) -> Tensor:
        """Return the losses as each member alone adds them up, (K,): for gradients, the order makes no difference."""
        first, losses = self.trainers[0], []
        for outputs, batch in zip(outputs_K.unbind(), slices, strict=True):
            with autocast(first.spec.precision, first.device):
                losses.append(first.task.loss(outputs, batch))
        return torch.stack(losses)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Have all parameters somewhere near, where none is zero: a bias that is hides whether it is added in fp32."""
        generator = torch.Generator().manual_seed(0)
        kept = {name: whole.clone() for name, whole in self._parameters.items()}
        try:
            for whole in self._parameters.values():
                whole += torch.randn(whole.shape, generator=generator).to(whole.device) * NEAR
            yield
        finally:
            for name, whole in self._parameters.items():
                whole.copy_(kept[name])

    def hand_out(self, gradients: Parameters, trainers: Collection[Trainer]) -> None:
        """Give some members their gradients."""
        # In the parameters' layout: torch's fused optimizers go through memory, and take no notice of strides.
        laid_out = {name: gradients[name].contiguous() for name in self._parameters}
        assert all(laid_out[name].stride() == whole.stride() for name, whole in self._parameters.items())
        members = zip(self.trainers, *(whole.unbind() for whole in laid_out.values()), strict=not self._empty)
        for trainer, *mine in members:
            if trainer in trainers:
                for parameter, gradient in zip(trainer.model.parameters(), mine, strict=True):
                    parameter.grad = gradient

    def drop_gradients(self) -> None:
        """Leave no member with gradients, which its next step would add to."""
        for trainer in self.trainers:
            trainer.optimizer.zero_grad(set_to_none=True)

    def _check_members(self) -> None:
        name, whole = next(iter(self._parameters.items()))
        for trainer, mine in zip(self.trainers, whole.unbind(), strict=not self._empty):
            assert trainer.model.get_parameter(name).data_ptr() == mine.data_ptr(), "a member has left"


class Comparison:
    """What tensors of a stack have in common with those of members alone: `exact` and `off` as in `Trial`."""

    def __init__(self) -> None:
        self.exact, self.off = True, 0.0

    def add(self, ours: Tensor, theirs: Tensor) -> None:
        """Compare one more; what is no number counts as equal where it is so in both."""
        if torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True):
            return
        self.exact = False
        both = ours.isfinite() & theirs.isfinite()
        apart, norm = ((x * both).nan_to_num(0, 0, 0).norm().item() for x in (ours - theirs, theirs))
        same_numbers = torch.equal(ours.isfinite(), theirs.isfinite())
        self.off = max(self.off, apart / norm if norm and same_numbers else math.inf)


class Trial(NamedTuple):
    """What a trial of a stack has found.

    Attributes:
        exact: whether what was found is that of members alone, bit for bit.
        speedup: how many times as fast it is found.
        off: by how much it differs, as a part of its norm: of the tensor where that is most.
        error: what the trial failed of, if it did.
    """

    exact: bool
    speedup: float
    off: float = 0.0
    error: str = ""


def trial(stack: Stack, batches: Sequence[Sequence[Batch]]) -> Trial:
    """Find the gradients of a batch of each member together and one by one; nothing is changed in the end.

    The answer holds for this number of members on this machine: it depends on the order in which kernels add, and on
    where they round.
    """
    device = stack.trainers[0].device
    try:
        with stack.elsewhere():
            stack.gradients(batches)  # the first call takes longer
            found, alone_s, together_s = Comparison(), 0.0, math.inf
            for _ in range(TRIES):
                started_s = now_s(device)
                losses_K, together = stack.gradients(batches)
                together_s = min(together_s, now_s(device) - started_s)
            for k, (trainer, mine) in enumerate(zip(stack.trainers, batches, strict=True)):
                its_s = math.inf
                for _ in range(TRIES):
                    trainer.optimizer.zero_grad(set_to_none=True)
                    started_s = now_s(device)
                    loss = trainer.add_gradients(iter(mine))
                    its_s = min(its_s, now_s(device) - started_s)
                alone_s += its_s
                found.add(losses_K[k], loss)
                for name, parameter in trainer.model.named_parameters():
                    assert parameter.grad is not None
                    found.add(together[name][k], parameter.grad)
    finally:
        stack.drop_gradients()
    return Trial(found.exact, alone_s / together_s, found.off)


def trial_of_outputs(stack: Stack, batches: Sequence[Batch]) -> Trial:
    """Find the outputs for a slice of the validation set of each member together and one by one."""
    device = stack.trainers[0].device
    stack.trainers[0].outputs(batches[0])  # the first call takes longer
    started_s = now_s(device)
    alone = [trainer.outputs(batch) for trainer, batch in zip(stack.trainers, batches, strict=True)]
    alone_s = now_s(device) - started_s
    stack.outputs(batches)
    started_s = now_s(device)
    together_K = stack.outputs(batches)
    together_s = now_s(device) - started_s
    found = Comparison()
    for ours, theirs in zip(together_K.unbind(), alone, strict=True):
        found.add(ours, theirs)
    return Trial(found.exact, alone_s / together_s, found.off)


_REHEARSED: dict[Hashable, Trial] = {}


def rehearsed(spec: RunSpec, device: torch.device, members: int) -> bool:
    """Say whether `rehearse` knows the answer."""
    return (spec, device, members) in _REHEARSED


def rehearse(spec: RunSpec, device: torch.device, members: int) -> Trial:
    """Return what a trial finds of a stack of runs like one, on made samples; none is taken twice, failed or not."""
    if not rehearsed(spec, device, members):
        try:
            found = _rehearse(spec, device, members)
        except Exception as error:  # what is wrong with a model, its own run says
            found = Trial(exact=False, speedup=0.0, error=error_line(error))
        give_back(device)  # what is free then says how large micro-batches are
        _REHEARSED[spec, device, members] = found
    return _REHEARSED[spec, device, members]


def _rehearse(spec: RunSpec, device: torch.device, members: int) -> Trial:
    points = (spec.at(spec.lr, spec.wd, seed) for seed in range(members))
    made = [TrialModel(point, device, recompute=False).trainer(spec.batch_size) for point in points]
    return trial(Stack([trainer for trainer, _ in made]), [[next(batches)] for _, batches in made])


def _stacked(slices: Sequence[Batch]) -> Batch:
    """Return the same micro-batch of all members as one."""
    assert len({batch.share for batch in slices}) == 1
    inputs = zip(*(batch.inputs for batch in slices), strict=True)
    return Batch(tuple(map(torch.stack, inputs)), torch.stack([batch.targets for batch in slices]))
