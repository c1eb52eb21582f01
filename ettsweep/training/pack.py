"""A pack: runs that train in turn in one process, those of one recipe and seed on the same batches from one loader.

Each is a run as ever: no number of it depends on the others, and one that ends, diverges, is stopped or fails leaves
the rest as they are.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ettsweep.files import Json
from ettsweep.output import count
from ettsweep.tasks.base import Task
from ettsweep.training.record import Record
from ettsweep.training.trainer import Trainer
from ettsweep.training.turns import Evaluation, SharedClock, Step, Stop, Stream, Turns


class Pack:
    """Gives runs their turns until the last has ended.

    Attributes:
        size: how many runs it begins with.
        note: what the log of each should say of that.
        clock: tells each member's part of the seconds that go by.
    """

    def __init__(self, device: torch.device, size: int, note: str = "") -> None:
        self.size = size
        self.note = note or (f"trains in turn with {count(size - 1, 'other run')}" if size > 1 else "")
        self.clock = SharedClock(size)
        self._device = device
        self._streams: dict[Hashable, Stream] = {}

    def facts(self) -> Json:
        """Return what is recorded of how a member trains."""
        return {"pack": self.size} if self.size > 1 else {}

    def join(self, trainer: Trainer, record: Record, open_task: Callable[[Callable[[str], None]], Task]) -> Stream:
        """Return the data of a run from its next step on, the same as those of a member that goes on there too.

        `open_task` is given whom to tell of samples that are left out.
        """
        key = trainer.spec.kind, trainer.spec.seed, trainer.share, trainer.step
        if key not in self._streams:
            records = list[Record]()

            def skip(text: str) -> None:
                for each in records:
                    each.skip(text)

            self._streams[key] = Stream(open_task(skip), trainer.step + 1, self._device, self.clock, records)
        self._streams[key].records.append(record)
        return self._streams[key]

    def train(self, runs: Iterable[Turns]) -> list[Stop | None]:
        """Train runs to their ends; return why each was stopped, or None.

        Raises:
            StorageError, LostPeerError: the first that a run raised; the others have come to their ends by then.
        """
        members = [Member(turns) for turns in runs]
        for member in members:
            member.go_on()
        streams = list(self._streams.values())
        while streams:
            for stream in list(streams):
                those = [member for member in members if member.wish is not None and member.wish.stream is stream]
                if not those:
                    stream.close()
                    streams.remove(stream)
                    continue
                serve(stream, those)
            self.clock.members = sum(member.wish is not None for member in members)
        for member in members:
            if member.error is not None:
                raise member.error
        return [member.stop for member in members]


class Member:
    """A run in a pack.

    Attributes:
        wish: what it wants next; None once it has ended.
        stop: why it was stopped.
        error: what it died of, if it could not even record that.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.wish: Step | Evaluation | None = None
        self.stop: Stop | None = None
        self.error: Exception | None = None

    @property
    def trainer(self) -> Trainer:
        """Its objects, while it wants something."""
        assert self.wish is not None
        return self.wish.trainer

    def go_on(self, came: Any = None) -> None:
        """Give the run what it wanted."""
        self._until_next_wish(lambda: self._turns.send(came))

    def fail(self, error: Exception) -> None:
        """Tell the run that what it wanted has failed."""
        self._until_next_wish(lambda: self._turns.throw(error))

    def try_to(self, get: Callable[[], Any]) -> None:
        """Give the run what it wanted, or what that raised."""
        try:
            came = get()
        except Exception as error:
            self.fail(error)
        else:
            self.go_on(came)

    def _until_next_wish(self, resume: Callable[[], Step | Evaluation]) -> None:
        self.wish = None
        try:
            self.wish = resume()
        except StopIteration as end:
            self.stop = end.value
        except Exception as error:
            self.error = error


def serve(stream: Stream, members: Sequence[Member]) -> None:
    """Evaluate those members of a stream that want it; where none does, all take a step on the same batch."""
    if evaluating := [member for member in members if isinstance(member.wish, Evaluation)]:
        evaluate(stream, evaluating)
    else:
        take_step(stream, members)


def take_step(stream: Stream, members: Sequence[Member]) -> None:
    """Have members that want a step take it, one after the other."""
    if len(members) == 1:
        (member,) = members
        member.try_to(lambda: member.trainer.train_step(wanted_lr(member), stream))
        return
    try:
        batches = list(itertools.islice(stream, len(members[0].trainer.share.slices)))
    except Exception as error:
        for member in members:
            member.fail(error)
        return
    for member in members:
        member.try_to(lambda: member.trainer.train_step(wanted_lr(member), iter(batches)))  # noqa: B023 (called at once)


def wanted_lr(member: Member) -> float:
    """Return the learning rate of the step that a member wants."""
    assert isinstance(member.wish, Step)
    return member.wish.lr


def evaluate(stream: Stream, members: Sequence[Member]) -> None:
    """Evaluate members, each slice of the validation set for one after the other."""
    if len(members) == 1:
        members[0].try_to(members[0].trainer.evaluate)
        return
    sums: dict[Member, Tensor | None] = dict.fromkeys(members)
    try:
        for batch in stream.task.validation():
            for member in list(sums):
                try:
                    measured = member.trainer.measure(batch)
                except Exception as error:
                    member.fail(error)
                    del sums[member]
                else:
                    before = sums[member]
                    sums[member] = measured if before is None else before + measured
    except Exception as error:
        for member in sums:
            member.fail(error)
        return
    for member, total in sums.items():
        member.try_to(lambda: member.trainer.metrics(total))  # noqa: B023 (called at once)
