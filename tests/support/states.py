"""Checkpoints of made attempts, as a program saves them."""

from pathlib import Path

from ettsweep.run import Run
from ettsweep.runs.attempt import Attempt


def save_state(attempt: Attempt, step: int = 1, content: bytes = b"weights") -> Path:
    """Save a checkpoint of an attempt after a step, for the metrics that it has; return its path."""
    run = Run(environment={"ETTSWEEP_STATES": str(attempt.states_path), "ETTSWEEP_METRICS": str(attempt.metrics_path)})
    if attempt.metrics_path.exists():
        data = attempt.metrics_path.read_bytes()
        run._digest.update(data)
        run._bytes = len(data)
    run.save(step, lambda path: path.write_bytes(content))
    return attempt.state_path(step)


def run_of(attempt: Attempt) -> Run:
    """Return the run that an attempt is at, as its program has it."""
    paths = {"STATES": attempt.states_path, "METRICS": attempt.metrics_path}
    names = {f"ETTSWEEP_{name}": str(path) for name, path in paths.items()}
    return Run(environment={"ETTSWEEP_RUN": attempt.run.name, **names})


def checkpoint_path(attempt: Attempt) -> Path:
    """Return the newest checkpoint of an attempt; where one would lie if there is none."""
    return attempt.state_path(next(iter(attempt.saved_steps()), 1))
