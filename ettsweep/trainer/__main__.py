"""Train Transformers: `python -m ettsweep.trainer`, started by a worker; for several devices, by torchrun on each."""

import atexit
import json
import os
import sys
import traceback
from collections.abc import Sequence

from ettsweep.call import Ended, failure_code, serve
from ettsweep.errors import EttsweepError
from ettsweep.run import Run
from ettsweep.trainer.device import prepare_device


def prepare(run: Run) -> None:
    """Import torch, on the device of this process.

    Raises:
        LaunchError: there is no such device.
    """
    given = json.loads(run.environment["ETTSWEEP_SETTINGS"])
    gpus, rank = given["gpus"], int(os.environ.get("LOCAL_RANK", "0"))
    if gpus and "WORLD_SIZE" in os.environ:  # those of this node: the worker may be on another
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpu = gpus[rank % len(gpus)] if gpus else None
    prepare_device(given["device"], gpu, given["sharers"], given["slot_threads"])


def train(runs: Sequence[Run], ended: Ended) -> None:
    """Train a run, or several of one recipe at once."""
    import torch

    from ettsweep.trainer.ensemble.ensemble import train_ensemble
    from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup
    from ettsweep.trainer.training.memory import release_memory
    from ettsweep.trainer.training.run import train_run
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings

    given = json.loads(runs[0].environment["ETTSWEEP_SETTINGS"])
    device, world = torch.device(given["device"]), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(given["slot_threads"])  # the previous run may have used fewer
    settings = RuntimeSettings.of(given, runs[0].data)
    try:
        if len(runs) > 1:
            train_ensemble(runs, device, settings, ended, given["workers"])
        elif world == 1:
            train_run(runs[0], device, settings, SINGLE_PROCESS)
        else:
            group = ProcessGroup.join(device)
            train_run(runs[0], device, settings, group)
            group.leave()
    except Exception as error:
        ours, code = isinstance(error, EttsweepError), failure_code(error)
        if ours:
            print(error, file=sys.stderr, flush=True)
        if world > 1:
            if not ours:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)  # a normal exit destroys the group, which may hang if a peer is lost
        if not ours:
            raise
        for run in runs:
            ended(run, code, str(error))
    release_memory(device)  # the next run sizes its micro-batches by the free memory


def leave(code: int) -> None:
    """End this process; one of several without the destructors of torch's threads, which may abort a finished run."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        sys.exit(code)
    atexit._run_exitfuncs()  # Python's own: processes that load data end
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(serve(train, prepare))
