"""The worker: trains a list of runs, one after the other, in a slot of this machine or as a task of SLURM's array.

python -m ettsweep.launch.worker FOLDER           what a batch script of SLURM's starts
python -m ettsweep.launch.worker --follow WHAT    what a worker starts on the other devices of its slot
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ettsweep.errors import EttsweepError, LaunchError
from ettsweep.files import Json, dumps, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.outlook import BEATS, LiveOutlook, Memory
from ettsweep.launch.profiles import PROFILES, AnyProfile, LocalProfile, Slot
from ettsweep.launch.slots import Lock, hold_slot, let_go
from ettsweep.launch.submissions import Submission, read_submission
from ettsweep.launch.together import gathered, meet_in_job, meet_leader, parse_told
from ettsweep.processes import Process, beside, process
from ettsweep.provenance import package_dir, provenance
from ettsweep.rundir import Attempt, Outlook, Owner, Prospect, RunDir, State, ThisMachine, runs_dir
from ettsweep.spec import RunSpec, validate

if TYPE_CHECKING:
    import torch

    from ettsweep.training.distributed import Group
    from ettsweep.training.execution import Execution
    from ettsweep.training.loop import Stop

POLL_S = 0.5
"""Seconds between looks for a cancellation or a newer attempt."""

IDLE_LIVES = 6
"""Lives of a job in a row without a single step after which SLURM is not asked for one more."""


# --- a slot of this machine -----------------------------------------------------------------------------------------


def run_in_slot(folder: str, slot_name: str) -> None:
    """Train what the submission lists and no other worker has; the entry point of a local submitit job."""
    submission = read_submission(Path(folder))
    _check_code(submission)
    slot = next(Slot.from_json(data) for data in submission.slots if data["name"] == slot_name)
    for number in SIGNALS:
        signal.signal(number, _leave)
    _say(submission, slot.name, leaving=False)
    lock = hold_slot(slot)  # waits in the kernel, without torch, while another worker has the slot
    assert lock is not None
    try:
        Worker(submission, slot.name, slot, _runs(submission, submission.runs), Control()).serve()
    finally:
        let_go(lock)


def _nothing_around(group: "Group") -> "Callable[[], AbstractContextManager[Group]]":
    return lambda: contextlib.nullcontext(group)


def follow_in_slot(told: str) -> int:
    """Train on another device of a slot what its leader says; return the exit code."""
    slot, where = parse_told(told)
    control = Control()
    device, _ = prepare_device(slot)
    group = meet_leader(where, device)
    _follow(group, device, control)
    group.leave()
    return 0


def _follow(group: "Group", device: "torch.device", control: "Control") -> None:
    """Train what the leader of a group says, until it has nothing more."""
    from ettsweep.training.distributed import LostPeerError, orders
    from ettsweep.training.run import train_run

    try:
        for path, number, execution in orders(group):
            attempt = RunDir(path).attempt(number)
            train_run(attempt.run, attempt, device, execution, partial(control.poll, attempt), group)
    except LostPeerError as error:
        print(f"rank {group.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # what is left of the group may hang at a normal end


def _check_code(submission: Submission) -> None:
    """Refuse to train with other code than was asked for: a snapshot may have been purged, or PYTHONPATH reset."""
    here = package_dir().parent
    if submission.code and here != Path(submission.code).resolve():
        raise LaunchError(f"the code of this submission is {submission.code}, and Python imports {here}")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _runs(submission: Submission, ids: Sequence[str]) -> list[RunDir]:
    results = submission.path.parent.parent
    return [RunDir(runs_dir(results) / run_id) for run_id in ids]


# --- a task of SLURM's array ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """This job, as SLURM told its processes.

    Attributes:
        cluster: name of the cluster.
        id: of the task of the array, such as 123_4. SLURM_JOB_ID is no name for it: that of one task is the array's,
            and what is asked of it happens to all.
        restart: how often SLURM has started it anew.
        node: of this process.
        rank: of this process among those of the job; `local_rank` among those of its node.
    """

    cluster: str
    id: str
    restart: int
    node: str
    rank: int
    local_rank: int

    @classmethod
    def this(cls) -> "Job":
        """Return the job that this process belongs to.

        Raises:
            LaunchError: it belongs to no task of an array.
        """
        env = os.environ
        try:
            return cls(
                cluster=env.get("SLURM_CLUSTER_NAME", ""),
                id=f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}",
                restart=int(env.get("SLURM_RESTART_COUNT") or 0),
                node=env.get("SLURMD_NODENAME", ""),
                rank=int(env.get("SLURM_PROCID") or 0),
                local_rank=int(env.get("SLURM_LOCALID") or 0),
            )
        except (KeyError, ValueError) as error:
            raise LaunchError(f"this is no task of a SLURM array: {error} is not as it should be") from None

    @property
    def index(self) -> int:
        """Index of the task in its array."""
        return int(self.id.partition("_")[2])

    def to_json(self) -> Json:
        """Return what a claim says of it."""
        names = ("cluster", "id", "restart", "node", "rank")
        return {name: getattr(self, name) for name in names}


class JobOutlook:
    """What a job knows of other owners: of its own earlier and later lives at once, of others by asking SLURM."""

    def __init__(self, job: Job, submission: Path) -> None:
        self._job = job
        self._submission = submission.name
        self._results = submission.parent.parent
        self._memory = Memory()

    def owner(self, attempt: Attempt) -> Owner:
        """Say whether the owner of an attempt that has not ended lives."""
        theirs = attempt.job()
        ours = self._job.cluster, self._job.id, self._submission
        if (theirs.get("cluster"), theirs.get("id"), attempt.claim().get("submission")) != ours:
            other = LiveOutlook(self._results, self._memory).owner(attempt)
            # Where SLURM cannot be asked, as in a container, whoever wants to own a run goes by its owner's heart.
            return other if other.life != "unknown" else Owner(self._memory.pulse(attempt), other.where, other.reason)
        if theirs.get("restart") != self._job.restart:
            # SLURM starts a job again only when it has given up the copy before, whether or not that still runs.
            return Owner("dead" if int(theirs.get("restart") or 0) < self._job.restart else "alive")
        owner = Process.from_json(attempt.claim().get("process"))
        life = owner.liveness() if owner else "dead"
        return Owner("alive" if life == "unknown" else life)  # a worker of this job on another of its nodes

    def prospect(self, run_id: str) -> Prospect | None:
        """Look at no other submission: this job has been given the run."""
        return None


def run_task(folder: Path) -> int:
    """Train the runs of this task of the array; return the exit code."""
    job = Job.this()
    control = Control()
    submission = read_submission(folder)
    _check_code(submission)
    submission.record(job.id.partition("_")[0])
    profile = submission.profile
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    slot = Slot(
        name=f"{job.index}-{job.rank}",
        device="cuda" if profile["gpus"] else "cpu",
        gpu=gpus[min(job.local_rank, len(gpus) - 1)] if profile["gpus"] else None,
        threads=profile["cpus"],
    )
    gather = None
    together = profile.get("devices_per_run", 1) > 1
    if together:
        # At once, whether or not there is anything to train: the others cannot know.
        device, _ = prepare_device(slot)
        group = meet_in_job(device)
        if not group.leads:
            _say(submission, slot.name, leaving=False, job=job)
            _follow(group, device, control)
            _say(submission, slot.name, leaving=True, job=job)
            group.leave()
            return 0
        gather = _nothing_around(group)
    runs = _runs(submission, submission.runs_of(job.index))
    worker = Worker(submission, slot.name, slot, runs, control, job, JobOutlook(job, folder), gather)
    worker.serve()
    if together:
        from ettsweep.training.distributed import dismiss

        dismiss(group)
        group.leave()
    if not control.told or not any(worker.claimable(run) for run in runs):
        return 0
    return worker.go_on_in_the_next_job()


# --- both -----------------------------------------------------------------------------------------------------------


def _say(
    submission: Submission,
    name: str,
    *,
    leaving: bool,
    job: Job | None = None,
    saved: bool = False,
    idle_lives: int = 0,
) -> None:
    said: Json = {"process": process().to_json(), "leaving": leaving}
    if job:
        said |= {"restart": job.restart, "saved": saved, "idle_lives": idle_lives}
    write_atomic(submission.path / f"worker-{name}.json", dumps(said))


class Worker:
    """One process that trains the runs of a list that nobody else has, until none is left or it is told to stop."""

    def __init__(
        self,
        submission: Submission,
        name: str,
        slot: Slot,
        runs: list[RunDir],
        control: "Control",
        job: Job | None = None,
        outlook: Outlook | None = None,
        gather: "Callable[[], AbstractContextManager[Group]] | None" = None,
    ) -> None:
        self._gather = gather
        self._submission = submission
        self._name = name
        self._slot = slot
        self._runs = runs
        self._control = control
        self._job = job
        self._outlook = outlook or ThisMachine()
        # Lives of this job, this one included, that have ended without a step.
        self._idle_lives = 1 + int(submission.said_by(name).get("idle_lives") or 0)

    def claimable(self, run: RunDir) -> bool:
        """Say whether a run waits for someone to train it."""
        return claimable(run, self._outlook)

    def _say(self, *, leaving: bool, saved: bool = False) -> None:
        idle_lives = self._idle_lives
        _say(self._submission, self._name, leaving=leaving, job=self._job, saved=saved, idle_lives=idle_lives)

    def serve(self) -> None:
        """Train, pass after pass: a dead worker's runs come round."""
        self._say(leaving=False)
        while True:
            if any(self.claimable(run) for run in self._runs):
                self._train_all()
            if self._control.told and self._job and any(self.claimable(run) for run in self._runs):
                return  # what becomes of the list is SLURM's to say
            self._wait_for_the_unknown()
            # From here on the list counts as nobody's, so the last look comes after saying so.
            self._say(leaving=True)
            if self._control.told or not any(self.claimable(run) for run in self._runs):
                return
            self._say(leaving=False)

    def _wait_for_the_unknown(self) -> None:
        """Wait, in a job, until it is known of all owners whether they live: their hearts beat or stand still."""
        until_s = time.monotonic() + 2 * BEATS * float(self._submission.profile["heartbeat_s"])
        while self._job and not self._control.told and time.monotonic() < until_s:
            states = [run.status(self._outlook).state for run in self._runs]
            if State.UNKNOWN not in states or any(s in (State.MISSING, State.INTERRUPTED) for s in states):
                return
            time.sleep(POLL_S)

    def _train_all(self) -> None:
        device, info = prepare_device(self._slot)
        info |= {"job": self._job.to_json() if self._job else None, "submission": self._submission.path.name}
        info["heartbeat_s"] = self._submission.profile["heartbeat_s"]
        code = provenance()

        from ettsweep.training.distributed import LostPeerError

        try:
            with self._gather() if self._gather else gathered(self._slot, device) as group:
                self._train_with(group, device, info, code)
        except LostPeerError as error:
            if self._job:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)  # SLURM ends the rest of the job; the next command has its runs go on
            print(f"{error}; the others are started anew", file=sys.stderr, flush=True)

    def _train_with(self, group: "Group", device: "torch.device", info: Json, code: Json) -> None:
        """Train what is to be trained, with the other processes of a group."""
        import torch

        from ettsweep.training.distributed import lead
        from ettsweep.training.loop import Stop
        from ettsweep.training.run import train_run

        where = str(self._submission.path / "submission.json")
        profile = validate(PROFILES[self._submission.kind], self._submission.profile, where)
        how = execution(profile, self._slot)
        claimed = True
        while claimed:
            claimed = False
            for run in self._runs:
                attempt = None if self._control.told else claim(run, info, self._outlook)
                if attempt is None:
                    continue
                claimed = True
                attempt.record_provenance(code)
                before = max(run.attempt(number).progress() for number in run.numbers())
                lead(group, run.path, attempt.number, how)
                with beating(attempt, self._submission.profile["heartbeat_s"]):
                    stop = train_run(run, attempt, device, how, partial(self._control.poll, attempt), group)
                self._control.heed(stop)
                if stop is None or attempt.progress() > before:
                    self._idle_lives = 0
                if stop is Stop.SUPERSEDED and self._job and attempt.requeued():
                    self._control.told = "SUPERSEDED"  # this copy of the job has been given up, and all of its list
                    return
                if device.type == "cuda":
                    torch.cuda.synchronize()  # raises if the run has broken the device: then this process is over
                    gc.collect()  # networks hold themselves, and the next run is measured by what is free
                    torch.cuda.empty_cache()

    def go_on_in_the_next_job(self) -> int:
        """Have SLURM start this job again if its time is up or it is preempted; return the exit code.

        Between the warning and the end of a preemption SLURM does not requeue a job that exits by itself, so it must
        ask for that. What a person cancels stays cancelled.
        """
        assert self._job is not None
        told = self._control.told
        # SLURM signals whole steps: scontrol would die of what has ended its parent, and inherits this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if told == "SUPERSEDED":
            return 1
        if self._idle_lives >= IDLE_LIVES:
            print(f"{told}: {IDLE_LIVES} jobs in a row had no time for a step; raise time_min", flush=True)
            return 1
        preempted = None if told == "SIGUSR2" else slurm.preempted(self._job.id)
        if preempted is False:
            return 1
        self._wait_for_the_others()
        certain = preempted or told == "SIGUSR2"
        if certain and slurm.requeue(self._job.id):
            print(f"{told}: saved; SLURM starts this job again", flush=True)
            return 0
        # In a container there may be no scontrol, or SLURM is silent at the moment: the batch script asks once more.
        self._submission.leave_to_script(self._job.index, self._job.restart, certain=bool(certain))
        print(f"{told}: saved; the batch script asks SLURM to start this job again", flush=True)
        return 1

    def _wait_for_the_others(self) -> None:
        """Wait until all workers of this job have saved: to start it again ends those that have not."""
        assert self._job is not None
        self._say(leaving=False, saved=True)
        until_s = time.monotonic() + self._submission.profile["warn_s"] / 2
        while time.monotonic() < until_s and not self._submission.all_saved(self._job.index, self._job.restart):
            time.sleep(POLL_S)


def claimable(run: RunDir, outlook: Outlook) -> bool:
    """Say whether a run waits for someone to train it."""
    return run.status(outlook).state in (State.MISSING, State.INTERRUPTED)


def claim(run: RunDir, info: Json, outlook: Outlook) -> Attempt | None:
    """Claim a run if it waits and nobody was faster."""
    numbers = run.numbers()
    if not claimable(run, outlook):
        return None
    return run.claim(info, after=numbers[-1] if numbers else 0)


def beating(attempt: Attempt, interval_s: float) -> AbstractContextManager[None]:
    """Show from a thread of its own, while the run trains, that this process lives."""

    def beat(ended: threading.Event) -> None:
        count = 0
        while True:
            with contextlib.suppress(OSError):  # a full disk costs a beat, not the run
                attempt.beat(count)
            count += 1
            if ended.wait(interval_s):
                return

    return beside("heartbeat", beat)


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Control:
    """What a run in training asks at each step: was the worker told to stop, or the run cancelled or taken over?

    Attributes:
        told: name of the first signal that told the worker to stop; empty before.
    """

    def __init__(self) -> None:
        self.told = ""
        self._looked_s = 0.0
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the batch script held them back until now

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A preemption may send several at once; the one that says that there is a next job weighs most.
        if not self.told or number == signal.SIGUSR2:
            self.told = signal.Signals(number).name

    def heed(self, stop: "Stop | None") -> None:
        """Count what another process of the run was told as told to this one: its signal need not come here too."""
        from ettsweep.training.loop import Stop

        if stop is Stop.OUT_OF_TIME:
            self.told = "SIGUSR2"
        elif stop is Stop.TERMINATED:
            self.told = self.told or "SIGTERM"

    def poll(self, attempt: Attempt) -> "Stop | None":
        """Return the reason to stop, if there is one."""
        from ettsweep.training.loop import Stop

        if self.told:
            return Stop.OUT_OF_TIME if self.told == "SIGUSR2" else Stop.TERMINATED
        now_s = time.monotonic()
        if now_s - self._looked_s < POLL_S:
            return None
        self._looked_s = now_s
        if attempt.superseded():
            return Stop.SUPERSEDED
        return Stop.CANCELLED if attempt.run.cancel_path.exists() else None


def prepare_device(slot: Slot) -> "tuple[torch.device, Json]":
    """Import torch, pinned to the slot; return the device and what a claim says of it.

    Raises:
        LaunchError: the slot is a GPU that torch does not see.
    """
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA starts
        # Else processes of the compiler's would take the signals that SLURM sends to all of a job, and die of them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    from ettsweep.training.run import environment

    torch.set_num_threads(slot.threads)
    device = torch.device(slot.device)
    if slot.device == "cuda" and not torch.cuda.is_available():
        raise LaunchError(f"slot {slot.name}: torch sees no GPU; check CUDA_VISIBLE_DEVICES, or set `devices: cpu`")
    return device, environment(device) | {"slot": slot.name}


def execution(profile: AnyProfile, slot: Slot) -> "Execution":
    """Return what a profile says of how a run is trained, in a slot."""
    from ettsweep.training.execution import Execution

    loaders = profile.loader_workers
    if loaders == "auto":
        loaders = slot.threads if slot.device == "cuda" else 0
    return Execution(
        checkpoint_every_s=profile.checkpoint_every_s,
        checkpoint_every_steps=profile.checkpoint_every_steps,
        micro_batch=None if profile.micro_batch == "auto" else profile.micro_batch,
        loader_workers=loaders,
        compile=None if profile.compile == "auto" else profile.compile,
        activation_checkpointing=(
            None if profile.activation_checkpointing == "auto" else profile.activation_checkpointing
        ),
        sharded=None if profile.sharded == "auto" else profile.sharded,
        corrupt_images=profile.corrupt_images,
        sinks=profile.log,
        peak_flops=None if profile.peak_tflops is None else 1e12 * profile.peak_tflops,
    )


@dataclass(frozen=True)
class Unlisted:
    """An outlook that asks who owns a run, and not which submissions list it."""

    base: Outlook

    def owner(self, attempt: Attempt) -> Owner:
        """Say whether the owner of an attempt that has not ended lives."""
        return self.base.owner(attempt)

    def prospect(self, run_id: str) -> Prospect | None:
        """Look at no submission."""
        return None


def train_in_foreground(results: Path, spec: RunSpec, profile: LocalProfile) -> bool:
    """Train one run in this process, and say whether it is finished.

    A failed or cancelled run is tried again: whoever types the command wants it.

    Raises:
        LaunchError: another process trains it.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the end of a process that loads images is an error, not the end
    run = RunDir.create(results, spec)
    outlook = Unlisted(LiveOutlook(results))
    if run.status(outlook).state in (State.FAILED, State.CANCELLED):
        run.retry()
    if run.status().state.finished:
        return True
    lock, slot = _any_slot(profile.resolve())
    try:
        device, info = prepare_device(slot)

        from ettsweep.training.distributed import lead
        from ettsweep.training.run import train_run

        attempt = claim(run, info | {"heartbeat_s": profile.heartbeat_s}, outlook)
        if attempt is None:
            status = run.status(outlook)
            if status.state.finished:
                return True
            why = f" ({status.reason})" if status.reason else ""
            raise LaunchError(f"run {run.id} is {status.state}{why}: another process has it; `ettsweep watch` shows it")
        attempt.record_provenance(provenance())
        logger = logging.getLogger("ettsweep")
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        how = execution(profile, slot)
        with gathered(slot, device) as group, beating(attempt, profile.heartbeat_s):
            lead(group, run.path, attempt.number, how)
            train_run(run, attempt, device, how, partial(Control().poll, attempt), group)
        return run.status().state.finished
    finally:
        let_go(lock)


def _any_slot(slots: list[Slot]) -> tuple[Lock, Slot]:
    """Hold the first free slot, or wait for the first."""
    for slot in slots:
        lock = hold_slot(slot, wait=False)
        if lock is not None:
            return lock, slot
    print("all slots are taken: waiting for one", file=sys.stderr)
    lock = hold_slot(slots[0])
    assert lock is not None
    return lock, slots[0]


if __name__ == "__main__":
    try:
        sys.exit(follow_in_slot(sys.argv[2]) if sys.argv[1] == "--follow" else run_task(Path(sys.argv[1])))
    except EttsweepError as error:
        print(f"ettsweep: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
