"""Learning rate as a function of the step."""

import math

from ettsweep.trainer.specs import ScheduleSpec


def lr_at(step: int, lr: float, schedule: ScheduleSpec) -> float:
    """Return the learning rate of a step; `lr` is the peak.

    Linear warmup, lr * step / warmup_steps, then cosine or linear decay to `lr_min` at `total_steps`. Steps are counted
    from 1, so that the first step does not have learning rate 0.
    """
    if step <= schedule.warmup_steps:
        return lr * step / schedule.warmup_steps
    progress = (step - schedule.warmup_steps) / (schedule.total_steps - schedule.warmup_steps)
    decay = 0.5 + 0.5 * math.cos(math.pi * progress) if schedule.decay == "cosine" else 1.0 - progress
    return schedule.lr_min + (lr - schedule.lr_min) * decay
