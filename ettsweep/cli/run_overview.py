"""What `show` begins with: what a run is, and the numbers that matter of it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ettsweep.cli.run_tables import state_note
from ettsweep.console import STYLES, cell, count, escape_control
from ettsweep.errors import CorruptError
from ettsweep.files import Json, last_line, number
from ettsweep.launch.progress import format_duration
from ettsweep.powers import power
from ettsweep.study.run_index import Run
from ettsweep.trainer.tasks.registry import evaluated, task_kind

LABELS = 11
"""Columns of the labels."""

SPIKES = 5
"""Spikes that are named."""

Line = tuple[str, str]
"""A label, and what there is to say; both without what a terminal would obey."""


def show_overview(data: Json, run: Run | None) -> None:
    """Print the overview of a run, given what `views.describe` says of it; None is a broken one."""
    lines = list(_lines(data, run))
    if not sys.stdout.isatty():
        print("\n".join(f"{label:<{LABELS}}{text}".rstrip() for label, text in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for label, text in lines:
        style = STYLES.get(text.partition(" ")[0].rstrip(":"), "") if label == "state" else ""
        console.print(Text.assemble((f"{label:<{LABELS}}", "bold"), (text, style)), soft_wrap=True)


def _lines(data: Json, run: Run | None) -> Iterator[Line]:
    """Yield what there is to say of a run, the most telling first."""
    yield "run", str(data["run"])
    if run is None:
        yield "state", f"{data['state']}: {cell(data['reason'])}"
        return
    spec = run.spec
    yield "sweep", cell(data["sweep"]) or "none"
    yield "model", f"{cell(run.model)} on {spec.task.kind}"
    yield "point", f"{cell(run.strategy)}, lr {power(spec.lr)}, wd {power(spec.wd)}, seed {spec.seed}"
    told = cell(state_note(data))
    yield "state", f"{run.state}: {told}" if told else run.state.value
    last = spec.schedule.last_step
    yield "progress", f"{round(data['progress'] * last)} of {count(last, 'step')}"
    yield from _metrics(run)
    yield from _speed(run)
    for attempt in data["attempts"]:
        yield f"attempt {attempt['attempt']}", cell(_attempt(attempt))
    yield "folder", cell(data["folder"])


def _metrics(run: Run) -> Iterator[Line]:
    """Yield what the metrics of a run come to, and its spikes; what is wrong where they cannot be read."""
    try:
        history = history_of(run)
    except CorruptError as error:
        yield "metrics", cell(error)
        return
    column = evaluated(task_kind(run.spec.task).score.metric)
    curves = {name: {line["step"]: number(line[name]) for line in history if name in line} for name in ("loss", column)}
    if not any(curves.values()):
        yield "metrics", "none yet"
        return
    for name, curve in curves.items():
        if curve:
            yield name, _summary(name, curve)
    yield from _best(run, history)
    if (events := spikes_of(run, history)) is not None:
        yield "spikes", _told_spikes(events)


def history_of(run: Run) -> list[Json]:
    """Return the metrics of a run so far.

    Raises:
        CorruptError: they cannot be read, or are not what was written.
    """
    latest = run.dir.latest()
    try:
        lines = run.dir.history() if run.result is not None else latest.history() if latest else []
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CorruptError("they are not what a run writes: the file was edited") from None
    return [line for line in lines if isinstance(line, dict) and _step(line) is not None]


def _step(line: Json) -> int | None:
    step = line.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) and step > 0 else None


def _summary(name: str, curve: Mapping[int, float | None]) -> str:
    """Return the first, last and best values of a metric by step, and how many were not finite."""
    finite = {step: value for step, value in curve.items() if value is not None}
    if not finite:
        return "no value is finite"
    first, last = min(finite), max(finite)
    best, extreme = (min, "lowest") if name.endswith("loss") else (max, "highest")
    at = best(finite, key=lambda step: finite[step])
    lost = len(curve) - len(finite)
    return (
        f"{cell(finite[first])} at step {first}, {cell(finite[last])} at {last}, {extreme} {cell(finite[at])} at {at}"
        + (f"; {lost} of {count(len(curve), 'value')} not finite" if lost else "")
    )


def spikes_of(run: Run, history: Sequence[Json]) -> list[Json] | None:
    """Return the spikes of a run: those of its result, else of what it has written; None where that makes no sense."""
    if run.result is not None:
        found = run.result.get("spike_events")
    else:
        from ettsweep.runs.spikes import count_spikes

        try:
            found = count_spikes(history, run.spec)["spike_events"]
        except (TypeError, ValueError):
            found = None
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else None


def _told_spikes(events: Sequence[Json]) -> str:
    """Say how many spikes there are, and where the first ones are."""
    told = [_told_spike(event) for event in events[:SPIKES]]
    more = [f"and {len(events) - SPIKES} more"] if len(events) > SPIKES else []
    return f"{len(events)}: {'; '.join(told + more)}" if events else "none"


def _told_spike(event: Json) -> str:
    name = {"grad": "gradient norm", "eval_loss": "val_loss", "accuracy": "val_accuracy"}
    where = f"{cell(name.get(str(event.get('kind')), event.get('kind')))} at step {cell(event.get('step'))}"
    if (sigmas := number(event.get("sigmas"))) is not None:
        return f"{where}, {sigmas:.1f} sigmas"
    return where if event.get("recovered") else f"{where}, not recovered"


def _best(run: Run, history: Sequence[Json]) -> Iterator[Line]:
    """Yield the best score, and the step at which it was reached."""
    score = task_kind(run.spec.task).score
    if along := score.best_so_far(history):
        best = along[max(along)]
        yield (
            "best",
            f"{score.metric} {cell(best)} at step {min(step for step, so_far in along.items() if so_far == best)}",
        )
    if run.result is not None and run.score is None:
        yield "best", "no score: it counts as worse than all that have one"


def _speed(run: Run) -> Iterator[Line]:
    """Yield how long a run has taken, and how fast it is."""
    latest = run.dir.latest()
    found: Mapping[str, Any] = run.result or (last_line(latest.timings_path) if latest else None) or {}
    told = []
    if (wall_s := number(found.get("wall_s"))) is not None and wall_s >= 0:
        told.append(format_duration(wall_s))
    for key, what in (("steps_per_s", "steps/s"), ("samples_per_s", f"{task_kind(run.spec.task).sample}s/s")):
        if (rate := number(found.get(key))) is not None:
            told.append(f"{rate:,.4g} {what}" if rate < 1000 else f"{rate:,.0f} {what}")
    if told:
        yield "time", ", ".join(told)


def _attempt(attempt: Json) -> str:
    """Say in a line where an attempt trained, from where on, and how it ended."""
    where = " ".join(str(attempt[key]) for key in ("host", "slot", "device_name") if attempt.get(key))
    job = attempt.get("job")
    told = [f"from {attempt['from']}", where, f"job {job['id']}" if isinstance(job, dict) and job.get("id") else ""]
    if attempt.get("ended"):
        told.append(f"ended: {attempt['ended']}")
    return escape_control(", ".join(filter(None, told)))
