"""One attempt at a run by a command: started, watched, its metrics kept, stopped, and how it ended."""

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NoReturn, Protocol

from ettsweep.cgroups import out_of_memory_kills
from ettsweep.console import as_on_screen
from ettsweep.errors import CommandFailedError, EttsweepError, InputError, LostProcessError, RunStopped, StorageError
from ettsweep.files import Json, storage_errors, write_atomic
from ettsweep.kinds.command import CommandRecipe
from ettsweep.kinds.own_code import early_end
from ettsweep.kinds.template import Value, rendered, written
from ettsweep.launch.project_copy import missing_in_copy
from ettsweep.launch.remedies import gpu_memory_advice, more_memory, more_time
from ettsweep.launch.slurm import SlurmProfile
from ettsweep.project_code import import_folders
from ettsweep.provenance import belongs_to_environment, installed_versions, launcher_version
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.contract import TRAINING_LOSSES
from ettsweep.runs.stop import StopReason
from ettsweep.worker.command.checkpoints import Checkpoint, checkpoints, newest_checkpoint
from ettsweep.worker.command.child import OUT_VARIABLE, Child, kill_processes_of
from ettsweep.worker.command.ends import last_words, signal_below
from ettsweep.worker.command.kept_metrics import put_in_order
from ettsweep.worker.command.own_metrics import OwnMetrics
from ettsweep.worker.devices import leader_host
from ettsweep.worker.in_process import MAX_NAMES, RunningRun

POLL_S, MIN_POLL_S, POLL_SHARE = 0.5, 0.02, 0.05
"""Seconds between looks at metrics, signals and the run's folder; at first fewer, and a share of the time so far."""

READ_S = 1.0
"""Seconds in which metrics are read before the next look: a program may print faster than that."""

MAX_OUTPUT_BYTES = 2**32
"""Most that a command may print."""

ASKS_TO_GO_ON = 75
"""Exit code of a command that wants to be taken up again: EX_TEMPFAIL of sysexits.h."""

SIGNAL_WAIT_S = 2.0
"""Seconds for which the worker of a job waits for a signal of its own where one has ended the command: SLURM signals
both, not at the same instant."""

SIGNALLED = (StopReason.TERMINATED, StopReason.OUT_OF_TIME)

TAIL_BYTES, TAIL_LINES = 16_384, 20
"""Of the output of a command that has failed, what is read, and the lines that tell whether memory ran out."""

HEAD_BYTES, END_BYTES = 2**20, 10 * 2**20
"""Of a long output, what is kept after its end."""

FAILED_FROM = "failed_from"
"""Entry of end.json: the checkpoint of an attempt that failed before it got further, if there is an older one."""

_STEP_VARIABLE = re.compile(r"SLURM_(?!CONF|CLUSTER|JOB|ARRAY|SUBMIT|RESTART)")

_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|HIP out of memory")
_SAYS_KILLED = re.compile(r"\bkilled\b", re.IGNORECASE)
"""What a program says one of whose processes was killed, such as a worker that loads its data."""


_SENT_SIGNALS = (*(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), signal.SIGUSR1, signal.SIGUSR2)
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
"""Signals that others send, and those that a program brings upon itself, which are a failure of its own."""


class Metrics(Protocol):
    """Where metrics of a command are read from: by a reader, or what it writes itself."""

    def begin(self, step: int | None = None) -> None:
        """Take what is there now as of earlier attempts, from whose `step` this one goes on, if it is known."""
        ...

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> Sequence[Json]:
        """Return what was written since, in order, each row with its `step`; with `final`, a last line has no end.

        No more is read after `limit_s`.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """Whether there was no time for all that there was."""
        ...

    def notes(self) -> Sequence[str]:
        """Return what could not be read, and of which metrics the later one of two values counts."""
        ...

    @property
    def replaced(self) -> Mapping[str, str]:
        """What to know of metrics of which a later value has replaced another one, by name."""
        ...

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        ...


def train_command(recipe: CommandRecipe, run: object) -> None:
    """Train a run by its command until it ends, diverges or is to stop; none of its processes is left then.

    Raises:
        InputError: it cannot be started, has failed, or left no score.
        LostProcessError: something else has killed it.
        RunStopped: it has left since it was told to.
    """
    assert isinstance(run, RunningRun)
    if changed := recipe.data_change():
        raise InputError(f"{changed}; restore them, or request new runs: `ettsweep grid` with another --name")
    if not recipe.run_folder.is_dir():
        raise InputError(f"workdir: there is no folder {recipe.run_folder}")
    CommandTraining(recipe, run).train()


class CommandTraining:
    """One attempt at a run by a command."""

    def __init__(self, recipe: CommandRecipe, run: RunningRun) -> None:
        self._recipe, self._run = recipe, run
        self._out = run.out.resolve()
        self._output = run.attempt.output_path
        self._stop_path = run.attempt.stop_path.resolve()
        self._knows_step = False
        self._output_size = -1
        self._active_s = time.monotonic()
        self._kills_before = out_of_memory_kills()
        self._checkpoint: Checkpoint | None = None
        self._has_older = False
        self._first_step: int | None = None
        self._end: Json = {}
        self._always = {recipe.score.name, *TRAINING_LOSSES}
        self._names = set[str]()
        self._has_left_out = False

    def train(self) -> None:
        """Train the run, see `train_command`."""
        run = self._run
        if run.attempt.number > 1 and (left := kill_processes_of(str(self._out))):
            run.log(f"killed {len(left)} processes that an earlier attempt had left")
        checkpoint = self._checkpoint = self._prepare()
        values = self._values(checkpoint)
        argv = [rendered(word, values) for word in self._words(checkpoint)]
        self._write_files(values)
        environment = self._environment(values)
        run.packages = _packages(argv, self._recipe.run_folder, environment.get("PATH"))
        metrics = self._metrics(run.attempt)
        metrics.begin(checkpoint.step if checkpoint else None)
        run.flush()
        run.attempt.record_command(argv, str(self._recipe.run_folder), run.packages)
        run.log(f"starts {shlex.join(argv)}")
        child = Child(argv, self._recipe.run_folder, environment, self._output, self._srun())
        try:
            was_told = self._watch(child, metrics)
        finally:
            if not child.is_over:
                child.kill()
        self._read(metrics, final=child.code == 0)  # else its last line may be half of one
        while metrics.is_behind and not run.stop:
            self._read(metrics, final=child.code == 0)
        for note in metrics.notes():
            run.log(f"warning: {note}")
        self._end |= {"code": child.code, "first_step": self._first_step, "memory_bytes": child.memory_bytes}
        self._end |= {"left": list(child.left), "score_note": metrics.replaced.get(self._recipe.score.name, "")}
        run.attempt.record_end(self._end)
        output = list(self._read_end())
        self._shorten_output()
        run.settle(partial(put_in_order, score=self._recipe.score.name))
        self._conclude(child.code, was_told, metrics, output)

    # --- before it starts ---

    def _prepare(self) -> Checkpoint | None:
        """Return the checkpoint to go on from, after moving away what an attempt left that is not gone on from."""
        recipe, run = self._recipe, self._run
        if run.attempt.number == 1:
            return None
        resume, checkpoint = recipe.resume, None
        if resume is not None and resume.checkpoint is not None:
            checkpoint = self._usable_checkpoint(resume.pattern)
        if checkpoint is None and not (resume and resume.always):
            self._move_away()
            self._knows_step = True
        elif checkpoint is not None and checkpoint.step is not None:
            self._go_on(checkpoint.step)
        if checkpoint is not None:
            run.log(f"checkpoint {checkpoint.path}")
        return checkpoint

    def _usable_checkpoint(self, pattern: str) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, and from which the attempt before did not fail at once."""
        before = self._run.earlier_attempts()[0]
        failed = None if before.is_retried() else before.end().get(FAILED_FROM)
        found = None
        for checkpoint, problem in checkpoints(self._out, pattern):
            name = checkpoint.path.relative_to(self._out).as_posix()
            if name == failed:
                problem = f"attempt {before.number} failed right after it had resumed from it"
            if problem:
                self._run.log(f"checkpoint {name} is not used: {problem}")
            elif found is None:
                found = checkpoint
            else:
                self._has_older = failed is None
                break
        return found

    def _go_on(self, step: int) -> None:
        """Keep the metrics of the attempt before up to a step, also those that its worker did not live to record."""
        self._knows_step = True
        run = self._run
        if (parent := self._parent()) is None:
            return
        run.continue_from(parent, step)
        for name in (name for line in run.history for name in line if name != "step"):
            self._has_place(name)
        recorded = {(line["step"], name) for line in run.history for name in line}
        for row in self._left_by(parent):
            new = {name: value for name, value in _values_of(row).items() if (row["step"], name) not in recorded}
            if new and row["step"] <= step:
                run.note(row["step"], self._chosen(new))

    def _go_on_before(self, step: int) -> None:
        """Go on by the first step that a program records which finds its own checkpoint, unless it has begun anew."""
        self._knows_step = True
        if self._recipe.resume is None or (parent := self._parent()) is None:
            return
        before = [line["step"] for line in (*parent.history(every_step=False), *self._left_by(parent))]
        if step > min(before, default=step):
            self._go_on(step - 1)

    def _parent(self) -> Attempt | None:
        """Return the newest attempt that has metrics of the same files as this one; None if there is none."""
        for attempt in self._run.earlier_attempts():
            if attempt.resume_path.exists() or attempt.metrics_path.exists() or self._left_by(attempt):
                return attempt
            if _moved_path(attempt).exists():  # it began with an empty folder
                return None
        return None

    def _left_by(self, attempt: Attempt) -> Sequence[Json]:
        """Return all metrics that an earlier attempt left, in its own files and in those of the run."""
        try:
            return self._metrics(attempt).rows()
        except EttsweepError as error:
            self._run.log(f"warning: attempt {attempt.number}: {error}")
            return []

    def _move_away(self) -> None:
        """Move what an earlier attempt left out of the way: many programs misread what lies there."""
        if any(self._out.iterdir()):
            target = _moved_path(self._run.attempt)
            with storage_errors(target):
                self._out.rename(target)
                self._out.mkdir()
            resume = self._recipe.resume
            why = f"nothing in out is a whole checkpoint by {resume.pattern!r}: it " if resume else ""
            self._run.log(f"{why}starts again from the beginning; what lay in out is now in attempts/{target.name}")

    def _words(self, checkpoint: Checkpoint | None) -> list[str]:
        run, resume = self._run, self._recipe.resume
        added: tuple[str, ...] = ()
        if resume is not None and run.attempt.number > 1:
            added = resume.add if checkpoint else resume.always
        return [*self._recipe.argv, *self._recipe.strategies.get(run.strategy, ()), *added]

    def _values(self, checkpoint: Checkpoint | None) -> dict[str, Value]:
        run = self._run
        values: dict[str, Value] = {"lr": run.lr, "wd": run.wd, "seed": run.seed, "out": str(self._out), "id": run.id}
        values |= {"strategy": run.strategy, "devices": self._recipe.gpus * self._recipe.nodes}
        if checkpoint is not None:
            values |= {"checkpoint": str(checkpoint.path), "step": checkpoint.step or 0}
        return values

    def _write_files(self, values: dict[str, Value]) -> None:
        for name, file in self._recipe.files.items():
            path = Path(rendered(name, values))
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, file.content(Path(self._recipe.folder), values))

    def _environment(self, values: dict[str, Value]) -> dict[str, str]:
        run, attempt = self._run, self._run.attempt
        # Lightning would requeue the job by itself, and others would take the job's tasks for theirs. The worker's own
        # safe path would keep a script from the modules beside it.
        left_out = ("SLURM_NTASKS", "PYTHONSAFEPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        if self._recipe.nodes > 1:  # a srun below another one would take nodes, CPUs and memory of that for its own
            environment = {name: value for name, value in environment.items() if not _STEP_VARIABLE.match(name)}
        if "SLURM_JOB_ID" in environment:
            environment["SLURM_JOB_NAME"] = "bash"
        environment |= {
            "ETTSWEEP_RUN": run.id,
            "ETTSWEEP_ATTEMPT": str(attempt.number),
            OUT_VARIABLE: str(self._out),
            "ETTSWEEP_METRICS": str(attempt.recorded_path.resolve()),
            "ETTSWEEP_STOP": str(self._stop_path),
            "ETTSWEEP_LR": written(run.lr),
            "ETTSWEEP_WD": written(run.wd),
            "ETTSWEEP_SEED": str(run.seed),
            "ETTSWEEP_STRATEGY": run.strategy,
            "ETTSWEEP_CHECKPOINT": str(values.get("checkpoint", "")),
            "ETTSWEEP_DEADLINE": os.environ.get("SLURM_JOB_END_TIME", ""),
            "PET_NPROC_PER_NODE": str(self._recipe.gpus),
            **self._meeting(),
            "PYTHONUNBUFFERED": "1",
            "WANDB_RUN_ID": run.id,
            "WANDB_RESUME": "allow",
            "WANDB_NAME": run.id,
            "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP") or run.family,
            "WANDB_DIR": str(self._out),
        }
        # A script that is written for each run finds the modules beside its original.
        scripts = (Path(self._recipe.folder, file.source) for file in self._recipe.files.values())
        beside = dict.fromkeys(script.parent.resolve() for script in scripts if script.suffix == ".py")
        if folders := [*beside, *import_folders(self._recipe.run_folder)]:
            environment["PYTHONPATH"] = os.pathsep.join(
                [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
        return environment | {name: rendered(text, values) for name, text in self._recipe.env.items()}

    def _meeting(self) -> dict[str, str]:
        """Return the variables by which processes of a run find each other; torchrun reads those with PET."""
        port = str(_free_port())
        if self._recipe.nodes == 1:
            return {"PET_NNODES": "1", "PET_STANDALONE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        host = leader_host(socket.gethostname())
        meeting = {"PET_NNODES": str(self._recipe.nodes), "MASTER_ADDR": host, "MASTER_PORT": port}
        rendezvous = {
            "BACKEND": "c10d",
            "ENDPOINT": f"{host}:{port}",
            "ID": f"{self._run.id}-{self._run.attempt.number}",
        }
        return meeting | {f"PET_RDZV_{name}": value for name, value in rendezvous.items()}

    def _srun(self) -> list[str]:
        """Return the words that start a command on each node of this job; none where it has one node."""
        nodes = self._recipe.nodes
        if nodes == 1:
            return []
        if (given := os.environ.get("SLURM_JOB_NUM_NODES", "1")) != str(nodes):
            raise InputError(f"nodes: {nodes} are needed, and this job has {given}")
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        counts = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}"]
        return ["srun", "--overlap", *counts, "--export=ALL", "--input=all", "--kill-on-bad-exit=1", "--unbuffered"]

    def _metrics(self, attempt: Attempt) -> Metrics:
        """Return where metrics of an attempt are read from."""
        if self._recipe.reader is None:
            return OwnMetrics(attempt.path, attempt.output_path, self._recipe.kept_metrics)
        from ettsweep.readers.registry import reader_of
        from ettsweep.readers.source import MetricSource

        reader = reader_of(self._recipe.reader, Path(self._recipe.folder))
        kept, strict = self._recipe.kept_metrics, (self._recipe.score.name, *self._recipe.metrics)
        return MetricSource(reader, self._out, attempt.output_path, only=kept, strict=strict)

    # --- while it runs ---

    def _watch(self, child: Child, metrics: Metrics) -> bool:
        """Keep its metrics until it has ended; return whether it was told to."""
        run, began_s, wait_s = self._run, time.monotonic(), MIN_POLL_S
        while not child.wait(wait_s):
            # A share of the time so far: the first step is seen soon after it, so that start-up and steps tell apart.
            wait_s = min(max(MIN_POLL_S, POLL_SHARE * (time.monotonic() - began_s)), POLL_S)
            self._read(metrics)
            if run.stop:
                self._stop(child, metrics)
                return True
            self._check_output(child)
        return False

    def _stop(self, child: Child, metrics: Metrics) -> None:
        """Tell it to leave, and kill it if it does not."""
        stop, run = self._recipe.stop, self._run
        run.log(f"is told to stop: {run.stop}")
        if run.stop != StopReason.SUPERSEDED:
            with contextlib.suppress(OSError):
                self._stop_path.touch()
            child.signal(signal.Signals[f"SIG{stop.signal}"])
            child.signal(signal.SIGCONT)  # one that is stopped would hear of nothing
            told_s = time.monotonic()
            until_s = told_s + stop.grace
            while not child.wait(min(POLL_S, max(0.0, until_s - time.monotonic()))):
                self._read(metrics)
                if time.monotonic() >= until_s:
                    run.log(f"has not left after {stop.grace:g} s, and is killed")
                    break
            self._end |= {"stop_s": time.monotonic() - told_s, "was_killed": not child.is_over}
        if not child.is_over:
            child.kill()

    def _read(self, metrics: Metrics, *, final: bool = False) -> None:
        run = self._run
        for row in metrics.rows(final=final, limit_s=READ_S):
            if self._first_step is None:
                self._first_step = row["step"]
            if not self._knows_step:
                self._go_on_before(row["step"])
            self._active_s = time.monotonic()
            run.note(row["step"], self._chosen(_values_of(row)))
        run.flush_if_due()

    def _chosen(self, values: dict[str, float]) -> dict[str, float]:
        """Return values but those of names beyond what a run may record."""
        return {name: value for name, value in values.items() if self._has_place(name)}

    def _has_place(self, name: str) -> bool:
        """Whether a name is recorded: the score and losses always, of others those that came first."""
        if name in self._always or name in self._names:
            return True
        if len(self._names) < MAX_NAMES - len(self._always):
            self._names.add(name)
            return True
        if not self._has_left_out:
            self._has_left_out = True
            self._run.log(f"warning: more than {MAX_NAMES} names of metrics: {name} is left out; see `metrics`")
        return False

    def _check_output(self, child: Child) -> None:
        """End it if it prints without end, or has said nothing for too long."""
        size = self._output.stat().st_size if self._output.exists() else 0
        if size > MAX_OUTPUT_BYTES:
            child.kill()
            raise InputError(f"it has printed more than {MAX_OUTPUT_BYTES >> 30} GiB, which would fill the disk")
        limit_s = self._recipe.stop.silent
        if limit_s is None:
            return
        if size != self._output_size:
            self._output_size, self._active_s = size, time.monotonic()
        if time.monotonic() - self._active_s > limit_s:
            child.kill()
            raise InputError(f"silent: no output and no metric for {limit_s:g} s")

    # --- after its end ---

    def _shorten_output(self) -> None:
        """Leave out the middle of a long output."""
        with contextlib.suppress(OSError, StorageError), self._output.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= HEAD_BYTES + END_BYTES:
                return
            head = file.read(HEAD_BYTES)
            file.seek(size - END_BYTES)
            end = file.read()
            note = f"\n[{(size - HEAD_BYTES - END_BYTES) / 2**20:.0f} MiB are left out here]\n"
            write_atomic(self._output, head + note.encode() + end)

    def _conclude(self, code: int | None, was_told: bool, metrics: Metrics, output: Sequence[str]) -> None:
        """Tell how it ended: return if it is whole, or has a reason to go on; else raise."""
        run, score = self._run, self._recipe.score.name
        # Many programs exit with 0 at a signal, once they have saved.
        is_whole = code == 0 and self._has_score_at_end()
        looks_early = bool(early_end(self._recipe.info, run.history))
        if not is_whole and (was_told or (code == 0 and self._is_signalled(waits=looks_early))):
            self._raise_stopped()
        if code == 0:
            run.is_complete = True
            if not any(score in line for line in run.history):
                raise InputError(metrics.seen(score) + self._own_lines_hint(score))
            return
        if code == ASKS_TO_GO_ON:
            if not self._is_further():
                raise LostProcessError(f"exit code {code} asks to be taken up again, and it is no further than before")
            run.postponed = f"asked to be taken up again (exit code {code})"
            return
        below = signal_below(output)
        killed_by = _signal_of(code) or below
        was_killed = killed_by == "SIGKILL" or bool(below)
        # Others may share the limit: what was killed may be one of theirs.
        if out_of_memory_kills() > self._kills_before and (
            was_killed or any(_SAYS_KILLED.search(line) for line in output[-TAIL_LINES:])
        ):
            raise CommandFailedError(
                f"out of memory, killed by the system (exit code {code}); {self._memory_advice()}", code
            )
        if killed_by:
            if self._is_signalled() or run.stop:
                self._raise_stopped()
            raise LostProcessError(f"killed by {killed_by}{' (out of memory?)' if killed_by == 'SIGKILL' else ''}")
        if run.stop:  # it came while the command ended: SLURM signals both
            self._raise_stopped()
        self._fail(code, output)

    def _has_score_at_end(self) -> bool:
        """Whether the score of the last step is there, if it is known which that is: steps may count from 0."""
        last, score, history = self._recipe.last_step, self._recipe.score.name, self._run.history
        begins = min((line["step"] for line in history), default=1)
        return last is not None and any(score in line and line["step"] >= last - (begins == 0) for line in history)

    def _is_signalled(self, *, waits: bool = True) -> bool:
        """Whether this worker is signalled too, maybe an instant after a command that has ended."""
        until_s = time.monotonic() + SIGNAL_WAIT_S * waits * (1 if "SLURM_JOB_ID" in os.environ else 0.1)
        while (reason := self._run.stop) not in SIGNALLED and time.monotonic() < until_s:
            time.sleep(0.05)
        return reason in SIGNALLED

    def _own_lines_hint(self, score: str) -> str:
        """Return what to do if the program has written the score for ettsweep, and a reader has not found it."""
        if self._recipe.reader is None:
            return ""
        with contextlib.suppress(EttsweepError):  # steps that are none
            if OwnMetrics(self._run.attempt.path, self._output, (score,)).rows(final=True):
                return f"; it writes {score} for ettsweep itself: leave out `reader`"
        return ""

    def _is_further(self) -> bool:
        """Whether this attempt has recorded a later step than all before, or has left a later checkpoint."""
        run, resume = self._run, self._recipe.resume
        lines = (line for attempt in run.earlier_attempts() for line in attempt.history(every_step=False))
        before = max((line["step"] for line in lines), default=-1)
        if any(line["step"] > before for line in run.history):
            return True
        newest = newest_checkpoint(self._out, resume.pattern) if resume and resume.checkpoint else None
        return newest is not None and newest != self._checkpoint

    def _memory_advice(self) -> str:
        run = self._run
        if isinstance(run.profile, SlurmProfile):
            return more_memory(run.id, run.profile.mem_gb)
        if run.workers > 1:
            return f"`ettsweep retry {run.id} --launch-set slots={run.workers // 2}` trains fewer runs at once"
        return "a smaller batch takes less"

    def _raise_stopped(self) -> NoReturn:
        run, profile = self._run, self._run.profile
        if run.stop == StopReason.OUT_OF_TIME and isinstance(profile, SlurmProfile) and not self._recipe.resume:
            advice = more_time(run.id, profile.time_min)
            run.advice = f"without `resume` it starts again from the beginning: {advice} lets it end"
        raise RunStopped

    def _fail(self, code: int | None, output: Sequence[str]) -> NoReturn:
        said = last_words(output)
        if any(_OUT_OF_MEMORY.search(line) for line in (*output[-TAIL_LINES:], said)):
            advice = gpu_memory_advice(self._run.id, self._run.slot)
            raise CommandFailedError(f"out of GPU memory (exit code {code}); {advice}", code)
        by = f", {name}" if (name := _signal_of(code, _OWN_SIGNALS)) else ""
        reason = f"exit code {code}{by}: {said[:200]}"
        if self._checkpoint is not None and self._first_step is None:
            self._raise_failed_from(self._checkpoint, reason, code)
        missing = missing_in_copy(self._recipe.run_folder, "\n".join((*output[-TAIL_LINES:], said)))
        raise CommandFailedError("; ".join(filter(None, [reason, missing])), code)

    def _raise_failed_from(self, checkpoint: Checkpoint, reason: str, code: int | None) -> NoReturn:
        """Raise the failure of an attempt that got no further than its checkpoint, which may not be whole."""
        name = checkpoint.path.relative_to(self._out).as_posix()
        reason = f"{reason}; it had just resumed from checkpoint {name}"
        if self._has_older:
            self._run.attempt.record_end(self._end | {FAILED_FROM: name})
            raise LostProcessError(f"{reason}, and goes back to the one before")
        raise CommandFailedError(
            f"{reason}: if that is not whole, remove it, then `ettsweep retry {self._run.id}`", code
        )

    def _read_end(self) -> Iterator[str]:
        with contextlib.suppress(OSError), self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - TAIL_BYTES))
            yield from as_on_screen(file.read().decode(errors="replace")).splitlines()


def _packages(words: Sequence[str], folder: Path, path: str | None) -> dict[str, str]:
    """Return the versions of what a program trains with: in its own environment, or else in that of `python`."""
    program = words[0]
    found = shutil.which(str(folder / program) if "/" in program else program, path=path)
    if not (found and belongs_to_environment(Path(found))):
        found = shutil.which("python", path=path)
    if not found:
        return {}
    module = next((word for flag, word in pairwise(words) if flag == "-m"), "")
    return installed_versions(Path(found)) | launcher_version(Path(found), module)


def _values_of(row: Json) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if name != "step"}


def _signal_of(code: int | None, signals: Collection[signal.Signals] = _SENT_SIGNALS) -> str:
    """Return the name of the signal that an exit code tells of, as the shell has it too; empty for none of these."""
    number = -code if code is not None and code < 0 else (code or 0) - 128
    if code is None:
        return "something that took its supervisor too"
    return signal.Signals(number).name if number in signals else ""


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _moved_path(attempt: Attempt) -> Path:
    """Return where what lay in the run's folder was moved before an attempt that starts from the beginning."""
    return attempt.path.parent / f"{attempt.number - 1:04d}.out"
