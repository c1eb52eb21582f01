"""The kept list of class folders: as good as a new one, and made anew when a folder has changed."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.pictures import write_folders

from ettsweep.files import cache_folder
from ettsweep.trainer.tasks.images import image_index
from ettsweep.trainer.tasks.images.image_index import ImageIndex, folder_index


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes with 12 images each, which have not changed for an hour."""
    root = write_folders(tmp_path / "data") / "train"
    let_rest(root)
    return root


def let_rest(root: Path) -> None:
    before_s = time.time() - 3600
    for folder, _, _ in os.walk(root):
        os.utime(folder, (before_s, before_s))


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what grows whenever a list is made."""
    created, build = list[int](), image_index._list_folders
    monkeypatch.setattr(image_index, "_list_folders", lambda root: (created.append(1), build(root))[1])
    return created


def content(listing: ImageIndex) -> tuple[list[str], list[int], list[bytes]]:
    return listing.classes, listing.labels.tolist(), listing.names.tolist()


def test_it_is_made_once_for_all_processes_and_is_that_of_timm(root: Path, listings: list[int]) -> None:
    from timm.data.dataset_factory import create_dataset

    first, repeated = folder_index(str(root)), folder_index(f"{root}/")
    assert content(first) == content(repeated)
    assert len(listings) == 1
    reader = create_dataset("", root=str(root), search_split=False).reader
    assert repeated.classes == list(reader.class_to_idx)
    assert [(os.fsdecode(p), k) for p, k in zip(repeated.names.tolist(), repeated.labels.tolist(), strict=True)] == [
        (os.path.relpath(path, root), label) for path, label in reader.samples
    ]


def remove_an_image(root: Path) -> None:
    next(root.glob("*/*.jpg")).unlink()


def add_a_class(root: Path) -> None:
    shutil.copytree(next(root.glob("n*")), root / "zebra")


def fill_an_empty_folder(root: Path) -> None:
    shutil.copy(next(root.glob("*/*.jpg")), root / "empty" / "new.jpg")


@pytest.mark.parametrize("change", [remove_an_image, add_a_class, fill_an_empty_folder])
def test_it_is_made_anew_when_a_folder_has_changed(
    root: Path, listings: list[int], change: Callable[[Path], None]
) -> None:
    (root / "empty").mkdir()
    let_rest(root)
    before = content(folder_index(str(root)))
    change(root)
    after = content(folder_index(str(root)))
    assert len(listings) == 2
    assert after != before
    assert sorted(after[2]) == sorted(os.fsencode(path.relative_to(root)) for path in root.glob("*/*.jpg"))


def test_a_list_of_folders_that_have_just_changed_is_not_relied_on(root: Path, listings: list[int]) -> None:
    os.utime(root)
    folder_index(str(root))
    folder_index(str(root))
    assert len(listings) == 2


@pytest.mark.parametrize("damage", ["empty", "halved", "other rows"])
def test_a_damaged_list_is_made_again(root: Path, listings: list[int], damage: str) -> None:
    expected = content(folder_index(str(root)))
    (path,) = cache_folder().glob("images-*.npz")
    bytes_result = path.read_bytes()
    if damage == "other rows":
        with np.load(path) as file:
            np.savez(path, **{key: file[key] for key in file} | {"labels": file["labels"][:-1]})
    else:
        path.write_bytes(bytes_result[: len(bytes_result) // 2 if damage == "halved" else 0])
    assert content(folder_index(str(root))) == content(folder_index(str(root))) == expected
    assert len(listings) == 2
