"""Respawn local workers that died while others of their submission live; their slots would stay idle until these end.

A new worker gets the same list and the same slot. Claims and slots are exclusive: a superfluous worker waits for the
slot, finds no run left and ends.
"""

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.errors import LaunchError, StorageError
from ettsweep.files import dumps, json_or_empty, storage_errors, write_atomic
from ettsweep.launch.folders import check_submission
from ettsweep.launch.submissions import VacantSlot, read_submission
from ettsweep.processes import Process, process_identity

MAX_RESPAWNS = 2
"""Most new workers that a command starts in a slot while it follows the runs."""


def respawn_worker(vacancy: VacantSlot) -> bool:
    """Start a worker in the slot of a dead one; return False if another command was faster.

    Raises:
        LaunchError: it could not be started.
        InputError: others may change what it would execute.
        StorageError: the submission cannot be written.
    """
    submission, slot = read_submission(vacancy.submission.path), vacancy.slot
    check_submission(submission)
    path = submission.report_path(slot)
    moved_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            path.rename(moved_path)  # a rename succeeds in only one of several commands that see the dead worker
        except FileNotFoundError:
            if vacancy.died:
                return False
        try:
            last_worker = Process.from_json(json_or_empty(moved_path).get("process"))
            if last_worker and last_worker.liveness() != "dead":  # another command has started it already
                return False
            from ettsweep.launch.executors import SlotExecutor  # submitit, which takes long to import

            new_worker = process_identity(SlotExecutor(submission.path, submission.code).start(slot))
            # Only now: the new worker writes a report of its own.
            moved_path.unlink(missing_ok=True)
        except OSError as error:
            raise LaunchError(f"{submission.path}: worker could not be started: {error}") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                # Without a new worker the dead one's report returns, so that its slot still counts as vacant.
                moved_path.rename(path)
    names = (str(slot_json.get("name")) for slot_json in submission.slots)
    workers = [
        new_worker if name == slot else worker for name, worker in zip(names, submission.workers(), strict=False)
    ]
    workers_json = [worker.to_json() if worker else None for worker in workers]
    write_atomic(submission.path / "workers.json", dumps({"workers": workers_json}))
    return True


def respawn_workers(vacancies: Collection[VacantSlot]) -> str:
    """Start a worker in each slot; return a line on how many were started, empty for none."""
    worker_count = sum(map(respawn_worker, vacancies))
    if not worker_count:
        return ""
    return f"{format_count(worker_count, 'idle slot')} {'has' if worker_count == 1 else 'have'} a new worker"


@dataclass
class WorkerRespawner:
    """Replaces workers that die while their runs are followed.

    A worker that died before it claimed a run is not replaced, and no slot gets more than `MAX_RESPAWNS`: on a broken
    device each would cost a run.

    Attributes:
        after_s: seconds for which a slot must have been vacant.
        notify: receives a line on what was done.
        clock: monotonic seconds.
    """

    after_s: float
    notify: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    _vacant_since_s: Mapping[tuple[Path, str], float] = field(default_factory=dict)
    _respawn_counts: Counter[tuple[Path, str]] = field(default_factory=Counter)

    def poll(self, vacancies: Collection[VacantSlot]) -> None:
        """Start workers in those of the vacant slots that have been vacant for long enough."""
        now_s = self.clock()
        vacant = {(v.submission.path, v.slot): v for v in vacancies if v.died}
        # A slot that has a worker again loses its time, so it starts afresh if that one dies.
        self._vacant_since_s = {key: self._vacant_since_s.get(key, now_s) for key in vacant}
        due = [
            key
            for key in vacant
            if now_s - self._vacant_since_s[key] >= self.after_s and self._respawn_counts[key] < MAX_RESPAWNS
        ]
        # Counted before the start: a slot whose worker cannot be started must not be tried for ever.
        self._respawn_counts.update(due)
        try:
            self.notify(respawn_workers([vacant[key] for key in due]))
        except (LaunchError, StorageError) as error:  # the other workers continue
            self.notify(str(error))
