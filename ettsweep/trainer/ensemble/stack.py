"""Runs of one shape that train at once: the model goes through all of them in one call, each keeps all else its own.

A stack holds the parameters of its members, run by run, in one storage; those of a member's model are views of it. Its
optimizer, loss scaler, evaluation and checkpoints go on as if it trained alone, and so do its numbers, bit for bit,
where a `trial` says so.

K members, B samples of a micro-batch.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ettsweep.errors import error_line
from ettsweep.runs.spec import ModelSpec, Precision, RunSpec, TaskSpec
from ettsweep.trainer.ensemble.vmapped import Parameters, Vmapped
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.tasks.task import Batch, BatchShare
from ettsweep.trainer.training.distributed import is_sharded
from ettsweep.trainer.training.precision import autocast
from ettsweep.trainer.training.step_timing import now_s
from ettsweep.trainer.training.trainer import Trainer

Mode = Literal["exact", "fast"]

PAYS = 1.05
"""How many times as fast as one by one the gradients of members have to be found in a stack."""

OFF: dict[Precision, float] = {"fp32": 0.01, "tf32": 0.01, "fp16": 0.05, "bf16": 0.1}
"""Part of its norm by which what a stack finds may differ from that of a member alone, where it need not be exact."""

EVALUATING = ("cuda",)
"""Devices on which evaluations wait for launches; elsewhere, slices of the validation set fill them as they are."""

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


class StackShape(NamedTuple):
    """What runs have in common that can train in one stack; they may differ in all else."""

    model: ModelSpec
    task: TaskSpec
    precision: Precision
    device: torch.device
    share: BatchShare
    threads: int


def shape_of(trainer: Trainer) -> StackShape:
    """Return the shape of a run, on as many threads as this process has."""
    spec = trainer.spec
    return StackShape(spec.model, spec.task, spec.precision, trainer.device, trainer.share, torch.get_num_threads())


class Stack:
    """Runs that train at once.

    A member leaves by becoming one of another stack, or by parameters of its own; this one is of no use from then on.

    Attributes:
        trainers: the members.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        """Copy the parameters of runs of one shape into one storage; those of another stack leave it."""
        assert len({shape_of(trainer) for trainer in trainers}) == 1, "runs of one shape"
        assert not any(map(obstacle, trainers)), "runs that can train in a stack"
        self.trainers = tuple(trainers)
        self._model = Vmapped(trainers[0].spec, trainers[0].device)
        self._parameters = Parameters()
        members = [dict(trainer.model.named_parameters()) for trainer in trainers]
        for name in members[0]:
            stacked = torch.stack([parameters[name].detach() for parameters in members])
            for parameters, view in zip(members, stacked.unbind(), strict=True):
                parameters[name].data = view
            self._parameters[name] = stacked

    def gradients(self, batches: Sequence[Iterable[Batch]]) -> tuple[Tensor, Parameters]:
        """Return the losses of a batch of each member, (K,), and its gradients; nothing is changed."""
        self._check_members()
        first = self.trainers[0]
        unit_loss = torch.ones((), device=first.device)
        scales_K = torch.stack([trainer.scaler.scale(unit_loss) for trainer in self.trainers])
        losses_K, total = torch.zeros_like(scales_K), Parameters()
        micro_batches = [list(islice(member_batches, len(first.share.slices))) for member_batches in batches]
        for slices in zip(*micro_batches, strict=True):
            batch, share = _stacked(slices), slices[0].share
            slice_losses_K, gradients, outputs_K = self._model.gradients(
                first.task, self._parameters, scales_K * share, batch
            )
            if first.device.type == "cpu":
                slice_losses_K = self._losses(outputs_K, slices)
            losses_K = losses_K + slice_losses_K * share
            total = {name: total[name] + gradient for name, gradient in gradients.items()} if total else gradients
        return losses_K, total

    def outputs(self, batches: Sequence[Batch]) -> Tensor:
        """Return what the model of each member makes of a slice of its validation set, (K, B, ...)."""
        self._check_members()
        with torch.no_grad():
            return self._model.outputs(self._parameters, _stacked(batches).inputs)

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
        originals = {name: stacked.clone() for name, stacked in self._parameters.items()}
        try:
            for stacked in self._parameters.values():
                stacked += torch.randn(stacked.shape, generator=generator).to(stacked.device) * NEAR
            yield
        finally:
            for name, stacked in self._parameters.items():
                stacked.copy_(originals[name])

    def hand_out(self, gradients: Parameters, trainers: Collection[Trainer]) -> None:
        """Give some members their gradients."""
        # In the parameters' layout: torch's fused optimizers go through memory, and take no notice of strides.
        laid_out = {name: gradients[name].contiguous() for name in self._parameters}
        assert all(laid_out[name].stride() == stacked.stride() for name, stacked in self._parameters.items())
        members = zip(self.trainers, *(stacked.unbind() for stacked in laid_out.values()), strict=True)
        for trainer, *member_gradients in members:
            if trainer in trainers:
                for parameter, gradient in zip(trainer.model.parameters(), member_gradients, strict=True):
                    parameter.grad = gradient

    def drop_gradients(self) -> None:
        """Leave no member with gradients, which its next step would add to."""
        for trainer in self.trainers:
            trainer.optimizer.zero_grad(set_to_none=True)

    def _check_members(self) -> None:
        name, stacked = next(iter(self._parameters.items()))
        for trainer, view in zip(self.trainers, stacked.unbind(), strict=True):
            assert trainer.model.get_parameter(name).data_ptr() == view.data_ptr(), "a member has left"


class TensorComparison:
    """What tensors of a stack have in common with those of members alone: `exact` and `off` as in `Trial`."""

    def __init__(self) -> None:
        self.exact, self.off = True, 0.0

    def add(self, actual: Tensor, expected: Tensor) -> None:
        """Compare one more; what is no number counts as equal where it is so in both."""
        if torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True):
            return
        self.exact = False
        finite = actual.isfinite() & expected.isfinite()
        distance, norm = ((x * finite).nan_to_num(0, 0, 0).norm().item() for x in (actual - expected, expected))
        same_finite = torch.equal(actual.isfinite(), expected.isfinite())
        self.off = max(self.off, distance / norm if norm and same_finite else math.inf)


class StackTrial(NamedTuple):
    """What a trial of a stack has found.

    Attributes:
        exact: whether what was found is that of members alone, bit for bit.
        speedup: how many times as fast it is found.
        off: by how much it differs, as a part of its norm: of the tensor where that is most.
    """

    exact: bool
    speedup: float
    off: float = 0.0


def trial(stack: Stack, batches: Sequence[Sequence[Batch]]) -> StackTrial:
    """Find the gradients of a batch of each member together and one by one; nothing is changed in the end.

    The answer holds for this number of members on this machine: it depends on the order in which kernels add, and on
    where they round.
    """
    device = stack.trainers[0].device
    try:
        with stack.elsewhere():
            stack.gradients(batches)  # the first call takes longer
            comparison, sequential_s, stack_s = TensorComparison(), 0.0, math.inf
            for _ in range(TRIES):
                started_s = now_s(device)
                losses_K, stack_gradients = stack.gradients(batches)
                stack_s = min(stack_s, now_s(device) - started_s)
            for k, (trainer, micro_batches) in enumerate(zip(stack.trainers, batches, strict=True)):
                member_s = math.inf
                for _ in range(TRIES):
                    trainer.optimizer.zero_grad(set_to_none=True)
                    started_s = now_s(device)
                    loss = trainer.add_gradients(iter(micro_batches))
                    member_s = min(member_s, now_s(device) - started_s)
                sequential_s += member_s
                comparison.add(losses_K[k], loss)
                for name, parameter in trainer.model.named_parameters():
                    assert parameter.grad is not None
                    comparison.add(stack_gradients[name][k], parameter.grad)
    finally:
        stack.drop_gradients()
    return StackTrial(comparison.exact, sequential_s / stack_s, comparison.off)


def _stacked(slices: Sequence[Batch]) -> Batch:
    """Return the same micro-batch of all members as one."""
    assert len({batch.share for batch in slices}) == 1
    inputs = zip(*(batch.inputs for batch in slices), strict=True)
    return Batch(tuple(map(torch.stack, inputs)), torch.stack([batch.targets for batch in slices]))


# --- which members of a pack ------------------------------------------------------------------------------------------

Batches = Sequence[Sequence[Batch]]


class StackDecision(NamedTuple):
    """Whether runs of a shape train in a stack of a size, and why."""

    stacks: bool
    why: str


_VERDICTS: dict[tuple[StackShape, int, Mode], StackDecision] = {}
"""Of all trials of this process: none is made twice."""


def stack_decision(spec: RunSpec, device: torch.device, members: int, mode: Mode) -> StackDecision | None:
    """Return what trials of runs like one have said in this process of a stack of so many; None where there was none.

    What speaks against a stack speaks against smaller ones.
    """
    like = spec.model, spec.task, spec.precision, device
    for (shape, size, its_mode), decision in _VERDICTS.items():
        alike = shape[:-2] == like and shape.share.batch_size == spec.batch_size and its_mode == mode
        if alike and (size == members or (size > members and not decision.stacks)):
            return decision
    return None


class Stacks:
    """Has those members of a pack that are of one shape train in a stack, where that is right and pays.

    Args:
        mode: `exact` wants the bits of runs alone, `fast` their numbers within rounding.
        only: the one size of which a stack is tried; 0 for none, None for any.
        say: takes what the logs of some members should have.
    """

    def __init__(self, mode: Mode, stack_size: int | None, say: Callable[[Sequence[Trainer], str], None]) -> None:
        self._mode = mode
        self._only = stack_size
        self._say = say
        self._stacks: dict[StackShape, Stack] = {}
        self._refused: dict[StackShape, int] = {}
        self._evaluates = mode == "fast"

    @property
    def active(self) -> bool:
        """Whether members train in a stack."""
        return bool(self._stacks)

    def shape(self, trainer: Trainer) -> Hashable:
        """Return what members share that may train in one stack; None for one that cannot."""
        return None if self._only == 0 or obstacle(trainer) else shape_of(trainer)

    def gradients(self, trainers: Sequence[Trainer], batches: Batches) -> list[Tensor] | None:
        """Leave the gradients of a batch in each of some members of one shape; return their losses.

        Where they should rather train one by one, nothing is changed and None is returned.
        """
        shape = shape_of(trainers[0])
        stack = None
        try:
            stack = self._stack(shape, trainers, batches)
            if stack is None:
                return None
            batches_by_trainer = dict(zip(trainers, batches, strict=True))
            losses_K, gradients = stack.gradients(
                [batches_by_trainer.get(trainer, batches[0]) for trainer in stack.trainers]
            )
            stack.hand_out(gradients, batches_by_trainer.keys())
        except Exception as error:  # one by one whoever is at fault fails alone
            if stack:
                stack.drop_gradients()
            members = len(stack.trainers) if stack else len(trainers)
            reason = f"a stack of {members} fails, {error_line(error)}"
            _VERDICTS[shape, members, self._mode] = StackDecision(stacks=False, why=reason)
            self._refuse(shape, members, trainers, reason)
            return None
        return [losses_K[stack.trainers.index(trainer)] for trainer in trainers]

    def outputs(self, trainers: Sequence[Trainer], batches: Sequence[Batch]) -> Sequence[Tensor] | None:
        """Return what the models of some members of one shape make of a slice of the validation set of each.

        Where they should rather find that one by one, None is returned.
        """
        stack = self._stacks.get(shape_of(trainers[0]))
        if not self._evaluates or stack is None or not set(trainers) <= set(stack.trainers):
            return None
        if trainers[0].device.type not in EVALUATING:
            return None
        batches_by_trainer = dict(zip(trainers, batches, strict=True))
        try:
            outputs_K = stack.outputs([batches_by_trainer.get(trainer, batches[0]) for trainer in stack.trainers])
        except Exception as error:  # one by one whoever is at fault fails alone
            self._evaluates = False
            self._say(trainers, f"is evaluated in turn: a stack of {len(stack.trainers)} fails, {error_line(error)}")
            return None
        return [outputs_K[stack.trainers.index(trainer)] for trainer in trainers]

    def _stack(self, shape: StackShape, trainers: Sequence[Trainer], batches: Batches) -> Stack | None:
        """Return the stack that some members train in; None where they should not.

        Those who have left stay in it: another size would be traced and tried anew. On a CPU, which computes for them
        too, they do until they are half.
        """
        stack, members = self._stacks.get(shape), list(trainers)
        if stack and (shape.device.type == "cuda" or 2 * len(members) > len(stack.trainers)):
            if set(members) <= set(stack.trainers):
                return stack
            departed = [trainer for trainer in stack.trainers if trainer not in members]
            members += departed[: max(0, len(stack.trainers) - len(members))]
        size = len(members)
        if size <= self._refused.get(shape, 0):
            return None
        key = shape, size, self._mode
        if key not in _VERDICTS and self._only not in (None, size):
            self._refuse(shape, size, trainers, f"a stack of {size} is not worth a trial")
            return None
        previous, stack = stack, None
        if key not in _VERDICTS:
            stack, batches_by_trainer = Stack(members), dict(zip(trainers, batches, strict=True))
            _VERDICTS[key] = self._judged(stack, [batches_by_trainer.get(trainer, batches[0]) for trainer in members])
        accepted, reason = _VERDICTS[key]
        if not accepted:
            self._refuse(shape, size, trainers, reason)
            return None
        self._stacks[shape] = stack or Stack(members)
        joined = [trainer for trainer in trainers if previous is None or trainer not in previous.trainers]
        self._say(joined, f"trains in a stack of {size}, which {reason}")
        return self._stacks[shape]

    def _judged(self, stack: Stack, batches: Batches) -> StackDecision:
        """Return whether a trial says that a stack is right and pays."""
        size, result = len(stack.trainers), trial(stack, batches)
        if not result.exact and self._mode == "exact":
            return StackDecision(stacks=False, why=f"in a stack of {size} the last bits of gradients differ")
        if result.off > OFF[stack.trainers[0].spec.precision]:
            return StackDecision(
                stacks=False, why=f"in a stack of {size} gradients are off by {result.off:.2g} of their norm"
            )
        speed = f"finds gradients {result.speedup:.2f} times as fast"
        return (
            StackDecision(True, speed) if result.speedup >= PAYS else StackDecision(False, f"a stack of {size} {speed}")
        )

    def _refuse(self, shape: StackShape, members: int, trainers: Sequence[Trainer], reason: str) -> None:
        """Have no stack of so many members or less from now on: what speaks against it would against those."""
        self._refused[shape] = max(members, self._refused.get(shape, 0))
        self._stacks.pop(shape, None)
        self._say(trainers, f"trains in turn with the others: {reason}")
