"""Images in tars: one cached list per state of the files, and the right bytes in every process."""

import multiprocessing
import os
from pathlib import Path

import pytest
from support.pictures import pictures, tar_bytes, write_nested_tars, write_split_tars, write_tar

from ettsweep.errors import DataMissingError
from ettsweep.files import cache_folder
from ettsweep.trainer.tasks.images import tar_index
from ettsweep.trainer.tasks.images.image_data import StoredSide
from ettsweep.trainer.tasks.images.sources import TarSource

TRAIN = [image for path, image in pictures().items() if path.startswith("train/")]


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what grows whenever tars are listed."""
    created, build = list[int](), tar_index._list_tars
    monkeypatch.setattr(tar_index, "_list_tars", lambda paths: (created.append(1), build(paths))[1])
    return created


def open_tars(*paths: Path) -> TarSource:
    return TarSource(StoredSide("train", "tar files", tuple(map(str, paths))))


def read_all(source: TarSource) -> list[bytes]:
    return [source.read(index) for index in range(len(source))]


def test_tars_are_listed_once_and_again_when_they_have_changed(tmp_path: Path, listings: list[int]) -> None:
    root = write_split_tars(tmp_path / "data")
    first, repeated = open_tars(root / "train.tar"), open_tars(root / "train.tar")
    assert len(listings) == 1
    assert read_all(first) == read_all(repeated) == TRAIN
    assert (first.classes, first.labels.tolist()) == (repeated.classes, repeated.labels.tolist())
    assert {path.name for path in root.iterdir()} == {"train.tar", "val.tar"}, "nothing is written beside the data"
    fewer = {name: image for name, image in pictures().items() if name.startswith("train") and "/11" not in name}
    write_tar(root / "train.tar", fewer)
    assert read_all(open_tars(root / "train.tar")) == list(fewer.values())
    assert len(listings) == 2


def test_a_damaged_cache_is_made_again(tmp_path: Path, listings: list[int]) -> None:
    root = write_split_tars(tmp_path / "data")
    open_tars(root / "train.tar")
    (cached,) = cache_folder().glob("tars-*.npz")
    os.truncate(cached, cached.stat().st_size // 2)
    assert read_all(open_tars(root / "train.tar")) == read_all(open_tars(root / "train.tar")) == TRAIN
    assert len(listings) == 2


def test_a_tar_of_a_folder_is_a_class_and_one_without_images_is_refused(tmp_path: Path) -> None:
    """As `tar -C n01 -cf n01.tar .` makes it: its images are called ./00.jpg."""
    for name in ("n01", "n02"):
        write_tar(tmp_path / f"{name}.tar", {"./00.jpg": TRAIN[0], "./labels.txt": b""})
    (tmp_path / "nested.tar").write_bytes(tar_bytes({"n03.tar": (tmp_path / "n01.tar").read_bytes()}))
    tars = open_tars(tmp_path / "n01.tar", tmp_path / "n02.tar", tmp_path / "nested.tar")
    assert tars.classes == ["n01", "n02", "n03"]
    assert tars.labels.tolist() == [0, 1, 2]
    assert read_all(tars) == 3 * TRAIN[:1]
    write_tar(tmp_path / "devkit.tar", {"readme.txt": b""})
    with pytest.raises(DataMissingError, match=r"devkit\.tar: no images in it"):
        open_tars(tmp_path / "devkit.tar")


def test_forked_processes_read_the_right_bytes_at_once(tmp_path: Path) -> None:
    root = write_nested_tars(tmp_path / "data")
    tars = open_tars(*root.glob("*train*.tar"))
    assert read_all(tars) == TRAIN, "files that were kept open would be shared from here on"
    context = multiprocessing.get_context("fork")
    start, wrong = context.Barrier(4), context.Value("i", 0)

    def read_often() -> None:
        start.wait()
        for _ in range(20):
            if read_all(tars) != TRAIN:
                wrong.value += 1

    workers = [context.Process(target=read_often) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert wrong.value == 0
