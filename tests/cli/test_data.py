"""`ettsweep data text` as a user types it: what it prints, kills and Ctrl-C in the middle; and the doctor's view of it."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commandline import alive, at_a_terminal, ended, ettsweep, start, wait_for
from support.texts import TOPICS, paragraphs, small_tokenizer

from ettsweep.errors import DataMissingError
from ettsweep.trainer.tasks.text.corpus import open_corpus
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest

Options = list[object]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with text and a tokenizer."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(small_tokenizer().to_json())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL: Options = ["data", "text", "--input", "a.jsonl", "--out", "out", "--tokenizer", "tokenizer"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_command_says_what_it_has_made_and_what_comes_next(folder: Path) -> None:
    result = ettsweep(*SMALL, "--val-fraction", 0.1)
    manifest = read_manifest(folder / "out")
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    assert rows[1:] == [
        [name, str(counts.documents), str(counts.sentences)]
        for name, counts in (("training", manifest.train), ("validation", manifest.val))
    ]
    total = manifest.train.tokens + manifest.val.tokens
    assert re.search(rf"^{total:,} tokens in [\d.]+ s: [\d,]+ tokens/s on 1 process$", result.stderr, re.MULTILINE)
    assert f"out: corpus {manifest.digest}, vocabulary 408\n" in result.stderr
    (command,) = re.findall(r"next: `ettsweep (grid [^`]+)`", result.stderr)
    assert "3 runs would be submitted" in ettsweep(*shlex.split(command), "--strategy=ntk", "--dry-run").stderr
    output = ettsweep(*SMALL, "--val-fraction", 0.1, "--format", "json")
    assert "the corpus was complete already" in output.stderr
    data = json.loads(output.stdout)
    assert (data["digest"], data["n_vocab"]) == (manifest.digest, 408)
    assert [section["tokens"] for section in data["parts"]] == [manifest.train.tokens, manifest.val.tokens]


def test_hints_are_such_as_help(folder: Path) -> None:
    lines = [json.dumps({"text": f"{k}: {TOPICS[0][:400]}"}) for k in range(50)]
    (folder / "some.jsonl").write_text("\n".join([*lines, '{"text": " "}']))
    values: Options = ["data", "text", "--input", "some.jsonl", "--out", "some", "--tokenizer", "tokenizer"]
    fields = ettsweep(*values, "--val-fraction", 1e-9).stderr.splitlines()
    train = read_manifest(folder / "some").train
    mean = train.tokens / train.blocks
    assert 129 < mean < 256, "no length that is a power of two has room for it below 512"
    assert f"documents are short: blocks of up to 512 tokens have {mean:.0f} on average, the rest is padding" in fields
    assert "1 document without text was left out" in fields
    few = "validation has 1 block of up to 512 tokens, too few for a precise val_loss: use a larger --val-fraction"
    assert few in fields


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--input", "gone.txt", "--bpe-tokens", 300], 1, "ettsweep: --input gone.txt: no such file"),
        (["--input", "tokenizer", "--bpe-tokens", 300], 2, "tokenizer.json: no field 'text', it has version"),
        (["--input", "a.jsonl"], 2, "ettsweep: no tokenizer, or two: give either --tokenizer DIR"),
        (["--input", "a.jsonl", "--bpe-tokens", 300, "--out", "tokenizer"], 2, "--out tokenizer: is not empty"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_leaves_nothing(
    folder: Path, options: Options, code: int, message: str
) -> None:
    before = files(folder)
    result = ettsweep("data", "text", *([] if "--out" in options else ["--out", "out"]), *options, code=code)
    assert message in result.stderr
    assert files(folder) == before
    assert not (folder / "out").exists()


# --- a corpus that is there ---------------------------------------------------------------------------------------------


def test_a_corpus_that_was_made_otherwise_is_not_replaced_unasked(folder: Path) -> None:
    ettsweep(*SMALL)
    before, digest = files(folder / "out"), read_manifest(folder / "out").digest
    options = ("--val-fraction", 0.2)
    stderr = ettsweep(*SMALL, *options, code=2).stderr
    assert f"out has corpus {digest}, made with --val-fraction 0.005; runs that use it cannot resume" in stderr
    assert "ettsweep: no answer; pass --yes to skip this question" in stderr
    assert files(folder / "out") == before
    ettsweep(*SMALL, *options, "--yes")
    assert read_manifest(folder / "out").digest != digest
    assert "the corpus was complete already" in ettsweep(*SMALL, *options).stderr


def test_a_corpus_whose_text_has_changed_is_not_replaced_unasked(folder: Path) -> None:
    ettsweep(*SMALL)
    before, old = files(folder / "out"), read_manifest(folder / "out")
    with (folder / "a.jsonl").open("a") as text:
        text.write(json.dumps({"text": "A text that nobody had written before."}) + "\n")
    stderr = ettsweep(*SMALL, code=2).stderr
    assert f"out has corpus {old.digest}, made from files that have changed since" in stderr
    assert "use another --out to keep both" in stderr
    assert files(folder / "out") == before
    assert f"replaced corpus {old.digest}" in ettsweep(*SMALL, "--yes").stderr
    new = read_manifest(folder / "out")
    assert new.train.documents + new.val.documents == len(TOPICS) + 1


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that takes some seconds, in many files."""
    folder = tmp_path_factory.mktemp("long")
    for k in range(12):
        rows = paragraphs(300_000, 1000 * k).split("\n\n")
        pq.write_table(pa.table({"text": rows}), folder / f"{k}.parquet")  # a table is a part of its own
    return folder


@pytest.fixture
def long(folder: Path, long_text: Path) -> Options:
    return ["data", "text", "--input", long_text, "--tokenizer", "tokenizer", "--workers", 2]


def finished(out: Path) -> list[Path]:
    return list(out.glob(".ettsweep-cache/units/*.arrow"))


def children(process: "subprocess.Popen[str]") -> list[int]:
    lines = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in lines]


def deaf_to_ctrl_c(pid: int) -> bool:
    masks = re.findall(r"Sig(?:Blk|Ign):\t([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) & 1 << signal.SIGINT - 1 for mask in masks)


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(folder: Path, long: Options) -> None:
    out = folder / "killed"
    process = start(*long, "--out", "killed")
    wait_for(lambda: len(finished(out)) >= 3, "finished parts")
    workers = children(process)
    process.kill()
    process.communicate()
    assert len(workers) >= 2
    wait_for(lambda: not any(alive(pid) for pid in workers), "the processes to end with the command")
    count = len(finished(out))
    with pytest.raises(DataMissingError, match="tokenisation is not finished: run the same `ettsweep data text` again"):
        open_corpus(out)
    assert f"{count} of 12 parts were finished before" in ettsweep(*long, "--out", "killed").stderr
    ettsweep(*long, "--out", "undisturbed")
    assert open_corpus(out).digest == read_manifest(folder / "undisturbed").digest
    assert {path.name for path in out.iterdir()} == {path.name for path in (folder / "undisturbed").iterdir()}


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_command_which_then_goes_on(folder: Path, long: Options) -> None:
    process = start(*long, "--out", "out")
    wait_for(lambda: len(finished(folder / "out")) >= 2, "finished parts")
    worker = max(children(process))  # the lowest is what counts shared resources
    os.kill(worker, signal.SIGKILL)
    ended_result = ended(process, code=1)
    assert ended_result.stderr == (
        "ettsweep: a process was killed, perhaps for lack of memory: try fewer --workers\n"
        f"{len(finished(folder / 'out'))} of 12 parts are finished and kept: run the same command again to continue\n"
    )


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_says_so(folder: Path, long: Options) -> None:
    out = folder / "out"
    process = start(*long, "--out", "out", start_new_session=True)
    wait_for(lambda: len(finished(out)) >= 2, "finished parts")
    assert len(children(process)) >= 2
    assert all(deaf_to_ctrl_c(pid) for pid in children(process)), "they would print tracebacks"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    ended_result = ended(process, code=130)
    message = f"ettsweep: interrupted; {len(finished(out))} of 12 parts are finished and kept: run the same command"
    assert ended_result.stderr.startswith(message)
    assert ended_result.stderr.count("\n") == 1


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_only(folder: Path) -> None:
    assert "\x1b" not in ettsweep(*SMALL).stderr
    code, observed = at_a_terminal(*SMALL, "--val-fraction", 0.1, answer="y")
    assert code == 0
    assert "replace it? [y/N]" in observed
    assert "tokenising" in observed
    assert "validation" in observed
