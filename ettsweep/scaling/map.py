"""The map of a point (lr, wd) from one scaling strategy to another."""

import math

from ettsweep.scaling.factors import Optimizer


def bulk_exponent(s: float | None, optimizer: Optimizer) -> float:
    """Return e, where n^-e is the learning-rate factor of the bulk at width n; 0 for standard.

    eq:AdamWlambdaG-preview-Q and eq:SGDlambdaG-preview-Q, with s from foot:Meta2.
    """
    if s is None:
        return 0.0
    return 1.5 - s / 2 if optimizer == "adamw" else 1.0 - s


def map_point(
    lr: float, wd: float, from_s: float | None, to_s: float | None, width: int, optimizer: Optimizer = "adamw"
) -> tuple[float, float]:
    """Return (lr, wd) in another strategy, with the same bulk step and the same decay per step.

    The steps of the other groups change: that is the point of the strategies. lr_min, eps and clip_norm stay.
    """
    k = math.pow(width, bulk_exponent(to_s, optimizer) - bulk_exponent(from_s, optimizer))
    return lr * k, wd / k
