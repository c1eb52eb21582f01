"""Scaling strategies: their names, the number s that each stands for, and the map of (lr, wd) from one to another."""

import math
import re

from ettsweep.errors import InputError, unknown_name
from ettsweep.strategies.factors import Optimizer

STRATEGIES: dict[str, float | None] = {"standard": None, "ntk": 0.0, "hybrid": 0.5, "mup": 1.0}
"""Meta-parameter s of each named strategy (foot:Meta1); `standard` is outside the family."""

TRANSFERS = STRATEGIES["mup"]
"""The s of the strategy under which (lr, wd) are meant to stay as they are when the width changes."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""What people write; Python's float takes 0_1 for 1, which is another strategy than 0.1."""


def parse_strategy(name: str) -> float | None:
    """Return the s of a named strategy, or of `s=0.25`; None for standard.

    Raises:
        InputError: no such strategy, or s is not a number from 0 to 1.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    if not name.startswith("s="):
        raise unknown_name("strategy", name, [*STRATEGIES, "s=<number from 0 to 1>"])
    text = name.removeprefix("s=")
    s = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 <= s <= 1:
        raise InputError(f"strategy {name!r}: s must be a number from 0 to 1, such as s=0.25")
    return s + 0.0  # -0.0 and 0.0 are one strategy


def strategy_name(s: float | None) -> str:
    """Return the name that `parse_strategy` turns into `s`."""
    for name, named_s in STRATEGIES.items():
        if named_s == s:
            return name
    return f"s={s}"


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


def carry_point(
    lr: float,
    wd: float,
    origin: tuple[float | None, int],
    target: tuple[float | None, int],
    optimizer: Optimizer = "adamw",
) -> tuple[float, float]:
    """Return (lr, wd) in another strategy and at another width, each given as (s, width).

    From width to width it goes through maximal update, in which (lr, wd) are meant to stay as they are.
    """
    (from_s, from_width), (to_s, to_width) = origin, target
    if from_width != to_width:
        lr, wd = map_point(lr, wd, from_s, TRANSFERS, from_width, optimizer)
        from_s = TRANSFERS
    return map_point(lr, wd, from_s, to_s, to_width, optimizer)
