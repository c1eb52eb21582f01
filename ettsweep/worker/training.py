"""One attempt at a run: resume it, keep its metrics, stop it, and record its end."""

import contextlib
import os
import re
import shlex
import signal
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from ettsweep.call import CORRUPT, NO_DEVICE
from ettsweep.cgroups import out_of_memory_kills
from ettsweep.console import as_on_screen, escape_control
from ettsweep.errors import (
    LOST,
    CommandFailedError,
    CorruptError,
    EttsweepError,
    InputError,
    LaunchError,
    LostProcessError,
    StorageError,
    error_line,
)
from ettsweep.files import Json, storage_errors, write_atomic
from ettsweep.kinds.own_code import early_end
from ettsweep.launch.project_copy import missing_in_copy, placed
from ettsweep.launch.remedies import gpu_memory_advice
from ettsweep.readers.source import MetricSource
from ettsweep.run import MAX_NAMES, Divergence, finite
from ettsweep.runs.attempt import NO_TIME, Attempt, TimeSpent
from ettsweep.runs.folder import RunDir, make_result
from ettsweep.runs.spec import BUILT_IN, TRAINING_LOSSES, RunSpec
from ettsweep.runs.state import StopReason
from ettsweep.worker.checkpoints import Checkpoint, checkpoints, newest_checkpoint
from ettsweep.worker.commands import Given, Start, start_of
from ettsweep.worker.ends import NOTHING, last_words, signal_below
from ettsweep.worker.metrics import Metrics, OwnMetrics, RecordedMetrics, put_in_order
from ettsweep.worker.program import Ended, Program, Programs, kill_processes_of
from ettsweep.worker.work_list import WorkList

FLUSH_S, FLUSH_LINES = 1.0, 200
"""Seconds, or recorded lines, between writes of metrics."""

POLL_S, MIN_POLL_S, POLL_SHARE = 0.5, 0.02, 0.05
"""Seconds between reads of metrics, signals and the run's folder; at first a share of the time so far."""

READ_S = 1.0
"""Most seconds of a read of metrics: a program may print faster."""

MAX_OUTPUT_BYTES = 2**32
"""Most bytes of a command's output."""

ASKS_TO_GO_ON = 75
"""Exit code of a command that asks to be resumed: EX_TEMPFAIL of sysexits.h."""

SIGNAL_WAIT_S = 2.0
"""Seconds that a job's worker waits for its own signal after one has ended the command: SLURM signals both, not at the
same instant."""

SIGNALLED = (StopReason.TERMINATED, StopReason.OUT_OF_TIME)

TAIL_BYTES, TAIL_LINES = 16_384, 20
"""Bytes to read of a failed command's output, and lines to search for a lack of memory."""

HEAD_BYTES, END_BYTES = 2**20, 10 * 2**20
"""Bytes to keep at both ends of a long output."""

FAILED_FROM = "failed_from"
"""Entry of the event `ended`: the checkpoint of an attempt that got no further, if an older one exists."""

_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|HIP out of memory")
_CORRUPT_BELOW = re.compile(rf"exitcode\s*: {CORRUPT}\b")
_SAYS_KILLED = re.compile(r"\bkilled\b", re.IGNORECASE)
"""Output of a program with a killed process, such as a worker that loads its data."""


_SENT_SIGNALS = (*(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), signal.SIGUSR1, signal.SIGUSR2)
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
"""Signals from others, and those that a program causes itself, which are failures."""


class Training:
    """One attempt at a run.

    Attributes:
        run, spec, attempt: a recipe of own code has its folder in its copy.
        work: of the worker.
        command: the recipe, if it is a user's command, whose metrics and checkpoints may be anywhere.
        out: the run's own folder for files.
        resume_step: step to resume after; 0 from the beginning.
        is_over: whether it has ended, and its result, failure or interruption is on disk.
        stopped: why it stopped early.
        device_error: why its program could train no run here.
    """

    def __init__(self, run: RunDir, spec: RunSpec, attempt: Attempt, work: WorkList) -> None:
        self._given = given = Given(run, spec, attempt, work)
        self.run, self.spec, self.attempt, self.work = run, spec, attempt, work
        self.command, self.out = given.command, given.out
        self.resume_step = 0
        self.is_over = False
        self.stopped: StopReason | None = None
        self._start: Start
        self._output = attempt.output_path
        self._poll = work.stop_source.make_poll(attempt)
        self._stop: StopReason | None = None
        self._told_s: float | None = None
        self._divergence = Divergence(given.losses)
        self._diverged_step: int | None = None
        self._history: list[Json] = []
        self._written = 0
        self._names = set[str]()
        self._always = {spec.info.metric.column, *TRAINING_LOSSES}
        self._has_left_out = False
        self._spent_before: TimeSpent = NO_TIME
        self._spent_at_last: TimeSpent = NO_TIME
        self._began_s = self._flushed_s = self._active_s = time.monotonic()
        # Of its program.
        self._checkpoint: Checkpoint | None = None
        self._has_older = False
        self._knows_step = False
        self._first_step: int | None = None
        self._output_size = -1
        self._kills_before = out_of_memory_kills()
        self._signalled_s = 0.0
        self._end: Json = {}
        self.device_error = ""

    # --- before it starts ---

    def prepare(self) -> Start:
        """Find the checkpoint, and return the program to start.

        Raises:
            InputError: its code or data have changed, or its program is missing.
        """
        run, attempt = self.run, self.attempt
        self.log(f"run {run.id} attempt {attempt.number} on {self.work.slot.device}, pid {os.getpid()}")
        self.out.mkdir(exist_ok=True)
        if attempt.number > 1 and (left := kill_processes_of(str(self.out))):
            self.log(f"killed {len(left)} processes of an earlier attempt")
        history = self._go_on_from_state()
        if history is None and self.command is not None:
            self._checkpoint = self._find_own_checkpoint()
        elif history is None and attempt.number > 1:
            self.log("no usable checkpoint: started at step 0")
        start = self._start = start_of(self._given, self._checkpoint, history or "")
        self._metrics = self._metrics_of(attempt)
        self._metrics.begin(self._checkpoint.step if self._checkpoint else None)
        self.flush()
        self._record_start(start)
        self.log(f"starts {shlex.join(start.command.words)}")
        self._began_s = time.monotonic()
        return start

    def _record_start(self, start: Start) -> None:
        started: Json = {"provenance": self.work.code}
        if self.command is not None:
            words, folder = list(start.command.words), str(start.command.folder)
            started |= {"command": words, "folder": folder, "packages": dict(start.packages)}
        self.attempt.record("started", started)
        if self.spec.trainable != BUILT_IN:  # its program knows more
            self.attempt.record("execution", {"processes": 1, "threads": self.work.slot.threads})

    def _go_on_from_state(self) -> str | None:
        """Resume from the newest complete state of `Run.save`; return the digest of the metrics up to it."""
        failed = self._failed_from()
        for attempt in self.earlier_attempts():
            for step in attempt.saved_steps():
                path = attempt.state_path(step)
                name = self._name_of(path)
                if name == failed:
                    self.log(f"skipped checkpoint {name}: the attempt that resumed from it failed at once")
                    continue
                try:
                    digest = attempt.digest_at(step, recorded=self.command is not None)
                except CorruptError as error:
                    self.log(f"warning: {error}; skipped")
                    continue
                # Without an older one, it can start over.
                self._checkpoint, self._has_older, self._knows_step = Checkpoint(path, step), failed is None, True
                self._go_on(step, attempt)
                return digest
        return None

    def _continue_from(self, parent: Attempt, step: int) -> None:
        """Keep the metrics of an earlier attempt up to the step at which this one resumes."""
        inherited = parent.history(until=step, every_step=False)
        self._history = [*inherited, *self._history[self._written :]]
        self._written, self.resume_step = len(inherited), step
        for line in inherited:
            self._divergence.shows(line)
        self._spent_before = parent.time_spent(step)
        self.attempt.record_resume(parent.number, step)
        self.log(f"resumed from attempt {parent.number} at step {step}")

    def _failed_from(self) -> str | None:
        """Return the checkpoint from which the previous attempt failed at once, unless it was retried."""
        before = next(iter(self.earlier_attempts()), None)
        return before.end().get(FAILED_FROM) if before and not before.is_retried() else None

    def earlier_attempts(self) -> list[Attempt]:
        """Return the attempts before this one, the latest first."""
        numbers = (number for number in self.run.attempt_numbers() if number < self.attempt.number)
        return [self.run.attempt(number) for number in sorted(numbers, reverse=True)]

    def _metrics_of(self, attempt: Attempt) -> Metrics:
        """Return the source of an attempt's metrics."""
        if (recipe := self.command) is None:
            return RecordedMetrics(attempt.metrics_path)
        if recipe.reader is None:
            return OwnMetrics(attempt.path, attempt.output_path, recipe.kept_metrics)
        from ettsweep.readers.registry import reader_of

        reader = reader_of(recipe.reader, Path(recipe.folder))
        strict = (recipe.score.name, *recipe.metrics)
        return MetricSource(reader, self.out, attempt.output_path, only=recipe.kept_metrics, strict=strict)

    # --- checkpoints that a command keeps by itself ---

    def _find_own_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from; without one, move files of the previous attempt away."""
        if self.attempt.number == 1:
            return None
        assert self.command is not None
        resume, checkpoint = self.command.resume, None
        if resume is not None and resume.checkpoint is not None:
            checkpoint = self._usable_checkpoint(resume.pattern)
        if checkpoint is None and not (resume and resume.always):
            self._move_away()
            self._knows_step = True
        elif checkpoint is not None and checkpoint.step is not None:
            self._go_on(checkpoint.step, self._parent())
        if checkpoint is not None:
            self.log(f"checkpoint {checkpoint.path}")
        return checkpoint

    def _usable_checkpoint(self, pattern: str) -> Checkpoint | None:
        """Return the newest complete checkpoint from which the previous attempt did not fail at once."""
        failed, found = self._failed_from(), None
        for checkpoint, problem in checkpoints(self.out, pattern):
            name = self._name_of(checkpoint.path)
            if name == failed:
                problem = f"attempt {self.attempt.number - 1} failed right after it resumed from it"
            if problem:
                self.log(f"skipped checkpoint {name}: {problem}")
            elif found is None:
                found = checkpoint
            else:
                self._has_older = failed is None
                break
        return found

    def _go_on(self, step: int, parent: Attempt | None) -> None:
        """Keep the metrics of an earlier attempt up to a step, even those that its dead worker did not record."""
        self._knows_step = True
        if parent is None:
            return
        self._continue_from(parent, step)
        if self.command is None:
            return
        for name in (name for line in self._history for name in line if name != "step"):
            self._has_place(name)
        recorded = {(line["step"], name) for line in self._history for name in line}
        for row in self._left_by(parent):
            new = {name: value for name, value in _values_of(row).items() if (row["step"], name) not in recorded}
            if new and row["step"] <= step:
                self._keep(finite({"step": row["step"], **self._chosen(new)}))

    def _go_on_before(self, step: int) -> None:
        """Resume at the first step of a program that finds its own checkpoint, unless it started over."""
        self._knows_step = True
        if not (self.command and self.command.resume) or (parent := self._parent()) is None:
            return
        before = [line["step"] for line in (*parent.history(every_step=False), *self._left_by(parent))]
        if step > min(before, default=step):
            self._go_on(step - 1, parent)

    def _parent(self) -> Attempt | None:
        """Return the newest attempt with metrics of the same files; None without one."""
        for attempt in self.earlier_attempts():
            if attempt.parent() or attempt.metrics_path.exists() or self._left_by(attempt):
                return attempt
            if _moved_path(attempt).exists():  # it began with an empty folder
                return None
        return None

    def _left_by(self, attempt: Attempt) -> Sequence[Json]:
        """Return all metrics of an earlier attempt, in its own files and in those of the run."""
        try:
            return self._metrics_of(attempt).rows()
        except EttsweepError as error:
            self.log(f"warning: attempt {attempt.number}: {error}")
            return []

    def _move_away(self) -> None:
        """Move files of an earlier attempt away: many programs would misread them."""
        if any(self.out.iterdir()):
            target = _moved_path(self.attempt)
            with storage_errors(target):
                self.out.rename(target)
                self.out.mkdir()
            resume = self.command.resume if self.command else None
            why = f"no complete checkpoint in out by {resume.pattern!r}: it " if resume else ""
            self.log(f"{why}starts over; the files of out are now in attempts/{target.name}")

    # --- while it runs ---

    @property
    def stop(self) -> StopReason | None:
        """Why it must stop, if it must."""
        if self._stop is None:
            self._stop = self._poll()
        return self._stop

    def look(self, program: Program, *, alone: bool) -> None:
        """Keep new metrics; stop it if it must, and kill it if it does not stop.

        Args:
            program: of the run.
            alone: whether the program trains no other run, which a signal would reach too.

        Raises:
            EttsweepError: its metrics cannot be read, or it prints too much, or nothing for too long.
        """
        self._read()
        if self._told_s is not None:
            self._press(program, alone=alone)
        elif self._diverged_step is not None:
            self._told_s = time.monotonic()
            if self.command is not None:  # all others end a diverged run themselves
                program.kill()
        elif self.stop:
            self._tell(program, alone=alone)
        else:
            self._check_output(program)

    def _tell(self, program: Program, *, alone: bool) -> None:
        """Ask it to stop."""
        self.log(f"stopping: {self.stop}")
        self._told_s = time.monotonic()
        if self.stop is StopReason.SUPERSEDED and alone:  # another attempt owns the run's folder
            program.kill()
            return
        with contextlib.suppress(OSError):
            self.attempt.stop_path.touch()
        if self._start.signals_at_once and (alone or self.stop in SIGNALLED):
            self._signal(program)

    def _signal(self, program: Program) -> None:
        self._signalled_s = time.monotonic()
        program.signal(signal.Signals[f"SIG{self._start.signal}"])
        program.signal(signal.SIGCONT)  # a stopped process would not notice

    def _press(self, program: Program, *, alone: bool) -> None:
        """Signal a program that has not stopped by itself, and kill it after its grace."""
        assert self._told_s is not None
        if not (alone or self.stop in SIGNALLED):  # it may be idle
            return
        if time.monotonic() - max(self._told_s, self._signalled_s) < self._start.grace_s:
            return
        if not self._signalled_s and not self._start.signals_at_once:
            self._signal(program)
            return
        self.log(f"did not stop within {self._start.grace_s:g} s: killed")
        self._end["was_killed"] = True
        program.kill()

    def _read(self, *, final: bool = False) -> None:
        for row in self._metrics.rows(final=final, limit_s=READ_S):
            if self._first_step is None:
                self._first_step = row["step"]
            if not self._knows_step:
                self._go_on_before(row["step"])
            self._active_s = time.monotonic()
            if self.command is not None:
                row = {"step": row["step"], **self._chosen(_values_of(row))}
            self._keep(finite(row))
            if self._diverged_step is not None:
                return
        self.flush_if_due()

    def _keep(self, line: Json) -> None:
        self._history.append(line)
        self._spent_at_last = self._spent
        if self._divergence.shows(line):
            self._diverged_step = line["step"]

    def _chosen(self, values: dict[str, float]) -> dict[str, float]:
        """Return values without names beyond the limit of a run."""
        return {name: value for name, value in values.items() if self._has_place(name)}

    def _has_place(self, name: str) -> bool:
        """Whether to record a name: the score and losses always, others first come, first served."""
        if name in self._always or name in self._names:
            return True
        if len(self._names) < MAX_NAMES - len(self._always):
            self._names.add(name)
            return True
        if not self._has_left_out:
            self._has_left_out = True
            self.log(f"warning: more than {MAX_NAMES} names of metrics: left out {name}; see `metrics`")
        return False

    # --- its end ---

    def flush_if_due(self) -> None:
        """Write metrics if they are many, old, or the first: other runs may wait for these."""
        is_due = len(self._history) - self._written >= FLUSH_LINES or time.monotonic() - self._flushed_s >= FLUSH_S
        if is_due or not self._written:
            self.flush()

    def flush(self) -> None:
        """Write new metrics and the progress of the run."""
        lines, self._written = self._history[self._written :], len(self._history)
        self._flushed_s = time.monotonic()
        if not lines:
            return
        if self.command is not None:  # all others record there
            self.attempt.append(self.attempt.metrics_path, lines)
        if self._start.keeps_time:
            return
        step, spent = lines[-1]["step"], self._spent_at_last  # ignore lines after the last step
        line: Json = {"step": step, "wall_s": spent.wall_s, "device_s": spent.device_s}
        if self.spec.info.steps:
            line["progress"] = min(1.0, step / self.spec.info.steps)
        line["steps_per_s"] = (step - self.resume_step) / max(spent.wall_s - self._spent_before.wall_s, 1e-9)
        with contextlib.suppress(StorageError):  # a full disk costs the line, not the run
            self.attempt.append(self.attempt.timings_path, [line])

    @property
    def _spent(self) -> TimeSpent:
        wall_s, devices = time.monotonic() - self._began_s, 1 + len(self.work.slot.others)
        return TimeSpent(self._spent_before.wall_s + wall_s, self._spent_before.device_s + devices * wall_s)

    def conclude(self, program: Program, ended: Ended) -> None:
        """Record its result, its failure, or why it must resume.

        Raises:
            EttsweepError: it has failed.
            LostProcessError: it was killed from outside.
        """
        whole = ended.code == 0
        self._read(final=whole)  # else its last line may be incomplete
        while self._metrics.is_behind and not self.stop and self._diverged_step is None:
            self._read(final=whole)
        for note in self._metrics.notes():
            self.log(f"warning: {note}")
        if self._told_s is not None:
            self._end |= {"stop_s": time.monotonic() - self._told_s, "was_killed": "was_killed" in self._end}
        output = list(self._read_end())
        self._end["first_step"] = self._first_step
        if self.command:
            self._end |= {"code": ended.code, "memory_bytes": program.memory_bytes}
            score_note = self._metrics.replaced.get(self.command.score.name, "")
            self._end |= {"left": list(program.left), "score_note": score_note}
        self.attempt.record("ended", self._end)
        self._shorten_output()
        self.flush()
        if self.command is not None:
            self._history = put_in_order(self._history, score=self.command.score.name)
            self._written = len(self._history)
        # An attempt that finished the run has removed the metrics of this one.
        if self._told_s is None and self._is_superseded():
            return
        if (self._diverged_step is not None or self._is_whole(ended, output)) and not self._is_superseded():
            self._write_result(ended)

    def _is_superseded(self) -> bool:
        if not self.attempt.is_superseded():
            return False
        self.log("another attempt has taken over the run")
        self.stopped = StopReason.SUPERSEDED
        return True

    def _write_result(self, ended: Ended) -> None:
        spec, attempt = self.spec, self.attempt
        diverged = self._diverged_step is not None
        if not diverged and (early := early_end(spec.info, self._history)):
            raise InputError(early)
        step = self._history[-1]["step"] if self._history else 0
        result = make_result(spec, self._history, step, attempt, self._spent, diverged=diverged)
        claim = attempt.claim()
        packages = {"packages": self._start.packages} if self._start.packages else {}
        result |= attempt.facts() or {
            "environment": {name: claim[name] for name in self.work.device_facts if name in claim}
            | attempt.code()
            | packages,
            "execution": attempt.execution(),
            "start_s": ended.start_s,
        }
        finished = self.run.finish(result, self._history)
        ending = f"diverged at step {step}" if diverged else "finished"
        self.log(ending if finished else "another attempt finished first")

    def _is_whole(self, ended: Ended, output: Sequence[str]) -> bool:
        """Return whether it is complete; record a stop, or a request to resume, and return False; else raise."""
        code, score = ended.code, self.spec.info.metric.column
        # Many programs save at a signal and exit with 0.
        is_whole = code == 0 and self._has_score_at_end()
        looks_early = bool(early_end(self.spec.info, self._history))
        is_stopped = self._told_s is not None or (code == 0 and self._is_signalled(waits=looks_early or ended.told))
        if not is_whole and is_stopped:
            return self._note_stop()
        # Only a signal ends a Transformer early; torchrun does not report it.
        if not is_whole and (ended.told or (code == 0 and self.spec.trainable == BUILT_IN)):
            raise LostProcessError("killed by a SIGTERM that its worker did not send")
        if code == 0:
            if self.command is not None and not any(score in line for line in self._history):
                raise InputError(self._metrics.seen(score) + self._own_lines_hint(score))
            return True
        if code == NO_DEVICE and self.command is None:
            self.device_error = ended.reason
            raise LostProcessError(ended.reason)
        if code == ASKS_TO_GO_ON:
            if not self._is_further():
                raise LostProcessError(f"exit code {code} asks to be resumed, but the run made no progress")
            reason = f"asked to be resumed (exit code {code})"
            self.log(f"stopped: {reason}")
            self.attempt.record_failure("interrupted", reason)
            return False
        below = signal_below(output)
        killed_by = _signal_of(code) or below
        was_killed = killed_by == "SIGKILL" or bool(below)
        # Others may share the limit, and the kill may be theirs.
        if out_of_memory_kills() > self._kills_before and (
            was_killed or any(_SAYS_KILLED.search(line) for line in output[-TAIL_LINES:])
        ):
            advice = self.work.profile.memory_advice(self.run.id, self.work.workers)
            raise CommandFailedError(f"out of memory, killed by the system (exit code {code}); {advice}", code)
        if killed_by:
            if self._is_signalled() or self.stop:
                return self._note_stop()
            raise LostProcessError(f"killed by {killed_by}{' (out of memory?)' if killed_by == 'SIGKILL' else ''}")
        if self.stop:  # the signal came while the program ended: SLURM signals both
            return self._note_stop()
        if self.spec.trainable == BUILT_IN and not ended.reason:
            # Processes that lost another one report it.
            others = [line for line in output if not line.startswith(LOST)]
            if len(others) < len(output) and last_words(others) == NOTHING:
                raise LostProcessError(next(line for line in output if line.startswith(LOST)))
            output = others
        raise self._failure(ended, output)

    def _has_score_at_end(self) -> bool:
        """Whether the last step, if known, has a score: steps may count from 0."""
        last, score, history = self.spec.info.steps, self.spec.info.metric.column, self._history
        begins = min((line["step"] for line in history), default=1)
        return last is not None and any(score in line and line["step"] >= last - (begins == 0) for line in history)

    def _is_signalled(self, *, waits: bool = True) -> bool:
        """Whether this worker gets a signal too, maybe an instant after the program ended."""
        until_s = time.monotonic() + SIGNAL_WAIT_S * waits * (1 if "SLURM_JOB_ID" in os.environ else 0.1)
        while (reason := self.stop) not in SIGNALLED and time.monotonic() < until_s:
            time.sleep(0.05)
        return reason in SIGNALLED

    def _own_lines_hint(self, score: str) -> str:
        """Return advice if the program has written the score for ettsweep, and a reader has not found it."""
        if self.command is None or self.command.reader is None:
            return ""
        with contextlib.suppress(EttsweepError):  # invalid steps
            if OwnMetrics(self.attempt.path, self._output, (score,)).rows(final=True):
                return f"; the program writes {score} for ettsweep: leave out `reader`"
        return ""

    def _is_further(self) -> bool:
        """Whether this attempt has recorded a later step, or saved a later checkpoint, than all before."""
        lines = (line for attempt in self.earlier_attempts() for line in attempt.history(every_step=False))
        before = max((line["step"] for line in lines), default=-1)
        if any(line["step"] > before for line in self._history):
            return True
        resume = self.command.resume if self.command else None
        newest = newest_checkpoint(self.out, resume.pattern) if resume and resume.checkpoint else None
        return newest is not None and newest != self._checkpoint

    def _note_stop(self) -> bool:
        """Record the early stop, and return False: it is incomplete."""
        advice, goes_on = "", self.command is None or self.command.resume or self.attempt.saved_steps()
        if self.stop is StopReason.OUT_OF_TIME and not goes_on and (more := self.work.profile.time_advice(self.run.id)):
            advice = f"without `resume` it starts over: {more} gives it more time"
        step = self._history[-1]["step"] if self._history else 0
        self.log(f"stopped at step {step}: {self.stop}")
        self.attempt.record_failure("interrupted", "; ".join(filter(None, [self.stop, advice])))
        self.stopped = self.stop
        return False

    def _failure(self, ended: Ended, output: Sequence[str]) -> EttsweepError:
        said = ended.reason or last_words(output)
        code = None if ended.reason else ended.code
        if any(_OUT_OF_MEMORY.search(line) for line in (*output[-TAIL_LINES:], said)):
            advice = gpu_memory_advice(self.run.id, self.work.slot)
            what = f": {ended.reason}" if ended.reason else f" (exit code {code})"
            return CommandFailedError(f"out of GPU memory{what}; {advice}", code)
        by = f", {name}" if (name := _signal_of(code, _OWN_SIGNALS)) else ""
        reason = ended.reason or f"exit code {code}{by}: {said[:200]}"
        # The trainer has an exit code for a damaged checkpoint.
        is_damaged = ended.code == CORRUPT or any(_CORRUPT_BELOW.search(line) for line in output)
        blames_checkpoint = is_damaged or self.spec.trainable != BUILT_IN
        if self._checkpoint is not None and self._first_step is None and blames_checkpoint:
            return self._failure_from(self._checkpoint, reason, code)
        folder = self._start.command.folder
        missing = missing_in_copy(folder, "\n".join((*output[-TAIL_LINES:], said)))
        return CommandFailedError("; ".join(filter(None, [reason, missing])), code)

    def _failure_from(self, checkpoint: Checkpoint, reason: str, code: int | None) -> EttsweepError:
        """Return the failure of an attempt that got no further than its checkpoint, which may be incomplete."""
        name = self._name_of(checkpoint.path)
        reason = f"{reason}; it had just resumed from checkpoint {name}"
        if self._has_older:
            self.attempt.record("ended", self._end | {FAILED_FROM: name})
            return LostProcessError(f"{reason}; next, it resumes from the one before")
        return CommandFailedError(
            f"{reason}: if that is incomplete, remove it, then `ettsweep retry {self.run.id}`", code
        )

    def _name_of(self, checkpoint: Path) -> str:
        path, out = checkpoint.resolve(), self.out
        return path.relative_to(out if path.is_relative_to(out) else self.run.path.resolve()).as_posix()

    def _check_output(self, program: Program) -> None:
        """Raise if it prints too much, or nothing for too long."""
        size = self._output.stat().st_size if self._output.exists() else 0
        if size > MAX_OUTPUT_BYTES:
            raise InputError(f"it printed more than {MAX_OUTPUT_BYTES >> 30} GiB, which would fill the disk")
        limit_s = self._start.silent_s
        if limit_s is None:
            return
        if size != self._output_size:
            self._output_size, self._active_s = size, time.monotonic()
        if time.monotonic() - self._active_s > limit_s:
            raise InputError(f"silent: no output and no metric for {limit_s:g} s")

    def _shorten_output(self) -> None:
        """Leave out the middle of a long output."""
        with contextlib.suppress(OSError, StorageError), self._output.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= HEAD_BYTES + END_BYTES:
                return
            head = file.read(HEAD_BYTES)
            file.seek(size - END_BYTES)
            end = file.read()
            note = f"\n[{(size - HEAD_BYTES - END_BYTES) / 2**20:.0f} MiB left out here]\n"
            write_atomic(self._output, head + note.encode() + end)

    def _read_end(self) -> Iterator[str]:
        with contextlib.suppress(OSError), self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - TAIL_BYTES))
            yield from as_on_screen(file.read().decode(errors="replace")).splitlines()

    def log(self, text: str) -> None:
        """Add a line to the run's log; a full disk costs the line, not the run."""
        with contextlib.suppress(OSError):
            self.attempt.log(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {escape_control(text)}\n")

    @contextlib.contextmanager
    def recording_failure(self, program: Program | None = None) -> Iterator[None]:
        """Record an error of the body in the run's folder, and end the run; other runs continue.

        Args:
            program: to kill first.

        Raises:
            StorageError: the failure could not be recorded.
        """
        try:
            yield
            return
        except LostProcessError as error:
            kind: Literal["error", "lost"] = "lost"
            reason, details, code = str(error), "", None
        except Exception as error:
            ours = isinstance(error, EttsweepError)
            kind, reason = "error", str(error) if ours else error_line(error)
            details, code = "" if ours else traceback.format_exc(), getattr(error, "code", None)
        self.is_over = True
        if program is not None and self.run.id not in program.ended:
            program.kill()  # it may record events too
        with contextlib.suppress(StorageError):
            self.flush()
        self.log(f"{'lost' if kind == 'lost' else 'failed'}: {details or reason}")
        self.attempt.record_failure(kind, reason, details, code)


def train_together(
    claimed: Sequence[tuple[RunDir, Attempt]], work: WorkList, programs: Programs
) -> list[StopReason | None]:
    """Let one program train claimed runs until each has ended; return why each stopped early.

    Raises:
        StorageError: the failure of a run could not be recorded.
    """
    opened = [_opened(run, attempt, work) for run, attempt in claimed]
    starts = dict[Training, Start]()
    for training in filter(None, opened):
        with training.recording_failure():
            starts[training] = training.prepare()
    if starts:
        _train(starts, programs)
    return [training.stopped if training else None for training in opened]


def _train(starts: Mapping[Training, Start], programs: Programs) -> None:
    active = list(starts)
    program: Program | None = None
    with active[0].recording_failure():  # of several, all start in the same way
        program = programs.start(starts[active[0]].command, [start.variables for start in starts.values()])
    if program is None:
        for training in active[1:]:
            training.attempt.record_failure("interrupted", "cannot start its program")
        return
    try:
        _watch(program, active)
    finally:
        if any(not training.is_over for training in active):
            program.kill()
        # A signal to stop may reach it late.
        program.leave() if any(training.stop for training in active) else programs.put_back(program)
    if error := next((training.device_error for training in active if training.device_error), ""):
        raise LaunchError(error)  # as it would for all other runs of this worker


def _opened(run: RunDir, attempt: Attempt, work: WorkList) -> Training | None:
    """Return the attempt at a run, or record why it cannot train."""
    run = RunDir(run.path.absolute())
    attempt = run.attempt(attempt.number)
    try:
        return Training(run, placed(run.path.parent.parent, run.spec()), attempt, work)
    except EttsweepError as error:
        attempt.record_failure("error", str(error))
        return None


def _watch(program: Program, trainings: Sequence[Training]) -> None:
    """Keep metrics of runs until each has ended."""
    began_s, wait_s = time.monotonic(), MIN_POLL_S
    while active := [training for training in trainings if not training.is_over]:
        program.wait(wait_s)
        # A share of the time so far: see the first step early, to time start-up and steps.
        wait_s = min(max(MIN_POLL_S, POLL_SHARE * (time.monotonic() - began_s)), POLL_S)
        for training in active:
            with training.recording_failure(program):
                if (ended := program.ended.get(training.run.id)) is None:
                    training.look(program, alone=len(trainings) == 1)
                else:
                    training.conclude(program, ended)
                    training.is_over = True


def _values_of(row: Json) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if name != "step"}


def _signal_of(code: int | None, signals: Collection[signal.Signals] = _SENT_SIGNALS) -> str:
    """Return the name of the signal of an exit code, also in the shell's form; empty for all others."""
    number = -code if code is not None and code < 0 else (code or 0) - 128
    if code is None:
        return "a signal, with its supervisor"
    return signal.Signals(number).name if number in signals else ""


def _moved_path(attempt: Attempt) -> Path:
    """Return the folder for files of the run's folder before an attempt that starts over."""
    return attempt.path.parent / f"{attempt.number - 1:04d}.out"
