"""What commands say of plans and runs: rows of tables, JSON, and notes beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ettsweep.cli.prompts import repeated, shell_command
from ettsweep.console import Format, count, escape_control, print_note, print_table
from ettsweep.files import Json
from ettsweep.files import number as as_number
from ettsweep.launch.follow import SubmitResult, VerificationResult
from ettsweep.launch.liveness import NO_ANSWER
from ettsweep.launch.progress import format_duration
from ettsweep.launch.reproduce import reproduce
from ettsweep.launch.running_packs import pack_sizes
from ettsweep.launch.submissions import read_submission, submissions
from ettsweep.powers import log2
from ettsweep.provenance import summary
from ettsweep.runs.folder import runs_dir
from ettsweep.runs.state import State
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.plan import Plan
from ettsweep.study.run_index import Run, RunIndex
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import Searches, SweepStore, by_family, held_by
from ettsweep.study.verdict import Verdict
from ettsweep.trainer.models.registry import model_name
from ettsweep.trainer.tasks.registry import task_kind


def plan_rows(plan: Plan, studies: Sequence[Study]) -> list[dict[str, Any]]:
    """Return a row for each wanted run of some searches, with what is done about it."""
    families = by_family(studies)
    actions = {"submit": plan.submit, "retry": plan.retry, "keep": plan.keep, "blocked": plan.blocked}
    return [
        {
            "run": p.id,
            "action": action,
            "sweep": held_by(families, p.spec.family_id, p.spec),
            "model": model_name(p.spec.model),
            "strategy": strategy_name(p.spec.strategy.s),
            "lr": p.spec.lr,
            "wd": p.spec.wd,
            "seed": p.spec.seed,
            "state": p.state.value,
        }
        for action, members in actions.items()
        for p in members
    ]


def plan_summary(plan: Plan, tense: str, where: str = "") -> str:
    """Return one line of how many runs are submitted, taken on, kept or blocked."""
    parts = []
    if plan.submit:
        parts.append(f"{count(len(plan.submit), 'run')} {tense} submitted")
    if plan.retry:
        parts.append(f"{len(plan.retry)} {tense} taken on")
    parts = [", ".join(parts) + where] if parts else []
    if plan.keep:
        finished = sum(p.state.finished for p in plan.keep)
        parts.append(f"{finished} finished, {len(plan.keep) - finished} under way")
    if plan.blocked:
        parts.append(f"{len(plan.blocked)} need a decision")
    return " ".join((", ".join(parts) or "nothing to do").split())


def show_outcome(submit_result: SubmitResult, form: Format) -> None:
    """Print the plan of a dry run; else say what was submitted or, where it was followed, how much is finished."""
    if submit_result.context.dry_run:
        show_plan(submit_result, form)
    elif submit_result.context.follows:
        finished = sum(p.state.finished for p in submit_result.plan.keep)
        print_note(f"{finished} of {count(len(submit_result.plan.wanted), 'run')} finished")
    else:
        print_note(plan_summary(submit_result.plan, "", where_to(submit_result.folders)))


def show_plan(submit_result: SubmitResult, form: Format, *, below: bool = False) -> None:
    """Print what a dry run would do, and what it would hand to sbatch: JSON and CSV have no room for that.

    `below` another table, which is what was asked for.
    """
    table = form is Format.TABLE
    if not below or (table and submit_result.plan.to_launch):
        print("\n" if below else "", end="")
        rows = plan_rows(submit_result.plan, submit_result.context.studies)
        one = table and len({study.sweep for study in submit_result.context.studies}) < 2
        print_table(rows, form, [key for key in rows[0] if not (one and key == "sweep")] if rows else None)
    for script in submit_result.scripts if table else []:
        print(f"\n{escape_control(script)}", end="")
    print_note(plan_summary(submit_result.plan, "would be"))


def note_submitted(done: VerificationResult) -> None:
    """Say how many runs verdicts have had submitted, if any; of those that were followed, their cost has said it."""
    planned, submit_result = done.verification.planned, done.submit_result
    if planned and not done.problem:
        if not submit_result.context.follows:
            what = f"{count(planned, 'run')} submitted{where_to(submit_result.folders)}"
            print_note(f"{what}; ask again when they are finished, or stay with --follow")
        note_ended(submit_result.context.results, submit_result.plan)


def where_to(folders: Sequence[Path]) -> str:
    """Say where submissions went."""
    arrays = [array for folder in folders if (array := read_submission(folder).array())]
    if arrays:
        return f" to SLURM as job {', '.join(arrays)}"
    return " to workers on this machine" if folders else ""


def note_ended(results: Path, plan: Plan) -> None:
    """Say of runs that were submitted before, and never started, how that ended."""
    never = [p for p in plan.to_launch if p.state is State.MISSING and p.reason]
    if never:
        print_note(f"{len(never)} of them had a job before that did not start them: {never[0].reason}")
        ids = {p.id for p in never}
        before = [s for s in submissions(results) if ids & set(s.runs)]
        print_note(f"the workers' last words: {before[0].last_words()}" if len(before) > 1 else "")


def note_left(sweep_store: SweepStore, name: str, plan: Plan) -> None:
    """Say how many runs of a sweep nobody has submitted yet: a call may ask for a part of it."""
    planned = {p.id for p in plan.wanted}
    ids = {spec.run_id for spec in sweep_store.named[name].specs()} - planned
    missing = sum(not (runs_dir(sweep_store.results) / run).is_dir() for run in ids)
    if missing:
        what = f"{count(missing, 'other run')} of sweep {name} {'is' if missing == 1 else 'are'} missing"
        print_note(
            f"{what}: {shell_command('verify-optimum', '--sweep', name)} submits {'it' if missing == 1 else 'them'}"
        )


def note_blocked(plan: Plan, verdicts: Sequence[Verdict] = (), meant: Sequence[str] = ()) -> None:
    """Name the runs that a person must decide about, with what to type where no verdict has said it.

    `meant` are the options that name what the command was about.
    """
    advised = {run for v in verdicts for run in v.stuck}
    alike: dict[tuple[State, str], list[str]] = {}
    again = []
    for p in plan.blocked[:5]:
        alike.setdefault((p.state, p.reason), []).append(p.id)
        told = p.reason.startswith(NO_ANSWER) or p.state is State.HELD  # then the reason says what to do
        if not told and p.id not in advised:
            again.append(p.id)
    for (state, reason), ids in alike.items():
        what = f"{'run' if len(ids) == 1 else 'runs'} {', '.join(ids)} {'is' if len(ids) == 1 else 'are'} {state}"
        silent = "; ask again when it answers" if reason.startswith(NO_ANSWER) else ""
        print_note(f"{what}{f': {reason}' if reason else ''}{silent}")
    if len(plan.blocked) > 5:
        states = dict.fromkeys(p.state.value for p in plan.blocked)
        listed = shell_command("status", *meant, *repeated("--state", states))
        print_note(f"... and {len(plan.blocked) - 5} more; {listed} lists them")
    print_note(
        f"`ettsweep retry {' '.join(again)}` trains {'it' if len(again) == 1 else 'them'} again" if again else ""
    )


# --- runs -----------------------------------------------------------------------------------------------------------


def in_order(run: Run) -> tuple[object, ...]:
    """Return the key that sorts runs for people: model, strategy, lr, wd, seed."""
    spec = run.spec
    s = -1.0 if spec.strategy.s is None else spec.strategy.s
    return run.model, s, spec.lr, spec.wd, spec.seed, run.id


def status_row(run: Run, sweeps: str, pack: int | None = None) -> Json:
    """Return what `status` prints of a run of some sweeps; log2_lr and log2_wd are of the values.

    `pack` is how many its worker trains at once.
    """
    spec = run.spec
    return {
        "run": run.id,
        "sweep": sweeps,
        "family": run.family,
        "model": run.model,
        "task": spec.task.kind,
        "strategy": run.strategy,
        "lr": spec.lr,
        "wd": spec.wd,
        "log2_lr": log2(spec.lr),
        "log2_wd": log2(spec.wd),
        "seed": spec.seed,
        "state": run.state.value,
        "progress": trained(run),
        "best_score": best_score(run),
        "reason": run.status.reason,
        "where": run.status.where or None,
        "job": run.status.job or None,
        "slot": run.status.slot or None,
        "pack": pack,
        "left_s": run.status.left_s,
    }


def trained(run: Run) -> float:
    """Return the share of its steps that a run has trained: one that diverged has nothing left to do, and no more."""
    step = as_number(run.result.get("diverged_step")) if run.result else None
    return run.status.progress if step is None else step / run.spec.schedule.last_step


def best_score(run: Run) -> float | None:
    """Return the best score so far: the result's, or that of the evaluations that a run in training has written."""
    if run.result is not None:
        return run.score
    attempt = run.dir.latest()
    so_far = task_kind(run.spec.task).score.best_so_far(attempt.evaluations()) if attempt else {}
    return so_far[max(so_far)] if so_far else None


def describe(run_index: RunIndex, run_id: str, searches: Searches) -> Json:
    """Return all that is known of a run, broken or not, as plain data, given the searches of each family."""
    run = run_index.runs.get(run_id)
    if run is None:
        return {"run": run_id, "state": State.FAILED.value, "reason": run_index.broken[run_id]}
    packs = pack_sizes({r.id: r.status for r in run_index.runs.values()})
    row = status_row(run, held_by(searches, run.family, run.spec), packs.get(run_id))
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
    where, pack, left = "", "", ""
    if row["state"] == State.RUNNING:
        where = f"on {row['where']}" if row["where"] else ""
        pack = f"pack of {row['pack']} on {row['slot']}" if (row["pack"] or 1) > 1 else ""
        left = f"about {format_duration(row['left_s'])} left" if row["left_s"] is not None else ""
    return ", ".join(filter(None, [where, job, pack, left, row["reason"]]))


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
        print(escape_control(found.command))
    else:
        print_table([{**data, "differs": "; ".join(found.differs)}], form, data=data)
    for line in (*found.notes, *(f"differs here: {line}" for line in found.differs)):
        print_note(line)
    if not found.differs and run.dir.numbers():
        print_note("nothing differs here from there and then")


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
