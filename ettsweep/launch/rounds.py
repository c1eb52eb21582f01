"""Rounds: a plan is carried out; followed, it is submitted, waited for and made anew until nothing is left to do."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError, NoAnswerError, NotHereError, UnansweredError
from ettsweep.launch.monitor import Monitor, follow
from ettsweep.launch.outlook import NO_ANSWER, LiveOutlook
from ettsweep.launch.profiles import AnyProfile, LocalProfile
from ettsweep.launch.submissions import read_submission
from ettsweep.launch.submit import scripts, submit
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.state import State
from ettsweep.sweep.ledger import Ledger, Plan, Planned, load_ledger, make_plan
from ettsweep.sweep.search import Point, Search
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
    """

    results: Path
    profile: AnyProfile
    data: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    console: "Console | None" = None
    title: str = ""

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
    """Submit a plan, or only show what would be submitted; where `how` says so, follow it to its end.

    `replan` makes the plan of the next round from what is on disk; by default it is for the same runs.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker could be started, or workers end without having started a run.
    """
    if how.dry_run:
        return Outcome(plan, how, scripts=scripts(how.results, plan, how.profile))
    if how.console is None:
        return Outcome(plan, how, submit(how.results, plan, how.profile, how.data))
    return Outcome(_follow_rounds(plan, how, how.console, replan), how)


def _follow_rounds(plan: Plan, how: How, console: "Console", replan: Callable[[Ledger], Plan] | None) -> Plan:
    """Submit, wait, look and plan again until no run is left that a worker could take, and return the last plan.

    A worker that dies is replaced; a run whose attempts keep dying becomes failed, so this ends.
    """
    everything = [p.spec for p in plan.wanted]
    launcher, monitor = Launcher(how, console), Monitor(how.results)
    while True:
        # Whoever plans anew goes on without what a person must decide about; else that is watched with the rest.
        watched = [p.spec for p in plan.to_launch + plan.keep] if replan else everything
        monitor.watch(watched)
        launcher.launch(plan)
        follow(monitor, how.title, console)
        ledger = read_ledger(how.results)
        launcher.check(make_plan(watched, ledger))
        plan = replan(ledger) if replan else make_plan(everything, ledger)
        if not plan.under_way:
            return plan


class Launcher:
    """Submits the plans of one command, and notices when that leads nowhere."""

    def __init__(self, how: How, console: "Console") -> None:
        self._how = how
        self._console = console
        self._tries: dict[str, tuple[int, int]] = {}
        self._folder: Path | None = None

    def launch(self, plan: Plan) -> None:
        """Submit a plan; wait for a scheduler that does not answer, as long as the command is left running."""
        wait_s = RETRY_FIRST_S
        while True:
            try:
                folders = submit(self._how.results, plan, self._how.profile, self._how.data)
                break
            except UnansweredError as error:
                self._console.print(str(error), highlight=False)
                return  # what it lists counts as unknown until SLURM answers
            except NotHereError:
                raise
            except NoAnswerError as error:
                told = f"{NO_ANSWER}: {error}; asking again in {wait_s:.0f} s"
                self._console.print(told, highlight=False)
                time.sleep(wait_s)
                wait_s = min(RETRY_LAST_S, 2 * wait_s)
        if folders:
            self._folder = folders[0]
        for planned in plan.to_launch:
            attempts, tries = self._tries.get(planned.id, (0, 0))
            now = self._attempts(planned)
            self._tries[planned.id] = (now, tries + 1 if now == attempts else 1)

    def check(self, left: Plan) -> None:
        """Give up where all that is left to launch was launched before, and workers ended without starting it.

        Raises:
            LaunchError: with the workers' last words.
        """
        most = LOCAL_TRIES if isinstance(self._how.profile, LocalProfile) else SLURM_TRIES
        if self._folder is None or not left.to_launch:
            return
        for planned in left.to_launch:
            attempts, tries = self._tries.get(planned.id, (0, 0))
            if tries < most or attempts != self._attempts(planned):
                return
        words = read_submission(self._folder).last_words()
        raise LaunchError(f"the workers ended without starting a run: {words}")

    def _attempts(self, planned: Planned) -> int:
        return len(RunDir(runs_dir(self._how.results) / planned.id).numbers())


# --- until every verdict is final -----------------------------------------------------------------------------------


def looks(searches: Sequence[Search], ledger: Ledger) -> list[Look]:
    """Return each family as it is on disk."""
    return [Look(search, ledger.family(search.family)) for search in searches]


def judge(searches: Sequence[Search], ledger: Ledger) -> list[Verdict]:
    """Return the verdict of each family on what is on disk."""
    return [look.verdict() for look in looks(searches, ledger)]


@dataclass
class Verification:
    """Climbs of some families from candidate to better neighbour, which each look at what is on disk takes on.

    Attributes:
        outcome: what became of the last plan.
        candidates: the point that each family's climb has come to, where it does not begin at its best.
        max_runs: runs that may be planned in all.
        tell: takes a line for each step of a climb.
        verdicts: one for each family, of the last look.
        planned: runs planned so far.
        held_back: runs that `max_runs` kept out of the last plan.
        problem: why the only round could not be submitted.
        paths: the way that each family's climb has come.
    """

    searches: Sequence[Search]
    outcome: Outcome
    candidates: dict[str, Point]
    max_runs: int | None
    tell: Callable[[str], None] | None
    verdicts: list[Verdict] = field(default_factory=list)
    planned: int = 0
    held_back: int = 0
    problem: LaunchError | None = None
    paths: dict[str, tuple[Point, ...]] = field(default_factory=dict)

    def plan(self, ledger: Ledger) -> Plan:
        """Climb as far as what is on disk allows, and return the plan for what the verdicts lack."""
        self.verdicts, specs = [], []
        for look in looks(self.searches, ledger):
            verdict = self._climb(look)
            self.verdicts.append(verdict)
            specs += look.wanted(verdict)
        plan = make_plan(specs, ledger)
        allowed = plan if self.max_runs is None else plan.limited(max(0, self.max_runs - self.planned))
        self.held_back = len(plan.to_launch) - len(allowed.to_launch)
        self.planned += len(allowed.to_launch)
        return allowed

    def _climb(self, look: Look) -> Verdict:
        family = look.search.family
        verdict = look.climb(self.candidates.get(family), self.paths.get(family, ()))
        if family in self.candidates and verdict.point:
            self.candidates[family] = verdict.point
        if verdict.way != verdict.path and self.tell:
            self.tell(f"{look.search.model} {verdict.strategy}: {_candidate(verdict)}")
        self.paths[family] = verdict.way
        return verdict


def verify_rounds(
    searches: Sequence[Search],
    how: How,
    *,
    at: Point | None = None,
    max_runs: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> Verification:
    """Judge each family and submit the runs that its verdict lacks: one round or, where `how` follows, all.

    With `at`, that point is judged first instead of each family's best; `tell` takes a line for each step of a climb.
    """
    ledger = read_ledger(how.results)
    candidates = {look.search.family: look.snap(at) for look in looks(searches, ledger)} if at else {}
    done = Verification(searches, Outcome(Plan(), how), candidates, max_runs, tell)
    plan = done.plan(ledger)
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
    return f"candidate lr {verdict.point.lr:.4g} wd {verdict.point.wd:.4g}, {score}"
