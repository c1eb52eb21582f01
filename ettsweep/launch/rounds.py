"""Rounds: a plan is carried out; followed, it is submitted, waited for and made anew until nothing is left to do."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError, NoAnswerError, NotHereError, UnansweredError
from ettsweep.launch.cost import Account, Times, device_hours
from ettsweep.launch.monitor import Monitor, follow
from ettsweep.launch.outlook import NO_ANSWER, LiveOutlook
from ettsweep.launch.profiles import AnyProfile, LocalProfile
from ettsweep.launch.submissions import read_submission
from ettsweep.launch.submit import scripts, submit
from ettsweep.output import harmless, power
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.state import State
from ettsweep.spec import RunSpec
from ettsweep.sweep.ledger import Ledger, Plan, load_ledger, make_plan
from ettsweep.sweep.search import Point, Search, titles
from ettsweep.sweep.sweeps import by_family
from ettsweep.sweep.verify import Look, Verdict

if TYPE_CHECKING:
    from rich.console import Console

RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
"""Seconds between attempts to submit to a scheduler that does not answer."""

LOCAL_TRIES, SLURM_TRIES = 1, 3
"""Submissions of a run, without its being started, after which a command gives up: a cluster may have a bad node."""


@dataclass(frozen=True)
class How:
    """How a command carries out its plan.

    Attributes:
        data: where data sets are, by kind of task, as far as somebody has said it.
        console: stay, and show on it how far the runs are; None leaves them to the background.
        title: put before what is shown.
        searches: those of the sweeps that its runs are for, where they are to be named.
        tell: takes a line on what the runs will cost and, where they are followed, one on what they have cost.
    """

    results: Path
    profile: AnyProfile
    data: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    console: "Console | None" = None
    title: str = ""
    searches: Sequence[Search] = ()
    tell: Callable[[str], None] = lambda text: None

    @property
    def follows(self) -> bool:
        """Whether the command stays until its runs are finished."""
        return self.console is not None and not self.dry_run


@dataclass(frozen=True)
class Outcome:
    """What became of a plan.

    Attributes:
        plan: what was submitted or, in a dry run, would be; where it was followed, what is left of it.
        folders: the submissions, where it was not followed.
        scripts: what a dry run would hand to sbatch.
    """

    plan: Plan
    how: How
    folders: Sequence[Path] = ()
    scripts: Sequence[str] = ()

    @property
    def sound(self) -> bool:
        """Whether all runs are finished, where they were waited for, and else of none is unknown what became of it."""
        if self.how.follows:
            return not (self.plan.blocked or self.plan.to_launch)
        return self.how.dry_run or not any(p.state is State.UNKNOWN for p in self.plan.blocked)


def read_ledger(results: Path) -> Ledger:
    """Read all runs, with what their owners and submissions say."""
    return load_ledger(results, LiveOutlook(results))


def carry_out(plan: Plan, how: How, replan: Callable[[Ledger], Plan] | None = None) -> Outcome:
    """Say what a plan will cost and submit it, or only show what would be; where `how` says so, follow it to its end.

    `replan` makes the plan of the next round from what is on disk; by default it is for the same runs.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker could be started, or workers end without having started a run.
    """
    account = Account(how.profile, rounds=replan is not None)
    how.tell(account.before(plan))
    if how.dry_run:
        return Outcome(plan, how, scripts=scripts(how.results, plan, how.profile))
    if how.console is None:
        return Outcome(plan, how, submit(how.results, plan, how.profile, how.data))
    last = _follow_rounds(plan, how, how.console, replan, account)
    how.tell(account.after(last.ledger))
    return Outcome(last, how)


def _follow_rounds(
    plan: Plan, how: How, console: "Console", replan: Callable[[Ledger], Plan] | None, account: Account
) -> Plan:
    """Submit, wait, look and plan again until no run is left that a worker could take, and return the last plan.

    A worker that dies is replaced; a run whose attempts keep dying becomes failed, so this ends.
    """
    everything = [p.spec for p in plan.wanted]
    monitor = Monitor(how.results, searches=by_family(how.searches))
    most = LOCAL_TRIES if isinstance(how.profile, LocalProfile) else SLURM_TRIES
    tries: Counter[tuple[str, int]] = Counter()
    folders: Sequence[Path] = ()
    while True:
        # Whoever plans anew goes on without what a person must decide about; else that is watched with the rest.
        watched = [p.spec for p in plan.to_launch + plan.keep] if replan else everything
        monitor.watch(watched)
        listed = _attempts(how.results, plan)
        if submitted := _submit_patiently(plan, how, console):
            folders = submitted
            tries.update(listed)
        follow(monitor, how.title, console)
        ledger = read_ledger(how.results)
        left = _attempts(how.results, make_plan(watched, ledger))
        if left and all(tries[run] >= most for run in left):
            words = read_submission(folders[0]).last_words()
            raise LaunchError(f"the workers ended without starting a run: {words}")
        plan = replan(ledger) if replan else make_plan(everything, ledger)
        if not plan.under_way:
            return plan
        how.tell(account.before(plan))


def _attempts(results: Path, plan: Plan) -> list[tuple[str, int]]:
    """Return the runs that are to be launched, each with the number of its attempts so far."""
    return [(p.id, len(RunDir(runs_dir(results) / p.id).numbers())) for p in plan.to_launch]


def _submit_patiently(plan: Plan, how: How, console: "Console") -> Sequence[Path]:
    """Submit a plan; wait for a scheduler that does not answer, as long as the command is left running."""
    wait_s = RETRY_FIRST_S
    while True:
        try:
            return submit(how.results, plan, how.profile, how.data)
        except UnansweredError as error:
            console.out(harmless(str(error)), highlight=False)
            return ()  # what it lists counts as unknown until SLURM answers
        except NotHereError:
            raise
        except NoAnswerError as error:
            console.out(harmless(f"{NO_ANSWER}: {error}; asking again in {wait_s:.0f} s"), highlight=False)
            time.sleep(wait_s)
            wait_s = min(RETRY_LAST_S, 2 * wait_s)


# --- until every verdict is final -----------------------------------------------------------------------------------


def looks(searches: Sequence[Search], ledger: Ledger) -> list[Look]:
    """Return each family as it is on disk."""
    return [Look(search, ledger.family(search.family)) for search in searches]


def judge(searches: Sequence[Search], ledger: Ledger) -> list[Verdict]:
    """Return the verdict of each family of each sweep on what is on disk."""
    return [look.verdict() for look in looks(searches, ledger)]


@dataclass
class Verification:
    """Climbs of some families from candidate to better neighbour, which each look at what is on disk takes on.

    Attributes:
        at: the point at which the climb of each family begins; None for its best.
        max_runs: runs that may be planned in all.
        tell: takes a line for each step of a climb.
        agree: asked, with what the next round would cost, whether a climb may go on that far; None: no.
        verdicts: one for each family, of the last look.
        planned: runs planned so far.
        held_back: runs that `max_runs` kept out of the last plan.
        stopped: a line for each climb that went too far to go on unasked, with what its next round would cost.
        outcome: what became of the last plan.
        problem: why the only round could not be submitted.
        follows: go on from better neighbours of `at`; without `max_runs`, stop each climb that would train more runs
            than its family was asked for.
    """

    searches: Sequence[Search]
    at: Point | None
    max_runs: int | None
    tell: Callable[[str], None] | None
    agree: Callable[[str], bool] | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    planned: int = 0
    held_back: int = 0
    stopped: list[str] = field(default_factory=list)
    outcome: Outcome = field(init=False)
    problem: LaunchError | None = None
    follows: bool = False
    _patience: dict[tuple[str, str], int] = field(default_factory=dict)
    _declined: set[tuple[str, str]] = field(default_factory=set)

    def plan(self, ledger: Ledger) -> Plan:
        """Climb as far as what is on disk allows, and return the plan for what the verdicts lack."""
        found = looks(self.searches, ledger)
        before: Sequence[Verdict | None] = self.verdicts or [None] * len(found)
        self.verdicts = [self._climb(look, last) for look, last in zip(found, before, strict=True)]
        self.stopped = []
        wanted = [self._affordable(look, verdict, ledger) for look, verdict in zip(found, self.verdicts, strict=True)]
        plan = make_plan(chain.from_iterable(wanted), ledger)
        if self.max_runs is not None:
            whole, plan = plan, plan.limited(max(0, self.max_runs - self.planned))
            self.held_back = len(whole.to_launch) - len(plan.to_launch)
        self.planned += len(plan.to_launch)
        return plan

    def _climb(self, look: Look, last: Verdict | None) -> Verdict:
        """Return the verdict that a climb has come to; say so where it is farther than at the look before."""
        at = self.at and look.snap(self.at)
        verdict = look.verdict(at) if at and not self.follows else look.climb(at)
        if self.tell and verdict.point and (last is None or verdict.way != last.way):
            self.tell(f"{titles(self.searches)[verdict.key]}: {_candidate(verdict)}")
        return verdict

    def _affordable(self, look: Look, verdict: Verdict, ledger: Ledger) -> list[RunSpec]:
        """Return the runs that a family lacks; none where its climb would then have trained more than was asked for."""
        wanted = look.wanted(verdict)
        if not (self.follows and self.max_runs is None and verdict.path):
            return wanted
        asked, climbed = look.specs(look.search.points), look.specs(verdict.outside)
        known = {spec.run_id for spec in (*asked, *climbed)}
        more = make_plan((spec for spec in wanted if spec.run_id not in known), ledger).to_launch
        patience = self._patience.get(verdict.key, 1)
        if not more or len(climbed) + len(more) <= patience * len(asked):
            return wanted
        told = (
            f"{len(asked)} runs were asked for, the climb is {len(climbed)} beyond, and its next round is {len(more)}"
        )
        if device_s := Times(ledger).total_s(more):
            told += f", about {device_hours(device_s)}"
        told = f"{titles(self.searches)[verdict.key]}: {told}"
        if verdict.key not in self._declined and self.agree and self.agree(told):
            self._patience[verdict.key] = 2 * patience
            return wanted
        self._declined.add(verdict.key)
        self.stopped.append(told)
        return []


def verify_rounds(
    searches: Sequence[Search],
    how: How,
    *,
    at: Point | None = None,
    max_runs: int | None = None,
    tell: Callable[[str], None] | None = None,
    agree: Callable[[str], bool] | None = None,
) -> Verification:
    """Judge each family and submit the runs that its verdict lacks: one round or, where `how` follows, all.

    With `at`, that point is judged instead of each family's best; where `how` follows, a climb begins there.
    `tell` takes a line for each step of a climb.

    Raises:
        InputError: `at` lies off a fixed axis.
    """
    done = Verification(searches, at, max_runs, tell, agree, follows=how.follows)
    plan = done.plan(read_ledger(how.results))
    done.outcome = Outcome(plan, how)
    if plan.under_way or not how.follows:
        try:
            done.outcome = carry_out(plan, how, done.plan)
        except LaunchError as problem:
            if how.follows:
                raise
            done.problem = problem  # the verdicts stand all the same
    return done


def _candidate(verdict: Verdict) -> str:
    assert verdict.point is not None
    score = "diverged" if verdict.score is None else f"{verdict.search.measure.metric} {verdict.score:.4g}"
    return f"candidate lr {power(verdict.point.lr)} wd {power(verdict.point.wd)}, {score}"
