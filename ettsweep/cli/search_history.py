"""The optimisation history that `search` prints at a terminal."""

import sys
import textwrap
from collections.abc import Sequence

from ettsweep.console import Format, Row, escape_control, format_count, print_table
from ettsweep.metric import Metric
from ettsweep.quantities import score_text
from ettsweep.runs.index import RunIndex
from ettsweep.study.history import HistoryEntry, search_history
from ettsweep.study.judgement import evaluate
from ettsweep.study.study import Study, study_titles

MAX_WIDTH = 80
"""Width to which lines are wrapped, in characters."""


def show_history(studies: Sequence[Study], run_index: RunIndex, form: Format) -> None:
    """Print each study's best score and the runs that improved on it; only as a table at a terminal."""
    # Programs read the report's CSV files instead.
    if form is not Format.TABLE or not sys.stdout.isatty():
        return
    names = study_titles(studies)
    for study in studies:
        if history := search_history(evaluate(study, run_index.family_runs(study.family))):
            headline = f"{names[study.key]}: {_summary(history, study.metric)}"
            print(textwrap.fill(escape_control(headline), MAX_WIDTH, subsequent_indent="  "))
            print_table(improvements(history, study.metric.name), form)
            print()


def _summary(history: Sequence[HistoryEntry], metric: Metric) -> str:
    # The best of single runs: verdicts compare means over seeds.
    best, n_suggested = history[-1].best_score, sum(entry.suggestion_number is not None for entry in history)
    prefix = "no score in" if best is None else f"{metric.name} {score_text(best, metric)} in the best of"
    return f"{prefix} {format_count(len(history), 'run')}, {n_suggested} of them suggested"


def improvements(history: Sequence[HistoryEntry], metric: str) -> list[Row]:
    """Return a row for each run that was better than all runs before it."""
    previous_best = [None, *(entry.best_score for entry in history)]
    return [
        {
            "run": number,
            "proposal": entry.suggestion_number,
            "lr": entry.point.lr,
            "wd": entry.point.wd,
            "seed": entry.run.seed,
            metric: entry.best_score,
        }
        for number, entry in enumerate(history, 1)
        if entry.best_score != previous_best[number - 1]
    ]
