"""Export of sweeps to an Optuna journal: a study for each family, a trial for each point."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.files import dumps, write_atomic
from ettsweep.metric import Metric
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import Point
from ettsweep.study.judgement import evaluate_all
from ettsweep.study.samplers import quiet_optuna
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState
from ettsweep.study.sweep_store import SweepStore

FAMILY_ATTRIBUTE = "family"
"""The study attribute with the id of its family: studies that other programs wrote have none."""


class _MemoryBackend(BaseJournalBackend):
    """A journal in memory: Optuna builds it line by line, one atomic write puts it on disk."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        yield from self.lines[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines += logs


def write_journal(path: Path, sweep_store: SweepStore, studies: Sequence[Study], run_index: RunIndex) -> str:
    """Write an Optuna study for each family of some sweeps, in one atomic write; return a line for users.

    Args:
        path: the journal; an earlier one of ettsweep's is replaced.
        sweep_store: where the studies' samplers are recorded.
        studies: the studies to export.
        run_index: their runs.

    Raises:
        InputError: the file exists, and ettsweep did not write it.
        StorageError: it cannot be written.
    """
    if path.exists() and not _is_replaceable(path):
        problem = "exists, and is not a journal that ettsweep wrote; choose another file, or move it away"
        raise InputError(f"--optuna {path}: {problem}")
    journal, trials = _MemoryBackend(), 0
    with quiet_optuna():
        storage = JournalStorage(journal)
        for study_state in evaluate_all(studies, run_index):
            trials += _add_study(
                storage, study_state, sweep_store.sweeps[study_state.study.sweep].sampler_by_point(study_state.study)
            )
    write_atomic(path, "".join(dumps(line) + "\n" for line in journal.lines))
    study_count = f"{len(studies)} {'study' if len(studies) == 1 else 'studies'}"
    return f"wrote {path}: {format_count(trials, 'trial')} of {study_count}, for optuna-dashboard"


def _is_replaceable(path: Path) -> bool:
    """`True` if a file is empty, or all its studies are exported families."""
    if not path.is_file() or path.stat().st_size == 0:
        return path.is_file()
    try:
        with quiet_optuna():
            studies = JournalStorage(JournalFileBackend(str(path))).get_all_studies()
    except Exception:  # Optuna raises many types for a file that is not a journal
        return False
    # `all` of no studies is True, and a journal without any was not written here.
    return bool(studies) and all(FAMILY_ATTRIBUTE in study.user_attrs for study in studies)


def _add_study(storage: JournalStorage, study_state: StudyState, samplers: Mapping[Point, str]) -> int:
    """Add the points of a family that have a result; return how many there are.

    Suggested points come first, in the order of suggestion, then all others by lr and wd.
    """
    sweep_study, runs, metric = study_state.study, study_state.runs_by_point(), study_state.study.metric
    others = sorted(runs.keys() - samplers.keys(), key=tuple)
    trial_runs = {
        point: point_runs for point in (*samplers, *others) if (point_runs := _runs_of_trial(runs.get(point, ())))
    }
    direction = StudyDirection.MINIMIZE if metric.mode == "min" else StudyDirection.MAXIMIZE
    study = optuna.create_study(storage=storage, study_name=sweep_study.title, direction=direction)
    study.set_metric_names([metric.name])
    study.set_user_attr("sweep", sweep_study.sweep)
    study.set_user_attr(FAMILY_ATTRIBUTE, sweep_study.family)
    space: dict[str, BaseDistribution] = {}
    for name, axis in (("lr", sweep_study.lr), ("wd", sweep_study.wd)):
        # The range includes points outside of the box: Optuna rejects a trial outside of its distribution.
        coordinates = [getattr(point, name) for point in (*sweep_study.box, *sweep_study.seeds_by_point, *trial_runs)]
        if axis.fixed:
            study.set_user_attr(name, getattr(sweep_study.centre, name))
        else:
            space[name] = FloatDistribution(min(coordinates), max(coordinates), log=True)
    # Sort keys are lower for better scores.
    worst = max(
        (mean for point_runs in trial_runs.values() if (mean := _mean_score(point_runs)) is not None),
        key=metric.sort_key,
        default=None,
    )
    for point, point_runs in trial_runs.items():
        attrs: dict[str, Any] = {"proposed by": samplers[point]} if point in samplers else {}
        attrs |= {"runs": [run.id for run in point_runs], "seeds": [run.seed for run in point_runs]}
        params = {name: getattr(point, name) for name in space}
        study.add_trial(_make_trial(point_runs, params, space, worst, metric, attrs))
    return len(trial_runs)


def _runs_of_trial(runs: Sequence[Run]) -> list[Run]:
    """Return the finished runs of a point, lowest seed first."""
    return sorted((run for run in runs if run.state.finished), key=lambda run: run.seed)


def _mean_score(runs: Sequence[Run]) -> float | None:
    """Return the mean score of some runs; None if one of them has none."""
    scores = [run.score for run in runs if run.score is not None]
    return fmean(scores) if len(scores) == len(runs) else None


def _make_trial(
    runs: Sequence[Run],
    params: dict[str, float],
    space: dict[str, BaseDistribution],
    worst: float | None,
    metric: Metric,
    attrs: dict[str, Any],
) -> FrozenTrial:
    """Return a point as one trial over all its seeds, with the curve of its first seed.

    A point that diverged gets the worst mean of the study; where no point has a mean, its trial failed.
    """
    if (value := _mean_score(runs)) is not None:
        state, attrs = TrialState.COMPLETE, attrs | {"scores": [run.score for run in runs]}
    else:
        state, value = (TrialState.FAIL if worst is None else TrialState.COMPLETE), worst
        attrs = attrs | {"scores": [run.score for run in runs], "diverged": True}
    return create_trial(
        state=state,
        value=value,
        params=params,
        distributions=space,
        user_attrs=attrs,
        intermediate_values=metric.best_so_far(runs[0].dir.evaluations(metric.column)),
    )
