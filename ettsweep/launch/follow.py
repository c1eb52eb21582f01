"""Rounds: a plan is carried out; followed, it is submitted, waited for and made anew until nothing is left to do."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import count, escape_control
from ettsweep.errors import LaunchError, SlurmNotInstalledError, SlurmUnavailableError, SubmissionUnknownError
from ettsweep.launch.cost import CostEstimator, TrainingTimes
from ettsweep.launch.liveness import NO_ANSWER, SchedulerLiveness
from ettsweep.launch.local_workers import WorkerRespawner, fill_all
from ettsweep.launch.profile import AnyProfile, LocalProfile
from ettsweep.launch.progress import RELAUNCH_S, ProgressMonitor, SweepStatus, follow
from ettsweep.launch.submissions import read_submission
from ettsweep.launch.submit import scripts, submit
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import TaskSpec
from ettsweep.runs.state import State
from ettsweep.study.lattice import Point
from ettsweep.study.plan import Plan, PlannedRun, make_plan
from ettsweep.study.pruning import Pruner
from ettsweep.study.run_index import RunIndex, load_run_index
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import by_family
from ettsweep.study.verification import NO_BUDGET, Budget, SuggestionSource, Verification

if TYPE_CHECKING:
    from rich.console import Console

RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
"""Seconds between attempts to submit to a scheduler that does not answer."""

ARRAY = 16
"""Runs that a race submits to a scheduler at once, where its profile does not say how many train at a time."""

LOCAL_TRIES, SLURM_TRIES = 1, 3
"""Submissions of a run, without its being started, after which a command gives up: a cluster may have a bad node."""


@dataclass(frozen=True)
class CommandContext:
    """How a command carries out its plan.

    Attributes:
        data: where data sets are, by kind of task, as far as somebody has said it.
        console: stay, and show on it how far the runs are; None leaves them to the background.
        title: put before what is shown.
        searches: those of the sweeps that its runs are for, where they are to be named.
        tell: takes a line on what the runs will cost and, where they are followed, one on what they have cost.
        pruner: stops hopeless runs where they are followed; None lets all train to their end.
    """

    results: Path
    profile: AnyProfile
    data: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    console: "Console | None" = None
    title: str = ""
    studies: Sequence[Study] = ()
    tell: Callable[[str], None] = lambda text: None
    pruner: Pruner | None = None

    @property
    def follows(self) -> bool:
        """Whether the command stays until its runs are finished."""
        return self.console is not None and not self.dry_run


@dataclass(frozen=True)
class SubmitResult:
    """What became of a plan.

    Attributes:
        plan: what was submitted or, in a dry run, would be; where it was followed, what is left of it.
        folders: the submissions, where it was not followed.
        scripts: what a dry run would hand to sbatch.
    """

    plan: Plan
    context: CommandContext
    folders: Sequence[Path] = ()
    scripts: Sequence[str] = ()

    @property
    def sound(self) -> bool:
        """Whether runs that were waited for are finished; else, of none is unknown what became of it."""
        if self.context.follows:
            return not (self.plan.blocked or self.plan.to_launch)
        return self.context.dry_run or not any(p.state is State.UNKNOWN for p in self.plan.blocked)


def read_ledger(results: Path) -> RunIndex:
    """Read all runs, with what their owners and submissions say."""
    return load_run_index(results, SchedulerLiveness(results))


def carry_out(plan: Plan, context: CommandContext, replan: Callable[[RunIndex], Plan] | None = None) -> SubmitResult:
    """Say what a plan will cost and submit it, or only show what would be; where `how` says so, follow it to its end.

    `replan` makes the plan of the next round from what is on disk; by default it is for the same runs.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker could be started, or workers end without having started a run.
    """
    cost_estimator = CostEstimator(context.profile, rounds=replan is not None)
    context.tell(cost_estimator.before(plan))
    vacancies = SchedulerLiveness(context.results).vacancies([p.id for p in plan.keep if p.state is State.QUEUED])
    if context.dry_run:
        context.tell(f"{count(len(vacancies), 'idle slot')} would get a new worker" if vacancies else "")
        return SubmitResult(plan, context, scripts=scripts(context.results, plan, context.profile))
    context.tell(fill_all(vacancies))
    if context.console is None:
        return SubmitResult(plan, context, submit(context.results, plan, context.profile, context.data))
    last_plan = _follow_rounds(plan, context, context.console, replan, cost_estimator)
    context.tell(cost_estimator.after(last_plan.run_index))
    return SubmitResult(last_plan, context)


def _follow_rounds(
    plan: Plan,
    context: CommandContext,
    console: "Console",
    replan: Callable[[RunIndex], Plan] | None,
    cost_estimator: CostEstimator,
) -> Plan:
    """Submit, wait, look and plan again until no run is left that a worker could take, and return the last plan.

    A worker that dies is replaced; a run whose attempts keep dying becomes failed, and a pruner stops none twice, so
    this ends.
    """
    if not plan.wanted:
        return plan
    all_specs = [p.spec for p in plan.wanted]
    monitor = ProgressMonitor(context.results, searches=by_family(context.studies))
    max_submissions = LOCAL_TRIES if isinstance(context.profile, LocalProfile) else SLURM_TRIES
    submission_counts: Counter[tuple[str, int]] = Counter()
    folders: Sequence[Path] = ()
    respawner = WorkerRespawner(RELAUNCH_S, context.tell)
    while True:
        # Whoever plans anew goes on without what a person must decide about; else that is watched with the rest.
        watched = [p.spec for p in plan.to_launch + plan.keep] if replan else all_specs
        monitor.watch(watched)
        attempts = _attempts(context.results, plan)
        if submitted := _submit_patiently(plan, context, console):
            folders = submitted
            submission_counts.update(attempts)
        follow(monitor, context.title, console, heed=_heed(context.pruner, respawner, monitor, plan.run_index))
        run_index = read_ledger(context.results)
        startable = [spec for spec in watched if run_index.state(spec.run_id).state is not State.PRUNED]
        startable_attempts = _attempts(context.results, make_plan(startable, run_index))
        if startable_attempts and all(submission_counts[run] >= max_submissions for run in startable_attempts):
            last_output = read_submission(folders[0]).last_words()
            raise LaunchError(f"the workers ended without starting a run: {last_output}")
        plan = replan(run_index) if replan else make_plan(all_specs, run_index)
        if not plan.under_way:
            return plan
        context.tell(cost_estimator.before(plan))


def _heed(
    pruner: Pruner | None, respawner: WorkerRespawner, monitor: ProgressMonitor, run_index: RunIndex
) -> Callable[[SweepStatus], None]:
    """Return what stops hopeless runs at each look of a round, given all runs before it, and replaces dead workers."""

    def on_poll(sweep_status: SweepStatus) -> None:
        if pruner:
            pruner.prune(monitor.specs, sweep_status.statuses, run_index)
        respawner.look(sweep_status.vacancies)

    return on_poll


def _attempts(results: Path, plan: Plan) -> list[tuple[str, int]]:
    """Return the runs that are to be launched, each with the number of its attempts so far."""
    return [(p.id, len(RunDir(runs_dir(results) / p.id).numbers())) for p in plan.to_launch]


def _submit_patiently(plan: Plan, context: CommandContext, console: "Console") -> Sequence[Path]:
    """Submit a plan; wait for a scheduler that does not answer, as long as the command is left running."""
    wait_s = RETRY_FIRST_S
    while True:
        try:
            return submit(context.results, plan, context.profile, context.data)
        except SubmissionUnknownError as error:
            console.out(escape_control(str(error)), highlight=False)
            return ()  # what it lists counts as unknown until SLURM answers
        except SlurmNotInstalledError:
            raise
        except SlurmUnavailableError as error:
            console.out(escape_control(f"{NO_ANSWER}: {error}; asking again in {wait_s:.0f} s"), highlight=False)
            time.sleep(wait_s)
            wait_s = min(RETRY_LAST_S, 2 * wait_s)


# --- until every verdict stands -------------------------------------------------------------------------------------


@dataclass
class VerificationResult:
    """What became of a verification.

    Attributes:
        outcome: what became of its last plan.
        problem: why its only round could not be submitted; its verdicts stand all the same.
    """

    verification: Verification
    submit_result: SubmitResult
    problem: LaunchError | None = None


def verify_rounds(
    studies: Sequence[Study],
    context: CommandContext,
    *,
    at: Point | None = None,
    budget: Budget = NO_BUDGET,
    tell: Callable[[str], None] | None = None,
    agree: Callable[[str], bool] | None = None,
    searching: SuggestionSource | None = None,
    prune: Callable[[Callable[[], Collection[str]]], Pruner] | None = None,
) -> VerificationResult:
    """Judge each family and submit the runs that its verdict lacks: one round or, where `how` follows, all.

    With `at`, that point is judged instead of each family's best; where `how` follows, a climb begins there.
    `tell` takes a line for each step of a climb; `searching` names points; `prune` returns what may stop runs, given
    what tells which were merely proposed.

    Raises:
        InputError: `at` lies off a fixed axis.
    """

    def estimate_device_s(run_index: RunIndex, planned: Sequence[PlannedRun]) -> float | None:
        return TrainingTimes(run_index).total_s(planned)

    parallel_runs = 1 if context.dry_run else at_once(context.profile, [study.base.task for study in studies])
    verification = Verification(
        studies, at, budget, tell, agree, estimate_device_s, parallel_runs, context.follows, searching
    )
    if prune:
        context = replace(context, pruner=prune(verification.proposals))
    plan = verification.plan(read_ledger(context.results))
    if not plan.under_way and context.follows:
        return VerificationResult(verification, SubmitResult(plan, context))
    try:
        return VerificationResult(verification, carry_out(plan, context, verification.plan))
    except LaunchError as problem:
        if context.follows:
            raise
        return VerificationResult(verification, SubmitResult(plan, context), problem)


def at_once(profile: AnyProfile, tasks: Iterable[TaskSpec]) -> int:
    """Return how many runs of some tasks a profile trains at a time; where the scheduler alone decides, `ARRAY`."""
    if isinstance(profile, LocalProfile):
        return len(profile.resolve()) * min((profile.together(task) for task in tasks), default=1)
    return (profile.max_parallel or ARRAY) * profile.runs_per_job
