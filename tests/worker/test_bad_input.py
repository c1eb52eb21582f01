"""What cannot work in the block of a command: told before anything is submitted, with what would work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep

GOOD: dict[str, Any] = {
    "command": "python train.py --lr {lr} --seed {seed} --out {out}",
    "score": {"name": "val_loss", "mode": "min"},
}
CHECKPOINT = r"{out}/ckpt-(?P<step>\d+)"

CASES: list[tuple[dict[str, Any], str]] = [
    ({"command": ""}, "command: a command is expected, got nothing"),
    ({"command": "python train.py --lr {lrr} --seed {seed}"}, "did you mean {lr}?"),
    ({"command": "python train.py --seed {seed}"}, "{lr} is missing: runs of different lr would be identical"),
    ({"command": "python train.py --lr {lr}"}, "{seed} is missing: runs of different seed would be identical"),
    ({"command": "python train.py {lr} {seed} > log"}, "[bash, -o, pipefail, -c, 'python train.py {lr} {seed} > log']"),
    ({"command": "pyhton train.py {lr} {seed}"}, "command: there is no program pyhton here (PATH is "),
    ({"command": "./train.py {lr} {seed}"}, "./train.py is not executable: use chmod +x, or write [bash, ./train.py"),
    ({"command": "python trian.py {lr} {seed}"}, "command: there is no file trian.py in "),
    ({"strategies": ["mup"]}, "write words by strategy, such as {mup: --use-mup}; the list of strategies"),
    ({"strategies": {"mups": "--use-mup"}}, "unknown strategy 'mups'"),
    ({"score": {"name": "val_loss"}}, "score.mode: is required"),
    ({"score": {"name": "acc", "mode": "min"}}, "mode: min is unusual for acc; write max, or min! if you mean it"),
    ({"score": {"name": "step", "mode": "min"}}, "name: a metric is expected, but `step` counts steps"),
    ({"resume": {}}, "resume: write either `checkpoint` with `add`, or `always`"),
    ({"resume": {"checkpoint": CHECKPOINT}}, "add is missing, such as `add: '--resume {checkpoint}'`"),
    ({"resume": {"checkpoint": "ckpt", "add": "--r {checkpoint}"}}, "must begin with {out}/"),
    ({"resume": {"checkpoint": "{out}/(", "add": "--r {checkpoint}"}}, "is not a regular expression"),
    ({"stop": {"signal": "KILL"}}, "stop.signal"),
    ({"stop": {"grace": "soon"}}, "a time is expected, such as 30s, 5min or 2h, got 'soon'"),
    ({"files": {"conf.yaml": {"from": "conf.yaml", "set": {"a": 1}}}}, "must begin with {out}/"),
    ({"files": {"{out}/c": {"from": "conf.yaml"}}}, "write either `set` or `replace`"),
    ({"files": {"{out}/c": {"from": "train.py", "set": {"a": 1}}}}, "`set` is for YAML, JSON and TOML; use `replace`"),
    ({"files": {"{out}/c": {"from": "none.yaml", "set": {"a": 1}}}}, "none.yaml: cannot be read"),
    ({"env": {"HF_TOKEN": "abc"}}, "HF_TOKEN would be visible on the page and in each run's folder"),
    ({"env": {"ETTSWEEP_RUN": "x"}}, "env: leave out ETTSWEEP_RUN: ettsweep sets it"),
    ({"workdir": "nowhere"}, "workdir: there is no folder"),
    ({"code": ["*.cfg"]}, "matches *.cfg"),
    ({"data": ["/nowhere/x"]}, "data: there is no /nowhere/x"),
    ({"gpus": 2}, "gpus: a run of this sweep needs 2, but the launch profile has 1"),
    ({"nodes": 2}, "nodes: a run of this sweep needs 2, but this launch profile has only this machine"),
    ({"command": "python train.py {lr} {seed} --data ../data"}, "command: ../data leads out of the project"),
    ({"comand": "x"}, "run: comand: unknown key; did you mean command?"),
    ({"reader": r"(?P<step>\d+) (?P<acc>\d+)"}, "the reader has no group val_loss, only acc"),
]


GRID = {"run": GOOD, "centre": {"lr": 0.25}, "lr": {"range": [0, 1]}}

Ask = Callable[..., str]


@pytest.fixture
def ask(tmp_path: Path, results: Path) -> Ask:
    """Return a function that asks for a grid, another one by some entries, and returns the messages."""
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "conf.yaml").write_text("a: 1\n")

    def ask(*options: object, code: int | None = 2, run: dict[str, Any] | None = None, **changes: Any) -> str:
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(GRID | {"run": GOOD | (run or {})} | changes))
        done = ettsweep("grid", path, "--results", results, "--launch-set", "slots=1", *options, code=code)
        assert done.returncode in (0, 1, 2)
        assert done.returncode == 0 or not results.exists()
        return str(done.stderr)

    return ask


@pytest.mark.parametrize(("change", "problem"), CASES)
def test_what_cannot_work_is_told_before_anything_is_submitted(
    tmp_path: Path, ask: Ask, change: dict[str, Any], problem: str
) -> None:
    (tmp_path.parent / "data").mkdir(exist_ok=True)
    assert problem in ask(code=None, run=change)


def test_a_program_where_a_model_or_a_grid_file_is_expected_leads_to_the_block(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    for options in (("--model", "train.py"), ("--model", "gpt5"), (tmp_path / "train.py",)):
        done = ettsweep("grid", *options, "--results", tmp_path / "results", code=2)
        assert "a grid file with `run: {command: ...}` sweeps it, see docs/own-code.md" in done.stderr


def test_a_free_wd_that_occurs_nowhere_is_told(ask: Ask) -> None:
    axes = {"centre": {"lr": 0.25, "wd": 0.5}, "wd": {"range": [0, 1]}}
    assert "command: {wd} is missing" in ask(**axes)
    ask("--dry-run", code=0, run={"uses": "env"}, **axes)


def test_a_folder_that_breaks_command_lines_is_told(tmp_path: Path, ask: Ask) -> None:
    folder = "--results", tmp_path / "my results"
    assert "pass another folder" in ask(*folder)
    ask("--dry-run", *folder, code=0, run={"command": "python train.py --lr {lr} --seed {seed}"})


@pytest.mark.parametrize("stated", [{}, {"strategies": {"ntk": "--ntk"}}])
def test_strategies_that_would_be_alike_are_told(ask: Ask, stated: dict[str, Any]) -> None:
    def sweep(code: int, **block: Any) -> str:
        return ask("--dry-run", code=code, run={"width": 64, **block}, strategies=["standard", "mup"])

    told = "strategies: runs under standard and mup would be identical; put {strategy} into the command"
    assert told in sweep(2, **stated)
    sweep(0, strategies={"mup": "--use-mup"})
    sweep(0, command=f"{GOOD['command']} --by {{strategy}}")
    fixed = GOOD["command"].replace("--lr {lr}", "")
    assert "{lr} is missing under standard: runs" in sweep(2, command=fixed, strategies={"mup": "--lr {lr}"})
    sweep(0, command=fixed, strategies={"mup": "--mup-lr {lr}", "standard": "--lr {lr}"})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"command": "python x {lr} {seed}"}, "belongs into `run:`, as `run: {command: ...}`"),
        ({"run": {}}, "run: one of "),
        ({"run": {**GOOD, "function": "a:b"}}, "function"),
    ],
)
def test_a_block_at_the_wrong_place_is_told(tmp_path: Path, content: dict[str, Any], problem: str) -> None:
    grid = tmp_path / "sweep.yaml"
    grid.write_text(yaml.safe_dump({**content, "centre": {"lr": 1.0}, "lr": {"range": [0, 1]}}))
    assert problem in ettsweep("grid", grid, "--results", tmp_path / "results", code=2).stderr
