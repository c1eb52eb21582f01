"""Output of commands on plans and runs: table rows, JSON, and notes on standard error."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ettsweep.cli.prompts import repeat_option, shell_command
from ettsweep.console import Format, escape_control, format_count, power_text, print_note, print_table
from ettsweep.files import Json
from ettsweep.files import number as as_number
from ettsweep.launch.follow import SubmitResult, VerificationResult
from ettsweep.launch.progress import format_duration
from ettsweep.launch.submissions import read_submission, submissions
from ettsweep.powers import log2
from ettsweep.runs.folder import runs_dir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import axis_cells
from ettsweep.runs.state import State
from ettsweep.study.plan import Plan
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import StudiesByFamily, SweepStore, run_cells, run_strategy, run_sweeps_text
from ettsweep.study.verdict import Verdict

ROWS_LISTED = 100
"""Most runs of a plan that a table lists one by one; JSON and CSV have them all."""

BLOCKED_NAMED = 5
"""Most blocked runs that are named in a message."""


def plan_rows(plan: Plan, studies: Sequence[Study]) -> list[dict[str, Any]]:
    """Return a row for each run of a plan, with the planned action."""
    families = StudiesByFamily(studies)
    actions = {"submit": plan.submit, "retry": plan.retry, "keep": plan.keep, "blocked": plan.blocked}
    return [
        {
            "run": p.id,
            "action": action,
            "sweep": run_sweeps_text(families, p.spec),
            "model": p.spec.info.labels.model,
            "strategy": run_strategy(families, p.spec),
            **run_cells(families, p.spec),
            "seed": p.spec.seed,
            "state": p.state.value,
        }
        for action, members in actions.items()
        for p in members
    ]


PLAN_COLUMNS = ("run", "action", "sweep", "model", "strategy", "seed", "state")
"""Columns of a plan that are no axes."""


def _summarised(rows: Sequence[Json]) -> list[Json]:
    """Return a row for each kind of run in a plan, with their number and the ranges of their values."""
    kinds: dict[tuple[Any, ...], list[Json]] = {}
    for row in rows:
        kinds.setdefault(tuple(row[name] for name in ("action", "sweep", "model", "strategy", "state")), []).append(row)
    return [
        {
            "runs": len(alike),
            **{name: alike[0][name] for name in ("action", "sweep", "model", "strategy")},
            **{name: _span([row[name] for row in alike], power_text) for name in alike[0] if name not in PLAN_COLUMNS},
            "seed": _span([row["seed"] for row in alike], str),
            "state": alike[0]["state"],
        }
        for alike in kinds.values()
    ]


def _span(values: Sequence[float | None], text: Callable[[float], str]) -> str | None:
    """Return the lowest and the highest of some numbers; None if runs are given none."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    return text(low) if low == high else f"{text(low)} to {text(high)}"


def plan_summary(plan: Plan, tense: str, destination: str = "") -> str:
    """Return one line with the numbers of submitted, resumed, finished, unfinished and blocked runs; empty for none.

    `tense` goes before the verbs, such as "would be"; `destination` after them, such as " to SLURM as job 7".
    """
    phrases = []
    if plan.submit:
        phrases.append(f"{format_count(len(plan.submit), 'run')} {tense} submitted")
    if plan.retry:
        phrases.append(f"{len(plan.retry)} {tense} resumed")
    phrases = [", ".join(phrases) + destination] if phrases else []
    if plan.keep:
        finished = sum(p.state.finished for p in plan.keep)
        phrases.append(f"{finished} finished, {len(plan.keep) - finished} in progress")
    if plan.blocked:
        phrases.append(f"{len(plan.blocked)} need a decision")
    # An empty `tense` leaves two blanks in a row: split and join remove them.
    return " ".join(", ".join(phrases).split())


def show_submit_result(submit_result: SubmitResult, form: Format) -> None:
    """Print the plan of a dry run, the numbers of submitted runs or, after --follow, of finished ones."""
    if submit_result.context.dry_run:
        show_plan(submit_result, form)
    elif submit_result.context.follows:
        finished = sum(p.state.finished for p in submit_result.plan.keep)
        print_note(f"{finished} of {format_count(len(submit_result.plan.all_runs), 'run')} finished")
    else:
        text = plan_summary(submit_result.plan, "", describe_destination(submit_result.folders))
        print_note(text or "nothing to do")


def show_plan(submit_result: SubmitResult, form: Format, *, below_table: bool = False) -> None:
    """Print the plan of a dry run; in table format, also the scripts that it would pass to sbatch.

    With `below_table`, another table was printed before, which is the command's result: other formats print no second
    one.
    """
    table = form is Format.TABLE
    if not below_table or (table and submit_result.plan.to_launch):
        print("\n" if below_table else "", end="")
        rows = plan_rows(submit_result.plan, submit_result.context.studies)
        studies = submit_result.context.studies
        rows = _summarised(rows) if form in (Format.TABLE, Format.MARKDOWN) and len(rows) > ROWS_LISTED else rows
        omitted = {"sweep"} if table and len({study.sweep for study in studies}) < 2 else set()
        omitted |= {"strategy"} if table and not any(study.has_strategies for study in studies) else set()
        print_table(rows, form, [key for key in rows[0] if key not in omitted] if rows else None)
    for script in submit_result.batch_scripts if table else []:
        print(f"\n{escape_control(script)}", end="")
    print_note(plan_summary(submit_result.plan, "would be"))


def note_submitted(result: VerificationResult) -> None:
    """Print how many runs were submitted for verdicts, if any; after --follow, the line on costs has the number."""
    planned, submit_result = len(result.last.spent.planned_ids), result.submit_result
    if planned and not result.problem:
        if not submit_result.context.follows:
            submitted = f"{format_count(planned, 'run')} submitted{describe_destination(submit_result.folders)}"
            print_note(f"{submitted}; run this command again when they have finished, or pass --follow")
        note_failed_starts(submit_result.context.results, submit_result.plan)


def describe_destination(folders: Sequence[Path]) -> str:
    """Return the destination of submissions, such as " to SLURM as job 7"; "" without any."""
    arrays = [array for folder in folders if (array := read_submission(folder).array_id())]
    if arrays:
        return f" to SLURM as job {', '.join(arrays)}"
    return " to workers on this machine" if folders else ""


def note_failed_starts(results: Path, plan: Plan) -> None:
    """Print why runs of the plan that were submitted before never started."""
    never_started = [p for p in plan.to_launch if p.state is State.MISSING and p.reason]
    if never_started:
        print_note(f"an earlier job did not start {len(never_started)} of them: {never_started[0].reason}")
        ids = {p.id for p in never_started}
        earlier = [s for s in submissions(results) if ids & set(s.runs)]
        # The submission just made is among them: a single one has no earlier workers.
        print_note(f"the workers' last output: {earlier[0].last_output()}" if len(earlier) > 1 else "")


def note_unsubmitted(sweep_store: SweepStore, name: str, plan: Plan) -> None:
    """Print how many runs of a sweep have no run folder yet: a command may request only a part of its sweep."""
    sweep = sweep_store.sweeps.get(name)
    if sweep is None:  # the runs are submitted all the same
        problem = sweep_store.broken.get(name)
        print_note(f"sweep {name} {f'cannot be read: {problem}' if problem else 'was renamed or deleted meanwhile'}")
        return
    unplanned = {spec.run_id for spec in sweep.specs()} - {p.id for p in plan.all_runs}
    missing = sum(not (runs_dir(sweep_store.results) / run).is_dir() for run in unplanned)
    if missing:
        subject = f"{format_count(missing, 'other run')} of sweep {name} {'is' if missing == 1 else 'are'} missing"
        print_note(
            f"{subject}: {shell_command('verify-optimum', '--sweep', name)} submits {'it' if missing == 1 else 'them'}"
        )


def note_blocked(
    plan: Plan, verdicts: Sequence[Verdict] = (), selection: Sequence[str] = (), *, is_told: bool = False
) -> None:
    """Print the blocked runs, which need a decision, with the command to type unless another line has it.

    `selection` are the command's own options that select runs, for a suggested `status`. With `is_told`, the progress
    has printed why runs were not started.
    """
    # The reasons of these verdicts already have a command for the run.
    advised = {run for v in verdicts for run in v.blocked_run_ids}
    ids_by_reason: dict[tuple[State, str, bool], list[str]] = {}
    stopped = {p.spec.family_id for p in plan.blocked if p.status.is_stopped}  # their reason has the command
    # A retry would not help unanswered runs; the reason of a held one has the remedy.
    to_retry = [
        p.id
        for p in plan.blocked
        if not p.status.is_unanswered
        and p.state is not State.HELD
        and p.id not in advised
        and p.spec.family_id not in stopped
    ]
    # A full disk may block thousands of runs for one reason: a few examples are enough.
    for p in plan.blocked[:BLOCKED_NAMED]:
        reason = "" if is_told and p.status.is_stopped else p.reason
        ids_by_reason.setdefault((p.state, reason, p.status.is_unanswered), []).append(p.id)
    for (state, reason, is_unanswered), ids in ids_by_reason.items():
        subject = f"{'run' if len(ids) == 1 else 'runs'} {', '.join(ids)} {'is' if len(ids) == 1 else 'are'} {state}"
        hint = "; try again when it answers" if is_unanswered else ""
        print_note(f"{subject}{f': {reason}' if reason else ''}{hint}")
    if len(plan.blocked) > BLOCKED_NAMED:
        states = dict.fromkeys(p.state.value for p in plan.blocked)
        status_command = shell_command("status", *selection, *repeat_option("--state", states))
        print_note(f"... and {len(plan.blocked) - BLOCKED_NAMED} more; {status_command} lists them")
    if to_retry:
        by_id = not selection or len(to_retry) <= BLOCKED_NAMED
        command = shell_command("retry", *(to_retry[:BLOCKED_NAMED] if by_id else selection))
        print_note(f"{command} trains {'it' if len(to_retry) == 1 else 'them'} again")


# --- runs -----------------------------------------------------------------------------------------------------------


def run_sort_key(run: Run) -> tuple[object, ...]:
    """Return the key for sorting runs in tables: model, strategy, point, seed."""
    s = run.base.strategy.s
    # The standard parametrisation has no exponent; it comes first.
    return run.labels.model, -1.0 if s is None else s, *run.values.values(), run.seed, run.id


def status_row(run: Run, studies: StudiesByFamily) -> Json:
    """Return the row of a run for `status`, in which log2_lr and log2_wd are base-2 logarithms."""
    labels, cells = run.labels, run_cells(studies, run)
    return {
        "run": run.id,
        "sweep": run_sweeps_text(studies, run),
        "family": run.family,
        "model": labels.model,
        "task": labels.task,
        "strategy": run_strategy(studies, run),
        **cells,
        **{f"log2_{name}": log2(value) if value else None for name, value in cells.items()},
        "seed": run.seed,
        "state": run.state.value,
        "progress": trained_fraction(run),
        "best_score": best_score(run),
        "reason": run.status.reason,
        # Empty texts become null in JSON.
        "where": run.status.host or None,
        "job": run.status.job or None,
        "slot": run.status.slot or None,
        "left_s": run.status.remaining_s,
    }


def trained_fraction(run: Run) -> float:
    """Return the fraction of its steps that a run has trained: for a diverged run, the steps before it diverged."""
    if run.state is not State.DIVERGED or not run.result:
        return run.status.progress
    step = as_number(run.result.get("diverged_step"))
    return run.status.progress if step is None or not run.base.info.steps else step / run.base.info.steps


def best_score(run: Run) -> float | None:
    """Return the best score: of the result, or of the evaluations so far if the run has not finished."""
    if run.state.finished:
        return run.score
    metric = run.spec.info.metric
    best_by_step = metric.best_so_far(run.dir.evaluations(metric.column))
    return best_by_step[max(best_by_step)] if best_by_step else None


def describe_run(run_index: RunIndex, run_id: str, studies_by_family: StudiesByFamily) -> Json:
    """Return all fields of a run as JSON data: its row in `status`, folder, spec, attempts and result.

    A broken run folder yields its id, state and reason.
    """
    # None for a broken run folder.
    run = run_index.runs.get(run_id)
    if run is None:
        return {"run": run_id, "state": State.FAILED.value, "reason": run_index.broken[run_id]}
    row = status_row(run, studies_by_family)
    attempts = []
    for number in run.dir.attempt_numbers():
        attempt = run.dir.attempt(number)
        parent, step = attempt.resumed_from()
        claim = attempt.claim()
        failure = attempt.failure() or {}
        # Files of attempts may be damaged: check types, and accept missing keys.
        owner = claim.get("process")
        attempts.append(
            {
                "attempt": number,
                "from": f"attempt {parent}, step {step}" if parent else "the start",
                "host": owner.get("host") if isinstance(owner, dict) else None,
                **{key: claim.get(key) for key in ("device", "device_name", "threads", "torch", "slot", "job")},
                **attempt.command(),
                "ended": failure.get("reason"),
                "provenance": attempt.provenance(),
            }
        )
    spec = run.spec.model_dump(mode="json")
    spec |= axis_cells(run.point)
    return {**row, "folder": str(run.dir.path), "spec": spec, "attempts": attempts, "result": run.result}


def state_note(row: dict[str, Any]) -> str:
    """Return a short note on a run's place, remaining time, and the reason of its state."""
    # Many reasons name the job already.
    job = f"job {row['job']}" if row["job"] and str(row["job"]) not in row["reason"] else ""
    location, left = "", ""
    if row["state"] == State.RUNNING:
        location = f"on {row['where']}" if row["where"] else ""
        left = f"about {format_duration(row['left_s'])} left" if row["left_s"] is not None else ""
    return ", ".join(filter(None, [location, job, left, row["reason"]]))


def idle_reason(results: Path, idle: Sequence[Run]) -> str:
    """Return the last output of the workers that should have started `idle` runs; "" if there were none."""
    never_started = {run.id for run in idle if run.state is State.MISSING}
    for submission in reversed(submissions(results)):
        if never_started & set(submission.runs):
            return f"; the last workers' output: {submission.last_output()}"
    return ""


def flatten(data: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested data as (dotted key, value) pairs; members of lists of objects are numbered from 1."""
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            rows += flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value, 1):
                rows += flatten(item, f"{prefix}{key}.{number}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
