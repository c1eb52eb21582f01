"""`doctor --data`: what it says of data sets that are whole, of the wrong size, and broken in all the usual ways."""

import io
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from support.commandline import GRID, ended, ettsweep, start
from support.pictures import hang, jpeg, wait_for_reader, write_cifar, write_folders

from ettsweep.doctor.checks import DoctorCheck
from ettsweep.doctor.data_check import examine_data, resolve_requirement
from ettsweep.doctor.image_check import shorten_rows
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.tasks.images.image_data import guess_task
from ettsweep.trainer.tasks.images.image_task import Cifar10Task

Rows = list[tuple[str, str, str]]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A grid file for the small data set."""
    path = tmp_path / "small.yaml"
    model = {**GRID["model"], "image_size": 32, "channels": 3, "classes": 3}
    task = {"kind": "imagenet", "train_size": 36, "val_size": 9}
    path.write_text(yaml.safe_dump(GRID | {"model": model, "task": task}))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The small data set, whole."""
    return write_folders(tmp_path / "data")


def examine(root: Path, grid: Path | None = None, task: str | None = None, images: int | None = None) -> Rows:
    """Return what, state and detail of each row about the data."""
    requirement = resolve_requirement(str(root), load_sweep_spec(grid) if grid else None, [], task)
    return [(row.name, row.state, row.detail) for row in examine_data(requirement, str(root), images)]


def test_a_whole_data_set_is_found_good(root: Path, grid: Path) -> None:
    assert examine(root, grid) == [
        ("form", "ok", f"class folders, {root}/train; class folders, {root}/val"),
        ("classes", "ok", "3: n01, n02, n10"),
        ("training images", "ok", "36"),
        ("validation images", "ok", "9"),
        ("decoding", "ok", "all can be decoded"),
    ]


def test_what_differs_from_the_task_fails_with_what_to_set(root: Path) -> None:
    for path in (root / "val" / "n10").iterdir():
        path.unlink()
    assert [detail for _, state, detail in examine(root, task="imagenet") if state == "failed"] == [
        "1 classes are in the training images only: n10",
        "the data have 3 classes, the model has 1000: --set model.classes=3",
        "found 36 images, task.train_size is 1281167: complete them, or --set task.train_size=36",
        "found 6 images, task.val_size is 50000: complete them, or --set task.val_size=6",
    ]


def test_images_of_ones_own_are_checked_without_a_grid(root: Path, tmp_path: Path) -> None:
    assert ("training images", "ok", "36") in examine(root)
    ((_, state, detail),) = examine(tmp_path / "nowhere", task="imagenet")
    assert (state, "nowhere does not exist" in detail) == ("failed", True)
    # Of class folders alone, a fifth would be held out.
    assert {("training images", "ok", "29"), ("validation images", "ok", "7")} < set(examine(root / "train"))


def encoded(mode: str, form: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (40, 30)).save(file, form)
    return file.getvalue()


def test_each_unreadable_file_is_named_with_the_reason(root: Path, grid: Path) -> None:
    whole = jpeg(np.random.default_rng(1), 300, 200)
    broken = {
        "train/n01/02.jpg": (whole[: len(whole) // 2], "image file is truncated"),
        "train/n02/00.jpg": (b"", "an empty file"),
        "train/n10/11.jpg": (b"<html>404</html>", "not an image of a known format"),
    }
    odd = {"train/n01/04.jpg": encoded("CMYK", "jpeg"), "train/n01/06.jpg": encoded("RGBA", "png")}
    write_folders(root, {name: content for name, (content, _) in broken.items()} | odd)
    rows = examine(root, grid)
    images = [(state, detail) for label, state, detail in rows if label == "image"]
    for (state, detail), (name, (_, reason)) in zip(images, broken.items(), strict=True):
        assert state == "warning"
        assert detail.startswith(f"{root / name}: cannot be decoded (")
        assert reason in detail
    assert ("unreadable", "warning") in [(label, state) for label, state, _ in rows]


def test_a_file_that_may_not_be_read_is_named(root: Path, grid: Path, tmp_path: Path) -> None:
    first, *others = sorted(root.glob("train/n01/*.jpg"))
    first.unlink()
    first.symlink_to(tmp_path / "gone.jpg")
    rows = examine(root, grid)
    assert ("image", "warning", f"{first}: cannot be read (No such file or directory)") in rows
    text = "1 of 45 cannot be: a run fails at the 1 of them that cannot even be read"
    assert ("unreadable", "failed", text) in rows
    for path in others:
        path.write_bytes(b"")
    assert ("unreadable", "failed", "12 of 45 cannot be: too many to train without") in examine(root, grid)


def test_a_table_shows_twenty_and_counts_the_rest() -> None:
    rows = [DoctorCheck("form", "ok", ""), *(DoctorCheck("image", "warning", str(i)) for i in range(25))]
    assert [row.detail for row in shorten_rows(rows)[1:21]] == [str(i) for i in range(20)]
    assert shorten_rows(rows)[21:] == [DoctorCheck("images", "warning", "5 more; --format json or csv lists all")]
    assert shorten_rows(rows[:21]) == rows[:21]


def test_a_few_images_are_spread_over_all(root: Path, grid: Path) -> None:
    for name in ("train/n01/00.jpg", "train/n01/01.jpg", "val/n10/02.jpg"):
        (root / name).write_bytes(b"")
    rows = examine(root, grid, images=9)
    assert [detail.split(":")[0] for label, _, detail in rows if label == "image"] == [f"{root}/train/n01/00.jpg"]
    assert any("1 of 9 cannot be" in detail for _, _, detail in rows)


def test_ctrl_c_prints_what_was_found_even_if_a_disk_hangs(root: Path, grid: Path) -> None:
    hanging = root / "train" / "n01" / "05.jpg"
    hang(hanging)
    process = start("doctor", "--data", root, grid, "--format", "json")
    writer = wait_for_reader(hanging)
    process.send_signal(signal.SIGINT)
    ended_result = ended(process, code=1)
    os.close(writer)
    rows = [(row["check"], row["state"], row["detail"]) for row in json.loads(ended_result.stdout)]
    assert rows[-1] == ("decoding", "failed", "interrupted after 0 of 45 images")
    assert ("training images", "ok", "36") in rows


def test_cifar_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cifar(tmp_path / "data", monkeypatch)
    assert guess_task(str(root)) == guess_task(str(root / "cifar-10-batches-py")) == "cifar10"
    assert guess_task(str(tmp_path)) == "images"
    requirement = resolve_requirement(str(root), None, [], None)
    assert requirement == (Cifar10Task(), None)
    rows = examine_data(requirement._replace(task=Cifar10Task(train_size=100, val_size=20)), str(root))
    assert {row.state for row in rows} == {"ok"}
    assert rows[0].detail == f"CIFAR's own files, {root}"


def test_a_task_that_contradicts_the_data_is_refused(tmp_path: Path, grid: Path) -> None:
    for options, message in (
        (("--task", "cifar10", grid), "leave out --task: a grid file"),
        (("--task", "mnist"), "unknown task 'mnist'"),
        (("--model", "vit-digits"), "task digits has its data from a package"),
    ):
        assert message in ettsweep("doctor", "--data", tmp_path, *options, code=2).stderr
