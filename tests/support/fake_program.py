"""What trains the runs of `fake`: it starts quickly, a run takes a millisecond, and it resumes exactly."""

import json
import math
import os
import random
import select
import sys

from ettsweep.run import Run


def take_step(seconds: float) -> None:
    """Take the time of a step."""
    if "FAKE_TAKES_NO_TIME" not in os.environ:
        select.select((), (), (), seconds)  # not time.sleep: it looks at clocks, which a test changes


def end_of(run: Run, noise: float, best_lr: float, best_wd: float) -> float:
    """Return the loss that a run approaches."""
    lr_steps, wd_steps = math.log2(run.lr / best_lr), math.log2(run.wd / best_wd) if run.wd else 0.0
    bowl = 0.1 * lr_steps**2 + 0.05 * wd_steps**2
    return 1 + bowl + random.Random(run.seed).gauss(0, noise)


def train(run: Run, last_step: int, every: int, noise: float, best_lr: float, best_wd: float, step_s: float) -> None:
    """Halve the distance to the end at each step."""
    state = json.loads(run.resume_from.read_text()) if run.resume_from else {"value": 4.0}
    end = end_of(run, noise, best_lr, best_wd)
    for step in range(run.resume_step + 1, last_step + 1):
        getattr(sys, "before_steps", lambda step: None)(step)  # where tests meet a run
        take_step(step_s)
        state["value"] += 0.5 * (end - state["value"])
        run.log(step, loss=state["value"])
        is_evaluated = step % every == 0 or step == last_step
        if is_evaluated:
            run.log(step, val_loss=state["value"])
            print(f"step {step}/{last_step}")
        if run.should_stop or is_evaluated:
            run.save(step, lambda path: path.write_text(json.dumps(state)))
        if run.should_stop:
            return
