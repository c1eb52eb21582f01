"""Parse numbers of trainers: numbers or text, not finite, with commas between thousands."""

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}((,\d{3})+\.\d+|(,\d{3}){2,})")
"""Clear commas between thousands: 1,234.5 and 1,234,567; but 1,234 may be 1.234."""

_WHOLE_THOUSANDS = re.compile(r"[1-9]\d{0,2}([,_'\xa0\u202f]\d{3})+")
_STEP_REST = re.compile(r"(,\d{3})+(?![\d.,])")
_EXPONENT = re.compile(r"[eE][-+]?\d+(?!\w)")
_VALUE_REST = re.compile(rf"(,\d+)+(?![\d.,])|{_EXPONENT.pattern}")
_DECIMAL_COMMA = re.compile(r"([-+]?\d*),(\d+(?:[eE][-+]?\d+)?)")
_DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
_ANY = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|\b(nan|inf|infinity)\b", re.IGNORECASE)
_WORD = re.compile(r"(?!it/s|s/it)(?<!it/)(?<!s/)[^\W\d]+")
_RANK = re.compile(r"(?<!\w)(?:(?:local|global)[ _])?rank[\W_]{0,4}\d+|(?<=_)rank[-_]?\d+", re.IGNORECASE)


def metric_value(value: object) -> float | None:
    """Return a number, which may be nan or infinite, from a number or its text; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        if isinstance(value, int | float):
            return float(value)
        return _from_text(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _from_text(text: str) -> float:
    text = text.strip().rstrip(".,;")
    if "_" in text:  # Python reads 1_000, and no trainer writes it
        raise ValueError(text)
    return float(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text)


def has_any_comma(text: str) -> bool:
    """Return whether a text is a number whose comma may be a decimal one, or separate thousands."""
    return bool(_DECIMAL_COMMA.fullmatch(text.strip().rstrip(".,;")))


def whole_number(match: re.Match[str], group: str) -> str | None:
    """Return the text of a group, with the rest of its number if the pattern cuts it: 1,500, not 1."""
    text, end = match[group], match.end(group)
    if not text or not text[-1].isdigit():
        return text
    is_last = end == match.end() and "." not in text  # else a pattern of columns has a comma after the group
    rest = (_STEP_REST if group == "step" else _VALUE_REST if is_last else _EXPONENT).match(match.string, end)
    if not rest or any(end < match.start(name) < rest.end() for name in match.re.groupindex):
        return text
    return text + rest[0]


def decimal_points(cells: Sequence[str]) -> list[str]:
    """Return the cells of a row with points for decimal commas, for tables with semicolons between columns.

    Raises:
        ValueError: the row also has numbers with points.
    """
    comma = next(filter(_DECIMAL_COMMA.fullmatch, cells), None)
    point = next(filter(_DECIMAL_POINT.fullmatch, cells), None)
    if comma and point:
        raise ValueError(f"{comma} and {point}: is the comma a decimal one? Write all numbers with a decimal point")
    return [_DECIMAL_COMMA.sub(r"\1.\2", cell) if comma and _DECIMAL_COMMA.fullmatch(cell) else cell for cell in cells]


def step_number(value: object) -> float | None:
    """Return the number of a step, with any mark between its thousands."""
    if isinstance(value, str) and _WHOLE_THOUSANDS.fullmatch(value.strip()):
        return float(re.sub(r"\D", "", value))
    return metric_value(value)


MAX_STEP = 2**53
"""Larger steps are not exact floats."""


def words(text: str) -> str:
    """Return the words of a text without numbers and bars, but with ranks: equal for lines of one kind."""
    return " ".join([*_WORD.findall(_ANY.sub(" ", text)), *_RANK.findall(text)])


def resolution(values: Iterable[float]) -> float | None:
    """Return the step between printed values: 1e-4 for 3.2782 and 3.28; None without a finite one.

    The most decimals count, since trailing zeros are lost: pass all values of a curve.
    """
    exponents = [_last_decimal(value) for value in values if math.isfinite(value)]
    return float(Decimal(1).scaleb(min(exponents))) if exponents else None


def _last_decimal(value: float) -> int:
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return min(exponent, 0)
