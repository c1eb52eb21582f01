"""Times and sizes as people write them: 30s, 5min, 2h, 64G."""

import re

SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
GIB = {"M": 2.0**-10, "G": 1.0, "T": 2.0**10}


def seconds_of(text: str) -> float:
    """Return a time such as 30s, 5min or 2h in seconds.

    Raises:
        ValueError: it is none.
    """
    return _measured(text, SECONDS, "", "a time is expected, such as 30s, 5min or 2h")


def gib_of(text: str) -> float:
    """Return a size such as 64G, 500M or 1.5T in GiB.

    Raises:
        ValueError: it is none.
    """
    return _measured(text, GIB, "(iB|B)?", "a size is expected, such as 64G, 500M or 1.5T")


def _measured(text: str, units: dict[str, float], suffix: str, expected: str) -> float:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(units)}){suffix}", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{expected}, got {text!r}")
    return float(match[1]) * units[match[2]]


def minutes_text(minutes: float) -> str:
    """Return minutes as `seconds_of` reads them: 120 as 2h, 90 as 90min."""
    return f"{minutes / 60:g}h" if minutes % 60 == 0 else f"{minutes:g}min"


def gib_text(gib: float) -> str:
    """Return GiB as `gib_of` reads them: 64 as 64G, 0.5 as 512M."""
    return f"{gib:g}G" if gib >= 1 else f"{round(1024 * gib)}M"
