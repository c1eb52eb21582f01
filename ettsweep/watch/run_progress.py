"""Last loss and speed of a run in training, read from the files of its attempt."""

import os

from ettsweep.files import last_json_line, loads, number, open_regular
from ettsweep.runs.attempt import Attempt

TAIL_BYTES = 16384
"""Bytes read from the end of metrics.jsonl: the last line may be an evaluation, without a loss."""


def read_loss(attempt: Attempt) -> float | None:
    """Return the loss of the last logged step; None if there is none yet, or if it is not finite."""
    try:
        with os.fdopen(open_regular(attempt.metrics_path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]  # the last part is empty, or a line that is still being written
    except OSError:
        return None
    # Find the line before parsing: parsing all of them would take long at every poll.
    last = next((line for line in reversed(lines) if b'"loss"' in line), b"{}")
    try:
        record = loads(last)
    except ValueError:
        return None
    return number(record.get("loss")) if isinstance(record, dict) else None


def read_speed(attempt: Attempt) -> float | None:
    """Return the steps per second of an attempt so far; None before it has logged any."""
    return number((last_json_line(attempt.timings_path) or {}).get("steps_per_s"))
