"""Step 7: runs that train many at once in one process, beside the same runs alone."""

import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from bench import pack
from bench.session.environment import device
from ettsweep.errors import error_line


def steps(model: str, members: int, turns: int, steps_a_turn: int, compiled: bool) -> list[dict[str, Any]]:
    """Return the training steps of each way to train so many runs; of the others too where one cannot be compiled."""
    if device().type == "cpu":
        torch.set_num_threads(1)
    size = model, members, device(), turns, steps_a_turn
    if not compiled or members == 1:
        return pack.steps(*size, compiled=False)
    try:
        return pack.steps(*size)
    except Exception as error:
        traceback.print_exc()
        failed = {"model": model, "members": members, "way": "fast", "message": error_line(error)}
    return [*pack.steps(*size, compiled=False), failed]


def command(seeds: int, ways: list[str]) -> list[dict[str, Any]]:
    """Return how long a whole grid takes through the command line in each way, on one slot."""
    with tempfile.TemporaryDirectory() as folder:
        return pack.command(1, seeds, ways, Path(folder))
