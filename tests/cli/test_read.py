"""`ettsweep read`."""

import shutil
from pathlib import Path

import pytest
from support.commandline import Call

from ettsweep.readers.registry import reader_names

DATA = Path(__file__).parents[1] / "readers" / "data"
LOG = DATA / "nanogpt" / "output.txt"


def test_a_reader_shows_what_it_sees(call: Call) -> None:
    done = call("read", LOG, "--reader", "nanogpt", "--format", "json")
    rows = {row["metric"]: row for row in done.json}
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
        (row,) = call("read", LOG, "--reader", reader, "--format", "json").json
        assert (row["metric"], row["values"], row["last"]) == ("v", 5, 10.5822)


def test_without_a_reader_those_that_see_something_are_named(call: Call) -> None:
    done = call("read", DATA / "timm" / "run", "--format", "json")
    rows = {row["reader"]: row for row in done.json}
    assert list(rows) == ["timm", "csv"]
    assert rows["timm"]["metrics"] == ["eval_loss", "eval_top1", "eval_top5", "train_loss"]
    assert (rows["timm"]["rows"], rows["timm"]["last_step"]) == (4, 3)
    assert "--reader timm` shows the values" in done.err
    assert "timm" in call("read", DATA / "timm" / "run" / "exp" / "summary.csv").out


def test_a_log_in_a_folder_is_read(call: Call, tmp_path: Path) -> None:
    shutil.copy(LOG, tmp_path / "train.log")
    assert "val_loss" in call("read", tmp_path, "--reader", "nanogpt").out
    assert [row["reader"] for row in call("read", tmp_path, "--format", "json").json] == [
        "nanogpt",
        "stdout",
    ]
    shutil.copy(LOG, tmp_path / "slurm-1.out")
    assert "pass one of these files" in call("read", tmp_path, "--reader", "nanogpt", code=2).err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "--reader", "timm"], 2, "nowhere: there is no such folder or file"),
        ([LOG, "--reader", "torchtitan"], 1, "no metric in 66 lines; seen: "),
        (["empty"], 1, "empty: no reader finds a metric; --reader NAME shows why not"),
        ([LOG, "--reader", r"(?:iter|step) (?P<step>\d+).*loss (?P<loss>\d\S+)"], 1, "two values at step 0"),
    ],
)
def test_messages(call: Call, arguments: list[str], code: int, message: str) -> None:
    Path("empty").mkdir()
    assert message in call("read", *arguments, code=code).err


def test_readers_are_listed(call: Call) -> None:
    rows = call("read", "--format", "json").json
    assert tuple(row["name"] for row in rows) == reader_names()
    assert all(f"{name}  " in call("read").out for name in reader_names())
