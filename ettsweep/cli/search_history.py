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
        if history := course(evaluate(study, run_index.family(study.family))):
            headline = f"{names[study.key]}: {_told(history, study.metric)}"
            print(textwrap.fill(escape_control(headline), COLUMNS, subsequent_indent="  "))
            print_table(improvements(history, study.metric.metric), form)
            print()


def _told(history: Sequence[HistoryEntry], metric: Metric) -> str:
    """Say what the best score of a single run is, and of how many: verdicts go by means."""
    best, proposed = history[-1].best, sum(entry.proposal is not None for entry in history)
    prefix = "no score in" if best is None else f"{metric.metric} {cell(best)} in the best of"
    return f"{prefix} {count(len(history), 'run')}, {proposed} of them proposed"


def improvements(history: Sequence[HistoryEntry], metric: str) -> list[Row]:
    """Return a row for each run that was better than all before it."""
    previous_best = [None, *(entry.best for entry in history)]
    return [
        {
            "run": number,
            "proposal": entry.proposal,
            "lr": entry.point.lr,
            "wd": entry.point.wd,
            "seed": entry.run.spec.seed,
            metric: entry.best,
        }
        for number, entry in enumerate(history, 1)
        if entry.best != previous_best[number - 1]
    ]
