"""Thresholds for spikes of a training curve."""

from typing import Annotated

from pydantic import Field

from ettsweep.schema import NonNegative, Positive, PositiveFloat, StrictModel


class SpikeSpec(StrictModel):
    """Thresholds of the two spike detectors, per step and per evaluation (runs/spikes.py).

    Attributes:
        window_steps: values before a step, its reference.
        sigmas: standard deviations above their mean that make a spike.
        merge_steps: spike steps at most this far apart are one spike.
        window_evals: evaluations whose median is the baseline.
        eval_sigmas: standard deviations of the evaluation noise that a spike must exceed.
        accuracy_drop, accuracy_recovered: drops of accuracy, a fraction, that begin and end a spike.
        loss_rise, loss_recovered: the same for rises of the loss, relative to the baseline.
    """

    window_steps: Annotated[int, Field(ge=2)] = 128
    sigmas: PositiveFloat = 6.0
    merge_steps: Positive = 10
    window_evals: Annotated[int, Field(ge=2)] = 5
    eval_sigmas: PositiveFloat = 5.0
    accuracy_drop: PositiveFloat = 0.01
    accuracy_recovered: NonNegative = 0.005
    loss_rise: PositiveFloat = 0.05
    loss_recovered: NonNegative = 0.025
