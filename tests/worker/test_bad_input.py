"""What cannot work in the block of a command: told before anything is submitted, with what would work."""

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
    # the command
    ({"command": ""}, "command: a command is expected, got nothing"),
    ({"command": 3}, "command: a command as one text or a list of words is expected, got 3"),
    ({"command": "python train.py --lr {lrr} --seed {seed}"}, "did you mean {lr}?"),
    ({"command": "python train.py --lr {lr} --seed {seed*2}"}, "only products of lr or wd with numbers work"),
    ({"command": "python train.py --lr {lr --seed {seed}"}, "'{lr': a brace is not closed"),
    ({"command": "python train.py --lr lr} --seed {seed}"}, "a brace is not opened"),
    ({"command": "python train.py --seed {seed}"}, "{lr} is missing: runs of different lr would be identical"),
    ({"command": "python train.py --lr {lr}"}, "{seed} is missing: runs of different seed would be identical"),
    ({"command": "python train.py {lr} {seed} > log"}, "[bash, -o, pipefail, -c, 'python train.py {lr} {seed} > log']"),
    ({"command": "python $HOME/train.py {lr} {seed}"}, "$ (a variable) needs a shell"),
    ({"command": "python 'train.py {lr} {seed}"}, "no closing quotation"),
    ({"command": "pyhton train.py {lr} {seed}"}, "command: there is no program pyhton here (PATH is "),
    ({"command": "./train.py {lr} {seed}"}, "./train.py is not executable: use chmod +x, or write [bash, ./train.py"),
    ({"command": "python trian.py {lr} {seed}"}, "command: there is no file trian.py in "),
    ({"command": "python train.py {lr} {seed} {name}"}, "there is no placeholder {name}"),
    # strategies
    ({"strategies": ["mup"]}, "write words by strategy, such as {mup: --use-mup}; the list of strategies"),
    ({"strategies": {"mups": "--use-mup"}}, "unknown strategy 'mups'"),
    ({"strategies": {"mup": "--a", "s=1": "--b"}}, "strategies: mup occurs twice, under two names"),
    # the score
    ({"score": {"name": "val_loss"}}, "score.mode: is required"),
    ({"score": {"name": "acc", "mode": "min"}}, "mode: min is unusual for acc; write max, or min! if you mean it"),
    ({"score": {"name": "step", "mode": "min"}}, "name: a metric is expected, but `step` counts steps"),
    # taking it up again
    ({"resume": {}}, "resume: write either `checkpoint` with `add`, or `always`"),
    ({"resume": {"checkpoint": CHECKPOINT}}, "add is missing, such as `add: '--resume {checkpoint}'`"),
    ({"resume": {"checkpoint": "ckpt", "add": "--r {checkpoint}"}}, "must begin with {out}/"),
    ({"resume": {"checkpoint": "{out}/(", "add": "--r {checkpoint}"}}, "is not a regular expression"),
    ({"resume": {"checkpoint": "{out}/{seed}", "add": "--r {checkpoint}"}}, "write a regular expression after"),
    # stopping
    ({"stop": {"signal": "KILL"}}, "stop.signal"),
    ({"stop": {"grace": "soon"}}, "a time is expected, such as 30s, 5min or 2h, got 'soon'"),
    # files and environment
    ({"files": {"conf.yaml": {"from": "conf.yaml", "set": {"a": 1}}}}, "must begin with {out}/"),
    ({"files": {"{out}/c": {"from": "conf.yaml"}}}, "write either `set` or `replace`"),
    ({"files": {"{out}/c": {"from": "train.py", "set": {"a": 1}}}}, "`set` is for YAML, JSON and TOML; use `replace`"),
    ({"files": {"{out}/c": {"from": "none.yaml", "set": {"a": 1}}}}, "none.yaml: cannot be read"),
    ({"env": {"HF_TOKEN": "abc"}}, "HF_TOKEN would be visible on the page and in each run's folder"),
    (
        {"files": {"{out}/c": {"from": "train.py", "replace": {"lr=": "{lr}"}}}},
        "'lr=' must occur once, but occurs 0 times",
    ),
    ({"env": {"ETTSWEEP_RUN": "x"}}, "env: leave out ETTSWEEP_RUN: ettsweep sets it"),
    ({"env": {"A B": "x"}}, "'A B' is not a name of a variable"),
    # code and data
    ({"workdir": "nowhere"}, "workdir: there is no folder"),
    ({"code": ["*.cfg"]}, "matches *.cfg"),
    ({"data": ["/nowhere/x"]}, "data: there is no /nowhere/x"),
    ({"code": ["**.py"]}, "is not a pattern"),
    ({"code": {"exclude": "/a"}}, "code.exclude: patterns of files beside the grid file are expected, got '/a'"),
    # the rest
    ({"gpus": 2}, "gpus: a run of this sweep needs 2, but the launch profile has 1"),
    ({"nodes": 2}, "nodes: a run of this sweep needs 2, but this launch profile has only this machine"),
    ({"command": "python train.py {lr} {seed} --data ../data"}, "command: ../data leads out of the project"),
    ({"comand": "x"}, "run: comand: unknown key; did you mean command?"),
    ({"reader": "nonesuch"}, "nonesuch"),
    ({"reader": r"(?P<step>\d+) (?P<acc>\d+)"}, "the reader has no group val_loss, only acc"),
]


@pytest.mark.parametrize(("change", "problem"), CASES)
def test_what_cannot_work_is_told_before_anything_is_submitted(
    tmp_path: Path, results: Path, change: dict[str, Any], problem: str
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "conf.yaml").write_text("a: 1\n")
    (tmp_path.parent / "data").mkdir(exist_ok=True)
    grid = tmp_path / "sweep.yaml"
    content = {"run": {**GOOD, **change}, "centre": {"lr": 0.25}, "lr": {"range": [0, 1]}}
    grid.write_text(yaml.safe_dump(content))
    done = ettsweep("grid", grid, "--results", results, "--launch-set", "slots=1", code=None)
    assert problem in done.stderr
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert not results.exists()


def test_a_grid_file_where_a_model_is_expected_is_told(tmp_path: Path) -> None:
    done = ettsweep("grid", "--model", "sweep.yaml", "--results", tmp_path / "results", code=2)
    assert "sweep.yaml is a file, not a model: leave out --model" in done.stderr


def test_a_program_where_a_model_or_a_grid_file_is_expected_leads_to_the_block(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    for options in (("--model", "train.py"), ("--model", "gpt5"), (tmp_path / "train.py",)):
        done = ettsweep("grid", *options, "--results", tmp_path / "results", code=2)
        assert "a grid file with `run: {command: ...}` sweeps it, see docs/own-code.md" in done.stderr


def test_a_free_wd_that_occurs_nowhere_is_told(tmp_path: Path, results: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    grid = tmp_path / "sweep.yaml"
    axes = {"centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [0, 1]}, "wd": {"range": [0, 1]}}
    grid.write_text(yaml.safe_dump({"run": GOOD, **axes}))
    done = ettsweep("grid", grid, "--results", results, code=2)
    assert "command: {wd} is missing" in done.stderr
    grid.write_text(yaml.safe_dump({"run": {**GOOD, "uses": "env"}, **axes}))
    ettsweep("grid", grid, "--results", results, "--dry-run")


@pytest.mark.parametrize("name", ["my results", "lr=1"])
def test_a_folder_that_breaks_command_lines_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    grid, folder = tmp_path / "sweep.yaml", tmp_path / name
    for command, code in ((GOOD["command"], 2), (GOOD["command"].replace("--out {out}", ""), 0)):
        axes = {"centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}
        grid.write_text(yaml.safe_dump({"run": GOOD | {"command": command}, **axes}))
        done = ettsweep("grid", grid, "--results", folder, "--launch-set", "slots=1", code=code)
        assert ("pass another folder" in done.stderr) is (code == 2)
        assert folder.exists() is (code == 0)


@pytest.mark.parametrize("stated", [{}, {"strategies": {"ntk": "--ntk"}}])
def test_strategies_that_would_be_alike_are_told(tmp_path: Path, results: Path, stated: dict[str, Any]) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    grid = tmp_path / "sweep.yaml"
    axes = {"centre": {"lr": 0.25}, "lr": {"range": [0, 1]}, "strategies": ["standard", "mup"]}

    def ask(code: int, **block: Any) -> str:
        grid.write_text(yaml.safe_dump({"run": {**GOOD, "width": 64, **block}, **axes}))
        return str(ettsweep("grid", grid, "--results", results, "--dry-run", code=code).stderr)

    told = "strategies: runs under standard and mup would be identical; put {strategy} into the command"
    assert told in ask(2, **stated)
    ask(0, strategies={"mup": "--use-mup"})
    ask(0, command=f"{GOOD['command']} --by {{strategy}}")
    fixed = GOOD["command"].replace("--lr {lr}", "")
    assert "{lr} is missing under standard: runs" in ask(2, command=fixed, strategies={"mup": "--lr {lr}"})
    ask(0, command=fixed, strategies={"mup": "--mup-lr {lr}", "standard": "--lr {lr}"})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"command": "python x {lr} {seed}", "centre": {"lr": 1.0}}, "belongs into `run:`, as `run: {command: ...}`"),
        ({"run": {}, "centre": {"lr": 1.0}}, "run: one of "),
        ({"run": {**GOOD, "function": "a:b"}, "centre": {"lr": 1.0}}, "function"),
    ],
)
def test_a_block_at_the_wrong_place_is_told(
    tmp_path: Path, results: Path, content: dict[str, Any], problem: str
) -> None:
    grid = tmp_path / "sweep.yaml"
    grid.write_text(yaml.safe_dump({**content, "lr": {"range": [0, 1]}}))
    done = ettsweep("grid", grid, "--results", results, code=2)
    assert problem in done.stderr
    assert not results.exists()
