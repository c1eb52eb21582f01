"""Runs made for tests: how they are trained and stopped, and the numbers that must never differ."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from ettsweep.rundir import Attempt, RunDir
from ettsweep.spec import RunSpec
from ettsweep.training.loop import Stop

CPU = torch.device("cpu")

MakeSpec = Callable[..., RunSpec]
Undisturbed = Callable[[RunSpec], tuple[bytes, object]]
Poll = Callable[[Attempt], Stop | None]
Trained = Callable[..., tuple[list[RunDir], list[list[str]]]]

ODD = 33
"""A batch that neither two nor three processes can share evenly."""

REL = 1e-4
"""Sums of 33 samples in another order differ by some 1e-7, and 24 steps of AdamW carry that some hundred times further."""


def never(attempt: Attempt) -> Stop | None:
    """Do not stop an attempt."""
    return None


def stop_at(step: int, stop: Stop = Stop.TERMINATED) -> Poll:
    """Return a poll that stops an attempt after `step` more steps."""
    calls = iter(range(step + 1))
    return lambda attempt: stop if next(calls) == step else None


class Train(Protocol):
    """Claim the next attempt at a run, train it, and return the run folder."""

    def __call__(
        self, spec: RunSpec, every_steps: int | None = None, poll: Poll = never, folder: Path | None = None
    ) -> RunDir: ...


def result_of(run: RunDir) -> dict[str, Any]:
    """Return the result; where there is none, fail with what was logged."""
    result = run.result()
    assert result is not None, [run.attempt(n).log() for n in run.numbers()]
    return result


def numbers(run: RunDir) -> tuple[bytes, object]:
    """Return the metrics, byte for byte, and the hash of the final weights."""
    sha256 = result_of(run)["weights_sha256"]
    run.history()  # raises where the metrics are not those of the result
    return run.metrics_path.read_bytes(), sha256


def curve(run: RunDir, key: str = "loss") -> list[float]:
    """Return a metric of all steps, or evaluations, of a finished run."""
    return [line[key] for line in run.history() if key in line]
