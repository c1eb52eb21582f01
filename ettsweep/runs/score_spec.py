"""The score of own code, as stated in a grid file."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ettsweep.metric import Metric
from ettsweep.schema import NotInId, Positive, StrictModel

HIGHER_IS_BETTER = {"acc", "accuracy", "top1", "f1", "auc", "bleu", "rouge", "map", "miou"}
LOWER_IS_BETTER = {"loss", "err", "error", "ppl", "perplexity", "nll", "bpb", "mse", "mae", "rmse"}
"""Words in names of metrics that imply their mode."""


class AtStep(StrictModel):
    """The value of a metric at a step."""

    step: Positive


class ScoreSpec(StrictModel):
    """The score of own code, `score:` in a grid file.

    Attributes:
        name: of the recorded metric.
        mode: whether lower or higher is better.
        take: the best value, the last, or the one at a step: `{step: 5000}`.
        margin: whether a margin is a share of the score, or a difference from it.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w./-]*$", max_length=60)]
    mode: Literal["min", "max"]
    take: Literal["best", "last"] | AtStep = "best"
    margin: Annotated[Literal["share", "difference"], NotInId()] = "share"

    @property
    def metric(self) -> Metric:
        """The metric that verdicts compare."""
        if isinstance(self.take, AtStep):
            return Metric(
                f"{self.name}_at_{self.take.step}", self.mode, self.name, self.take.step, margin_is=self.margin
            )
        return Metric(f"{self.name}_{self.take}", self.mode, self.name, self.take, margin_is=self.margin)


def usual_mode(name: str) -> Literal["min", "max"] | None:
    """Return the mode that the name of a metric implies; None if it implies none, or both."""
    words = set(name.lower().replace("-", "_").replace("/", "_").replace(".", "_").split("_"))
    lower, higher = bool(words & LOWER_IS_BETTER), bool(words & HIGHER_IS_BETTER)
    return None if lower == higher else "min" if lower else "max"


def _check_stated(data: object) -> object:
    """Refuse `step`, and modes that seek the worst `acc` or `loss` unless they end with `!`."""
    if not isinstance(data, dict) or not isinstance(name := data.get("name"), str):
        return data
    if name == "step":
        raise ValueError("name: a metric is expected, but `step` counts steps")
    mode = data.get("mode")
    if mode in ("min!", "max!"):
        return data | {"mode": mode[:-1]}
    usual = usual_mode(name)
    if usual and mode in ("min", "max") and mode != usual:
        raise ValueError(f"mode: {mode} is unusual for {name}; write {usual}, or {mode}! if you mean it")
    return data


StatedScore = Annotated[ScoreSpec, BeforeValidator(_check_stated)]
"""A score as written in a grid file."""
