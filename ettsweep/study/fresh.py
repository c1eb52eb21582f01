"""Fresh seeds beside a verdict: is the candidate as good over them as over the search's seeds?

The bound compares points over the same seeds, and says nothing about the level of their scores. The search's seeds
chose the candidate, so its mean over them is optimistic; the fitted surface is less so, since it weighs all scores.

Shapes: P points, S seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ettsweep.quantities import as_share
from ettsweep.study.verdict import Verdict

if TYPE_CHECKING:  # imports NumPy, which is slow
    from ettsweep.study.posterior import Posterior

CONFIDENCE = 0.95
"""Chance exceeds the limit in 5 of 100 cases, both signs together."""


def chance(error: float, dof: float) -> float:
    """Return the difference of either sign that chance exceeds in 5 of 100 cases, for a standard error."""
    from scipy.special import stdtrit  # slow to import

    return error * float(stdtrit(dof, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class FreshComparison:
    """How much worse the candidate is over fresh seeds than over the search's, as fitted.

    Attributes:
        mean: over the fresh seeds.
        expected: the candidate's score by the fitted surface; its mean over the search's seeds without a surface.
        worse_by, error: the difference and its standard error, in the unit of margins.
        is_beyond_chance: it is larger than chance explains (95%).
        is_fitted: there is a surface.
    """

    verdict: Verdict
    mean: float
    expected: float
    worse_by: float
    error: float
    is_beyond_chance: bool
    is_fitted: bool

    @property
    def is_notable(self) -> bool:
        """`True` if the difference is beyond chance, or the shown means differ by more than the margin."""
        metric, score = self.verdict.study.metric, self.verdict.score
        assert score is not None
        shown = as_share(metric.worse_by(self.mean, score), score, metric) or 0.0
        margin = self.verdict.study.criterion.margin_for(metric)
        return self.is_beyond_chance or max(abs(self.worse_by), abs(shown)) > margin


def compare_fresh(verdict: Verdict) -> FreshComparison | None:
    """Compare the candidate's fresh seeds with its search seeds.

    The variance of a run over seeds is pooled over the candidate's runs of both kinds. None without fresh seeds, with a
    diverged run, or with one run of each kind, since then the variance is unknown.
    """
    fresh = [score for score in verdict.fresh_scores.values() if score is not None]
    searched = [run.score for run in verdict.candidate_runs]
    scores = [score for score in searched if score is not None]
    dof = len(fresh) + len(scores) - 2
    if not fresh or len(fresh) < len(verdict.fresh_scores) or not scores or len(scores) < len(searched) or dof < 1:
        return None
    posterior = verdict.bound.posterior if verdict.bound else None
    metric = verdict.study.metric
    sign = 1 if metric.mode == "min" else -1
    is_log = bool(posterior and posterior.is_log and min(sign * x for x in fresh) > 0)
    fresh_f, searched_f = ([math.log(sign * x) if is_log else sign * x for x in side] for side in (fresh, scores))
    variance = (_squares(fresh_f) + _squares(searched_f)) / dof
    expected, expected_variance = fmean(searched_f), variance / len(scores)
    is_fitted = posterior is not None and is_log == posterior.is_log
    if posterior and is_fitted:
        expected, shape_error, seeds = _fitted_level(posterior)
        expected_variance = shape_error**2 + variance / seeds
    difference, error = fmean(fresh_f) - expected, math.sqrt(expected_variance + variance / len(fresh))
    level = math.exp(expected) if is_log else abs(expected)
    # In log, differences are ratios. A score of 0 has no shares: take those of 1.
    unit = 1.0 if metric.margin_is == "difference" else level or 1.0
    per_margin = (level if is_log else 1.0) / unit
    return FreshComparison(
        verdict,
        fmean(fresh),
        sign * (level if is_log else expected),
        (math.expm1(difference) if is_log else difference) * per_margin,
        error * (math.exp(difference) if is_log else 1.0) * per_margin,
        abs(difference) > chance(error, dof),
        is_fitted,
    )


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squares around the mean."""
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _fitted_level(posterior: "Posterior") -> tuple[float, float, int]:
    """Return the candidate's score as fitted over the effects of all seeds, its error, and the number of seeds.

    A seed's mean score, less f at the points that it has, is the effect of the seed; the error is that of f alone.
    """
    layout = posterior.surface.scores
    used_S = layout.scored_PS.any(0)
    share_PS = layout.scored_PS[:, used_S] / layout.scored_PS[:, used_S].sum(0)
    seed_means_S = (layout.y_PS[:, used_S] * share_PS).sum(0)
    contrast_P = -share_PS.mean(1)
    contrast_P[posterior.index((0.0,) * layout.x_PD.shape[1])] += 1
    mean, error = posterior.surface.contrast(contrast_P)
    unstable = posterior.stability.expected_cost(0.0) if posterior.stability else 0.0
    return float(seed_means_S.mean()) + mean + unstable, error, int(used_S.sum())
