"""Loading by worker processes: real ones, that must neither outlive a run nor end it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commandline import PATIENCE_S, alive, wait_for
from support.pictures import write_folders

Start = Callable[..., tuple["subprocess.Popen[str]", list[int]]]

LOADING = """
import multiprocessing, signal, sys, torch
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.tasks.task import BatchShare, LoaderSettings
from ettsweep.trainer.tasks.images.classification import Images

model = VitSpec(width=16, depth=1, heads=2, patch_size=16, image_size=32, classes=3)
task = ImageNetTask(train_size=36, val_size=9, resize=36)
images = Images(task, model, 0, torch.device("cpu"), BatchShare(8), LoaderSettings(workers=2, data=sys.argv[1]))
batches = images.batches(1)
next(batches)
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts a process which loads with two workers, and returns it and their ids."""
    write_folders(tmp_path / "data")
    collected: list[subprocess.Popen[str]] = []

    def go(then: str, *arguments: str) -> tuple["subprocess.Popen[str]", list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", LOADING + then, str(tmp_path / "data"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        collected.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return process, [int(pid) for pid in line.split()]

    yield go
    for process in collected:
        process.kill()
        process.communicate()


def assert_gone(workers: list[int]) -> None:
    wait_for(lambda: not any(alive(pid) for pid in workers), "the workers to end")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["raise KeyboardInterrupt", "import os; os.kill(os.getpid(), signal.SIGKILL)"])
def test_workers_end_with_their_run_however_it_ends(start: Start, ending: str) -> None:
    process, workers = start(ending)
    assert len(workers) == 2
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0, err
    assert_gone(workers)
    assert "Exception ignored" not in err


@pytest.mark.slow
def test_signals_to_all_processes_do_not_take_the_loader_from_a_run(start: Start) -> None:
    names = ("SIGINT", "SIGTERM", "SIGUSR2")
    handled = "told = set()\nfor name in sys.argv[2:]: signal.signal(getattr(signal, name), lambda n, _: told.add(n))\n"
    ready = "print('ready', flush=True)\n"
    go_on = "while len(told) < 3: next(batches)\n[next(batches) for _ in range(9)]; print('loaded', flush=True)"
    process, workers = start(handled + ready + go_on, *names)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for name in names:
        os.killpg(process.pid, getattr(signal, name))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == "loaded\n", err
    assert process.returncode == 0
    assert_gone(workers)
