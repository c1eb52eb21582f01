"""Runs of the built-in trainer in a worker: one by one, in ensembles, or each on several devices."""

import contextlib
import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ettsweep.errors import CorruptError, StorageError
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.stop import StopReason
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.settings import TrainerSettings
from ettsweep.worker.devices import prepare_device, slot_group, slot_settings
from ettsweep.worker.work_list import WorkList, claimable, heartbeat

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.training.distributed import ProcessGroup
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings


class Runner:
    """Trains Transformers, see `work_list.Runner`."""

    def train(self, work: WorkList) -> None:
        """Claim and train runs until a whole pass over the list claims none."""
        device, device_facts = prepare_device(work.slot)
        group_context = contextlib.nullcontext(work.group) if work.group is not None else slot_group(work.slot, device)
        with group_context as group:
            TrainerWork(work, group, device, device_facts).train()


class TrainerWork:
    """A worker's runs, once its device is ready."""

    def __init__(self, work: WorkList, group: "ProcessGroup", device: "torch.device", device_facts: Json) -> None:
        self._work, self._group, self._device, self._device_facts = work, group, device, device_facts
        self._recipe_numbers: dict[object, int] = {}
        self._recipes: dict[RunDir, tuple[int, int]] = {}

    def train(self) -> None:
        """Claim and train runs until a whole pass over the list claims none, or the worker is to stop."""
        import torch

        from ettsweep.trainer.training.memory import release_memory

        work = self._work
        claimed = True
        while claimed:
            claimed = False
            for position, run in enumerate(work.runs):
                first = work.claim(run, self._device_facts)
                if first is None:
                    continue
                claimed = True
                torch.set_num_threads(work.slot.threads)  # the previous run may have used fewer
                settings = slot_settings(work.profile, work.slot, work.data_of(run), self._same_recipe_runs(run))
                others, remark = self._claim_companions(run, work.runs[position + 1 :], settings)
                attempts = [first, *others]
                stops = self._train_together(attempts, settings) if others else [self._train(first, settings, remark)]
                for attempt, stop in zip(attempts, stops, strict=True):
                    work.on_end(attempt, stop)
                    if stop is StopReason.SUPERSEDED and attempt.was_requeued():
                        work.stop_source.stop_reason = "SUPERSEDED"  # SLURM has requeued the job, with all of its list
                if work.stop_source.stop_reason == "SUPERSEDED":
                    return
                if self._device.type == "cuda":
                    torch.cuda.synchronize()  # raises if the run has broken the device: then this process must end
                release_memory(self._device)  # the next run sizes its micro-batches by the free memory

    def _train(self, attempt: Attempt, settings: "RuntimeSettings", remark: str) -> StopReason | None:
        """Train a claimed run, together with the other processes of the group; return why it was stopped early."""
        from ettsweep.trainer.training.run import train_run
        from ettsweep.trainer.training.runtime_settings import broadcast_job

        run, poll = RunDir(attempt.run), self._work.stop_source.make_poll(attempt)
        with heartbeat([attempt], self._work.profile.heartbeat_s):
            attempt.record_provenance(self._work.code)
            broadcast_job(self._group, run.path, attempt.number, settings)
            return train_run(run, attempt, self._device, settings, poll, self._group, remark)

    def _train_together(self, attempts: Sequence[Attempt], settings: "RuntimeSettings") -> list[StopReason | None]:
        """Train claimed runs of one recipe as an ensemble; return why each was stopped early, or None."""
        from ettsweep.trainer.ensemble.ensemble import Ensemble
        from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
        from ettsweep.trainer.training.distributed import SINGLE_PROCESS
        from ettsweep.trainer.training.run import RunInTraining
        from ettsweep.trainer.training.stream import SharedClock

        writer, clock = AsyncCheckpointWriter(), SharedClock(len(attempts))
        settings = settings.for_stack(len(attempts))
        runs = []
        for attempt in attempts:
            poll = self._work.stop_source.make_poll(attempt, lambda: (id(clock), clock.rounds))
            run = RunDir(attempt.run)
            runs.append(RunInTraining(run, attempt, self._device, settings, poll, SINGLE_PROCESS, writer, clock))
        with contextlib.closing(writer), heartbeat(runs, self._work.profile.heartbeat_s):
            for attempt in attempts:
                attempt.record_provenance(self._work.code)
            Ensemble(runs, clock).train()
        return [run.stop for run in runs]

    # --- which runs ---

    def _claim_companions(
        self, first: RunDir, others: Sequence[RunDir], settings: "RuntimeSettings"
    ) -> tuple[list[Attempt], str]:
        """Claim runs to train in one stack with a claimed one; return them, and a line on why there are none."""
        from ettsweep.trainer.training.memory import fitting_runs

        work, recipe = self._work, self._recipe(first)
        most = work.profile.settings(TrainerSettings).ensemble
        if most == 1 or recipe is None:
            return [], ""
        spec = transformer_spec(first)
        if work.profile.devices_per_run > 1:
            return [], "trains alone: an ensemble is of runs on one device each"
        if not architecture(spec.model).can_stack:
            return [], f"trains alone: models of kind {spec.model.kind} cannot train in an ensemble"
        fitting = fitting_runs(spec, self._device, settings.micro_batch, work.workers)
        if fitting < 2:
            return (
                [],
                "trains alone: no two such runs fit into half of the free memory; try a smaller micro_batch",
            )
        waiting = (run for run in others if self._recipe(run) == recipe and claimable(run, work.liveness))
        enough = list(islice(waiting, most * work.workers))
        # Other workers keep their part of the runs that wait.
        size = min(most, fitting, math.ceil((1 + len(enough)) / work.workers))
        attempts = list[Attempt]()
        with contextlib.suppress(StorageError):  # the next claim by itself reports it
            for run in enough:
                if 1 + len(attempts) < size and (attempt := work.claim(run, self._device_facts)):
                    attempts.append(attempt)
        return attempts, "" if attempts else "trains alone: no other run of its recipe waits for this worker"

    def _recipe(self, run: RunDir) -> tuple[int, int] | None:
        """Return numbers that are equal for runs that can train in one stack; None for a run that cannot be read.

        Runs of other seeds need other batches, so they are equal only if the data are in memory, not loaded from files.
        """
        if run not in self._recipes:
            try:
                spec = transformer_spec(run)
            except CorruptError:
                return None  # training records the error in the run's own folder
            number = self._recipe_numbers.setdefault(spec.info.key, len(self._recipe_numbers))
            self._recipes[run] = number, spec.seed if spec.info.data_kind else 0
        return self._recipes[run]

    def _same_recipe_runs(self, run: RunDir) -> int:
        """Return how many runs of this recipe the worker trains, over which compiling its model pays off."""
        if self._work.slot.device == "cpu" or (recipe := self._recipe(run)) is None:
            return 1  # `auto` compiles nothing on a CPU, so do not read the list
        recipes = map(self._recipe, self._work.runs)
        return math.ceil(sum(other is not None and other[0] == recipe[0] for other in recipes) / self._work.workers)


def transformer_spec(run: RunDir) -> TransformerRun:
    """Return the spec of a run of the built-in trainer.

    Raises:
        CorruptError: it cannot be read.
    """
    spec = run.spec()
    assert isinstance(spec, TransformerRun)
    return spec
