"""A kind of runs for tests: a run takes a millisecond, its curve is known, and it resumes exactly."""

import json
import math
import random
import select
from typing import Any, ClassVar, Literal

from ettsweep.metric import Metric
from ettsweep.runs.contract import Kind, Labels, Recipe, RecipeInfo, RunContext, Settings, override_block
from ettsweep.schema import Positive, validate

LOSS = Metric("best_loss", "min", "val_loss")


def take_step(step: int, seconds: float) -> None:
    """Take the time of a step: where tests meet a run, and where an undisturbed one loses none."""
    select.select((), (), (), seconds)  # not time.sleep: it looks at clocks, which a test changes


class FakeSettings(Settings):
    trainable: Literal["fake"] = "fake"
    greeting: str = ""
    loaders: int = 0
    per_core: ClassVar[tuple[str, ...]] = ("loaders",)


class FakeRecipe(Recipe):
    """A bowl in (log2 lr, log2 wd) with noise, which training approaches step by step, in no time or at a pace.

    Attributes:
        last_step: number of its steps.
        every: steps from an evaluation, and a checkpoint, to the next.
        noise: standard deviation of what a seed adds to the loss at the end.
        best_lr, best_wd: where the bowl is lowest.
        width: what strategies scale by; None for runs that state no size.
        step_s: seconds of a step.
    """

    trainable: Literal["fake"] = "fake"
    last_step: Positive = 20
    every: Positive = 5
    warmup: int = 0
    noise: float = 0.01
    best_lr: float = 2.0**-6
    best_wd: float = 2.0**-3
    width: Positive | None = None
    step_s: float = 0.0

    def end(self, lr: float, wd: float, seed: int) -> float:
        """Return the loss that a run approaches."""
        lr_steps, wd_steps = math.log2(lr / self.best_lr), math.log2(wd / self.best_wd) if wd else 0.0
        bowl = 0.1 * lr_steps**2 + 0.05 * wd_steps**2
        return 1 + bowl + random.Random(seed).gauss(0, self.noise)

    def train(self, run: RunContext) -> None:
        """Halve the distance to the end at each step."""
        run.log(f"greeting {run.settings.greeting!r}")
        state: dict[str, Any] = {"value": 4.0}
        if run.resume_from:
            state = json.loads(run.resume_from.read_text())
        end = self.end(run.lr, run.wd, run.seed)
        for step in range(run.resume_step + 1, self.last_step + 1):
            take_step(step, self.step_s)
            state["value"] += 0.5 * (end - state["value"])
            run.record(step, loss=state["value"])
            is_evaluated = step % self.every == 0 or step == self.last_step
            if is_evaluated:
                run.record(step, val_loss=state["value"])
                run.log(f"step {step}/{self.last_step}")
            if run.stop or is_evaluated:
                run.checkpoint(step, lambda path: path.write_text(json.dumps(state)))
            if run.stop:
                return


def _info(recipe: FakeRecipe) -> RecipeInfo:
    return RecipeInfo(
        metric=LOSS,
        labels=Labels("fake", "bowl"),
        steps=recipe.last_step,
        eval_every=recipe.every,
        warmup_steps=recipe.warmup,
        width=recipe.width,
    )


FAKE = Kind(
    schema=FakeRecipe,
    info=_info,
    settings=FakeSettings,
    read=lambda block, overrides, location, folder: validate(FakeRecipe, *override_block(block, overrides, location)),
)
