"""Searches carried out: what a proposer names is trained, round after round, up to the verdict or to its last point."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ettsweep.launch.demand import ask_grid
from ettsweep.launch.rounds import How, Verified, verify_rounds
from ettsweep.sweep.changes import propose as record
from ettsweep.sweep.proposers import Proposer
from ettsweep.sweep.pruning import Pruner
from ettsweep.sweep.search import Request, Search
from ettsweep.sweep.searching import Key, Searching, Start
from ettsweep.sweep.study import Journal
from ettsweep.sweep.sweeps import Sweep, Sweeps, asked_too, load_sweeps
from ettsweep.sweep.verify import Budget, Verification


@dataclass(frozen=True)
class Sought:
    """What is searched: the families of a request, in the sweep that it makes or extends."""

    name: str
    request: Request
    sweeps: Sweeps

    @classmethod
    def of(cls, name: str, request: Request, sweeps: Sweeps) -> "Sought":
        """Return what is searched once a request, which agrees, was asked for under a name."""
        return cls(name, request, asked_too(sweeps, name, request))

    @property
    def sweep(self) -> Sweep:
        return self.sweeps.named[self.name]

    @property
    def searches(self) -> list[Search]:
        families = {one.family for one in self.request.searches()}
        return [one for one in self.sweep.searches if one.family in families]

    def reread(self, searches: Sequence[Search]) -> Sequence[Search]:
        """Return the same searches as their sweep has them by now; as they were where it is gone."""
        sweep = load_sweeps(self.sweeps.results).named.get(self.name)
        known = {one.family: one for one in sweep.searches} if sweep else {}
        return [known.get(one.family, one) for one in searches]


@dataclass(frozen=True)
class Seeker:
    """How searches are carried out.

    Attributes:
        trials: points that the proposer may name for each family.
        pruner: the name of what stops hopeless runs, or none.
        tell: takes a line on what is done.
        agree: asked, with what the next round would cost, whether a climb may go on that far; None: no.
    """

    sampler: str
    propose: Proposer
    trials: int
    pruner: str
    how: How
    tell: Callable[[str], None]
    agree: Callable[[str], bool] | None = None

    def ask(self, sought: Sought, words: str | None = None, *, archived: bool = False) -> None:
        """Keep what is asked for, and say what would keep it from being submitted where it is only to be shown."""
        _, obstacle = ask_grid(sought.request, self.how, sought.name, words, self.tell, archived=archived)
        if obstacle:
            self.tell(f"before it can be submitted: {obstacle}")

    def go(
        self,
        sought: Sought,
        starts: Mapping[Key, Start],
        budget: Budget,
        *,
        judges: bool = True,
        before: Verification | None = None,
    ) -> Verified:
        """Have points proposed and trained: one round or, where they are followed, all.

        Where it `judges`, it goes on until verdicts stand. `before` has used up some of the budget.
        """
        results, searches = self.how.results, sought.searches
        recorded = not self.how.dry_run
        searching = Searching(
            self.sampler,
            self.propose,
            self.trials,
            starts,
            {one.key for one in searches if sought.sweep.searched_out(one.strategy, self.sampler)},
            reread=sought.reread if recorded else lambda searches: searches,
            seen=Journal(results, sought.name).write if recorded else lambda ledger: None,
            keep=partial(record, results) if recorded else lambda sweep, proposals: None,
            tell=self.tell,
        )
        return verify_rounds(
            searches,
            replace(self.how, searches=searches),
            budget=budget,
            tell=self.tell if judges and self.how.console else None,
            agree=self.agree,
            judges=judges,
            searching=searching,
            before=before,
            prune=None if self.pruner == "none" else partial(self._pruner, results, sought),
        )

    def _pruner(self, results: Path, sought: Sought, proposals: Callable[[], Collection[str]]) -> Pruner:
        """Return what stops runs that were merely proposed, and that no other sweep asks for."""
        chosen: Sequence[Sweep] = sought.sweeps.chosen()
        others = {spec.run_id for sweep in chosen if sweep.name != sought.name for spec in sweep.specs()}
        return Pruner(results, self.pruner, lambda: set(proposals()) - others, self.tell)
