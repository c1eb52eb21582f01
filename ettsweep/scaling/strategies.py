"""Names of the scaling strategies, and the number s that each stands for."""

import re

from ettsweep.errors import InputError, unknown_name

STRATEGIES: dict[str, float | None] = {"standard": None, "ntk": 0.0, "hybrid": 0.5, "mup": 1.0}
"""Meta-parameter s of each named strategy (foot:Meta1); `standard` is outside the family."""

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
    for name, known in STRATEGIES.items():
        if known == s:
            return name
    return f"s={s}"
