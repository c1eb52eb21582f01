"""How a worker starts: in a slot of this machine, as a task of SLURM's array, or beside a leader on another device.

python -m ettsweep.worker FOLDER --slot NAME    what a command starts for each slot of this machine
python -m ettsweep.worker FOLDER                what a batch script of SLURM's starts
python -m ettsweep.worker --follow WHAT         what a worker starts on the other devices of its slot
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import EttsweepError, LaunchError, LostProcessError
from ettsweep.launch.profile import Slot
from ettsweep.launch.slots import hold_slot, let_go, lock_paths
from ettsweep.launch.submissions import Submission, read_submission
from ettsweep.provenance import package_dir
from ettsweep.runs.folder import RunDir
from ettsweep.worker.devices import meet_in_job, meet_leader, prepare_device
from ettsweep.worker.signals import SIGNALS, StopSource
from ettsweep.worker.slurm_job import SlurmJob
from ettsweep.worker.worker import Worker, say

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.training.distributed import ProcessGroup


# --- a slot of this machine -----------------------------------------------------------------------------------------


def run_in_slot(folder: Path, slot_name: str) -> int:
    """Train what the submission lists and no other worker has; return the exit code."""
    submission = read_submission(folder)
    _check_code(submission)
    slot = next(Slot.from_json(data) for data in submission.slots if data["name"] == slot_name)
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    lock = hold_slot(slot, submission.results, wait=False)
    if lock is None:
        say(submission, slot.name, leaving=False, waits=lock_paths(slot))
        lock = hold_slot(slot, submission.results)  # waits in the kernel, without torch
    assert lock is not None
    try:
        Worker(submission, slot, submission.run_dirs(submission.runs), StopSource()).serve()
    finally:
        let_go(lock)
    return 0


def follow_in_slot(meeting_json: str) -> int:
    """Train on another device of a slot what its leader says; return the exit code."""
    stop_source = StopSource()
    device, group = meet_leader(meeting_json)
    _follow(group, device, stop_source)
    group.leave()
    return 0


def _follow(group: "ProcessGroup", device: "torch.device", stop_source: "StopSource") -> None:
    """Train what the leader of a group says, until it has nothing more."""
    from ettsweep.trainer.training.run import train_run
    from ettsweep.trainer.training.runtime_settings import broadcast_jobs

    try:
        for path, number, settings in broadcast_jobs(group):
            run = RunDir(path)
            attempt = run.attempt(number)
            train_run(run, attempt, device, settings, stop_source.watch(attempt), group)
    except LostProcessError as error:
        print(f"rank {group.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # what is left of the group may hang at a normal end


def _check_code(submission: Submission) -> None:
    """Refuse to train with other code than was asked for: a snapshot may have been purged, or PYTHONPATH reset."""
    imported = package_dir().parent
    if submission.code and imported != Path(submission.code).resolve():
        raise LaunchError(f"the code of this submission is {submission.code}, and Python imports {imported}")


def run_task(folder: Path) -> int:
    """Train the runs of this task of the array; return the exit code."""
    job = SlurmJob.this()
    stop_source = StopSource()
    submission = read_submission(folder)
    _check_code(submission)
    submission.record(job.id.partition("_")[0])
    profile = submission.profile
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    slot = Slot(
        name=f"{job.index}-{job.rank}",
        device="cuda" if profile["gpus"] else "cpu",
        gpu=gpus[min(job.local_rank, len(gpus) - 1)] if profile["gpus"] else None,
        threads=profile["cpus"],
    )
    group = None
    if profile.get("devices_per_run", 1) > 1:
        # At once, whether or not there is anything to train: the others cannot know.
        device, _ = prepare_device(slot)
        group = meet_in_job(device, submission.name)
        if not group.leads:
            say(submission, slot.name, job, leaving=False)
            _follow(group, device, stop_source)
            say(submission, slot.name, job, leaving=True)
            group.leave()
            return 0
    worker = Worker(submission, slot, submission.run_dirs(submission.runs_of(job.index)), stop_source, job, group)
    worker.serve()
    if group is not None:
        from ettsweep.trainer.training.runtime_settings import dismiss

        dismiss(group)
        group.leave()
    return worker.go_on_in_the_next_job() if stop_source.told and worker.work_is_left() else 0


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of `python -m ettsweep.worker`."""
    try:
        match arguments:
            case ["--follow", meeting_json]:
                return follow_in_slot(meeting_json)
            case [folder, "--slot", slot]:
                return run_in_slot(Path(folder), slot)
            case [folder]:
                return run_task(Path(folder))
        raise LaunchError("workers are started by `ettsweep grid`, not by hand")
    except EttsweepError as error:
        print(f"ettsweep: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
