"""Record metrics of a run from a program that ettsweep has started; elsewhere nothing happens.

    from ettsweep import track

    track.record(step=100, val_loss=3.21)

It needs this file alone, and imports nothing of ettsweep: copy it where ettsweep is not installed.
"""

import json
import os

FILE_VARIABLE, STOP_VARIABLE = "ETTSWEEP_METRICS", "ETTSWEEP_STOP"


def record(step: int, **metrics: float) -> None:
    """Record metrics of a step: numbers, or what `float` makes one of, such as a tensor with one value.

    Raises:
        ValueError: the step is no whole number of 0 or more.
        TypeError: a metric is no number.
    """
    if int(step) != step or step < 0:
        raise ValueError(f"step: a whole number of 0 or more is expected, got {step!r}")
    if path := os.environ.get(FILE_VARIABLE):
        line = json.dumps({"step": int(step), **{name: float(value) for name, value in metrics.items()}})
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123  one write, and no import for it
            file.write(line + "\n")


def stop() -> bool:
    """Return whether to save a checkpoint and leave now: the run was cancelled, or its job ends soon."""
    path = os.environ.get(STOP_VARIABLE)
    return path is not None and os.path.exists(path)  # noqa: PTH110
