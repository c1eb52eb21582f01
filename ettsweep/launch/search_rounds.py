"""Search: train the suggestions of a sampler, round by round, until verdicts are final or it has none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ettsweep.launch.follow import CommandContext, Rounds, VerificationResult, verify_rounds
from ettsweep.launch.launcher import Launcher
from ettsweep.study.budget import Budget
from ettsweep.study.round import Aim, Spent
from ettsweep.study.study import Study
from ettsweep.study.suggesting import Search
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import SweepStore, load_sweep_store, record_suggestions, with_spec


@dataclass(frozen=True)
class SearchTarget:
    """The studies of a search, in the sweep that it creates or extends."""

    name: str
    sweep_spec: SweepSpec
    sweep_store: SweepStore

    @classmethod
    def create(cls, name: str, sweep_spec: SweepSpec, sweep_store: SweepStore) -> "SearchTarget":
        """Return the target of a compatible sweep spec, as if it were already recorded."""
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
    search: Search,
    budget: Budget,
) -> VerificationResult:
    """Train suggested points until verdicts are final: one round, or all rounds if the context follows.

    Args:
        target: the studies to search.
        context: how to carry out the rounds.
        launcher: of the runs.
        search: suggests the points.
        budget: limits the trained runs.
    """
    studies = target.studies
    others = [study for study in target.sweep_store.studies if study.sweep != target.name]
    exhausted = {study.key for study in studies if target.sweep.is_exhausted(study.strategy, search.sampler)}
    rounds = Rounds(studies, budget, Aim(search=search, other_studies=others), Spent(exhausted=frozenset(exhausted)))
    # A dry run records nothing: the sweep is not on disk.
    if not context.dry_run:
        # Another command may search the same sweep at the same time.
        rounds = replace(rounds, reload=target.reload, record=partial(record_suggestions, context.results))
    return verify_rounds(rounds, replace(context, studies=studies), launcher)
