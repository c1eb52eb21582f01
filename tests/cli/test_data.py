"""`ettsweep data text` as a user types it: what it prints, kills and Ctrl-C in the middle."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from support.commandline import PATIENCE_S, alive, ended, ettsweep, start, wait_for
from support.pictures import wait_for_reader
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


SMALL: Options = ["data", "text", "--input", "a.jsonl", "--out", "out", "--tokenizer", "tokenizer"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_command_says_what_it_has_made_and_what_comes_next(folder: Path) -> None:
    result = ettsweep(*SMALL, "--val-fraction", 0.1)
    manifest = read_manifest(folder / "out")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["part", "documents", "sentences", "tokens", "blocks", "512", "text", "bytes"]
    for row, name, counts in ((rows[1], "training", manifest.train), (rows[2], "validation", manifest.val)):
        assert row == [
            name,
            *map(str, (counts.documents, counts.sentences, counts.tokens, counts.blocks, counts.text_bytes)),
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


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--input", "gone.txt", "--bpe-tokens", 300], 1, "ettsweep: --input gone.txt: does not exist"),
        (["--input", "a.jsonl"], 2, "ettsweep: no tokenizer, or two: give either --tokenizer DIR"),
        (
            ["--input", "a.jsonl", "--bpe-tokens", 300, "--text-field", "body"],
            2,
            "a.jsonl:1: no field 'body', it has text",
        ),
        (["--input", "a.jsonl", "--tokenizer", "gone"], 1, "ettsweep: tokenizer gone: No such file or directory"),
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
    before = files(folder / "out")
    digest = read_manifest(folder / "out").digest
    options: Options = [*SMALL, "--val-fraction", 0.2, "--documents", "line"]
    stderr = ettsweep(*options, code=2).stderr
    mode = "--val-fraction 0.005 --documents blank-line"
    assert f"out holds corpus {digest}, made with {mode}; runs that use it cannot resume" in stderr
    assert "ettsweep: no answer; --yes skips this question" in stderr
    assert files(folder / "out") == before
    ettsweep(*options, "--yes")
    assert read_manifest(folder / "out").digest != digest
    ettsweep(*options)  # the same again


def test_a_corpus_whose_text_has_changed_is_not_replaced_unasked(folder: Path) -> None:
    changed = json.dumps({"text": "A text that nobody had written before."}) + "\n"
    ettsweep(*SMALL)
    before, old = files(folder / "out"), read_manifest(folder / "out")
    with (folder / "a.jsonl").open("a") as text:
        text.write(changed)
    stderr = ettsweep(*SMALL, code=2).stderr
    assert f"out holds corpus {old.digest}, made from text that has changed since" in stderr
    assert "use another --out to keep both" in stderr
    assert "ettsweep: no answer; --yes skips this question" in stderr
    assert before.items() <= files(folder / "out").items()
    assert open_corpus(folder / "out").digest == old.digest
    stderr = ettsweep(*SMALL, "--yes").stderr
    assert f"replaces corpus {old.digest}" in stderr
    assert "the corpus was complete already" in stderr, "what was tokenised before the question is kept"
    assert (
        read_manifest(folder / "out").train.documents + read_manifest(folder / "out").val.documents == len(TOPICS) + 1
    )
    assert "holds corpus" not in ettsweep(*SMALL).stderr


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def long(folder: Path) -> Options:
    """The command for text that takes some seconds, in many parts."""
    (folder / "long.txt").write_text(paragraphs(3_000_000))
    options: Options = ["--tokenizer", "tokenizer", "--shard-mib", 0.1, "--workers", 2]
    return ["data", "text", "--input", "long.txt", *options]


def records(out: Path) -> list[Path]:
    return [path for path in out.glob("shards/*.json") if not path.name.startswith("tokenizer-")]


def children(process: "subprocess.Popen[str]") -> list[int]:
    lines = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in lines]


def deaf_to_ctrl_c(pid: int) -> bool:
    masks = re.findall(r"Sig(?:Blk|Ign):\t([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) & 1 << signal.SIGINT - 1 for mask in masks)


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(folder: Path, long: Options) -> None:
    out = folder / "killed"
    for least in (3, 8):
        process = start(*long, "--out", "killed")
        wait_for(lambda least=least: len(records(out)) >= least, "finished parts")
        workers = children(process)
        process.kill()
        process.communicate()
        assert len(workers) >= 2
        wait_for(
            lambda workers=workers: not any(alive(pid) for pid in workers), "the processes to end with the command"
        )
    count = len(records(out))
    assert not (out / "manifest.json").exists()
    with pytest.raises(DataMissingError, match="tokenisation is not finished: run the same `ettsweep data text` again"):
        open_corpus(out)
    left = f".{'0' * 24}-0.bin.{'0' * 32}.tmp"
    (out / "shards" / left).write_bytes(b"what a kill in the middle of a file leaves")
    result = ettsweep(*long, "--out", "killed")
    search_result = re.search(r"(\d+) of (\d+) shards were finished before", result.stderr)
    assert search_result is not None
    assert int(search_result[1]) >= count >= 8
    ettsweep(*long, "--out", "undisturbed")
    assert files(out) == files(folder / "undisturbed")
    assert open_corpus(out).digest == read_manifest(folder / "undisturbed").digest


def test_ctrl_c_keeps_what_is_finished_and_says_so(folder: Path, long: Options) -> None:
    out = folder / "out"
    process = start(*long, "--out", "out", start_new_session=True)
    wait_for(lambda: len(records(out)) >= 2, "finished parts")
    assert len(children(process)) >= 2
    assert all(deaf_to_ctrl_c(pid) for pid in children(process)), "they would print tracebacks"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    ended_result = ended(process, code=130)
    search_result = re.search(
        r"ettsweep: interrupted; (\d+) shards are finished and kept: run the same command", ended_result.stderr
    )
    assert search_result is not None
    assert int(search_result[1]) == len(records(out)) >= 2
    assert ended_result.stderr.count("\n") == 1
    assert not list(out.rglob("*.tmp"))


def test_ctrl_c_before_anything_is_finished_leaves_nothing(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    process = start("data", "text", "--input", "pipe.txt", "--out", "out", "--bpe-tokens", 300, start_new_session=True)
    descriptor = wait_for_reader(folder / "pipe.txt")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    os.close(descriptor)
    assert process.returncode in (130, -signal.SIGINT), (out, err)
    assert not (folder / "out").exists()
