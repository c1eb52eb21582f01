"""Events of an attempt: events.jsonl, a line of JSON for each, in order.

Two processes never append at once, since a network file system could lose a line: the worker appends before its program
starts and after it ends, the program of a Transformer in between. Other commands write files beside it.
"""

import contextlib
import os
from pathlib import Path
from typing import Literal

from ettsweep.files import Json, dumps, loads, open_regular, read_file, storage_errors

Event = Literal["started", "resumed", "execution", "skipped", "facts", "ended", "stopped", "failed"]


def append_event(path: Path, event: Event, content: Json, *, synced: bool) -> None:
    """Append an event, on its own line even if a kill has cut the last one.

    Args:
        path: of the file, created if missing.
        event: its name.
        content: further entries of its line.
        synced: whether to sync it to disk.

    Raises:
        StorageError: it cannot be written.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    with storage_errors(path), os.fdopen(open_regular(path, flags), "ab") as file:
        size = os.fstat(file.fileno()).st_size
        is_cut = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * is_cut + dumps({"event": event, **content}).encode() + b"\n")
        file.flush()
        if synced:
            os.fsync(file.fileno())


def read_events(path: Path, *events: Event) -> list[Json]:
    """Return the content of all events of these names, in order; lines that a kill has cut are left out.

    Other lines, which may hold a whole diff, are not parsed.
    """
    try:
        lines = read_file(path).split(b"\n")[:-1]
    except OSError:
        return []
    heads, found = tuple(f'{{"event": "{event}"'.encode() for event in events), list[Json]()
    for line in lines:
        if line.startswith(heads):
            with contextlib.suppress(ValueError):
                found.append({key: value for key, value in loads(line).items() if key != "event"})
    return found
