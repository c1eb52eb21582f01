"""What a command that goes on until its verdicts stand says at its end."""

from collections.abc import Sequence

from ettsweep.cli.prompts import shell_command
from ettsweep.cli.run_tables import note_blocked, note_submitted, show_plan
from ettsweep.cli.verdict_tables import note_outside, note_saved, score_note, show_verdicts
from ettsweep.console import Format, count, print_note
from ettsweep.launch.follow import VerificationResult
from ettsweep.study.verification import Budget


def show_verified(
    done: VerificationResult, budget: Budget, form: Format, again: Sequence[str], meant: Sequence[str] = ()
) -> int:
    """Print verdicts, what was submitted for them, and why it did not go on; return the exit code.

    `again` is the command that goes on, `meant` the options that name what it is about.

    Raises:
        LaunchError: the only round could not be submitted.
    """
    asked, context = done.verification, done.submit_result.context
    show_verdicts(asked.verdicts, form)
    note_outside(asked.verdicts)
    if context.follows:
        note_saved(asked.verdicts, asked.beyond)
    if context.dry_run:
        show_plan(done.submit_result, form, below=True)
    else:
        note_submitted(done)
    if asked.held_back:
        needed = f"{count(asked.held_back, 'more run')} {'is' if asked.held_back == 1 else 'are'} needed"
        print_note(f"{needed} than {budget} allows")
    for told in asked.stopped:
        print_note(f"{told}: it stops here")
    cut_short = context.follows and asked.unproposed
    print_note(f"the search is not over: {budget} allows no further point" if cut_short and budget.stated else "")
    more = asked.stopped or cut_short
    print_note(f"{shell_command(*again, '--max-runs', 'N')} allows N more" if more else "")
    if context.console is None and any(v.verdict == "unresolved" and v.bound for v in asked.verdicts):
        print_note(f"{shell_command(*again)} trains what decides most, seed by seed; --max-runs N sets a limit")
    note_blocked(done.submit_result.plan, asked.verdicts, meant)
    if done.problem:
        raise done.problem
    print_note(score_note([v.study for v in asked.verdicts]))
    return 0 if all(v.verdict == "optimal" for v in asked.verdicts) else 1
