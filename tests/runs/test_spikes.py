"""Spikes on made curves whose answers follow from the definitions by hand."""

import math
from collections.abc import Callable

import pytest

from ettsweep.runs.spec import RunSpec
from ettsweep.runs.spike_spec import SpikeSpec
from ettsweep.runs.spikes import EvaluationSpike, count_spikes, evaluation_spikes, step_spikes

SPEC = SpikeSpec()
FLAT = [1.0, -1.0] * 64
"""128 values with mean 0 and population standard deviation 1."""


# --- per step -----------------------------------------------------------------------------------------------


def test_six_sigmas_exactly_is_not_yet_a_spike() -> None:
    assert step_spikes([*FLAT, 6.0], SPEC, 0) == step_spikes([*FLAT, -100.0], SPEC, 0) == []
    (spike,) = step_spikes([*FLAT, 6.5], SPEC, 0)
    assert (spike.step, spike.last_step, spike.sigmas) == (129, 129, 6.5)


def test_window_holds_values_after_warmup_only() -> None:
    assert len(step_spikes([1e6, *FLAT, 7.0], SPEC, 1)) == 1
    assert step_spikes([*FLAT, 7.0], SPEC, 1) == [], "127 are left"
    assert step_spikes([*FLAT, 100.0, *FLAT], SPEC, 129) == []
    assert len(step_spikes([*FLAT, 7.0], SPEC, 0)) == 1


def test_constant_window_has_no_spikes() -> None:
    assert step_spikes([1 / 3] * 128 + [1.0], SPEC, 0) == []


def test_missing_values_are_skipped_and_leave_the_window() -> None:
    values = [None, *FLAT[:64], None, math.nan, *FLAT[64:], None, 8.0]
    (spike,) = step_spikes(values, SPEC, 0)
    assert (spike.step, spike.sigmas) == (len(values), 8.0)


@pytest.mark.parametrize(("gap", "events"), [(10, 1), (11, 2)])
def test_hits_at_most_ten_steps_apart_are_one_event(gap: int, events: int) -> None:
    second = 129 + gap
    values = [*FLAT, 7.0, *[0.0] * (gap - 1), 1000.0]
    step_spikes_result = step_spikes(values, SPEC, 0)
    assert len(step_spikes_result) == events
    assert (step_spikes_result[0].step, step_spikes_result[-1].last_step) == (129, second)
    # The window of the second: 127 - (gap - 1) of the flat values, the first spike, gap - 1 zeros.
    window = values[second - 129 : second - 1]
    mean = sum(window) / 128
    std = math.sqrt(sum((v - mean) ** 2 for v in window) / 128)
    assert max(e.sigmas for e in step_spikes_result) == pytest.approx((1000.0 - mean) / std, rel=1e-12)


# --- per evaluation -----------------------------------------------------------------------------------------


def dips(values: list[float | None], warmup_steps: int = 0, spikes: SpikeSpec = SPEC) -> list[EvaluationSpike]:
    return evaluation_spikes(range(10, 10 * len(values) + 1, 10), values, spikes, warmup_steps, "accuracy")


def rises(values: list[float | None]) -> list[EvaluationSpike]:
    return evaluation_spikes(range(10, 10 * len(values) + 1, 10), values, SPEC, 0, "loss")


def test_back_within_half_a_point_ends_a_dip() -> None:
    (dip,) = dips([0.97] * 5 + [0.9, 0.9649, 0.965, 0.97])
    assert (dip.step, dip.length, dip.recovered) == (60, 2, True)


def test_baseline_is_the_median_of_five_and_frozen() -> None:
    # Median 0.8 (the mean is lower). Were the baseline not frozen, 0.6 would become it and end the dip.
    (dip,) = dips([0.2, 0.79, 0.8, 0.81, 0.82, *[0.6] * 9], spikes=SPEC.model_copy(update={"eval_sigmas": 1e-9}))
    assert dip == EvaluationSpike(60, pytest.approx(0.2), 9, False)


def test_noise_raises_the_threshold() -> None:
    # Differences +.02 -.02 +.02 -.02: median 0, MAD .02, sigma .029652, 5 sigma .14826; baseline .52.
    noisy = [0.52, 0.54, 0.52, 0.54, 0.52]
    assert dips([*noisy, 0.52 - 0.148]) == []
    (dip,) = dips([*noisy, 0.52 - 0.149])
    assert dip.depth == pytest.approx(0.149)


def test_fewer_than_five_evaluations_before_are_no_baseline() -> None:
    assert dips([0.5] * 4 + [0.1]) == []
    assert dips([0.5] * 5 + [0.1], warmup_steps=10) == []


def test_losses_rise_relative_to_their_baseline() -> None:
    assert rises([2.0] * 5 + [2.1]) == [], "5% exactly"
    (rise,) = rises([2.0] * 5 + [2.11, 2.3, 2.051, 2.05])
    assert rise == EvaluationSpike(60, pytest.approx(0.3), 3, True)
    assert rises([2.0] * 5 + [1.0]) == [], "a fall of a loss is good"


# --- a whole run --------------------------------------------------------------------------------------------


def test_history_is_counted_column_by_column(make_spec: Callable[..., RunSpec]) -> None:
    spec = make_spec(schedule={"total_steps": 1000, "warmup_steps": 10, "eval_every": 10})
    history: list[dict[str, object]] = []
    for i in range(300):
        step = i + 1
        line: dict[str, object] = {"step": step, "loss": 2 + (-1) ** i * 0.1, "grad_norm": 1 + (-1) ** i * 0.1}
        if step in (200, 205, 250):
            line["loss"] = 20.0
        if step == 280:
            line["grad_norm"] = 20.0
        if step in (150, 151):
            line |= {"overflow": True, "nonfinite": True, "loss": 50.0, "grad_norm": None}
        if step == 152:
            line |= {"loss": None, "grad_norm": None, "nonfinite": True}
        history.append(line)
        if step % 10 == 0:
            accuracy = 0.5 if step in (100, 110, 200) else 0.9
            history.append({"step": step, "val_loss": 1.0 if step < 290 else 3.0, "val_accuracy": accuracy})
    counts = count_spikes(history, spec)
    events = counts.pop("spike_events")
    assert {name: count for name, count in counts.items() if count} == {
        "loss_spikes": 2,
        "grad_spikes": 1,
        "accuracy_spikes": 2,
        "unrecovered": 1,
        "overflow_steps": 2,
        "nonfinite_steps": 1,
    }
    assert isinstance(events, list)
    expected = {"loss": [200, 250], "grad": [280], "accuracy": [100, 200], "eval_loss": [290]}
    for kind, steps in expected.items():
        assert [event["step"] for event in events if event["kind"] == kind] == steps
    assert events[0]["last_step"] == 205
