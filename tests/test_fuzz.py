"""A results folder in which anything may be damaged, and a machine that lacks anything: commands say so and go on.

`make fuzz` damages 2,000 times, and has every command meet every condition; FUZZ=N damages N times, and N / 5 commands
meet a condition. FUZZ_FROM=K begins with the K-th damage.
"""

import contextlib
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.commandline import ETTSWEEP, ettsweep, write_fake_grid
from support.commandline import PATIENCE_S as COMMAND_PATIENCE_S
from support.recorded_folder import write_recorded

from ettsweep import cli
from ettsweep.runs.folder import runs_dir

COUNT, FIRST = int(os.environ.get("FUZZ", "20")), int(os.environ.get("FUZZ_FROM", "0"))
AT_ONCE = 25
PATIENCE_S = 120

ABSURD = [
    *("NaN", "Infinity", "-1e308", "1e999", "1" + "0" * 400, "-1", "0", "0.5", "true", "null", '""', '"x"'),
    *('"\\u0000"', '"\\u001b[31m"', '"../../etc"', "[]", "{}", '{"a": 1}', "[" * 5000, "!!bool x", "!!int ''"),
]
"""Values that stand for a number, a text or an object of a file."""

STRAYS = ("²", "0001", "-1", "x.yaml", "0009.yaml", ".x.tmp", "0002", "report", "a\nb", "99999999999999999999")
"""Names of files and folders that nobody made."""


@pytest.fixture(scope="module")
def old_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recorded folder, with runs in most states."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_recorded(folder)
    return folder / "results"


@pytest.fixture(autouse=True)
def alone(undrawn: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave figures empty, and let nothing of this machine be seen."""
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
        "a link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    methods = [*contents, "deleted", *others]
    (method,) = rng.choices(methods, [6] + (len(methods) - 1) * [1])
    if method in contents:
        path.write_bytes(contents[method]())
        return path, method
    path.unlink()
    if method in others:
        others[method]()
    return path, method


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


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, AT_ONCE))
def test_whatever_is_damaged_commands_go_on_and_no_score_is_wrong(
    old_results: Path, undamaged: tuple[dict[str, Any], dict[str, Any]], first: int, tmp_path: Path
) -> None:
    before, verdicts = undamaged
    assert {row["state"] for row in before.values()} >= {"done", "diverged", "failed", "interrupted"}
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
                score = before[run]["best_score"] if run in before else row["best_score"]
                if row["state"] in ("done", "diverged") and row["best_score"] != score:
                    faults.append(f"{text}: {run} scores {row['best_score']}, not {score}")
            if path.parts[len(results.parts)] != "sweeps":
                for key, row in judged.items():
                    was = verdicts[key]
                    # of as many runs: one whose spec is damaged is left out, and the mean is that of the others
                    same = (row["lr"], row["wd"], row["runs"]) == (was["lr"], was["wd"], was["runs"])
                    if same and None not in (row["score"], was["score"]) and row["score"] != was["score"]:
                        faults.append(f"{text}: {key} scores {row['score']}, not {was['score']}")
        shutil.rmtree(results)
    assert not faults, "\n".join(faults)


# --- what a command is started with -----------------------------------------------------------------------------------

COMMANDS = {
    "init": "init --out new.yaml",
    "grid": "grid {grid} --follow --launch-set slots=1",
    "search": "search {grid} --trials 2 --follow --launch-set slots=1",
    "verify-optimum": "verify-optimum --dry-run",
    "seeds": "seeds --dry-run",
    "report": "report --out report --optuna journal.log",
    "status": "status",
    "watch": "watch -s grid",
    "logs": "logs {run}",
    "show": "show {run} --all",
    "cancel": "cancel --all --yes",
    "retry": "retry --state failed --launch-set slots=1",
    "clean": "clean --dry-run",
    "train": "train {grid} --lr 0.3",
    "map": "map --from ntk --to standard --lr 1 --wd 1 --model vit-digits",
    "scales": "scales --model vit-digits",
    "check-scaling": "check-scaling --model vit-digits --widths 24,48,96 --steps 1 --depth 1 --out check",
    "doctor": "doctor",
    "sweeps": "sweeps",
    "sweeps delete": "sweeps delete grid-2 --yes",
    "read": "read {text}",
    "try": "try {grid} --launch-set slots=1",
    "verdict": "verdict {scores} --min",
    "compare": "compare {scores} {scores} --min --seed wd",
    "data text": "data text --input {text} --out tokens --bpe-tokens 260 --workers 1",
    "--help": "--help",
    "--version": "--version",
    "a typing error": "stats",
    "an unknown model": "grid --model nöpe",
}
"""Command lines; at least one for each command."""

CONDITIONS = {
    "standard output closed": "{} >&-",
    "all closed": "{} <&- >&- 2>&-",
    "standard output full": "{} >/dev/full",
    "both full": "{} >/dev/full 2>&1",
    "locale C": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {}",
    "no temporary folder": "TMPDIR=/nowhere {}",
    "no home": "unshare --user --map-user=54321 env -u HOME -u USER -u LOGNAME {}",  # a uid without an entry in passwd
}
"""What a command may be started with, as a line of a shell, by name."""


def cases() -> Iterator[Any]:
    """Yield `status` under one condition for every day, under all of them at night; for `make fuzz` all commands."""
    for condition in CONDITIONS:
        yield pytest.param(condition, "status", marks=[] if "output closed" in condition else pytest.mark.slow)
    others = [case for case in itertools.product(CONDITIONS, COMMANDS) if case[1] != "status"]
    for case in random.Random(FIRST).sample(others, COUNT // 5 if COUNT < 2000 else len(others)):
        yield pytest.param(*case, marks=pytest.mark.slow)


def test_every_command_meets_every_condition() -> None:
    typed = {line.split()[0] for line in COMMANDS.values()}
    assert typed >= cli.COMMANDS.keys() | {"sweeps", "data"}


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(("condition", "name"), list(cases()))
def test_no_command_ends_with_a_traceback_whatever_it_is_started_with(
    condition: str, name: str, old_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, grid, text, scores = (tmp_path / name for name in ("results", "g.yaml", "t.txt", "s.csv"))
    scores.write_text("lr,wd,seed,score\n0.1,0,0,1\n0.2,1,0,2\n0.4,2,0,nan\n")
    shutil.copytree(old_results, results, symlinks=True)
    write_fake_grid(grid)
    grid.write_text(f"# für später ⊘\n{grid.read_text()}", encoding="utf-8")
    rng = random.Random(0)
    paragraphs = (" ".join(rng.choices(["aé", "bü", "cd", "ef"], k=30)) for _ in range(300))
    text.write_text("\n\n".join(paragraphs), encoding="utf-8")
    tools = tmp_path / "tools"  # without SLURM
    tools.mkdir()
    for tool in ("bash", "env", "true", "unshare"):
        (tools / tool).symlink_to(shutil.which(tool, path=os.defpath) or "missing")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("ETTSWEEP_RESULTS", str(results))
    run = next(path.parent.name for path in sorted(runs_dir(results).glob("*/result.json")))
    words = [word.format(grid=grid, text=text, scores=scores, run=run) for word in shlex.split(COMMANDS[name])]
    if "unshare" in CONDITIONS[condition] and subprocess.run(["unshare", "--user", "true"]).returncode:
        pytest.skip("other users cannot be made here")
    command = ["bash", "-c", CONDITIONS[condition].format(shlex.join([ETTSWEEP, *words]))]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=COMMAND_PATIENCE_S)
    code, output = completed.returncode, completed.stdout + completed.stderr
    logs = b"".join(path.read_bytes() for path in results.glob("jobs/*/*_log.out"))
    for crash in (b"Traceback", b"panicked", b"Exception ignored", b"Error: 'NoneType'"):
        assert crash not in output + logs, (output + logs).decode(errors="replace")
    assert code in (0, 1, 2), output.decode(errors="replace")
    if "full" in condition and b"standard output" in output:
        assert code == 1
