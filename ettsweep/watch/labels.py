"""Texts on families and runs: verdicts, details, headline, problems, durations and speeds."""

from collections.abc import Iterator

from ettsweep.console import STYLES, format_cell, format_count
from ettsweep.launch.progress import format_duration
from ettsweep.watch.view_model import FamilyView, ViewModel

StyledText = tuple[str, str]
"""A text and its style."""

NOT_JUDGED = "not judged yet"
STALE_SUFFIX = " ..."
"""Suffix of a verdict that is out of date, since runs have finished after it."""


def verdict_label(family: FamilyView) -> StyledText:
    """Return the verdict on a family as a short label."""
    if (verdict := family.verdict) is None:
        return NOT_JUDGED, "dim"
    suffix = STALE_SUFFIX if family.stale else ""
    return verdict.brief + suffix, STYLES.get(verdict.word, "")


def detail_lines(family: FamilyView) -> Iterator[StyledText]:
    """Yield the details of a family, line by line, the most important first."""
    yield family.title, "bold"
    verdict = family.verdict
    if verdict is None:
        yield NOT_JUDGED, "dim"
        return
    yield verdict.headline, STYLES.get(verdict.word, "")
    if family.stale:
        yield "runs have finished since; judging again", "dim"
    if verdict.at:
        yield f"at {verdict.at}", ""
        yield verdict.score_line, ""
    if verdict.fresh:
        yield f"fresh seeds {verdict.fresh}", "yellow"
    if verdict.beats_all:
        yield f"beats all {len(verdict.neighbours)} neighbours: {verdict.beats_all}", ""
    yield format_cell(verdict.reason), "dim"


def progress_bar(share: float, width: int) -> str:
    """Return a bar of `width` characters that is full only if `share` is 1: 99.9% must not look finished."""
    full = width if share >= 1 else min(width - 1, int(share * width))
    return "━" * full + "─" * (width - full)


def headline(view: ViewModel, results: str) -> list[StyledText]:
    """Return the texts of the first line: numbers of runs, time left, results folder."""
    sweep_status = view.sweep_status
    texts = [(f"{sweep_status.finished_count}/{format_count(sweep_status.run_count, 'run')} finished", "bold")]
    if view.ended:
        texts.append(("all runs have ended", "green" if not sweep_status.unfinished_count else "yellow"))
    if sweep_status.remaining_s:
        texts.append((f"about {format_duration(sweep_status.remaining_s)} left", "cyan"))
    return [*texts, (format_cell(results), "dim")]


def view_problems(view: ViewModel) -> list[StyledText]:
    """Return what keeps runs from training, and what cannot be read."""
    sweep_status = view.sweep_status
    silence = f"SLURM does not answer: {format_cell(sweep_status.slurm_error)}" if sweep_status.slurm_error else ""
    texts = [
        (format_cell(sweep_status.wait_reason), "yellow"),
        (format_cell(sweep_status.idle_slots), "yellow"),
        (format_cell(sweep_status.stop_reason), "red"),
        (silence, "magenta"),
    ]
    return [(text, style) for text, style in (*texts, *((text, "red") for text in view.problems)) if text]


MAX_PROBLEMS = 2
"""Number of problems that are shown; the last line tells how many more there are."""


def limit_problems(problem_lines: list[StyledText]) -> list[StyledText]:
    """Return at most `MAX_PROBLEMS` problems, the last of them with the number of hidden ones."""
    if len(problem_lines) <= MAX_PROBLEMS:
        return problem_lines
    text, style = problem_lines[MAX_PROBLEMS - 1]
    hidden = len(problem_lines) - MAX_PROBLEMS
    return [*problem_lines[: MAX_PROBLEMS - 1], (f"(and {format_count(hidden, 'more problem')}) {text}", style)]


def short_duration(seconds: float) -> str:
    """Format a duration as minutes:seconds, such as 1:15 for 75 s, or hours:minutes:seconds."""
    total_s = round(seconds)
    hours, minutes = total_s // 3600, total_s % 3600 // 60
    return f"{hours}:{minutes:02}:{total_s % 60:02}" if hours else f"{minutes}:{total_s % 60:02}"


def per_second(rate: float) -> str:
    """Format a speed in steps per second with three digits; below 0.1, in steps per minute."""
    # "0.05/s" is harder to read than "3/min".
    if rate < 0.1:
        return f"{60 * rate:.3g}/min"
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"
