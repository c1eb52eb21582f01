"""Spikes: sudden jumps of a training curve, counted as a result of the run.

There are two detectors. The one per step finds values of train loss and gradient norm far above the mean of a sliding
window. The one per evaluation finds excursions of validation accuracy and loss from the median of a sliding window,
and follows them until the curve recovers.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ettsweep.runs.spec import RunSpec
from ettsweep.runs.spike_spec import SpikeSpec

MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation (MAD) of a normal distribution."""

CONSTANT_TOLERANCE = 1e-10
"""Relative standard deviation below which a window counts as constant: divided by it, any change would be a spike
(OLMo-core's StabilityMonitor skips such windows too)."""

THRESHOLD_TOLERANCE = 1e-12
"""Tolerance, so a value at a threshold does not exceed it: in floats, 0.97 - 0.96 > 0.01."""

CHUNK_WINDOWS = 4096
"""Windows processed at once, to bound memory to a few megabytes."""


@dataclass(frozen=True)
class StepSpike:
    """Spike of a per-step curve: one or more spike steps, each at most `merge_steps` after the one before.

    Attributes:
        step, last_step: first and last of them, counted from 1.
        sigmas: the largest excess over a window's mean, in standard deviations of the window.
    """

    step: int
    last_step: int
    sigmas: float


@dataclass(frozen=True)
class EvaluationSpike:
    """Spike of a validation curve: a drop of accuracy or a rise of loss.

    Attributes:
        step: of the first evaluation beyond the threshold.
        depth: largest distance from the baseline, in the metric's own unit (an accuracy is a fraction).
        length: number of evaluations until the curve recovered.
        recovered: whether it did.
    """

    step: int
    depth: float
    length: int
    recovered: bool


def step_spikes(
    values: Sequence[float | None], spec: SpikeSpec, warmup_steps: int, steps: Sequence[int] | None = None
) -> list[StepSpike]:
    """Find the spikes of a per-step curve, in order: values more than `spec.sigmas` above the mean of their window.

    The window of a value holds the `window_steps` values before it, and must be full; its standard deviation is the
    population's. Spike steps stay in the windows of later steps: a large one masks those less than about half as high
    in the `window_steps` after it. Heavy tails count, see docs/runs.md.

    Args:
        values: of the recorded steps; None (non-finite, or an overflow) enters no window.
        spec: thresholds.
        warmup_steps: steps that are left out at the beginning.
        steps: of the values, ascending; by default 1, 2, ...
    """
    array = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
    numbers = np.arange(1, len(array) + 1) if steps is None else np.asarray(steps, dtype=np.int64)
    finite = np.flatnonzero(np.isfinite(array) & (numbers > warmup_steps))
    sigmas = _sigmas(array[finite], spec.window_steps)
    hits = np.flatnonzero(sigmas > spec.sigmas)
    # sigmas[i] belongs to the value after window i.
    hit_steps = numbers[finite[hits + spec.window_steps]]
    gaps = np.flatnonzero(np.diff(hit_steps) > spec.merge_steps) + 1
    events = zip(np.split(hit_steps, gaps), np.split(sigmas[hits], gaps), strict=True)
    # np.split of an empty array yields one empty part.
    return [StepSpike(int(at[0]), int(at[-1]), float(excess.max())) for at, excess in events if len(at)]


def _sigmas(values: "np.ndarray[Any, np.dtype[np.float64]]", window: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return z-scores, shape (len(values) - window,): each value against the `window` values before it.

    0 after a constant window.
    """
    z_scores = np.zeros(max(0, len(values) - window))
    for start in range(0, len(z_scores), CHUNK_WINDOWS):
        chunk = values[start + window : start + window + CHUNK_WINDOWS]
        windows = sliding_window_view(values[start : start + len(chunk) + window - 1], window)
        mean, std = windows.mean(axis=1), windows.std(axis=1)
        varies = std > CONSTANT_TOLERANCE * np.abs(mean)
        np.divide(chunk - mean, std, out=z_scores[start : start + len(chunk)], where=varies)
    return z_scores


def evaluation_spikes(
    steps: Sequence[int],
    values: Sequence[float | None],
    spec: SpikeSpec,
    warmup_steps: int,
    kind: Literal["accuracy", "loss"],
) -> list[EvaluationSpike]:
    """Find the spikes of a validation curve, in order: drops of accuracy or rises of loss from a running median.

    Evaluations inside a spike enter neither later baselines nor the noise, which is estimated from first differences
    whose ends both lie outside spikes. Only the last spike can be unrecovered.

    Args:
        steps: steps of the evaluations.
        values: accuracies as fractions, or losses; None (non-finite) is left out.
        spec: thresholds; those of a loss are relative to the baseline.
        warmup_steps: evaluations up to this step are left out.
        kind: which of the two the values are.
    """
    sign = 1.0 if kind == "accuracy" else -1.0  # a drop is positive for both: a loss spikes upwards
    start, back = (
        (spec.accuracy_drop, spec.accuracy_recovered) if kind == "accuracy" else (spec.loss_rise, spec.loss_recovered)
    )
    events: list[EvaluationSpike] = []
    calm: list[float] = []  # evaluations outside spikes
    differences: list[float] = []
    previous: float | None = None  # the evaluation just before, if it was outside spikes
    baseline, scale, inside = 0.0, 1.0, False
    for step, value in zip(steps, values, strict=True):
        if step <= warmup_steps or value is None or not math.isfinite(value):
            continue
        if inside:
            drop = sign * (baseline - value)
            inside = drop > back * scale + THRESHOLD_TOLERANCE
            events[-1] = _extended(events[-1], drop) if inside else replace(events[-1], recovered=True)
        elif len(calm) >= spec.window_evals:
            baseline = median(calm[-spec.window_evals :])
            scale = 1.0 if kind == "accuracy" else abs(baseline)
            drop = sign * (baseline - value)
            # _noise takes the whole curve: compute it only after a large drop.
            inside = (
                drop > start * scale + THRESHOLD_TOLERANCE
                and drop > spec.eval_sigmas * _noise(differences) + THRESHOLD_TOLERANCE
            )
            if inside:
                events.append(EvaluationSpike(step, drop, 1, recovered=False))
        if inside:
            previous = None
            continue
        if previous is not None:
            differences.append(value - previous)
        calm.append(value)
        previous = value
    return events


def _extended(event: EvaluationSpike, drop: float) -> EvaluationSpike:
    return replace(event, depth=max(event.depth, drop), length=event.length + 1)


def _noise(differences: list[float]) -> float:
    """Return a robust standard deviation of first differences, from their median absolute deviation."""
    if not differences:
        return 0.0
    middle = median(differences)
    return MAD_TO_SIGMA * median(abs(d - middle) for d in differences)


def count_spikes(history: Sequence[dict[str, Any]], spec: RunSpec) -> dict[str, object]:
    """Count the spikes of all curves of a run.

    Args:
        history: lines of metrics.jsonl.
        spec: the run, for thresholds and warm-up.

    Returns:
        Fields of result.json: `loss_spikes` and `grad_spikes` (per step), `accuracy_spikes` and `eval_loss_spikes` (per
        evaluation, recovered ones), `unrecovered` (unrecovered ones of both validation curves), `overflow_steps`,
        `nonfinite_steps` (other steps without a finite loss and gradient norm), and `spike_events`, each as a mapping.
    """
    spikes, warmup = spec.spikes, spec.info.warmup_steps
    train = [line for line in history if "loss" in line]
    counts: dict[str, object] = {}
    events: list[dict[str, object]] = []
    for key, name in (("loss", "loss"), ("grad_norm", "grad")):
        # The loss scaler skipped an overflowed step: its values say nothing of the training.
        values = [None if line.get("overflow") else line.get(key) for line in train]
        jumps = step_spikes(values, spikes, warmup, [line["step"] for line in train])
        counts[f"{name}_spikes"] = len(jumps)
        events += [{"kind": name, **asdict(spike)} for spike in jumps]
    unrecovered = 0
    for name, kind in EVALUATION_CURVES.items():
        key = f"val_{kind}"
        lines = [line for line in history if key in line]
        drops = evaluation_spikes([x["step"] for x in lines], [x[key] for x in lines], spikes, warmup, kind)
        counts[f"{name}_spikes"] = sum(e.recovered for e in drops)
        unrecovered += sum(not e.recovered for e in drops)
        events += [{"kind": name, **asdict(spike)} for spike in drops]
    return counts | {
        "unrecovered": unrecovered,
        "overflow_steps": sum(line.get("overflow") is True for line in train),
        "nonfinite_steps": sum(line.get("nonfinite") is True and not line.get("overflow") for line in train),
        "spike_events": events,
    }


EVALUATION_CURVES: dict[str, Literal["accuracy", "loss"]] = {"accuracy": "accuracy", "eval_loss": "loss"}
"""Validation metric of each kind of spike: `eval_loss` spikes are those of `val_loss`, apart from the train loss."""
