"""The examples: swept to a verdict as they stand, and the guide to one's own code, whose examples are these."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.commandline import ettsweep, runs_in, typed, wait_for
from support.own_code import processes_of

from ettsweep.runs.folder import RunDir

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCS = ROOT / "docs" / "own-code.md"

LIGHT = ("config", "command")
HEAVY = ("function", "hydra", "torchrun", "lightning", "transformers", "open_clip")
"""They import torch, which takes longer than their training."""

pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture(autouse=True)
def _own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python` and torchrun are those of this environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def copied(name: str, folder: Path) -> Path:
    """Copy an example, and make its data; return its grid file."""
    shutil.copytree(EXAMPLES / name, folder / name)
    if (script := folder / name / "data.py").exists():
        subprocess.run([sys.executable, script], check=True)
    return folder / name / "sweep.yaml"


def few(name: str, grid: Path) -> tuple[str, ...]:
    """Return which of its runs are trained: all where they cost nothing, else two seeds, or one, of two points."""
    if name == "shell":
        return ()
    fixed = ("--range", "wd=0:0") if "wd" in yaml.safe_load(grid.read_text()) else ()
    return "--range", "lr=0:1", *fixed, *(("--seeds", "0,") if name in HEAVY else ())


@pytest.mark.parametrize("name", ["shell", *(pytest.param(name, marks=pytest.mark.slow) for name in LIGHT + HEAVY)])
def test_an_example_is_swept_to_a_verdict(tmp_path: Path, results: Path, name: str) -> None:
    grid = copied(name, tmp_path)
    devices = ("--launch-set", "devices_per_run=2", "--launch-set", "slots=2") if name == "torchrun" else ()
    request = ("grid", grid, "--results", results, *devices)
    assert "to train" in ettsweep(*request, "--dry-run").stderr, "it is planned as it stands"
    ettsweep(*request, "--follow", *few(name, grid))
    finished = [run.result() for run in runs_in(results)]
    assert all(result and result["status"] == "done" for result in finished)
    judged = ettsweep("verify-optimum", "--dry-run", "--format", "json", "--results", results, code=None)
    (row,) = json.loads(judged.stdout)
    assert row["score"] is not None
    scores = {result["score"] for result in finished if result}
    assert len(scores) > (1 if name in HEAVY else 2), "lr and seed reach the program"


@pytest.mark.slow
def test_a_run_of_transformers_own_trainer_goes_on_exactly(tmp_path: Path, results: Path) -> None:
    grid = copied("transformers", tmp_path)
    # Long enough to be killed in the middle; on one thread, sums keep their order.
    grid.write_text(grid.read_text().replace("steps: 40", "steps: 100").replace("{out}\n", "{out} --steps 100\n", 1))
    one = ("--range", "lr=0:0", "--seeds", "3,", "--launch-set", "slots=1", "--launch-set", "threads=1")
    ettsweep("grid", grid, "--results", results, *one)
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: (run.path / "out" / "checkpoint-20" / "trainer_state.json").exists(), "its second checkpoint")
    os.kill(processes_of(run)[1], signal.SIGKILL)  # its leader, the child of its supervisor
    result = wait_for(run.result, "its result")
    assert result["attempts"] == 2
    assert run.attempt(2).resumed_from()[1] >= 20
    alone = tmp_path / "alone"
    typed("train", "--spec", run.spec_path, "--results", alone, "--launch-set", "threads=1")
    (undisturbed,) = runs_in(alone)
    evaluated, expected = (
        [(line["step"], line["eval_loss"]) for line in each.history()] for each in (run, undisturbed)
    )
    assert evaluated == expected
    assert [step for step, _ in evaluated] == [*range(10, 101, 10)]
    # The Trainer sums up the losses of steps, and a sum begins anew where it resumes.
    for ours, theirs in zip(run.history(), undisturbed.history(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_the_guide_shows_the_example() -> None:
    block, *_ = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert yaml.safe_load(block) == yaml.safe_load((EXAMPLES / "command" / "sweep.yaml").read_text())


def test_what_the_guide_says_of_metrics_works(tmp_path: Path, results: Path) -> None:
    """Its lines of shell and of Python, in programs that state lr and seed."""
    text = DOCS.read_text()
    printed, appended = (line.split("    #")[0].strip() for line in re.findall(r"^    (echo .*)$", text, re.MULTILINE))
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "track.py").write_text(python)
    for number, command in enumerate((["bash", "run.sh", "{lr}", "{seed}"], "python track.py {lr} {seed}")):
        (tmp_path / "run.sh").write_text(f"{printed}\n{appended}\n")
        grid = tmp_path / f"{number}.yaml"
        block = {"command": command, "score": {"name": "val_loss", "mode": "min"}}
        grid.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
        ettsweep("grid", grid, "--results", results / str(number), "--follow")
        (run,) = runs_in(results / str(number))
        assert run.history() == [{"step": 100, "val_loss": 3.21}]
