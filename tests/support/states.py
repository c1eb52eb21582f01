"""Checkpoints of made attempts, as a program saves them."""

from pathlib import Path

from ettsweep.run import Run
from ettsweep.runs.attempt import Attempt


def save_state(attempt: Attempt, step: int = 1, content: bytes = b"weights") -> Path:
    """Save a checkpoint of an attempt after a step, for the metrics that it has; return its path."""
    run = run_of(attempt)
    if attempt.metrics_path.exists():
        run._digest.update(data := attempt.metrics_path.read_bytes())
        run._bytes = len(data)
    run.save(step, lambda path: path.write_bytes(content))
    return attempt.state_path(step)


def run_of(attempt: Attempt) -> Run:
    """Return the run that an attempt is at, as its program has it."""
    values = {"RUN": attempt.run.name, "STATES": attempt.states_path, "METRICS": attempt.metrics_path}
    return Run(environment={f"ETTSWEEP_{name}": str(value) for name, value in values.items()})


def checkpoint_path(attempt: Attempt) -> Path:
    """Return the newest checkpoint of an attempt; where one would lie if there is none."""
    return attempt.state_path(next(iter(attempt.saved_steps()), 1))
