"""Editions of a page that is rewritten while runs finish: an open one learns of the next from a file beside it."""

import re
from pathlib import Path

from ettsweep.files import write_atomic

PAGE = "report.html"
LATEST = "latest.js"
"""Beside the page: a script, since a page that is a file may load one, and nothing else."""

LIVE = re.compile('(?<=<html lang="en") data-live="[0-9a-f]*"')
"""What marks a page that is still rewritten, with the name of its edition."""


def publish(out: Path, page: str, edition: str) -> list[Path]:
    """Write a page, and tell open ones of it; an edition of no name is the last. Return the files.

    Raises:
        StorageError: a file cannot be written.
    """
    latest = out / LATEST
    if edition and not latest.exists():
        _tell(latest, edition)  # the page looks for it as soon as it is there
    write_atomic(out / PAGE, page)
    if not (edition or latest.exists()):
        return [out / PAGE]
    _tell(latest, edition)  # not before: whoever is told loads the page
    return [out / PAGE, latest]


def conclude(out: Path) -> None:
    """Have the page that is there be the last edition, if there is one.

    Raises:
        StorageError: a file cannot be written.
    """
    page = out / PAGE
    if page.exists():
        publish(out, LIVE.sub("", page.read_text(encoding="utf-8"), count=1), "")


def _tell(latest: Path, edition: str) -> None:
    write_atomic(latest, f'window.ettsweepLatest("{edition}");\n')
