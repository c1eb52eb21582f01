"""What readers cope with: files that grow, break off, are rewritten, replaced, linked, or belong to somebody else."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import MetricsError
from ettsweep.readers.registry import reader_of
from ettsweep.readers.source import MetricSource

Make = Callable[..., MetricSource]
PATTERN = r"step (?P<step>\d+).*val loss (?P<val_loss>\S+)"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a source of a reader in a folder of its own."""

    def of(value: object, **options: Any) -> MetricSource:
        return MetricSource(reader_of(value), tmp_path / "run", tmp_path / "output", **options)

    (tmp_path / "run").mkdir()
    return of


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


# --- lines ------------------------------------------------------------------------------------------------------------


def test_lines_are_read_once_and_the_last_waits_for_its_end(make: Make, output: Path) -> None:
    source = make(PATTERN)
    assert source.rows() == []
    append(output, "step 1: val loss 3.5\nstep 2: val loss 3.")
    assert source.rows() == [{"step": 1, "val_loss": 3.5}]
    append(output, "25\n")
    assert source.rows() == [{"step": 2, "val_loss": 3.25}]
    append(output, "step 3: val loss 3.1")
    assert source.rows() == []
    assert source.rows(final=True) == [{"step": 3, "val_loss": 3.1}]
    assert source.rows(final=True) == []


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfstep 1,000: val loss 3.5,\n",
        b"\x1b[31mstep\x1b[0m 1000: \x1b[1;32mval loss \x1b]8;;x\x07\x1b[38;2;1;2;3m3.5\x1b[39m done\r\n",
        b"  0%|  |\r 10%|# |\rstep 1000 val loss 3.5\r 20%|##|",
        b"20%\x08\x08\x08step 1000 val loss 3.5.\n",
        b"step 999999999 val loss\nstep 1000 val loss n/a val loss 3.5\n",
    ],
    ids=["byte order mark, thousands", "colours", "progress", "backspaces", "no number"],
)
def test_a_line_is_read_through_what_terminals_need(make: Make, output: Path, text: bytes) -> None:
    output.write_bytes(text)
    pattern = r"step (?P<step>[\d,.]+\d).*val loss (?P<val_loss>\S+)"
    assert make(pattern).rows() == [{"step": 1000, "val_loss": 3.5}]


ANY_STEP = r"step (?P<step>\S+) (?P<name>\w+) (?P<value>\S+)"


def test_a_line_without_a_possible_step_is_left_out_and_told(make: Make, output: Path) -> None:
    append(output, "step 00120 loss 3\nstep nan loss 2\nstep 1,000.0 loss 1\n")
    source = make(ANY_STEP)
    assert source.rows() == [{"step": 120, "loss": 3.0}, {"step": 1000, "loss": 1.0}]
    assert source.notes() == ["output: output: step nan loss 2: the step 'nan' is not a whole number; left out"]


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (ANY_STEP, "step 0.5 loss 4\nstep 1.0 loss 3\nstep 1.5 loss 2\n"),
        ({"kind": "jsonl", "files": "output"}, "".join(f'{{"epoch": {n / 2}, "loss": 2}}\n' for n in range(1, 4))),
    ],
)
def test_steps_that_are_fractions_are_an_error_of_their_metric_alone(
    make: Make, output: Path, reader: Any, text: str
) -> None:
    append(output, text)
    with pytest.raises(
        MetricsError, match=r"the step '?0\.5'? is not a whole number; .*number the rows with `step: counted`"
    ):
        make(reader).rows()
    source = make(reader, strict=["val_loss"])
    assert [row["step"] for row in source.rows()] == [1]
    assert "the step" in source.notes()[0]
    mapping = reader if isinstance(reader, dict) else {"kind": "regex", "patterns": reader}
    assert [row["step"] for row in make({**mapping, "step": "counted"}).rows()] == [1, 2, 3]


# --- training and validation ------------------------------------------------------------------------------------------


LINES = "step: 10 loss: 3.5\nvalidate step: 10 loss: 3.25\n"
LOOSE = r"step: (?P<step>\d+) loss: (?P<loss>\S+)"


def test_two_values_of_training_and_validation_ask_for_a_split(make: Make, output: Path) -> None:
    append(output, LINES)
    with pytest.raises(MetricsError, match=r"loss has two values at step 10, 3\.5 and 3\.25, in .*validate.* `split`"):
        make(LOOSE).rows()
    assert make(LOOSE, strict=()).rows()[-1] == {"step": 10, "loss": 3.25}
    assert make({"kind": "regex", "patterns": LOOSE}, only=["val_loss"]).rows() == []


EPOCHS = "".join(
    f"Epoch [{epoch}/2], Step [{step}/20], Loss: {4 - epoch - step / 100}\n" for epoch in (1, 2) for step in (10, 20)
)
APART = [  # reader, output, name, what is wrong with it
    ("stdout", "step 5 loss: 3 | val: loss: 2\n", "loss", "two values at step 5, 3 and 2, in a line such as"),
    ("stdout", "[rank0]: step 5 loss=3\n[rank1]: step 5 loss=2\n", "loss", "two values at step 5, 3 and 2, in lines"),
    ("stdout", EPOCHS, "Loss", "2.9 and 1.9, of epochs 1 and 2, .* steps restart in each epoch; number the rows"),
    ("stdout", "epoch 1, step 600, loss: 3\nEpoch 1: loss: 2\n", "loss", "epochs as steps in some lines, and other"),
    ("jsonl", '{"step": 5, "rank": 0, "loss": 3}\n{"step": 5, "rank": 1, "loss": 2}\n', "loss", "two values at step 5"),
]


@pytest.mark.parametrize(("form", "text", "name", "problem"), APART)
def test_values_that_stand_apart_are_an_error_of_their_metric_alone(
    make: Make, output: Path, form: str, text: str, name: str, problem: str
) -> None:
    append(output, text)
    reader = form if form == "stdout" else {"kind": form, "files": "output"}
    with pytest.raises(MetricsError, match=f"^{name} has .*{problem}"):
        make(reader, only=[name]).rows()
    source = make(reader, strict=["other"])
    assert source.rows()
    assert name in source.conflicts
    assert make(reader, only=["other"]).rows() == []


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("step 5 loss=3\nstep 5 loss=2\nstep 6 loss=2\nstep 6 loss=1\n", "3 and 2 at step 5 and 1 more"),
        ("Epoch 3: 1%| | 1/9, loss=3\rEpoch 3: 2%| | 2/9, loss=2\r", "3 and 2 at step 3"),
        ("step 5 loss=3 (loss 3.0)\nstep 5 loss=3\nstep 6 loss=nan\nstep 6 loss=nan\n", ""),
    ],
    ids=["processes", "progress bar", "the same"],
)
def test_which_of_two_values_counts_is_told(make: Make, output: Path, text: str, note: str) -> None:
    append(output, text)
    source = make("stdout")
    assert source.rows()
    assert source.notes() == ([f"loss has two values at one step, {note}: the later one counts"] if note else [])


@pytest.mark.parametrize(
    ("text", "step", "value"),
    [
        ("step 1,000 loss: 1,234.5", 1000, 1234.5),
        ("step 1: loss 2.5e-05.", 1, 2.5e-5),
        ("step 1 loss: 0,523", 1, None),
        ("step 1 loss: 3/4", 1, None),
    ],
)
def test_a_number_is_read_whole_or_not_at_all(
    make: Make, output: Path, text: str, step: int, value: float | None
) -> None:
    append(output, f"{text}\n")
    source = make("stdout", only=["loss"])
    assert source.rows() == ([] if value is None else [{"step": step, "loss": value}])
    left_out = text.rpartition(" ")[2] if "," in text and value is None else ""
    assert source.notes() == (
        [f"output: left out {left_out}: its comma may be a decimal one, or separate thousands"] if left_out else []
    )


def test_decimal_commas_are_read_between_semicolons_alone(make: Make, run: Path) -> None:
    (run / "a.csv").write_text("step;loss;acc\n1;0,5;,25\n2;0,25;0.5\n3;0.125;1\n")
    source = make("csv")
    assert source.rows() == [{"step": 1, "loss": 0.5, "acc": 0.25}, {"step": 3, "loss": 0.125, "acc": 1.0}]
    assert "a.csv: 0,25 and 0.5: is the comma a decimal one?" in source.notes()[0]


def test_a_split_tells_them_apart(make: Make, output: Path, run: Path) -> None:
    append(output, LINES)
    reader = {"kind": "regex", "patterns": LOOSE, "split": {"val": "^validate"}}
    assert make(reader).rows() == [{"step": 10, "loss": 3.5}, {"step": 10, "val_loss": 3.25}]
    (run / "a.csv").write_text("phase,step,loss\ntrain,1,3\nval,1,2\n")
    rows = [{"step": 1, "train_loss": 3.0}, {"step": 1, "val_loss": 2.0}]
    assert make({"kind": "csv", "split": "phase"}).rows() == rows


# --- files that change ------------------------------------------------------------------------------------------------


def test_what_is_there_at_the_beginning_is_of_earlier_attempts(make: Make, output: Path) -> None:
    append(output, '{"step": 1, "loss": 3}\n{"step": 2, "lo')  # killed in the middle of a line
    source = make({"kind": "jsonl", "files": "output"})
    source.begin()
    append(output, '{"step": 2, "loss": 2}\n')
    assert source.rows() == [{"step": 2, "loss": 2.0}]


@pytest.mark.parametrize(("step", "expected"), [(None, []), (5, [7])])
def test_a_rewritten_file_repeats_steps_of_an_attempt_that_was_cut_off(
    make: Make, run: Path, step: int | None, expected: list[int]
) -> None:
    source, path = make("lightning"), run / "metrics.csv"
    table = "epoch,step,train_loss\n0,2,4.5\n0,5,4.25\n0,7,4\n"
    path.write_text(table)
    source.begin(step)
    assert source.rows() == []
    path.unlink()
    path.write_text(table.replace("train_loss", "train_loss,val_loss"))
    assert [row["step"] for row in source.rows()] == expected


def test_a_file_that_is_rewritten_or_replaced_is_read_anew(make: Make, run: Path) -> None:
    source, path, other = make("csv"), run / "a.csv", run / "other.tmp"
    for losses in ([3, 2], [9], [8, 7], [6, 5, *[4] * 500]):  # shorter, then longer
        path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses)))
        assert [row["loss"] for row in source.rows()] == losses
    other.write_text(path.read_text().replace("\n300,4\n", "\n300,1\n"))  # as long, with the same beginning and end
    other.replace(path)
    assert source.rows()[0] == {"step": 300, "loss": 1.0}


def test_files_come_in_the_order_of_their_numbers_and_may_appear_later(make: Make, run: Path) -> None:
    source = make("lightning")
    for version, step in ((10, 30), (2, 20)):
        (run / f"version_{version}").mkdir()
        (run / f"version_{version}" / "metrics.csv").write_text(f"step,loss\n{step},1\n")
    assert [row["step"] for row in source.rows()] == [20, 30]
    (run / "version_11").mkdir()
    (run / "version_11" / "metrics.csv").write_text("step,loss\n40,1\n")
    assert [row["step"] for row in source.rows()] == [40]


def test_a_document_is_read_when_it_is_whole_and_has_changed(make: Make, run: Path) -> None:
    source, path = make("json"), run / "result.json"
    path.write_text('[{"step": 1, "acc": 0.5}, {"st')
    assert source.rows() == []
    assert "result.json: invalid JSON" in source.seen()
    path.write_text('[{"step": 1, "acc": 0.5}, {"step": 2, "acc": 0.75}]')
    assert [row["acc"] for row in source.rows()] == [0.5, 0.75]
    assert source.rows() == []
    path.write_text('[{"step": 1, "acc": 0.5}, {"step": 2, "acc": 0.76}]')  # of the same size
    assert source.rows() == [{"step": 2, "acc": 0.76}]


def state(path: Path, *losses: float, second: int) -> None:
    history = [{"step": 5 * n, "eval_loss": loss, "epoch": n / 2} for n, loss in enumerate(losses, 1)]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"best_global_step": 999, "global_step": 5 * len(losses), "log_history": history}))
    os.utime(path, (second, second))


@pytest.mark.parametrize("seconds", [(1, 2, 3), (3, 1, 2)])
def test_the_state_with_the_most_steps_counts_whenever_it_was_copied(
    make: Make, run: Path, seconds: tuple[int, ...]
) -> None:
    state(run / "checkpoint-5" / "trainer_state.json", 3.0, second=seconds[0])
    state(run / "trainer_state.json", 3.0, 2.5, 2.25, second=seconds[1])
    state(run / "checkpoint-10" / "trainer_state.json", 3.0, 2.5, second=seconds[2])
    assert [row["eval_loss"] for row in make("hf").rows()] == [3.0, 2.5, 2.25]


# --- whose files ------------------------------------------------------------------------------------------------------


def test_links_out_of_the_folder_are_not_followed(make: Make, run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.csv").write_text("step,loss\n1,1\n")
    (run / "a.csv").symlink_to(tmp_path / "elsewhere" / "b.csv")
    (run / "folder").symlink_to(tmp_path / "elsewhere")
    source = make("csv")
    assert source.rows() == []
    (run / "real").mkdir()
    (run / "real" / "c.csv").write_text("step,loss\n2,2\n")
    (run / "latest.csv").symlink_to("real/c.csv")  # inside: one file, by two names
    assert source.rows() == [{"step": 2, "loss": 2.0}]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_what_else_was_seen_is_told(make: Make, run: Path, output: Path) -> None:
    assert make("nanogpt").seen("val_loss") == "no output was kept"
    output.write_text("hello\n" * 3408 + "loss: 3.5 lr=1e-3\nval/loss 2.5\n")
    source = make("nanogpt")
    assert source.rows() == []
    assert source.seen("val_loss") == "no val_loss in 3,410 lines; seen: loss, lr, val/loss"
    assert make("csv").seen() == f"no file matches **/*.csv in {run}, which has no files"
    (run / "log.csv").write_text("step,loss,lr\n1,2,3\n")
    source = make("csv")
    source.rows()
    assert source.seen("val_loss") == "no val_loss in 1 line of log.csv; seen: loss, lr"
    assert make("timm").seen() == f"no file matches **/summary.csv in {run}, which has log.csv"


def test_metrics_without_a_step_are_told(make: Make, run: Path) -> None:
    (run / "a.jsonl").write_text('{"loss": 2}\n')
    source = make("jsonl")
    assert source.rows() == []
    assert "no loss in 1 line of a.jsonl; seen: loss without a step (step, _step, " in source.seen("loss")
    assert make({"kind": "jsonl", "step": "counted"}).rows() == [{"step": 1, "loss": 2.0}]
    (run / "a.csv").write_text("round,loss\n1,2\n")
    with pytest.raises(MetricsError, match=r"no column step or .* among round, loss; set the column with `step: NAME`"):
        make("csv").rows()
    assert make({"kind": "csv", "step": "round"}).rows() == [{"step": 1, "loss": 2.0}]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_look_ends_though_there_is_more_and_the_next_ones_read_the_rest(make: Make, output: Path) -> None:
    steps = range(1, 3001)
    output.write_text("".join(f"step {step}: {'.' * 200} val loss 3.5\n" for step in steps))
    source, looks = make(PATTERN), list[list[int]]()
    while not looks or source.is_behind:
        looks.append([row["step"] for row in source.rows(limit_s=0)])
        append(output, "step 50000\n" * (len(looks) == 1))
    assert len(looks) > 2
    assert [step for look in looks for step in look] == [*steps]


def test_a_pattern_that_takes_too_long_is_named(make: Make, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ettsweep.patterns.time_limit.__wrapped__.__defaults__", (0.1,))
    output.write_text("a" * 40 + "!\n")
    pattern = r"step (?P<step>\d+)|(a+)+$|(?P<loss>b)"
    with pytest.raises(MetricsError, match=re.escape(f"pattern {pattern!r} has taken 0.1 s for a piece of text")):
        make(pattern).rows()
