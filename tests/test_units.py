"""Times and sizes, read and written."""

from collections.abc import Callable

import pytest

from ettsweep.units import gib_of, gib_text, minutes_text, seconds_of


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1.5 min", 90), (" 2h ", 7200), ("0s", 0)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("text", "gib"), [("64G", 64), ("512M", 0.5), ("1.5TiB", 1536), ("8 GB", 8)])
def test_sizes_are_read(text: str, gib: float) -> None:
    assert gib_of(text) == gib


@pytest.mark.parametrize("text", ["", "64", "-1G", "1e3G", "64g", "G", "2 days", "2h30min", "١h", "1G\n2G"])
@pytest.mark.parametrize("read", [seconds_of, gib_of])
def test_what_is_no_amount_is_refused(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="is expected, such as"):
        read(text)


@pytest.mark.parametrize(("minutes", "text"), [(120, "2h"), (90, "90min"), (1, "1min"), (2880, "48h")])
def test_minutes_are_written_as_they_are_read(minutes: int, text: str) -> None:
    assert minutes_text(minutes) == text
    assert seconds_of(text) == 60 * minutes


@pytest.mark.parametrize(("gib", "text"), [(64, "64G"), (1.5, "1.5G"), (0.5, "512M")])
def test_sizes_are_written_as_they_are_read(gib: float, text: str) -> None:
    assert gib_text(gib) == text
    assert gib_of(text) == gib
