"""A pack: several runs that train in one process and share the batches of their recipe and seed.

Runs take their steps one after the other, or in one call if they form a stack (trainer/ensemble/stack.py). No number of
a run depends on the others, and a run that ends, diverges, is stopped or fails leaves the others as they are.
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

from ettsweep.console import format_count
from ettsweep.files import Json
from ettsweep.runs.stop import StopReason
from ettsweep.trainer.ensemble.stack import Mode, Stacks, StepResult, stack_obstacle
from ettsweep.trainer.models.registry import architecture, parameter_count
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.task import Batch, ComputeContext, Task
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.coroutine import (
    EvaluationRequest,
    Request,
    RunCoroutine,
    SharedClock,
    StartRequest,
    StepRequest,
    TrainingStream,
    WaitTimer,
)
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.memory import STATE_BYTES
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve
from ettsweep.trainer.training.trainer import Trainer

T = TypeVar("T")

OpenTask = Callable[[Callable[[str], None], ComputeContext], Task]
"""Opens a task, given a callback for skipped samples and a context for device work that is not waiting for data."""


class Pack:
    """Schedules the steps and evaluations of runs in one process until the last run has ended.

    Attributes:
        device: the device of all runs.
        size: number of runs at the start.
        mode: `exact` stacks runs only if gradients stay bit-identical, `fast` also if they agree within rounding.
        stack_size: the only stack size to try; 0 disables stacks, None allows any size.
        opening_remark, closing_remark: line that each run logs before its first step, or after its last one.
        clock: counts each run's share of the elapsed seconds.
        rounds: number of rounds so far; in each, every active run takes one step.
        checkpoint_writer: writes the checkpoints of all runs.
    """

    def __init__(
        self,
        device: torch.device,
        size: int = 1,
        mode: Mode = "exact",
        remark: str = "",
        *,
        stack_size: int | None = None,
        pack_requested: bool = True,
    ) -> None:
        self.size = size
        self.mode = mode
        self.stack_size = stack_size
        packed = f"trains in a pack with {format_count(size - 1, 'other run')}" if size > 1 else ""
        message = "; ".join(filter(None, (packed, remark)))
        # Users who never requested a pack need not read why there is none: keep that for the end of the log.
        self.opening_remark, self.closing_remark = (message, "") if size > 1 or pack_requested else ("", message)
        self.clock = SharedClock(size)
        self.rounds = 0
        self.checkpoint_writer = AsyncCheckpointWriter()
        self.device = device
        self._streams: dict[Hashable, TrainingStream] = {}
        self._loggers = WeakKeyDictionary[Trainer, RunLogger]()  # weak: frees a run's tensors once it has ended
        self._stacks = Stacks(mode, stack_size, self._log)
        self._closing_threads: list[threading.Thread] = []
        self._threads: int | None = None
        self._micro_batches: dict[Hashable, int | None] = {}

    def facts(self, trainer: Trainer) -> Json:
        """Return the entries on packing for the run's execution record; empty for a run that trains alone."""
        if self.size == 1:
            return {}
        # A run outside stacks keeps the bits of a run alone, even in `fast` mode: resuming it elsewhere is exact.
        fast = self.mode == "fast" and self.stack_size != 0 and not stack_obstacle(trainer)
        return {"pack": self.size, "pack_mode": "fast" if fast else "exact"}

    def resolve_settings(
        self,
        spec: TransformerRun,
        settings: RuntimeSettings,
        group: ProcessGroup,
        previous: Json,
        warn: Callable[[str], None],
    ) -> RuntimeSettings:
        """Return the settings of a run, with the micro-batch size of the other runs of its recipe.

        Args:
            spec: the run.
            settings: of the launch profile; None values are still open.
            group: the processes that train the run.
            previous: execution record of an earlier attempt, or empty.
            warn: takes one line of text.
        """
        if self.size > 1:
            at_once = self.size if architecture(spec.model).can_stack and self.stack_size != 0 else 1
            # alike=1: many short runs do not add up to pay for compiling. A stack, which excludes it, gains them more.
            settings = replace(settings, alike=1, at_once=at_once)
        # On a GPU the earlier attempt may have sized its micro-batches for the whole memory, which is now shared.
        if self.size > 1 and self.device.type == "cuda":
            previous = previous | {"micro_batch": self._micro_batches.get(spec.recipe_key)}
        # The other runs allocate weights and moments only later, so that memory still looks free.
        others = (self.size - 1) * STATE_BYTES * parameter_count(spec.model)
        settings = resolve(spec, self.device, settings, group, previous, warn, others)
        self._threads = self._threads or settings.threads  # per process: one value for all runs
        settings = replace(settings, threads=self._threads)
        self._micro_batches.setdefault(spec.recipe_key, settings.micro_batch)
        return settings

    def no_stack_reason(self, trainer: Trainer) -> str:
        """Return the log line that says why a run cannot join a stack; "" if it can, or if it trains alone."""
        reason = stack_obstacle(trainer) if self.size > 1 and self.stack_size != 0 else ""
        return reason and f"trains without a stack: {reason}"

    def close_logger(self, logger: RunLogger) -> None:
        """Close a run's logger, in a thread if other runs train: a slow metrics server must not hold them up."""
        if self.size == 1:
            logger.close()
            return
        self._closing_threads.append(threading.Thread(target=logger.close, name="close", daemon=True))
        self._closing_threads[-1].start()

    def join_stream(self, trainer: Trainer, logger: RunLogger, open_task: OpenTask) -> TrainingStream:
        """Return the training stream of a run from its next step on.

        Runs of one recipe and seed that start at the same step share a stream, so that each batch is loaded once.
        `open_task` opens the data if no such stream exists yet.
        """
        self._loggers[trainer] = logger
        # With the step, since a resumed run may start at another one than its companions.
        key = trainer.spec.recipe_key, trainer.spec.seed, trainer.share, trainer.step
        if key not in self._streams:
            loggers = list[RunLogger]()

            def skip(text: str) -> None:
                for each in loggers:
                    each.skip(text)

            wait_timer = WaitTimer(self.device, self.clock)
            task = open_task(skip, wait_timer.exclude_compute)
            self._streams[key] = TrainingStream(task, trainer.step + 1, wait_timer, loggers)
        self._streams[key].loggers.append(logger)
        return self._streams[key]

    def train(
        self, runs: Iterable[RunCoroutine], refill: Callable[[int], Sequence[RunCoroutine]] = lambda free: ()
    ) -> list[StopReason | None]:
        """Train runs until all have ended; return why each was stopped early, or None.

        Args:
            runs: coroutines of the first runs.
            refill: called with the number of free places in a stack; returns coroutines of further runs.

        Raises:
            StorageError, LostProcessError: the first error of a run; all other runs have ended by then.
        """
        members = list[PackMember]()
        try:
            self._run_rounds(runs, members, refill)
        finally:
            for member in members:
                member.close()  # not at interpreter exit: the threads that close loggers could not start any more
            self.checkpoint_writer.close()
            for thread in self._closing_threads:
                thread.join()
        for member in members:  # only now: an error of one run must not end the others
            if member.error is not None:
                raise member.error
        return [member.stop for member in members]

    def _run_rounds(
        self, runs: Iterable[RunCoroutine], members: list["PackMember"], refill: Callable[[int], Sequence[RunCoroutine]]
    ) -> None:
        streams = list[TrainingStream]()
        self._admit(runs, members, streams)
        while active := [member for member in members if member.request is not None]:
            self.clock.members = len(active)
            self.rounds += 1
            # Evaluations first: afterwards every run that goes on requests a step, and all take it on the same batch.
            self._evaluate([member for member in active if isinstance(member.request, EvaluationRequest)])
            self._take_step([member for member in active if member.request is not None])
            active_streams = {member.stream for member in active if member.request is not None}
            # A stream that no run reads any more would keep its loader processes and prefetched batches.
            for stream in [stream for stream in streams if stream not in active_streams]:
                stream.close()
                streams.remove(stream)
            free = self.size - sum(member.request is not None for member in active)
            if self.size - len(active) < free < self.size and self._stacks.is_active:  # runs have just ended
                self._admit(refill(free), members, streams)

    def _admit(self, runs: Iterable[RunCoroutine], members: list["PackMember"], streams: list[TrainingStream]) -> None:
        """Start runs: first all up to their start request, so that they share streams, then the training clocks."""
        for coroutine in runs:
            members.append(PackMember(coroutine))
            members[-1].resume()
        for member in members:
            if isinstance(member.request, StartRequest):
                member.resume()
        streams += self._streams.values()
        self._streams.clear()  # they advance now, so a run that starts later needs a stream of its own

    def _take_step(self, members: Sequence["PackMember"]) -> None:
        """Take one step of each run; runs that share a stream get the same batch."""
        if len(members) == 1 and self.size == 1:
            (member,) = members
            # Not as a list, as below: later micro-batches load while the device computes the first.
            member.fulfil(lambda: member.trainer.train_step(member.lr, member.stream))
            return
        slices = {member.stream: len(member.trainer.share.slices) for member in members}
        fetched = read_streams(members, lambda stream: list(itertools.islice(stream, slices[stream])))
        for stackable in self._stackable_groups(member for member in members if member.request is not None):
            batches = [fetched[member.stream] for member in stackable]
            steps: Sequence[Callable[[], StepResult]] | None = None
            if len(stackable) > 1:
                steps = self._stacks.step([m.trainer for m in stackable], [m.lr for m in stackable], batches)
            for k, (member, batch) in enumerate(zip(stackable, batches, strict=True)):
                member.fulfil(steps[k] if steps else partial(member.trainer.train_step, member.lr, iter(batch)))

    def _evaluate(self, members: Sequence["PackMember"]) -> None:
        """Evaluate runs; those that share a stream get the same slices of the validation set."""
        if self.size == 1:
            for member in members:
                member.fulfil(member.trainer.evaluate)
            return
        slices: dict[TrainingStream, Iterator[Batch]] = {}

        def next_slice(stream: TrainingStream) -> Batch | None:
            if stream not in slices:
                slices[stream] = stream.task.validation()
            return next(slices[stream], None)

        sums = dict[PackMember, Tensor | None].fromkeys(members)
        while sums:
            fetched = read_streams(list(sums), next_slice)
            batches = dict[PackMember, Batch]()
            for member in list(sums):
                if member.request is None:
                    del sums[member]
                elif (batch := fetched[member.stream]) is not None:
                    batches[member] = batch
                else:
                    member.fulfil(partial(member.trainer.metrics, sums.pop(member)))
            for stackable in self._stackable_groups(batches):
                self._measure({member: batches[member] for member in stackable}, sums)

    def _measure(self, batches: Mapping["PackMember", Batch], sums: dict["PackMember", Tensor | None]) -> None:
        """Add each run's measurements on one slice to its sums; drop a run that fails."""
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

    def _stackable_groups(self, members: Iterable["PackMember"]) -> Iterable[list["PackMember"]]:
        """Group the runs that may train in one stack; a run that cannot is a group of its own."""
        groups = defaultdict[Hashable, list[PackMember]](list)
        for member in members:
            groups[self._stacks.shape(member.trainer) or member].append(member)
        return groups.values()

    def _log(self, trainers: Sequence[Trainer], text: str) -> None:
        for trainer in trainers:
            self._loggers[trainer].log(text)


class PackMember:
    """A run in a pack.

    Attributes:
        request: the pending request of the run; None once the run has ended.
        stop: why the run was stopped early.
        error: the error that ended the run, if the run could not record it in its own folder.
    """

    def __init__(self, coroutine: RunCoroutine) -> None:
        self._coroutine = coroutine
        self.request: Request | None = None
        self.stop: StopReason | None = None
        self.error: Exception | None = None

    @property
    def trainer(self) -> Trainer:
        """The run's trainer; only while a request is pending."""
        assert self.request is not None
        return self.request.trainer

    @property
    def stream(self) -> TrainingStream:
        """The run's training stream; only while a request is pending."""
        assert self.request is not None
        return self.request.stream

    @property
    def lr(self) -> float:
        """The learning rate of the requested step."""
        assert isinstance(self.request, StepRequest)
        return self.request.lr

    def resume(self, result: Any = None) -> None:
        """Send the result of the pending request to the run and wait for its next request."""
        self._await_request(lambda: self._coroutine.send(result))

    def fail(self, error: Exception) -> None:
        """Raise the error of a failed request inside the run, which records it.

        Raises:
            RuntimeError: the device is broken, so that the other runs cannot go on either.
        """
        device = self.trainer.device
        self._await_request(lambda: self._coroutine.throw(error))
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # surfaces a sticky CUDA error here, before another run is blamed for it

    def close(self) -> None:
        """Close the coroutine; no effect if the run has ended."""
        self._coroutine.close()

    def fulfil(self, compute: Callable[[], Any]) -> None:
        """Compute the result of the pending request and send it to the run, or the error that this raised."""
        try:
            result = compute()
        except Exception as error:
            self.fail(error)
        else:
            self.resume(result)

    def _await_request(self, advance: Callable[[], Request]) -> None:
        self.request = None
        try:
            self.request = advance()
        except StopIteration as end:
            self.stop = end.value
        except Exception as error:  # the coroutine records its errors itself; only what it could not record comes here
            self.error = error


def read_streams(members: Sequence[PackMember], get: Callable[[TrainingStream], T]) -> dict[TrainingStream, T]:
    """Read once from each stream; return the results by stream. All runs of a stream that cannot be read fail."""
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
