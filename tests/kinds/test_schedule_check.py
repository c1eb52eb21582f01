"""Schedules whose lr would rise after the warm-up or whose steps do nothing, beside what the trainer makes of them."""

from typing import Any

import pytest

from ettsweep.errors import InputError
from ettsweep.kinds.schedule_check import check_schedule
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.training.schedule import lr_at


def schedule(**fields: Any) -> ScheduleSpec:
    return ScheduleSpec.model_validate({"total_steps": 12, "warmup_steps": 4, "eval_every": 4, **fields})


def rises(lr: float, spec: ScheduleSpec) -> bool:
    """Return whether lr rises at a step after the warm-up, by the trainer's own function."""
    steps = range(max(1, spec.warmup_steps), spec.last_step)
    return any(lr_at(step + 1, lr, spec) > lr_at(step, lr, spec) for step in steps)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("stop_step", [None, 4, 5])
@pytest.mark.parametrize("lr_min", [0.0, 0.25, 0.5, 0.75])
def test_what_is_refused_is_where_the_trainer_raises_lr(decay: str, stop_step: int | None, lr_min: float) -> None:
    spec, low, high = schedule(decay=decay, stop_step=stop_step, lr_min=lr_min), 0.25, 0.5
    if rises(low, spec) and rises(high, spec):
        with pytest.raises(InputError, match=r"^schedule\.lr_min: 0\.75 is above each lr, .*; set less than 2\^-2"):
            check_schedule(spec, [high, low])
    else:
        note = "schedule.lr_min 0.5 is above lr 2^-2: after the warm-up, lr rises to it there"
        assert (note in check_schedule(spec, [high, low])) == rises(low, spec)


def test_steps_that_do_nothing_are_refused_or_noted() -> None:
    single = schedule(total_steps=1, warmup_steps=0)
    assert lr_at(1, 1.0, single) == 0
    with pytest.raises(InputError, match=r"^schedule\.total_steps: must be at least 2: lr is 0 at the last step"):
        check_schedule(single, [1.0])
    assert check_schedule(schedule(total_steps=2, warmup_steps=0), [1.0]) == ""
    cliff = schedule(total_steps=5, warmup_steps=4)
    assert lr_at(5, 1.0, cliff) == 0
    assert check_schedule(cliff, [1.0]) == "the only step after the warm-up has lr 0: it trains nothing"
    short = schedule(stop_step=3)
    assert lr_at(3, 1.0, short) == 0.75
    assert check_schedule(short, [1.0]) == "runs end at step 3, within the warm-up of 4: they reach 75% of a point's lr"
