"""What the screen says of families and runs: confidence in a few words, and in all that there is room for."""

from collections.abc import Iterator

from ettsweep.console import STYLES, cell, count
from ettsweep.launch.progress import format_duration
from ettsweep.powers import power
from ettsweep.study.verdict import MOST, MOST_SURE, Bound, Verdict
from ettsweep.watch.view_model import FamilyView, ViewModel

Words = tuple[str, str]
"""What is said, and its style."""

NOT_JUDGED = "not judged yet"
AGAIN = " ..."
"""Follows a verdict where runs have finished since."""


def confidence(family: FamilyView) -> Words:
    """Return the verdict on a family in a few words."""
    if (verdict := family.verdict) is None:
        return NOT_JUDGED, "dim"
    again = AGAIN if family.stale else ""
    return _short(verdict) + again, STYLES.get(verdict.verdict, "")


def _short(verdict: Verdict) -> str:
    bound, said = verdict.bound, verdict.study.metric.format_share
    if verdict.verdict == "unresolved" and bound and bound.value is not None:
        return f"unresolved: {said(bound.value)}, asked {said(bound.margin)}"
    return verdict.statement


def details(family: FamilyView) -> Iterator[Words]:
    """Yield lines on a family, the most telling first."""
    yield family.title, "bold"
    verdict = family.verdict
    if verdict is None:
        yield NOT_JUDGED, "dim"
        return
    yield verdict.statement, STYLES.get(verdict.verdict, "")
    if family.stale:
        yield "runs have finished since: it is being judged again", "dim"
    if point := verdict.point:
        yield f"at lr {power(point.lr)}, wd {power(point.wd)}", ""
        yield _score(verdict), ""
    if bound := verdict.bound:
        yield from _bound(verdict, bound)
    if verdict.reason:
        yield cell(verdict.reason), "dim"


def _score(verdict: Verdict) -> str:
    if verdict.score is None or verdict.candidate is None:
        return "no score: it diverged" if verdict.candidate and verdict.candidate.state.finished else "no score yet"
    metric = verdict.study.metric.metric.replace("_", " ")
    return f"{metric} {verdict.score:.4g}, {count(verdict.candidate.runs, 'seed')}"


def _bound(verdict: Verdict, bound: Bound) -> Iterator[Words]:
    """Yield what is known by the rule of the bound: how sure it is, and what more would take."""
    if bound.noise.known != "unknown":
        sure = f"more than {100 * MOST_SURE:g}%" if bound.best > MOST_SURE else f"{100 * bound.best:.3g}%"
        yield f"beats all {len(verdict.neighbours)} neighbours: {sure}", ""
    if bound.wide:
        more = f"more than {MOST}" if bound.more is None else f"about {bound.more}"
        yield f"{more} further runs would tell", "yellow"


def progress_bar(share: float, width: int) -> str:
    """Return a bar that is full where a share is 1, and only there."""
    full = width if share >= 1 else min(width - 1, int(share * width))
    return "━" * full + "─" * (width - full)


def headline(view: ViewModel, results: str) -> list[Words]:
    """Return the words of the first line: how far all is, and how long still."""
    sweep_status = view.sweep_status
    words = [(f"{sweep_status.done}/{count(len(sweep_status.statuses), 'run')} finished", "bold")]
    if view.ended:
        words.append(("all runs have ended", "green" if not sweep_status.left else "yellow"))
    if sweep_status.remaining_s:
        words.append((f"about {format_duration(sweep_status.remaining_s)} left", "cyan"))
    return [*words, (cell(results), "dim")]


def problems(view: ViewModel) -> list[Words]:
    """Return what keeps runs from being trained, and what cannot be read."""
    sweep_status = view.sweep_status
    silence = f"SLURM does not answer: {cell(sweep_status.slurm_error)}" if sweep_status.slurm_error else ""
    told = [(cell(sweep_status.waits), "yellow"), (cell(sweep_status.idles), "yellow"), (silence, "magenta")]
    return [(text, style) for text, style in (*told, *((text, "red") for text in view.problems)) if text]


MOST_PROBLEMS = 2
"""Problems that have a line each; of more, their number is told."""


def few(wrong: list[Words]) -> list[Words]:
    """Return the first of some problems, with how many more there are."""
    if len(wrong) <= MOST_PROBLEMS:
        return wrong
    text, style = wrong[MOST_PROBLEMS - 1]
    more = len(wrong) - MOST_PROBLEMS
    return [*wrong[: MOST_PROBLEMS - 1], (f"(and {count(more, 'more problem')}) {text}", style)]


def short_duration(seconds: float) -> str:
    """Return 75 s as 1:15, and hours before that."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def per_second(rate: float) -> str:
    """Return a speed to three digits, of slow runs in steps a minute."""
    if rate < 0.1:
        return f"{60 * rate:.3g}/min"
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"
