"""Loading by worker processes: real ones, that must neither outlive a run nor end it."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from support.commandline import PATIENCE_S, alive, wait_for
from support.pictures import jpeg, write_folders

from ettsweep.trainer.tasks.images import chunks
from ettsweep.trainer.tasks.images.augmentation import Sample
from ettsweep.trainer.tasks.images.chunks import Problem, TrainingImages, load_chunks

Start = Callable[..., tuple["subprocess.Popen[str]", list[int]]]

# --- one image --------------------------------------------------------------------------------------------------------


class Stored:
    """25 images in memory, of which some are corrupt, or cannot be read for some time."""

    def __init__(self, corrupt: AbstractSet[int] = frozenset(), failures: int = 0) -> None:
        rng = np.random.default_rng(0)
        images = [jpeg(rng) for _ in range(25)]
        self.images = [b"broken" if i in corrupt else image for i, image in enumerate(images)]
        self.labels: NDArray[np.int64] = np.arange(25)
        self.classes = [str(i) for i in range(25)]
        self.failures = failures

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"image {index}"

    def read(self, index: int) -> bytes:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self.images[index]


def noisy(image: Image.Image) -> Sample:
    """Stand for augmentation: the image's first pixel, and a number from each generator."""
    import random

    pixel = image.getpixel((0, 0))
    assert isinstance(pixel, tuple)
    values = [pixel[0], random.random(), np.random.rand(), float(torch.rand(()))]
    return Sample(torch.tensor(values, dtype=torch.float64))


def test_what_replaces_an_image_is_drawn_with_the_seed_of_the_place() -> None:
    problems: list[Problem] = []
    (whole, _), label = TrainingImages(Stored(), noisy, 0).load((0, 3), problems)
    assert (problems, label) == ([], 3)
    (after, _), label = TrainingImages(Stored({3, 4}), noisy, 0).load((0, 3), problems)
    assert label == 5
    assert [p.name for p in problems] == ["image 3", "image 4"]
    assert torch.equal(after[1:], whole[1:]), "the same draws"
    (own, _), _ = TrainingImages(Stored(), noisy, 0).load((0, 5), [])
    assert after[0] == own[0] != whole[0], "of another image"
    assert not torch.equal(after[1:], own[1:])


def test_ten_corrupt_images_in_a_row_are_replaced_and_eleven_are_fatal() -> None:
    stored = {i % 25 for i in range(20, 30)}
    images = TrainingImages(Stored(stored), noisy, 0)
    chunk = next(load_chunks(images, [[(0, 20)]], 0, pinned=False))
    assert chunk.labels.tolist() == [5]
    assert len(chunk.problems) == 10
    images = TrainingImages(Stored(stored | {5}), noisy, 0)
    chunk = next(load_chunks(images, [[(0, 20)]], 0, pinned=False))
    assert len(chunk.labels) == 0
    assert chunk.problems[-1].fatal
    assert chunk.problems[-1].reason.endswith("the data set is damaged")


@pytest.mark.parametrize(("failures", "fatal"), [(2, False), (3, True)])
def test_what_cannot_be_read_is_read_again_twice(failures: int, fatal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_PAUSES_S", (0.0, 0.0))
    chunk = next(load_chunks(TrainingImages(Stored(failures=failures), noisy, 0), [[(0, 3)]], 0, pinned=False))
    assert chunk.labels.tolist() == ([] if fatal else [3])
    assert [(p.name, p.fatal) for p in chunk.problems] == ([("image 3", True)] if fatal else [])


# --- worker processes -------------------------------------------------------------------------------------------------

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
