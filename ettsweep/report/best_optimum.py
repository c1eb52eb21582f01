"""The best of several verified optima, and how far it is ahead: never more certain than the seeds allow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.console import format_count
from ettsweep.quantities import as_share, bound_text, difference_text, score_text
from ettsweep.report.formats import mean_std, mean_text
from ettsweep.report.verdict_view import headline
from ettsweep.study.fresh import chance
from ettsweep.study.verdict import Verdict


@dataclass(frozen=True)
class BestOptimum:
    """The answer of verdicts that differ only in strategy, as texts.

    Attributes:
        claim: what was found, such as "Best of 2 verified optima"; without an optimum, that there is none.
        strategy: of the best; empty if there is one strategy alone, as all others without an optimum.
        at, headline, score, seeds: its point, verdict, score, and the seeds of this.
        lead: how far it is ahead of the next; empty if that is not known.
    """

    claim: str
    strategy: str = ""
    at: str = ""
    headline: str = ""
    score: str = ""
    seeds: str = ""
    lead: str = ""


def best_optimum(verdicts: Sequence[Verdict]) -> BestOptimum:
    """Return the best of the verified optima: by fresh seeds if all have them, else by the search's seeds."""
    verified = [v for v in verdicts if v.verdict == "optimal" and v.candidate and v.score is not None]
    if not verified:
        unsearched = all(v.verdict == "unsearched" for v in verdicts)
        return BestOptimum("No axis was searched: both are fixed" if unsearched else "No optimum is verified yet")
    fresh = {v.family: mean_std([*v.fresh_scores.values()]) for v in verified}
    # All or none: the search's seeds flatter the point that they chose, so the two kinds do not compare.
    by_fresh = all(mean is not None for mean, _ in fresh.values())
    metric = verified[0].study.metric
    ranked = sorted(verified, key=lambda v: metric.sort_key(fresh[v.family][0] if by_fresh else v.score))
    winner = ranked[0]
    assert winner.candidate is not None
    assert winner.score is not None
    best = "Best of" if by_fresh else "Best, by seeds that chose the points, of"
    number = len(winner.fresh_scores) if by_fresh else winner.candidate.runs
    return BestOptimum(
        claim=f"{best} {len(verified)} verified optima" if len(verified) > 1 else "Verified optimum",
        strategy=winner.strategy if winner.study.has_strategies else "",
        at=winner.candidate.point.words,
        headline=headline(winner),
        score=(by_fresh and mean_text([*winner.fresh_scores.values()], metric)) or score_text(winner.score, metric),
        seeds=format_count(number, "fresh seed" if by_fresh else "search seed"),
        lead=_lead_text(winner, ranked[1]) if by_fresh and len(ranked) > 1 else "",
    )


def _lead_text(winner: Verdict, second: Verdict) -> str:
    """Compare the best optimum with the next one over fresh seeds, by Welch's test (95%, two-sided: the better leads).

    Empty if one of them has fewer than two fresh seeds, or one diverged, or the best loss is 0.
    """
    (first_mean, first_std), (mean, std) = (mean_std([*v.fresh_scores.values()]) for v in (winner, second))
    if first_mean is None or mean is None or first_std is None or std is None:
        return ""
    numbers = len(winner.fresh_scores), len(second.fresh_scores)
    squares = [sd**2 / n for sd, n in zip((first_std, std), numbers, strict=True)]
    error = math.sqrt(sum(squares))
    spread = sum(square**2 / (n - 1) for square, n in zip(squares, numbers, strict=True))
    dof = error**4 / spread if spread else math.inf  # Welch-Satterthwaite
    ahead = winner.study.metric.worse_by(mean, first_mean)
    sure = chance(error, dof)
    metric = winner.study.metric
    # As shares of the best score, like all differences.
    shares = [share for value in (ahead, error, sure) if (share := as_share(value, first_mean, metric)) is not None]
    if not shares:
        return ""
    gap = difference_text(shares[0], shares[1], metric, signed=False)
    if ahead > sure:
        return f"ahead of {second.label} by {gap}"
    luck = f"which may be luck (a lead of {bound_text(shares[2], metric)} would not be)"
    return f"ahead of {second.label} by {gap}, {luck}"
