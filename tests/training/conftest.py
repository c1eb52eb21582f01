"""Fixtures for tests that train: one attempt at a run, in this process or in several that are forked from another."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support
import torch
from support.made_runs import CPU, Poll, Train, Trained, Undisturbed, never, numbers

from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec
from ettsweep.training.execution import Execution
from ettsweep.training.run import environment, train_run

torch.set_num_threads(1)


@pytest.fixture
def train(results: Path) -> Train:
    """Return what trains a spec below `results`, or below another folder."""

    def train(spec: RunSpec, every_steps: int | None = None, poll: Poll = never, folder: Path | None = None) -> RunDir:
        run = RunDir.create(folder or results, spec)
        attempt = run.claim(environment(CPU), after=max(run.numbers(), default=0))
        assert attempt is not None
        train_run(run, attempt, CPU, Execution(checkpoint_every_steps=every_steps), lambda: poll(attempt))
        return run

    return train


@pytest.fixture
def undisturbed(train: Train, tmp_path: Path) -> Undisturbed:
    """Return what gives the numbers of a run that nothing interrupts, trained without a checkpoint."""

    def outcome(spec: RunSpec) -> tuple[bytes, object]:
        run = RunDir.create(tmp_path / "undisturbed", spec)
        return numbers(run if run.result_path.exists() else train(spec, folder=tmp_path / "undisturbed"))

    return outcome


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.Popen[str]"]:
    """Start the process that all others are forked from; nothing that it prints may be a warning."""
    errors = tmp_path_factory.mktemp("forking") / "stderr"
    command = [sys.executable, str(Path(support.__file__).with_name("side_by_side.py"))]
    with errors.open("w") as file:
        # What is freed goes back to the system at once, so that the peak of memory is what was held.
        env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "100000", "MALLOC_TRIM_THRESHOLD_": "100000"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=env)
    yield process
    process.communicate(timeout=60)
    assert (process.returncode, errors.read_text()) == (0, "")


@pytest.fixture
def trained(forking: "subprocess.Popen[str]", tmp_path: Path) -> Trained:
    """Return what makes trials one after the other, see side_by_side.py; each has its folder, or one that it names."""

    def make(*trials: tuple[RunSpec, dict[str, Any]]) -> tuple[list[RunDir], list[list[str]]]:
        runs, ends = [], []
        assert forking.stdin is not None
        assert forking.stdout is not None
        for number, (spec, trial) in enumerate(trials):
            runs.append(RunDir.create(tmp_path / str(trial.get("folder", number)), spec))
            told = {key: value for key, value in trial.items() if key != "folder"} | {"run": str(runs[-1].path)}
            print(json.dumps(told), file=forking.stdin, flush=True)
            ends.append(json.loads(forking.stdout.readline()))
        return runs, ends

    return make
