"""Searches carried out: what a proposer names is trained, round after round, up to the verdict or to its last point."""

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
    """What is searched: the families of a request, in the sweep that it makes or extends."""

    name: str
    sweep_spec: SweepSpec
    sweep_store: SweepStore

    @classmethod
    def of(cls, name: str, sweep_spec: SweepSpec, sweep_store: SweepStore) -> "SearchTarget":
        """Return what is searched once a request, which agrees, was asked for under a name."""
        return cls(name, sweep_spec, asked_too(sweep_store, name, sweep_spec))

    @property
    def sweep(self) -> Sweep:
        return self.sweep_store.named[self.name]

    @property
    def studies(self) -> list[Study]:
        families = {study.family for study in self.sweep_spec.searches()}
        return [study for study in self.sweep.studies if study.family in families]

    def reread(self, studies: Sequence[Study]) -> Sequence[Study]:
        """Return the same searches as their sweep has them by now; as they were where it is gone."""
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
    """Have points proposed and trained until verdicts stand: one round or, where `how` follows, all.

    Families that have no proposals yet start at `starts`. `sampler` is the name of what proposes, up to `trials` points
    for each family, and `pruner` of what stops hopeless runs, or none. `agree` is asked, with what the next round would
    cost, whether a climb may go on that far; None: no.
    """
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
    """Return what stops runs that were merely proposed, and that no other sweep asks for."""
    chosen: Sequence[Sweep] = sought.sweep_store.chosen()
    others = {spec.run_id for sweep in chosen if sweep.name != sought.name for spec in sweep.specs()}
    return Pruner(context.results, name, lambda: set(proposals()) - others, context.tell)
