"""What commands say of runs: rows of tables, JSON, and notes beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ettsweep.errors import CorruptError
from ettsweep.files import Json
from ettsweep.launch.monitor import duration
from ettsweep.launch.reproduce import reproduce
from ettsweep.launch.submissions import submissions
from ettsweep.models.architectures import model_name
from ettsweep.output import Format, note, show
from ettsweep.provenance import summary
from ettsweep.runs.state import State
from ettsweep.scaling.strategies import strategy_name
from ettsweep.spec import log2
from ettsweep.sweep.ledger import Ledger, Run
from ettsweep.tasks.kinds import score


def in_order(run: Run) -> tuple[object, ...]:
    """Return the key that sorts runs for people: model, strategy, lr, wd, seed."""
    spec = run.spec
    s = -1.0 if spec.strategy.s is None else spec.strategy.s
    return model_name(spec.model), s, spec.lr, spec.wd, spec.seed, run.id


def status_row(run: Run) -> Json:
    """Return what `status` prints of a run; log2_lr and log2_wd are of the values."""
    spec = run.spec
    return {
        "run": run.id,
        "family": run.family,
        "model": model_name(spec.model),
        "task": spec.task.kind,
        "strategy": strategy_name(spec.strategy.s),
        "lr": spec.lr,
        "wd": spec.wd,
        "log2_lr": log2(spec.lr),
        "log2_wd": log2(spec.wd),
        "seed": spec.seed,
        "state": run.state.value,
        "progress": run.status.progress,
        "best_score": best_score(run),
        "reason": run.status.reason,
        "where": run.status.where or None,
        "job": run.status.job or None,
        "left_s": run.status.left_s,
    }


def best_score(run: Run) -> float | None:
    """Return the best score so far: the result's, or that of the evaluations that a run in training has written."""
    if run.result is not None:
        return run.score
    attempt = run.dir.latest()
    if attempt is None:
        return None
    measure = score(run.spec.task)
    key = "val_loss" if measure.metric == "best_loss" else "val_accuracy"
    try:
        lines = attempt.history()
    except CorruptError:
        return None
    values = [line[key] for line in lines if isinstance(line.get(key), float)]
    return min(values, key=measure.rank, default=None)


def describe(ledger: Ledger, run_id: str) -> Json:
    """Return all that is known of a run, broken or not, as plain data."""
    run = ledger.runs.get(run_id)
    if run is None:
        return {"run": run_id, "state": State.FAILED.value, "reason": ledger.broken[run_id]}
    row = status_row(run)
    attempts = []
    for number in run.dir.numbers():
        attempt = run.dir.attempt(number)
        parent, step = attempt.resumed_from()
        claim = attempt.claim()
        failure = attempt.failure() or {}
        owner = claim.get("process")
        attempts.append(
            {
                "attempt": number,
                "from": f"attempt {parent}, step {step}" if parent else "the start",
                "host": owner.get("host") if isinstance(owner, dict) else None,
                **{key: claim.get(key) for key in ("device", "device_name", "threads", "torch", "slot", "job")},
                "ended": failure.get("reason"),
                "provenance": summary(attempt.provenance()),
            }
        )
    spec = run.spec.model_dump(mode="json")
    return {**row, "folder": str(run.dir.path), "spec": spec, "attempts": attempts, "result": run.result}


def state_note(row: dict[str, Any]) -> str:
    """Return in a few words where a run is, how long it still takes, and why it is in its state."""
    job = f"job {row['job']}" if row["job"] and str(row["job"]) not in row["reason"] else ""
    where, left = "", ""
    if row["state"] == State.RUNNING:
        where = f"on {row['where']}" if row["where"] else ""
        left = f"about {duration(row['left_s'])} left" if row["left_s"] is not None else ""
    return ", ".join(filter(None, [where, job, left, row["reason"]]))


def why_idle(results: Path, idle: Sequence[Run]) -> str:
    """Return what the workers that should have started some runs said last, or nothing."""
    never = {run.id for run in idle if run.state is State.MISSING}
    for submission in reversed(submissions(results)):
        if never & set(submission.runs):
            return f"; the last workers ended so: {submission.last_words()}"
    return ""


def show_reproduction(run: Run, form: Format) -> None:
    """Print the command that trains a run again, and beside it why the bits could differ here."""
    found = reproduce(run.dir, run.spec, run.result)
    data = {"command": found.command, "commit": found.commit, "differs": found.differs}
    if form is Format.TABLE:
        print(found.command)
    else:
        show([{**data, "differs": "; ".join(found.differs)}], form, data=data)
    for line in found.notes:
        note(line)
    for line in found.differs:
        note(f"differs here: {line}")
    if not found.differs and run.dir.numbers():
        note("nothing differs here from there and then")


def flat(data: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested data as (dotted key, value) pairs."""
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value, 1):
                rows += flat(item, f"{prefix}{key}.{number}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
