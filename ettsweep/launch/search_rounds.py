"""Search: train what a sampler suggests, round after round, until verdicts are final or it suggests no more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ettsweep.launch.follow import CommandContext, VerificationResult, verify_rounds
from ettsweep.launch.launcher import Launcher
from ettsweep.study.budget import Budget
from ettsweep.study.controller import Controller
from ettsweep.study.study import Study, StudyKey
from ettsweep.study.suggesting import StartPoint, Suggester
from ettsweep.study.surface_sampler import Sampler
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import SweepStore, load_sweep_store, with_spec
from ettsweep.study.sweep_store import record_suggestions as record


@dataclass(frozen=True)
class SearchTarget:
    """What is searched: the studies of a sweep spec, in the sweep that it creates or extends."""

    name: str
    sweep_spec: SweepSpec
    sweep_store: SweepStore

    @classmethod
    def create(cls, name: str, sweep_spec: SweepSpec, sweep_store: SweepStore) -> "SearchTarget":
        """Return the target of a compatible sweep spec, as if it were already recorded under its name."""
        return cls(name, sweep_spec, with_spec(sweep_store, name, sweep_spec))

    @property
    def sweep(self) -> Sweep:
        """The sweep, including this spec."""
        return self.sweep_store.sweeps[self.name]

    @property
    def studies(self) -> list[Study]:
        """Studies of the sweep whose families this spec searches."""
        families = {study.family for study in self.sweep_spec.studies()}
        return [study for study in self.sweep.studies if study.family in families]

    def reload(self, studies: Sequence[Study]) -> Sequence[Study]:
        """Return studies as stored on disk now; unchanged if their sweep is gone."""
        sweep = load_sweep_store(self.sweep_store.results).sweeps.get(self.name)
        stored = {study.family: study for study in sweep.studies} if sweep else {}
        return [stored.get(study.family, study) for study in studies]


def search_rounds(
    target: SearchTarget,
    context: CommandContext,
    launcher: Launcher,
    starts: Mapping[StudyKey, StartPoint],
    budget: Budget,
    *,
    sampler: str,
    suggest: Sampler,
    trials: int,
) -> VerificationResult:
    """Train suggested points until verdicts are final: one round, or all rounds if the context follows.

    Args:
        target: the studies to search.
        context: how to carry out the rounds.
        launcher: where the runs train.
        starts: first points of studies without suggestions.
        budget: limits what is trained.
        sampler: name of the sampler.
        suggest: the sampler.
        trials: most suggestions per study.
    """
    # In a dry run the sweep is not on disk: nothing is recorded or read back.
    studies, is_recorded = target.studies, not context.dry_run
    suggester = Suggester(
        sampler,
        suggest,
        trials,
        starts,
        {study.key for study in studies if target.sweep.is_exhausted(study.strategy, sampler)},
        reload=target.reload if is_recorded else lambda studies: studies,
        save=partial(record, context.results) if is_recorded else lambda sweep, suggestions: None,
    )
    controller = Controller(
        studies,
        budget=budget,
        suggester=suggester,
        other_studies=[study for study in target.sweep_store.studies if study.sweep != target.name],
    )
    return verify_rounds(controller, replace(context, studies=studies), launcher)
