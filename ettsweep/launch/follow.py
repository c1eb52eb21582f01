"""Follow a plan: submit it, wait for its runs, and plan again until nothing is left to do."""

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
"""Shortest and longest wait between attempts to submit while the scheduler does not answer; doubled each time."""

ARRAY = 16
"""Runs that racing submits to a scheduler at once if the profile does not limit how many train in parallel."""

LOCAL_TRIES, SLURM_TRIES = 1, 3
"""Submissions of a run that never starts before a command gives up; more on a cluster, which may have a bad node."""


@dataclass(frozen=True)
class CommandContext:
    """How a command carries out its plan.

    Attributes:
        results: the results folder.
        profile: launch profile of the runs.
        data: paths of data sets by kind of task, as far as given.
        dry_run: only show what would be submitted.
        console: follow the runs, with their progress on this console; None leaves them in the background.
        title: shown before the progress.
        studies: studies of the sweeps that the runs belong to, if these are to be named.
        notify: receives a line on what the runs will cost, and one on what they have cost if they are followed.
        pruner: stops hopeless runs while they are followed; None trains all to their end.
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
        """`True` if the command waits until its runs are finished."""
        return self.console is not None and not self.dry_run


@dataclass(frozen=True)
class SubmitResult:
    """What became of a plan.

    Attributes:
        plan: what was submitted, or would be in a dry run; if it was followed, what is left of it.
        context: the context that it was carried out in.
        folders: the submissions, if it was not followed.
        scripts: what a dry run would pass to sbatch.
    """

    plan: Plan
    context: CommandContext
    folders: Sequence[Path] = ()
    scripts: Sequence[str] = ()

    @property
    def sound(self) -> bool:
        """`True` if all followed runs are finished; if they were not followed, if no run's state is unknown."""
        if self.context.follows:
            return not (self.plan.blocked or self.plan.to_launch)
        return self.context.dry_run or not any(p.state is State.UNKNOWN for p in self.plan.blocked)


def read_ledger(results: Path) -> RunIndex:
    """Read all runs on disk, with the states that their owners and submissions imply."""
    return load_run_index(results, SchedulerLiveness(results))


def carry_out(plan: Plan, context: CommandContext, replan: Callable[[RunIndex], Plan] | None = None) -> SubmitResult:
    """Submit a plan, and follow it to its end if the context says so; a dry run only shows what would be submitted.

    Args:
        plan: the runs to launch and to keep.
        context: how to carry it out.
        replan: makes the plan of the next round from the runs on disk; by default for the same runs.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker could be started, or workers ended without starting a run.
    """
    cost_estimator = CostEstimator(context.profile, rounds=replan is not None)
    context.tell(cost_estimator.before(plan))
    # Slots of dead workers go to the runs that are queued already, before new ones are submitted.
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
    """Submit, wait and plan again until no run is left that a worker could take; return the last plan.

    This ends: a dead worker is replaced, but a run whose attempts keep dying fails, and no run is pruned twice.
    """
    if not plan.wanted:
        return plan
    # Of all requested runs: one that is blocked now may become startable later.
    all_specs = [p.spec for p in plan.wanted]
    monitor = ProgressMonitor(context.results, searches=by_family(context.studies))
    max_submissions = LOCAL_TRIES if isinstance(context.profile, LocalProfile) else SLURM_TRIES
    submission_counts: Counter[tuple[str, int]] = Counter()
    folders: Sequence[Path] = ()
    respawner = WorkerRespawner(RELAUNCH_S, context.tell)
    while True:
        # A replanned round does not wait for blocked runs, which need a person; otherwise they are watched too.
        watched = [p.spec for p in plan.to_launch + plan.keep] if replan else all_specs
        monitor.watch(watched)
        attempts = _attempts(context.results, plan)
        if submitted := _submit_patiently(plan, context, console):
            folders = submitted
            # Counted per attempt number: a run that did start has a new number, and so a new budget.
            submission_counts.update(attempts)
        follow(monitor, context.title, console, heed=_heed(context.pruner, respawner, monitor, plan.run_index))
        run_index = read_ledger(context.results)
        # A pruned run counts as ended here: launching it again would undo the pruning.
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
    """Return a callback that prunes hopeless runs and replaces dead workers at each poll of a round."""

    def on_poll(sweep_status: SweepStatus) -> None:
        if pruner:
            pruner.prune(monitor.specs, sweep_status.statuses, run_index)
        respawner.look(sweep_status.vacancies)

    return on_poll


def _attempts(results: Path, plan: Plan) -> list[tuple[str, int]]:
    """Return each run to launch, with the number of its attempts so far."""
    return [(p.id, len(RunDir(runs_dir(results) / p.id).numbers())) for p in plan.to_launch]


def _submit_patiently(plan: Plan, context: CommandContext, console: "Console") -> Sequence[Path]:
    """Submit a plan; while the scheduler does not answer, wait and try again."""
    wait_s = RETRY_FIRST_S
    while True:
        try:
            return submit(context.results, plan, context.profile, context.data)
        except SubmissionUnknownError as error:
            console.out(escape_control(str(error)), highlight=False)
            return ()  # its runs count as unknown until SLURM answers
        except SlurmNotInstalledError:
            raise
        except SlurmUnavailableError as error:
            console.out(escape_control(f"{NO_ANSWER}: {error}; retrying in {wait_s:.0f} s"), highlight=False)
            time.sleep(wait_s)
            wait_s = min(RETRY_LAST_S, 2 * wait_s)


# --- until every verdict stands -------------------------------------------------------------------------------------


@dataclass
class VerificationResult:
    """What became of a verification.

    Attributes:
        verification: has the verdicts.
        submit_result: result of its last plan.
        problem: why its only round could not be submitted; its verdicts are valid all the same.
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
    """Judge each study and submit the runs that its verdict lacks: one round, or all rounds if the context follows.

    Args:
        studies: the studies to judge.
        context: how to carry out the plans.
        at: judge this point instead of each study's best; followed, the climb starts there.
        budget: limits the runs of a climb.
        tell: receives a line for each step of a climb.
        agree: asks the user whether a climb may continue, given what the next round would cost.
        searching: suggests points.
        prune: makes the pruner, given a function that returns the ids of runs that were only suggested.

    Raises:
        InputError: `at` differs from the study on a fixed axis.
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
        # Unfollowed, the verdicts of runs that are finished are worth showing in spite of the error.
        return VerificationResult(verification, SubmitResult(plan, context), problem)


def at_once(profile: AnyProfile, tasks: Iterable[TaskSpec]) -> int:
    """Return how many runs a profile trains in parallel; a default if only the scheduler decides."""
    if isinstance(profile, LocalProfile):
        return len(profile.resolve()) * min((profile.together(task) for task in tasks), default=1)
    return (profile.max_parallel or ARRAY) * profile.runs_per_job
