"""What the command search shows at a terminal of the way to its verdicts."""

import sys
import textwrap
from collections.abc import Sequence

from ettsweep.console import Format, Row, cell, count, escape_control, print_table
from ettsweep.study.history import HistoryEntry, course
from ettsweep.study.run_index import RunIndex
from ettsweep.study.study import Study, titles
from ettsweep.study.verification import evaluate
from ettsweep.trainer.tasks.registry import Metric

COLUMNS = 80
"""Of the terminal that it fits."""


def show_course(studies: Sequence[Study], run_index: RunIndex, form: Format) -> None:
    """Print to a person, of each family that was searched, the best score and the runs that improved on all before."""
    if form is not Format.TABLE or not sys.stdout.isatty():
        return
    names = titles(studies)
    for study in studies:
        if spent := course(evaluate(study, run_index.family(study.family))):
            told = f"{names[study.key]}: {_told(spent, study.metric)}"
            print(textwrap.fill(escape_control(told), COLUMNS, subsequent_indent="  "))
            print_table(improvements(spent, study.metric.metric), form)
            print()


def _told(spent: Sequence[HistoryEntry], metric: Metric) -> str:
    """Say what the best score of a single run is, and of how many: verdicts go by means."""
    best, proposed = spent[-1].best, sum(one.proposal is not None for one in spent)
    told = "no score in" if best is None else f"{metric.metric} {cell(best)} in the best of"
    return f"{told} {count(len(spent), 'run')}, {proposed} of them proposed"


def improvements(spent: Sequence[HistoryEntry], metric: str) -> list[Row]:
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
