"""Follow a plan: submit it, wait for its runs, and plan again until nothing is left to do."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import escape_control, format_count
from ettsweep.errors import LaunchError, SlurmNotInstalledError, SlurmUnavailableError, SubmissionUnknownError
from ettsweep.launch.cancellation import withdraw_jobs
from ettsweep.launch.cost import CostEstimator
from ettsweep.launch.first_runs import read_first_runs
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.liveness import NO_ANSWER, SchedulerLiveness, watch_hearts
from ettsweep.launch.local import WorkerRespawner, respawn_workers
from ettsweep.launch.progress import RELAUNCH_S, ProgressMonitor, follow_progress
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import read_submission
from ettsweep.launch.submit import submit
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.index import Run, RunIndex, RunReader, load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.budget import Budget
from ettsweep.study.plan import Plan, make_plan
from ettsweep.study.round import Aim, Round, Spent, next_round
from ettsweep.study.study import Study
from ettsweep.study.sweep import Suggestion
from ettsweep.study.sweep_store import StudiesByFamily

if TYPE_CHECKING:
    from rich.console import Console

RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
"""Shortest and longest wait in seconds between attempts to submit to a silent scheduler; it doubles each time."""


@dataclass(frozen=True)
class CommandContext:
    """How a command carries out its plan.

    Attributes:
        results: the results folder.
        data: given paths of data sets, by kind of task.
        dry_run: only show the plan.
        console: for the progress of followed runs; None leaves them in the background.
        title: shown before the progress.
        studies: studies of the runs' sweeps, to name these.
        notify: receives lines on actions and costs.
    """

    results: Path
    data: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    console: "Console | None" = None
    title: str = ""
    studies: Sequence[Study] = ()
    notify: Callable[[str], None] = lambda text: None

    @property
    def follows(self) -> bool:
        """`True` if the command waits until its runs are finished."""
        return self.console is not None and not self.dry_run


@dataclass(frozen=True)
class SubmitResult:
    """The outcome of a plan.

    Attributes:
        plan: submitted runs, or those of a dry run; after following, the rest.
        context: its context.
        folders: the submissions, if it was not followed.
        batch_scripts: scripts that a dry run would pass to sbatch.
    """

    plan: Plan
    context: CommandContext
    folders: Sequence[Path] = ()
    batch_scripts: Sequence[str] = ()

    @property
    def succeeded(self) -> bool:
        """`True` if all followed runs are finished or, without following, if no run's state is unknown."""
        if self.context.follows:
            return not (self.plan.blocked or self.plan.to_launch)
        return self.context.dry_run or not any(p.state is State.UNKNOWN for p in self.plan.blocked)


def read_run_index(results: Path, slurm_cache: SlurmCache | None = None) -> RunIndex:
    """Read all runs on disk, with the states that their owners and submissions imply.

    Args:
        results: the results folder.
        slurm_cache: heartbeats and answers of SLURM so far.
    """
    return load_run_index(results, SchedulerLiveness(results, slurm_cache))


def read_index_to_plan(context: CommandContext, is_wanted: Callable[[Run], bool]) -> RunIndex:
    """Read all runs on disk, once the owners of the requested ones are known to be alive or dead.

    After a reboot, a run has no owner only if its heartbeat has stopped. A command that follows watches hearts on all
    machines, others only those on machines with this machine's name. A dry run waits for nothing.
    """
    run_index = read_run_index(context.results)
    if context.dry_run:
        return run_index
    run_ids = [run.id for run in run_index.runs.values() if not run.state.finished and is_wanted(run)]
    slurm_cache = watch_hearts(context.results, run_ids, context.notify, of_this_name=not context.follows)
    return read_run_index(context.results, slurm_cache) if slurm_cache.heartbeats else run_index


def execute_plan(
    plan: Plan, context: CommandContext, launcher: Launcher, rounds: "Rounds | None" = None
) -> SubmitResult:
    """Submit a plan, and follow it to its end if the context says so; a dry run only shows it.

    Args:
        plan: the runs to launch and to keep.
        context: how to carry it out.
        launcher: of the runs.
        rounds: make the plan of the next round; by default it is for the same runs.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker started, or workers ended without starting a run.
    """
    cost_estimator = CostEstimator(launcher, in_rounds=rounds is not None)
    forecast = rounds.last.forecast if rounds and rounds.last and context.follows else None
    context.notify(cost_estimator.describe_estimate(plan, forecast))
    # Slots of dead workers go to queued runs before new ones are submitted.
    vacancies = SchedulerLiveness(context.results).vacant_slots([p.id for p in plan.keep if p.state is State.QUEUED])
    if context.dry_run:
        context.notify(f"{format_count(len(vacancies), 'idle slot')} would get a new worker" if vacancies else "")
        return SubmitResult(plan, context, batch_scripts=launcher.scripts(context.results, plan.to_launch))
    context.notify(respawn_workers(vacancies))
    try:
        context.notify(withdraw_jobs(context.results))
    except SlurmUnavailableError as error:
        context.notify(str(error))
    if context.console is None:
        return SubmitResult(plan, context, _submit_once(plan, context, launcher))
    last_plan = _Follower(context, launcher, context.console, rounds, cost_estimator).follow(plan)
    context.notify(cost_estimator.describe_cost(last_plan.run_index))
    return SubmitResult(last_plan, context)


class _Follower:
    """Submits, waits and plans again until a worker could take no further run."""

    def __init__(
        self,
        context: CommandContext,
        launcher: Launcher,
        console: "Console",
        rounds: "Rounds | None",
        cost_estimator: CostEstimator,
    ) -> None:
        self._context, self._launcher, self._console, self._rounds = context, launcher, console, rounds
        self._cost_estimator = cost_estimator
        self._reader = RunReader(context.results)
        self._monitor = ProgressMonitor(
            context.results, studies_by_family=StudiesByFamily(context.studies), reader=self._reader
        )
        self._respawner = WorkerRespawner(RELAUNCH_S, context.notify)
        # Counted per attempt number: a run that started has a new number and a new budget.
        self._submission_counts: Counter[tuple[str, int]] = Counter()
        self._folders: list[Path] = []

    def follow(self, plan: Plan) -> Plan:
        """Follow a plan and those of later rounds; return the last one.

        This ends: ettsweep replaces dead workers, but a run whose attempts keep dying fails.
        """
        if not plan.all_runs:
            return plan
        # Of all requested runs: a blocked one may become startable later.
        all_specs = [p.spec for p in plan.all_runs]
        while True:
            # A replanned round does not wait for blocked runs, which need a person.
            watched = [p.spec for p in plan.to_launch + plan.keep] if self._rounds else all_specs
            self._monitor.watch(watched)
            self._submit(plan)
            follow_progress(
                self._monitor,
                self._context.title,
                self._console,
                on_poll=lambda sweep_status: self._respawner.poll(sweep_status.vacant_slots),
            )
            run_index = self._reader.read(SchedulerLiveness(self._context.results, self._monitor.slurm_cache))
            self._check_started(watched, run_index)
            if self._rounds:
                last = self._rounds.advance(run_index, self._context.notify)
                plan, forecast = self._without_stopped(last.plan), last.forecast
            else:
                plan, forecast = make_plan(all_specs, run_index), None
            if not plan.is_unfinished:
                return plan
            self._context.notify(self._cost_estimator.describe_estimate(plan, forecast))

    def _without_stopped(self, plan: Plan) -> Plan:
        """Return the plan of a further round, without runs to launch if the first ones failed with the same error."""
        # A round is a submission, and may be too small to fail three times.
        reason = read_first_runs(*map(read_submission, self._folders)).stop_reason if plan.to_launch else ""
        self._context.notify(reason)
        return replace(plan, submit=(), retry=()) if reason else plan

    def _submit(self, plan: Plan) -> None:
        attempts = _launch_attempts(self._context.results, plan)
        if folders := _submit_patiently(plan, self._context, self._launcher, self._console):
            self._folders += folders
            self._submission_counts.update(attempts)

    def _check_started(self, watched: Sequence[RunSpec], run_index: RunIndex) -> None:
        """Check that submissions start runs.

        Raises:
            LaunchError: all startable runs were submitted the maximum number of times.
        """
        attempts = _launch_attempts(self._context.results, make_plan(watched, run_index))
        if attempts and all(self._submission_counts[run] >= self._launcher.max_submissions for run in attempts):
            last_output = read_submission(self._folders[-1]).last_output()
            raise LaunchError(f"workers ended without starting a run: {last_output}")


def _launch_attempts(results: Path, plan: Plan) -> list[tuple[str, int]]:
    """Return each run to launch, with the number of its attempts so far."""
    return [(p.id, len(RunDir(runs_dir(results) / p.id).attempt_numbers())) for p in plan.to_launch]


def _submit_once(plan: Plan, context: CommandContext, launcher: Launcher) -> list[Path]:
    sweeps = sorted({study.sweep for study in context.studies})
    return submit(context.results, plan, launcher, context.data, sweeps)


def _submit_patiently(plan: Plan, context: CommandContext, launcher: Launcher, console: "Console") -> Sequence[Path]:
    """Submit a plan; while the scheduler does not answer, wait and try again."""
    wait_s = RETRY_FIRST_S
    while True:
        try:
            return _submit_once(plan, context, launcher)
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
class Rounds:
    """The rounds of a verification, one after the other.

    Attributes:
        studies: as they are recorded; a search adds points to them.
        budget: limits the trained runs.
        aim: the goal of the verification.
        spent: by the rounds so far.
        reload: returns the studies as on disk now, with suggestions of other commands.
        record: records the suggestions of a round in a sweep, before a kill could lose them.
        last: the last round; None before the first.
    """

    studies: Sequence[Study]
    budget: Budget
    aim: Aim
    spent: Spent = field(default_factory=Spent)
    reload: Callable[[Sequence[Study]], Sequence[Study]] = lambda studies: studies
    record: Callable[[str, Sequence[Suggestion]], None] = lambda sweep, suggestions: None
    last: Round | None = None

    def advance(self, run_index: RunIndex, notify: Callable[[str], None]) -> Round:
        """Return the next round from the runs on disk; record its suggestions and print its notes first."""
        made = next_round(self.reload(self.studies), run_index, self.budget, self.spent, self.aim)
        for sweep, suggestions in made.suggestions.items():
            self.record(sweep, suggestions)
        for note in made.notes:
            notify(note)
        self.studies, self.spent, self.last = made.studies, made.spent, made
        return made


@dataclass
class VerificationResult:
    """The outcome of a verification.

    Attributes:
        rounds: the last of them has the verdicts.
        submit_result: result of its last plan.
        problem: why its only round could not be submitted; its verdicts are still valid.
    """

    rounds: Rounds
    submit_result: SubmitResult
    problem: LaunchError | None = None

    @property
    def last(self) -> Round:
        """The last round."""
        assert self.rounds.last is not None
        return self.rounds.last


def verify_rounds(rounds: Rounds, context: CommandContext, launcher: Launcher) -> VerificationResult:
    """Judge studies and submit missing runs: one round, or all rounds if the context follows.

    Args:
        rounds: before the first one.
        context: how to carry out the plans.
        launcher: of the runs.

    Raises:
        InputError: its start is not a point of a study, or a point has more seeds than its budget allows.
    """
    capacity = 1 if context.dry_run else launcher.capacity()
    rounds = replace(rounds, aim=replace(rounds.aim, capacity=capacity, follows=context.follows))
    families = {study.family for study in rounds.studies}
    first = rounds.advance(read_index_to_plan(context, lambda run: run.family in families), context.notify)
    if not first.plan.is_unfinished and context.follows:
        return VerificationResult(rounds, SubmitResult(first.plan, context))
    try:
        submit_result = execute_plan(first.plan, context, launcher, rounds)
    except LaunchError as problem:
        if context.follows:
            raise
        # Without following, show the verdicts on finished runs in spite of the error.
        return VerificationResult(rounds, SubmitResult(first.plan, context), problem)
    return VerificationResult(rounds, submit_result)
