"""Editions of a page that is rewritten while runs finish: an open one learns of the next from a file beside it."""

import re
from pathlib import Path

from ettsweep.files import storage_errors, write_atomic

PAGE = "report.html"
LATEST = "latest.js"
"""Beside the page: a script, since a page that is a file may load one, and nothing else."""

LIVE = re.compile(b'(?<=<html lang="en") data-live="[0-9a-f]*"')
"""What marks a page that is still rewritten, with the name of its edition: within its first bytes."""

FIRST_BYTES = 1000


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
    """Have the page that is there be the last edition, if it is one.

    Its mark is blanked in place, since that needs no room: a full disk may be why there is no next one.

    Raises:
        StorageError: a file cannot be written.
    """
    page = out / PAGE
    if not page.exists():
        return
    with storage_errors(page), page.open("r+b") as file:
        if not (live := LIVE.search(file.read(FIRST_BYTES))):
            return
        file.seek(live.start())
        file.write(b" " * len(live[0]))
    _tell(out / LATEST, "")


def _tell(latest: Path, edition: str) -> None:
    write_atomic(latest, f'window.ettsweepLatest("{edition}");\n')
