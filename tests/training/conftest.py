"""Fixtures for tests that train: one attempt at a run, in this process."""

from pathlib import Path

import pytest
import torch
from made_runs import CPU, Poll, Train, Undisturbed, never, numbers

from ettsweep.rundir import RunDir
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
