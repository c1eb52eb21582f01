"""A stack: runs of one shape whose forward and backward passes are one vectorised call.

A stack holds the parameters of its members in one (K, ...) tensor per name; the parameters of each member's model are
views of it. Loss scalers and checkpoints stay per run, and so do optimizers in `exact` mode (stacked_adamw.py). Whether
the gradients equal those of runs that train alone, bit for bit, depends on the kernels: `run_trial` measures it.

Shapes: K members, B samples of a micro-batch.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

from ettsweep.errors import error_line
from ettsweep.trainer.ensemble.stacked_adamw import StackedAdamW, shared_adamw
from ettsweep.trainer.ensemble.vmapped import Parameters, VmappedModel
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, Precision, TaskSpec
from ettsweep.trainer.tasks.task import Batch, BatchShare
from ettsweep.trainer.training.distributed import is_sharded
from ettsweep.trainer.training.precision import autocast
from ettsweep.trainer.training.step_timing import now_s
from ettsweep.trainer.training.trainer import Trainer

Mode = Literal["exact", "fast"]

MIN_SPEEDUP = 1.05
"""Least speedup of a stack's gradients over those of its members one by one for which the stack is used."""

MAX_RELATIVE_ERROR: dict[Precision, float] = {"fp32": 0.01, "tf32": 0.01, "fp16": 0.05, "bf16": 0.1}
"""Largest error of a stack's gradient relative to its norm in `fast` mode; larger ones refuse the stack."""

EVALUATION_DEVICES = ("cuda",)
"""Devices on which small models are bound by kernel launches in evaluation; others gain nothing from a stack there."""

TRIAL_NOISE_STD = 0.02
"""Standard deviation of the noise added to parameters for a trial: about that of a standard initialisation."""

TIMING_REPEATS = 2
"""Measurements of each duration in a trial; the least counts, since other processes use the machine too."""


def stack_obstacle(trainer: Trainer) -> str:
    """Return why a run cannot train in a stack; "" if it can."""
    model = trainer.model
    if not architecture(trainer.spec.model).can_stack:
        return f"what a model of kind {trainer.spec.model.kind} computes depends on its strategy"
    if model.draws_randomly:
        return "dropout would draw otherwise"
    if trainer.group.world_size > 1 or is_sharded(model):
        return "several processes train it"
    if model.recompute:
        return "its activations are computed again in the backward pass"
    if model.compiled:
        return "its blocks are compiled"
    return ""


class StackShape(NamedTuple):
    """What the runs of one stack have in common; lr, wd, seed and the rest may differ."""

    model: ModelSpec
    task: TaskSpec
    precision: Precision
    device: torch.device
    share: BatchShare
    threads: int


def shape_of(trainer: Trainer) -> StackShape:
    """Return the stack shape of a run; threads are those of this process, since their number changes rounding."""
    spec = trainer.spec
    return StackShape(spec.model, spec.task, spec.precision, trainer.device, trainer.share, torch.get_num_threads())


class Stack:
    """The shared parameters of K runs of one shape.

    If a member joins another stack, or gets parameters of its own, this stack can no longer be used.

    Attributes:
        trainers: the K members.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        """Copy the parameters of runs of one shape into stacked tensors; members of another stack leave that one."""
        assert len({shape_of(trainer) for trainer in trainers}) == 1, "runs of one shape"
        assert not any(map(stack_obstacle, trainers)), "runs that can train in a stack"
        self.trainers = tuple(trainers)
        self._model = VmappedModel(trainers[0].spec, trainers[0].device)
        self._parameters = Parameters()
        members = [dict(trainer.model.named_parameters()) for trainer in trainers]
        for name in members[0]:
            stacked = torch.stack([parameters[name].detach() for parameters in members])
            for parameters, view in zip(members, stacked.unbind(), strict=True):
                parameters[name].data = view  # the member's optimizer now updates the stacked tensor in place
            self._parameters[name] = stacked
        self._adamw = shared_adamw(trainers)
        self._optimizer: StackedAdamW | None = None

    def gradients(self, batches: Sequence[Iterable[Batch]]) -> tuple[Tensor, Parameters]:
        """Return each member's loss on its batch, (K,), and the gradients times the loss scale, (K, ...) by name.

        Parameters, optimizers and the `grad` of the models stay as they are.
        """
        self._check_members()
        first, scales_K = self.trainers[0], self._loss_scales()
        losses_K, total = torch.zeros_like(scales_K), Parameters()
        micro_batches = [list(islice(member_batches, len(first.share.slices))) for member_batches in batches]
        for slices in zip(*micro_batches, strict=True):
            batch, share = _stack_batches(slices), slices[0].share
            slice_losses_K, gradients, outputs_K = self._model.gradients(
                first.task, self._parameters, scales_K * share, batch
            )
            if first.device.type == "cpu":
                slice_losses_K = self._member_losses(outputs_K, slices)
            losses_K = losses_K + slice_losses_K * share
            total = {name: total[name] + gradient for name, gradient in gradients.items()} if total else gradients
        return losses_K, total

    @property
    def can_update(self) -> bool:
        """`True` if the members have the same AdamW, whatever their lr and wd, so that `update` serves them."""
        return self._adamw is not None

    def update(self, gradients: Parameters, lrs: Mapping[Trainer, float]) -> dict[Trainer, tuple[Tensor, Tensor]]:
        """Take the optimizer step of some members at once; return what `Trainer.update` would return for each.

        Args:
            gradients: of loss times loss scale, (K, ...) by name.
            lrs: learning rates of the members that take a step.
        """
        assert self._adamw is not None
        # Not before the first step: a stack that a trial refuses needs no moments.
        self._optimizer = self._optimizer or StackedAdamW(self._adamw, self.trainers, self._parameters)
        return self._optimizer.update(gradients, self._loss_scales(), lrs)

    def outputs(self, batches: Sequence[Batch]) -> Tensor:
        """Return each member's model outputs on a slice of its validation set, (K, B, ...)."""
        self._check_members()
        with torch.no_grad():
            return self._model.outputs(self._parameters, _stack_batches(batches).inputs)

    def _loss_scales(self) -> Tensor:
        unit_loss = torch.ones((), device=self.trainers[0].device)
        return torch.stack([trainer.scaler.scale(unit_loss) for trainer in self.trainers])

    def _member_losses(self, outputs_K: Tensor, slices: Sequence[Batch]) -> Tensor:
        """Return the losses, (K,), summed in the order of a run alone: vmap's order changes their last bits."""
        first, losses = self.trainers[0], []
        for outputs, batch in zip(outputs_K.unbind(), slices, strict=True):
            with autocast(first.spec.precision, first.device):
                losses.append(first.task.loss(outputs, batch))
        return torch.stack(losses)

    @contextlib.contextmanager
    def perturbed_parameters(self) -> Iterator[None]:
        """Perturb all parameters in the body: a bias that is still zero would hide in which precision it is added."""
        generator = torch.Generator().manual_seed(0)  # of its own: the runs' random numbers must not change
        originals = {name: stacked.clone() for name, stacked in self._parameters.items()}
        try:
            for stacked in self._parameters.values():
                stacked += torch.randn(stacked.shape, generator=generator).to(stacked.device) * TRIAL_NOISE_STD
            yield
        finally:
            for name, stacked in self._parameters.items():
                stacked.copy_(originals[name])

    def distribute_gradients(self, gradients: Parameters, trainers: Collection[Trainer]) -> None:
        """Set `grad` of some members' parameters."""
        # In the parameters' layout: torch's fused optimizers walk through memory and ignore strides.
        laid_out = {name: gradients[name].contiguous() for name in self._parameters}
        assert all(laid_out[name].stride() == stacked.stride() for name, stacked in self._parameters.items())
        members = zip(self.trainers, *(stacked.unbind() for stacked in laid_out.values()), strict=True)
        for trainer, *member_gradients in members:
            if trainer in trainers:
                for parameter, gradient in zip(trainer.model.parameters(), member_gradients, strict=True):
                    parameter.grad = gradient

    def drop_gradients(self) -> None:
        """Clear the gradients of all members: the next step would add to them."""
        for trainer in self.trainers:
            trainer.optimizer.zero_grad(set_to_none=True)

    def _check_members(self) -> None:
        name, stacked = next(iter(self._parameters.items()))
        for trainer, view in zip(self.trainers, stacked.unbind(), strict=True):
            # One parameter suffices: members join and leave with all of theirs.
            assert trainer.model.get_parameter(name).data_ptr() == view.data_ptr(), "a member has left"


class TensorComparison:
    """Running comparison of a stack's tensors with those of its members alone; attributes as in `StackTrial`."""

    def __init__(self) -> None:
        self.exact, self.relative_error = True, 0.0

    def add(self, actual: Tensor, expected: Tensor) -> None:
        """Compare one more pair of tensors; values that are NaN in both count as equal."""
        # Not torch.equal, for which NaN differs from NaN.
        if torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True):
            return
        self.exact = False
        finite = actual.isfinite() & expected.isfinite()
        distance, norm = ((x * finite).nan_to_num(0, 0, 0).norm().item() for x in (actual - expected, expected))
        same_finite = torch.equal(actual.isfinite(), expected.isfinite())
        self.relative_error = max(self.relative_error, distance / norm if norm and same_finite else math.inf)


class StackTrial(NamedTuple):
    """Result of a trial of a stack.

    Attributes:
        exact: whether losses and gradients equal those of members alone, bit for bit.
        speedup: time of all members one by one over that of the stack.
        relative_error: largest error of a tensor, by norm; infinite if other entries are finite than in the member's.
    """

    exact: bool
    speedup: float
    relative_error: float = 0.0


def run_trial(stack: Stack, batches: Sequence[Sequence[Batch]]) -> StackTrial:
    """Compare the stack's gradients of one batch with those of its members one by one, in value and time.

    The result holds for this number of members on this machine: other sizes may select kernels that add and round in
    another order. Parameters are restored in the end, gradients cleared.
    """
    device = stack.trainers[0].device
    try:
        with stack.perturbed_parameters():
            stack.gradients(batches)  # warm-up: the first call also traces the graph
            comparison, sequential_s, stack_s = TensorComparison(), 0.0, math.inf
            for _ in range(TIMING_REPEATS):
                started_s = now_s(device)
                losses_K, stack_gradients = stack.gradients(batches)
                stack_s = min(stack_s, now_s(device) - started_s)
            for k, (trainer, micro_batches) in enumerate(zip(stack.trainers, batches, strict=True)):
                member_s = math.inf
                for _ in range(TIMING_REPEATS):
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
    return StackTrial(comparison.exact, sequential_s / stack_s, comparison.relative_error)


def _stack_batches(slices: Sequence[Batch]) -> Batch:
    """Stack one micro-batch of each member along a new first dimension, (K, B, ...)."""
    assert len({batch.share for batch in slices}) == 1
    inputs = zip(*(batch.inputs for batch in slices), strict=True)
    return Batch(tuple(map(torch.stack, inputs)), torch.stack([batch.targets for batch in slices]))


# --- which members of a pack ------------------------------------------------------------------------------------------

Batches = Sequence[Sequence[Batch]]

StepResult = tuple[Tensor, Tensor, Tensor]
"""Loss, gradient norm and loss scale, as `Trainer.train_step` returns them."""


class StackDecision(NamedTuple):
    """Whether runs of a shape train in a stack of a given size, and why or why not."""

    is_accepted: bool
    reason: str


_DECISIONS: dict[tuple[StackShape, int, Mode], StackDecision] = {}
"""Decisions of this process: each size of a shape is tried once."""


def stack_decision(spec: TransformerRun, device: torch.device, members: int, mode: Mode) -> StackDecision | None:
    """Return this process's decision on a stack of `members` runs like `spec`; None before any trial.

    A refused size refuses all smaller ones: fewer members gain less.
    """
    like = spec.model, spec.task, spec.precision, device
    for (shape, size, its_mode), decision in _DECISIONS.items():
        alike = shape[:-2] == like and shape.share.batch_size == spec.batch_size and its_mode == mode
        if alike and (size == members or (size > members and not decision.is_accepted)):
            return decision
    return None


class Stacks:
    """The stacks of a pack: one for each shape for which a trial shows correct gradients and a speedup.

    Args:
        mode: `exact` requires the bits of runs alone, `fast` their numbers within rounding.
        stack_size: the only size to try; 0 disables stacks, None allows any size.
        log: called with some trainers and a line for the logs of their runs.
    """

    def __init__(self, mode: Mode, stack_size: int | None, log: Callable[[Sequence[Trainer], str], None]) -> None:
        self._mode = mode
        self._stack_size = stack_size
        self._log = log
        self._stacks: dict[StackShape, Stack] = {}
        self._refused: dict[StackShape, int] = {}
        self._stacks_evaluation = mode == "fast"

    @property
    def is_active(self) -> bool:
        """`True` if at least one stack trains."""
        return bool(self._stacks)

    def shape(self, trainer: Trainer) -> Hashable:
        """Return the shape of a run, equal for runs that may share a stack; None if the run cannot be stacked."""
        return None if self._stack_size == 0 or stack_obstacle(trainer) else shape_of(trainer)

    def step(
        self, trainers: Sequence[Trainer], lrs: Sequence[float], batches: Batches
    ) -> list[Callable[[], StepResult]] | None:
        """Compute the gradients of runs of one shape in a stack; in `fast` mode, update the runs at once too.

        Returns functions that end the step of each run and return its result, or raise if it failed. Returns None, with
        nothing changed, if the runs should train one by one.
        """
        shape = shape_of(trainers[0])
        stack = None  # known to the handler below even if creating it fails
        try:
            stack = self._stack(shape, trainers, batches)
            if stack is None:
                return None
            batches_by_trainer = dict(zip(trainers, batches, strict=True))
            losses_K, gradients = stack.gradients(
                [batches_by_trainer.get(trainer, batches[0]) for trainer in stack.trainers]
            )
            at_once = self._mode == "fast" and stack.can_update
            if not at_once:
                stack.distribute_gradients(gradients, batches_by_trainer.keys())
        except Exception as error:  # retried one by one, so that only the run at fault fails
            if stack:
                stack.drop_gradients()
            members = len(stack.trainers) if stack else len(trainers)
            reason = f"a stack of {members} fails, {error_line(error)}"
            _DECISIONS[shape, members, self._mode] = StackDecision(is_accepted=False, reason=reason)
            self._refuse(shape, members, trainers, reason)
            return None
        losses = dict(zip(stack.trainers, losses_K.unbind(), strict=True))
        if not at_once:
            return [partial(_update, t, lr, losses[t]) for t, lr in zip(trainers, lrs, strict=True)]
        try:
            updates = stack.update(gradients, dict(zip(trainers, lrs, strict=True)))
        except Exception as error:  # some parameters may have taken the step already, so that no run can go on
            return [partial(_raise, error)] * len(trainers)
        return [partial(_result, losses[trainer], updates[trainer]) for trainer in trainers]

    def outputs(self, trainers: Sequence[Trainer], batches: Sequence[Batch]) -> Sequence[Tensor] | None:
        """Return the model outputs of runs of one shape on a slice each of the validation set.

        Returns None if the runs should be evaluated one by one.
        """
        stack = self._stacks.get(shape_of(trainers[0]))
        if not self._stacks_evaluation or stack is None or not set(trainers) <= set(stack.trainers):
            return None
        if trainers[0].device.type not in EVALUATION_DEVICES:
            return None
        batches_by_trainer = dict(zip(trainers, batches, strict=True))
        try:
            outputs_K = stack.outputs([batches_by_trainer.get(trainer, batches[0]) for trainer in stack.trainers])
        except Exception as error:  # retried one by one, so that only the run at fault fails
            self._stacks_evaluation = False
            failure = f"a stack of {len(stack.trainers)} fails, {error_line(error)}"
            self._log(trainers, f"is evaluated without a stack: {failure}")
            return None
        return [outputs_K[stack.trainers.index(trainer)] for trainer in trainers]

    def _stack(self, shape: StackShape, trainers: Sequence[Trainer], batches: Batches) -> Stack | None:
        """Return the stack for some runs, after a trial if its size is new; None if they should train one by one.

        Runs that have ended keep their place, because another size would need a new trace and trial. On a CPU, where
        their computation is not free, the stack shrinks once half of them have ended.
        """
        stack, members = self._stacks.get(shape), list(trainers)
        if stack and (shape.device.type == "cuda" or 2 * len(members) > len(stack.trainers)):
            # Members that have ended compute on any batch, and their results are dropped.
            if set(members) <= set(stack.trainers):
                return stack
            departed = [trainer for trainer in stack.trainers if trainer not in members]
            members += departed[: max(0, len(stack.trainers) - len(members))]
        size = len(members)
        # A refused size refuses smaller ones, which gain even less.
        if size <= self._refused.get(shape, 0):
            return None
        key = shape, size, self._mode
        if key not in _DECISIONS and self._stack_size not in (None, size):
            self._refuse(shape, size, trainers, f"a stack of {size} is not worth a trial")
            return None
        previous, stack = stack, None
        if key not in _DECISIONS:
            stack, batches_by_trainer = Stack(members), dict(zip(trainers, batches, strict=True))
            _DECISIONS[key] = self._decide(stack, [batches_by_trainer.get(trainer, batches[0]) for trainer in members])
        accepted, reason = _DECISIONS[key]
        if not accepted:
            self._refuse(shape, size, trainers, reason)
            return None
        self._stacks[shape] = stack or Stack(members)
        joined = [trainer for trainer in trainers if previous is None or trainer not in previous.trainers]
        self._log(joined, f"trains in a stack of {size}, which {reason}")
        return self._stacks[shape]

    def _decide(self, stack: Stack, batches: Batches) -> StackDecision:
        """Decide by a trial whether a stack is accurate enough and fast enough."""
        size, result = len(stack.trainers), run_trial(stack, batches)
        if not result.exact and self._mode == "exact":
            return StackDecision(is_accepted=False, reason=f"in a stack of {size} the last bits of gradients differ")
        if result.relative_error > MAX_RELATIVE_ERROR[stack.trainers[0].spec.precision]:
            return StackDecision(
                is_accepted=False,
                reason=f"in a stack of {size} gradients are off by {result.relative_error:.2g} of their norm",
            )
        speed = f"computes gradients {result.speedup:.2f} times as fast"
        return (
            StackDecision(True, speed)
            if result.speedup >= MIN_SPEEDUP
            else StackDecision(False, f"a stack of {size} {speed}")
        )

    def _refuse(self, shape: StackShape, members: int, trainers: Sequence[Trainer], reason: str) -> None:
        """Refuse stacks of this shape up to this size from now on, and log why."""
        self._refused[shape] = max(members, self._refused.get(shape, 0))
        self._stacks.pop(shape, None)
        self._log(trainers, f"trains without a stack: {reason}")


def _update(trainer: Trainer, lr: float, loss: Tensor) -> StepResult:
    return loss, *trainer.update(lr)


def _result(loss: Tensor, update: tuple[Tensor, Tensor]) -> StepResult:
    return loss, *update


def _raise(error: Exception) -> NoReturn:
    raise error
