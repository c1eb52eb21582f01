"""What a command that follows runs prints where no terminal is."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from ettsweep.launch import progress
from ettsweep.launch.progress import ProgressMonitor, SweepStatus, follow_progress
from ettsweep.runs.state import State, Status


def test_a_line_that_says_nothing_new_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_S", "POLL_REST_FACTOR", "LINE_EVERY_S"):
        monkeypatch.setattr(progress, name, 0)
    waits, ends = Status(State.QUEUED, "waits for its turn"), Status(State.DONE)
    polls = [SweepStatus({"a": status, "b": status}, None) for status in (waits, waits, waits, ends)]
    monitor, output = ProgressMonitor(tmp_path), io.StringIO()
    monkeypatch.setattr(monitor, "poll", iter(polls).__next__)
    follow_progress(monitor, "a sweep", Console(file=output))
    assert output.getvalue().splitlines() == [
        "a sweep: 0/2 runs finished (2 queued); waits for its turn",
        "a sweep: 2/2 runs finished (2 done)",
    ]
