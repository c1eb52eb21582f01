"""The next step for a verdict: a few words, and the command to copy."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.console import format_count
from ettsweep.study.budget import EXTRA_RUNS, ample_runs
from ettsweep.study.verdict import Verdict

VERIFY = "ettsweep verify-optimum --follow"


@dataclass(frozen=True)
class NextStep:
    """The next step in words, and its command; the command is empty where the step is no command."""

    text: str
    command: str = ""


def next_steps(verdicts: Sequence[Verdict]) -> list[NextStep]:
    """Return the next step for each of the verdicts on one sweep.

    A command has --strategy only where the others need another command: else one command serves all.
    """
    drafts = [_next_step(verdict) for verdict in verdicts]
    # The subcommand of each step shows whether one command serves all.
    kinds = Counter(command.split()[1] if command else "" for _, command, _ in drafts)
    steps = []
    for verdict, (text, command, names_run) in zip(verdicts, drafts, strict=True):
        if command and not names_run:
            needs_strategy = kinds[command.split()[1]] < len(verdicts)
            options = ["--sweep", verdict.study.sweep] if verdict.study.sweep else []
            options += ["--strategy", verdict.strategy] if needs_strategy else []
            if command == VERIFY:
                command += _budget_option([verdict] if needs_strategy else verdicts)
            # Options that select the sweep go right after the subcommand.
            head, tail = command.split()[:2], command.split()[2:]
            command = shlex.join([*head, *options, *tail])
        steps.append(NextStep(text, command))
    return steps


def _budget_option(verdicts: Sequence[Verdict]) -> str:
    """Return the option without which a verification would stop at once; empty if none."""
    if sum(verdict.extra_runs for verdict in verdicts) < EXTRA_RUNS * len(verdicts):
        return ""
    unresolved = [verdict for verdict in verdicts if verdict.verdict == "unresolved"]
    return f" --max-runs {ample_runs(sum(_further_runs(verdict) for verdict in unresolved))}"


def _further_runs(verdict: Verdict) -> int:
    return (verdict.bound and verdict.bound.further_runs) or 0


def _next_step(verdict: Verdict) -> tuple[str, str, bool]:
    """Return the words, the command without --sweep and --strategy, and whether it names its run already."""
    # Before all others: runs under way may change the verdict, and so the step.
    if pending := verdict.runs_under_way:
        return f"{format_count(pending, 'run')} queued or running: follow their progress", "ettsweep watch", False
    if verdict.blocked_run_ids:
        return _decide_step(verdict)
    match verdict.verdict:
        case "optimal" if not verdict.fresh_scores:
            return "rerun it with fresh seeds, which took no part in choosing it", "ettsweep seeds --follow", False
        case "optimal" if run := next((run for run in verdict.candidate_runs if run.score is not None), None):
            return "see how it was trained: its command, and the versions", f"ettsweep show {run.id}", True
        case "unresolved":
            return _resolve_step(verdict)
        case "refuted":
            return "continue from the better neighbour", VERIFY, False
        case "tie":
            return "judge it by a bound, with more seeds", "ettsweep verify-optimum --rule bound --follow", False
        case "unsearched":
            text = "search an axis: request the grid with a range of lr or wd"
            return text, "", True
    if verdict.reason.code == "out_of_reach":
        return "widen the ranges, or fix an axis: see the reason below", "", True
    return "train the missing runs, and judge again", VERIFY, False


def _resolve_step(verdict: Verdict) -> tuple[str, str, bool]:
    if verdict.score is None:
        return "all points diverged: request the grid with lower lr", "", True
    if verdict.bound and verdict.bound.value is None:
        return "repeat its points with more seeds, to measure the noise", VERIFY, False
    if further_runs := _further_runs(verdict):
        return f"it takes at least {format_count(further_runs, 'more run')}", VERIFY, False
    return "train the runs that decide most, seed by seed", VERIFY, False


def _decide_step(verdict: Verdict) -> tuple[str, str, bool]:
    """Return the command that helps runs that a person must decide about."""
    command = shlex.join(verdict.reason.next[0]) if verdict.reason.next else ""
    return f"decide about {format_count(len(verdict.blocked_run_ids), 'run')}: retry, or see why", command, True
