"""Checkpoints of large models: the state as it was when it was copied, whatever is trained while it is written."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.commandline import PATIENCE_S
from support.made_runs import CPU
from support.states import checkpoint_path, run_of

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.training import async_checkpoint, checkpoint
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.trainer import Trainer


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_checkpoint, "LARGE_BYTES", 0)


class Disk:
    """A disk that writes a checkpoint only once it is told to."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Semaphore(0), threading.Semaphore(0)
        self.writing = self.most = self.threads = 0

    def slow(self, write: Callable[..., None]) -> Callable[..., None]:
        def slowly(*args: Any) -> None:
            self.writing += 1
            self.most = max(self.most, self.writing)
            self.threads += threading.current_thread() is not threading.main_thread()
            self.begun.release()
            assert self.may.acquire(timeout=PATIENCE_S)
            write(*args)
            self.writing -= 1

        return slowly


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(checkpoint, "_write", disk.slow(checkpoint._write))
    yield disk
    disk.may.release(100)


def stepped(trainer: Trainer, steps: int = 1) -> dict[str, torch.Tensor]:
    """Take steps; return what a checkpoint should then hold."""
    batches = trainer.task.batches(trainer.step + 1)
    for _ in range(steps):
        trainer.train_step(0.25, batches)
        trainer.step += 1
    return {name: tensor.clone() for name, tensor in checkpoint.named_tensors(trainer.model, trainer.optimizer).items()}


def assert_holds(attempt: Attempt, step: int, expected: dict[str, torch.Tensor]) -> None:
    saved = checkpoint.load_checkpoint(checkpoint_path(attempt), attempt.run.name)
    assert saved.step == step
    assert saved.tensors.keys() == expected.keys()
    assert all(torch.equal(saved.tensors[name], expected[name]) for name in expected)


def test_training_goes_on_while_the_state_of_before_is_written_and_the_next_waits_for_it(
    attempt: Attempt, spec: RunSpec, disk: Disk
) -> None:
    trainer, saves = prepare(spec, CPU), AsyncCheckpointWriter()
    first = stepped(trainer, 2)
    saves.save(run_of(attempt), trainer)
    assert disk.begun.acquire(timeout=PATIENCE_S)
    second = stepped(trainer, 3)
    assert not torch.equal(first["model/head"], second["model/head"])
    assert not attempt.has_checkpoint()
    waiting = list[Callable[[], None]]()
    other = threading.Thread(target=lambda: waiting.append(saves.save(run_of(attempt), trainer)))
    other.start()
    other.join(0.2)
    assert other.is_alive(), "its copy lies where the first is still read"
    disk.may.release()
    assert disk.begun.acquire(timeout=PATIENCE_S)
    assert_holds(attempt, 2, first)
    disk.may.release()
    other.join(PATIENCE_S)
    waiting[0]()
    assert_holds(attempt, 5, second)
    assert (disk.most, disk.threads) == (1, 2)


def test_what_goes_wrong_is_told_and_the_checkpoint_before_stays(
    attempt: Attempt, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, saves = prepare(spec, CPU), AsyncCheckpointWriter()
    expected = stepped(trainer)
    saves.save(run_of(attempt), trainer)()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        stepped(trainer)
        save_result = saves.save(run_of(attempt), trainer)
        with pytest.raises(PermissionError, match=r"Permission denied: '.*/states/2'"):
            save_result()
    assert_holds(attempt, 1, expected)
    expected = stepped(trainer)
    saves.save(run_of(attempt), trainer)()
    assert_holds(attempt, 3, expected)
