"""One data set in every form that is read: the same images and labels must come out of all of them."""

import json
import os
import shutil
import subprocess
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
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.tasks.images.image_data import locate
from ettsweep.trainer.tasks.images.image_task import Cifar10Task, Cifar100Task, ImageNetTask, ImageTask
from ettsweep.trainer.tasks.images.sources import ImageSource, decode, hold_out, open_sources
from ettsweep.trainer.tasks.registry import check_data

TASK = ImageNetTask(train_size=36, val_size=9)


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def at() -> Callable[..., tuple[ImageSource, ImageSource]]:
    """Return a function that opens the data set in a folder, with three classes unless it is said otherwise."""

    def open_at(root: Path | str, task: ImageTask = TASK, classes: int = 3) -> tuple[ImageSource, ImageSource]:
        check_data(task, data=str(root))
        return open_sources(task, classes, str(root))

    return open_at


Open = Callable[..., tuple[ImageSource, ImageSource]]


def content(source: ImageSource) -> set[tuple[bytes, int]]:
    """Return all images with their labels, in no order."""
    set_result = set()
    for index in range(len(source)):
        stored = source.read(index)
        assert isinstance(stored, bytes)
        set_result.add((stored, int(source.labels[index])))
    return set_result


def expected(section: str) -> set[tuple[bytes, int]]:
    return {
        (image, CLASSES.index(path.split("/")[1]))
        for path, image in pictures().items()
        if path.startswith(f"{section}/")
    }


def renamed(write: Callable[[Path], Path], **names: str) -> Callable[[Path], Path]:
    def written(root: Path) -> Path:
        write(root)
        for old, new in names.items():
            (root / old).rename(root / new)
        return root

    return written


def class_tars_and_folders(root: Path) -> Path:
    write_class_tars(root)
    for tar in (root / "val").iterdir():
        tar.unlink()
    return write_folders(root, {name: image for name, image in pictures().items() if name.startswith("val")})


FORMS: dict[str, Callable[[Path], Path]] = {
    "class folders": write_folders,
    "class folders, val called validation": renamed(write_folders, val="validation"),
    "class folders, training and test": renamed(write_folders, train="training", val="test"),
    "a tar per class": write_class_tars,
    "a tar per class, val in folders": class_tars_and_folders,
    "train.tar and val.tar": write_split_tars,
    "a tar of class tars": write_nested_tars,
    "WebDataset with .cls": write_shards,
    "WebDataset with .json": lambda root: write_shards(root, labels="json"),
    "parquet": write_parquet,
    "parquet with other columns": lambda root: write_parquet(root, image="img", label="fine_label"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_images_and_labels(form: str, tmp_path: Path, at: Open) -> None:
    train, val = at(FORMS[form](tmp_path / "data"))
    assert (len(train), len(val)) == (36, 9)
    assert content(train) == expected("train")
    assert content(val) == expected("val")
    assert len(train.classes) == 3
    assert train.classes == val.classes
    if "WebDataset" not in form and "parquet" not in form:
        assert train.classes == ["n01", "n02", "n10"]


@pytest.mark.parametrize("form", ["class folders", "a tar per class", "train.tar and val.tar", "a tar of class tars"])
def test_folders_and_tars_of_them_have_one_order(form: str, tmp_path: Path, at: Open) -> None:
    train, _ = at(FORMS[form](tmp_path / "data"))
    images = [image for path, image in pictures().items() if path.startswith("train/")]
    assert [train.read(i) for i in range(len(train))] == images, "a run sees the same batches of both"


@pytest.mark.parametrize("form", FORMS)
def test_an_image_is_named_so_that_a_person_finds_it(form: str, tmp_path: Path, at: Open) -> None:
    train, _ = at(FORMS[form](tmp_path / "data"))
    names = [train.name(i) for i in range(len(train))]
    assert len(set(names)) == 36
    assert all(str(tmp_path / "data") in name for name in names)


# --- tars -------------------------------------------------------------------------------------------------------------


def test_a_shards_number_of_a_class_counts_more_than_what_its_json_says(tmp_path: Path, at: Open) -> None:
    for section, count in (("train", 36), ("val", 9)):
        files = {}
        for i, image in enumerate(list(pictures().values())[:count]):
            text = json.dumps({"label": f"species {i}", "caption": None}).encode()
            files |= {f"{i:02}.json": text, f"{i:02}.cls": b"%d" % (i % 3), f"{i:02}.jpg": image}
        write_tar(tmp_path / f"{section}-00.tar", files)
    train, _ = at(tmp_path)
    assert train.classes == ["0", "1", "2"]
    assert train.labels.tolist() == [i % 3 for i in range(36)]


def test_a_compressed_tar_is_refused_by_name(tmp_path: Path, at: Open) -> None:
    import gzip

    root = write_split_tars(tmp_path / "data")
    (root / "val.tar").write_bytes(gzip.compress((root / "val.tar").read_bytes()))
    with pytest.raises(DataMissingError, match=r"val\.tar: cannot be read as an uncompressed tar"):
        at(root)


def test_a_shard_with_an_image_without_label_is_refused(tmp_path: Path, at: Open) -> None:
    root = write_shards(tmp_path / "data")
    image = next(iter(pictures().values()))
    write_tar(root / "imagenet-val-0001.tar", {"a.jpg": image, "a.cls": b"0", "b.jpg": image})
    with pytest.raises(DataMissingError, match=r"split val has rows without a label; the first is row 6"):
        at(root)


def test_validation_images_without_class_folders_are_told(tmp_path: Path, at: Open) -> None:
    root = write_split_tars(tmp_path / "data")
    write_tar(root / "val.tar", {f"{i}.jpg": image for i, image in enumerate(list(pictures().values())[:9])})
    with pytest.raises(DataMissingError, match=r"3 classes are in the training images only: n01, n02, n10"):
        at(root)


# --- parquet and the hub ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_local_parquet_files_never_ask_the_network(tmp_path: Path) -> None:
    root = write_parquet(tmp_path / "data")
    code = (
        "import sys\n"
        "asked = []\n"
        "sys.addaudithook(lambda event, args: asked.append(args) if event.startswith('socket.') else None)\n"
        "from ettsweep.trainer.tasks.images.image_task import ImageNetTask\n"
        "from ettsweep.trainer.tasks.images.sources import open_sources\n"
        "train, val = open_sources(ImageNetTask(train_size=36, val_size=9), 3, sys.argv[1])\n"
        "print(len(train), len(train.read(35)), asked)\n"
    )
    env = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    completed = subprocess.run(
        [sys.executable, "-c", code, str(root)], env=env, capture_output=True, text=True, check=True
    )
    length = len(list(pictures().values())[35])
    assert completed.stdout.strip() == f"36 {length} []"


def test_rows_come_in_the_order_of_the_files_wherever_these_lie(
    tmp_path: Path, at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import pyarrow.parquet as pq

    root = write_parquet(tmp_path / "data")
    (complete,) = (root / "data").glob("train-*")
    table = pq.read_table(complete)
    complete.unlink()
    for number in (2, 3, 0, 1):  # as they may lie on a disk
        pq.write_table(table.slice(9 * number, 9), root / "data" / f"train-{number:05}-of-00004.parquet")
    files = sorted(path.name for path in (root / "data").glob("train-*"))
    rows = [row for name in files for row in pq.read_table(root / "data" / name).to_pylist()]
    collected = []
    for copy in ("a", "b"):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / f"cache-{copy}")
        train, _ = at(shutil.copytree(root, tmp_path / copy))
        collected.append([(train.read(i), int(train.labels[i])) for i in range(len(train))])
    assert collected[0] == collected[1] == [(row["image"]["bytes"], row["label"]) for row in rows]


def test_a_damaged_row_is_met_where_it_is_decoded_and_others_are_not(tmp_path: Path, at: Open) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = write_parquet(tmp_path / "data")
    (path,) = (root / "data").glob("train-*")
    (tmp_path / "linked.jpg").write_bytes(linked := jpeg(np.random.default_rng(1)))
    stored = pq.read_table(path).to_pylist()
    stored[3]["image"]["bytes"] = stored[3]["image"]["bytes"][:-200]
    stored[4]["image"] = {"bytes": b"", "path": "empty.jpg"}
    stored[5]["image"] = None
    stored[6]["image"] = {"bytes": None, "path": str(tmp_path / "linked.jpg")}
    pq.write_table(pa.Table.from_pylist(stored), path)
    train, _ = at(root)
    reasons = {}
    for index in range(len(train)):
        try:
            decode(train.read(index))
        except UndecodableError as error:
            reasons[train.name(index)] = str(error)
    assert list(reasons) == [
        f"{root}, train, row 3: 03.jpg",
        f"{root}, train, row 4: empty.jpg",
        f"{root}, train, row 5",
    ]
    assert [reason.split(" (")[0] for reason in reasons.values()] == ["image file is truncated", *2 * ["an empty file"]]
    assert train.read(6) == linked


def test_parquet_says_what_to_install_where_datasets_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # which Python takes for one that is not there
    needs = r"parquet files needs datasets, which is not installed: pip install 'ettsweep\[train\]'"
    with pytest.raises(PackageMissingError, match=needs):
        check_data(ImageNetTask(), data=str(write_parquet(tmp_path / "data")))


def test_a_table_without_labels_is_refused_with_its_columns(tmp_path: Path, at: Open) -> None:
    root = write_parquet(tmp_path / "data", label="species")
    with pytest.raises(DataMissingError, match=r"column: expected one of label, .*, it has image, species"):
        at(root)


@pytest.mark.parametrize("selected", [False, True])
def test_a_table_with_a_row_without_label_is_refused(selected: bool, tmp_path: Path, at: Open) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = write_parquet(tmp_path / "data")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    for path in root.glob("data/*.parquet"):
        table = pq.read_table(path)
        labels = [None if row == 3 else label for row, label in enumerate(table["label"].to_pylist())]
        table = table.set_column(1, "label", pa.array(labels))
        pq.write_table(table.cast(features.arrow_schema) if selected else table, path)
    with pytest.raises(DataMissingError, match="split train has rows without a label; the first is row 3"):
        at(root)


def test_a_name_of_the_hub_is_checked_before_anything_is_asked() -> None:
    for name in ("hfds/", "hfds/../../etc", "hfds/a/b/c", "hfds/a b"):
        with pytest.raises(
            DataMissingError, match=r"is not the name of a data set on the hub: expected hfds/OWNER/NAME"
        ):
            check_data(ImageNetTask(), data=name)
    check_data(ImageNetTask(), data="hfds/timm/mini-imagenet")
    assert locate(ImageNetTask(), "hfds/timm/mini-imagenet")[0].paths == ("timm/mini-imagenet",)


def test_a_hub_that_does_not_answer_is_told(at: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataMissingError, match=r"nobody/nothing: cannot be opened as a data set"):
        at("hfds/nobody/nothing")


# --- CIFAR as it is distributed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pointing", ["above", "at"])
def test_cifar_is_read_as_it_is_distributed(
    pointing: str, tmp_path: Path, at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision

    write_cifar(tmp_path, monkeypatch)
    root = tmp_path / "cifar-10-batches-py" if pointing == "at" else tmp_path
    train, val = at(root, Cifar10Task(train_size=100, val_size=20), 10)
    cifar10 = torchvision.datasets.CIFAR10(tmp_path)
    assert train.classes == [f"class{k}" for k in range(10)]
    assert train.labels.tolist() == cifar10.targets
    assert np.array_equal(train.read(57), cifar10.data[57])
    assert train.name(57) == f"{tmp_path / 'cifar-10-batches-py'} (train): image 57"
    assert len(val) == 20


def test_cifar100_has_its_fine_labels(tmp_path: Path, at: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, monkeypatch, "cifar100", images=150)
    train, _ = at(tmp_path, Cifar100Task(train_size=150, val_size=150), 100)
    assert train.labels.tolist() == [i % 100 for i in range(150)]


def test_cifar_in_class_folders_goes_through_the_same_door(tmp_path: Path, at: Open) -> None:
    classes = [f"class{k}" for k in range(10)]
    write_folders(tmp_path, pictures(classes, {"train": 2, "test": 1}))
    train, val = at(tmp_path, Cifar10Task(train_size=20, val_size=10), 10)
    assert (len(train), len(val)) == (20, 10)


def test_files_of_cifar_that_are_not_the_published_ones_are_not_opened(
    tmp_path: Path, at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, monkeypatch)
    invalid = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    invalid.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    with pytest.raises(DataMissingError, match=r"differ from the published ones"):
        at(tmp_path, Cifar10Task(train_size=100, val_size=20), 10)
    assert not (tmp_path / "owned").exists()


# --- where they are ---------------------------------------------------------------------------------------------------


def test_missing_data_say_how_to_point_at_them(tmp_path: Path) -> None:
    for task in (ImageNetTask(), Cifar10Task(), Cifar100Task()):
        with pytest.raises(DataMissingError, match=rf"pass --data PATH or set {data_env(task.kind)}=PATH"):
            check_data(task)
    with pytest.raises(DataMissingError, match=r"nowhere does not exist"):
        check_data(ImageNetTask(), data=str(tmp_path / "nowhere"))
    (tmp_path / "train" / "n01").mkdir(parents=True)
    with pytest.raises(DataMissingError, match=r"no validation images; --set task.split_seed=0 holds out"):
        check_data(ImageNetTask(), data=str(tmp_path))
    (tmp_path / "file.tar").write_text("")
    with pytest.raises(DataMissingError, match=r"file\.tar is a file"):
        check_data(ImageNetTask(), data=str(tmp_path / "file.tar"))


def test_a_glance_does_not_walk_the_images(tmp_path: Path) -> None:
    write_folders(tmp_path)
    audited_result = audited("os.scandir", lambda: check_data(ImageNetTask(), data=str(tmp_path)))
    assert sorted(path for path in audited_result if str(tmp_path) in path) == [
        str(tmp_path / p) for p in ("", "train", "val")
    ]
    classes = [tmp_path / "mistaken" / f"n{i:04}" for i in range(100)]
    for folder in classes:
        folder.mkdir(parents=True)

    def refused() -> None:
        with pytest.raises(DataMissingError, match=r"has no train/ and no val/: it holds n0000/, n0001/"):
            check_data(ImageNetTask(), data=str(tmp_path / "mistaken"))

    assert len(audited("os.scandir", refused)) < 30


# --- images that are held out -----------------------------------------------------------------------------------------


def test_held_out_images_are_a_fixed_share_of_each_class() -> None:
    labels = np.repeat([0, 1, 2], [50, 40, 30])
    held_out = hold_out(labels, 24, seed=0)
    assert np.bincount(labels[held_out]).tolist() == [10, 8, 6]
    assert held_out.tolist() == sorted(set(held_out.tolist()))
    assert (hold_out(labels, 24, seed=0) == held_out).all()
    assert (hold_out(labels, 24, seed=1) != held_out).any()
    # Neither the first nor the last of each class only, as a split by name would have it.
    within = held_out[labels[held_out] == 0]
    assert within.max() - within.min() > 20
    assert hold_out(labels, 500, seed=0).tolist() == list(range(120))


@pytest.mark.parametrize("folder", [".", "train"])
def test_images_are_split_without_copies(folder: str, tmp_path: Path) -> None:
    root = write_folders(tmp_path / "data", {name: content for name, content in pictures().items() if "train" in name})
    task = ImageNetTask(train_size=30, val_size=6, split_seed=0)
    train, val = open_sources(task, 3, str(root / folder))
    names = [[source.name(k) for k in range(len(source))] for source in (train, val)]
    assert [len(side) for side in names] == [30, 6]
    assert sorted([*names[0], *names[1]]) == sorted(map(str, root.rglob("*.jpg")))
    assert np.bincount(val.labels).tolist() == [2, 2, 2]
    assert all(
        f"/{source.classes[label]}/" in source.name(k)
        for source in (train, val)
        for k, label in enumerate(source.labels)
    )
    assert all(val.read(k) == Path(name).read_bytes() for k, name in enumerate(names[1]))
    with pytest.raises(DataMissingError, match=r"^task images: found 30 images, task\.train_size is 31"):
        open_sources(task.model_copy(update={"train_size": 31}), 3, str(root / folder))


def test_a_split_enters_the_id_and_its_absence_does_not(make_spec: Callable[..., RunSpec]) -> None:
    own = {"kind": "imagenet", "train_size": 30, "val_size": 6}
    model = {"image_size": 32, "channels": 3, "classes": 3}
    plain = make_spec(task=own, model=model, batch_size=4)
    assert make_spec(task=own | {"kind": "images"}, model=model, batch_size=4).run_id == plain.run_id
    assert make_spec(task=own | {"split_seed": None}, model=model, batch_size=4).run_id == plain.run_id
    assert make_spec(task=own | {"split_seed": 0}, model=model, batch_size=4).run_id != plain.run_id


def test_a_location_holds_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve_data("data") == str(tmp_path / "data")
    assert resolve_data("~/data") == str(tmp_path / "home" / "data")
    assert resolve_data("hfds/timm/mini-imagenet") == "hfds/timm/mini-imagenet"
