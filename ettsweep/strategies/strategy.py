"""Scaling strategies: names, their meta-parameter s, and the map of (lr, wd) from one strategy to another."""

import math
import re

from ettsweep.errors import InputError, unknown_name
from ettsweep.strategies.factors import Optimizer

STRATEGIES: dict[str, float | None] = {"standard": None, "ntk": 0.0, "hybrid": 0.5, "mup": 1.0}
"""Meta-parameter s of each named strategy (foot:Meta1); `standard` is outside the family."""

TRANSFER_S = STRATEGIES["mup"]
"""s of maximal update, the strategy under which the best (lr, wd) should not depend on the width."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A plain decimal number. Stricter than Python's float, which reads the typo 0_1 as 1."""


def parse_strategy(name: str) -> float | None:
    """Return s of a named strategy or of a text such as `s=0.25`; None for standard.

    Raises:
        InputError: unknown strategy, or s is not a number from 0 to 1.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    if not name.startswith("s="):
        raise unknown_name("strategy", name, [*STRATEGIES, "s=<number from 0 to 1>"])
    text = name.removeprefix("s=")
    # -1 fails the check below, with the same message.
    s = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 <= s <= 1:
        raise InputError(f"strategy {name!r}: s must be a number from 0 to 1, such as s=0.25")
    return s + 0.0  # -0.0 and 0.0 are one strategy


def strategy_name(s: float | None) -> str:
    """Return the strategy's name, the inverse of `parse_strategy`."""
    for name, named_s in STRATEGIES.items():
        if named_s == s:
            return name
    return f"s={s}"


def usual_name(text: str) -> str:
    """Return the usual name of a strategy, as s=0.250 is s=0.25; any other text, such as a variant's, unchanged."""
    try:
        return strategy_name(parse_strategy(text))
    except InputError:
        return text


def is_strategy(text: str) -> bool:
    """Whether a text is the name of a strategy."""
    try:
        parse_strategy(text)
    except InputError:
        return False
    return True


def check_strategy(s: float | None, optimizer: Optimizer) -> None:
    """Check that a strategy exists for an optimizer.

    Raises:
        InputError: it does not: Muon has standard and maximal update alone.
    """
    if optimizer == "muon" and s not in (None, TRANSFER_S):
        raise InputError(
            f"strategy {strategy_name(s)}: muon supports standard and mup only; neural-tangent factors make up for "
            "the size of gradients, but muon's steps have a fixed size, so outputs would change as 1/width"
        )


def bulk_exponent(s: float | None, optimizer: Optimizer) -> float:
    """Return e such that the bulk's learning-rate factor at width n is n^-e; 0 for standard.

    eq:AdamWlambdaG-preview-Q and eq:SGDlambdaG-preview-Q, with s from foot:Meta2. Muon's factors (`spectral_factor`)
    have ratios of widths alone.

    Raises:
        InputError: the optimizer does not have the strategy.
    """
    check_strategy(s, optimizer)
    if s is None or optimizer == "muon":
        return 0.0
    return 1.5 - s / 2 if optimizer == "adamw" else 1.0 - s


def map_point(
    lr: float, wd: float, from_s: float | None, to_s: float | None, width: int, optimizer: Optimizer = "adamw"
) -> tuple[float, float]:
    """Convert (lr, wd) to another strategy at the same width, keeping the bulk's step and the decay per step.

    Steps of the other groups change, which is what distinguishes the strategies. lr_min, eps and clip_norm stay.
    """
    # The bulk's step is lr * n^-e, and decay per step is lr * wd.
    k = math.pow(width, bulk_exponent(to_s, optimizer) - bulk_exponent(from_s, optimizer))
    return lr * k, wd / k


def transfer_point(
    lr: float,
    wd: float,
    origin: tuple[float | None, int],
    target: tuple[float | None, int],
    optimizer: Optimizer = "adamw",
) -> tuple[float, float]:
    """Convert (lr, wd) from one strategy and width to another, both given as (s, width).

    If the widths differ, the conversion goes through maximal update, under which the best (lr, wd) should not depend
    on the width.
    """
    (from_s, from_width), (to_s, to_width) = origin, target
    if from_width != to_width:
        lr, wd = map_point(lr, wd, from_s, TRANSFER_S, from_width, optimizer)
        from_s = TRANSFER_S
    return map_point(lr, wd, from_s, to_s, to_width, optimizer)
