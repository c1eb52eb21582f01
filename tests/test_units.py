"""Times and sizes, read and written."""

from collections.abc import Callable

import pytest

from ettsweep.units import gib_of, gib_text, minutes_text, seconds_of


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1.5 min", 90), (" 2h ", 7200)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of(minutes_text(90)) == 5400, "written as they are read"


@pytest.mark.parametrize(("text", "gib"), [("64G", 64), ("512M", 0.5), ("1.5TiB", 1536), ("8 GB", 8)])
def test_sizes_are_read(text: str, gib: float) -> None:
    assert gib_of(text) == gib == gib_of(gib_text(gib))


@pytest.mark.parametrize("text", ["", "64", "-1G", "2 days", "2h30min"])
@pytest.mark.parametrize("read", [seconds_of, gib_of])
def test_what_is_no_amount_is_refused(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="is expected, such as"):
        read(text)
