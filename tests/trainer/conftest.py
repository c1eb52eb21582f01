"""Fixtures for tests that train: one attempt at a run, in this process or in several that are forked from another."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.forks import Forks
from support.here import Here
from support.made_runs import CPU, Poll, Train, Trained, Undisturbed, never, numbers

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.training.run import train_run
from ettsweep.trainer.training.runtime_settings import RuntimeSettings

torch.set_num_threads(1)


@pytest.fixture
def attempt(results: Path, spec: RunSpec) -> Attempt:
    """Return an attempt at a run that has done nothing yet."""
    claimed = RunDir.create(results, spec).claim({}, after=0)
    assert claimed is not None
    claimed.states_path.mkdir()
    return claimed


@pytest.fixture
def train(results: Path) -> Train:
    """Return what trains a spec below `results`, or below another folder."""

    def train(spec: RunSpec, every_steps: int | None = None, poll: Poll = never, folder: Path | None = None) -> RunDir:
        run = RunDir.create(folder or results, spec)
        here = Here(run, poll=poll)
        with here.recording():
            train_run(here.given, CPU, RuntimeSettings(checkpoint_every_steps=every_steps))
        return run

    return train


@pytest.fixture
def undisturbed(train: Train, tmp_path: Path) -> Undisturbed:
    """Return what gives the numbers of a run that nothing interrupts, trained without a checkpoint."""

    def outcome(spec: RunSpec) -> tuple[bytes, object]:
        run = RunDir.create(tmp_path / "undisturbed", spec)
        return numbers(run if run.result_path.exists() else train(spec, folder=tmp_path / "undisturbed"))

    return outcome


@pytest.fixture
def trained(forks: Forks, tmp_path: Path) -> Trained:
    """Return what makes trials one after the other, see side_by_side.py; each has its folder, or one that it names."""

    def make(*trials: tuple[RunSpec, dict[str, Any]]) -> tuple[list[RunDir], list[list[str]]]:
        runs, ends = [], []
        for number, (spec, trial) in enumerate(trials):
            runs.append(RunDir.create(tmp_path / str(trial.get("folder", number)), spec))
            by_key = {key: value for key, value in trial.items() if key != "folder"} | {"run": str(runs[-1].path)}
            ends.append(forks.call("support.side_by_side:make", by_key))
        return runs, ends

    return make
