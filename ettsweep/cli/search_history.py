"""What the command search shows at a terminal of the way to its verdicts."""

import sys
import textwrap
from collections.abc import Sequence

from ettsweep.console import Format, Row, cell, count, harmless, show
from ettsweep.study.history import Spent, course
from ettsweep.study.run_index import Ledger
from ettsweep.study.study import Search, titles
from ettsweep.study.verification import look_at
from ettsweep.trainer.tasks.registry import Score

COLUMNS = 80
"""Of the terminal that it fits."""


def show_course(searches: Sequence[Search], ledger: Ledger, form: Format) -> None:
    """Print to a person, of each family that was searched, the best score and the runs that improved on all before."""
    if form is not Format.TABLE or not sys.stdout.isatty():
        return
    names = titles(searches)
    for search in searches:
        if spent := course(look_at(search, ledger.family(search.family))):
            told = f"{names[search.key]}: {_told(spent, search.measure)}"
            print(textwrap.fill(harmless(told), COLUMNS, subsequent_indent="  "))
            show(improvements(spent, search.measure.metric), form)
            print()


def _told(spent: Sequence[Spent], measure: Score) -> str:
    """Say what the best score of a single run is, and of how many: verdicts go by means."""
    best, proposed = spent[-1].best, sum(one.proposal is not None for one in spent)
    told = "no score in" if best is None else f"{measure.metric} {cell(best)} in the best of"
    return f"{told} {count(len(spent), 'run')}, {proposed} of them proposed"


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
