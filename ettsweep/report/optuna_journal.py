"""Export of sweeps to an Optuna journal: a study for each family, a trial for each point."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.files import storage_errors
from ettsweep.metric import Metric
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import Point
from ettsweep.study.judgement import evaluate_all
from ettsweep.study.samplers import quiet_optuna
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState


def write_journal(path: Path, studies: Sequence[Study], run_index: RunIndex) -> str:
    """Write studies and their runs to a new file; return a line for users.

    Raises:
        InputError: the file exists.
        StorageError: it cannot be written.
    """
    if path.exists():
        raise InputError(f"--optuna {path}: exists; delete it, or choose another file")
    with quiet_optuna(), storage_errors(path):
        storage = JournalStorage(JournalFileBackend(str(path)))
        count = sum(_add_study(storage, study_state) for study_state in evaluate_all(studies, run_index))
    study_count = f"{len(studies)} {'study' if len(studies) == 1 else 'studies'}"
    return f"wrote {path}: {format_count(count, 'trial')} of {study_count}, for optuna-dashboard"


def _add_study(storage: JournalStorage, study_state: StudyState) -> int:
    """Add a study, with a trial for each point that has a result; return how many there are.

    Suggested points come first, in the order of suggestion, then all others by their values.
    """
    study, metric = study_state.study, study_state.study.metric
    runs = {
        point: sorted(finished, key=lambda run: run.seed)
        for point, members in study_state.runs_by_point().items()
        if (finished := [run for run in members if run.state.finished])
    }
    suggested = [point for point in study.suggested_points if point in runs]
    points = [*suggested, *sorted(runs.keys() - {*suggested}, key=tuple)]
    space: dict[str, BaseDistribution] = {}
    for name in study.free:
        if points:
            values = [point[name] for point in (*points, *study.box)]
            is_log = study.axes[name].scale == "log" and min(values) > 0
            space[name] = FloatDistribution(min(values), max(values), log=is_log)
    direction = StudyDirection.MINIMIZE if metric.mode == "min" else StudyDirection.MAXIMIZE
    exported = optuna.create_study(storage=storage, study_name=study.title, direction=direction)
    exported.set_metric_names([metric.name])
    exported.add_trials(_make_trial(point, runs[point], space, metric) for point in points)
    return len(points)


def _make_trial(point: Point, runs: Sequence[Run], space: dict[str, BaseDistribution], metric: Metric) -> FrozenTrial:
    """Return a point as one trial: the mean of its seeds, with the curve of the first; failed if one diverged."""
    scores = [run.score for run in runs]
    finite = [score for score in scores if score is not None]
    return create_trial(
        state=TrialState.COMPLETE if len(finite) == len(scores) else TrialState.FAIL,
        value=fmean(finite) if len(finite) == len(scores) else None,
        params={name: point[name] for name in space},
        distributions=space,
        user_attrs={"runs": [run.id for run in runs], "seeds": [run.seed for run in runs], "scores": scores},
        intermediate_values=metric.best_so_far(runs[0].dir.evaluations(metric.column)),
    )
