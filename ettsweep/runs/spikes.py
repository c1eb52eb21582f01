"""Spikes: sudden failures of a training curve, counted as a result of the run.

Two detectors. Per step, on train loss and gradient norm: far above the mean of a running window. Per
evaluation, on validation accuracy and loss: away from a running baseline, followed until the curve is back.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ettsweep.runs.spec import RunSpec, SpikeSpec

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

CONSTANT = 1e-10
"""A window whose standard deviation is below this share of its mean is constant up to rounding; it has no
scale to measure a spike by (OLMo-core's StabilityMonitor skips such windows too)."""

SLACK = 1e-12
"""A value at a threshold has not passed it, however a difference rounds: in floats, 0.97 - 0.96 > 0.01."""

CHUNK_WINDOWS = 4096
"""Windows handled at once: bounds memory, a few megabytes."""


@dataclass(frozen=True)
class StepSpike:
    """Spike steps at most `merge_steps` apart; `sigmas` is the farthest above its window's mean."""

    step: int
    last_step: int
    sigmas: float


@dataclass(frozen=True)
class EvaluationSpike:
    """A drop of accuracy, or a rise of loss, and whether the curve came back.

    `step` is that of the first evaluation beyond the threshold, `depth` the farthest from the
    baseline in the metric's own unit (an accuracy is a fraction), `length` the evaluations until it was back.
    """

    step: int
    depth: float
    length: int
    recovered: bool


def step_spikes(values: Sequence[float | None], spec: SpikeSpec, warmup_steps: int) -> list[StepSpike]:
    """Find the steps far above the mean of the window before them, the first one first.

    `values[i]` belongs to step i + 1; None (non-finite, or skipped for an overflow) is neither a spike nor part of a
    window, and values up to `warmup_steps` are left out. A window holds the `window_steps` values before, and must be
    full; its standard deviation is the population's. Spike steps stay in the windows of later steps: a large one masks
    those less than about half as high in the `window_steps` after it. Heavy tails count, see docs/spikes.md.
    """
    array = np.array([math.nan if v is None else v for v in values[warmup_steps:]], dtype=np.float64)
    kept = np.flatnonzero(np.isfinite(array))
    sigmas = _sigmas(array[kept], spec.window_steps)
    hits = np.flatnonzero(sigmas > spec.sigmas)
    # sigmas[i] belongs to the value after window i.
    steps = kept[hits + spec.window_steps] + warmup_steps + 1
    gaps = np.flatnonzero(np.diff(steps) > spec.merge_steps) + 1
    events = zip(np.split(steps, gaps), np.split(sigmas[hits], gaps), strict=True)
    return [StepSpike(int(at[0]), int(at[-1]), float(far.max())) for at, far in events if len(at)]  # none without a hit


def _sigmas(values: "np.ndarray[Any, np.dtype[np.float64]]", window: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return how far each value lies above the mean of the `window` before it; 0 after a constant window."""
    result = np.zeros(max(0, len(values) - window))
    for start in range(0, len(result), CHUNK_WINDOWS):
        new = values[start + window : start + window + CHUNK_WINDOWS]
        before = sliding_window_view(values[start : start + len(new) + window - 1], window)
        mean, std = before.mean(axis=1), before.std(axis=1)
        varies = std > CONSTANT * np.abs(mean)
        np.divide(new - mean, std, out=result[start : start + len(new)], where=varies)
    return result


def evaluation_spikes(
    steps: Sequence[int],
    values: Sequence[float | None],
    spec: SpikeSpec,
    warmup_steps: int,
    kind: Literal["accuracy", "loss"],
) -> list[EvaluationSpike]:
    """Find drops of an accuracy, or rises of a loss, from the median of the evaluations before, the first one first.

    Accuracies are fractions; a loss has thresholds relative to its baseline. None (non-finite), and evaluations up to
    `warmup_steps`, are left out. Only the last event can be unrecovered. Evaluations inside an event enter neither
    later baselines nor the noise: first differences count where both ends are outside events.
    """
    sign = 1.0 if kind == "accuracy" else -1.0
    start, back = (
        (spec.accuracy_drop, spec.accuracy_recovered) if kind == "accuracy" else (spec.loss_rise, spec.loss_recovered)
    )
    events: list[EvaluationSpike] = []
    calm: list[float] = []  # evaluations outside events
    differences: list[float] = []
    previous: float | None = None  # the evaluation just before, if it was outside events
    baseline, scale, inside = 0.0, 1.0, False
    for step, value in zip(steps, values, strict=True):
        if step <= warmup_steps or value is None or not math.isfinite(value):
            continue
        if inside:
            drop = sign * (baseline - value)
            inside = drop > back * scale + SLACK
            events[-1] = _went_on(events[-1], drop) if inside else replace(events[-1], recovered=True)
        elif len(calm) >= spec.window_evals:
            baseline = median(calm[-spec.window_evals :])
            scale = 1.0 if kind == "accuracy" else abs(baseline)
            drop = sign * (baseline - value)
            # The noise costs a pass over the curve: asked for only where the drop is large enough.
            inside = drop > start * scale + SLACK and drop > spec.eval_sigmas * _noise(differences) + SLACK
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


def _went_on(event: EvaluationSpike, drop: float) -> EvaluationSpike:
    return replace(event, depth=max(event.depth, drop), length=event.length + 1)


def _noise(differences: list[float]) -> float:
    """Return the standard deviation of first differences, from their median absolute deviation."""
    if not differences:
        return 0.0
    middle = median(differences)
    return MAD_TO_SIGMA * median(abs(d - middle) for d in differences)


def count_spikes(history: Sequence[dict[str, Any]], spec: RunSpec) -> dict[str, object]:
    """Count all spikes of a run from its metrics.

    Returns:
        `loss_spikes`, `grad_spikes` (per step), `accuracy_spikes`, `eval_loss_spikes` (per evaluation, those
        that came back), `unrecovered` (per evaluation, those of both curves that did not), `overflow_steps`,
        `nonfinite_steps` (other steps without a finite loss and gradient norm), and `spike_events`, plain.
    """
    spikes, warmup = spec.spikes, spec.schedule.warmup_steps
    train = [line for line in history if "loss" in line]
    counts: dict[str, object] = {}
    events: list[dict[str, object]] = []
    for key, name in (("loss", "loss"), ("grad_norm", "grad")):
        values = [None if line.get("overflow") else line.get(key) for line in train]
        found = step_spikes(values, spikes, warmup)
        counts[f"{name}_spikes"] = len(found)
        events += [{"kind": name, **asdict(spike)} for spike in found]
    unrecovered = 0
    for name, kind in EVALUATED.items():
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


EVALUATED: dict[str, Literal["accuracy", "loss"]] = {"accuracy": "accuracy", "eval_loss": "loss"}
"""What the spikes of each validation metric are called."""
