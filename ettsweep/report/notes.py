"""Notes on the runs of a verdict, and the next step: a few words, and the command to copy."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.console import format_count
from ettsweep.report.reason_text import runs_text
from ettsweep.report.score_digits import ScoreDigits
from ettsweep.runs.folder import recorded_counts
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.runs.versions import find_mixed_versions
from ettsweep.study.budget import EXTRA_RUNS, ample_runs
from ettsweep.study.tried import ResumeClass, outcome_of
from ettsweep.study.verdict import Verdict

MIN_SAME = 2
"""Points with identical scores for all seeds that cannot be chance."""

MIN_SCORES = 4
"""Fewer scores may be round by chance."""


def run_notes(verdict: Verdict) -> list[str]:
    """Return notes on the runs of a verdict."""
    texts = (
        _resumed_text(verdict),
        _other_ends_text(verdict),
        _other_evaluations_text(verdict),
        _differing_facts_text(verdict),
        _same_seeds_text(verdict),
        _single_runs_text(verdict),
        _few_digits_text(verdict),
        find_mixed_versions(verdict.runs),
    )
    return list(filter(None, texts))


def resumed_runs(verdict: Verdict) -> list[Run]:
    """Return the runs of a verdict that their own programs resumed, which few do exactly."""
    runs = [run for run in verdict.runs if run.base.info.stop_signal]
    return [run for run in runs if (run.result or {}).get("resumed_step")]


def resume_class(verdict: Verdict) -> ResumeClass | None:
    """Return how killed runs of a verdict resume, by `ettsweep try`; None if it is unknown."""
    if not (verdict.study.base.info.stop_signal and verdict.runs):
        return None
    tried = outcome_of(verdict.runs[0].dir.path.parent.parent, verdict.study)
    if tried is None or (tried.resume == "resumes" and not tried.repeats):
        return None  # repeated runs differ anyway
    return tried.resume


def resume_cell(verdict: Verdict) -> str | None:
    """Return a cell with the class of a verdict's runs, and how many were resumed; None if both are unknown."""
    resumed, kind = len(resumed_runs(verdict)), resume_class(verdict)
    if not resumed:
        return kind
    return f"{kind or 'class unknown'}, {resumed} of {len(verdict.runs)} runs"


def _resumed_text(verdict: Verdict) -> str:
    """Return how many runs were resumed by their own programs, and how exactly; empty for none."""
    if not (resumed := resumed_runs(verdict)):
        return ""
    by_class = {"exact": "exactly, as in its trial", "resumes": "with other numbers, as in its trial"}
    how = by_class.get(resume_class(verdict) or "", "perhaps with other numbers")
    return f"the program resumed {len(resumed)} of {len(verdict.runs)} runs, {how}"


def _other_ends_text(verdict: Verdict) -> str:
    """Return how many runs ended at another step than most, or than you stated; empty if none did."""
    results = [run.result or {} for run in verdict.runs if run.state is State.DONE]
    ends = Counter(step for result in results if isinstance(step := result.get("steps"), int))
    if not ends:
        return ""
    ((most, count),) = ends.most_common(1)
    if others := ends.total() - count:
        return f"most runs ended at step {most}, but {others} of {ends.total()} did not"
    stated = verdict.runs[0].base.info.steps
    return f"all runs ended at step {most}, not at {stated}" if stated and most != stated else ""


def _other_evaluations_text(verdict: Verdict) -> str:
    """Return how many runs were evaluated more or less often than most: the best of more values is better."""
    if verdict.study.metric.take != "best":
        return ""
    results = [run.result or {} for run in verdict.runs if run.state is State.DONE]
    column = verdict.study.metric.column
    counts = Counter(
        (result.get("steps"), counts[column])
        for result in results
        if (counts := recorded_counts(result)) and column in counts
    )
    if not counts:
        return ""
    (((last_step, most), _),) = counts.most_common(1)
    # `_other_ends_text` reports runs that ended at another step.
    others = sum(count for (step, number), count in counts.items() if step == last_step and number != most)
    if not others:
        return ""
    return f"most runs were evaluated {most} times, but {others} of {counts.total()} were not"


MACHINE_FACTS = ("device", "device_name", "driver", "instruction_set", "python", "torch", "numpy")
"""Keys of a result's environment that may change numbers."""


def differing_facts(verdict: Verdict) -> dict[str, dict[str, int]]:
    """Return machines and packages that differ among the runs of a verdict: by fact, the runs of each value."""
    environments = [each for run in verdict.runs if isinstance(each := (run.result or {}).get("environment"), dict)]
    values: dict[str, Counter[str]] = {name: Counter() for name in MACHINE_FACTS}
    for each in environments:
        facts = {name: str(each[name]) for name in MACHINE_FACTS if name in each}
        if "device" in facts:
            facts["device"] = facts["device"].partition(":")[0]
        for name, value in facts.items():
            values[name][value] += 1
    if verdict.study.base.info.stop_signal:
        del values["python"]  # of the worker, not of the program
    packages = [each["packages"] for each in environments if isinstance(each.get("packages"), dict)]
    for name in sorted({name for each in packages for name in each}):
        values[name] = Counter(str(each.get(name, "none")) for each in packages)
    return {name: dict(counts.most_common()) for name, counts in values.items() if len(counts) > 1}


def _differing_facts_text(verdict: Verdict) -> str:
    """Return the differing machines and packages as a note; empty for none."""
    facts = (
        f"{name.replace('_', ' ')} ({', '.join(f'{count} with {value}' for value, count in counts.items())})"
        for name, counts in differing_facts(verdict).items()
    )
    listed = ", ".join(facts)
    return f"its runs differ in {listed}, which may change scores" if listed else ""


def _single_runs_text(verdict: Verdict) -> str:
    """Return a note if runs have no seed; else an empty text."""
    if verdict.study.base.info.seeded:
        return ""
    return "`seeds: none` allows one run a point, so the noise is unknown and there is no bound"


def _few_digits_text(verdict: Verdict) -> str:
    """Return a warning if scores of own code have too few digits for the margin; else an empty text."""
    scores = [run.score for run in verdict.runs if run.score is not None and run.base.info.code]
    if verdict.score is None or len(scores) < MIN_SCORES:
        return ""
    digits = ScoreDigits.of(scores, verdict.score, verdict.study.metric, verdict.study.criterion)
    return f"scores come {digits}: print more digits, or state a wider margin" if digits.are_too_few else ""


def _same_seeds_text(verdict: Verdict) -> str:
    """Return a warning if all seeds of each point score the same, which would count as no noise; else an empty text."""
    scores: dict[Point, list[float]] = {}
    for run in verdict.runs:
        if run.score is not None:
            scores.setdefault(verdict.study.point_of(run), []).append(run.score)
    several = [each for each in scores.values() if len(each) > 1]
    if len(several) < MIN_SAME or any(len(set(each)) > 1 for each in several):
        return ""
    return f"all seeds of {len(several)} points have identical scores: does training use its seed?"


# --- next steps -------------------------------------------------------------------------------------------------------

VERIFY = "ettsweep verify-optimum --follow"


@dataclass(frozen=True)
class NextStep:
    """The next step in words, and its command, empty if there is none."""

    text: str
    command: str = ""


def next_steps(verdicts: Sequence[Verdict]) -> list[NextStep]:
    """Return the next step for each of the verdicts on one sweep.

    A command has --strategy only if other strategies need another command.
    """
    drafts = [_next_step(verdict) for verdict in verdicts]
    kinds = Counter(command.split()[1] if command else "" for _, command, _ in drafts)
    steps = []
    for verdict, (text, command, names_run) in zip(verdicts, drafts, strict=True):
        if command and not names_run:
            needs_strategy = kinds[command.split()[1]] < len(verdicts)
            options = ["--sweep", verdict.study.sweep] if verdict.study.sweep else []
            options += ["--strategy", verdict.strategy] if needs_strategy else []
            if command == VERIFY:
                command += _budget_option([verdict] if needs_strategy else verdicts)
            head, tail = command.split()[:2], command.split()[2:]
            command = shlex.join([*head, *options, *tail])
        steps.append(NextStep(text, command))
    return steps


def _budget_option(verdicts: Sequence[Verdict]) -> str:
    """Return --max-runs if a verification would stop at once without it; else an empty text."""
    if sum(verdict.extra_runs for verdict in verdicts) < EXTRA_RUNS * len(verdicts):
        return ""
    unresolved = [verdict for verdict in verdicts if verdict.verdict == "unresolved"]
    return f" --max-runs {ample_runs(sum(_further_runs(verdict) for verdict in unresolved))}"


def _further_runs(verdict: Verdict) -> int:
    forecast = verdict.bound.further_runs if verdict.bound else None
    return forecast.likely if forecast else 0


def _next_step(verdict: Verdict) -> tuple[str, str, bool]:
    """Return the words, the command without --sweep and --strategy, and whether it names its run already."""
    if verdict.study.stated_seeds:  # of a table
        decided = verdict.verdict == "optimal"
        return (
            "nothing: no more runs are needed" if decided else "add runs: `ettsweep verdict` lists the best",
            "",
            True,
        )
    # Before all others: runs under way may change the verdict, and so the step.
    if pending := verdict.runs_under_way:
        return f"{format_count(pending, 'run')} queued or running: follow their progress", "ettsweep watch", False
    if verdict.blocked_run_ids:
        return _decide_step(verdict)
    match verdict.verdict:
        case "optimal" if not verdict.fresh_scores:
            return "rerun it with fresh seeds, which did not choose it", "ettsweep seeds --follow", False
        case "optimal" if run := next((run for run in verdict.candidate_runs if run.score is not None), None):
            return "see its command and the versions that trained it", f"ettsweep show {run.id}", True
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
        return "widen the ranges or fix an axis: see the reason below", "", True
    return "train the missing runs, and judge again", VERIFY, False


def _resolve_step(verdict: Verdict) -> tuple[str, str, bool]:
    if verdict.score is None:
        return "all points diverged: request the grid with lower lr", "", True
    if lacking := runs_text(verdict.reason):
        return lacking, VERIFY, False
    if verdict.reason.code == "edge_above":
        return "use the lr one step below: no more seeds are planned", "", True
    return "train the runs that narrow the bound, seed by seed", VERIFY, False


def _decide_step(verdict: Verdict) -> tuple[str, str, bool]:
    """Return the first command for the runs that a person must decide about."""
    command = shlex.join(verdict.reason.next[0]) if verdict.reason.next else ""
    return f"decide about {format_count(len(verdict.blocked_run_ids), 'run')}: retry, or see why", command, True
