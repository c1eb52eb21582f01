"""What to do next about a verdict: a few words, and the command to copy."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.console import count
from ettsweep.report.families import JudgedFamily
from ettsweep.runs.state import State
from ettsweep.study.run_index import Run
from ettsweep.study.verdict import Verdict

UNDER_WAY = (State.QUEUED, State.RUNNING)


@dataclass(frozen=True)
class NextStep:
    """What to do next, and what to type; the command is empty where there is nothing."""

    words: str
    command: str = ""


def next_steps(families: Sequence[JudgedFamily]) -> list[NextStep]:
    """Say of each of some families of one sweep what to do next; a command names its strategy where others differ."""
    suggestions = [_next(family) for family in families]
    kinds = Counter(command.split()[1] if command else "" for _, command, _ in suggestions)
    steps = []
    for family, (text, command, names_run) in zip(families, suggestions, strict=True):
        study = family.verdict.study
        if command and not names_run:
            is_partial = kinds[command.split()[1]] < len(families)
            options = ["--sweep", study.sweep] if study.sweep else []
            options += ["--strategy", study.strategy] if is_partial else []
            head, tail = command.split()[:2], command.split()[2:]
            command = shlex.join([*head, *options, *tail])
        steps.append(NextStep(text, command))
    return steps


def _next(family: JudgedFamily) -> tuple[str, str, bool]:
    """Return what to do, the command without what it is about, and whether it names that already."""
    verdict = family.verdict
    if to_come := sum(run.state in UNDER_WAY for run in family.runs):
        return f"{count(to_come, 'run')} to come: see how far", "ettsweep watch", False
    if verdict.stuck:
        return _unstick(verdict)
    match verdict.verdict:
        case "optimal" if not verdict.fresh:
            return "rerun it with fresh seeds, which did not choose it", "ettsweep seeds --follow", False
        case "optimal" if run := _to_repeat(family):
            return "train it again, bit for bit", f"ettsweep show {run.id} --reproduce", True
        case "unresolved":
            return _resolve(verdict)
        case "refuted":
            return "climb on from the better neighbour", "ettsweep verify-optimum --follow", False
        case "tie":
            return "judge it by a bound, with more seeds", "ettsweep verify-optimum --rule bound --follow", False
        case "unsearched":
            text = "search an axis: ask for the grid with a range of lr or wd"
            return text, "", True
    if "widen them" in verdict.reason:
        return "widen the ranges, or fix an axis: see the reason below", "", True
    return "train what is missing, and judge again", "ettsweep verify-optimum --follow", False


def _resolve(verdict: Verdict) -> tuple[str, str, bool]:
    if verdict.score is None:
        return "all points diverged: ask for the grid with lower lr", "", True
    if verdict.bound and verdict.bound.value is None:
        text = "repeat its points with more seeds, which tell luck from merit"
        return text, "ettsweep verify-optimum --follow", False
    more_runs = verdict.bound.more if verdict.bound else None
    if more_runs:
        command = f"ettsweep verify-optimum --follow --max-runs {more_runs}"
        return f"about {count(more_runs, 'more run')} would tell", command, False
    return "train what decides most, seed by seed", "ettsweep verify-optimum --follow", False


def _unstick(verdict: Verdict) -> tuple[str, str, bool]:
    """Return what the reason says to type of runs that a person must decide about."""
    commands = re.findall("`(ettsweep [^`]*)`", verdict.reason)
    command = next(
        (suggestion for suggestion in commands if suggestion.startswith("ettsweep retry")),
        commands[0] if commands else "",
    )
    return f"{count(len(verdict.stuck), 'run')} left to you: train again, or see why", command, True


def _to_repeat(family: JudgedFamily) -> Run | None:
    """Return the run of the optimum with the lowest seed that counts and has a score."""
    return next((run for run in family.counted(family.optimum) if run.score is not None), None)
