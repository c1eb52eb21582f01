"""Each reader that ships, on a small run of its trainer; data/README.md says which were recorded."""

import contextlib
import math
import os
import random
from pathlib import Path

import pytest

from ettsweep.errors import MetricsError
from ettsweep.files import Json
from ettsweep.readers.found_files import natural_key
from ettsweep.readers.looking import looks
from ettsweep.readers.reader import OUTPUT
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
def test_files_that_grow_have_the_same_rows(name: str, tmp_path: Path) -> None:
    """A file that grows by some bytes at a time is cut at every kind of place."""
    files = files_of(name)
    expected = rows_of(tmp_path / "whole", name, files)
    written, rows, source = dict[str, bytes](), [], source_in(tmp_path, name)
    for path, data in files.items():
        part = max(7, len(data) // 60)
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


def test_all_readers_are_proven_and_say_where_they_come_from() -> None:
    assert set(CURVES) == set(reader_names())
    for reader in map(named_reader, reader_names()):
        assert reader.about
        assert reader.beware
        is_primitive = reader.name in ("csv", "jsonl", "json", "stdout", "tensorboard")
        assert is_primitive or (reader.repository.startswith("https://github.com/") and reader.commit), reader.name


@pytest.mark.parametrize("name", ["csv", "json", "nanogpt", "tensorboard"])
def test_damage_is_survived_or_named(name: str, tmp_path: Path) -> None:
    """Bytes that are changed, lost or doubled: whatever is read, nothing but an error with a message is raised."""
    chance, pieces = random.Random(0), [b"", b"\0", b'"', b"\n", b"\xff", b"{", b",", b"9" * 30]
    for number in range(15):
        damaged = dict[str, bytes]()
        for path, whole in files_of(name).items():
            data = bytearray(whole)
            for _ in range(chance.randrange(6)):
                at = chance.randrange(len(data) + 1)
                data[at : at + chance.randrange(20)] = chance.choice([*pieces, bytes(data[at : at + 50])])
            damaged[path] = bytes(data)
        with contextlib.suppress(MetricsError):
            rows_of(tmp_path / str(number), name, damaged)


def test_the_progress_bar_of_transformers_is_read_through() -> None:
    """Recorded: carriage returns, cursor movements, and numbers as text in between."""
    rows = MetricSource(named_reader("stdout"), DATA / "none", DATA / "hf" / "output.txt").rows()
    assert [row["eval_loss"] for row in rows if "eval_loss" in row] == [2.479, 2.387, 2.347]
