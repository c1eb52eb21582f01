"""Which checkpoint a command goes on from, and the metrics that it writes itself."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from ettsweep.worker.checkpoints import Checkpoint, newest_checkpoint
from ettsweep.worker.metrics import OwnMetrics


def test_the_highest_step_counts_and_not_the_latest_or_the_last_by_name(tmp_path: Path) -> None:
    for step in (100, 9, 20):
        (tmp_path / f"ckpt-{step}").write_text("x")
    assert newest_checkpoint(tmp_path, r"ckpt-(?P<step>\d+)") == Checkpoint(tmp_path / "ckpt-100", 100)


def test_a_pattern_is_of_whole_paths_also_of_folders_and_below(tmp_path: Path) -> None:
    (tmp_path / "a" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "a" / "checkpoint-5" / "weights").write_text("x")
    (tmp_path / "a" / "checkpoint-6.tmp").write_text("x")
    assert newest_checkpoint(tmp_path, r".*/checkpoint-(?P<step>\d+)") == Checkpoint(tmp_path / "a/checkpoint-5", 5)
    assert newest_checkpoint(tmp_path, r"checkpoint-(?P<step>\d+)") is None
    assert newest_checkpoint(tmp_path / "nonesuch", "x") is None


def test_a_group_tells_the_checkpoint_where_the_pattern_is_of_a_file_that_comes_last(tmp_path: Path) -> None:
    for step in (5, 6):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("x")
    (tmp_path / "checkpoint-5" / "state.json").write_text("{}")
    pattern = r"(?P<checkpoint>checkpoint-(?P<step>\d+))/state\.json"
    assert newest_checkpoint(tmp_path, pattern) == Checkpoint(tmp_path / "checkpoint-5", 5)


def test_empty_files_are_marks_and_no_damage(tmp_path: Path) -> None:
    (tmp_path / "s1").mkdir()
    (tmp_path / "s1" / "_SUCCESS").write_text("")
    assert newest_checkpoint(tmp_path, r"s(?P<step>\d)") is None
    (tmp_path / "s1" / "weights").write_text("x")
    assert newest_checkpoint(tmp_path, r"s(?P<step>\d)") == Checkpoint(tmp_path / "s1", 1)


def torch_file() -> bytes:
    """Return a file in the format of torch.save."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(3000))
    return data.getvalue()


def safetensors_file() -> bytes:
    """Return a file in the format of safetensors: the length of a header, the header, the tensors."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


DAMAGED = {
    "half.safetensors": safetensors_file()[:-7],
    "a header of 2^42 bytes.safetensors": (2**42).to_bytes(8, "little") + b"{}",
    "half.json": b'{"step": 40, "log_history": [{"loss": 1.0}',
    "zeros after a crash.json": bytes(100),
    "half.pt": torch_file()[:-7],
    "none.pt": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_its_own_format_shows_as_damaged_is_not_taken(tmp_path: Path, name: str) -> None:
    end = Path(name).suffix
    whole = {".pt": torch_file(), ".safetensors": safetensors_file(), ".json": b'{"step": 1}\n{"step": 2}\n'}[end]
    for step, content in ((1, whole), (2, DAMAGED[name])):
        (tmp_path / f"{step}{end}").write_bytes(content)
        (tmp_path / f"s{step}").mkdir()
        (tmp_path / f"s{step}" / name).write_bytes(content)
        (tmp_path / f"s{step}" / "weights").write_text("x")
    assert newest_checkpoint(tmp_path, rf"(?P<step>\d)\{end}") == Checkpoint(tmp_path / f"1{end}", 1)
    assert newest_checkpoint(tmp_path, r"s(?P<step>\d)") == Checkpoint(tmp_path / "s1", 1)


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_lines_come_from_the_file_and_from_the_output(tmp_path: Path) -> None:
    recorded, output = tmp_path / "recorded.jsonl", tmp_path / "output.txt"
    output.write_text('[ettsweep] {"step": 1, "loss": 9.0}\n')
    metrics = OwnMetrics(tmp_path, output, ("loss", "val_loss"))
    metrics.begin()
    assert metrics.rows() == []
    with output.open("a") as file:
        file.write('noise\nrank 0: [ettsweep] {"step": 2, "loss": 0.5, "other": 1}\r\n[ettsweep] {"step": 3,')
    recorded.write_text('{"step": 2.0, "val_loss": 1, "phase": "val"}\n\nhalf a line\n{"step": 4')
    assert metrics.rows() == [{"step": 2, "val_loss": 1.0}, {"step": 2, "loss": 0.5}]
    assert metrics.rows() == []
    with output.open("a") as file:
        file.write(' "loss": NaN}\n')
    (row,) = metrics.rows()
    assert row["step"] == 3
    assert row["loss"] != row["loss"]


def test_what_was_seen_is_told_where_the_score_was_not(tmp_path: Path) -> None:
    metrics = OwnMetrics(tmp_path, tmp_path / "output.txt", ("err",))
    assert metrics.rows() == []
    assert metrics.seen("err").startswith("no err: the run recorded no metrics; set `reader`")
    (tmp_path / "output.txt").write_text('[ettsweep] {"step": 1, "loss": 2, "other": 1}\n')
    assert metrics.rows() == []
    assert metrics.seen("err") == "the run recorded no err, but loss, other"
