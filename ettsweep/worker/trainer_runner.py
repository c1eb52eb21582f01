"""Runs of the built-in trainer in a worker: alone, in packs, or each on several devices."""

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ettsweep.errors import CorruptError, StorageError
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.stop import StopReason
from ettsweep.trainer.settings import TrainerSettings
from ettsweep.worker.devices import prepare_device, slot_group, slot_settings
from ettsweep.worker.packing import PackQueue, RemainingRuns, pack_size, runs_for_largest_pack, transformer_spec
from ettsweep.worker.signals import StopSource
from ettsweep.worker.work_list import WorkList, heartbeat

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.ensemble.pack import Pack
    from ettsweep.trainer.training.coroutine import RunCoroutine
    from ettsweep.trainer.training.distributed import ProcessGroup
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings

NO_COMPANIONS = "trains alone: no waiting run has the same recipe (and, if data are loaded, the same seed)"
"""Log line of a run whose pack has free places but no run to fill them."""


class Runner:
    """Trains Transformers, see `work_list.Runner`."""

    def train(self, work: WorkList) -> None:
        """Claim and train runs, in packs where possible, until a whole pass over the list claims none."""
        device, device_facts = prepare_device(work.slot)
        group_context = contextlib.nullcontext(work.group) if work.group is not None else slot_group(work.slot, device)
        with group_context as group:
            TrainerWork(work, group, device, device_facts).train()


class TrainerWork:
    """A worker's runs, once its device is ready."""

    def __init__(self, work: WorkList, group: "ProcessGroup", device: "torch.device", device_facts: Json) -> None:
        self._work, self._group, self._device, self._device_facts = work, group, device, device_facts

    def train(self) -> None:
        """Claim and train runs until a whole pass over the list claims none, or the worker is to stop."""
        import torch

        from ettsweep.trainer.ensemble.pack import Pack
        from ettsweep.trainer.training.memory import release_memory

        work, profile, device = self._work, self._work.profile, self._device
        trainer = profile.settings(TrainerSettings)
        claimed = True
        while claimed:
            claimed, remaining = False, RemainingRuns(work.runs, work.liveness)
            for run in work.runs:
                first = work.claim(run, self._device_facts)
                if first is None:
                    continue
                claimed = True
                torch.set_num_threads(work.slot.threads)  # the previous run may have used fewer
                queue = self.pack_queue(run, remaining)
                attempts = [first, *self._claim_up_to(queue, queue.size - 1)]
                settings = slot_settings(profile, work.slot, work.data_of(run), self._same_recipe_runs(run, remaining))
                has_no_companions = (
                    len(attempts) == 1 < queue.size and not work.stop_source.stop_reason and not queue.count_waiting(1)
                )
                remark = NO_COMPANIONS if has_no_companions else queue.remark
                pack_requested = trainer.pack != "auto" or trainer.pack_mode == "fast"
                size = len(attempts)
                pack = Pack(
                    device, size, trainer.pack_mode, remark, stack_size=queue.stack_size, pack_requested=pack_requested
                )
                stops = train_attempts(
                    attempts, pack, settings, work.stop_source, self._group, profile.heartbeat_s, work.code,
                    partial(self.refill, queue),
                )  # fmt: skip
                for attempt, stop in zip(attempts, stops, strict=True):
                    work.on_end(attempt, stop)
                if work.stop_source.stop_reason == "SUPERSEDED":
                    return
                if device.type == "cuda":
                    torch.cuda.synchronize()  # raises if the run has broken the device: then this process must end
                release_memory(device)  # the next run sizes its micro-batches by the free memory

    def pack_queue(self, first: RunDir, remaining: RemainingRuns) -> PackQueue:
        """Return the size of a pack that starts with a claimed run, and the runs that may join."""
        try:
            spec = transformer_spec(first)
        except CorruptError:
            return PackQueue()  # training records the error in the run's own folder
        workers, profile = self._work.workers, self._work.profile
        settings = profile.settings(TrainerSettings)
        if settings.pack == 1 or len(self._work.runs) <= workers:
            return PackQueue()  # saves reading the states of the list
        left = remaining.count_left(workers * runs_for_largest_pack(settings, spec))
        return PackQueue(pack_size(profile, spec, self._device, left, workers), remaining.companions(spec))

    def _claim_up_to(self, queue: PackQueue, free: int) -> list[Attempt]:
        """Claim up to `free` runs of the queue, skipping those that other workers claim first."""
        attempts = list[Attempt]()
        with contextlib.suppress(StorageError):  # the next claim outside a pack reports it
            while len(attempts) < free and not self._work.stop_source.stop_reason and (run := queue.next()):
                if attempt := self._work.claim(run, self._device_facts):
                    attempts.append(attempt)
        return attempts

    def refill(self, queue: PackQueue, free: int) -> list[Attempt]:
        """Claim runs for the free places of a pack, at most this worker's share of the waiting ones."""
        workers = self._work.workers
        waiting = queue.count_waiting(free * workers)
        return self._claim_up_to(queue, min(free, math.ceil(waiting / workers)))

    def _same_recipe_runs(self, run: RunDir, remaining: RemainingRuns) -> int:
        """Return how many runs of this recipe the worker trains, over which compiling its model pays off."""
        if self._work.slot.device == "cpu":
            return 1  # `auto` compiles nothing on a CPU, so do not read the list
        try:
            return math.ceil(remaining.count_same_recipe(transformer_spec(run)) / self._work.workers)
        except CorruptError:
            return 1  # training records the error in the run's own folder


def train_attempts(
    attempts: list[Attempt],
    pack: "Pack",
    settings: "RuntimeSettings",
    stop_source: StopSource,
    group: "ProcessGroup",
    heartbeat_s: float,
    code: Json,
    refill: Callable[[int], list[Attempt]] = lambda free: [],
) -> "list[StopReason | None]":
    """Train claimed runs: several as a pack, or one together with the other processes of a group.

    Args:
        attempts: the claimed attempts; those that `refill` claims are appended.
        pack: trains them in this process.
        settings: runtime settings of all.
        stop_source: signals and stop conditions.
        group: processes that train one run together.
        heartbeat_s: seconds between heartbeats.
        code: provenance of this process.
        refill: called with the number of free places; claims runs for them.

    Returns:
        Why each run was stopped early, or None.
    """
    from ettsweep.trainer.training.run import ClaimedRun, training_coroutine
    from ettsweep.trainer.training.runtime_settings import broadcast_job

    alive = list(attempts)

    def current_round() -> tuple[int, int]:
        return id(pack), pack.rounds

    def train_attempt(attempt: Attempt) -> "RunCoroutine":
        run = RunDir(attempt.run)
        try:
            attempt.record_provenance(code)
            broadcast_job(group, run.path, attempt.number, settings)
            stop = yield from training_coroutine(
                ClaimedRun(
                    run,
                    attempt,
                    pack.device,
                    settings,
                    stop_source.make_poll(attempt, current_round),
                    group,
                ),
                pack,
            )
            if stop is StopReason.SUPERSEDED and attempt.was_requeued():
                stop_source.stop_reason = "SUPERSEDED"  # SLURM has requeued the job, with all of its list
            return stop
        finally:
            alive.remove(attempt)

    def refill_pack(free: int) -> "list[RunCoroutine]":
        claimed = refill(free)
        attempts.extend(claimed)
        alive.extend(claimed)
        return list(map(train_attempt, claimed))

    with heartbeat(alive, heartbeat_s):
        return pack.train(map(train_attempt, tuple(attempts)), refill_pack)
