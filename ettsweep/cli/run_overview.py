"""The overview of `show`: a run's settings, state and main numbers."""

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ettsweep.cli.run_tables import state_note
from ettsweep.console import escape_control, format_cell, format_count, print_lines
from ettsweep.errors import CorruptError
from ettsweep.files import Json, last_json_line, number
from ettsweep.launch.progress import format_duration
from ettsweep.runs.index import Run
from ettsweep.study.study import shown_strategy
from ettsweep.table_layout import Line, wrap

LABEL_WIDTH = 11
"""Width of the column of labels, in characters."""

MAX_SPIKES = 5
"""Spikes that are listed one by one."""

Labelled = tuple[str, str]
"""A label and its text, both without control characters that a terminal would obey."""


def show_overview(data: Json, run: Run | None) -> None:
    """Print the overview of a run, given its fields (`run_tables.describe_run`); `run` is None for a broken folder."""
    lines: list[Line] = []
    width = shutil.get_terminal_size().columns - LABEL_WIDTH
    for label, text in _lines(data, run):
        first, *rest = wrap(text, width)
        # The text of the state begins with its name, which has a colour: "failed: out of memory".
        lines.append([(f"{label:<{LABEL_WIDTH}}", "heading"), (first, "cell" if label == "state" else "")])
        lines += [[(f"{'':<{LABEL_WIDTH}}{line}", "")] for line in rest]
    print_lines(lines)


def _lines(data: Json, run: Run | None) -> Iterator[Labelled]:
    """Yield the lines of the overview, the most important first."""
    yield "run", str(data["run"])
    if run is None:
        yield "state", f"{data['state']}: {format_cell(data['reason'])}"
        return
    spec = run.spec
    yield "sweep", format_cell(data["sweep"]) or "none"
    yield "model", format_cell(run.labels.title)
    strategy = str(data["strategy"]) if shown_strategy(run.base) else ""
    place = [format_cell(strategy), spec.point.words, f"seed {spec.seed}"]
    yield "point", ", ".join(filter(None, place))
    note = format_cell(state_note(data))
    yield "state", f"{run.state}: {note}" if note else run.state.value
    if last := spec.info.steps:
        yield "progress", f"{round(data['progress'] * last)} of {format_count(last, 'step')}"
    yield from _metrics(run)
    yield from _speed(run)
    for attempt in data["attempts"]:
        yield f"attempt {attempt['attempt']}", format_cell(_describe_attempt(attempt))
    yield from _versions(data["attempts"])
    for label, text in spec.info.particulars.items():
        yield label, format_cell(text)
    yield "folder", format_cell(data["folder"])


def _metrics(run: Run) -> Iterator[Labelled]:
    """Yield summaries of loss and score, and the spikes; or the problem if the metrics cannot be read."""
    try:
        history = read_history(run)
    except CorruptError as error:
        yield "metrics", format_cell(error)
        return
    column = run.spec.info.metric.column
    curves = {name: {line["step"]: number(line[name]) for line in history if name in line} for name in ("loss", column)}
    if not any(curves.values()):
        yield "metrics", "none yet"
        return
    for name, curve in curves.items():
        if curve:
            yield name, _summary(curve, run.spec.info.metric.mode if name == column else "min")
    yield from _best(run, history)
    if (events := spike_events(run, history)) is not None:
        yield "spikes", _describe_spikes(events)


def read_history(run: Run) -> list[Json]:
    """Return the metrics of a run so far, one record per logged step.

    Raises:
        CorruptError: The metrics cannot be read or do not have the format that runs write.
    """
    latest = run.dir.latest_attempt()
    try:
        lines = (
            run.dir.history()
            if run.result is not None
            else latest.history(every_step=run.base.info.records_every_step)
            if latest
            else []
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CorruptError("metrics.jsonl was edited: it does not have the format that runs write") from None
    return [line for line in lines if isinstance(line, dict) and _step(line) is not None]


def _step(line: Json) -> int | None:
    step = line.get("step")
    # bool is a subclass of int: "step": true in an edited file is no step.
    return step if isinstance(step, int) and not isinstance(step, bool) and step > 0 else None


def _summary(curve: Mapping[int, float | None], mode: str) -> str:
    """Return a line with the first, last and best value of a metric, and how many values were not finite."""
    finite = {step: value for step, value in curve.items() if value is not None}
    if not finite:
        return "no value is finite"
    first, last = min(finite), max(finite)
    pick, extreme = (min, "lowest") if mode == "min" else (max, "highest")
    best_step = pick(finite, key=lambda step: finite[step])
    not_finite = len(curve) - len(finite)
    ends = f"{format_cell(finite[first])} at step {first}, {format_cell(finite[last])} at {last}"
    gaps = f"; {not_finite} of {format_count(len(curve), 'value')} not finite" if not_finite else ""
    return f"{ends}, {extreme} {format_cell(finite[best_step])} at {best_step}{gaps}"


def spike_events(run: Run, history: Sequence[Json]) -> list[Json] | None:
    """Return the spikes of a run, from its result or, before that, its metrics; None if these are not valid."""
    if run.result is not None:
        events = run.result.get("spike_events")
    else:
        from ettsweep.runs.spikes import count_spikes

        try:
            events = count_spikes(history, run.spec)["spike_events"]
        # An edited metrics.jsonl may have texts where numbers belong.
        except (TypeError, ValueError):
            events = None
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else None


def _describe_spikes(events: Sequence[Json]) -> str:
    descriptions = [_describe_spike(event) for event in events[:MAX_SPIKES]]
    remainder = [f"and {len(events) - MAX_SPIKES} more"] if len(events) > MAX_SPIKES else []
    return f"{len(events)}: {'; '.join(descriptions + remainder)}" if events else "none"


def _describe_spike(event: Json) -> str:
    # Kinds of spike events, as the columns of metrics.jsonl are called.
    metric_names = {"grad": "gradient norm", "eval_loss": "val_loss", "accuracy": "val_accuracy"}
    metric = metric_names.get(str(event.get("kind")), event.get("kind"))
    location = f"{format_cell(metric)} at step {format_cell(event.get('step'))}"
    if (sigmas := number(event.get("sigmas"))) is not None:
        return f"{location}, {sigmas:.1f} sigmas"
    return location if event.get("recovered") else f"{location}, not recovered"


def _best(run: Run, history: Sequence[Json]) -> Iterator[Labelled]:
    score = run.spec.info.metric
    if best_by_step := score.best_so_far(history):
        best = best_by_step[max(best_by_step)]
        reached = min(step for step, so_far in best_by_step.items() if so_far == best)
        yield "best", f"{score.name} {format_cell(best)} at step {reached}"
    if run.result is not None and run.score is None:
        yield "best", "no score: ranks below all runs with one"


def _speed(run: Run) -> Iterator[Labelled]:
    """Yield the training time of a run and its speed."""
    latest = run.dir.latest_attempt()
    timings: Mapping[str, Any] = run.result or (last_json_line(latest.timings_path) if latest else None) or {}
    texts = []
    if (wall_s := number(timings.get("wall_s"))) is not None and wall_s >= 0:
        texts.append(format_duration(wall_s))
    for key, unit in (("steps_per_s", "steps/s"), ("samples_per_s", f"{run.spec.info.samples_name}/s")):
        if (rate := number(timings.get(key))) is not None:
            texts.append(f"{rate:,.4g} {unit}" if rate < 1000 else f"{rate:,.0f} {unit}")
    if texts:
        yield "time", ", ".join(texts)


def _versions(attempts: Sequence[Json]) -> Iterator[Labelled]:
    """Yield the command of the latest attempt, and the versions that it trained with."""
    if not attempts:
        return
    latest = attempts[-1]
    if words := latest["command"]:
        yield "command", format_cell(shlex.join(words))
    packages = latest["provenance"].get("packages")
    versions = {**(packages if isinstance(packages, dict) else {}), **(latest["packages"] or {})}
    versions["torch"] = versions.get("torch") or latest["torch"]
    if texts := [f"{name} {version}" for name, version in versions.items() if version]:
        yield "versions", format_cell(", ".join(texts))


def _describe_attempt(attempt: Json) -> str:
    """Return the place, first step and end of an attempt."""
    location = " ".join(str(attempt[key]) for key in ("host", "slot", "device_name") if attempt.get(key))
    job = attempt.get("job")
    phrases = [
        f"from {attempt['from']}",
        location,
        f"job {job['id']}" if isinstance(job, dict) and job.get("id") else "",
    ]
    if attempt.get("ended"):
        phrases.append(f"ended: {attempt['ended']}")
    return escape_control(", ".join(filter(None, phrases)))
