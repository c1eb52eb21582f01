"""Train runs on several processes each, all forked from this one, which has imported torch once for all tests.

Takes a trial from each line of stdin as JSON, see `Trial`; answers with how its processes ended, or what they died of.
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed import FileStore

from ettsweep.rundir import Attempt, RunDir
from ettsweep.training.distributed import Group, LostPeerError, dismiss, lead, orders
from ettsweep.training.execution import Execution
from ettsweep.training.loop import Stop
from ettsweep.training.run import environment, train_run

CPU = torch.device("cpu")


class Trial(NamedTuple):
    """One attempt at a run.

    Attributes:
        run: its folder.
        world: number of processes.
        micro_batch: samples at once.
        every_steps: steps between checkpoints.
        rank, after, how: this process stops the run (`stop`), is killed (`kill`) or raises (`raise`), after so many
            steps of the attempt; the others do nothing of the kind.
    """

    run: str
    world: int
    micro_batch: int | None = None
    every_steps: int | None = None
    rank: int = 0
    after: int = -1
    how: str = ""


def take_part(trial: Trial, rank: int, meeting: str) -> None:
    """Train as one process of a trial."""
    calls = 0

    def poll() -> Stop | None:
        nonlocal calls
        calls += 1
        if rank != trial.rank or calls <= trial.after or trial.after < 0:
            return None
        if trial.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if trial.how == "raise":
            raise RuntimeError("this process alone has had enough")
        return Stop.TERMINATED

    group = Group.join(CPU, FileStore(meeting, trial.world), rank, trial.world)

    def train(attempt: Attempt, execution: Execution) -> None:
        train_run(attempt.run, attempt, CPU, execution, poll, group)

    if group.leads:
        run = RunDir(Path(trial.run))
        attempt = run.claim(environment(CPU), after=max(run.numbers(), default=0))
        assert attempt is not None
        execution = Execution(micro_batch=trial.micro_batch, checkpoint_every_steps=trial.every_steps)
        lead(group, run.path, attempt.number, execution)
        train(attempt, execution)
        dismiss(group)
    else:
        for path, number, execution in orders(group):
            train(RunDir(path).attempt(number), execution)
    group.leave()


def make(trial: Trial) -> list[str]:
    """Fork the processes of a trial; return how each ended."""
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(trial.world):
            said, say = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    take_part(trial, rank, f"{folder}/meeting")
                except LostPeerError as error:
                    os.write(say, f"lost: {error}".encode())
                except BaseException:
                    os.write(say, traceback.format_exc().encode())
                os._exit(0)
            os.close(say)
            children.append((pid, said))
        ends = []
        for pid, said in children:
            with os.fdopen(said) as pipe:
                text = pipe.read()
            ends.append(text or {0: "ended", signal.SIGKILL: "killed"}.get(os.waitpid(pid, 0)[1], "?"))
    return ends


def main() -> None:
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)]).step()  # the first step of a process imports for a second
    for line in sys.stdin:
        print(json.dumps(make(Trial(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
