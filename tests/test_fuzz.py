"""A results folder in which anything may be damaged: commands say so and go on, and no score is wrong.

`make fuzz` does it 2,000 times; FUZZ=N does it N times, and FUZZ_FROM=K begins with the K-th damage.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.claims import claimed, train
from support.commandline import ettsweep
from support.undrawn import leave_undrawn

from ettsweep.processes import boot_id
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir, runs_dir

FROZEN = Path(__file__).with_name("frozen") / "results.tar.xz"
COUNT, FIRST = int(os.environ.get("FUZZ", "100")), int(os.environ.get("FUZZ_FROM", "0"))
AT_ONCE = 25
PATIENCE_S = 120

ABSURD = [
    *("NaN", "Infinity", "-Infinity", "1e308", "-1e308", "1e999", "1" + "0" * 400, "-1", "0", "0.5", "1e-320", "true"),
    *("null", '""', '"x"', '"\\u0000"', '"\\u001b[31m"', '"../../etc"', "[]", "{}", '{"a": 1}'),
    *("[" * 5000, '{"a":' * 5000, "!!bool x", "!!timestamp x", "!!int ''"),
]
"""Values that stand for a number, a text or an object of a file."""

STRAYS = ("²", "٣", "0001", "-1", "x.yaml", "0009.yaml", ".x.tmp", "0002", "report", "a\nb", "99999999999999999999")
"""Names of files and folders that nobody made."""


@pytest.fixture(scope="module")
def old_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of an earlier version, with runs in all states, some of whose sweeps have a note or are archived.

    One run trains on, in the name of this process.
    """
    folder = tmp_path_factory.mktemp("fuzz")
    with tarfile.open(FROZEN) as archive:
        archive.extractall(folder, filter="data")
    results = folder / "results"
    for path in results.rglob("claim.json"):
        here = f'"host": {json.dumps(socket.gethostname())}, "boot_id": {json.dumps(boot_id())}'
        path.write_text(path.read_text().replace('"host": "HERE", "boot_id": "before"', here))
    ettsweep("sweeps", "note", "grid-2", "damaged soon", "--results", results)
    ettsweep("sweeps", "archive", "grid", "--results", results)
    rows = json.loads(ettsweep("status", "--results", results, "--format", "json", code=None).stdout)
    (missing,) = (row["run"] for row in rows if row["state"] == "missing")
    attempt = claimed(RunDir(runs_dir(results) / missing))
    train(attempt, 1, 8)
    attempt.append(attempt.timings_path, [{"step": 8, "progress": 0.5, "wall_s": 4.0}])
    return results


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave figures empty, and let nothing of this machine be seen."""
    leave_undrawn(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def damage(rng: random.Random, results: Path) -> tuple[Path, str]:
    """Damage one file, each kind of file as likely as any other, or add a stray; return which, and how."""
    files = sorted(path for path in results.rglob("*") if path.is_file())
    if rng.random() < 0.1:
        folders = sorted(path for path in [results, *results.rglob("*")] if path.is_dir())
        stray = rng.choice(folders) / rng.choice(STRAYS)
        if not stray.exists():
            if rng.random() < 0.5:
                stray.mkdir()
            else:
                stray.write_bytes(b"stray")
            return stray, "a stray"
    kinds = sorted({(path.relative_to(results).parts[0], kind(path)) for path in files})
    top, item = rng.choice(kinds)
    path = rng.choice([path for path in files if path.is_relative_to(results / top) and kind(path) == item])
    data = path.read_bytes()
    contents: dict[str, Callable[[], bytes]] = {
        "an absurd value": lambda: absurd(rng, data),
        "flipped bytes": lambda: flipped(rng, data),
        "cut": lambda: data[: rng.randrange(len(data) + 1)],
        "emptied": lambda: b"",
        "noise": lambda: rng.randbytes(rng.randrange(300)),
        "doubled": lambda: data + data,
        "a line more": lambda: data + rng.choice(ABSURD).encode() + b"\n",
        "another file": lambda: rng.choice(files).read_bytes(),
    }
    others = {
        "a folder": path.mkdir,
        "a link to itself": lambda: path.symlink_to(path),
        "a FIFO": lambda: os.mkfifo(path),
        "a socket": lambda: make_socket(path),
        "a link to a device": lambda: path.symlink_to("/dev/zero"),
        "a link to a FIFO": lambda: linked_fifo(path),
    }
    (method,) = rng.choices([*contents, "deleted", *others], [6] + 14 * [1])
    if method in contents:
        path.write_bytes(contents[method]())
        return path, method
    path.unlink()
    if method in others:
        others[method]()
    return path, method


def make_socket(path: Path) -> None:
    """Make a socket, whose name must be short, from within its folder."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def linked_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def kind(path: Path) -> str:
    return path.suffix if path.suffix == ".yaml" else path.name


def flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b" ")
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def absurd(rng: random.Random, data: bytes) -> bytes:
    """Put an absurd value where a value of JSON or YAML stands."""
    text = data.decode(errors="replace")
    values = [i + 2 for i in range(len(text) - 2) if text[i : i + 2] == ": "]
    if not values:
        return flipped(rng, data)
    start = rng.choice(values)
    end = next((i for i in range(start, len(text)) if text[i] in ",}\n"), len(text))
    return (text[:start] + rng.choice(ABSURD) + text[end:]).encode()


def seen(results: Path, out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what status and verify say, after a report that must end too."""
    status = ettsweep("status", "--results", results, "--format", "json", code=None)
    verdicts = ettsweep("verify-optimum", "--dry-run", "--results", results, "--format", "json", code=None)
    reported = ettsweep("report", "--results", results, "--out", out, code=None)
    result = ettsweep("sweeps", "--results", results, code=None)
    assert {status.returncode, verdicts.returncode, reported.returncode, result.returncode} <= {0, 1, 2}
    rows = json.loads(status.stdout) if status.stdout else []
    data = json.loads(verdicts.stdout) if verdicts.stdout else []
    return {row["run"]: row for row in rows}, {f"{row['sweep']} {row['family']}": row for row in data}


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """End what hangs."""

    def hangs(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def undamaged(old_results: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return seen(old_results, tmp_path_factory.mktemp("report"))


def running(results: Path) -> Attempt:
    """Return the attempt that trains on."""
    (path,) = (
        path for path in results.rglob("claim.json") if json.loads(path.read_text())["process"]["pid"] == os.getpid()
    )
    return Attempt(path.parents[2], int(path.parent.name))


@pytest.mark.slow
def test_no_command_waits_for_a_fifo(old_results: Path, tmp_path: Path) -> None:
    run, faults = running(old_results).run.name, []
    commands = [
        *(("status",), ("sweeps",), ("show", run), ("logs", run), ("clean", "--dry-run")),
        *(("verify-optimum", "--dry-run"), ("grid", "--grid", "results/sweeps/grid-2/0001.yaml", "--dry-run")),
        *(("report", "--out", tmp_path / "report"), ("cancel", run), ("sweeps", "note", "grid-3", "note")),
    ]
    paths = {kind(path): path for path in sorted(old_results.rglob("*")) if path.is_file()}
    own = {kind(path): path for path in sorted((old_results / "runs" / run).rglob("*")) if path.is_file()}
    for path in (paths | own).values():
        results = tmp_path / "results"
        shutil.copytree(old_results, results, symlinks=True)
        fifo = results / path.relative_to(old_results)
        fifo.unlink()
        os.mkfifo(fifo)
        for command in commands:
            try:
                with patience(), contextlib.chdir(tmp_path):
                    ettsweep(*command, "--results", results, code=None)
            except Exception as error:
                faults.append(f"{path.name}: {command[0]}: {type(error).__name__}: {str(error)[:200]}")
        shutil.rmtree(results)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: value[:12])
def test_no_number_of_a_run_that_trains_on_stops_its_folder(old_results: Path, value: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(old_results, results, symlinks=True)
    attempt = running(results)
    claim = json.loads(attempt.claim_path.read_text())
    attempt.claim_path.write_text(json.dumps(claim)[:-1] + f', "heartbeat_s": {value}}}')
    line = f'{{"step": 12, "val_loss": {value}, "loss": {value}, "progress": {value}, "wall_s": {value}}}\n'
    for path in (attempt.timings_path, attempt.metrics_path):
        path.write_text(path.read_text() + line)
    rows = json.loads(ettsweep("status", "--results", results, "--format", "json", code=None).stdout)
    (row,) = (row for row in rows if row["run"] == attempt.run.name)
    assert row["progress"] is None or 0 <= row["progress"] <= 1
    assert len(rows) > 1, "those beside it are listed too"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, AT_ONCE))
def test_whatever_is_damaged_commands_go_on_and_no_score_is_wrong(
    old_results: Path, undamaged: tuple[dict[str, Any], dict[str, Any]], first: int, tmp_path: Path
) -> None:
    before, verdicts = undamaged
    assert {row["state"] for row in before.values()} >= {"done", "diverged", "failed", "interrupted", "running"}
    faults = []
    for number in range(first, min(first + AT_ONCE, FIRST + COUNT)):
        results = tmp_path / "results"
        shutil.copytree(old_results, results, symlinks=True)
        path, method = damage(random.Random(number), results)
        text = f"{number}: {path.relative_to(results)} {method}"
        try:
            with patience():
                rows, judged = seen(results, tmp_path / "report")
        except Exception as error:
            faults.append(f"{text}: {type(error).__name__}: {str(error)[:200]}")
        else:
            for run, row in rows.items():
                get_result = before.get(run)
                if (
                    row["state"] in ("done", "diverged")
                    and get_result
                    and row["best_score"] != get_result["best_score"]
                ):
                    faults.append(f"{text}: {run} scores {row['best_score']}, not {get_result['best_score']}")
            if path.parts[len(results.parts)] != "sweeps":
                for key, row in judged.items():
                    was = verdicts[key]
                    # of as many runs: one whose spec is damaged is left out, and the mean is that of the others
                    same = (row["lr"], row["wd"], row["runs"]) == (was["lr"], was["wd"], was["runs"])
                    if same and None not in (row["score"], was["score"]) and row["score"] != was["score"]:
                        faults.append(f"{text}: {key} scores {row['score']}, not {was['score']}")
        shutil.rmtree(results)
    assert not faults, "\n".join(faults)
