"""Searches carried out: what a proposer names is trained, round after round, up to the verdict or to its last point."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ettsweep.launch.follow import CommandContext, VerificationResult, verify_rounds
from ettsweep.study.pruning import Pruner
from ettsweep.study.study import Study, SweepSpec
from ettsweep.study.suggesting import Key, StartPoint, Suggester
from ettsweep.study.surface_sampler import Sampler
from ettsweep.study.sweep_store import Sweep, SweepStore, asked_too, load_sweep_store
from ettsweep.study.sweep_updates import propose as record
from ettsweep.study.verification import Budget


@dataclass(frozen=True)
class SearchTarget:
    """What is searched: the families of a request, in the sweep that it makes or extends."""

    name: str
    request: SweepSpec
    sweeps: SweepStore

    @classmethod
    def of(cls, name: str, request: SweepSpec, sweeps: SweepStore) -> "SearchTarget":
        """Return what is searched once a request, which agrees, was asked for under a name."""
        return cls(name, request, asked_too(sweeps, name, request))

    @property
    def sweep(self) -> Sweep:
        return self.sweeps.named[self.name]

    @property
    def searches(self) -> list[Study]:
        families = {one.family for one in self.request.searches()}
        return [one for one in self.sweep.searches if one.family in families]

    def reread(self, searches: Sequence[Study]) -> Sequence[Study]:
        """Return the same searches as their sweep has them by now; as they were where it is gone."""
        sweep = load_sweep_store(self.sweeps.results).named.get(self.name)
        known = {one.family: one for one in sweep.searches} if sweep else {}
        return [known.get(one.family, one) for one in searches]


def search_rounds(
    sought: SearchTarget,
    how: CommandContext,
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
    searches, recorded = sought.searches, not how.dry_run
    searching = Suggester(
        sampler,
        propose,
        trials,
        starts,
        {one.key for one in searches if sought.sweep.searched_out(one.strategy, sampler)},
        reread=sought.reread if recorded else lambda searches: searches,
        keep=partial(record, how.results) if recorded else lambda sweep, proposals: None,
        tell=how.tell,
    )
    return verify_rounds(
        searches,
        replace(how, searches=searches),
        budget=budget,
        tell=how.tell if how.console else None,
        agree=agree,
        searching=searching,
        prune=None if pruner == "none" else partial(_pruner, how, pruner, sought),
    )


def _pruner(how: CommandContext, name: str, sought: SearchTarget, proposals: Callable[[], Collection[str]]) -> Pruner:
    """Return what stops runs that were merely proposed, and that no other sweep asks for."""
    chosen: Sequence[Sweep] = sought.sweeps.chosen()
    others = {spec.run_id for sweep in chosen if sweep.name != sought.name for spec in sweep.specs()}
    return Pruner(how.results, name, lambda: set(proposals()) - others, how.tell)
