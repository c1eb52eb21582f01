"""Each reader that ships, on a small run of its trainer; data/README.md says which were recorded."""

import contextlib
import math
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import MetricsError
from ettsweep.files import Json
from ettsweep.readers.found_files import natural_key
from ettsweep.readers.looking import looks
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.registry import named_reader, reader_names
from ettsweep.readers.source import MetricSource

DATA = Path(__file__).parent / "data"
CURVES: dict[str, dict[str, dict[int, float]]] = {  # as they stand in the files, read by eye
    "timm": {
        "eval_loss": {0: 0.6898548007011414, 1: 0.6920642256736755, 2: 0.6906165778636932, 3: 0.6913569569587708},
        "eval_top1": {0: 62.5, 1: 50.0, 2: 50.0, 3: 50.0},
    },
    "hf": {
        "eval_loss": {5: 2.4790635108947754, 10: 2.386747360229492, 15: 2.347304105758667, 20: 2.327942371368408},
        "loss": {5: 3.9145381927490233, 10: 3.372846984863281, 15: 3.701282501220703, 20: 3.088606834411621},
    },
    "nanogpt": {
        "val_loss": {0: 10.7449, 10: 10.6777, 20: 10.574, 30: 10.5822},
        "train_loss": {0: 10.7470, 10: 10.6920, 30: 10.5900},
    },
    "lightning": {
        "train_loss": {2: 4.389063358306885, 5: 6.679408550262451, 23: 3.795366048812866},
        "val_loss": {7: 4.930784225463867, 15: 4.359506607055664, 23: 3.8394503593444824},
    },
    "tensorboard": {"val_loss": {7: 4.930784225463867, 15: 4.359506607055664, 23: 3.8394503593444824}},
    "litgpt": {"val_loss": {10: 4.0618, 20: 3.9868}, "loss": {8: 4.397, 24: 4.176}, "final_val_loss": {24: 3.984}},
    "torchtitan": {"val_loss": {50: 6.4124, 100: 3.1234}, "loss": {1: 12.25, 50: 6.5, 100: 3.25}},
    "megatron": {"val_loss": {1000: 2.345678, 2000: 2.125}, "loss": {1000: 2.5, 2000: 2.25}},
    "fairseq": {"valid_loss": {4: 9.877, 8: 7.654, 12: 6.5}, "valid_ppl": {4: 939.99, 8: 201.46, 12: 90.51}},
    "open_clip": {
        "clip_val_loss": {1: 3.4183707237243652, 2: 3.359814167022705, 3: 3.26505446434021},
        "image_to_text_R@1": {1: 0.00390625, 2: 0.015625, 3: 0.0078125},
    },
    "nanochat": {"val_bpb": {0: 3.2, 250: 1.0625, 2205: 0.812345}, "core_metric": {2205: 0.2188}, "loss": {0: 11.09}},
    "modded": {"val_loss": {0: 10.8258, 3325: 3.2782}},
    "olmo-core": {
        "train/CE loss": {9: 3.5, 10: 3.25, 200: 2.75},
        "eval/lm/c4/CE loss": {9: 3.25, 10: 3.25, 200: 2.875},
    },
    "composer": {
        "loss/train/total": {50: 3.5124, 100: 3.25},
        "metrics/eval/LanguageCrossEntropy": {100: 3.1234, 200: math.nan},
    },
    "dinov2": {"total_loss": {0: 11.0, 10: 10.375, 20: 9.625, 30: 8.375}},
    "csv": {
        "train loss": {100: 3410.5, 200: 2.5, 300: 2.25, 400: 2.0},
        "val_loss": {200: 3.25, 300: math.nan, 400: math.inf},
    },
    "jsonl": {"loss": {1: 2.5, 2: math.nan}, "val.loss": {1: 2.75, 2: 1e-5}},
    "json": {"acc": {1: 0.5, 2: 0.75}},
    "stdout": {"train_loss": {100: 3.21, 200: math.nan}, "val_loss": {100: 3.27, 200: 2.5}, "lr": {100: 0.001}},
}
"""Metrics by reader; of a curve, at least these values."""

ENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "timm": ({"step": 0, "eval_top5": 100.0}, {"step": 3, "train_loss": 0.7835115790367126}),
    "hf": ({"step": 5, "loss": 3.9145381927490233}, {"step": 20, "train_loss": 3.088606834411621}),
    "nanogpt": ({"step": 0, "val_loss": 10.7449}, {"step": 30, "loss": 10.6025}),
    "lightning": ({"step": 2, "train_loss": 4.389063358306885}, {"step": 23, "val_loss": 3.8394503593444824}),
    "tensorboard": ({"step": 2, "train_loss": 4.389063358306885}, {"step": 23}),
    "litgpt": ({"step": 8, "loss": 4.397}, {"step": 24, "final_val_loss": 3.984}),
    "torchtitan": ({"step": 1, "loss": 12.25}, {"step": 100, "val_loss": 3.1234}),
    "megatron": ({"step": 1000, "loss": 2.5}, {"step": 2000, "val_loss": 2.125}),
    "fairseq": ({"step": 4, "valid_nll_loss": 9.877}, {"step": 12, "valid_loss": 6.5}),
    "open_clip": ({"step": 1, "clip_val_loss": 3.4183707237243652}, {"step": 3, "clip_val_loss": 3.26505446434021}),
    "nanochat": ({"step": 0, "val_bpb": 3.2}, {"step": 2205, "core_metric": 0.2188}),
    "modded": ({"step": 0, "val_loss": 10.8258}, {"step": 3325, "val_loss": 3.2782}),
    "olmo-core": ({"step": 9, "train/CE loss": 3.5}, {"step": 200, "train/CE loss": 2.75}),
    "composer": ({"step": 50, "loss/train/total": 3.5124}, {"step": 200}),
    "dinov2": ({"step": 0, "total_loss": 11.0}, {"step": 30, "total_loss": 8.375}),
    "csv": ({"step": 100, "train loss": 3410.5}, {"step": 400, "val_loss": math.inf}),
    "jsonl": ({"step": 1, "val.loss": 2.75}, {"step": 2, "val.loss": 1e-5}),
    "json": ({"step": 1, "acc": 0.5}, {"step": 2, "acc": 0.75}),
    "stdout": ({"step": 100, "val_loss": 3.27}, {"step": 200, "val_loss": 2.5}),
}


def recorded(name: str) -> Path:
    folder = DATA / name / "run"
    return folder if folder.is_dir() else DATA / name / "output.txt"


def files_of(name: str) -> dict[str, bytes]:
    """Return what was recorded for a reader, by relative path in the order of writing; a log is `output`."""
    source = recorded(name)
    if source.is_file():
        return {OUTPUT: source.read_bytes()}
    paths = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    return {path: (source / path).read_bytes() for path in sorted(paths, key=natural_key)}


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files of a run, each a second after the one before."""
    for second, (name, data) in enumerate(files.items()):
        path = folder / OUTPUT if name == OUTPUT else folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (second, second))


def source_in(folder: Path, name: str) -> MetricSource:
    return MetricSource(named_reader(name), folder / "run", folder / OUTPUT)


def rows_of(folder: Path, name: str, files: dict[str, bytes]) -> list[Json]:
    """Return the rows of files that are there from the start."""
    write(folder, files)
    return comparable(source_in(folder, name).rows(final=True))


def comparable(rows: list[Json]) -> list[Json]:
    """Return rows with nan as text, which is equal to itself."""
    return [{key: "nan" if value != value else value for key, value in row.items()} for row in rows]


@pytest.mark.parametrize("name", reader_names())
def test_the_first_and_the_last_row_have_what_was_recorded(name: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, name, files_of(name))
    for row, expected in zip((rows[0], rows[-1]), ENDS[name], strict=True):
        assert {key: row.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", reader_names())
def test_files_that_grow_have_the_same_rows(name: str, tmp_path: Path) -> None:
    """A file that grows by some bytes at a time is cut at every kind of place."""
    files = files_of(name)
    expected = rows_of(tmp_path / "whole", name, files)
    written, rows, source = dict[str, bytes](), [], source_in(tmp_path, name)
    for path, data in files.items():
        part = max(7, len(data) // 300)
        for end in range(0, len(data) + part, part):
            written[path] = data[:end]
            write(tmp_path, written)
            rows += source.rows()
    assert comparable(rows + source.rows(final=True)) == expected


@pytest.mark.parametrize("name", reader_names())
def test_rows_from_before_an_attempt_are_left_out(name: str, tmp_path: Path) -> None:
    files = files_of(name)
    whole, before = rows_of(tmp_path / "whole", name, files), half(name, files)
    earlier = rows_of(tmp_path, name, before)
    source = source_in(tmp_path, name)
    source.begin()
    assert source.rows() == []
    write(tmp_path, files)
    assert earlier + comparable(source.rows(final=True)) == whole
    assert source.rows(final=True) == []


def half(name: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return what an attempt had written when it was stopped, in the middle: whole lines, or whole documents."""
    left, written = sum(map(len, files.values())) // 2, dict[str, bytes]()
    for path, data in files.items():
        if len(data) > left:
            if named_reader(name).kind != "json":
                written[path] = data[: data.rfind(b"\n", 0, left) + 1]
            break
        written[path], left = data, left - len(data)
    return written


@pytest.mark.parametrize("name", [name for name in reader_names() if named_reader(name).kind != "tensorboard"])
def test_lines_with_carriage_returns_are_read(name: str, tmp_path: Path) -> None:
    files = files_of(name)
    windows = {path: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for path, data in files.items()}
    assert rows_of(tmp_path / "windows", name, windows) == rows_of(tmp_path / "as-it-is", name, files)


def metrics_of(name: str) -> dict[str, dict[int, float]]:
    (seen,) = [each for each in looks(recorded(name)) if each.reader.name == name]
    assert not seen.problem
    assert not seen.conflicts
    return seen.metrics


@pytest.mark.parametrize("name", reader_names())
def test_curves_are_those_in_the_files(name: str) -> None:
    metrics = metrics_of(name)
    for metric, curve in CURVES[name].items():
        actual = {step: value for step, value in metrics[metric].items() if step in curve}
        assert actual == pytest.approx(curve, rel=1e-12, nan_ok=True), metric


@pytest.mark.parametrize("name", reader_names())
def test_a_reader_says_where_it_comes_from(name: str) -> None:
    reader = named_reader(name)
    assert isinstance(reader, Reader)
    assert reader.about
    assert reader.beware
    is_primitive = name in ("csv", "jsonl", "json", "stdout", "tensorboard")
    assert is_primitive or (reader.repository.startswith("https://github.com/") and reader.commit)


def test_all_readers_are_proven() -> None:
    assert set(CURVES) == set(ENDS) == set(reader_names())


@pytest.mark.parametrize("name", reader_names())
def test_damage_is_survived_or_named(name: str, tmp_path: Path) -> None:
    """Bytes that are changed, lost or doubled: whatever is read, nothing but an error with a message is raised."""
    chance, source = random.Random(0), recorded(name)
    for number in range(15):
        folder = tmp_path / str(number)
        if source.is_dir():
            shutil.copytree(source, folder)
        else:
            folder.mkdir()
            shutil.copy(source, folder / "output")
        for path in filter(Path.is_file, folder.rglob("*")):
            data = bytearray(path.read_bytes())
            for _ in range(chance.randrange(6)):
                at = chance.randrange(len(data) + 1)
                new = chance.choice(
                    [b"", b"\0", b'"', b"\n", b"\xff", b"{", b",", b"9" * 30, bytes(data[at : at + 50])]
                )
                data[at : at + chance.randrange(20)] = new
            path.write_bytes(data)
        with contextlib.suppress(MetricsError):
            MetricSource(named_reader(name), folder, folder / "output").rows(final=True)


def test_test_set_lines_of_megatron_are_no_validation() -> None:
    rows = MetricSource(named_reader("megatron"), DATA / "none", recorded("megatron")).rows()
    assert [row["val_loss"] for row in rows if "val_loss" in row] == [2.345678, 2.125]


def test_the_progress_bar_of_transformers_is_read_through() -> None:
    """Recorded: carriage returns, cursor movements, and numbers as text in between."""
    rows = MetricSource(named_reader("stdout"), DATA / "none", DATA / "hf" / "output.txt").rows()
    assert [row["eval_loss"] for row in rows if "eval_loss" in row] == [2.479, 2.387, 2.347]
