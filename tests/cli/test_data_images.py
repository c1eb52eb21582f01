"""`ettsweep data images` as a user types it: what it prints, kills and Ctrl-C in the middle, and a run on the copies."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.commandline import alive, at_a_terminal, ended, ettsweep, start, wait_for
from support.pictures import pictures, write_folders, write_nested_tars, write_parquet, write_split_tars

from bench.waves import CLASSES, write_images
from ettsweep.errors import DataMissingError
from ettsweep.tasks.images.copies import MANIFEST, PARTS, copies_in
from ettsweep.tasks.images.location import locate
from ettsweep.tasks.images.spec import ImageNetTask

Options = list[object]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with images of 56 x 40 pixels."""
    write_folders(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


SMALL: Options = ["data", "images", "--input", "data", "--out", "out", "--short-side", 20, "--workers", 1]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_command_says_what_it_has_made_and_what_comes_next(folder: Path) -> None:
    (folder / "data" / "train" / "n01" / "05.jpg").write_bytes(b"no image")
    done = ettsweep(*SMALL)
    copies = copies_in(folder / "out")
    assert copies is not None
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["part", "images", "resized", "undecodable", "source_bytes", "bytes"]
    sizes = {
        (kind, part): sum(path.stat().st_size for path in (folder / kind / part).glob("*/*.jpg"))
        for kind in ("data", "out")
        for part in ("train", "val")
    }
    assert rows[1] == ["training", "36", "35", "1", str(sizes["data", "train"]), str(sizes["out", "train"])]
    assert rows[2] == ["validation", "9", "9", "0", str(sizes["data", "val"]), str(sizes["out", "val"])]
    told = done.stderr.splitlines()
    assert re.fullmatch(r"45 images in [\d.]+ s: [\d,]+ images/s on 1 process", told[0])
    before, after = (sum(size for (where, _), size in sizes.items() if where == kind) for kind in ("data", "out"))
    assert told[1] == f"{before / 1e6:.1f} MB became {after / 1e6:.1f} MB, {after / before:.0%}"
    assert told[2:] == [
        "1 of 45 images are as they were, byte for byte",
        f"{folder}/data/train/n01/05.jpg: cannot be decoded (no image of a known format)",
        "1 image that cannot be decoded: training meets the same",
        f"out: copies {copies.digest}, short side 20, quality 90",
        "next: `ettsweep grid --model vit-b16 --data out --results FOLDER`, with a folder for runs on copies alone: they "
        "learn from other pixels under the same run ids",
    ]
    again = ettsweep(*SMALL, "--format", "json")
    assert again.stderr.startswith("all of it was there already\n")
    found = json.loads(again.stdout)
    assert found == json.loads((folder / "out" / MANIFEST).read_text()) | {"parts": found["parts"]}
    assert [part["resized"] for part in found["parts"]] == [35, 9]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            ["--input", "gone"],
            1,
            "ettsweep: --input gone: {folder}/gone does not exist; copied is a folder with train/",
        ),
        (["--input", "parquet"], 2, "ettsweep: --input parquet: parquet files are not copied; copied is a folder with"),
        (["--input", "data", "--out", "data/small"], 2, "one of this and --input lies in the other"),
        (["--input", "data", "--out", "parquet"], 2, "--out parquet: is not empty, and not a folder of copies alone"),
        (["--input", "data", "--out", "data/train/n01/00.jpg"], 2, "lies in the other"),
        (["--input", "data", "--short-side", 0], 2, "--short-side: a number of pixels above 0 is expected, got 0"),
        (["--input", "data", "--quality", 101], 2, "--quality: a number from 1 to 100 is expected, got 101"),
        ([], 2, "Missing option '--input'"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_leaves_nothing(folder: Path, options: Options, code: int, words: str) -> None:
    write_parquet(folder / "parquet")
    before = files(folder)
    done = ettsweep("data", "images", *([] if "--out" in options else ["--out", "out"]), *options, code=code)
    assert words.format(folder=folder) in done.stderr
    assert files(folder) == before


def test_copies_that_were_made_otherwise_are_not_replaced_unasked(folder: Path) -> None:
    ettsweep(*SMALL)
    before = files(folder / "out")
    told = ettsweep(*SMALL, "--quality", 80, code=2).stderr
    assert re.search(r"out holds copies [0-9a-f]{12}, made with --quality 90; another --out keeps both\n", told)
    assert "ettsweep: nobody answered; --yes says yes beforehand" in told
    assert files(folder / "out") == before
    assert "replaces copies" in ettsweep(*SMALL, "--quality", 80, "--yes").stderr
    assert "all of it was there already" in ettsweep(*SMALL, "--quality", 80).stderr


@pytest.mark.slow
def test_somebody_at_a_terminal_is_asked_once(folder: Path) -> None:
    ettsweep(*SMALL)
    before = files(folder / "out")
    (folder / "data" / "train" / "n01" / "05.jpg").unlink()
    code, told = at_a_terminal(*SMALL, "--quality", 80, answer="n")
    assert (code, told.count("replace it? [y/N]"), files(folder / "out")) == (1, 1, before)
    code, told = at_a_terminal(*SMALL, "--quality", 80, answer="y")
    assert (code, told.count("replace it?"), "replaces copies" in told) == (0, 1, True)
    assert not (folder / "out" / "train" / "n01" / "05.jpg").exists()


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(folder: Path) -> dict[str, bytes]:
    """Return images whose copies take some seconds, in many folders."""
    pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((1280, 960), Image.Resampling.BICUBIC).save("large.jpg", quality=85)
    large = Path("large.jpg").read_bytes()
    small = next(iter(pictures().values()))
    names = [
        f"{part}/n{k:02}/{i}.jpg" for part, count in (("train", 9), ("val", 1)) for k in range(20) for i in range(count)
    ]
    return {name: small if name.endswith("/5.jpg") else large for name in names}


FORMS: dict[str, Callable[[Path, Any], Path]] = {
    "class folders": write_folders,
    "one tar for each part": write_split_tars,
    "tars of tars": write_nested_tars,
}


def records(out: Path) -> list[Path]:
    return list(out.glob(f"{PARTS}/[!.]*.json"))


def begun(out: Path) -> list[Path]:
    return [*out.glob(f"{PARTS}/.*.tmp"), *out.glob("train/*/*.jpg")]


def children(process: "subprocess.Popen[str]") -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.parametrize(
    "form", ["class folders", *(pytest.param(form, marks=pytest.mark.slow) for form in list(FORMS)[1:])]
)
def test_a_killed_command_goes_on_where_it_was(folder: Path, many: dict[str, bytes], form: str) -> None:
    FORMS[form](folder / "many", many)
    asked: Options = ["data", "images", "--input", "many", "--short-side", 64, "--workers", 2]
    process, out = start(*asked, "--out", "killed"), folder / "killed"
    wait_for(lambda: len(records(out)) >= 3 if form == "class folders" else begun(out), "something that is begun")
    workers = children(process)
    process.kill()
    process.communicate()
    assert len(workers) >= 2
    wait_for(lambda: not any(alive(pid) for pid in workers), "the processes to end with the command")
    count = len(records(out))
    assert not (out / MANIFEST).exists()
    with pytest.raises(DataMissingError, match="not finished: run the same `ettsweep data images` again"):
        locate(ImageNetTask(), str(out))
    for path in out.glob("train/*/*.jpg"):
        Image.open(path).load()  # a copy that is there is whole
    (out / PARTS / f".{'0' * 24}.json.{'0' * 32}.tmp").write_bytes(b"what a kill in the middle of a file leaves")
    done = ettsweep(*asked, "--out", "killed")
    kept = re.search(r"(\d+) of (\d+) parts were there already", done.stderr)
    assert (int(kept[1]) if kept else 0) >= count
    if form == "class folders":
        assert kept is not None
        assert 3 <= int(kept[1]) < int(kept[2]) == 40
    ettsweep(*asked, "--out", "undisturbed")
    assert files(out) == files(folder / "undisturbed")


def test_ctrl_c_keeps_what_is_finished_and_says_so(folder: Path, many: dict[str, bytes]) -> None:
    write_folders(folder / "many", many)
    out = folder / "out"
    asked: Options = ["data", "images", "--input", "many", "--short-side", 64, "--workers", 2, "--out", "out"]
    process = start(*asked, start_new_session=True)
    wait_for(lambda: len(records(out)) >= 2, "finished parts")
    (out / PARTS / f".{'0' * 24}.json.{'0' * 32}.tmp").write_bytes(b"what a process has begun")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    done = ended(process, code=130)
    told = re.search(r"ettsweep: interrupted; (\d+) of 40 parts are finished and kept: the same command", done.stderr)
    assert told is not None
    assert int(told[1]) == len(records(out)) >= 2
    assert done.stderr.count("\n") == 1
    assert not list(out.rglob("*.tmp"))
    assert "parts were there already" in ettsweep(*asked).stderr


# --- a run on the copies ----------------------------------------------------------------------------------------------

COUNTS = {"train": 60, "val": 30}
RECIPE = {
    **{"model.classes": CLASSES, "model.width": 16, "model.heads": 2, "model.depth": 1},
    **{"model.image_size": 32, "model.patch_size": 8, "task.resize": 36, "task.mixup_chunk": 8},
    **{"task.train_size": COUNTS["train"], "task.val_size": COUNTS["val"]},
    **{"batch_size": 20, "precision": "fp32", "schedule.epochs": 2, "schedule.warmup_steps": 2},
}


def test_a_run_on_copies_meets_the_same_images_and_records_that_they_are_copies(folder: Path) -> None:
    write_images(folder / "waves", COUNTS, 80)
    damaged = folder / "waves" / "train" / "n03" / "2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:300])
    ettsweep("data", "images", "--input", "waves", "--out", "small", "--short-side", 40)
    found = {}
    for data in ("waves", "small"):
        sets = [f"--set={key}={value}" for key, value in RECIPE.items()]
        where = ("--data", data, "--results", f"on-{data}")
        ettsweep("train", "--model", "vit-b16", "--strategy", "standard", *sets, *where, "--launch-set=slots=1")
        (run,) = (folder / f"on-{data}" / "runs").iterdir()
        found[data] = json.loads((run / "result.json").read_text())
        assert "n03/2.jpg: cannot be decoded" in ettsweep("logs", run.name, "--results", f"on-{data}").stdout
    ours, theirs = found["small"], found["waves"]
    assert ours["run"] == theirs["run"]
    assert (ours["corrupt_images"], ours["steps"]) == (theirs["corrupt_images"], theirs["steps"]) == (1, 6)
    assert ours["execution"]["data"] != theirs["execution"]["data"]
    assert ours["final_loss"] == pytest.approx(theirs["final_loss"], rel=0.05)
    rows = json.loads(ettsweep("doctor", "--data", "small", "--format", "json", code=1).stdout)
    assert f"short side 40, quality 90, of {folder}/waves" in [
        row["detail"] for row in rows if row["check"] == "copies"
    ]
