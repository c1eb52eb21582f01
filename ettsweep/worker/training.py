"""One attempt at a run, as its worker sees it: resumed, its metrics kept, stopped, and how it ended."""

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
"""Seconds, or recorded lines, after which metrics are written, so that progress is visible."""

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
"""Entry of the event `ended`: the checkpoint of an attempt that got no further, if there is an older one."""

_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|HIP out of memory")
_CORRUPT_BELOW = re.compile(rf"exitcode\s*: {CORRUPT}\b")
_SAYS_KILLED = re.compile(r"\bkilled\b", re.IGNORECASE)
"""What a program says one of whose processes was killed, such as a worker that loads its data."""


_SENT_SIGNALS = (*(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), signal.SIGUSR1, signal.SIGUSR2)
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
"""Signals that others send, and those that a program brings upon itself, which are a failure of its own."""


class Training:
    """One attempt at a run.

    Attributes:
        run, spec, attempt: what is trained; a recipe of own code has its folder in the copy that it trains in.
        work: of the worker.
        command: the recipe, if the user's own words are started: they leave metrics and checkpoints where they like.
        out: folder of the run for files of its own.
        resume_step: step after which it goes on; 0 from the beginning.
        is_over: whether it has ended, and its result, its failure, or why it was interrupted is on disk.
        stopped: why it was stopped early.
        device_error: why its program could not train anything here.
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
        """Find where to go on, and return what is started.

        Raises:
            InputError: its code or data have changed, or what is to be started is not there.
        """
        run, attempt = self.run, self.attempt
        self.log(f"run {run.id} attempt {attempt.number} on {self.work.slot.device}, pid {os.getpid()}")
        self.out.mkdir(exist_ok=True)
        if attempt.number > 1 and (left := kill_processes_of(str(self.out))):
            self.log(f"killed {len(left)} processes that an earlier attempt had left")
        history = self._go_on_from_state()
        if history is None and self.command is not None:
            self._checkpoint = self._find_own_checkpoint()
        elif history is None and attempt.number > 1:
            self.log("no usable checkpoint: starts at step 0")
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
        """Resume from the newest state that `Run.save` has left whole; return the digest of the metrics up to it."""
        failed = self._failed_from()
        for attempt in self.earlier_attempts():
            for step in attempt.saved_steps():
                path = attempt.state_path(step)
                name = self._name_of(path)
                if name == failed:
                    self.log(f"checkpoint {name} is not used: the attempt that resumed from it failed at once")
                    continue
                try:
                    digest = attempt.digest_at(step, recorded=self.command is not None)
                except CorruptError as error:
                    self.log(f"warning: {error}; not used")
                    continue
                # Where there is no older one, it can begin anew.
                self._checkpoint, self._has_older, self._knows_step = Checkpoint(path, step), failed is None, True
                self._go_on(step, attempt)
                return digest
        return None

    def _continue_from(self, parent: Attempt, step: int) -> None:
        """Keep the metrics of an earlier attempt up to a step, from which this one goes on."""
        inherited = parent.history(until=step, every_step=False)
        self._history = [*inherited, *self._history[self._written :]]
        self._written, self.resume_step = len(inherited), step
        for line in inherited:
            self._divergence.shows(line)
        self._spent_before = parent.time_spent(step)
        self.attempt.record_resume(parent.number, step)
        self.log(f"resumed from attempt {parent.number} at step {step}")

    def _failed_from(self) -> str | None:
        """Return the checkpoint from which the attempt before failed at once, unless that was retried."""
        before = next(iter(self.earlier_attempts()), None)
        return before.end().get(FAILED_FROM) if before and not before.is_retried() else None

    def earlier_attempts(self) -> list[Attempt]:
        """Return the attempts before this one, the latest first."""
        numbers = (number for number in self.run.attempt_numbers() if number < self.attempt.number)
        return [self.run.attempt(number) for number in sorted(numbers, reverse=True)]

    def _metrics_of(self, attempt: Attempt) -> Metrics:
        """Return where metrics of an attempt are read from."""
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
        """Return the checkpoint to go on from, after moving away what an attempt left that is not gone on from."""
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
        """Return the newest checkpoint that is whole, and from which the attempt before did not fail at once."""
        failed, found = self._failed_from(), None
        for checkpoint, problem in checkpoints(self.out, pattern):
            name = self._name_of(checkpoint.path)
            if name == failed:
                problem = f"attempt {self.attempt.number - 1} failed right after it had resumed from it"
            if problem:
                self.log(f"checkpoint {name} is not used: {problem}")
            elif found is None:
                found = checkpoint
            else:
                self._has_older = failed is None
                break
        return found

    def _go_on(self, step: int, parent: Attempt | None) -> None:
        """Keep the metrics of an earlier attempt up to a step, also those that its worker did not live to record."""
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
        """Go on by the first step that a program records which finds its own checkpoint, unless it has begun anew."""
        self._knows_step = True
        if not (self.command and self.command.resume) or (parent := self._parent()) is None:
            return
        before = [line["step"] for line in (*parent.history(every_step=False), *self._left_by(parent))]
        if step > min(before, default=step):
            self._go_on(step - 1, parent)

    def _parent(self) -> Attempt | None:
        """Return the newest attempt that has metrics of the same files as this one; None if there is none."""
        for attempt in self.earlier_attempts():
            if attempt.parent() or attempt.metrics_path.exists() or self._left_by(attempt):
                return attempt
            if _moved_path(attempt).exists():  # it began with an empty folder
                return None
        return None

    def _left_by(self, attempt: Attempt) -> Sequence[Json]:
        """Return all metrics that an earlier attempt left, in its own files and in those of the run."""
        try:
            return self._metrics_of(attempt).rows()
        except EttsweepError as error:
            self.log(f"warning: attempt {attempt.number}: {error}")
            return []

    def _move_away(self) -> None:
        """Move what an earlier attempt left out of the way: many programs misread what lies there."""
        if any(self.out.iterdir()):
            target = _moved_path(self.attempt)
            with storage_errors(target):
                self.out.rename(target)
                self.out.mkdir()
            resume = self.command.resume if self.command else None
            why = f"nothing in out is a whole checkpoint by {resume.pattern!r}: it " if resume else ""
            self.log(f"{why}starts again from the beginning; what lay in out is now in attempts/{target.name}")

    # --- while it runs ---

    @property
    def stop(self) -> StopReason | None:
        """Why it is to stop, once it is."""
        if self._stop is None:
            self._stop = self._poll()
        return self._stop

    def look(self, program: Program, *, alone: bool) -> None:
        """Keep what it has recorded; tell it to stop if it is to, and kill it if it does not.

        Args:
            program: what trains it.
            alone: whether that trains no other run at the same time, which a signal would reach too.

        Raises:
            EttsweepError: its metrics cannot be read, or it prints without end, or nothing for too long.
        """
        self._read()
        if self._told_s is not None:
            self._press(program, alone=alone)
        elif self._diverged_step is not None:
            self._told_s = time.monotonic()
            if self.command is not None:  # all others end such a run by themselves
                program.kill()
        elif self.stop:
            self._tell(program, alone=alone)
        else:
            self._check_output(program)

    def _tell(self, program: Program, *, alone: bool) -> None:
        """Tell it to leave."""
        self.log(f"is told to stop: {self.stop}")
        self._told_s = time.monotonic()
        if self.stop is StopReason.SUPERSEDED and alone:  # another attempt owns the run, and its folder
            program.kill()
            return
        with contextlib.suppress(OSError):
            self.attempt.stop_path.touch()
        if self._start.signals_at_once and (alone or self.stop in SIGNALLED):
            self._signal(program)

    def _signal(self, program: Program) -> None:
        self._signalled_s = time.monotonic()
        program.signal(signal.Signals[f"SIG{self._start.signal}"])
        program.signal(signal.SIGCONT)  # one that is stopped would hear of nothing

    def _press(self, program: Program, *, alone: bool) -> None:
        """Signal one that has not left by itself, and kill it after its grace."""
        assert self._told_s is not None
        if not (alone or self.stop in SIGNALLED):  # it may wait for its turn, and others train
            return
        if time.monotonic() - max(self._told_s, self._signalled_s) < self._start.grace_s:
            return
        if not self._signalled_s and not self._start.signals_at_once:
            self._signal(program)
            return
        self.log(f"has not left after {self._start.grace_s:g} s, and is killed")
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
            self.log(f"warning: more than {MAX_NAMES} names of metrics: {name} is left out; see `metrics`")
        return False

    # --- its end ---

    def flush_if_due(self) -> None:
        """Write what was recorded if it is much, some time has passed, or it is the first: others may wait for it."""
        is_due = len(self._history) - self._written >= FLUSH_LINES or time.monotonic() - self._flushed_s >= FLUSH_S
        if is_due or not self._written:
            self.flush()

    def flush(self) -> None:
        """Write what was recorded since the last time, and how far the run is."""
        lines, self._written = self._history[self._written :], len(self._history)
        self._flushed_s = time.monotonic()
        if not lines:
            return
        if self.command is not None:  # all others record there
            self.attempt.append(self.attempt.metrics_path, lines)
        if self._start.keeps_time:
            return
        step, spent = lines[-1]["step"], self._spent_at_last  # what follows the last step is none of it
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
        """Write how it has ended: its result, its failure, or why it is to go on.

        Raises:
            EttsweepError: it has failed.
            LostProcessError: something else has killed it.
        """
        whole = ended.code == 0
        self._read(final=whole)  # else its last line may be half of one
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
        # One that has finished the run since has removed the metrics of this one.
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
        """Return whether it is whole; not if it was stopped, or asks to go on, which is recorded then. Else raise."""
        code, score = ended.code, self.spec.info.metric.column
        # Many programs exit with 0 at a signal, once they have saved.
        is_whole = code == 0 and self._has_score_at_end()
        looks_early = bool(early_end(self.spec.info, self._history))
        is_stopped = self._told_s is not None or (code == 0 and self._is_signalled(waits=looks_early or ended.told))
        if not is_whole and is_stopped:
            return self._note_stop()
        # A Transformer never leaves before its end otherwise; below torchrun, nobody tells of it.
        if not is_whole and (ended.told or (code == 0 and self.spec.trainable == BUILT_IN)):
            raise LostProcessError("killed by SIGTERM, which its worker has not sent")
        if code == 0:
            if self.command is not None and not any(score in line for line in self._history):
                raise InputError(self._metrics.seen(score) + self._own_lines_hint(score))
            return True
        if code == NO_DEVICE and self.command is None:
            self.device_error = ended.reason
            raise LostProcessError(ended.reason)
        if code == ASKS_TO_GO_ON:
            if not self._is_further():
                raise LostProcessError(f"exit code {code} asks to be taken up again, and it is no further than before")
            reason = f"asked to be taken up again (exit code {code})"
            self.log(f"stopped: {reason}")
            self.attempt.record_failure("interrupted", reason)
            return False
        below = signal_below(output)
        killed_by = _signal_of(code) or below
        was_killed = killed_by == "SIGKILL" or bool(below)
        # Others may share the limit: what was killed may be one of theirs.
        if out_of_memory_kills() > self._kills_before and (
            was_killed or any(_SAYS_KILLED.search(line) for line in output[-TAIL_LINES:])
        ):
            advice = self.work.profile.memory_advice(self.run.id, self.work.workers)
            raise CommandFailedError(f"out of memory, killed by the system (exit code {code}); {advice}", code)
        if killed_by:
            if self._is_signalled() or self.stop:
                return self._note_stop()
            raise LostProcessError(f"killed by {killed_by}{' (out of memory?)' if killed_by == 'SIGKILL' else ''}")
        if self.stop:  # it came while the program ended: SLURM signals both
            return self._note_stop()
        if self.spec.trainable == BUILT_IN and not ended.reason:
            # Processes of a run that have lost another one say so, whatever has become of that.
            others = [line for line in output if not line.startswith(LOST)]
            if len(others) < len(output) and last_words(others) == NOTHING:
                raise LostProcessError(next(line for line in output if line.startswith(LOST)))
            output = others
        raise self._failure(ended, output)

    def _has_score_at_end(self) -> bool:
        """Whether the score of the last step is there, if it is known which that is: steps may count from 0."""
        last, score, history = self.spec.info.steps, self.spec.info.metric.column, self._history
        begins = min((line["step"] for line in history), default=1)
        return last is not None and any(score in line and line["step"] >= last - (begins == 0) for line in history)

    def _is_signalled(self, *, waits: bool = True) -> bool:
        """Whether this worker is signalled too, maybe an instant after a program that has ended."""
        until_s = time.monotonic() + SIGNAL_WAIT_S * waits * (1 if "SLURM_JOB_ID" in os.environ else 0.1)
        while (reason := self.stop) not in SIGNALLED and time.monotonic() < until_s:
            time.sleep(0.05)
        return reason in SIGNALLED

    def _own_lines_hint(self, score: str) -> str:
        """Return what to do if the program has written the score for ettsweep, and a reader has not found it."""
        if self.command is None or self.command.reader is None:
            return ""
        with contextlib.suppress(EttsweepError):  # steps that are none
            if OwnMetrics(self.attempt.path, self._output, (score,)).rows(final=True):
                return f"; it writes {score} for ettsweep itself: leave out `reader`"
        return ""

    def _is_further(self) -> bool:
        """Whether this attempt has recorded a later step than all before, or has left a later checkpoint."""
        lines = (line for attempt in self.earlier_attempts() for line in attempt.history(every_step=False))
        before = max((line["step"] for line in lines), default=-1)
        if any(line["step"] > before for line in self._history):
            return True
        resume = self.command.resume if self.command else None
        newest = newest_checkpoint(self.out, resume.pattern) if resume and resume.checkpoint else None
        return newest is not None and newest != self._checkpoint

    def _note_stop(self) -> bool:
        """Record that it was stopped early, and return False: it is not whole."""
        advice, goes_on = "", self.command is None or self.command.resume or self.attempt.saved_steps()
        if self.stop is StopReason.OUT_OF_TIME and not goes_on and (more := self.work.profile.time_advice(self.run.id)):
            advice = f"without `resume` it starts again from the beginning: {more} lets it end"
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
        # The trainer tells a checkpoint that is damaged from all else.
        is_damaged = ended.code == CORRUPT or any(_CORRUPT_BELOW.search(line) for line in output)
        blames_checkpoint = is_damaged or self.spec.trainable != BUILT_IN
        if self._checkpoint is not None and self._first_step is None and blames_checkpoint:
            return self._failure_from(self._checkpoint, reason, code)
        folder = self._start.command.folder
        missing = missing_in_copy(folder, "\n".join((*output[-TAIL_LINES:], said)))
        return CommandFailedError("; ".join(filter(None, [reason, missing])), code)

    def _failure_from(self, checkpoint: Checkpoint, reason: str, code: int | None) -> EttsweepError:
        """Return the failure of an attempt that got no further than its checkpoint, which may not be whole."""
        name = self._name_of(checkpoint.path)
        reason = f"{reason}; it had just resumed from checkpoint {name}"
        if self._has_older:
            self.attempt.record("ended", self._end | {FAILED_FROM: name})
            return LostProcessError(f"{reason}, and goes back to the one before")
        return CommandFailedError(
            f"{reason}: if that is not whole, remove it, then `ettsweep retry {self.run.id}`", code
        )

    def _name_of(self, checkpoint: Path) -> str:
        path, out = checkpoint.resolve(), self.out
        return path.relative_to(out if path.is_relative_to(out) else self.run.path.resolve()).as_posix()

    def _check_output(self, program: Program) -> None:
        """Raise if it prints without end, or has said nothing for too long."""
        size = self._output.stat().st_size if self._output.exists() else 0
        if size > MAX_OUTPUT_BYTES:
            raise InputError(f"it has printed more than {MAX_OUTPUT_BYTES >> 30} GiB, which would fill the disk")
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
            note = f"\n[{(size - HEAD_BYTES - END_BYTES) / 2**20:.0f} MiB are left out here]\n"
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
        """Record an error of the body in the run's folder, so that other runs go on, and end the run.

        Args:
            program: what trains it, and is killed before.

        Raises:
            StorageError: not even the failure could be recorded.
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
            program.kill()  # whatever it does is lost, and it may record events too
        with contextlib.suppress(StorageError):
            self.flush()
        self.log(f"{'lost' if kind == 'lost' else 'failed'}: {details or reason}")
        self.attempt.record_failure(kind, reason, details, code)


def train_together(
    claimed: Sequence[tuple[RunDir, Attempt]], work: WorkList, programs: Programs
) -> list[StopReason | None]:
    """Have one program train claimed runs, until each has ended; return why each was stopped early.

    Raises:
        StorageError: not even the failure of a run could be recorded.
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
            training.attempt.record_failure("interrupted", "its program could not be started")
        return
    try:
        _watch(program, active)
    finally:
        if any(not training.is_over for training in active):
            program.kill()
        # A signal to one that was told to stop may reach it late.
        program.leave() if any(training.stop for training in active) else programs.put_back(program)
    if error := next((training.device_error for training in active if training.device_error), ""):
        raise LaunchError(error)  # as it would for all other runs of this worker


def _opened(run: RunDir, attempt: Attempt, work: WorkList) -> Training | None:
    """Return the attempt at a run that can be trained; else its failure is recorded."""
    run = RunDir(run.path.absolute())
    attempt = run.attempt(attempt.number)
    try:
        return Training(run, placed(run.path.parent.parent, run.spec()), attempt, work)
    except EttsweepError as error:
        attempt.record_failure("error", str(error))
        return None


def _watch(program: Program, trainings: Sequence[Training]) -> None:
    """Keep what runs record until each has ended."""
    began_s, wait_s = time.monotonic(), MIN_POLL_S
    while active := [training for training in trainings if not training.is_over]:
        program.wait(wait_s)
        # A share of the time so far: the first step is seen soon after it, so that start-up and steps tell apart.
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
    """Return the name of the signal that an exit code tells of, as the shell has it too; empty for none of these."""
    number = -code if code is not None and code < 0 else (code or 0) - 128
    if code is None:
        return "something that took its supervisor too"
    return signal.Signals(number).name if number in signals else ""


def _moved_path(attempt: Attempt) -> Path:
    """Return where what lay in the run's folder was moved before an attempt that starts from the beginning."""
    return attempt.path.parent / f"{attempt.number - 1:04d}.out"
