"""Schedules that do not train with the lr of a point: the lr rises after the warm-up, or steps do nothing."""

from collections.abc import Sequence

from ettsweep.errors import InputError
from ettsweep.powers import format_power
from ettsweep.runs.point import MAPPED_TOLERANCE
from ettsweep.trainer.specs import ScheduleSpec


def check_schedule(schedule: ScheduleSpec, lrs: Sequence[float]) -> str:
    """Return a note on unexpected effects of a schedule; empty without any.

    Args:
        schedule: of the runs.
        lrs: the lr of each point.

    Raises:
        InputError: lr would rise after the warm-up at all points, or no step would train.
    """
    last, warmup, floor = schedule.last_step, schedule.warmup_steps, schedule.lr_min
    ends_at_zero = not floor and not schedule.floor
    if last == schedule.total_steps == 1 and not warmup and ends_at_zero:
        raise InputError("schedule.total_steps: must be at least 2: lr is 0 at the last step")
    # Only if runs get there. Centres mapped between strategies differ in the last bits.
    below = sorted({lr for lr in lrs if last > warmup and lr < floor * (1 - MAPPED_TOLERANCE)})
    texts = [format_power(lr, 4) for lr in below]
    values = ", ".join(texts) if len(texts) <= 4 else f"{texts[0]} to {texts[-1]}"
    if below and max(lrs) == below[-1]:
        raise InputError(
            f"schedule.lr_min: {floor:g} is above each lr, {values}: after the warm-up, lr would rise to it; set less "
            f"than {texts[0]}, or 0"
        )
    notes = []
    if below:
        notes.append(f"schedule.lr_min {floor:g} is above lr {values}: after the warm-up, lr rises to it there")
    if last < warmup:
        share = f"{last / warmup:.0%}"
        notes.append(f"runs end at step {last}, within the warm-up of {warmup}: they reach {share} of a point's lr")
    elif last == schedule.total_steps == warmup + 1 and ends_at_zero:
        notes.append("the only step after the warm-up has lr 0: it trains nothing")
    return "\n".join(notes)
