"""`ettsweep init`: its questions, what it refuses, and that what it writes trains."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.commandline import ETTSWEEP, PATIENCE_S, Call, ettsweep, status, wait_for
from support.pictures import CLASSES, COUNTS, write_folders
from support.texts import TOPICS, small_tokenizer

from ettsweep.sweep.gridfile import load_request

TINY = ("--model", "8x1", "--strategy", "ntk", "--lr-range", "0:1", "--wd-range", "fixed", "--seeds", "0")


def trained(grid: Path, results: Path, *options: object) -> list[float]:
    """Train what a grid asks for, to its end; return the best scores."""
    ettsweep("grid", "--grid", grid, "--follow", "--results", results, "--launch-set", "slots=1", *options)
    rows = status(results).values()
    assert {row["state"] for row in rows} == {"done"}
    return [row["best_score"] for row in rows]


def typed_in(folder: Path, arguments: list[str], answers: list[str]) -> tuple[int, str]:
    """Return how a command ended at a terminal where somebody answers its questions, and then types Ctrl-C."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([ETTSWEEP, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder)
    os.close(theirs)
    seen, answered, waiting = b"", 0, iter(answers)
    with contextlib.suppress(OSError):  # the other end is closed
        while more := os.read(ours, 2**16):
            seen += more
            if seen[answered:].rstrip().endswith(b"]:"):
                answered, answer = len(seen), next(waiting, None)
                if answer is None:
                    wait_for(lambda: asleep(process.pid), "the question to wait for its answer")
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(ours, answer.encode())
    os.close(ours)
    return process.wait(PATIENCE_S), seen.decode().replace("\r", "")


def asleep(pid: int) -> bool:
    """Say whether a process waits: Python misses a signal that comes as it is about to read what is typed."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_five_answers_make_a_file_that_asks_for_them(tmp_path: Path) -> None:
    answers = ["digits\n", "24x2\n", "ntk,mup\n", "-2:1,-1:1:0.5\n", "4\n"]
    code, seen = typed_in(tmp_path, ["init"], answers)
    assert code == 0, seen
    assert "wrote vit-24x2-digits.yaml: 80 runs of 48 steps to begin with" in " ".join(seen.split())
    assert "ettsweep grid --grid vit-24x2-digits.yaml" in seen
    request = load_request(tmp_path / "vit-24x2-digits.yaml")
    assert (request.recipe.model.width, request.recipe.model.depth, request.recipe.model.heads) == (24, 2, 3)
    assert list(request.centres) == ["ntk", "mup"]
    assert request.lr.offsets() == [-2, -1, 0, 1]
    assert request.wd.offsets() == [-1, -0.5, 0, 0.5, 1]
    assert request.recipe.schedule.total_steps == 4 * 12


def test_an_answer_that_makes_no_sense_is_asked_again(tmp_path: Path) -> None:
    answers = [
        "digitz\n",
        "digits\n",
        "vit-b16\n",
        "vit-digits\n",
        "nkt\n",
        "\n",
        "wide\n",
        "\n",
        "-1\n",
        "long\n",
        "1\n",
    ]
    code, seen = typed_in(tmp_path, ["init"], answers)
    assert "did you mean 'digits'?" in seen
    assert "task digits has 8, got 224" in " ".join(seen.split())
    assert "did you mean 'ntk'?" in seen
    assert "low:high, low:high:step or fixed is expected" in " ".join(seen.split())
    assert "a number above 0 is expected, got '-1'" in seen
    assert "a number above 0 is expected, got 'long'" in seen
    assert code == 0
    assert load_request(tmp_path / "vit-digits.yaml").recipe.schedule.total_steps == 12


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    code, seen = typed_in(tmp_path, ["init"], ["digits\n"])
    assert code != 0
    assert "Traceback" not in seen
    assert "nobody answered" not in seen
    assert not list(tmp_path.iterdir())


def test_where_nobody_answers_the_options_are_named_that_are_left(call: Call, tmp_path: Path) -> None:
    told = call("init", "--task", "digits", "--lr-range", "fixed", code=2).err
    assert "nobody answered: give --model, --strategy, --wd-range, --epochs, or --yes for the defaults" in told
    told = call("init", "--task", "digits", stdin="8x1\nntk\n", code=2).err
    assert "nobody answered: give --lr-range, --wd-range, --epochs, or --yes" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--task digitz", "unknown task 'digitz'; did you mean 'digits'?"),
        (
            "--task digits --model vit-digit",
            "unknown model 'vit-digit'; did you mean 'vit-digits'? Known: vit-digits; or",
        ),
        ("--model vit-s61", "did you mean 'vit-s16'?"),
        ("--task text --model vit-b16", "task text has text, which vit cannot read; an encdec is expected"),
        ("--model 0x2", "model: width: input should be greater than or equal to 1"),
        ("--strategy mpu", "unknown strategy 'mpu'; did you mean 'mup'?"),
        ("--lr-range 1:0", "--lr-range: empty range: 1 is above 0"),
        ("--wd-range=-1:1:0.3", "-1 is no multiple of the step 0.3"),
        ("--epochs 0", "--epochs: a number above 0 is expected, got 0"),
        ("--epochs nan", "Invalid value for '--epochs'"),
        ("--epochs 2 --steps 9", "--epochs and --steps both say how long a run is"),
        ("--task pydoc --epochs 3", "the epochs of task pydoc are as long as its data; give steps instead"),
        ("--batch-size 800", "batch_size: 800 is more than the 797 training images"),
        ("--seeds 1,1", "seeds: [1, 1] repeats a seed"),
        ("--seeds x", "--seeds: whole numbers with commas are expected"),
        ("--data . --task digits", "--data: task digits has its data from a package"),
        ("--out no-sweep:.yaml", "--out 'no-sweep:'"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(
    options: str, message: str, call: Call, tmp_path: Path
) -> None:
    assert message in " ".join(call("init", "--yes", *options.split(), code=2).err.split())
    assert not list(tmp_path.iterdir())


def test_data_that_are_not_there_are_refused(call: Call, tmp_path: Path) -> None:
    told = call("init", "--yes", "--task", "imagenet", "--data", "nowhere", code=1).err
    assert "nowhere does not exist" in told
    write_folders(tmp_path / "few")
    told = call("init", "--yes", "--task", "cifar10", "--data", "few", code=1).err
    assert "3 classes, the model has 10" in told
    shutil.rmtree(tmp_path / "few")
    told = call("init", "--yes", "--task", "text", "--data", "nowhere", code=1).err
    assert "`ettsweep data text --input FILES --out DIR` makes one" in told
    assert not list(tmp_path.iterdir())


def test_data_may_be_named_later(tmp_path: Path) -> None:
    code, seen = typed_in(tmp_path, ["init", "--model", "vit-s16"], ["\n", "nowhere\n", "\n", "\n", "\n", "\n"])
    assert code == 0
    assert "nowhere does not exist" in " ".join(seen.split())
    assert "[later]:" in seen
    assert "ettsweep doctor --grid vit-s16-imagenet.yaml --data PATH" in seen
    assert load_request(tmp_path / "vit-s16-imagenet.yaml").data is None


def test_a_file_that_is_there_is_written_over_only_when_that_is_said(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    assert "mine.yaml is there already: --force writes over it" in call("init", "--yes", "--out", path, code=2).err
    assert "--force" in call("init", "--out", path, code=2).err  # before anything is asked
    assert path.read_text() == "kept"
    call("init", "--yes", "--out", path, "--force")
    assert load_request(path).recipe == load_request(Path(__file__).parents[2] / "grids" / "vit-digits.yaml").recipe
    assert "vit-digits.yaml" in call("init", "--yes").err
    assert "vit-digits.yaml is there already" in call("init", "--yes", code=2).err


def test_somebody_at_a_terminal_is_asked_before_a_file_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    defaults = [*TINY, "--task", "digits", "--epochs", "1"]
    for answer, code in (("n\n", 1), ("y\n", 0)):
        ours, theirs = pty.openpty()
        command = [ETTSWEEP, "init", "--out", str(path), *defaults]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.write(ours, answer.encode())
        with contextlib.suppress(OSError):
            while os.read(ours, 2**16):
                pass
        os.close(ours)
        assert process.wait(PATIENCE_S) == code
        assert (path.read_text() == "kept") is (code == 1)


def test_a_folder_that_is_not_there_is_told(call: Call) -> None:
    assert "choose another folder with --out" in call("init", "--yes", "--out", "none/mine.yaml", code=1).err


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_digits_trains(call: Call, results: Path, tmp_path: Path) -> None:
    call("init", "--task", "digits", *TINY, "--epochs", 1, "--out", "first.yaml")
    scores = trained(tmp_path / "first.yaml", results)
    assert len(scores) == 2
    assert all(0 < score < 2.4 for score in scores)  # ln(10) is 2.30


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_the_documentation_of_python_trains(call: Call, results: Path, tmp_path: Path) -> None:
    call("init", "--task", "pydoc", *TINY, "--steps", 6, "--batch-size", 4)
    assert len(trained(tmp_path / "encdec-8x1-pydoc.yaml", results)) == 2


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_images_of_ones_own_fits_them_and_trains(call: Call, results: Path, tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data")
    call("init", "--task", "imagenet", "--data", data, *TINY, "--epochs", 1, "--out", "own.yaml")
    recipe = load_request(tmp_path / "own.yaml").recipe
    told = recipe.model_dump()
    assert told["model"]["classes"] == len(CLASSES)
    assert (told["task"]["train_size"], told["task"]["val_size"]) == tuple(n * len(CLASSES) for n in COUNTS.values())
    assert recipe.batch_size == 2  # a tenth of 36 images, as a power of two
    sets = ["--set", "model.image_size=32", "--set", "precision=fp32", "--set", "batch_size=12"]
    assert len(trained(tmp_path / "own.yaml", results, *sets)) == 2


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_text_of_ones_own_fits_it_and_trains(
    call: Call, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(small_tokenizer().to_json())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    call("data", "text", "--input", "a.jsonl", "--out", "out", "--tokenizer", "tokenizer", "--val-fraction", 0.1)
    call("init", "--task", "text", "--data", "out", *TINY, "--steps", 6, "--batch-size", 4, "--out", "own.yaml")
    request = load_request(tmp_path / "own.yaml")
    assert request.recipe.model_dump()["model"]["vocabulary"] == 408
    assert request.data == str(tmp_path / "out")
    assert len(trained(tmp_path / "own.yaml", results)) == 2


@pytest.mark.parametrize("task", ["imagenet", "cifar10", "cifar100", "text"])
def test_what_is_written_without_data_says_how_to_name_them(task: str, call: Call, tmp_path: Path) -> None:
    told = call("init", "--yes", "--task", task, "--out", "later.yaml").err
    assert "`ettsweep grid --grid later.yaml --data PATH`" in told
    if task != "text":  # whose runs are bound to the text at hand
        assert "sweep later would be made" in call("grid", "--grid", "later.yaml", "--dry-run").err
    assert "--data" in call("grid", "--grid", "later.yaml", code=1).err
