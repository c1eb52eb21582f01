"""What the command search shows at a terminal of the way to its verdicts."""

import math
import sys
import textwrap
from collections.abc import Sequence

from ettsweep.output import Format, Row, cell, count, harmless, show
from ettsweep.sweep.course import Spent, course, proposals_end
from ettsweep.sweep.ledger import Ledger
from ettsweep.sweep.search import Search, titles
from ettsweep.sweep.verify import look_at
from ettsweep.tasks.kinds import Score

BARS = "▁▂▃▄▅▆▇█"
COLUMNS, WIDTH = 80, 60
"""Of the terminal that it fits, and of these for bars."""


def show_course(searches: Sequence[Search], ledger: Ledger, form: Format) -> None:
    """Print to a person, of each family that was searched, the best score against runs spent, and where it improved."""
    if form is not Format.TABLE or not sys.stdout.isatty():
        return
    names = titles(searches)
    for search in searches:
        if spent := course(look_at(search, ledger.family(search.family))):
            told = f"{names[search.key]}: {_told(spent, search.measure)}"
            print(textwrap.fill(harmless(told), COLUMNS, subsequent_indent="  "))
            heights = [_height(one.best, search.measure) for one in spent]
            print(f"  {bars(heights, proposals_end(spent))}")
            show(improvements(spent, search.measure.metric), form)
            print()


def _told(spent: Sequence[Spent], measure: Score) -> str:
    """Say what the best score of a single run is, and of how many: verdicts go by means."""
    best, proposed = spent[-1].best, sum(one.proposal is not None for one in spent)
    told = "no score in" if best is None else f"{measure.metric} {cell(best)} in the best of"
    return f"{told} {count(len(spent), 'run')}, {proposed} of them proposed"


def _height(best: float | None, measure: Score) -> float | None:
    """Return what a bar shows: of a loss its logarithm, for the first ones may be many times the last."""
    return math.log(max(best, 1e-12)) if best is not None and measure.mode == "min" else best


def bars(best: Sequence[float | None], end: int) -> str:
    """Return a bar for each run, or for some of many: the best score by then, a dot while there is none.

    The line after `end` runs parts proposals from what came for the verdict.
    """
    known = [value for value in best if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def bar(value: float | None) -> str:
        if value is None:
            return "·"
        return BARS[round((len(BARS) - 1) * (value - low) / (high - low))] if high > low else BARS[0]

    columns = min(len(best), WIDTH)
    last = [-(-len(best) * column // columns) - 1 for column in range(1, columns + 1)]
    parted = sum(k < end for k in last)
    drawn = "".join(bar(best[k]) for k in last)
    return f"{drawn[:parted]}│{drawn[parted:]}" if 0 < parted < columns else drawn


def improvements(spent: Sequence[Spent], metric: str) -> list[Row]:
    """Return a row for each run that was better than all before it."""
    before = [None, *(one.best for one in spent)]
    return [
        {
            "run": number,
            "proposal": one.proposal,
            "lr": one.point.lr,
            "wd": one.point.wd,
            "seed": one.run.spec.seed,
            metric: one.best,
        }
        for number, one in enumerate(spent, 1)
        if one.best != before[number - 1]
    ]
