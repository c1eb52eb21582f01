"""Judgement: the state of a study from the runs on disk, and the verdict on it by the rule of its sweep."""

from collections.abc import Iterable, Sequence

from ettsweep.runs.index import Run, RunIndex
from ettsweep.study.means_rule import MeansRule
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import Verdict


def evaluate(study: Study, runs: Iterable[Run]) -> StudyState:
    """Return the state of a study under the rule of its sweep; `runs` are those of its family."""
    if study.criterion.rule == "paper":
        return MeansRule(study, runs)
    from ettsweep.study.bound_rule import BoundRule  # imports NumPy, which is slow

    return BoundRule(study, runs)


def evaluate_all(studies: Sequence[Study], run_index: RunIndex) -> list[StudyState]:
    """Return the state of each study from the runs on disk."""
    return [evaluate(study, run_index.family_runs(study.base, study.axes)) for study in studies]


def judge(studies: Sequence[Study], run_index: RunIndex) -> list[Verdict]:
    """Return the verdict on each study from the runs on disk."""
    return [study_state.verdict() for study_state in evaluate_all(studies, run_index)]
