"""The decay of a step, lr * wd, which people hold constant while lr changes, and the steps it averages over."""

from typing import NamedTuple

from ettsweep.powers import format_power
from ettsweep.quantities import three_digits
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RecipeInfo


class TimeScale(NamedTuple):
    """The decay of a step and its time scale, at the peak of the learning rate.

    With decoupled decay, weights are an average over their updates of the last 1 / (lr wd) steps (Wang and Aitchison,
    arXiv 2405.13698).

    Attributes:
        lr_wd: lr * wd, the share by which a step shrinks weights, without a strategy's factors and momentum. None if
            runs have no wd.
        steps: 1 / (lr wd), divided by the gain of momentum for SGD; None without decay.
        epochs: the same in epochs; None if their length is unknown.
        tokens: the same in tokens; None unless all samples are text of one length.
    """

    lr_wd: float | None
    steps: float | None = None
    epochs: float | None = None
    tokens: float | None = None

    @property
    def text(self) -> str:
        """The time scale for people, in steps and in epochs or tokens: 256 steps, 10.7 epochs."""
        if self.lr_wd is None:
            return ""
        if self.steps is None:
            return "no decay"
        parts = [f"{three_digits(self.steps)} steps"]
        if self.epochs is not None:
            parts.append(f"{three_digits(self.epochs)} epochs")
        if self.tokens is not None:
            parts.append(f"{three_digits(self.tokens)} tokens")
        return ", ".join(parts)

    @property
    def lr_wd_text(self) -> str:
        """Lr * wd as a power of two."""
        return "" if self.lr_wd is None else format_power(self.lr_wd, 3)


def time_scale(point: Point, info: RecipeInfo) -> TimeScale:
    """Return the time scale of a point of runs."""
    if not point.has_wd:
        return TimeScale(None)
    lr_wd = point.lr * point.wd
    if not lr_wd:
        return TimeScale(lr_wd)
    steps, per_epoch, per_step = 1 / (lr_wd * info.momentum_gain), info.steps_per_epoch, info.tokens_per_step
    return TimeScale(
        lr_wd, steps, None if per_epoch is None else steps / per_epoch, None if per_step is None else steps * per_step
    )
