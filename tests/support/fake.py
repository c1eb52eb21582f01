"""A kind of runs for tests: a run takes a millisecond, its curve is known, and it resumes exactly."""

from pathlib import Path
from typing import Any, Literal

from ettsweep.metric import Metric
from ettsweep.runs.spec import Kind, Labels, Recipe, RecipeInfo, override_block
from ettsweep.schema import Positive, validate

LOSS = Metric("best_loss", "min", "val_loss")


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

    # --- as the function that trains it: `fake_program` ---

    @property
    def function(self) -> str:
        return "support.fake_program:train"

    @property
    def arguments(self) -> dict[str, Any]:
        names = ("last_step", "every", "noise", "best_lr", "best_wd", "step_s")
        return {name: getattr(self, name) for name in names}

    @property
    def folder(self) -> str:
        return str(Path(__file__).parent.parent)

    @property
    def module_path(self) -> Path:
        return Path(__file__).with_name("fake_program.py")


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
    read=lambda block, overrides, location, folder: validate(FakeRecipe, *override_block(block, overrides, location)),
)
