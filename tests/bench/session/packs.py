"""Step 7: runs that train many at once in one process, beside the same runs alone."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from bench import pack
from bench.session.environment import device


def steps(model: str, members: int, turns: int, steps_a_turn: int, compiled: bool) -> list[dict[str, Any]]:
    """Return the training steps of each way to train so many runs."""
    if device().type == "cpu":
        torch.set_num_threads(1)
    return pack.steps(model, members, device(), turns, steps_a_turn, compiled)


def command(seeds: int, ways: list[str]) -> list[dict[str, Any]]:
    """Return how long a whole grid takes through the command line in each way, on one slot."""
    with tempfile.TemporaryDirectory() as folder:
        return pack.command(1, seeds, ways, Path(folder))
