"""Replacing local workers that died while others of their submission live: else their slots would idle until these end.

A new worker is given the same list and the same slot. Claims are exclusive, and so is a slot: one worker too many waits
for it, finds nothing left and ends.
"""

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.console import count
from ettsweep.errors import LaunchError, StorageError
from ettsweep.files import dumps, json_or_empty, storage_errors, write_atomic
from ettsweep.launch.executors import SlotExecutor
from ettsweep.launch.submissions import VacantSlot
from ettsweep.processes import Process, process

MOST = 2
"""New workers that a command that follows gives to a slot."""


def fill(vacancy: VacantSlot) -> bool:
    """Start a worker in a slot whose worker is dead; return False where another command was faster.

    Raises:
        LaunchError: it could not be started.
        StorageError: the submission cannot be written.
    """
    submission, slot = vacancy.submission, vacancy.slot
    path = submission.words_path(slot)
    moved_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            path.rename(moved_path)  # of several commands that see the dead worker, one takes its words away
        except FileNotFoundError:
            if vacancy.died:
                return False
        try:
            last_worker = Process.from_json(json_or_empty(moved_path).get("process"))
            if last_worker and last_worker.liveness() != "dead":  # another command was faster than that
                return False
            new_worker = process(SlotExecutor(submission.path, submission.code).start(slot))
            moved_path.unlink(missing_ok=True)
        except OSError as error:
            raise LaunchError(f"{submission.path}: worker could not be started: {error}") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                moved_path.rename(path)
    names = (str(slot_json.get("name")) for slot_json in submission.slots)
    workers = [
        new_worker if name == slot else worker for name, worker in zip(names, submission.workers(), strict=False)
    ]
    workers_json = [worker.to_json() if worker else None for worker in workers]
    write_atomic(submission.path / "workers.json", dumps({"workers": workers_json}))
    return True


def fill_all(vacancies: Collection[VacantSlot]) -> str:
    """Start a worker in each slot; return a line on how many were, or an empty one."""
    worker_count = sum(map(fill, vacancies))
    return (
        f"{count(worker_count, 'idle slot')} {'has' if worker_count == 1 else 'have'} a new worker"
        if worker_count
        else ""
    )


@dataclass
class WorkerRespawner:
    """Replaces workers that die while their runs are followed, look after look.

    A worker that dies before it has claimed a run is not replaced, and no slot gets more than `MOST`: on a broken
    device each would cost a run.

    Attributes:
        after_s: seconds for which a slot must have been vacant.
        tell: takes a line on what was done.
    """

    after_s: float
    tell: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    _since: Mapping[tuple[Path, str], float] = field(default_factory=dict)
    _filled: Counter[tuple[Path, str]] = field(default_factory=Counter)

    def look(self, vacancies: Collection[VacantSlot]) -> None:
        """Look at the slots that are vacant at this instant, and fill those that have been for long enough."""
        now_s = self.clock()
        vacant = {(v.submission.path, v.slot): v for v in vacancies if v.died}
        self._since = {key: self._since.get(key, now_s) for key in vacant}
        due = [key for key in vacant if now_s - self._since[key] >= self.after_s and self._filled[key] < MOST]
        self._filled.update(due)
        try:
            self.tell(fill_all([vacant[key] for key in due]))
        except (LaunchError, StorageError) as error:  # the others go on
            self.tell(str(error))
