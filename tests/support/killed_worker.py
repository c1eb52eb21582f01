"""Kill a worker before each of its file operations: `python -m support.killed_worker FOLDER`, in tests/.

For each operation, a run that has a checkpoint is taken on in a folder of its own, by a worker that is killed there,
and then by another one. The last line that is printed has the states in between, one for each folder.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import KINDS, RunSpec, StrategySpec
from ettsweep.runs.state import LocalLiveness
from ettsweep.worker.program import Programs
from ettsweep.worker.signals import StopSource
from ettsweep.worker.work_list import WorkList
from ettsweep.worker.worker import train_runs
from support import fake_program
from support.claims import claimed, dead_process
from support.fake import FakeRecipe
from support.states import run_of

CHANGES = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir")

RECIPE = FakeRecipe(last_step=24, every=8)


def spec() -> RunSpec:
    """Return the run that is trained."""
    return RunSpec.of(RECIPE, StrategySpec(s=None), {"lr": 0.5, "wd": 0.5}, seed=0)


def interrupted(results: Path) -> RunDir:
    """Return a run whose first attempt has died after a checkpoint, and some steps on."""
    run = RunDir.create(results, spec())
    attempt = claimed(run, dead_process())
    given = run_of(attempt)
    given.lr, given.wd, given.seed = spec().lr, spec().wd, spec().seed
    fake_program.train(given, **(RECIPE.arguments | {"last_step": 8}))
    given.log(9, loss=1.0)  # what comes after a checkpoint is trained again
    given.close()
    return run


def train(run: RunDir, kill_at: int = -1) -> None:
    """Train a run to its end, in this process, which is killed before one of its file operations."""
    count = 0

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in CHANGES) and str(arguments[0]).startswith(str(run.path)):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    slot, profile = Slot("cpu-0", "cpu", None, 1), LocalProfile(devices="cpu")
    work = WorkList([run], slot, profile, {}, StopSource(), LocalLiveness(), {}, code={"code": "abc"})
    programs = Programs()
    train_runs(work, programs)
    programs.close()


def in_a_fork(run: RunDir, kill_at: int = -1) -> bool:
    """Train a run in a process of its own; return whether that was killed."""
    pid = os.fork()
    if pid == 0:
        train(run, kill_at)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def main(folder: Path) -> None:
    """Kill a worker at each of its file operations, until one comes to its end."""
    KINDS["fake"] = "support.fake:FAKE"
    made, states, was_killed = interrupted(folder / "made"), list[str](), True
    while was_killed:
        number = len(states) + 1
        shutil.copytree(folder / "made", folder / str(number))
        run = RunDir(runs_dir(folder / str(number)) / made.id)
        was_killed = in_a_fork(run, number)
        states.append(run.status().state)
        in_a_fork(run)
    print(json.dumps(states))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
