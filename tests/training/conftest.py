"""Fixtures for tests that train: one attempt at a run, in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
import torch

from ettsweep.rundir import Attempt, RunDir
from ettsweep.spec import RunSpec
from ettsweep.training.loop import CheckpointPolicy, Stop
from ettsweep.training.run import environment, train_run

torch.set_num_threads(1)


class Train(Protocol):
    """Claim the next attempt at a run, train it, and return the run folder."""

    def __call__(
        self,
        spec: RunSpec,
        every_steps: int | None = None,
        poll: Callable[[Attempt], Stop | None] = ...,
        folder: Path | None = None,
    ) -> RunDir: ...


def never(attempt: Attempt) -> Stop | None:
    return None


@pytest.fixture
def train(results: Path) -> Train:
    """Return what trains a spec below `results`, or below another folder."""

    def train(
        spec: RunSpec,
        every_steps: int | None = None,
        poll: Callable[[Attempt], Stop | None] = never,
        folder: Path | None = None,
    ) -> RunDir:
        device = torch.device("cpu")
        run = RunDir.create(folder or results, spec)
        attempt = run.claim(environment(device), after=max(run.numbers(), default=0))
        assert attempt is not None
        train_run(run, attempt, device, CheckpointPolicy(every_steps=every_steps), lambda: poll(attempt))
        return run

    return train


@pytest.fixture
def undisturbed(train: Train, tmp_path: Path) -> Callable[[RunSpec], tuple[bytes, object]]:
    """Return what gives the metrics and the weights' hash of a run that nothing interrupts, without checkpoints."""

    def outcome(spec: RunSpec) -> tuple[bytes, object]:
        run = RunDir.create(tmp_path / "undisturbed", spec)
        return numbers(run if run.result_path.exists() else train(spec, folder=tmp_path / "undisturbed"))

    return outcome


def numbers(run: RunDir) -> tuple[bytes, object]:
    result = run.result()
    assert result is not None, [run.attempt(n).log() for n in run.numbers()]
    return run.metrics_path.read_bytes(), result["weights_sha256"]
