"""Events of runs and verdicts: changes between two polls, and what had happened before the first one."""

from dataclasses import dataclass

from ettsweep.console import STYLES, format_cell, format_count
from ettsweep.files import number
from ettsweep.report.verdict_view import VerdictView
from ettsweep.runs.index import Run
from ettsweep.runs.state import State
from ettsweep.study.study import shown_strategy

EVENT_STATES = (State.FAILED, State.DIVERGED, State.INTERRUPTED, State.CANCELLED, State.HELD)
"""States that are an event when a run enters them."""

INITIAL_EVENT_STATES = (State.FAILED, State.DIVERGED)
"""States that are an event also for runs that were in them at the first poll."""

EVENT_STYLES = STYLES | {"requeued": "cyan", "spikes": "yellow", "reached": "bold green", "lost": "red"}
"""Style of an event by its kind."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run or to the verdict on a family.

    It has a kind, such as "failed"; a subject, the short id of a run or the title of a family; a line of text; for runs
    their position: strategy, point and seed; and the time of day at which it was noticed, "" if it happened before the
    first poll.
    """

    kind: str
    subject: str
    text: str
    position: str = ""
    at: str = ""


def run_events(before: Run | None, now: Run, attempts: tuple[int, int] = (0, 0), at: str = "") -> list[Event]:
    """Return what happened to a run between two polls; `before` is None if the first of them did not see the run.

    `attempts` are the numbers of the run's last attempt at both polls.
    """
    events: list[tuple[str, str]] = []
    # A new attempt of a known run: its job was requeued, or another worker took it over.
    if before and 0 < attempts[0] < attempts[1]:
        events.append(("requeued", _describe_resume(now, attempts[1])))
    state = now.state
    if state in (EVENT_STATES if before else INITIAL_EVENT_STATES) and not (before and before.state is state):
        events.append((state.value, now.status.reason))
    if now.result and not (before and before.result) and (text := describe_spikes(now)):
        events.append(("spikes", text))
    return [Event(kind, short_id(now), first_text_line(text), run_position(now), at) for kind, text in events]


def verdict_events(title: str, before: VerdictView | None, now: VerdictView, at: str) -> list[Event]:
    """Return an event if a family has reached an optimum, moved to another one, or lost it.

    A first verdict is no event: it says nothing about when the optimum was reached.
    """
    if before is None or (before.word, before.point) == (now.word, now.point):
        return []
    if now.holds:
        return [Event("reached", title, f"{now.headline} at {now.point}", at=at)]
    if before.holds:
        return [Event("lost", title, f"{now.headline} at {now.point}, no longer {before.headline}", at=at)]
    return []


def short_id(run: Run) -> str:
    """Return the first 8 characters of a run's id, which are unique in practice."""
    return run.id[:8]


def run_position(run: Run) -> str:
    """Return strategy, point and seed of a run in one line."""
    return " ".join(filter(None, [shown_strategy(run.base), f"{run.point} seed {run.seed}"]))


def run_title(run: Run) -> str:
    """Return the short id and the position of a run."""
    return f"{short_id(run)} {run_position(run)}"


def describe_spikes(run: Run) -> str:
    """Return the number of spikes of a finished run and the step of the highest one; "" if there are none."""
    # Results may be edited by hand: check types.
    spikes = (run.result or {}).get("spike_events")
    events = [event for event in spikes if isinstance(event, dict)] if isinstance(spikes, list) else []
    if not events:
        return ""
    highest = max(events, key=lambda event: number(event.get("sigmas")) or 0.0)
    sigmas = number(highest.get("sigmas"))
    size = f" by {sigmas:.3g} sigmas" if sigmas is not None else ""
    kind, step = format_cell(highest.get("kind")), format_cell(highest.get("step"))
    return f"{format_count(len(events), 'spike')}; {kind} at step {step}{size}"


def first_text_line(text: str) -> str:
    """Return the first non-blank line of a text, without control characters."""
    return format_cell(next((line.strip() for line in text.split("\n") if line.strip()), ""))


def _describe_resume(run: Run, number: int) -> str:
    """Return the step from which a new attempt resumes, and whether SLURM requeued the job."""
    _, step = run.dir.attempt(number).resumed_from()
    job = "its job was requeued: " if run.dir.attempt(number - 1).was_requeued() else ""
    return f"{job}attempt {number} resumes from {f'step {step}' if step else 'the start'}"
