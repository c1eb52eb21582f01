"""The figure of a search: the best score against the runs that it has taken."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ettsweep.report import style
from ettsweep.report.maps import CANDIDATE, clipped_range, headline
from ettsweep.sweep.course import Spent, proposals_end
from ettsweep.sweep.verdict import Verdict


def course_figure(title: str, verdict: Verdict, error: float | None, spent: Sequence[Spent]) -> Figure:
    """Plot the best score so far as steps, each run as a dot, and the candidate's mean with its standard error."""
    name, factor = style.axis_of(verdict.search.measure.metric)
    figure = style.new_figure(5.2, 3.1)
    panel = figure.subplots()
    low, high = _limits(verdict, spent)
    panel.set_ylim(factor * low, factor * high)
    panel.set_xlim(0.5, len(spent) + 0.5)
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panel.set_xlabel("runs finished")
    panel.set_ylabel(name)
    _draw_runs(panel, verdict, spent, factor)
    _draw_candidate(panel, verdict, error, factor)
    mean = "; red: candidate's mean ± standard error" if verdict.score is not None else ""
    dots = "dots: runs, filled: proposals; x: diverged or far worse"
    style.titled(figure, headline(verdict), f"line: best so far{mean}\n{dots}", small=title)
    return figure


def _limits(verdict: Verdict, spent: Sequence[Spent]) -> tuple[float, float]:
    """Return the scores that the panel shows, with some room: those of most runs, and the candidate's."""
    scores = [one.run.score for one in spent if one.run.score is not None]
    known = [*scores, *([verdict.score] if verdict.score is not None else [])]
    low, high = clipped_range(known or [0.0], verdict.search.measure.mode, reach=5)
    room = 0.08 * (high - low)
    return low - room, high + room


def _draw_runs(panel: Axes, verdict: Verdict, spent: Sequence[Spent], factor: float) -> None:
    """Draw each run where it ended, those beyond the panel at its worse edge, and the best of all so far."""
    colour, (low, high) = style.strategy_colour(verdict.strategy), panel.get_ylim()
    worst = high if verdict.search.measure.mode == "min" else low
    for number, one in enumerate(spent, 1):
        y = worst if one.run.score is None else factor * one.run.score
        if low < y < high:
            fill = colour if one.proposal else "white"
            panel.plot(number, y, "o", markersize=4, color=colour, markerfacecolor=fill, markeredgewidth=0.9)
        else:
            panel.plot(number, worst, "x", markersize=4, color=colour, clip_on=False)
    best = [np.nan if one.best is None else factor * one.best for one in spent]
    x = np.arange(1, len(spent) + 2)
    panel.step(x, [*best, best[-1]], where="post", color=colour, linewidth=1.6)
    if 0 < (end := proposals_end(spent)) < len(spent):
        panel.axvline(end + 0.5, color=style.GREY, linewidth=1, linestyle=(0, (3, 2)), zorder=0)
        told: dict[str, Any] = {"transform": panel.get_xaxis_transform(), "fontsize": 6.5, "color": "#666666"}
        panel.text(end + 0.3, 1.03, "proposals", ha="right", va="bottom", **told)
        panel.text(end + 0.7, 1.03, "for the verdict", ha="left", va="bottom", **told)


def _draw_candidate(panel: Axes, verdict: Verdict, error: float | None, factor: float) -> None:
    if verdict.score is None:
        return
    panel.axhline(factor * verdict.score, color=CANDIDATE, linewidth=1.1, linestyle=(0, (5, 2)), zorder=1)
    if error is not None:
        ends = factor * (verdict.score - error), factor * (verdict.score + error)
        panel.axhspan(*ends, color=CANDIDATE, alpha=0.12, linewidth=0, zorder=0)
