"""lr and wd as people read and type them: powers of two, and decimals."""

import math
import re
from functools import lru_cache

POWER_COLUMNS = {"lr", "wd", "effective_lr"}
"""Columns of tables whose values are searched in steps of powers of two."""

LOG2_DIGITS = 9
"""Decimals of log2(lr) and log2(wd) in run ids: maps between strategies round, so smaller differences are one run."""


def log2(value: float) -> float | None:
    """Return log2 rounded as in run ids, and None for 0."""
    return round(math.log2(value), LOG2_DIGITS) + 0.0 if value > 0 else None


def format_power(value: float, digits: int | None = None) -> str:
    """Return an lr or wd as a power of two if it is one, 2^-6 or 2^1.5, else as a decimal.

    The decimal has some `digits`, or as many as `shortest_decimal` needs.
    """
    exponent = log2(value)
    if exponent is not None and exponent == round(exponent, 2):
        return f"2^{exponent:g}"
    return shortest_decimal(value) if digits is None else f"{value:.{digits}g}"


def shortest_decimal(value: float) -> str:
    """Return the shortest decimal that means the same run as `value`: one with the same rounded log2."""
    if not value > 0:
        return f"{value:g}"
    candidates = (f"{value:.{digits}g}" for digits in range(1, 17))
    text = next((text for text in candidates if log2(float(text)) == log2(value)), repr(value))
    mantissa, exponent_mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent_mark else mantissa


# Cached: a table of 10,000 runs has a few dozen values of lr and wd, and each takes a search for its digits.
@lru_cache(maxsize=4096)
def power_and_decimal(value: float) -> str:
    """Return an lr or wd for tables: `2^-6 (0.015625)`, or a decimal alone if it is no power of two."""
    text, decimal = format_power(value), shortest_decimal(value)
    return text if text == decimal else f"{text} ({decimal})"


def parse_number(text: str) -> float:
    """Return a typed lr or wd: 0.015625, 2^-6, or both as in tables.

    Raises:
        ValueError: it is not a number.
    """
    if printed := re.fullmatch(r"(2\^\S+) \([^ ()]+\)", text.strip()):
        text = printed[1]
    if "_" in text:  # Python reads 1_000, and names of runs have _ after numbers
        raise ValueError(text)
    try:
        base, _, exponent = text.strip().partition("2^")
        return 2.0 ** float(exponent) if exponent and not base else float(text)
    except OverflowError:
        return math.inf
