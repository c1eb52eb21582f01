"""The launcher of this machine: a worker in each slot, and new workers for dead ones."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from ettsweep.console import format_count, print_note
from ettsweep.errors import InputError, LaunchError, StorageError
from ettsweep.files import Json, json_or_empty, lock_dir, storage_errors
from ettsweep.launch.folders import check_submission
from ettsweep.launch.gpus import NO_MPS_NOTE, gpu_bytes, gpu_names, mps_is_running, visible_gpus
from ettsweep.launch.launcher import Launcher, RunDevices, code_environment, worker_command
from ettsweep.launch.slots import Slot, held_slots, lock_paths, sort_free_first
from ettsweep.launch.submissions import Submission, VacantSlot, read_submission, write_submission
from ettsweep.processes import GIB, Process, cores, memory_bytes, process_identity
from ettsweep.schema import Count, Positive, expect, is_whole
from ettsweep.study.plan import PlannedRun

GpuNumbers = Annotated[
    list[int] | Literal["auto", "cpu"],
    expect(
        "auto, cpu or a list of GPU numbers",
        lambda v: v in ("auto", "cpu") or (isinstance(v, list) and bool(v) and all(is_whole(n, 0) for n in v)),
    ),
]


class LocalProfile(Launcher):
    """Workers on this machine.

    Attributes:
        devices: `auto` uses the GPUs, or the CPU if there are none; `cpu`; or a list of GPU numbers.
        slots: number of workers; `auto` is one per core on the CPU, and `workers_per_device` per GPU.
        workers_per_device: workers that share a GPU and split its memory.
        threads: CPU threads per worker; `auto` splits the cores among the slots. A resumed run is bit for bit the
            same only with as many threads as before.
    """

    kind: Literal["local"] = "local"
    devices: GpuNumbers = "auto"
    slots: Count = "auto"
    workers_per_device: Positive = 1
    threads: Count = "auto"

    max_submissions: ClassVar[int] = 1

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if isinstance(self.devices, list) and (repeated := [n for n in self.devices if self.devices.count(n) > 1]):
            raise ValueError(
                f"devices: GPU {repeated[0]} occurs twice; for two workers on each GPU, set workers_per_device=2"
            )
        if self.workers_per_device > 1 and self.slots != "auto":
            raise ValueError("slots and workers_per_device both set the number of workers: drop one of them")
        if self.devices_per_run > 1 and self.workers_per_device > 1:
            raise ValueError("workers_per_device: must be 1 with devices_per_run > 1: each device has its own worker")
        return self

    def resolve_slots(self) -> list[Slot]:
        # Slots that do not fill a group remain unused.
        singles, devices_per_run = self._single_device_slots(), self.devices_per_run
        if len(singles) < devices_per_run:
            hint = "" if self.slots == "auto" else f" (slots={self.slots}; {devices_per_run} are needed)"
            hint = hint if singles[0].device == "cuda" else f" (on the CPU: slots={devices_per_run})"
            raise InputError(f"devices_per_run: {devices_per_run} requested, but only {len(singles)} available{hint}")
        groups = [
            singles[first : first + devices_per_run]
            for first in range(0, len(singles) - devices_per_run + 1, devices_per_run)
        ]
        return [replace(first, others=tuple(others)) for first, *others in groups]

    def memory_limit(self) -> tuple[int, str]:
        k = self.devices_per_run
        # A generous bound: the largest GPU, even if `devices` has smaller ones.
        if self.devices != "cpu" and visible_gpus() and (largest := gpu_bytes()):
            return k * largest, f"{format_count(k, 'GPU')} of this machine" if k > 1 else "a GPU of this machine"
        return memory_bytes(), "this machine"

    def check_counts(self) -> None:
        core_count, memory = cores(), memory_bytes()
        counts = {name: getattr(self, name) for name in ("slots", "threads", "workers_per_device")}
        counts["trainer.loader_workers"] = self.trainer.loader_workers
        limits = dict.fromkeys(counts, core_count * MAX_PER_CORE)
        # Each worker imports torch: memory limits their number before cores do.
        limits["slots"] = min(limits["slots"], max(core_count, memory // WORKER_BYTES))
        exceeded = {name: limit for name, limit in limits.items() if is_whole(counts[name], limit + 1)}
        if exceeded:
            machine = f"this machine has {format_count(core_count, 'core')} and {memory / GIB:.0f} GiB"
            raise InputError.of(
                f"{name}: at most {limit}, got {counts[name]}: {machine}" for name, limit in exceeded.items()
            )

    def capacity(self) -> int:
        return len(self.resolve_slots())

    def at_once(self, runs: int) -> tuple[int, str]:
        slots = min(runs, self.capacity())
        return slots, f"on {format_count(slots, 'slot')}"

    def run_devices(self) -> RunDevices:
        slots = self.resolve_slots()
        names_by_uuid = gpu_names() if slots[0].device == "cuda" else {}
        names = frozenset(names_by_uuid.get(slot.gpu or "", "") for slot in slots)
        return RunDevices(
            slots[0].device,
            self.devices_per_run,
            slots[0].threads,
            names if all(names) else frozenset(),
            allow_fewer_threads=self.threads == "auto",
        )

    def describe(self) -> str:
        slots = self.resolve_slots()
        locks = [lock for slot in slots for lock in held_slots(lock_paths(slot))]
        facts = [
            f"{format_count(len(slots), 'slot')}: {', '.join(slot.name for slot in slots)}",
            f"{format_count(slots[0].threads, 'thread')} each",
        ]
        if (sharers := max(slot.sharers for slot in slots)) > 1:
            facts.append(f"{sharers} workers share a GPU {'by MPS' if mps_is_running() else NO_MPS_NOTE}")
        return "; ".join([*facts, *map(str, locks), f"locks in {lock_dir()}"])

    def memory_advice(self, run_id: str, workers: int) -> str:
        if workers > 1:
            return f"`ettsweep retry {run_id} --launch-set slots={workers // 2}` trains fewer runs at once"
        return "a smaller batch takes less"

    def check_nodes(self, nodes: int) -> None:
        if nodes > 1:
            raise InputError(
                f"nodes: a run of this sweep needs {nodes}, but this launch profile has only this machine; pass "
                "--launch with a SLURM profile"
            )

    def check(self, results: Path, runs: Sequence[PlannedRun], *, dry_run: bool = False) -> None:
        self.resolve_slots()
        lock_dir()

    def start(self, results: Path, runs: Sequence[PlannedRun], content: Json) -> list[Path]:
        # Workers beyond the number of runs would find nothing.
        slots = sort_free_first(self.resolve_slots())[: len(runs)]
        if max(slot.sharers for slot in slots) > 1 and not mps_is_running():
            print_note(f"workers compute on a GPU {NO_MPS_NOTE}")
        submission = write_submission(results, content | {"slots": [asdict(slot) for slot in slots]})
        for slot in slots:
            with storage_errors(submission.path):
                submission.worker_heart(slot.name).write_heartbeat(0)
        submission.record_workers([start_worker(submission, slot.name) for slot in slots])
        return [submission.path]

    def _single_device_slots(self) -> list[Slot]:
        """Return one slot per worker, before they are grouped by `devices_per_run`."""
        core_count = cores()
        gpus = [] if self.devices == "cpu" else visible_gpus()
        if isinstance(self.devices, list):
            if missing := [index for index in self.devices if index >= len(gpus)]:
                raise InputError(f"devices: no GPU {missing[0]} here, found {len(gpus)}; `devices: cpu` uses none")
            gpus = [gpus[index] for index in self.devices]
        workers_per_gpu = self.workers_per_device
        worker_count = (len(gpus) * workers_per_gpu or core_count) if self.slots == "auto" else self.slots
        threads = max(1, core_count // worker_count) if self.threads == "auto" else self.threads
        if not gpus:
            if workers_per_gpu > 1:
                raise InputError(
                    f"workers_per_device: no GPU here; for the CPU, set slots={workers_per_gpu * core_count}"
                )
            return [Slot(f"cpu-{k}", "cpu", None, threads) for k in range(worker_count)]
        # NCCL refuses ranks of one run on the same GPU.
        if self.devices_per_run > 1 and worker_count > len(gpus):
            shared = f"{worker_count} workers cannot share {format_count(len(gpus), 'GPU')}"
            raise InputError(f"slots: {shared} if devices_per_run is {self.devices_per_run}")
        return [_gpu_slot(gpus, k, worker_count, threads) for k in range(worker_count)]


def _gpu_slot(gpus: Sequence[str], worker: int, worker_count: int, threads: int) -> Slot:
    """Return the slot of one of `worker_count` workers, assigned to the GPUs in turn."""
    gpu, rank_on_gpu = gpus[worker % len(gpus)], worker // len(gpus)
    sharers = len(range(worker % len(gpus), worker_count, len(gpus)))
    # The name becomes a file name; UUIDs of MIG devices can contain slashes.
    name = f"gpu-{gpu.replace('/', '_')}" + (f".{rank_on_gpu + 1}" if rank_on_gpu else "")
    return Slot(name, "cuda", gpu, threads, sharers)


MAX_PER_CORE = 64
"""Most workers or threads per core; more must be a typing error."""

WORKER_BYTES = 2**28
"""Lower bound on the memory of a worker in bytes: that of an import of torch."""

# --- workers --------------------------------------------------------------------------------------------------------


def start_worker(submission: Submission, slot: str) -> Process:
    """Start the worker of a slot in its own session: Ctrl-C and a closed terminal do not stop it.

    Raises:
        StorageError: the file of its output cannot be written.
        LaunchError: it cannot be started.
    """
    command = f"{worker_command(shlex.quote(sys.executable), submission.path)} --slot {shlex.quote(slot)}"
    # The output needs a file before its process id is known.
    output = submission.path / f"{uuid.uuid4().hex}_log.out"
    with storage_errors(output):
        log = output.open("ab")
    try:
        with log:
            worker = subprocess.Popen(
                shlex.split(command),
                env=os.environ | code_environment(submission.code, os.environ.get("PYTHONPATH")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        output.unlink(missing_ok=True)
        raise LaunchError(f"{submission.path}: cannot start the worker: {error}") from error
    with storage_errors(output):
        output.rename(submission.path / f"{worker.pid}_0_log.out")
    return process_identity(worker.pid)


MAX_RESPAWNS = 2
"""Most new workers that a command starts in a slot while it follows the runs."""


def respawn_worker(vacancy: VacantSlot) -> bool:
    """Start a worker in the slot of a dead one; return False if another command was faster.

    Raises:
        LaunchError: it could not be started.
        InputError: others may change its code.
        StorageError: the submission cannot be written.
    """
    submission, slot = read_submission(vacancy.submission.path), vacancy.slot
    check_submission(submission)
    path = submission.report_path(slot)
    moved_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            path.rename(moved_path)  # only one of several commands can rename the report
        except FileNotFoundError:
            if vacancy.died:
                return False
        try:
            last_worker = Process.from_json(json_or_empty(moved_path).get("process"))
            if last_worker and last_worker.liveness() != "dead":  # another command has started it already
                return False
            new_worker = start_worker(submission, slot)
            # Not earlier: the new worker writes its own report.
            moved_path.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(FileNotFoundError):
                # Without a new worker, restore the old report: the slot still counts as vacant.
                moved_path.rename(path)
    names = [str(each.get("name")) for each in submission.slots]
    pairs = zip(names, submission.workers(), strict=False)
    submission.record_workers([new_worker if name == slot else worker for name, worker in pairs])
    return True


def respawn_workers(vacancies: Collection[VacantSlot]) -> str:
    """Start a worker in each slot; return a line with their number, empty for none."""
    worker_count = sum(map(respawn_worker, vacancies))
    if not worker_count:
        return ""
    return f"{format_count(worker_count, 'idle slot')} {'has' if worker_count == 1 else 'have'} a new worker"


@dataclass
class WorkerRespawner:
    """Replaces workers that die while their runs are followed.

    It does not replace a worker that died before it claimed a run, and no slot gets more than `MAX_RESPAWNS`: on a
    broken device, each would cost a run.

    Attributes:
        after_s: seconds that a slot must be vacant first.
        notify: receives a line on new workers.
        clock: monotonic seconds.
    """

    after_s: float
    notify: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    _vacant_since_s: Mapping[tuple[Path, str], float] = field(default_factory=dict)
    _respawn_counts: Counter[tuple[Path, str]] = field(default_factory=Counter)

    def poll(self, vacancies: Collection[VacantSlot]) -> None:
        """Start workers in slots that have been vacant for long enough."""
        now_s = self.clock()
        vacant = {(v.submission.path, v.slot): v for v in vacancies if v.died}
        # The time of a slot restarts once it has a worker.
        self._vacant_since_s = {key: self._vacant_since_s.get(key, now_s) for key in vacant}
        due = [
            key
            for key in vacant
            if now_s - self._vacant_since_s[key] >= self.after_s and self._respawn_counts[key] < MAX_RESPAWNS
        ]
        # Count before the start: a worker that cannot start must not be tried for ever.
        self._respawn_counts.update(due)
        try:
            self.notify(respawn_workers([vacant[key] for key in due]))
        except (LaunchError, StorageError) as error:  # the other workers continue
            self.notify(str(error))
