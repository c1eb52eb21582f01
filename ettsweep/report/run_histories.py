"""Histories: what runs recorded step by step, each read once and thinned to what a figure can show."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ettsweep.console import count
from ettsweep.errors import CorruptError
from ettsweep.files import Json, number, read_lines
from ettsweep.runs.spec import ScheduleSpec
from ettsweep.study.run_index import Run
from ettsweep.trainer.tasks.registry import curve_unit

TRAINING = ("loss", "grad_norm")
"""Recorded at each step."""

EVALUATIONS = ("val_loss", "val_accuracy")
"""Recorded at each evaluation."""

NAMES = {
    "loss": "training loss",
    "grad_norm": "gradient norm",
    "val_loss": "validation loss",
    "val_accuracy": "validation accuracy",
}
"""What people read of them."""

EVENTS = {"loss": "loss", "grad": "grad_norm", "accuracy": "val_accuracy", "eval_loss": "val_loss"}
"""Which of them a kind of spike is one of."""

MOST_ROWS, LEAST_ROWS = 200, 10
"""Rows that are kept of a run's steps, and half as many of its evaluations."""

ALL_ROWS = 100_000
"""Rows of steps that are kept of all runs together: of many runs, fewer each."""

Row = tuple[int, float | None, float | None]
"""A step, and the two values recorded there."""


@dataclass(frozen=True)
class SpikeEvent:
    """A spike of a run, or where it diverged.

    Attributes:
        quantity: the name in `TRAINING` or `EVALUATIONS` that it is one of.
        value: of that there; of a divergence, the last finite loss.
        told: what it is, in words.
    """

    step: int
    quantity: str
    value: float | None
    told: str


@dataclass(frozen=True)
class RunHistory:
    """What a run recorded.

    Attributes:
        training: steps with the mean training loss (nats) and gradient norm since the row before.
        evaluations: steps with validation loss (nats) and accuracy (a fraction).
        spikes: as its result counts them, and where it diverged.
        unit: what curves are drawn over: epoch or step.
        unit_steps: how many steps that has.
    """

    training: tuple[Row, ...]
    evaluations: tuple[Row, ...]
    spikes: tuple[SpikeEvent, ...]
    unit: str
    unit_steps: int


class RunHistories:
    """Histories of runs, each read once: a finished one stays as it is. What cannot be read is told, and remembered.

    Attributes:
        corrupt: why, by run id.
    """

    def __init__(self, tell: Callable[[str], None] = lambda text: None) -> None:
        self.corrupt: dict[str, str] = {}
        self._tell = tell
        self._known: dict[tuple[str, int], RunHistory | None] = {}

    def of(self, run: Run, rows: int) -> RunHistory | None:
        """Return the history of a run, thinned to so many rows; None where it has none, or one that is damaged."""
        if (run.id, rows) not in self._known:
            self._known[run.id, rows] = _history(run, self._lines(run), rows)
        return self._known[run.id, rows]

    def _lines(self, run: Run) -> Sequence[Json]:
        if run.result is None:
            return _lines_so_far(run)
        try:
            return run.dir.history()
        except CorruptError as error:
            self.corrupt[run.id] = str(error)
            self._tell(str(error))
            return ()


def rows_for(runs: int) -> int:
    """Return how many rows each of so many runs may have."""
    return max(LEAST_ROWS, min(MOST_ROWS, ALL_ROWS // max(1, runs)))


def _lines_so_far(run: Run) -> Sequence[Json]:
    """Return what an unfinished run has recorded in this attempt and in those that it went on from, step by step.

    What is damaged is left out.
    """
    attempt, until, lines = run.dir.latest(), math.inf, list[Json]()
    while attempt:
        attempt_lines = read_lines(attempt.metrics_path)
        lines = [line for line in attempt_lines if isinstance(step := line.get("step"), int) and step <= until] + lines
        until, attempt = min(until, attempt.resumed_from()[1]), attempt.parent()
    return lines


def _history(run: Run, lines: Sequence[Json], rows: int) -> RunHistory | None:
    steps = [line for line in lines if "loss" in line]
    evaluated = [line for line in lines if "val_loss" in line or "val_accuracy" in line]
    if not steps and not evaluated:
        return None
    return RunHistory(
        _means(steps, -(-run.spec.schedule.last_step // rows)),
        _some(evaluated, run.spec.schedule, max(2, rows // 2)),
        tuple(_spikes(run, lines)),
        *curve_unit(run.spec.task, run.spec.batch_size),
    )


def _spikes(run: Run, lines: Sequence[Json]) -> Iterator[SpikeEvent]:
    """Yield the spikes that a result lists, and its divergence, with what was recorded there."""
    result = run.result or {}
    events = result.get("spike_events")
    at = {line["step"]: line for line in lines if "loss" in line} if events else {}
    evaluated = {line["step"]: line for line in lines if "val_loss" in line} if events else {}
    for event in events if isinstance(events, list) else ():
        quantity, step = EVENTS.get(event.get("kind")), event.get("step")
        if quantity and isinstance(step, int):
            line = (at if quantity in TRAINING else evaluated).get(step, {})
            yield SpikeEvent(step, quantity, number(line.get(quantity)), _told(run, event, quantity))
    if isinstance(step := result.get("diverged_step"), int):
        last = next((loss for line in reversed(lines) if (loss := number(line.get("loss"))) is not None), None)
        yield SpikeEvent(step, "loss", last, f"diverged at step {step}: the loss was not finite")


def _told(run: Run, event: Json, quantity: str) -> str:
    """Return what a spike is, in words, with how far it went."""
    name, step = NAMES[quantity], event["step"]
    if quantity in TRAINING:
        window = run.spec.spikes.window_steps
        last = event.get("last_step")
        steps = f"step {step}" if last in (None, step) else f"steps {step} to {last}"
        return (
            f"{name} at {steps}: {event.get('sigmas', 0):.3g} standard deviations above the mean of the {window} before"
        )
    accuracy = quantity == "val_accuracy"
    size = f"{100 * event.get('depth', 0):.3g} points" if accuracy else f"{event.get('depth', 0):.3g}"
    length = count(event.get("length", 1), "evaluation")
    end = f"back after {length}" if event.get("recovered") else "never back"
    return f"{name} at step {step}: {'down' if accuracy else 'up'} by {size}, {end}"


def _means(steps: Sequence[Json], width: int) -> tuple[Row, ...]:
    """Return the means over each so many steps, at the last one of each: the same of all runs of a family."""
    loss, norm = TRAINING
    windows = [list(window) for _, window in groupby(steps, lambda line: (int(line["step"]) - 1) // width)]
    return tuple((int(window[-1]["step"]), _mean(window, loss), _mean(window, norm)) for window in windows)


def _mean(lines: Sequence[Json], name: str) -> float | None:
    """Return the mean of what is known."""
    values: list[Any] = [line.get(name) for line in lines]
    try:
        mean = math.fsum(values) / len(values)  # nearly always all are
    except (TypeError, ValueError, OverflowError):
        mean = math.nan
    if math.isfinite(mean):
        return mean
    finite = [value for value in map(number, values) if value is not None]
    return math.fsum(finite) / len(finite) if finite else None


def _some(evaluated: Sequence[Json], schedule: ScheduleSpec, limit: int) -> tuple[Row, ...]:
    """Return some evaluations, at the same steps of all runs of a family, and the last."""
    every = schedule.eval_every * max(1, -(-schedule.last_step // (schedule.eval_every * limit)))
    loss, accuracy = EVALUATIONS
    thinned = [line for line in evaluated[:-1] if int(line["step"]) % every == 0]
    thinned += evaluated[-1:]
    return tuple((int(line["step"]), number(line.get(loss)), number(line.get(accuracy))) for line in thinned)
