"""Verdicts in words for the page: never more certain than the seeds allow."""

import math
from collections.abc import Sequence
from typing import Any

from ettsweep.console import format_count
from ettsweep.powers import log2, power_and_decimal
from ettsweep.report import formats
from ettsweep.study.posterior import Difference
from ettsweep.study.surface import student_quantile
from ettsweep.study.verdict import MAX_PROBABILITY, Verdict, conflicting_verdicts

T95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.9}
"""The 95% quantile of Student's t for few degrees of freedom (one-sided); above these, `student_quantile` has it."""

Row = dict[str, Any]

Key = tuple[str, str]
"""The sweep and the family of a verdict."""


def other_sweeps(verdicts: Sequence[Verdict]) -> dict[Key, list[str]]:
    """Return, for each verdict, sentences on the verdicts of other sweeps on the same family, and why they differ."""
    lines: dict[Key, list[str]] = {}
    for verdict, other, differences in conflicting_verdicts(verdicts):
        for mine, theirs in ((verdict, other), (other, verdict)):
            at = (
                f" at lr {power_and_decimal(theirs.lr)}, wd {power_and_decimal(theirs.wd)}"
                # wd may be 0; None means that there is no candidate.
                if theirs.lr and theirs.wd is not None
                else ""
            )
            sentence = f"In sweep {theirs.study.sweep}, the same family is {theirs.statement}{at}"
            sweeps = f"{verdict.study.sweep} / {other.study.sweep}"
            lines.setdefault(mine.key, []).append(
                f"{sentence}. How the two differ ({sweeps}): {'; '.join(differences)}."
            )
    return lines


def best_optimum(verdicts: Sequence[Verdict]) -> Row | None:
    """Return the best of the verified optima: by fresh seeds if all have them, else by the search's seeds."""
    verified = [v for v in verdicts if v.verdict == "optimal" and v.score is not None]
    if not verified:
        return None
    fresh = {v.family: formats.mean_std([*v.fresh_scores.values()]) for v in verified}
    # All or none: the search's seeds flatter the point that they chose, so the two kinds do not compare.
    by_fresh = all(mean is not None for mean, _ in fresh.values())
    metric = verified[0].study.metric
    ranked = sorted(verified, key=lambda v: metric.sort_key(fresh[v.family][0] if by_fresh else v.score))
    winner = ranked[0]
    mean, std = fresh[winner.family] if by_fresh else (winner.score, None)
    return {
        "verdict": winner,
        "score": formats.plus_minus(mean, std, metric.name),
        "seeds": format_count(
            len(winner.fresh_scores) if by_fresh else seed_count(winner), "fresh seed" if by_fresh else "search seed"
        ),
        "of": len(verified),
        "by_fresh": by_fresh,
        "lead": _lead_text(winner, ranked[1]) if by_fresh and len(ranked) > 1 else None,
    }


def seed_count(verdict: Verdict) -> int:
    """Return the number of seeds behind the candidate's score."""
    return verdict.candidate.runs if verdict.candidate else 0


def _lead_text(winner: Verdict, second: Verdict) -> str | None:
    """Compare the best optimum with the next one over fresh seeds, by Welch's test (one-sided, 95%).

    None if one of them has fewer than two fresh seeds, or one diverged.
    """
    (first_mean, first_std), (mean, std) = (formats.mean_std([*v.fresh_scores.values()]) for v in (winner, second))
    if first_mean is None or mean is None or first_std is None or std is None:
        return None
    numbers = len(winner.fresh_scores), len(second.fresh_scores)
    squares = [sd**2 / n for sd, n in zip((first_std, std), numbers, strict=True)]
    error = math.sqrt(sum(squares))
    spread = sum(square**2 / (n - 1) for square, n in zip(squares, numbers, strict=True))
    dof = error**4 / spread if spread else math.inf  # Welch-Satterthwaite
    ahead = winner.study.metric.worse_by(mean, first_mean)
    # Rounded down, which is conservative; 1e-9 absorbs the rounding of a whole number.
    sure = error * (T95[max(1, int(dof + 1e-9))] if dof < 8 else student_quantile(0.95, dof))
    metric = winner.study.metric.name
    gap = f"{formats.plus_minus(ahead, error, metric)} (standard error"
    if ahead > sure:
        return f"ahead of {second.strategy} by {gap})"
    return f"not distinguishable from {second.strategy}: {gap}; 95% sure from {formats.score_text(sure, metric)} on)"


def difference_row(worse_by: float, verdict: Verdict) -> Row:
    """Return a difference in the metric's own unit and, for a loss, relative to the candidate's."""
    accuracy = formats.is_accuracy(verdict.study.metric.name)
    plain_text = (
        f"{worse_by:+.4f}" if worse_by == 0 or 1e-3 <= abs(worse_by) < formats.LARGE_LOSS else f"{worse_by:+.2g}"
    )
    text = f"{100 * worse_by:+.2f} points" if accuracy else plain_text
    relative = worse_by / verdict.score if verdict.score and not accuracy else None
    return {
        # A real minus sign, as wide as the plus sign.
        "text": text.replace("-", "−"),
        "relative": None if relative is None else f"{100 * relative:+.1f}%".replace("-", "−"),
        "better": worse_by < 0,
    }


def neighbour_rows(verdict: Verdict) -> list[Row]:
    """Return a row per neighbour; how much worse it is comes with its error where a bound has compared them."""
    metric, rows = verdict.study.metric, []
    paired: Sequence[Difference | None] = verdict.bound.differences if verdict.bound else ()
    for k, scored in enumerate(verdict.neighbours):
        apart = None
        if paired and (fitted := paired[k]) is not None:
            apart = _fitted_row(fitted, verdict)
        elif not paired and scored.score is not None and verdict.score is not None:
            apart = difference_row(metric.worse_by(scored.score, verdict.score), verdict)
        (lr, wd), centre = scored.point, verdict.point or scored.point
        rows.append(
            {
                "move": f"{_move_text('lr', lr, centre.lr)}, {_move_text('wd', wd, centre.wd)}",
                "scored": scored,
                "score": None if scored.score is None else formats.score_text(scored.score, metric.name),
                "difference": apart,
            }
        )
    return rows


def nearest_row(verdict: Verdict) -> Row | None:
    """Return how much worse than the candidate the closest neighbour is, by the rule of the bound."""
    differences = [fitted for fitted in verdict.bound.differences if fitted] if verdict.bound else []
    return _fitted_row(min(differences, key=lambda fitted: fitted.mean), verdict) if differences else None


def _fitted_row(difference: Difference, verdict: Verdict) -> Row:
    """Return a fitted difference with its error: in percent of the candidate's loss, or in points of accuracy."""
    # Two significant digits of the error.
    decimals = min(6, max(0, 1 - math.floor(math.log10(100 * difference.error)))) if difference.error > 0 else 2
    mean, error = (
        f"{100 * value:{sign}.{decimals}f}" for value, sign in ((difference.mean, "+"), (difference.error, ""))
    )
    unit = " points" if formats.is_accuracy(verdict.study.metric.name) else "%"
    return {"text": f"{mean} ± {error}{unit}".replace("-", "−"), "relative": None, "better": False}


def bound_row(verdict: Verdict) -> Row | None:
    """Return the bound of a verdict as texts: probability, noise, as good points, margin; None if there is no bound."""
    if (bound := verdict.bound) is None:
        return None
    as_share, noise = verdict.study.metric.format_share, bound.noise
    beats = (
        f"{100 * bound.best_probability:.3g}%"
        if bound.best_probability <= MAX_PROBABILITY
        else f"> {100 * MAX_PROBABILITY:g}%"
    )
    noise_sources = {"measured": "measured by repeated seeds", "inferred": "inferred from the residuals of the fit"}
    return {
        "best": beats if noise.source in noise_sources else None,
        "noise": f"{as_share(noise.sd)}, {noise_sources[noise.source]} ({noise.dof:.3g} degrees of freedom)"
        if noise.source in noise_sources
        else None,
        "more": bound.further_runs,
        "plateau": [formats.point_text(point) for point in bound.plateau],
        "recommended": formats.point_text(bound.recommended),
        "margin": as_share(bound.margin),
        "confidence": f"{100 * bound.confidence:.10g}%",
    }


def _move_text(name: str, new: float, old: float) -> str:
    if log2(new) == log2(old):
        return name
    return f"{formats.three_digits(new / old)} {name}" if new > old else f"{name} / {formats.three_digits(old / new)}"
