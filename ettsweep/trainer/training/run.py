"""Trains one run, from its newest checkpoint to its end."""

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import torch

from ettsweep import __version__
from ettsweep.errors import DataMissingError
from ettsweep.files import Json
from ettsweep.run import Run
from ettsweep.runs.folder import RunDir
from ettsweep.runs.metric_loggers import MetricLoggers
from ettsweep.strategies.strategy import strategy_name
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.registry import check_data, located_data, task_kind
from ettsweep.trainer.tasks.task import BatchShare, ComputeContext, LoaderSettings, Task
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup, detect_lost_process, is_sharded
from ettsweep.trainer.training.loop import TrainingLoop, start_timings, train
from ettsweep.trainer.training.memory import explain_out_of_memory
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.precision import set_matmul_precision
from ettsweep.trainer.training.resume import environment_changes, previous_execution
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve
from ettsweep.trainer.training.stream import SharedClock, Streams, TrainingStream, WaitTimer, close_streams
from ettsweep.trainer.training.trainer import Trainer, initial_network


def environment(device: torch.device) -> Json:
    """Return device, threads and library versions, which may change the last bits of a run."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "ettsweep": __version__,
        "python": platform.python_version(),
    }


def train_run(
    run: Run,
    device: torch.device,
    settings: RuntimeSettings,
    group: ProcessGroup = SINGLE_PROCESS,
) -> None:
    """Train a run by itself, to its end, a divergence or a requested stop; all processes of the group call this.

    Args:
        run: the run.
        device: of this process.
        settings: of the launch profile; open ones are resolved.
        group: the processes that train the run together.

    Raises:
        EttsweepError: it cannot be trained: its data are missing, its checkpoint is damaged, memory is exhausted.
        LostProcessError: another process of the group is gone.
    """
    writer, streams = AsyncCheckpointWriter(), Streams()
    training = RunInTraining(run, device, settings, group, writer, SharedClock())
    try:
        training.prepare(streams)
        training.start()
        training.train()
        training.finish()
    finally:
        training.close()
        close_streams(streams)
        writer.close()


class RunInTraining:
    """A run, from its newest checkpoint to its end: the parts of `train_run`.

    An ensemble takes many runs through these parts at once.

    Args:
        run, device, settings, group: as for `train_run`.
        checkpoint_writer: of this process.
        clock: of all runs that train at once.

    Attributes:
        run, device: as given.
        is_over: whether it has ended in any way.
        trainer, stream: its objects, and its training data, once prepared.
        loop: its steps, once started.
    """

    trainer: Trainer
    stream: TrainingStream
    loop: TrainingLoop

    def __init__(
        self,
        run: Run,
        device: torch.device,
        settings: RuntimeSettings,
        group: ProcessGroup,
        checkpoint_writer: AsyncCheckpointWriter,
        clock: SharedClock,
    ) -> None:
        self.run, self.device = run, device
        self.is_over = False
        self._settings, self._group = settings, group
        self._folder = folder_of(run)
        self._attempt = self._folder.attempt(int(run.environment["ETTSWEEP_ATTEMPT"]))
        self._logger = RunLogger(run, self._attempt, group.rank, checkpoint_writer)
        self._clock = clock
        self._execution: Json = {}

    def prepare(self, streams: Streams, remark: str = "") -> None:
        """Build the run's objects at its newest checkpoint, and open its data.

        Args:
            streams: of the runs of one recipe that train at once. The run reads one of them, or adds its own.
            remark: a line for its log.
        """
        attempt, group = self._attempt, self._group
        spec = spec_of(self.run)
        # An ensemble cannot keep the run's bits, and needs the same settings for all runs.
        previous = {} if self._settings.stack_size > 1 else previous_execution(self._folder, attempt, group)
        self._settings = settings = resolve(spec, self.device, self._settings, group, previous, self._warn)
        torch.set_num_threads(settings.threads or 1)
        self.trainer = trainer = build_trainer(spec, self.device, settings, group)
        if self.run.resume_from is not None:
            saved = checkpoint.load_checkpoint(self.run.resume_from, self.run.id) if group.is_leader else None
            if saved is not None:
                checkpoint.check_fits(saved, trainer)
            checkpoint.restore(saved, trainer, self.run)
            trainer.spent = attempt.time_spent_before()
        self.stream = self._join_stream(streams)
        trainer.task = self.stream.task
        trainer.model.recompute = bool(settings.activation_checkpointing)
        self._execution = settings.facts(group) | {"data": _check_same_data(trainer.task.fingerprint, group)}
        if settings.compile:
            compile_blocks(trainer.model, spec.info.key, self._note_not_compiled)
        if group.is_leader:
            self._record_start(spec)
        if remark:
            self.log(remark)
        group.all_max(0)  # a barrier with a timeout: after a failure above, others must not wait in NCCL
        with self._explained_errors():
            trainer.network = group.wrap(trainer.model)
            trainer.rebuild_gradient_buckets()

    def _join_stream(self, streams: Streams) -> TrainingStream:
        """Return the run's training data from its next step on, shared by runs of its seed at that step."""
        trainer, settings = self.trainer, self._settings
        key = trainer.spec.seed, trainer.step  # with the step, since a resumed run may start at another one
        if key not in streams:
            loggers = list[RunLogger]()

            def skip(text: str) -> None:
                for logger in loggers:
                    logger.skip(text)

            wait_timer = WaitTimer(self.device, self._clock)
            compute_context = wait_timer.exclude_compute
            task = open_task(trainer.spec, self.device, trainer.share, settings, skip, compute_context)
            streams[key] = TrainingStream(task, trainer.step + 1, wait_timer, loggers)
        streams[key].loggers.append(self._logger)
        return streams[key]

    def _record_start(self, spec: TransformerRun) -> None:
        """Record how the run is trained, and open its metric loggers."""
        self._attempt.record("execution", environment(self.device) | self._execution)
        for change in environment_changes(spec, self._attempt):
            self._warn(change)
        results = self._folder.path.parent.parent
        self._logger.metric_loggers = MetricLoggers(
            self._settings.sinks, results, self.run.id, _labels(spec), self.trainer.step, self._warn
        )

    def start(self) -> None:
        """Start the run's clocks."""
        _start_s()
        timings = start_timings(self.trainer, self._settings, self._clock)
        wait_timer = self.stream.wait_timer
        self.loop = TrainingLoop(self.trainer, self._logger, self._settings, timings, wait_timer, self.run)

    def train(self) -> None:
        """Train the run by itself, from its next step to its end."""
        with self._explained_errors():
            train(self.loop, self.stream)

    def finish(self) -> None:
        """Record the trainer's entries of the result."""
        end = self.loop.end
        assert end is not None
        self._logger.finish_saving()
        self.is_over = True
        if end.stopped:
            self.log(f"stopped at step {end.step}")
            return
        # No hash for a diverged run: its weights depend on when the divergence was noticed.
        computes_weights = not end.diverged and (self._group.is_leader or is_sharded(self.trainer.model))
        with self._explained_errors():
            weights = checkpoint.weights_sha256(self.trainer.model) if computes_weights else None
        if self._group.is_leader:
            timings, spent = self.loop.timings, self.loop.timings.spent
            facts = {
                "wall_s": spent.wall_s,
                "device_s": spent.device_s,
                "steps_per_s": end.step / max(spent.wall_s, 1e-9),
                "environment": environment(self.device) | self._attempt.code(),
                "weights_sha256": weights,
                "execution": self._execution,
                "start_s": _start_s(),
            }
            self._attempt.record("facts", facts | timings.summary())

    def close(self) -> None:
        """Close everything that the run has opened."""
        self._logger.finish_saving()
        self._logger.close()

    def log(self, text: str) -> None:
        """Append a line to the run's log."""
        self._logger.log(text)

    def _warn(self, text: str) -> None:
        self.log(f"warning: {text}")

    def _note_not_compiled(self, reason: str) -> None:
        self._warn(reason)
        self._execution["compile"] = False  # a resume must not compile either, or its last bits would differ
        if self._group.is_leader:
            self._attempt.record("execution", environment(self.device) | self._execution)

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        lost = detect_lost_process() if self._group.world_size > 1 else contextlib.nullcontext()
        with explain_out_of_memory(self.trainer), lost:
            yield


def folder_of(run: Run) -> RunDir:
    """Return the folder of a run."""
    return RunDir(Path(run.environment["ETTSWEEP_SPEC"]).parent)


def spec_of(run: Run) -> TransformerRun:
    """Return the spec of a run.

    Raises:
        CorruptError: it cannot be read.
    """
    spec = folder_of(run).spec()
    assert isinstance(spec, TransformerRun), "a run of this trainer"
    return spec


def prepare(
    spec: TransformerRun,
    device: torch.device,
    settings: RuntimeSettings = RuntimeSettings(),  # noqa: B008 (frozen)
    group: ProcessGroup = SINGLE_PROCESS,
) -> Trainer:
    """Build the trainer of a run at step 0, on the device, with its data.

    Raises:
        DataMissingError: the data are missing, or are not those of the spec.
    """
    trainer = build_trainer(spec, device, settings, group)
    trainer.task = open_task(spec, device, trainer.share, settings, print)
    return trainer


def build_trainer(
    spec: TransformerRun, device: torch.device, settings: RuntimeSettings, group: ProcessGroup
) -> Trainer:
    """Build the trainer of a run at step 0, on the device, without data."""
    torch.manual_seed(spec.seed)
    set_matmul_precision(spec.precision)
    model = initial_network(spec, device, group, sharded=bool(settings.sharded))
    share = BatchShare(spec.batch_size, group.rank, group.world_size, settings.micro_batch)
    return Trainer(spec, model, build_optimizer(model, spec), device, share, group)


def open_task(
    spec: TransformerRun,
    device: torch.device,
    share: BatchShare,
    settings: RuntimeSettings,
    warn: Callable[[str], None],
    compute_context: ComputeContext = contextlib.nullcontext,
) -> Task:
    """Open the data of a run.

    Args:
        spec: the run.
        device: receives the batches.
        share: this process's share of each batch.
        settings: give the path of the data and the loader's processes.
        warn: called with a line for each sample that is skipped.
        compute_context: see `LoaderSettings`.

    Raises:
        DataMissingError: the data are missing, or are not those of the spec.
    """
    data = located_data(spec.task, settings.data)
    check_data(spec.task, spec.model, data)
    loading = LoaderSettings(settings.loader_workers, settings.corrupt_images, warn, data, compute_context)
    task: Task = resolve_name(task_kind(spec.task).load)(spec.task, spec.model, spec.seed, device, share, loading)
    return task


@cache
def _start_s() -> float:
    """Return the CPU seconds of this process until the first call, at its first training step.

    They approximate the time until then on a free machine, without waits for a slot or for others.
    """
    return time.process_time()


def _check_same_data(fingerprint: str, group: ProcessGroup) -> str:
    """Return the fingerprint of the data after a check that all processes have the same.

    Raises:
        DataMissingError: the fingerprints differ.
    """
    number = int(fingerprint or "0", 16)
    # The maximum of -x is minus the minimum of x: all processes have the same x if minimum and maximum are equal.
    negated_min, largest = group.all_max(-number, number)
    if -negated_min != largest:
        raise DataMissingError("the nodes of this run have different data under the same path; copy one to all of them")
    return fingerprint


def _labels(spec: TransformerRun) -> Json:
    return {"model": spec.info.labels.model, "strategy": strategy_name(spec.strategy.s)} | {
        name: getattr(spec, name) for name in ("lr", "wd", "seed", "batch_size", "precision")
    }
