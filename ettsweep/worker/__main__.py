"""Entry points of a worker: in a slot of this machine, or as a task of a SLURM array.

python -m ettsweep.worker FOLDER --slot NAME    started by a command, for each slot of this machine
python -m ettsweep.worker FOLDER                started by a SLURM batch script
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ettsweep.console import prepare_streams
from ettsweep.errors import EttsweepError, LaunchError
from ettsweep.files import set_missing_home
from ettsweep.launch.folders import check_submission
from ettsweep.launch.gpus import visible_entries
from ettsweep.launch.slots import Slot, lock_paths, lock_slot, unlock
from ettsweep.launch.submissions import Submission, read_submission
from ettsweep.ownership import trust_group, trusts_group
from ettsweep.provenance import package_dir
from ettsweep.worker.signals import SIGNALS, StopSource
from ettsweep.worker.slurm_job import SlurmJob
from ettsweep.worker.work_list import heartbeat
from ettsweep.worker.worker import Worker, write_worker_report

# --- a slot of this machine -----------------------------------------------------------------------------------------


def run_in_slot(folder: Path, slot_name: str) -> int:
    """Train unclaimed runs of a submission in a slot of this machine; return the exit code.

    Waits until the slot is free; after a turn, releases it for another waiting worker.

    Raises:
        LaunchError: this process imports code other than the submission's.
        InputError: others may change its code.
    """
    submission = read_submission(folder)
    check_submission(submission)
    _check_code(submission)
    slot = next(Slot.from_json(data) for data in submission.slots if data["name"] == slot_name)
    with heartbeat([submission.worker_heart(slot.name)], submission.profile["heartbeat_s"]):
        gives_way, stop_source = True, None
        while gives_way:
            for number in SIGNALS:  # while it waits, a signal ends the process; StopSource replaces these
                signal.signal(number, lambda number, frame: sys.exit(128 + number))
            if stop_source and stop_source.stop_reason:  # it came before these handlers
                return 0
            lock = lock_slot(slot, submission.results, wait=False)
            if lock is None:  # for commands that show the reason of the wait
                write_worker_report(submission, slot.name, leaving=False, waits=lock_paths(slot))
                lock = lock_slot(slot, submission.results)  # waits in the kernel
            assert lock is not None
            stop_source = StopSource()
            try:
                gives_way = Worker(submission, slot, submission.run_dirs(submission.runs), stop_source).serve()
                gives_way = gives_way and not stop_source.stop_reason
                if gives_way:
                    write_worker_report(submission, slot.name, leaving=False, waits=lock_paths(slot))
            finally:
                unlock(lock)
    return 0


def _check_code(submission: Submission) -> None:
    """Refuse to train with code other than the submission's: its snapshot may be purged, or PYTHONPATH reset."""
    imported = package_dir().parent
    if submission.code and imported != Path(submission.code).resolve():
        raise LaunchError(
            f"this submission needs the code in {submission.code}, but Python imports {imported}; check that the "
            "folder exists and that nothing resets PYTHONPATH"
        )


def run_task(folder: Path) -> int:
    """Train the runs of this task of a SLURM array; return the exit code.

    Raises:
        LaunchError: this is not an array task, or it imports code other than the submission's.
        InputError: others may change its code.
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
            f"this job has no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}), but its "
            f"profile has gpus={profile['gpus']}; to train on the CPU, set gpus=0"
        )
    slot = Slot(
        name=f"{job.index}-{job.rank}",
        device="cuda" if profile["gpus"] else "cpu",
        # SLURM may show a process all GPUs of the node, or only its own.
        gpu=gpus[min(job.local_rank, len(gpus) - 1)] if profile["gpus"] else None,
        threads=profile["cpus"],
    )
    if profile.get("devices_per_run", 1) > 1:  # the run's program divides them
        slot = replace(slot, others=tuple(replace(slot, gpu=gpu) for gpu in gpus[1:] if profile["gpus"]))
    worker = Worker(submission, slot, submission.run_dirs(submission.task_runs(job.index)), stop_source, job)
    worker.serve()
    return worker.requeue_job() if stop_source.stop_reason and worker.has_work() else 0


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of `python -m ettsweep.worker`."""
    prepare_streams(lossy=("stdout", "stderr"))
    set_missing_home()
    trust_group(trusts_group())
    try:
        match arguments:
            case [folder, "--slot", slot]:
                return run_in_slot(Path(folder), slot)
            case [folder]:
                return run_task(Path(folder))
        raise LaunchError("start workers with `ettsweep grid`, not by hand")
    except EttsweepError as error:
        print(f"ettsweep: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
