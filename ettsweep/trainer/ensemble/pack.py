"""A pack: runs that train beside each other in one process, those of one recipe and seed on the same batches.

They take their steps in turn, or at once where they train in a stack (trainer/ensemble/stack.py).

Each is a run as ever: no number of it depends on the others, and one that ends, diverges, is stopped or fails leaves
the rest as they are.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ettsweep.console import count
from ettsweep.files import Json
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.ensemble.stack import Mode, Stacks, obstacle
from ettsweep.trainer.models.registry import architecture, parameter_count
from ettsweep.trainer.tasks.task import Batch, Task, Working
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.coroutine import (
    EvaluationRequest,
    Request,
    RunCoroutine,
    SharedClock,
    StartRequest,
    StepRequest,
    Stop,
    TrainingStream,
    WaitTimer,
)
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.memory import STATE_BYTES
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve
from ettsweep.trainer.training.trainer import Trainer

T = TypeVar("T")

OpenTask = Callable[[Callable[[str], None], Working], Task]
"""Opens a task for those who are told of samples that are left out, and of work that is no waiting."""


class Pack:
    """Gives runs their turns until the last has ended.

    Attributes:
        device: that they train on.
        size: how many runs it begins with.
        mode: whether members of one shape train in a stack only if that is `exact`, or also if it is merely `fast`.
        stack: the one size of which a stack is tried; 0 for none, None for any.
        opening, closing: what the log of each should say of that before its steps, and in the end.
        clock: tells each member's part of the seconds that go by.
        rounds: how often members have had their turns.
        saver: writes the checkpoints of all.
    """

    def __init__(
        self,
        device: torch.device,
        size: int = 1,
        mode: Mode = "exact",
        remark: str = "",
        *,
        stack: int | None = None,
        asked: bool = True,
    ) -> None:
        self.size = size
        self.mode = mode
        self.stack = stack
        packed = f"trains in a pack with {count(size - 1, 'other run')}" if size > 1 else ""
        message = "; ".join(filter(None, (packed, remark)))
        # why a run trains alone is no news where nobody asked for a pack
        self.opening, self.closing = (message, "") if size > 1 or asked else ("", message)
        self.clock = SharedClock(size)
        self.rounds = 0
        self.saver = AsyncCheckpointWriter()
        self.device = device
        self._streams: dict[Hashable, TrainingStream] = {}
        self._records = WeakKeyDictionary[Trainer, RunLogger]()  # what has ended is not kept
        self._stacks = Stacks(mode, stack, self._say)
        self._closing: list[threading.Thread] = []
        self._threads: int | None = None
        self._micro_batches: dict[Hashable, int | None] = {}

    def facts(self, trainer: Trainer) -> Json:
        """Return what is recorded of how a member trains."""
        if self.size == 1:
            return {}
        fast = self.mode == "fast" and self.stack != 0 and not obstacle(trainer)
        return {"pack": self.size, "pack_mode": "fast" if fast else "exact"}

    def settled(
        self, spec: RunSpec, settings: RuntimeSettings, group: ProcessGroup, previous: Json, warn: Callable[[str], None]
    ) -> RuntimeSettings:
        """Return how a member is trained, its micro-batches as large as those of the others of its recipe.

        `before` is how an earlier attempt was trained. On a GPU its micro-batches may have had all memory.
        """
        if self.size > 1:
            at_once = self.size if architecture(spec.model).stacks and self.stack != 0 else 1
            # Short runs gain more by a stack than by compiled blocks, which it cannot have.
            settings = replace(settings, alike=1, at_once=at_once)
        if self.size > 1 and self.device.type == "cuda":
            previous = previous | {"micro_batch": self._micro_batches.get(spec.recipe_key)}
        others = (self.size - 1) * STATE_BYTES * parameter_count(spec.model)
        settings = resolve(spec, self.device, settings, group, previous, warn, others)
        self._threads = self._threads or settings.threads  # of the process, for all
        settings = replace(settings, threads=self._threads)
        self._micro_batches.setdefault(spec.recipe_key, settings.micro_batch)
        return settings

    def in_turn(self, trainer: Trainer) -> str:
        """Return why a member takes its steps in turn with others, or "" where it may do so at once, or is alone."""
        reason = obstacle(trainer) if self.size > 1 and self.stack != 0 else ""
        return reason and f"trains in turn with the others: {reason}"

    def close(self, logger: RunLogger) -> None:
        """Close a member's record; no other waits for servers that its metrics go to, but the pack does in the end."""
        if self.size == 1:
            logger.close()
            return
        self._closing.append(threading.Thread(target=logger.close, name="close", daemon=True))
        self._closing[-1].start()

    def join(self, trainer: Trainer, logger: RunLogger, open_task: OpenTask) -> TrainingStream:
        """Return the data of a run from its next step on, the same as those of a member that goes on there too.

        `open_task` is given whom to tell of samples that are left out, and of work on those that are there.
        """
        self._records[trainer] = logger
        key = trainer.spec.recipe_key, trainer.spec.seed, trainer.share, trainer.step
        if key not in self._streams:
            loggers = list[RunLogger]()

            def skip(text: str) -> None:
                for each in loggers:
                    each.skip(text)

            wait_timer = WaitTimer(self.device, self.clock)
            task = open_task(skip, wait_timer.working)
            self._streams[key] = TrainingStream(task, trainer.step + 1, wait_timer, loggers)
        self._streams[key].loggers.append(logger)
        return self._streams[key]

    def train(
        self, runs: Iterable[RunCoroutine], more: Callable[[int], Sequence[RunCoroutine]] = lambda free: ()
    ) -> list[Stop | None]:
        """Train runs to their ends; return why each was stopped, or None.

        Places that become free in a stack are given to `more` runs, as long as there are as many as asked for.

        Raises:
            StorageError, LostPeerError: the first that a run raised; the others have come to their ends by then.
        """
        members = list[PackMember]()
        try:
            self._go_round(runs, members, more)
        finally:
            for member in members:
                member.leave()  # at the end of the process is too late: threads that close records would not start
            self.saver.close()
            for thread in self._closing:
                thread.join()
        for member in members:
            if member.error is not None:
                raise member.error
        return [member.stop for member in members]

    def _go_round(
        self, runs: Iterable[RunCoroutine], members: list["PackMember"], refill: Callable[[int], Sequence[RunCoroutine]]
    ) -> None:
        """Give turns to runs, and to more, until all have ended; each is a member from its beginning."""
        streams = list[TrainingStream]()
        self._let_in(runs, members, streams)
        while active := [member for member in members if member.wish is not None]:
            self.clock.members = len(active)
            self.rounds += 1
            self._evaluate([member for member in active if isinstance(member.wish, EvaluationRequest)])
            self._take_step([member for member in active if member.wish is not None])
            active_streams = {member.stream for member in active if member.wish is not None}
            for stream in [stream for stream in streams if stream not in active_streams]:
                stream.close()
                streams.remove(stream)
            free = self.size - sum(member.wish is not None for member in active)
            if self.size - len(active) < free < self.size and self._stacks.active:  # some have just left
                self._let_in(refill(free), members, streams)

    def _let_in(self, runs: Iterable[RunCoroutine], members: list["PackMember"], streams: list[TrainingStream]) -> None:
        """Have runs begin."""
        for coroutine in runs:
            members.append(PackMember(coroutine))
            members[-1].go_on()
        for member in members:
            if isinstance(member.wish, StartRequest):
                member.go_on()
        streams += self._streams.values()
        self._streams.clear()  # they move on: nobody joins them any more

    def _take_step(self, members: Sequence["PackMember"]) -> None:
        """Have members take a step each, on the same batch where they share a stream."""
        if len(members) == 1 and self.size == 1:
            (member,) = members
            member.try_to(lambda: member.trainer.train_step(member.lr, member.stream))
            return
        slices = {member.stream: len(member.trainer.share.slices) for member in members}
        fetched = read(members, lambda stream: list(itertools.islice(stream, slices[stream])))
        for stackable in self._alike(member for member in members if member.wish is not None):
            trainers, batches = (
                [member.trainer for member in stackable],
                [fetched[member.stream] for member in stackable],
            )
            losses = self._stacks.gradients(trainers, batches) if len(stackable) > 1 else None
            for k, (member, batch) in enumerate(zip(stackable, batches, strict=True)):
                if losses:
                    member.try_to(partial(updated, member, losses[k]))
                else:
                    member.try_to(partial(member.trainer.train_step, member.lr, iter(batch)))

    def _evaluate(self, members: Sequence["PackMember"]) -> None:
        """Evaluate members, on the same slices of the validation set where they share a stream."""
        if self.size == 1:
            for member in members:
                member.try_to(member.trainer.evaluate)
            return
        slices: dict[TrainingStream, Iterator[Batch]] = {}

        def next_slice(stream: TrainingStream) -> Batch | None:
            if stream not in slices:
                slices[stream] = stream.task.validation()
            return next(slices[stream], None)

        sums = dict[PackMember, Tensor | None].fromkeys(members)
        while sums:
            fetched = read(list(sums), next_slice)
            batches = dict[PackMember, Batch]()
            for member in list(sums):
                if member.wish is None:
                    del sums[member]
                elif (batch := fetched[member.stream]) is not None:
                    batches[member] = batch
                else:
                    member.try_to(partial(member.trainer.metrics, sums.pop(member)))
            for stackable in self._alike(batches):
                self._measure({member: batches[member] for member in stackable}, sums)

    def _measure(self, batches: Mapping["PackMember", Batch], sums: dict["PackMember", Tensor | None]) -> None:
        """Add to the sums of members what they measure of a slice each; who fails leaves them."""
        trainers = [member.trainer for member in batches]
        outputs = self._stacks.outputs(trainers, list(batches.values())) if len(trainers) > 1 else None
        for k, (member, batch) in enumerate(batches.items()):
            trainer, before = member.trainer, sums[member]
            try:
                measured = trainer.task.measure(outputs[k], batch) if outputs else trainer.measure(batch)
                sums[member] = measured if before is None else before + measured
            except Exception as error:
                del sums[member]
                member.fail(error)

    def _alike(self, members: Iterable["PackMember"]) -> Iterable[list["PackMember"]]:
        """Return members, those together that may train in one stack."""
        groups = defaultdict[Hashable, list[PackMember]](list)
        for member in members:
            groups[self._stacks.shape(member.trainer) or member].append(member)
        return groups.values()

    def _say(self, trainers: Sequence[Trainer], text: str) -> None:
        for trainer in trainers:
            self._records[trainer].log(text)


class PackMember:
    """A run in a pack.

    Attributes:
        wish: what it wants next; None once it has ended.
        stop: why it was stopped.
        error: what it died of, if it could not even record that.
    """

    def __init__(self, coroutine: RunCoroutine) -> None:
        self._turns = coroutine
        self.wish: Request | None = None
        self.stop: Stop | None = None
        self.error: Exception | None = None

    @property
    def trainer(self) -> Trainer:
        """Its objects, while it wants something."""
        assert self.wish is not None
        return self.wish.trainer

    @property
    def stream(self) -> TrainingStream:
        """Its data, while it wants something."""
        assert self.wish is not None
        return self.wish.stream

    @property
    def lr(self) -> float:
        """The learning rate of the step that it wants."""
        assert isinstance(self.wish, StepRequest)
        return self.wish.lr

    def go_on(self, result: Any = None) -> None:
        """Give the run what it wanted."""
        self._until_next_wish(lambda: self._turns.send(result))

    def fail(self, error: Exception) -> None:
        """Tell the run that what it wanted has failed.

        Raises:
            RuntimeError: the device is broken: no run is to fail for another.
        """
        device = self.trainer.device
        self._until_next_wish(lambda: self._turns.throw(error))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def leave(self) -> None:
        """End the run where it is, unless it has come to its end."""
        self._turns.close()

    def try_to(self, compute: Callable[[], Any]) -> None:
        """Give the run what it wanted, or what that raised."""
        try:
            result = compute()
        except Exception as error:
            self.fail(error)
        else:
            self.go_on(result)

    def _until_next_wish(self, advance: Callable[[], Request]) -> None:
        self.wish = None
        try:
            self.wish = advance()
        except StopIteration as end:
            self.stop = end.value
        except Exception as error:
            self.error = error


def read(members: Sequence[PackMember], get: Callable[[TrainingStream], T]) -> dict[TrainingStream, T]:
    """Return what is read of the stream of each; members of one that cannot be read fail."""
    results: dict[TrainingStream, T] = {}
    streams = defaultdict[TrainingStream, list[PackMember]](list)
    for member in members:
        streams[member.stream].append(member)
    for stream, stream_members in streams.items():
        try:
            results[stream] = get(stream)
        except Exception as error:
            for member in stream_members:
                member.fail(error)
    return results


def updated(member: PackMember, loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Have a member that has its gradients step by them; return what `Trainer.train_step` would."""
    return loss, *member.trainer.update(member.lr)
