"""Training histories: the recorded steps of runs, each read once and thinned for figures."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ettsweep.console import format_count
from ettsweep.errors import CorruptError
from ettsweep.files import Json, number, read_lines
from ettsweep.metric import QUANTITIES, Metric, valid_score
from ettsweep.runs.index import Run

TRAINING = ("loss", "grad_norm")
"""Quantities recorded at each step."""

EVALUATIONS = ("val_loss", "val_accuracy")
"""Quantities recorded at each evaluation."""


def quantity_label(column: str) -> str:
    """Return the label of a column of metrics.jsonl."""
    return QUANTITIES.get(column, column)


SPIKE_QUANTITIES = {"loss": "loss", "grad": "grad_norm", "accuracy": "val_accuracy", "eval_loss": "val_loss"}
"""The quantity of each kind of spike in a run's result."""

MAX_ROWS, MIN_ROWS = 200, 10
"""Limits on the rows kept of a run's steps; of its evaluations, half as many."""

MAX_TOTAL_ROWS = 100_000
"""Rows of steps on the page, of all runs together."""

Row = tuple[int, float | None, float | None]
"""A step, and the two quantities recorded there."""


@dataclass(frozen=True)
class SpikeEvent:
    """A spike or divergence of a run.

    Attributes:
        quantity: the name in `TRAINING` or `EVALUATIONS` that spiked.
        value: of that quantity there; for a divergence, the last finite loss.
        text: a description for people.
    """

    step: int
    quantity: str
    value: float | None
    text: str


@dataclass(frozen=True)
class RunHistory:
    """The recorded curves of a run.

    Attributes:
        training: (step, loss, gradient norm): means since the row before (nats; before clipping).
        columns: names of the metrics of evaluations.
        evaluations: a step with its value of each of these; None where it was not recorded.
        spikes: those of the run's result, and its divergence.
        unit: epoch or step: the unit that curves are drawn over.
        unit_steps: optimizer steps per unit.
    """

    training: tuple[Row, ...]
    columns: tuple[str, ...]
    evaluations: tuple[tuple[int, *tuple[float | None, ...]], ...]
    spikes: tuple[SpikeEvent, ...]
    unit: str
    unit_steps: int


class RunHistories:
    """A cache of histories, each read once: finished runs do not change.

    A damaged file is reported once, by a call of `warn`.

    Args:
        rows: rows kept of a run's steps; of its evaluations, half as many.
        warn: called with a line for each run whose metrics cannot be read.
        seeds: how many of a point's runs have curves in figures, lowest seeds first; None for all.

    Attributes:
        corrupt: reasons why a history cannot be read, by run id.
    """

    def __init__(
        self, rows: int = MAX_ROWS, warn: Callable[[str], None] = lambda text: None, seeds: int | None = None
    ) -> None:
        self.corrupt: dict[str, str] = {}
        self.seeds = seeds
        self._rows, self._warn = rows, warn
        self._histories: dict[str, RunHistory | None] = {}

    def get(self, run: Run) -> RunHistory | None:
        """Return the thinned history of a run; None if nothing was recorded, or it is damaged."""
        if run.id not in self._histories:
            self._histories[run.id] = _build_history(run, self._read_metrics(run), self._rows)
        return self._histories[run.id]

    def _read_metrics(self, run: Run) -> Sequence[Json]:
        # Until a run finishes, each attempt has its own metrics.
        if run.result is None:
            return _unfinished_metrics(run)
        try:
            return run.dir.history(run.result)
        except CorruptError as error:
            self.corrupt[run.id] = str(error)
            self._warn(str(error))
            return ()


def rows_per_run(runs: int) -> int:
    """Return how many rows to keep of each run."""
    return max(MIN_ROWS, min(MAX_ROWS, MAX_TOTAL_ROWS // max(1, runs)))


def seeds_per_point(runs: int, points: int) -> int | None:
    """Return how many runs of each point have curves on the page; None for all.

    All have, as long as `MIN_ROWS` of each make at most `MAX_TOTAL_ROWS`.
    """
    most = MAX_TOTAL_ROWS // MIN_ROWS
    return None if runs <= most else max(1, most // max(1, points))


def _unfinished_metrics(run: Run) -> Sequence[Json]:
    """Read the steps of an unfinished run from its latest attempt and those it resumed; skip damaged lines."""
    attempt, until, lines = run.dir.latest_attempt(), math.inf, list[Json]()
    while attempt:
        # Steps past the checkpoint that the next attempt resumed were trained again.
        attempt_lines = read_lines(attempt.metrics_path)
        lines = [line for line in attempt_lines if isinstance(step := line.get("step"), int) and step <= until] + lines
        until, attempt = min(until, attempt.resumed_from()[1]), attempt.parent()
    return lines


def _build_history(run: Run, lines: Sequence[Json], rows: int) -> RunHistory | None:
    steps = [line for line in lines if "loss" in line]
    columns = evaluation_columns(run.base.info.metric)
    disjoint = frozenset(columns).isdisjoint
    evaluated = [line for line in lines if not disjoint(line)]
    if not steps and not evaluated:
        return None
    spec, last = run.base, max(int(line["step"]) for line in (*steps[-1:], *evaluated[-1:]))
    epoch = spec.info.steps_per_epoch
    return RunHistory(
        # -(-a // b) rounds up.
        _window_means(steps, -(-(spec.info.steps or last) // rows)),
        columns,
        tuple(
            (int(line["step"]), *(valid_score(line.get(column)) for column in columns))
            for line in _thinned(evaluated, spec.info.eval_every or 1, spec.info.steps or last, max(2, rows // 2))
        ),
        tuple(_spike_events(run, lines)),
        *(("step", 1) if epoch is None else ("epoch", epoch)),
    )


def evaluation_columns(metric: Metric) -> tuple[str, ...]:
    """Return the columns of metrics.jsonl drawn as evaluations: the usual ones, and the score's."""
    return EVALUATIONS if metric.column in (*TRAINING, *EVALUATIONS) else (*EVALUATIONS, metric.column)


def _spike_events(run: Run, lines: Sequence[Json]) -> Iterator[SpikeEvent]:
    """Yield the spikes that a result lists, and its divergence, with the value recorded there."""
    result = run.result or {}
    events = result.get("spike_events")
    # Most runs have no spikes, and need no index of their lines.
    at = {line["step"]: line for line in lines if "loss" in line} if events else {}
    evaluated = {line["step"]: line for line in lines if "val_loss" in line} if events else {}
    for event in events if isinstance(events, list) else ():
        quantity, step = SPIKE_QUANTITIES.get(event.get("kind")), event.get("step")
        if quantity and isinstance(step, int):
            line = (at if quantity in TRAINING else evaluated).get(step, {})
            yield SpikeEvent(step, quantity, number(line.get(quantity)), _spike_text(run, event, quantity))
    if isinstance(step := result.get("diverged_step"), int):
        # The loss where it diverged is not finite: show the last one that is.
        last = next((loss for line in reversed(lines) if (loss := number(line.get("loss"))) is not None), None)
        yield SpikeEvent(step, "loss", last, f"diverged at step {step}: the loss was not finite")


def _spike_text(run: Run, event: Json, quantity: str) -> str:
    name, step = quantity_label(quantity), event["step"]
    if quantity in TRAINING:
        window = run.spec.spikes.window_steps
        last = event.get("last_step")
        steps = f"step {step}" if last in (None, step) else f"steps {step} to {last}"
        return (
            f"{name} at {steps}: {event.get('sigmas', 0):.3g} standard deviations above the mean of the {window} before"
        )
    accuracy = quantity == "val_accuracy"
    size = f"{100 * event.get('depth', 0):.3g} points" if accuracy else f"{event.get('depth', 0):.3g}"
    length = format_count(event.get("length", 1), "evaluation")
    end = f"back after {length}" if event.get("recovered") else "never back"
    return f"{name} at step {step}: {'down' if accuracy else 'up'} by {size}, {end}"


def _window_means(steps: Sequence[Json], width: int) -> tuple[Row, ...]:
    """Return means over windows of `width` steps, each at its last step.

    Windows start at multiples of `width`: the rows of all runs of a family are at the same steps.
    """
    numbers = [int(line["step"]) for line in steps]
    losses, norms = ([line.get(name) for line in steps] for name in TRAINING)
    # Less one, since steps count from 1: the last step of a full window is a multiple of its width.
    windows = [(number - 1) // width for number in numbers]
    ends = [end for end, (window, following) in enumerate(pairwise((*windows, None)), 1) if window != following]
    return tuple(
        (numbers[end - 1], _finite_mean(losses[start:end]), _finite_mean(norms[start:end]))
        for start, end in pairwise((0, *ends))
    )


def _finite_mean(values: Sequence[Any]) -> float | None:
    """Return the mean of the finite values; None where there is none."""
    try:
        mean = math.fsum(values) / len(values)  # the fast path: nearly always all are numbers
    except (TypeError, ValueError, OverflowError):
        mean = math.nan
    if math.isfinite(mean):
        return mean
    finite = [value for value in map(valid_score, values) if value is not None]
    return math.fsum(finite) / len(finite) if finite else None


def _thinned(evaluated: Sequence[Json], eval_every: int, last_step: int, limit: int) -> Sequence[Json]:
    """Thin evaluations to about `limit`, at the same steps for all runs of a family; the last one is kept."""
    if len(evaluated) <= limit:
        return evaluated
    # A multiple of the interval of evaluations, rounded up.
    every = eval_every * max(1, -(-last_step // (eval_every * limit)))
    return [*(line for line in evaluated[:-1] if int(line["step"]) % every == 0), *evaluated[-1:]]
