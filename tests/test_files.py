"""Whole files under kills, cut lines, strict JSON."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.claims import python

from ettsweep.errors import CorruptError
from ettsweep.files import append_text, dumps, expand_home, read_json, read_lines, write_atomic, write_counter
from ettsweep.run import finite

REWRITE_UNDER_KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from ettsweep.files import write_atomic

path, rng, seen = Path(sys.argv[1]), random.Random(0), set()
contents = [letter * 300_000 for letter in (b"a", b"b")]
for life in range(60):
    written, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        while True:
            for content in contents if life % 2 else contents[::-1]:
                write_atomic(path, content)
                os.write(tell, b".")
    for _ in range(rng.randint(1, 3)):
        os.read(written, 1)
    time.sleep(rng.uniform(0, 0.005))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(written)
    os.close(tell)
    seen.add(contents.index(path.read_bytes()))
print(len(seen))
"""


def test_file_is_the_old_or_the_new_one_after_a_kill_at_any_instant(tmp_path: Path) -> None:
    assert python(REWRITE_UNDER_KILLS, tmp_path / "file") == "2\n", "both contents were met"


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def half(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("the writer broke")

    with pytest.raises(RuntimeError):
        write_atomic(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.rglob("*file*")) == [path]


def test_exclusive_write_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_atomic(path, "first", exclusive=True)
    assert not write_atomic(path, "second", exclusive=True)
    assert path.read_text() == "first"
    assert list(tmp_path.rglob("*file*")) == [path]


@pytest.mark.parametrize("broken", ["{nonsense}\n", "[2]\n", "\x00\x00\n", '{"step": 2', '{"step": 2}'])
def test_nothing_is_read_from_a_broken_or_a_cut_line_on(tmp_path: Path, broken: str) -> None:
    """A line counts once it has its end."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{broken}' + '{"step": 3}\n' * broken.endswith("\n"))
    assert read_lines(path) == [{"step": 1}]


def test_json_never_holds_nan() -> None:
    line = {"step": 3, "loss": float("nan"), "grad_norm": float("-inf"), "lr": 0.5}
    assert finite(line) == {"step": 3, "loss": None, "grad_norm": None, "lr": 0.5, "nonfinite": True}
    assert finite({"step": 3, "loss": 1e308}) == {"step": 3, "loss": 1e308}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"loss": float("nan")})


@pytest.mark.parametrize("path", ["~", "~/x y", "~root/a/~b", "a/~/b"])
def test_home_is_expanded_as_by_a_shell(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of me")
    by_shell = subprocess.run(["bash", "-c", f"printf %s {path.replace(' ', chr(92) + ' ')}"], capture_output=True)
    assert expand_home(path) == by_shell.stdout.decode()


def refuses_to_be_written(path: Path, kind: str) -> None:
    for write in (lambda: append_text(path, "text"), lambda: write_counter(path, 1)):
        with pytest.raises(OSError, match=f"it is {kind}, not a file"):
            write()


@pytest.mark.parametrize(("kind", "make"), [("a FIFO", os.mkfifo), ("a folder", Path.mkdir)])
def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path, kind: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(CorruptError, match=f"x: cannot be read: it is {kind}, not a file"):
        read_json(path)
    assert read_lines(path) == []
    refuses_to_be_written(path, kind)


def test_a_link_is_read_and_never_written_through(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.write_text('{"a": 1}')
    link.symlink_to(mine)
    assert read_json(link) == {"a": 1}
    refuses_to_be_written(link, "a link")
    write_atomic(link, "new")
    assert (mine.read_text(), link.is_symlink()) == ('{"a": 1}', False)
