"""What has happened to runs and verdicts: what changed from one look to the next, and what was there at the first."""

from dataclasses import dataclass

from ettsweep.console import STYLES, cell, count
from ettsweep.files import number
from ettsweep.runs.state import State
from ettsweep.study.run_index import Run
from ettsweep.study.verdict import Verdict

TOLD = (State.FAILED, State.DIVERGED, State.INTERRUPTED, State.CANCELLED, State.HELD, State.PRUNED)
"""States that are told of as a run comes into them."""

LASTING = (State.FAILED, State.DIVERGED)
"""Those of them that are told of runs that were so at the first look."""

STYLED = STYLES | {"requeued": "cyan", "spikes": "yellow", "reached": "bold green", "lost": "red"}
"""How what happened is written."""


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        what: in a word.
        whose: the run, by its id, or the family.
        told: what there is to say of it, in a line.
        place: strategy, point and seed of a run.
        at: the time of day at which it was seen; empty for what was there at the first look, of which none is known.
    """

    what: str
    whose: str
    told: str
    place: str = ""
    at: str = ""


def events_of_run(before: Run | None, now: Run, attempts: tuple[int, int] = (0, 0), at: str = "") -> list[Event]:
    """Return what happened to a run between two looks, the first of which may not have seen it.

    `attempts` are the numbers of its last attempt at both.
    """
    events: list[tuple[str, str]] = []
    if before and 0 < attempts[0] < attempts[1]:
        events.append(("requeued", _taken_over(now, attempts[1])))
    state = now.state
    if state in (TOLD if before else LASTING) and not (before and before.state is state):
        events.append((state.value, now.status.reason))
    if now.result and not (before and before.result) and (text := told_spikes(now)):
        events.append(("spikes", text))
    return [Event(kind, short_id(now), first_line(text), place(now), at) for kind, text in events]


def events_of_verdict(title: str, before: Verdict | None, now: Verdict, at: str) -> list[Event]:
    """Return whether a family has come to an optimum, or to another one, or lost it; its first verdict is no event."""
    if before is None or (before.verdict, before.point) == (now.verdict, now.point):
        return []
    if now.verdict in ("optimal", "tie"):
        return [Event("reached", title, f"{now.statement} at {now.point}", at=at)]
    if before.verdict == "optimal":
        return [Event("lost", title, f"{now.statement} at {now.point}, no longer {before.statement}", at=at)]
    return []


def short_id(run: Run) -> str:
    """Return as much of the id of a run as tells it from others."""
    return run.id[:8]


def place(run: Run) -> str:
    """Return where a run lies: strategy, point and seed."""
    return f"{run.strategy} {run.point} seed {run.spec.seed}"


def run_title(run: Run) -> str:
    """Return what people read of a run."""
    return f"{short_id(run)} {place(run)}"


def told_spikes(run: Run) -> str:
    """Say how many spikes a finished run had, and where the highest was; nothing where it had none."""
    spikes = (run.result or {}).get("spike_events")
    events = [event for event in spikes if isinstance(event, dict)] if isinstance(spikes, list) else []
    if not events:
        return ""
    highest = max(events, key=lambda event: number(event.get("sigmas")) or 0.0)
    sigmas = number(highest.get("sigmas"))
    size = f" by {sigmas:.3g} sigmas" if sigmas is not None else ""
    return f"{count(len(events), 'spike')}; {cell(highest.get('kind'))} at step {cell(highest.get('step'))}{size}"


def first_line(text: str) -> str:
    """Return the first line of a text that says something, with nothing in it that a terminal would obey."""
    return cell(next((line.strip() for line in text.split("\n") if line.strip()), ""))


def _taken_over(run: Run, number: int) -> str:
    """Say from where the new attempt at a run goes on."""
    _, step = run.dir.attempt(number).resumed_from()
    job = "its job was started again: " if run.dir.attempt(number - 1).requeued() else ""
    return f"{job}attempt {number} goes on from {f'step {step}' if step else 'the start'}"
