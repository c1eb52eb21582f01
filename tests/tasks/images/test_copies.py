"""Smaller copies of images beside their originals: pixels, forms, what changes, what is damaged, and what a run sees."""

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.pictures import (
    jpeg,
    pictures,
    tar_bytes,
    write_cifar,
    write_class_tars,
    write_folders,
    write_nested_tars,
    write_parquet,
    write_shards,
    write_split_tars,
)

from ettsweep.errors import CorruptError, DataMissingError, InputError, StorageError
from ettsweep.tasks.images import sources
from ettsweep.tasks.images.classification import fingerprint
from ettsweep.tasks.images.copies import MANIFEST, PARTS, copies_in
from ettsweep.tasks.images.location import locate
from ettsweep.tasks.images.preparation import copying
from ettsweep.tasks.images.preparation.copying import check_room, copy_images
from ettsweep.tasks.images.preparation.parts import AT_ONCE, folder_parts
from ettsweep.tasks.images.preparation.request import Copied, CopyRequest
from ettsweep.tasks.images.preparation.shrink import shrink, shrink_tar
from ettsweep.tasks.images.sources import ImageSource, decode, open_source, open_sources
from ettsweep.tasks.images.spec import ImageNetTask

TASK = ImageNetTask(train_size=36, val_size=9)
SHORT = 20
"""Of the copies; the originals have 56 x 40 pixels."""


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


Make = Callable[..., Copied]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that copies `data` to `out`, with one process unless it is said otherwise."""

    def made(agree: Callable[[str], None] = lambda told: None, **changes: Any) -> Copied:
        asked = {"input": str(tmp_path / "data"), "out": tmp_path / "out", "short_side": SHORT, "workers": 1}
        sources._listed.cache_clear()  # a command is a process of its own
        return copy_images(CopyRequest(**asked | changes), agree)

    return made


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def images(folder: Path) -> dict[str, bytes]:
    """Return the files of a data set, without what is known of copies."""
    return {name: data for name, data in everything(folder).items() if "ettsweep-copies" not in name}


def refused(told: str) -> None:
    raise InputError(told)


# --- an image ---------------------------------------------------------------------------------------------------------


def encoded(image: Image.Image, form: str = "jpeg", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Return an image with coarse noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (height // 8 + 1, width // 8 + 1, 4), dtype=np.uint8)
    coarse = Image.fromarray(pixels[..., :3]).resize((width, height), Image.Resampling.BICUBIC)
    return coarse.convert(mode)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (300, 300), (641, 427), (451, 300)])
def test_a_copy_is_what_an_evaluation_would_scale_the_original_to_but_for_jpeg(size: tuple[int, int]) -> None:
    from torchvision import transforms

    stored = encoded(noise(*size), quality=95)
    copy = shrink(stored, 256, 90)
    direct = transforms.Resize(256, transforms.InterpolationMode.BICUBIC)(Image.open(io.BytesIO(stored)))
    made = Image.open(io.BytesIO(copy.data))
    assert (copy.resized, copy.wrong, made.format, made.size) == (True, "", "JPEG", direct.size)
    assert min(made.size) == 256
    again = Image.open(io.BytesIO(encoded(direct, quality=90, subsampling="4:4:4")))
    assert np.array_equal(np.asarray(made), np.asarray(again))
    assert np.abs(np.asarray(made, dtype=int) - np.asarray(direct, dtype=int)).mean() < 3


@pytest.mark.parametrize(
    "stored",
    [
        encoded(noise(40, 20)),
        encoded(noise(19, 300)),
        encoded(noise(30, 20), "png"),
        encoded(noise(30, 20, "P"), "png"),
        b"",
        b"no image",
        encoded(noise(80, 60))[:900],
    ],
    ids=["as small", "smaller", "png", "palette", "empty", "text", "truncated"],
)
def test_small_and_damaged_images_stay_as_they_are(stored: bytes) -> None:
    copy = shrink(stored, SHORT, 90)
    assert (copy.data, copy.resized) == (stored, False)
    assert bool(copy.wrong) == (len(stored) < 10 or len(stored) == 900)


@pytest.mark.parametrize(
    ("form", "mode"), [("png", "RGB"), ("png", "P"), ("png", "L"), ("jpeg", "L"), ("jpeg", "CMYK")]
)
def test_other_forms_and_modes_become_what_training_makes_of_them(form: str, mode: str) -> None:
    stored = encoded(noise(80, 60, mode), form)
    copy = shrink(stored, 30, 100)
    made, direct = (
        decode(copy.data),
        Image.open(io.BytesIO(stored)).convert("RGB").resize((40, 30), Image.Resampling.BICUBIC),
    )
    assert (Image.open(io.BytesIO(copy.data)).format, made.size) == ("JPEG", (40, 30))
    assert np.abs(np.asarray(made, dtype=int) - np.asarray(direct, dtype=int)).mean() < 1


def test_an_image_is_not_turned_as_its_camera_says_since_training_does_not() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    stored = encoded(noise(80, 60), quality=95, exif=exif, icc_profile=b"profile", comment=b"words")
    made = Image.open(io.BytesIO(shrink(stored, 30, 100).data))
    assert made.size == (40, 30)
    assert not made.getexif()
    assert not {"icc_profile", "comment", "exif"} & made.info.keys()
    direct = decode(stored).resize((40, 30), Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(made, dtype=int) - np.asarray(direct, dtype=int)).mean() < 1


# --- a data set in each form ------------------------------------------------------------------------------------------


def class_tars_and_folders(root: Path) -> Path:
    write_class_tars(root)
    shutil.rmtree(root / "val")
    return write_folders(root, {name: image for name, image in pictures().items() if name.startswith("val")})


def oddly_named(root: Path) -> Path:
    """Write class folders with other names of parts, folders in folders, and names that are no text."""
    for name, image in pictures().items():
        part, label, file = name.split("/")
        part = {"train": "training", "val": "test"}[part]
        path = os.fsencode(root / part / "deep" / label) + b"/\xff" + file.upper().encode()
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        Path(os.fsdecode(path)).write_bytes(image)
    (root / "training" / "deep" / "readme.txt").write_text("no image")
    return root


FORMS: dict[str, Callable[[Path], Path]] = {
    "class folders": write_folders,
    "odd names": oddly_named,
    "a tar per class": write_class_tars,
    "tars of class folders": write_split_tars,
    "tars of class tars": write_nested_tars,
    "shards": write_shards,
    "shards with json": lambda root: write_shards(root, labels="json"),
    "class tars and folders": class_tars_and_folders,
}


def both(root: Path, task: ImageNetTask = TASK) -> tuple[ImageSource, ImageSource]:
    sources._listed.cache_clear()
    return open_sources(task, 3, str(root))


@pytest.mark.parametrize("form", FORMS)
def test_copies_are_the_same_data_set_with_smaller_images(form: str, tmp_path: Path, make: Make) -> None:
    FORMS[form](tmp_path / "data")
    outcome = make()
    for copy, source in zip(both(tmp_path / "out"), both(tmp_path / "data"), strict=True):
        assert copy.classes == source.classes
        assert copy.labels.tolist() == source.labels.tolist()
        assert [copy.name(i).replace("/out/", "/data/") for i in range(len(copy))] == [
            source.name(i) for i in range(len(source))
        ]
        for i in range(len(copy)):
            stored = source.read(i)
            assert isinstance(stored, bytes)
            assert copy.read(i) == shrink(stored, SHORT, 90).data
            assert decode(copy.read(i)).size == (28, 20)
    counts = [(side.images, side.resized, side.undecodable) for side in (outcome.copies.train, outcome.copies.val)]
    assert counts == [(36, 36, 0), (9, 9, 0)]
    assert outcome.made == 45
    assert copies_in(tmp_path / "out") == outcome.copies
    assert outcome.copies.train.bytes + outcome.copies.val.bytes == sum(map(len, images(tmp_path / "out").values()))
    assert [place.format for place in locate(TASK, str(tmp_path / "out"))] == [
        place.format for place in locate(TASK, str(tmp_path / "data"))
    ]


def test_members_of_a_tar_keep_their_order_headers_and_what_is_no_image(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tar", tmp_path / "b.tar"
    long = "n01/" + "long" * 60 + "ü.jpg"
    rng = np.random.default_rng(0)
    with tarfile.open(source, "w", format=tarfile.PAX_FORMAT) as tar:
        for k, (name, data) in enumerate(
            {"a.jpg": jpeg(rng), "a.cls": b"3", long: jpeg(rng), "small.png": encoded(noise(9, 9), "png"),
             "in.tar": tar_bytes({"x.JPEG": jpeg(rng), "x.json": b"{}"})}.items()
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode, info.uname = len(data), 1000.5 + k, 0o640, "somebody"
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("empty.jpg"))
    seen: list[str] = []

    def convert(name: str, stored: bytes) -> bytes:
        seen.append(name.removeprefix(f"{source}: "))
        return shrink(stored, SHORT, 90).data

    with target.open("wb") as file:
        shrink_tar(source, file, convert)
    assert seen == ["a.jpg", long, "small.png", "in.tar/x.JPEG", "empty.jpg"]
    with tarfile.open(source) as before, tarfile.open(target) as after:
        assert after.getnames() == before.getnames()
        for old, new in zip(before, after, strict=True):
            assert (new.type, new.linkname, new.mode, int(new.mtime)) == (
                old.type,
                old.linkname,
                old.mode,
                int(old.mtime),
            )
            assert new.uname == old.uname
        for name in ("a.cls", "small.png"):
            assert after.extractfile(name).read() == before.extractfile(name).read()  # type: ignore[union-attr]
        for name in ("a.jpg", long):
            stored = before.extractfile(name).read()  # type: ignore[union-attr]
            assert after.extractfile(name).read() == shrink(stored, SHORT, 90).data  # type: ignore[union-attr]
        with tarfile.open(fileobj=after.extractfile("in.tar")) as inner:
            assert inner.getnames() == ["x.JPEG", "x.json"]
            assert Image.open(inner.extractfile("x.JPEG")).size == (28, 20)  # type: ignore[arg-type]
    assert target.stat().st_size % tarfile.RECORDSIZE == 0


def test_a_part_is_of_one_folder_and_of_some_images(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [f"train/{label}/{k}.jpg" for label, count in (("a", AT_ONCE + 1), ("b", 3)) for k in range(count)]
    parts = list(folder_parts("train", files))
    assert [part.images for part in parts] == [AT_ONCE, 1, 3]
    assert [file for part in parts for file in part.files] == files


def test_processes_and_an_earlier_call_make_no_difference(tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / "data")
    make()
    make(out=tmp_path / "others", workers=3)
    assert everything(tmp_path / "out") == everything(tmp_path / "others")


# --- damaged originals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["class folders", "shards"])
def test_a_damaged_image_is_copied_as_it_is_and_named(form: str, tmp_path: Path, make: Make) -> None:
    files = pictures()
    bad = files["train/n02/03.jpg"][:500]
    files["train/n02/03.jpg"] = bad
    {"class folders": write_folders, "shards": write_shards}[form](tmp_path / "data", files)
    copies = make().copies
    assert (copies.train.images, copies.train.resized, copies.train.undecodable) == (36, 35, 1)
    (one,) = copies.undecodable
    source, copy = both(tmp_path / "data")[0], both(tmp_path / "out")[0]
    (index,) = (i for i in range(36) if source.read(i) == bad)
    assert one.image == source.name(index)
    assert "truncated" in one.reason.lower()
    assert copy.read(index) == bad


def test_an_image_that_cannot_be_read_ends_the_command_by_name(tmp_path: Path, make: Make) -> None:
    root = write_folders(tmp_path / "data") / "train" / "n02"
    (root / "03.jpg").unlink()
    (root / "03.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(DataMissingError, match=r"train/n02/03\.jpg: cannot be read \(No such file"):
        make()
    assert not (tmp_path / "out").exists()


# --- what is there already --------------------------------------------------------------------------------------------


def test_a_second_call_makes_nothing_and_mends_what_is_broken(tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / "data")
    make()
    before = everything(tmp_path / "out")
    again = make(refused)
    assert (again.made, again.kept_parts) == (0, 6)
    (tmp_path / "out" / "train" / "n02" / "05.jpg").unlink()
    (tmp_path / "out" / "val" / "n10" / "00.jpg").write_bytes(b"")
    mended = make(refused)
    assert (mended.made_parts, mended.kept_parts, mended.replaced) == (2, 4, None)
    assert everything(tmp_path / "out") == before


def test_unfinished_copies_are_no_data_set_and_are_believed_by_their_checksums_alone(
    tmp_path: Path, make: Make
) -> None:
    write_folders(tmp_path / "data")
    make()
    before = everything(tmp_path / "out")
    (tmp_path / "out" / MANIFEST).unlink()
    with pytest.raises(DataMissingError, match="not finished: run the same `ettsweep data images` again"):
        both(tmp_path / "out")
    with pytest.raises(DataMissingError, match=f"--input {tmp_path}/out: .*not finished|not finished"):
        make(input=str(tmp_path / "out"), out=tmp_path / "more")
    lost = tmp_path / "out" / "train" / "n02" / "05.jpg"
    lost.write_bytes(bytes(lost.stat().st_size))  # as a disk has it after the machine failed
    assert make(refused).made_parts == 1
    assert everything(tmp_path / "out") == before


def add_an_image(data: Path) -> None:
    (data / "train" / "n02" / "99.jpg").write_bytes(jpeg(np.random.default_rng(9)))


def remove_an_image(data: Path) -> None:
    (data / "train" / "n02" / "05.jpg").unlink()


def remove_a_class(data: Path) -> None:
    shutil.rmtree(data / "train" / "n02")
    shutil.rmtree(data / "val" / "n02")


def replace_an_image(data: Path) -> None:
    (data / "train" / "n02" / "05.jpg").write_bytes(jpeg(np.random.default_rng(9), 60, 40))


def become_tars(data: Path) -> None:
    shutil.rmtree(data)
    write_class_tars(data)


CHANGES = [add_an_image, remove_an_image, remove_a_class, replace_an_image, become_tars]


@pytest.mark.parametrize("change", CHANGES)
def test_copies_of_images_that_have_changed_are_not_replaced_unasked(
    change: Callable[[Path], None], tmp_path: Path, make: Make
) -> None:
    write_folders(tmp_path / "data")
    old = make().copies
    before = everything(tmp_path / "out")
    change(tmp_path / "data")
    with pytest.raises(InputError, match=f"out holds copies {old.digest}, made of images that have changed since"):
        make(refused)
    assert everything(tmp_path / "out") == before
    outcome = make()
    assert outcome.replaced == old.digest
    if change is not become_tars:
        assert outcome.made <= 13, "of one folder alone"
    make(out=tmp_path / "others")
    assert everything(tmp_path / "out") == everything(tmp_path / "others")


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"short_side": 25}, "--short-side 20"),
        ({"quality": 80}, "--quality 90"),
        ({"input": "moved"}, "--input .*data"),
    ],
)
def test_copies_that_were_made_otherwise_are_not_replaced_unasked(
    changes: dict[str, Any], how: str, tmp_path: Path, make: Make
) -> None:
    write_folders(tmp_path / "data")
    if "input" in changes:
        shutil.copytree(tmp_path / "data", tmp_path / "moved")
        changes = {"input": str(tmp_path / "moved")}
    old = make().copies
    before = everything(tmp_path / "out")
    with pytest.raises(InputError, match=f"out holds copies {old.digest}, made with {how}$"):
        make(refused, **changes)
    assert everything(tmp_path / "out") == before
    new = make(**changes).copies
    assert new == copies_in(tmp_path / "out")
    assert (new.digest == old.digest) == ("input" in changes)
    make(out=tmp_path / "others", **changes)
    assert everything(tmp_path / "out") == everything(tmp_path / "others")
    assert make(refused, **changes).made == 0


def test_what_others_put_among_the_copies_is_asked_about_before_anything_is_made(tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / "data")
    make()
    (tmp_path / "out" / "train" / "n01" / "mine.jpg").write_bytes(b"mine")
    (tmp_path / "out" / "train" / "n02" / "05.jpg").unlink()
    with pytest.raises(
        InputError, match=r"out holds 1 file that are no copies of these images, as train/n01/mine\.jpg"
    ):
        make(refused)
    assert not (tmp_path / "out" / "train" / "n02" / "05.jpg").exists()
    make()
    assert sorted(images(tmp_path / "out")) == sorted(pictures())


# --- where from and where to ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("data", "data"),
        ("data", "data/small"),
        ("data", "data/train/small"),
        ("data/inner", "data"),
        ("link", "data/x"),
    ],
)
def test_one_folder_in_the_other_is_refused(source: str, out: str, tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / source if source != "link" else tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    before = everything(tmp_path / "data")
    with pytest.raises(InputError, match="one of this and --input lies in the other; name a folder beside it"):
        make(input=str(tmp_path / source), out=tmp_path / out)
    assert everything(tmp_path / "data") == before


@pytest.mark.parametrize("name", ["a.txt", "train/n01/x.jpg", "a.tar", "parts/x.json", MANIFEST])
def test_a_folder_that_holds_anything_else_is_refused(name: str, tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / "data")
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(InputError, match=r"is not empty, and not a folder of copies alone \(it holds "):
        make()
    assert everything(tmp_path / "out") == {name: b"mine"}


def test_forms_that_are_not_copied_are_told_with_those_that_are(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "parquet")
    write_cifar(tmp_path / "cifar", monkeypatch)
    (tmp_path / "empty").mkdir()
    takes = r"copied is a folder with train/ and val/, and in them a folder of images per class or tar files"
    for name, what in (("parquet", "parquet files"), ("cifar", "CIFAR's own files")):
        with pytest.raises(InputError, match=rf"--input {tmp_path}/{name}: {what} are not copied; {takes}"):
            make(input=str(tmp_path / name))
    with pytest.raises(InputError, match=rf"--input hfds/a/b: a data set of the hub is not copied; {takes}"):
        make(input="hfds/a/b")
    with pytest.raises(DataMissingError, match=rf"--input .*/gone: .*/gone does not exist; {takes}"):
        make(input=str(tmp_path / "gone"))
    with pytest.raises(DataMissingError, match=rf"has no train/ and no val/: it holds nothing; {takes}"):
        make(input=str(tmp_path / "empty"))
    with pytest.raises(
        InputError, match=r"--short-side: .* got 0\n--quality: a number from 1 to 100 is expected, got 101"
    ):
        make(short_side=0, quality=101)
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_too_small_is_told_before_anything_is_copied(
    tmp_path: Path, make: Make, small_disk: Callable[[str], Path]
) -> None:
    write_folders(tmp_path / "data")
    disk = small_disk("48k")
    with pytest.raises(StorageError, match=r"copies take some .* GB more, and .* GB are free there; free some space"):
        make(out=disk / "out", quality=100)
    assert list(disk.iterdir()) == []


def test_a_full_disk_is_told_and_what_is_finished_kept(
    tmp_path: Path, make: Make, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "check_room", lambda *rest: None)
    write_folders(tmp_path / "data")
    disk = small_disk("96k")
    with pytest.raises(StorageError, match=r"the disk is full.*\n[1-5] of 6 parts are finished and kept"):
        make(out=disk / "out")
    assert not list(disk.rglob("*.tmp"))
    for path in disk.rglob("*.jpg"):
        decode(path.read_bytes())  # it is whole, or not there
    with pytest.raises(DataMissingError, match="not finished"):
        both(disk / "out")


def test_room_is_reckoned_by_some_of_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(tmp_path / "data")
    request = CopyRequest(str(tmp_path / "data"), tmp_path, SHORT, 90)
    originals = [open_source(place, "imagenet") for place in locate(TASK, str(tmp_path / "data"))]
    some = [bytes(originals[0].read(i)) for i in range(36)]
    share = sum(len(shrink(one, SHORT, 90).data) for one in some) / sum(map(len, some))
    for free, enough in ((int(1e9 * share * 1.05), True), (int(1e9 * share * 0.95), False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(0, 0, free))  # type: ignore[attr-defined]
        if enough:
            check_room(request, originals, 10**9, None)
        else:
            with pytest.raises(StorageError, match=r"copies take some [\d.]+ GB more"):
                check_room(request, originals, 10**9, None)


def test_two_commands_do_not_write_to_one_folder(tmp_path: Path, make: Make) -> None:
    from ettsweep.tasks.images.preparation.folder import copies_folder

    write_folders(tmp_path / "data")
    with (
        copies_folder(tmp_path / "out"),
        pytest.raises(StorageError, match="out: another `ettsweep data images` is writing there"),
    ):
        make()
    assert not (tmp_path / "out").exists()


# --- what a run records -----------------------------------------------------------------------------------------------


def test_a_run_on_copies_records_other_data_than_one_on_their_originals(tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / "data")
    copies = [make(out=tmp_path / f"{side}-{quality}", short_side=side, quality=quality).copies
              for side, quality in ((20, 90), (25, 90), (20, 80))]  # fmt: skip
    originals = both(tmp_path / "data")
    recorded = {fingerprint(*originals), *(fingerprint(*originals, copies=one) for one in copies)}
    assert len(recorded) == 4


def test_a_manifest_that_was_edited_is_told(tmp_path: Path, make: Make) -> None:
    write_folders(tmp_path / "data")
    make()
    path = tmp_path / "out" / MANIFEST
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(CorruptError, match=rf"{path}: version: .*run the same `ettsweep data images` again"):
        both(tmp_path / "out")
    make()
    both(tmp_path / "out")
    assert not list((tmp_path / "out" / PARTS).glob(".*"))
