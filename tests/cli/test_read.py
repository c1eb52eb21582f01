"""`ettsweep read`."""

import json
import shutil
from pathlib import Path

import pytest
from support.commandline import Call

from ettsweep.readers.registry import reader_names

DATA = Path(__file__).parents[1] / "readers" / "data"
LOG = DATA / "nanogpt" / "output.txt"


def test_a_reader_shows_what_it_sees(call: Call) -> None:
    done = call("read", LOG, "--reader", "nanogpt", "--format", "json")
    rows = {row["metric"]: row for row in json.loads(done.out)}
    assert list(rows) == ["loss", "train_loss", "val_loss"]
    assert rows["val_loss"] == {
        **{"metric": "val_loss", "values": 4, "first_step": 0, "last_step": 30, "first": 10.7449, "last": 10.5822},
        **{"min": 10.574, "max": 10.7449, "nonfinite": 0, "resolution": 1e-4},
    }
    assert "read: output.txt" in done.err
    assert "val_loss" in call("read", LOG, "--reader", "nanogpt").out


def test_a_pattern_and_a_file_are_readers(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("kind: regex\npatterns: 'val loss (?P<v>\\S+)'\n")
    for reader in (r"val loss (?P<v>\S+)", "mine.yaml"):
        (row,) = json.loads(call("read", LOG, "--reader", reader, "--format", "json").out)
        assert (row["metric"], row["values"], row["last"]) == ("v", 5, 10.5822)


def test_without_a_reader_those_that_see_something_are_named(call: Call) -> None:
    done = call("read", DATA / "timm" / "run", "--format", "json")
    rows = {row["reader"]: row for row in json.loads(done.out)}
    assert list(rows) == ["timm", "csv"]
    assert rows["timm"]["metrics"] == ["eval_loss", "eval_top1", "eval_top5", "train_loss"]
    assert (rows["timm"]["rows"], rows["timm"]["last_step"]) == (4, 3)
    assert "--reader timm` shows the values" in done.err
    assert "timm" in call("read", DATA / "timm" / "run" / "exp" / "summary.csv").out


def test_a_log_in_a_folder_is_read(call: Call, tmp_path: Path) -> None:
    shutil.copy(LOG, tmp_path / "train.log")
    assert "val_loss" in call("read", tmp_path, "--reader", "nanogpt").out
    assert [row["reader"] for row in json.loads(call("read", tmp_path, "--format", "json").out)] == [
        "nanogpt",
        "stdout",
    ]
    shutil.copy(LOG, tmp_path / "slurm-1.out")
    assert "pass one of these files" in call("read", tmp_path, "--reader", "nanogpt", code=2).err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "--reader", "timm"], 2, "nowhere: there is no such folder or file"),
        ([LOG, "--reader", "loss (.*)"], 2, "needs named groups"),
        (["--reader", "timm"], 2, "--reader timm: add the folder or log to read"),
        ([LOG, "--reader", "torchtitan"], 1, "no metric in 66 lines; seen: "),
        (["empty"], 1, "empty: no reader finds a metric; --reader NAME shows why not"),
        (["empty", "--reader", "timm"], 1, "no file matches **/summary.csv in empty, which has no files"),
        ([LOG, "--reader", r"(?:iter|step) (?P<step>\d+).*loss (?P<loss>\d\S+)"], 1, "two values at step 0"),
    ],
)
def test_messages(call: Call, arguments: list[str], code: int, message: str) -> None:
    Path("empty").mkdir()
    assert message in call("read", *arguments, code=code).err


def test_a_folder_with_a_newline_and_brackets_is_read(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]*\n?"
    folder.mkdir()
    (folder / "l[o]g*.csv").write_text("step,loss\n1,nan\n2,0.5\n")
    (row,) = json.loads(call("read", folder / "l[o]g*.csv", "--reader", "csv", "--format", "json").out)
    assert (row["first"], row["last"], row["nonfinite"]) == (None, 0.5, 1)


def test_readers_are_listed(call: Call) -> None:
    rows = json.loads(call("read", "--format", "json").out)
    assert tuple(row["name"] for row in rows) == reader_names()
    assert all(f"{name}  " in call("read").out for name in reader_names())


def test_the_page_on_readers_has_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "readers.md").read_text()
    assert all(f"`{name}`" in page for name in reader_names())
