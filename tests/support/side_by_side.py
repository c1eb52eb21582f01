"""Train runs on several processes each, see forks.py: how they ended, what they died of, or what they say if asked."""

import itertools
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import fsdp as fsdp

from ettsweep.call import failure_code, failure_text
from ettsweep.errors import LostProcessError
from ettsweep.run import Run
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import StopReason
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.vit import Vit
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.training import async_checkpoint, checkpoint
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup, full_tensor, parameters
from ettsweep.trainer.training.run import prepare, train_run
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import initial_network
from support.here import Here, Polled, at_call
from support.resident import forget_peak, peak_resident_bytes

CPU = torch.device("cpu")


class Trial(NamedTuple):
    """One attempt at a run.

    Attributes:
        run: its folder.
        world: number of processes.
        micro_batch: samples at once.
        every_steps: steps between checkpoints.
        sharded: whether each process holds a part of the model alone.
        recompute: activations in the backward pass.
        beside: checkpoints are written beside training, as those of large models.
        rank, after, how: this process stops the run (`stop`) or is killed (`kill`), after so many steps of the attempt;
            the others do nothing of the kind. Or it is killed while it saves, see `KILLED`. Or it is `full` with more
            than `after` samples.
        ask: say this of the run instead of training it, see `ASKED`.
    """

    run: str
    world: int
    micro_batch: int | None = None
    every_steps: int | None = None
    sharded: bool | None = None
    rank: int = 0
    after: int = -1
    how: str = ""
    recompute: bool = False
    beside: bool = False
    ask: str = ""

    def execution(self) -> RuntimeSettings:
        return RuntimeSettings(
            micro_batch=self.micro_batch,
            checkpoint_every_steps=self.every_steps,
            sharded=self.sharded,
            activation_checkpointing=self.recompute,
        )


def full_with(limit: int) -> None:
    """Have this process refuse memory for more than so many samples at once in training."""
    forward = Vit.forward

    def limited(model: Vit, images: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and len(images) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(model, images)

    Vit.forward = limited  # type: ignore[method-assign]


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(state: Any, path: Path) -> None:
    """Be killed with half of a checkpoint on disk."""
    torch.save(state, path)
    os.truncate(path, path.stat().st_size // 2)
    kill()


IN_THIRD = 68
"""Of the tensors that each process gathers of a run with AdamW and one block, 32 each time."""

KILLED: dict[str, Callable[[], None]] = {
    "while it is gathered": lambda: at_call(async_checkpoint, "full_tensor", IN_THIRD, kill),
    "in the file": lambda: at_call(checkpoint, "_write", 3, half_written),
}
"""How a process may be killed while it saves for the third time; the last is the leader's."""


def say_groups(trial: Trial, group: ProcessGroup) -> Any:
    """Return (learning rate, decay) of each parameter, by name, in the optimizer of a run that has taken a step."""
    trainer = prepare(RunDir(Path(trial.run)).spec(), CPU, trial.execution(), group)
    trainer.network = group.wrap(trainer.model)
    trainer.train_step(0.25, trainer.task.batches(1))
    told = {id(p): (g["lr"], g["weight_decay"]) for g in trainer.optimizer.param_groups for p in g["params"]}
    by_name = parameters(trainer.model)
    assert len(told) == len(by_name)
    kinds = sorted({type(trainer.network).__name__, *(type(p).__name__ for p in by_name.values())})
    return {"kinds": kinds, "groups": {name: told[id(parameter)] for name, parameter in by_name.items()}}


def say_weights(trial: Trial, group: ProcessGroup) -> Any:
    """Return the hash of the initial weights, how many numbers of them are here, and where they all were once."""
    spec = RunDir(Path(trial.run)).spec()
    collected: list[str] = []
    shard = ProcessGroup.shard

    def look(self: ProcessGroup, model: Network, precision: Precision) -> None:
        collected.extend(parameter.device.type for parameter in model.parameters())
        shard(self, model, precision)

    ProcessGroup.shard = look  # type: ignore[method-assign]
    model = initial_network(spec, CPU, group, sharded=bool(trial.sharded))
    total = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters())
    return {"sha256": checkpoint.weights_sha256(model), "here": total, "whole": sorted(set(collected))}


def say_memory(trial: Trial, group: ProcessGroup) -> Any:
    """Return the most bytes that a run takes for its weights, until it is built, and until it is trained, saved and restored."""
    prepare(RunDir(Path(trial.run)).spec().model_copy(update={"model": SMALL}), CPU, trial.execution(), group)
    run = RunDir(Path(trial.run))
    forget_peak()
    before = peak_resident_bytes()
    initial_network(run.spec(), CPU, group, sharded=bool(trial.sharded))
    weights = peak_resident_bytes()
    forget_peak()
    trainer = prepare(run.spec(), CPU, trial.execution(), group)
    built = peak_resident_bytes()
    trainer.network = group.wrap(trainer.model)
    for step in (1, 2):
        trainer.train_step(0.25, trainer.task.batches(step))
    trainer.evaluate()
    most = peak_resident_bytes()
    if trial.sharded:
        given = Run(environment={"ETTSWEEP_RUN": run.id, "ETTSWEEP_STATES": str(run.path / "states")})
        trainer.step = 2
        async_checkpoint.AsyncCheckpointWriter().save(given, trainer)()
        group.all_max(0)  # it is on disk
        (path,) = (run.path / "states").iterdir()
        saved_state = checkpoint.load_checkpoint(path, run.id) if group.is_leader else None
        checkpoint.restore(saved_state, trainer, given)
    peaks = {"weights": weights, "built": built, "most": most, "saved": peak_resident_bytes()}
    return {key: value - before for key, value in peaks.items()}


def say_restored(trial: Trial, group: ProcessGroup) -> Any:
    """Return the step of a run's newest checkpoint, and the hash of each of its tensors, put together again."""
    run = RunDir(Path(trial.run))
    trainer = prepare(run.spec(), CPU, trial.execution(), group)
    attempt = run.attempt(run.attempt_numbers()[-1])
    path = attempt.state_path(attempt.saved_steps()[0])
    saved = checkpoint.load_checkpoint(path, run.id) if group.is_leader else None
    checkpoint.restore(saved, trainer, Run(environment={}))
    tensors = checkpoint.named_tensors(trainer.model, trainer.optimizer)
    return {"step": trainer.step} | {
        name: sha256(full_tensor(t).numpy().tobytes()).hexdigest() for name, t in tensors.items()
    }


SMALL = VitSpec(width=8, depth=1, heads=2, patch_size=4, image_size=8, channels=1, classes=10)

ASKED = {"groups": say_groups, "weights": say_weights, "memory": say_memory, "restored": say_restored}


def take_part(trial: Trial, rank: int, given: Run | None, log: Callable[[str], None]) -> None:
    """Train as one process of a trial."""
    if trial.beside:
        async_checkpoint.LARGE_BYTES = 0
    if trial.how == "full" and rank == trial.rank:
        full_with(trial.after)
    group = ProcessGroup.join(CPU) if trial.world > 1 else SINGLE_PROCESS
    if given is None:
        log(json.dumps(ASKED[trial.ask](trial, group)))
    else:
        if rank == trial.rank and trial.how in KILLED:
            KILLED[trial.how]()
        train_run(given, CPU, trial.execution(), group)
    group.leave()


def acting(trial: Trial, rank: int) -> Callable[[], bool]:
    """Return what a process asks at each step: whether it is to stop there, if it is not killed."""
    acts = rank == trial.rank and trial.after >= 0 and trial.how in ("", "stop", "kill")
    calls = itertools.count()

    def ask() -> bool:
        if not acts or next(calls) < trial.after:
            return False
        if trial.how == "kill":
            kill()
        return True

    return ask


def make(message: dict[str, Any]) -> list[str]:
    """Fork the processes of a trial; return how each ended."""
    trial = Trial(**message)
    here = None if trial.ask else Here(RunDir(Path(trial.run)), trial.world)
    children = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(trial.world):
        messages, log = os.pipe()
        pid = os.fork()
        if pid == 0:
            meeting = {"RANK": rank, "WORLD_SIZE": trial.world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in meeting.items()})
            given = Polled(here.variables, acting(trial, rank)) if here else None
            try:
                take_part(trial, rank, given, lambda text: os.write(log, text.encode()))  # noqa: B023
            except LostProcessError as error:
                os.write(log, f"lost: {error}".encode())
            except BaseException as error:
                os.write(log, f"{traceback.format_exc()}\nfailed: {failure_text(error)}".encode())
                os._exit(failure_code(error))
            os._exit(0)
        os.close(log)
        children.append((pid, messages))
    ends, statuses = [], []
    for pid, messages in children:
        with os.fdopen(messages) as pipe:
            text = pipe.read()
        status = os.waitpid(pid, 0)[1]
        statuses.append(os.waitstatus_to_exitcode(status))
        ends.append(text or {0: "ended", signal.SIGKILL: "killed"}.get(status, "?"))
    if here:
        failed = [text.rpartition("failed: ")[2] for text in ends if "failed: " in text]
        code = 0 if set(ends) == {"ended"} else -signal.SIGKILL if "killed" in ends else max(1, *statuses)
        stops = trial.how in ("", "stop") and trial.after >= 0 and code == 0
        here.end(code, failed[0] if failed else "", StopReason.TERMINATED if stops else None)
    return ends
