"""A trainable for tests: a run takes a millisecond, its curve is known, and it resumes exactly."""

import json
import math
import random
from typing import Any, ClassVar, Literal

from ettsweep.metric import Metric
from ettsweep.runs.trainable import Labels, RunContext, Settings, Trainable
from ettsweep.schema import Positive

LOSS = Metric("best_loss", "min", "val_loss")


class FakeSettings(Settings):
    trainable: Literal["fake"] = "fake"
    greeting: str = ""
    loaders: int = 0
    per_core: ClassVar[tuple[str, ...]] = ("loaders",)


class FakeRecipe(Trainable):
    """A bowl in (log2 lr, log2 wd) with noise, which training approaches step by step."""

    trainable: Literal["fake"] = "fake"
    last_step: Positive = 20
    every: Positive = 5
    warmup: int = 0
    noise: float = 0.01
    settings: ClassVar[type[Settings]] = FakeSettings

    @property
    def metric(self) -> Metric:
        return LOSS

    @property
    def labels(self) -> Labels:
        return Labels("fake", "bowl")

    @property
    def steps(self) -> int:
        return self.last_step

    @property
    def eval_every(self) -> int:
        return self.every

    @property
    def warmup_steps(self) -> int:
        return self.warmup

    def end(self, lr: float, wd: float, seed: int) -> float:
        """Return the loss that a run approaches."""
        bowl = 0.1 * (math.log2(lr) + 6) ** 2 + 0.05 * (math.log2(wd) + 3 if wd else 0.0) ** 2
        return 1 + bowl + random.Random(seed).gauss(0, self.noise)

    def train(self, run: RunContext) -> None:
        """Halve the distance to the end at each step."""
        run.log(f"greeting {run.settings.greeting!r}")
        state: dict[str, Any] = {"value": 4.0}
        if run.resume_from:
            state = json.loads(run.resume_from.read_text())
        end = self.end(run.lr, run.wd, run.seed)
        for step in range(run.resume_step + 1, self.last_step + 1):
            state["value"] += 0.5 * (end - state["value"])
            run.record(step, loss=state["value"])
            if step % self.every == 0 or step == self.last_step:
                run.record(step, val_loss=state["value"])
            if run.stop:
                run.checkpoint(step, lambda path: path.write_text(json.dumps(state)))
                return
