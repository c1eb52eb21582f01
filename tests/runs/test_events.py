"""The events of an attempt: what a kill in the midst of a line costs."""

from pathlib import Path

from ettsweep.runs.events import append_event, read_events

DIFF = '{"event": "failed", "kind": "error"}\n'
"""A text of another event that looks like one."""


def write(path: Path) -> bytes:
    append_event(path, "started", {"provenance": {"diff": DIFF}}, synced=False)
    append_event(path, "resumed", {"attempt": 1, "step": 10}, synced=True)
    append_event(path, "failed", {"kind": "lost", "reason": "gr\udcfcn"}, synced=True)
    return path.read_bytes()


def test_a_line_that_is_cut_anywhere_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = write(path)
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        names = ("started", "resumed", "failed")
        assert len(read_events(path, *names)) == sum(end <= size for end in ends)
        append_event(path, "ended", {"code": size}, synced=False)
        assert read_events(path, "ended") == [{"code": size}], "what follows is on a line of its own"
        # A line that lacks nothing but its end gets it.
        assert len(read_events(path, *names)) == sum(end <= size + 1 for end in ends)
