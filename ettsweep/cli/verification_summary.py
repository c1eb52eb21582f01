"""The output of `verify-optimum` and `search`: verdicts, and what is left to do."""

from collections.abc import Sequence

from ettsweep.cli.prompts import shell_command
from ettsweep.cli.run_tables import note_blocked, note_submitted, show_plan
from ettsweep.cli.verdict_tables import note_outside_points, note_saved_runs, score_note, show_verdicts
from ettsweep.console import Format, format_count, print_note
from ettsweep.launch.follow import VerificationResult
from ettsweep.runs.state import State
from ettsweep.study.budget import Budget, ample_runs
from ettsweep.study.plan import PlannedRun


def show_verification(
    result: VerificationResult, budget: Budget, form: Format, command: Sequence[str], selection: Sequence[str] = ()
) -> int:
    """Print verdicts, what was submitted for them, and why training stopped; return the exit code.

    The exit code is 0 if all verdicts are "optimal", else 1. `command` are the arguments of the command that continues,
    `selection` the options that select its studies.

    Raises:
        LaunchError: The runs of the only round could not be submitted; all else is printed first.
    """
    last, context = result.last, result.submit_result.context
    show_verdicts(last.verdicts, form)
    note_outside_points(last.verdicts)
    if context.follows:
        note_saved_runs(result.rounds, result.submit_result.plan.run_index)
    if context.dry_run:
        show_plan(result.submit_result, form, below_table=True)
    else:
        note_submitted(result)
    over_budget = last.over_budget
    if over_budget and not last.stop_reasons:
        verb = "is" if len(over_budget) == 1 else "are"
        print_note(f"{format_count(len(over_budget), 'more run')} {verb} needed than {budget} allows")
    for reason in last.stop_reasons:
        print_note(f"{reason}: stopped")
    is_cut_short = context.follows and last.spent.is_search_cut_short
    print_note(
        f"the search is not complete: {budget} allows no further point" if is_cut_short and budget.is_limited else ""
    )
    if context.follows and (last.runs_short or is_cut_short or over_budget):
        runs_short = max(last.runs_short, len(over_budget))
        print_note(f"{shell_command(*command, '--max-runs', str(ample_runs(runs_short)))} goes on")
    _note_interrupted(over_budget)
    # Without --follow, unresolved verdicts need another command.
    if context.console is None and any(
        v.verdict == "unresolved" and v.bound and v.study.base.info.seeded for v in last.verdicts
    ):
        print_note(f"{shell_command(*command)} trains the seeds that decide most")
    note_blocked(result.submit_result.plan, last.verdicts, selection)
    # Raised last: the verdicts are valid although their runs could not be submitted.
    if result.problem:
        raise result.problem
    print_note(score_note([v.study for v in last.verdicts]))
    return 0 if all(v.verdict == "optimal" for v in last.verdicts) else 1


def _note_interrupted(over_budget: Sequence[PlannedRun]) -> None:
    """Print which runs the budget leaves interrupted, and the command that resumes them."""
    interrupted = [p.id for p in over_budget if p.state is State.INTERRUPTED]
    if interrupted:
        pronoun = "it" if len(interrupted) == 1 else "them"
        number = format_count(len(interrupted), "run")
        print_note(f"{number} left interrupted: {shell_command('retry', *interrupted)} resumes {pronoun}")
