"""Learning rate as a function of the step."""

import math

from ettsweep.trainer.specs import ScheduleSpec


def lr_at(step: int, lr: float, schedule: ScheduleSpec) -> float:
    """Return the learning rate of a step; `lr` is the peak.

    Linear warmup, lr * step / warmup_steps, then the plateau of `wsd`, then a decay to `lr_min`, or `floor` * lr, at
    `total_steps`. Steps count from 1, so the first step does not have learning rate 0.
    """
    if step <= schedule.warmup_steps:
        return lr * step / schedule.warmup_steps
    if step <= schedule.plateau_end:
        return lr
    progress = (step - schedule.plateau_end) / schedule.decay_steps
    end = schedule.floor * lr or schedule.lr_min
    return end + (lr - end) * _remaining(progress, schedule)


def _remaining(progress: float, schedule: ScheduleSpec) -> float:
    """Return the share of the fall that is left after a share of the decay."""
    if schedule.decay == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * progress)
    return 1.0 - (math.sqrt(progress) if schedule.decay_shape == "sqrt" else progress)
