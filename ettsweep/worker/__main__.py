"""Entry points of a worker: in a slot of this machine, as a task of a SLURM array, or as a follower on another device.

python -m ettsweep.worker FOLDER --slot NAME    started by a command, for each slot of this machine
python -m ettsweep.worker FOLDER                started by a SLURM batch script
python -m ettsweep.worker --follow JSON         started by a worker, on the other devices of its slot
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import prepare_streams
from ettsweep.errors import EttsweepError, LaunchError, LostProcessError
from ettsweep.files import set_missing_home
from ettsweep.launch.folders import check_submission
from ettsweep.launch.gpus import visible_entries
from ettsweep.launch.slots import Slot, lock_paths, lock_slot, unlock
from ettsweep.launch.submissions import Submission, read_submission
from ettsweep.ownership import trust_group, trusts_group
from ettsweep.provenance import package_dir
from ettsweep.runs.folder import RunDir
from ettsweep.worker.devices import join_job_group, join_leader_group, prepare_device
from ettsweep.worker.signals import SIGNALS, StopSource
from ettsweep.worker.slurm_job import SlurmJob
from ettsweep.worker.work_list import heartbeat
from ettsweep.worker.worker import Worker, write_worker_report

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.training.distributed import ProcessGroup


# --- a slot of this machine -----------------------------------------------------------------------------------------


def run_in_slot(folder: Path, slot_name: str) -> int:
    """Train the runs of a submission that no other worker has, in a slot of this machine; return the exit code.

    Waits until the slot is free; after a turn, gives way to another worker that waits for it.

    Raises:
        LaunchError: this process imports other code than the submission's.
        InputError: others may change what it executes.
    """
    submission = read_submission(folder)
    check_submission(submission)
    _check_code(submission)
    slot = next(Slot.from_json(data) for data in submission.slots if data["name"] == slot_name)
    # Until torch is loaded, a signal ends the process at once; StopSource replaces these handlers.
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    with heartbeat([submission.worker_heart(slot.name)], submission.profile["heartbeat_s"]):
        lock = lock_slot(slot, submission.results, wait=False)
        if lock is None:  # announce it, so that commands can tell what this worker waits for
            write_worker_report(submission, slot.name, leaving=False, waits=lock_paths(slot))
            lock = lock_slot(slot, submission.results)  # waits in the kernel, without torch
        assert lock is not None
        stop_source = StopSource()
        try:
            gives_way = Worker(submission, slot, submission.run_dirs(submission.runs), stop_source).serve()
            if gives_way:
                write_worker_report(submission, slot.name, leaving=False, waits=lock_paths(slot))
        finally:
            unlock(lock)
    if gives_way:
        begin_anew(stop_source)
    return 0


def begin_anew(stop_source: StopSource) -> None:
    """Begin anew as the same process, since one that waits must hold no memory of a device; return if it is to stop."""
    # As at the end of Python, which exec leaves out: what the function of a run has left running is finished.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in SIGNALS:  # before the last look: a signal after it would be noted, and forgotten
        signal.signal(number, signal.SIG_DFL)
    if not stop_source.stop_reason:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def follow_in_slot(meeting_json: str) -> int:
    """Train the runs that the leader broadcasts, on another device of its slot; return the exit code."""
    stop_source = StopSource()
    device, group = join_leader_group(meeting_json)
    _train_for_leader(group, device, stop_source)
    group.leave()
    return 0


def _train_for_leader(group: "ProcessGroup", device: "torch.device", stop_source: "StopSource") -> None:
    """Train the runs that the leader of a group broadcasts, until it dismisses this process."""
    from ettsweep.trainer.training.run import train_run
    from ettsweep.trainer.training.runtime_settings import received_jobs

    try:
        for path, number, settings in received_jobs(group):
            run = RunDir(path)
            attempt = run.attempt(number)
            train_run(run, attempt, device, settings, stop_source.make_poll(attempt), group)
    except LostProcessError as error:
        print(f"rank {group.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # a normal exit would destroy the group, which may hang without the lost peer


def _check_code(submission: Submission) -> None:
    """Refuse to train with other code than the submission's: its snapshot may be purged, or PYTHONPATH reset."""
    imported = package_dir().parent
    if submission.code and imported != Path(submission.code).resolve():
        raise LaunchError(
            f"this submission runs the code in {submission.code}, but Python imports {imported}; "
            "check that the folder still exists and that nothing resets PYTHONPATH"
        )


def run_task(folder: Path) -> int:
    """Train the runs of this task of a SLURM array; return the exit code.

    Raises:
        LaunchError: this is no array task, or it imports other code than the submission's.
        InputError: others may change what it executes.
    """
    job = SlurmJob.current()
    stop_source = StopSource()
    submission = read_submission(folder)
    check_submission(submission)
    _check_code(submission)
    submission.record_array(job.id.partition("_")[0])
    profile = submission.profile
    gpus = visible_entries(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if profile["gpus"] and not gpus:
        raise LaunchError(
            f"SLURM shows this job no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}), but its "
            f"profile has gpus={profile['gpus']}; gpus=0 trains on the CPU"
        )
    slot = Slot(
        name=f"{job.index}-{job.rank}",
        device="cuda" if profile["gpus"] else "cpu",
        # SLURM may show a process all GPUs of the node, or only its own.
        gpu=gpus[min(job.local_rank, len(gpus) - 1)] if profile["gpus"] else None,
        threads=profile["cpus"],
    )
    group = None
    if submission.one_process:  # its runs divide the devices of the node themselves
        slot = replace(slot, others=tuple(replace(slot, gpu=gpu) for gpu in gpus[1:] if profile["gpus"]))
    elif profile.get("devices_per_run", 1) > 1:
        # All processes join, even if no run is left: none of them can know what the others see.
        device, _ = prepare_device(slot)
        group = join_job_group(device, submission.name)
        if not group.is_leader:
            write_worker_report(submission, slot.name, job, leaving=False)
            _train_for_leader(group, device, stop_source)
            write_worker_report(submission, slot.name, job, leaving=True)
            group.leave()
            return 0
    worker = Worker(submission, slot, submission.run_dirs(submission.task_runs(job.index)), stop_source, job, group)
    worker.serve()
    if group is not None:
        from ettsweep.trainer.training.runtime_settings import dismiss_followers

        dismiss_followers(group)
        group.leave()
    return worker.requeue_job() if stop_source.stop_reason and worker.has_work() else 0


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of `python -m ettsweep.worker`."""
    prepare_streams(lossy=("stdout", "stderr"))
    set_missing_home()
    trust_group(trusts_group())
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
