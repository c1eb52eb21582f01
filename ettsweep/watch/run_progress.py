"""How a run in training does: its last loss, and its speed, as its attempt has written them."""

import os

from ettsweep.files import last_line, loads, number
from ettsweep.runs.attempt import Attempt

END_BYTES = 16384
"""Of metrics.jsonl that are read: an evaluation may have come after the last step."""


def loss_of(attempt: Attempt) -> float | None:
    """Return the loss of the last step that was written; None before one was, and where it was not finite."""
    try:
        with attempt.metrics_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    last = next((line for line in reversed(lines) if b'"loss"' in line), b"{}")
    try:
        record = loads(last)
    except ValueError:
        return None
    return number(record.get("loss")) if isinstance(record, dict) else None


def speed_of(attempt: Attempt) -> float | None:
    """Return the steps a second of the attempt so far; None before it has told."""
    return number((last_line(attempt.timings_path) or {}).get("steps_per_s"))
