"""Texts of the panels: what stands still is said, and no file says anything to the terminal."""

from ettsweep.launch.progress import SweepStatus
from ettsweep.watch.panels import event_lines, problem_lines
from ettsweep.watch.view import Event, View

NASTY, SPELLED = "\x1b[2J[red]gone\u202e", r"\x1b[2J[red]gone\u202e"


def test_what_cannot_be_read_and_a_silent_slurm_are_told() -> None:
    status = SweepStatus({}, None, slurm_error=NASTY)
    lines = problem_lines(View(status, problems=(f"run folder a is broken: {NASTY}",)), status).plain.split("\n")
    assert lines == [f"run folder a is broken: {SPELLED}", f"SLURM does not answer: {SPELLED}"]


def test_events_are_lines_the_newest_first() -> None:
    failed = Event("12:00:00", "failed", "1a2b3c4d ntk", f"\n {NASTY}\nsecond line")
    reached = Event("12:01:00", "reached", "a", "optimal")
    assert event_lines((failed, reached)).plain.split("\n") == [
        "12:01:00  reached      a  optimal",
        f"12:00:00  failed       1a2b3c4d ntk  {SPELLED}",
    ]
