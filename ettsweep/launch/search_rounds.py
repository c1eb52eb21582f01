"""Search: train what a sampler suggests, round after round, until verdicts are final or it suggests no more."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ettsweep.launch.follow import CommandContext, VerificationResult, verify_rounds
from ettsweep.study.pruning import Pruner
from ettsweep.study.study import Study
from ettsweep.study.suggesting import Key, StartPoint, Suggester
from ettsweep.study.surface_sampler import Sampler
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import SweepStore, asked_too, load_sweep_store
from ettsweep.study.sweep_updates import propose as record
from ettsweep.study.verification import Budget


@dataclass(frozen=True)
class SearchTarget:
    """What is searched: the studies of a sweep spec, in the sweep that it creates or extends."""

    name: str
    sweep_spec: SweepSpec
    sweep_store: SweepStore

    @classmethod
    def of(cls, name: str, sweep_spec: SweepSpec, sweep_store: SweepStore) -> "SearchTarget":
        """Return the target of a compatible sweep spec, as if it were already recorded under its name."""
        return cls(name, sweep_spec, asked_too(sweep_store, name, sweep_spec))

    @property
    def sweep(self) -> Sweep:
        """The sweep, including this spec."""
        return self.sweep_store.named[self.name]

    @property
    def studies(self) -> list[Study]:
        """Studies of the sweep whose families this spec searches."""
        families = {study.family for study in self.sweep_spec.searches()}
        return [study for study in self.sweep.studies if study.family in families]

    def reread(self, studies: Sequence[Study]) -> Sequence[Study]:
        """Return studies as stored on disk now; unchanged if their sweep is gone."""
        sweep = load_sweep_store(self.sweep_store.results).named.get(self.name)
        stored = {study.family: study for study in sweep.studies} if sweep else {}
        return [stored.get(study.family, study) for study in studies]


def search_rounds(
    sought: SearchTarget,
    context: CommandContext,
    starts: Mapping[Key, StartPoint],
    budget: Budget,
    *,
    sampler: str,
    propose: Sampler,
    trials: int,
    pruner: str,
    agree: Callable[[str], bool] | None = None,
) -> VerificationResult:
    """Train suggested points until verdicts are final: one round, or all rounds if the context follows.

    Args:
        sought: the studies to search.
        context: how to carry out the rounds.
        starts: first points of studies without suggestions.
        budget: limits the runs of a climb.
        sampler: name of the sampler.
        propose: the sampler.
        trials: most suggestions per study.
        pruner: name of the pruner, or none.
        agree: asks the user whether a climb may continue, given what the next round would cost; None for no.
    """
    # In a dry run the sweep is not on disk: nothing is recorded or read back.
    studies, is_recorded = sought.studies, not context.dry_run
    suggester = Suggester(
        sampler,
        propose,
        trials,
        starts,
        {study.key for study in studies if sought.sweep.searched_out(study.strategy, sampler)},
        reread=sought.reread if is_recorded else lambda studies: studies,
        keep=partial(record, context.results) if is_recorded else lambda sweep, suggestions: None,
        tell=context.tell,
    )
    return verify_rounds(
        studies,
        replace(context, studies=studies),
        budget=budget,
        tell=context.tell if context.console else None,
        agree=agree,
        searching=suggester,
        prune=None if pruner == "none" else partial(_pruner, context, pruner, sought),
    )


def _pruner(
    context: CommandContext, name: str, sought: SearchTarget, proposals: Callable[[], Collection[str]]
) -> Pruner:
    """Return a pruner of runs that were only suggested, and that no other sweep requested."""
    chosen: Sequence[Sweep] = sought.sweep_store.chosen()
    # Another sweep needs the final score of its runs.
    others = {spec.run_id for sweep in chosen if sweep.name != sought.name for spec in sweep.specs()}
    return Pruner(context.results, name, lambda: set(proposals()) - others, context.tell)
