"""Rounds: plan, submit, wait, look again, until what is wanted is there or a person must decide."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError
from ettsweep.launch.monitor import Monitor, follow
from ettsweep.launch.outlook import NO_ANSWER, LiveOutlook
from ettsweep.launch.profiles import AnyProfile, LocalProfile
from ettsweep.launch.slurm import NoAnswerError, NotHereError
from ettsweep.launch.submissions import read_submission
from ettsweep.launch.submit import UnansweredError, submit
from ettsweep.runs.folder import RunDir
from ettsweep.runs.paths import runs_dir
from ettsweep.runs.state import State
from ettsweep.spec import RunSpec
from ettsweep.sweep.lattice import Point
from ettsweep.sweep.ledger import Ledger, load_ledger
from ettsweep.sweep.plan import Plan, Planned, make_plan
from ettsweep.sweep.request import Search
from ettsweep.sweep.verify import Look, Verdict

RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
"""Seconds between attempts to submit to a scheduler that does not answer."""

LOCAL_TRIES, SLURM_TRIES = 1, 3
"""Submissions of a run, without its being started, after which a command gives up: a cluster may have a bad node."""

if TYPE_CHECKING:
    from rich.console import Console


def read_ledger(results: Path) -> Ledger:
    """Read all runs, with what their owners and submissions say."""
    return load_ledger(results, LiveOutlook(results))


def run_all(results: Path, specs: Sequence[RunSpec], profile: AnyProfile, console: "Console", title: str) -> Plan:
    """Submit runs and wait until they are finished, or a person must decide about what is left.

    A worker that dies is replaced; a run whose attempts keep dying becomes failed, so this ends.

    Returns:
        The last plan: its `keep` is finished, its `blocked` is not.

    Raises:
        LaunchError: workers end without having started a run.
    """
    monitor, launcher = Monitor(results, specs), Launcher(results, profile, console)
    while True:
        launcher.launch(make_plan(specs, read_ledger(results)))
        snapshot = follow(monitor, title, console)
        left = make_plan(specs, read_ledger(results))
        launcher.check(left)
        if snapshot.settled and not left.to_launch:
            return left


class Launcher:
    """Submits the plans of one command, and notices when that leads nowhere."""

    def __init__(self, results: Path, profile: AnyProfile, console: "Console") -> None:
        self._results = results
        self._profile = profile
        self._console = console
        self._tries: dict[str, tuple[int, int]] = {}
        self._folder: Path | None = None

    def launch(self, plan: Plan) -> None:
        """Submit a plan; wait for a scheduler that does not answer, as long as the command is left running."""
        wait_s = RETRY_FIRST_S
        while True:
            try:
                folders = submit(self._results, plan, self._profile)
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
        most = LOCAL_TRIES if isinstance(self._profile, LocalProfile) else SLURM_TRIES
        if self._folder is None or not left.to_launch:
            return
        for planned in left.to_launch:
            attempts, tries = self._tries.get(planned.id, (0, 0))
            if tries < most or attempts != self._attempts(planned):
                return
        words = read_submission(self._folder).last_words()
        raise LaunchError(f"the workers ended without starting a run: {words}")

    def _attempts(self, planned: Planned) -> int:
        return len(RunDir(runs_dir(self._results) / planned.id).numbers())


@dataclass
class Verification:
    """What a call of verify-optimum did.

    Attributes:
        verdicts: one for each family, in the order of the searches.
        submitted: runs submitted in all rounds.
        held_back: runs that `max_runs` kept back.
        plan: what the last round submitted or, in a dry run, would submit.
        folders: the submissions of the last round.
        problem: why the last round could not be submitted.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    submitted: int = 0
    held_back: int = 0
    plan: Plan = field(default_factory=Plan)
    folders: list[Path] = field(default_factory=list)
    problem: LaunchError | None = None


def looks(searches: Sequence[Search], ledger: Ledger) -> list[Look]:
    """Return each family as it is on disk."""
    return [Look(search, ledger.family(search.family)) for search in searches]


def judge(searches: Sequence[Search], ledger: Ledger) -> list[Verdict]:
    """Return the verdict of each family on what is on disk."""
    return [look.verdict() for look in looks(searches, ledger)]


def verify_rounds(
    results: Path,
    searches: Sequence[Search],
    profile: AnyProfile,
    *,
    at: Point | None = None,
    max_runs: int | None = None,
    dry_run: bool = False,
    console: "Console | None" = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Judge each family and submit the runs that its verdict lacks: one round, or all where `console` follows.

    Args:
        results: results folder.
        searches: the families.
        profile: where new runs train.
        at: judge this point first instead of each family's best.
        max_runs: submit no more than this many in all.
        dry_run: plan one round and submit nothing.
        console: follow on it until every verdict is final, or no round can change it.
        tell: takes a line for each step of a climb.
    """
    done = Verification()
    ledger = read_ledger(results)
    candidates = {look.search.family: look.snap(at) for look in looks(searches, ledger)} if at else {}
    paths: dict[str, tuple[Point, ...]] = {}
    launcher = Launcher(results, profile, console) if console else None
    while True:
        done.verdicts, specs = [], []
        for look in looks(searches, ledger):
            family = look.search.family
            verdict = look.climb(candidates.get(family), paths.get(family, ()))
            if at and verdict.point:
                candidates[family] = verdict.point
            if verdict.way != verdict.path:
                tell(f"{look.search.model} {verdict.strategy}: {_candidate(verdict)}")
            paths[family] = verdict.way
            done.verdicts.append(verdict)
            specs += look.wanted(verdict)
        done.plan, done.held_back = _limit(make_plan(specs, ledger), max_runs, done.submitted)
        if dry_run:
            return done
        if console is None or launcher is None:
            try:
                done.folders = submit(results, done.plan, profile)
                done.submitted = len(done.plan.to_launch)
            except LaunchError as error:
                done.problem = error  # the verdicts stand all the same
            return done
        done.submitted += len(done.plan.to_launch)
        if not done.plan.to_launch and not any(p.state in (State.QUEUED, State.RUNNING) for p in done.plan.keep):
            return done
        to_launch = [p.spec for p in done.plan.to_launch]
        monitor = Monitor(results, [*to_launch, *(p.spec for p in done.plan.keep)])
        launcher.launch(done.plan)
        follow(monitor, "verify", console)
        ledger = read_ledger(results)
        launcher.check(make_plan(to_launch, ledger))


def _candidate(verdict: Verdict) -> str:
    assert verdict.point is not None
    score = "diverged" if verdict.score is None else f"{verdict.search.measure.metric} {verdict.score:.4g}"
    return f"candidate lr {verdict.point.lr:.4g} wd {verdict.point.wd:.4g}, {score}"


def _limit(plan: Plan, max_runs: int | None, submitted: int) -> tuple[Plan, int]:
    """Return the plan cut to what `max_runs` still allows, and how many runs that keeps back."""
    if max_runs is None:
        return plan, 0
    room = max(0, max_runs - submitted)
    retry = plan.retry[:room]
    allowed = plan.submit[: room - len(retry)]
    held_back = len(plan.to_launch) - len(retry) - len(allowed)
    return Plan(allowed, retry, plan.keep, plan.blocked), held_back
