"""One data set in every form that is read: the same images, labels and classes must come out of all of them."""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.audit import audited
from support.pictures import (
    CLASSES,
    jpeg,
    pictures,
    write_cifar,
    write_class_tars,
    write_folders,
    write_nested_tars,
    write_parquet,
    write_shards,
    write_split_tars,
    write_tar,
)

from ettsweep.errors import DataMissingError, PackageMissingError, UndecodableError
from ettsweep.runs.data_location import data_env, resolve_data
from ettsweep.trainer.tasks.images.image_data import locate
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, Cifar100Task, ImageNetTask, ImageTask
from ettsweep.trainer.tasks.images.sources import ImageSource, decode, hold_out, open_sources
from ettsweep.trainer.tasks.registry import check_data

TASK = ImageNetTask(train_size=36, val_size=9)
TRAIN = [image for path, image in pictures().items() if path.startswith("train/")]
VAL = [image for path, image in pictures().items() if path.startswith("val/")]


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def at(root: Path | str, task: ImageTask = TASK, classes: int = 3) -> tuple[ImageSource, ImageSource]:
    """Open the data set in a folder."""
    check_data(task, data=str(root))
    return open_sources(task, classes, str(root))


def labelled(source: ImageSource) -> dict[bytes, int]:
    """Return the labels of all images."""
    return {source.read(index): int(label) for index, label in enumerate(source.labels)}  # type: ignore[misc]


def with_other_names(root: Path) -> Path:
    write_folders(root)
    for old, new in (("train", "training"), ("val", "test")):
        (root / old).rename(root / new)
    return root


FORMS: dict[str, Callable[[Path], Path]] = {
    "class folders, training and test": with_other_names,
    "a tar per class": write_class_tars,
    "train.tar and val.tar": write_split_tars,
    "a tar of class tars": write_nested_tars,
    "WebDataset with .cls": write_shards,
    "WebDataset with .json": lambda root: write_shards(root, labels="json"),
    "parquet with other columns": lambda root: write_parquet(root, image="img", label="fine_label"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_images_and_labels(form: str, tmp_path: Path) -> None:
    """Folders, and tars of them, in one order too, so that a run sees the same batches of both."""
    train, val = at(FORMS[form](tmp_path / "data"))
    for source, images in ((train, TRAIN), (val, VAL)):
        count = len(images) // 3
        assert len(source) == len(images)
        assert labelled(source) == {image: k // count for k, image in enumerate(images)}
        assert len(source.classes) == 3
        if "WebDataset" not in form and "parquet" not in form:
            assert source.classes == list(CLASSES)
            assert [source.read(k) for k in range(len(source))] == images
        names = {source.name(k) for k in range(len(source))}
        assert len(names) == len(source), "a person finds an image by its name"
        assert all(str(tmp_path / "data") in name for name in names)


def test_tars_that_say_no_class_or_are_compressed_are_refused(tmp_path: Path) -> None:
    root, shards = write_split_tars(tmp_path / "data"), write_shards(tmp_path / "shards")
    write_tar(shards / "imagenet-val-0001.tar", {"a.jpg": VAL[0], "a.cls": b"0", "b.jpg": VAL[1]})
    with pytest.raises(DataMissingError, match="split val has rows without a label; the first is row 6"):
        at(shards)
    write_tar(root / "val.tar", {f"{i}.jpg": image for i, image in enumerate(VAL)})
    with pytest.raises(DataMissingError, match="3 classes are in the training images only: n01, n02, n10"):
        at(root)
    (root / "val.tar").write_bytes(gzip.compress((root / "val.tar").read_bytes()))
    with pytest.raises(DataMissingError, match=r"val\.tar: cannot be read as an uncompressed tar"):
        at(root)


# --- parquet and the hub ----------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import pyarrow.parquet as pq

    root = write_parquet(tmp_path / "data")
    (complete,) = (root / "data").glob("train-*")
    table = pq.read_table(complete)
    complete.unlink()
    for number in (2, 3, 0, 1):  # as they may lie on a disk
        pq.write_table(table.slice(9 * number, 9), root / "data" / f"train-{number:05}-of-00004.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    train, _ = at(root)
    rows = [(row["image"]["bytes"], row["label"]) for row in table.to_pylist()]
    assert [(train.read(i), int(train.labels[i])) for i in range(len(train))] == rows


def test_a_damaged_row_is_met_where_it_is_decoded_and_others_are_not(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = write_parquet(tmp_path / "data")
    (path,) = (root / "data").glob("train-*")
    (tmp_path / "linked.jpg").write_bytes(linked := jpeg(np.random.default_rng(1)))
    stored = pq.read_table(path).to_pylist()
    stored[3]["image"]["bytes"] = stored[3]["image"]["bytes"][:-200]
    stored[5]["image"] = None
    stored[6]["image"] = {"bytes": None, "path": str(tmp_path / "linked.jpg")}
    pq.write_table(pa.Table.from_pylist(stored), path)
    train, _ = at(root)
    assert train.name(3) == f"{root}, train, row 3: 03.jpg"
    for row, reason in ((3, "image file is truncated"), (5, "an empty file")):
        with pytest.raises(UndecodableError, match=reason):
            decode(train.read(row))
    assert decode(train.read(4)) is not None
    assert train.read(6) == linked


def test_a_table_without_labels_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(DataMissingError, match=r"column: expected one of label, .*, it has image, species"):
        at(write_parquet(tmp_path / "unnamed", label="species"))
    root = write_parquet(tmp_path / "data")
    for path in root.glob("data/*.parquet"):
        table = pq.read_table(path)
        labels = [None if row == 3 else label for row, label in enumerate(table["label"].to_pylist())]
        pq.write_table(table.set_column(1, "label", pa.array(labels)), path)
    with pytest.raises(DataMissingError, match="split train has rows without a label; the first is row 3"):
        at(root)


def test_what_is_wrong_with_a_table_or_a_hub_is_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("hfds/", "hfds/../../etc"):
        with pytest.raises(DataMissingError, match=r"is not the name of a data set on the hub: expected hfds/OWNER/"):
            check_data(TASK, data=name)
    assert locate(TASK, "hfds/timm/mini-imagenet")[0].paths == ("timm/mini-imagenet",)
    with pytest.raises(DataMissingError, match=r"nobody/nothing: cannot be opened as a data set"):
        at("hfds/nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)  # which Python takes for one that is not there
    needs = r"parquet files needs datasets, which is not installed: pip install 'ettsweep\[train\]'"
    with pytest.raises(PackageMissingError, match=needs):
        check_data(TASK, data=str(write_parquet(tmp_path / "data")))


# --- CIFAR as it is distributed ---------------------------------------------------------------------------------------


def test_cifar_is_read_as_it_is_distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    write_cifar(tmp_path, monkeypatch)
    cifar10, small = torchvision.datasets.CIFAR10(tmp_path), Cifar10Task(train_size=100, val_size=20)
    for root in (tmp_path, tmp_path / "cifar-10-batches-py"):
        train, val = at(root, small, 10)
        assert (train.classes, len(val)) == ([f"class{k}" for k in range(10)], 20)
        assert train.labels.tolist() == cifar10.targets
        assert np.array_equal(train.read(57), cifar10.data[57])
        assert train.name(57) == f"{tmp_path / 'cifar-10-batches-py'} (train): image 57"
    write_cifar(tmp_path / "fine", monkeypatch, "cifar100", images=150)
    train, _ = at(tmp_path / "fine", Cifar100Task(train_size=150, val_size=150), 100)
    assert train.labels.tolist() == [i % 100 for i in range(150)]


def test_files_of_cifar_that_are_not_the_published_ones_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, monkeypatch)
    invalid = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    invalid.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    with pytest.raises(DataMissingError, match=r"differ from the published ones"):
        at(tmp_path, Cifar10Task(train_size=100, val_size=20), 10)
    assert not (tmp_path / "owned").exists()


# --- where they are ---------------------------------------------------------------------------------------------------


def test_missing_data_say_how_to_point_at_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (ImageNetTask(), Cifar10Task()):
        with pytest.raises(DataMissingError, match=rf"pass --data PATH or set {data_env(task.kind)}=PATH"):
            check_data(task)
    (tmp_path / "train" / "n01").mkdir(parents=True)
    (tmp_path / "mistaken" / "n0001").mkdir(parents=True)
    for name, message in (
        ("nowhere", "nowhere does not exist"),
        (".", "no validation images; --set task.split_seed=0 holds out"),
        ("mistaken", r"has no train/ and no val/: it holds n0001/"),
    ):
        with pytest.raises(DataMissingError, match=message):
            check_data(TASK, data=str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, meant in (("data", tmp_path / "data"), ("~/data", tmp_path / "home" / "data"), ("hfds/a/b", "hfds/a/b")):
        assert resolve_data(given) == str(meant)


def test_a_glance_does_not_walk_the_images(tmp_path: Path) -> None:
    write_folders(tmp_path)
    looked_at = audited("os.scandir", lambda: check_data(ImageNetTask(), data=str(tmp_path)))
    assert sorted(path for path in looked_at if str(tmp_path) in path) == [
        str(tmp_path / p) for p in ("", "train", "val")
    ]


# --- images that are held out -----------------------------------------------------------------------------------------


def test_held_out_images_are_a_fixed_share_of_each_class() -> None:
    labels = np.repeat([0, 1, 2], [50, 40, 30])
    held_out = hold_out(labels, 24, seed=0)
    assert np.bincount(labels[held_out]).tolist() == [10, 8, 6]
    assert held_out.tolist() == sorted(set(held_out.tolist()))
    assert held_out.tolist()[:5] == [0, 5, 10, 14, 16], "another split would compare runs on other images"
    assert (hold_out(labels, 24, seed=1) != held_out).any()
    assert hold_out(labels, 500, seed=0).tolist() == list(range(120))


def test_images_are_split_without_copies(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "data", {name: content for name, content in pictures().items() if "train" in name})
    task = ImageNetTask(train_size=30, val_size=6, split_seed=0)
    train, val = open_sources(task, 3, str(root / "train"))
    names = [[source.name(k) for k in range(len(source))] for source in (train, val)]
    assert [len(side) for side in names] == [30, 6]
    assert sorted([*names[0], *names[1]]) == sorted(map(str, root.rglob("*.jpg")))
    assert np.bincount(val.labels).tolist() == [2, 2, 2]
    for source, side in zip((train, val), names, strict=True):
        for k, (name, label) in enumerate(zip(side, source.labels, strict=True)):
            assert f"/{source.classes[label]}/" in name
            assert source.read(k) == Path(name).read_bytes()
    with pytest.raises(DataMissingError, match=r"^task images: found 30 images, task\.train_size is 31"):
        open_sources(task.model_copy(update={"train_size": 31}), 3, str(root))
