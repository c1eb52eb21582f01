"""Which members of a pack train as a stack: those of one shape, where that is exact, or asked to be fast, and pays."""

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from torch import Tensor

from ettsweep.errors import error_line
from ettsweep.spec import Precision
from ettsweep.tasks.base import Batch
from ettsweep.training.stack import Stack, compiled_for, obstacle, shape_of, trial, trial_of_outputs
from ettsweep.training.trainer import Trainer

Mode = Literal["exact", "fast"]

PAYS = 1.05
"""How many times as fast as one by one the gradients of members have to be found in a stack."""

OFF: dict[Precision, float] = {"fp32": 0.01, "tf32": 0.01, "fp16": 0.05, "bf16": 0.1}
"""Part of its norm by which what a stack finds may differ from that of a member alone, where it need not be exact."""

EVALUATED = 2
"""Samples of a slice of the validation set, by those of a micro-batch, that a CPU takes of all members at once: without
a backward pass they take no more memory than a step."""

Batches = Sequence[Sequence[Batch]]


class Stacking:
    """Keeps the stacks of a pack.

    `say` takes what the logs of some members should have.
    """

    def __init__(self, mode: Mode, say: Callable[[Sequence[Trainer], str], None]) -> None:
        self._mode = mode
        self._say = say
        self._stacks: dict[Hashable, Stack] = {}
        self._tried = set[tuple[Hashable, int]]()
        self._refused: dict[Hashable, int] = {}
        self._evaluates: dict[Hashable, bool] = {}

    def shape(self, trainer: Trainer) -> Hashable:
        """Return what members share that may train in one stack; None for one that cannot."""
        return None if obstacle(trainer) else shape_of(trainer)

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
            given = dict(zip(trainers, batches, strict=True))
            losses_K, gradients = stack.gradients([given.get(trainer, batches[0]) for trainer in stack.trainers])
            stack.hand_out(gradients, given.keys())
        except Exception as error:  # one by one whoever is at fault fails alone
            if stack:
                stack.drop_gradients()
            members = len(stack.trainers) if stack else len(trainers)
            self._refuse(shape, members, trainers, f"a stack of {members} fails, {error_line(error)}")
            return None
        return [losses_K[stack.trainers.index(trainer)] for trainer in trainers]

    def outputs(self, trainers: Sequence[Trainer], batches: Sequence[Batch]) -> Sequence[Tensor] | None:
        """Return what the models of some members of one shape make of a slice of the validation set of each.

        Where they should rather find that one by one, None is returned.
        """
        shape = shape_of(trainers[0])
        stack = self._stacks.get(shape)
        if stack is None or 2 * len(trainers) <= len(stack.trainers) or not set(trainers) <= set(stack.trainers):
            return None
        if trainers[0].device.type == "cpu" and len(batches[0].targets) > EVALUATED * len(trainers[0].share.slices[0]):
            return None  # it would take memory that nobody has reckoned with, and on a CPU it is no faster
        given = dict(zip(trainers, batches, strict=True))
        slices = [given.get(trainer, batches[0]) for trainer in stack.trainers]
        tried = shape, len(slices), tuple(one.shape for one in batches[0].inputs)
        try:
            if tried not in self._evaluates:
                found = trial_of_outputs(stack, slices)
                right = found.exact if self._must_be_exact(stack) else found.off <= OFF[trainers[0].spec.precision]
                self._evaluates[tried] = right and found.speedup >= 1
            outputs_K = stack.outputs(slices) if self._evaluates[tried] else None
        except Exception as error:  # one by one whoever is at fault fails alone
            self._evaluates[tried] = False
            self._say(trainers, f"is evaluated in turn: a stack of {len(slices)} fails, {error_line(error)}")
            return None
        if outputs_K is None:
            return None
        return [outputs_K[stack.trainers.index(trainer)] for trainer in trainers]

    def _stack(self, shape: Hashable, trainers: Sequence[Trainer], batches: Batches) -> Stack | None:
        """Return the stack that some members train in; None where they should not.

        Those who have left stay in it, until they are half where it is not compiled: for each other number it would be
        tried, or compiled, anew.
        """
        stack, members = self._stacks.get(shape), list(trainers)
        if stack and (self._mode == "fast" or 2 * len(members) > len(stack.trainers)):
            if set(members) <= set(stack.trainers):
                return stack
            left = [trainer for trainer in stack.trainers if trainer not in members]
            members += left[: max(0, len(stack.trainers) - len(members))]
        if len(members) <= self._refused.get(shape, 0):
            return None
        size = self._size(members)
        if size is None:
            why = f"to compile a stack of {len(members)} takes longer than it saves"
            self._refuse(shape, len(members), trainers, why)
            return None
        before, stack = stack, Stack(members, compiled=self._mode == "fast", size=size)
        if (shape, size) in self._tried:
            new = [trainer for trainer in trainers if before is None or trainer not in before.trainers]
            self._say(new, f"trains in a stack of {len(members)}")
        else:
            if self._mode == "fast" and size not in compiled_for(shape_of(members[0])):
                self._say(trainers, f"compiles a stack of {size}, for some 20 s or more")
            given = dict(zip(trainers, batches, strict=True))
            if why := self._against(stack, [given.get(trainer, batches[0]) for trainer in members], trainers):
                self._refuse(shape, len(members), trainers, why)
                return None
            self._tried.add((shape, size))
        self._stacks[shape] = stack
        return stack

    def _size(self, members: Sequence[Trainer]) -> int | None:
        """Return the size of a stack for some members: their number, or one that is compiled and not much larger.

        None where they are less than half of what is compiled: the last few runs of a list do not wait for a compiler.
        """
        compiled = compiled_for(shape_of(members[0])) if self._mode == "fast" else ()
        fitting = [size for size in compiled if len(members) <= size <= 2 * len(members)]
        if any(size > 2 * len(members) for size in compiled) and not fitting:
            return None
        return min(fitting, default=len(members))

    def _against(self, stack: Stack, batches: Batches, trainers: Sequence[Trainer]) -> str:
        """Return why runs should not train in a stack, or "" where they should, which their logs then say."""
        members = len(stack.trainers)
        tried = trial(stack, batches)
        if not tried.exact and self._must_be_exact(stack):
            return f"in a stack of {members} the last bits of gradients differ"
        if tried.off > OFF[stack.trainers[0].spec.precision]:
            return f"in a stack of {members} gradients are off by {tried.off:.2g} of their norm"
        if self._mode == "fast":
            self._say(trainers, f"trains in a stack of {members}, compiled")
            return ""
        if tried.speedup < PAYS:
            return f"a stack of {members} finds gradients {tried.speedup:.2f} times as fast"
        self._say(trainers, f"trains in a stack of {members}, which finds gradients {tried.speedup:.2f} times as fast")
        return ""

    def _must_be_exact(self, stack: Stack) -> bool:
        """Say whether numbers of members have to be those of runs alone, bit for bit: a GPU's differ anyway."""
        return self._mode == "exact" and stack.trainers[0].device.type == "cpu"

    def _refuse(self, shape: Hashable, members: int, trainers: Sequence[Trainer], why: str) -> None:
        """Have no stack of so many members or less from now on: what speaks against it would against those."""
        self._refused[shape] = max(members, self._refused.get(shape, 0))
        self._stacks.pop(shape, None)
        self._say(trainers, f"trains in turn with the others: {why}")

    @property
    def active(self) -> bool:
        """Whether members train in a stack."""
        return bool(self._stacks)
