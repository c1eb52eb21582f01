"""An attempt of one process at a run. Only its owner writes into its folder, so a superseded owner does no harm."""

import contextlib
import hashlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from ettsweep.console import as_on_screen
from ettsweep.errors import CorruptError
from ettsweep.files import (
    Json,
    PathBelow,
    append_text,
    dumps,
    first_json_line,
    json_or_empty,
    last_json_line,
    number,
    read_counter,
    read_file,
    read_lines,
    storage_errors,
    write_atomic,
    write_counter,
)
from ettsweep.processes import Life, Process
from ettsweep.runs.events import Event, append_event, read_events

NOTHING_LOGGED = "(it logged nothing)\n"


class TimeSpent(NamedTuple):
    """Training time of a run.

    Attributes:
        wall_s: seconds by the clock.
        device_s: device seconds: more than `wall_s` on several devices, fewer where runs share one.
    """

    wall_s: float
    device_s: float


NO_TIME = TimeSpent(0.0, 0.0)


class AttemptProgress(NamedTuple):
    """Progress of a run, and an estimate of the remaining time, None before there is a rate.

    Attributes:
        progress: fraction of the steps done, 0 to 1.
        remaining_s: wall-clock seconds until the run is finished.
        remaining_slot_s: the run's share of these seconds, less if its worker trains several runs at once.
    """

    progress: float
    remaining_s: float | None = None
    remaining_slot_s: float | None = None


def device_share(first: Json, last: Json) -> float:
    """Return the share of its worker's time that a run had between two lines of timings.jsonl; 1 if alone."""
    wall_s, device_s = (
        (number(last.get(name)) or 0.0) - (number(first.get(name)) or 0.0) for name in ("wall_s", "device_s")
    )
    return device_s / wall_s if 0 < device_s < wall_s else 1.0  # on several devices device_s exceeds wall_s


class Attempt:
    """An attempt at a run, numbered from 1, in its own folder; `runs/folder.py` lists its files."""

    claim_path = PathBelow("claim.json")
    recorded_path = PathBelow("recorded.jsonl")
    stop_path = PathBelow("stop")
    heartbeat_path = PathBelow("heartbeat")
    events_path = PathBelow("events.jsonl")
    metrics_path = PathBelow("metrics.jsonl")
    timings_path = PathBelow("timings.jsonl")
    log_path = PathBelow("log.txt")
    output_path = PathBelow("output.txt")
    states_path = PathBelow("states")

    def __init__(self, run: Path, number: int) -> None:
        self.run = run
        self.number = number
        self.path = run / "attempts" / f"{number:04d}"
        self.retried_path = run / "attempts" / f"{number:04d}.retried"
        self.lost_path = run / "attempts" / f"{number:04d}.lost"

    # --- owner --------------------------------------------------------------------------------------------------------

    def claim(self) -> Json:
        """Return claim.json, which names the owner of the attempt; empty if it cannot be read."""
        return json_or_empty(self.claim_path)

    def owner(self) -> Process | None:
        """Return the process that owns the attempt; None if its claim cannot be read."""
        return Process.from_json(self.claim().get("process"))

    def host(self) -> str:
        """Return the host name of the owner, for people."""
        owner = self.owner()
        return owner.host if owner else "an unreadable claim"

    def liveness(self) -> Life:
        """Return whether the owner's process is alive; `unknown` if this machine cannot tell."""
        if owner := self.owner():
            return owner.liveness()
        # The folder appears with its claim inside. No claim means a stale view of a network file system, not a dead
        # owner; an unreadable claim is damaged.
        return "dead" if self.claim_path.exists() else "unknown"

    def job(self) -> Json:
        """Return the scheduler's job that made the claim (id, cluster, restart count); empty outside a job."""
        job = self.claim().get("job")
        return job if isinstance(job, dict) else {}

    def job_id(self) -> str:
        """Return the scheduler's id of the job that made the claim; empty outside a job."""
        return str(self.job().get("id", ""))

    def was_requeued(self) -> bool:
        """`True` if the scheduler requeued the job: the next attempt has the same job id and another restart count.

        Then the scheduler ended this attempt, not the run.
        """
        job, next_job = self.job(), self.next_attempt().job()
        same_id = (job.get("cluster"), job.get("id")) == (next_job.get("cluster"), next_job.get("id"))
        return bool(job) and same_id and job.get("restart") != next_job.get("restart")

    def next_attempt(self) -> "Attempt":
        """Return the attempt with the next number, which need not exist."""
        return Attempt(self.run, self.number + 1)

    def is_superseded(self) -> bool:
        """`True` if another process has started a later attempt at the run."""
        return self.next_attempt().path.exists()

    def write_heartbeat(self, count: int) -> None:
        """Write the heartbeat counter."""
        write_counter(self.heartbeat_path, count)

    def heartbeat_interval_s(self) -> float | None:
        """Return the stated interval of heartbeats in seconds; None if there is none."""
        interval_s = number(self.claim().get("heartbeat_s"))
        return interval_s if interval_s and interval_s > 0 else None

    def read_heartbeat(self) -> str:
        """Return the text of the heartbeat counter; empty before the first beat."""
        return read_counter(self.heartbeat_path)

    # --- events -------------------------------------------------------------------------------------------------------

    def record(self, event: Event, content: Json) -> None:
        """Append an event to events.jsonl; `runs/folder.py` lists them."""
        append_event(self.events_path, event, content, synced=event in ("resumed", "stopped", "failed"))

    def _last(self, event: Event) -> Json:
        """Return the last event of a name; empty if there is none."""
        events = read_events(self.events_path, event)
        return events[-1] if events else {}

    def provenance(self) -> Json:
        """Return the code version that the owner runs, see `provenance.provenance`; empty if it is unknown."""
        data = self._last("started").get("provenance")
        return data if isinstance(data, dict) else {}

    def code(self) -> Json:
        """Return the digest of the owner's code as `code`, for the environment in a result; empty if it is unknown."""
        return {"code": digest} if (digest := self.provenance().get("code")) else {}

    def execution(self) -> Json:
        """Return devices, kernels and other causes of different last bits; empty if unknown."""
        return self._last("execution")

    def command(self) -> Json:
        """Return `command`, the words of the started program, and `packages`; both None without one.

        `packages` are the versions in the environment of that program.
        """
        started = self._last("started")
        words, packages = started.get("command"), started.get("packages")
        if not (isinstance(words, list) and isinstance(packages, dict)):
            return {"command": None, "packages": None}
        return {"command": words, "packages": packages}

    def end(self) -> Json:
        """Return how the program ended; empty if it has not."""
        return self._last("ended")

    def facts(self) -> Json:
        """Return entries of the result that the program recorded; empty for none."""
        return self._last("facts")

    # --- lineage and metrics ------------------------------------------------------------------------------------------

    def record_resume(self, attempt: int, step: int) -> None:
        """Record which checkpoint this attempt resumes from."""
        self.record("resumed", {"attempt": attempt, "step": step})

    def resumed_from(self) -> tuple[int, int]:
        """Return the (attempt, step) that this attempt resumed from; (0, 0) for a fresh start."""
        data = self._last("resumed")
        attempt, step = data.get("attempt"), data.get("step")
        # A parent with a higher number would make `history` recurse for ever.
        if isinstance(attempt, int) and isinstance(step, int) and 0 < attempt < self.number:
            return attempt, step
        return 0, 0

    def parent(self) -> "Attempt | None":
        """Return the attempt that this one resumed from; None for a fresh start."""
        number, _ = self.resumed_from()
        return Attempt(self.run, number) if number else None

    def append(self, path: Path, lines: Iterable[Json]) -> None:
        """Append lines to metrics.jsonl or timings.jsonl in one write."""
        text = "".join(dumps(line) + "\n" for line in lines)
        with storage_errors(path):
            append_text(path, text)

    def metrics_copies(self) -> list[Path]:
        """Return the files with metrics that a finished run replaces by its own."""
        return [path for path in (self.metrics_path, self.recorded_path) if path.exists()]

    def history(self, until: int | None = None, *, every_step: bool = True) -> list[Json]:
        """Return the metrics of this attempt and of those it resumed from, up to and including step `until`.

        Raises:
            CorruptError: steps are missing, because a file was truncated or edited; checked if `every_step` has a loss.
        """
        number, step = self.resumed_from()  # the parent's lines after its checkpoint were trained again here
        parent = Attempt(self.run, number)
        lines = parent.history(step if until is None else min(step, until), every_step=every_step) if number else []
        lines += [line for line in read_lines(self.metrics_path) if until is None or line.get("step", 0) <= until]
        if every_step:
            steps = [line["step"] for line in lines if "loss" in line]
            last = len(steps) if until is None else until
            if steps != list(range(1, last + 1)):
                raise CorruptError(f"{self.metrics_path}: steps are missing before step {last}")
        return lines

    def last_step(self) -> int:
        """Return the last step with metrics so far, or the one that it resumed from; -1 for none."""
        step = (last_json_line(self.metrics_path) or {}).get("step")
        return step if isinstance(step, int) else self.resumed_from()[1] or -1

    def evaluations(self, column: str) -> list[Json]:
        """Return the lines with a metric, of this attempt and of those it resumed from, in order.

        Other lines, perhaps a hundred times as many, are not parsed.
        """
        number, step = self.resumed_from()
        inherited = Attempt(self.run, number).evaluations(column) if number else []
        inherited = [line for line in inherited if line.get("step", 0) <= step]
        return inherited + read_lines(self.metrics_path, holding=f'"{column}"'.encode())

    def time_spent(self, until: int | None = None) -> TimeSpent:
        """Return the training time of this attempt and of those it resumed from, up to step `until` if given.

        Time counts once it is written to timings.jsonl.
        """
        if until is None:
            line = last_json_line(self.timings_path)
        else:
            lines = [line for line in read_lines(self.timings_path) if line.get("step", 0) <= until]
            line = lines[-1] if lines else None
        wall_s = number((line or {}).get("wall_s"))
        if line is None or wall_s is None:
            parent = self.parent()
            return parent.time_spent(until) if parent else NO_TIME
        return TimeSpent(wall_s, number(line.get("device_s")) or 0.0)

    def time_spent_before(self) -> TimeSpent:
        """Return the training time of the attempts that this one resumed from, up to the checkpoint."""
        number, step = self.resumed_from()
        return Attempt(self.run, number).time_spent(step) if number else NO_TIME

    def progress(self) -> float:
        """Return the fraction of the steps done, 0 to 1."""
        return self.estimate_progress().progress

    def estimate_progress(self) -> AttemptProgress:
        """Return the progress of the run and the remaining time at the rate so far.

        The progress is that of the last line, of this attempt or the one it resumed from. The rate counts from the
        first line of this attempt, without imports and compilation.
        """
        for path in (self.timings_path, self.metrics_path):
            first, last = first_json_line(path) or {}, last_json_line(path) or {}
            progress, wall_s = number(last.get("progress")), number(last.get("wall_s"))
            if progress is not None and 0 <= progress <= 1:
                first_progress, first_wall_s = number(first.get("progress")), number(first.get("wall_s"))
                if first_progress is None or first_wall_s is None or wall_s is None or not first_progress < progress:
                    return AttemptProgress(progress)  # a single line so far: no rate
                left_s = (wall_s - first_wall_s) * (1 - progress) / (progress - first_progress)
                if not 0 <= left_s < math.inf:
                    return AttemptProgress(progress)
                return AttemptProgress(progress, left_s, left_s * device_share(first, last))
        parent = self.parent()
        return AttemptProgress(parent.progress() if parent else 0.0)

    def record_skipped_sample(self, rank: int, text: str) -> None:
        """Record an unreadable sample that process `rank` skipped.

        Each rank but the first has its own file, since it may be on another node.
        """
        path = self.path / f"events-{rank}.jsonl" if rank else self.events_path
        append_event(path, "skipped", {"sample": text}, synced=False)

    def skipped_samples(self) -> list[str]:
        """Return the samples skipped by any process of this attempt or of those it resumed from, each once."""
        parent = self.parent()
        samples = dict.fromkeys(parent.skipped_samples() if parent else [])  # a dict: a set with an order
        for path in sorted(self.path.glob("events*.jsonl")):
            samples |= dict.fromkeys(str(event.get("sample")) for event in read_events(path, "skipped"))
        return list(samples)

    # --- checkpoint ---------------------------------------------------------------------------------------------------

    def has_checkpoint(self) -> bool:
        """`True` if the attempt has saved a checkpoint."""
        return bool(self.saved_steps())

    def saved_steps(self) -> list[int]:
        """Return the steps with checkpoints, the latest first."""
        return sorted(self._states(), reverse=True)

    def _states(self) -> dict[int, str]:
        """Return the names of checkpoints, by step: STEP-DIGEST-SIZE, with digest and size of the metrics."""
        try:
            names = os.listdir(self.states_path)
        except OSError:
            return {}
        steps = ((name.partition("-")[0], name) for name in names)
        return {int(step): name for step, name in steps if step.isascii() and step.isdigit()}

    def state_path(self, step: int) -> Path:
        """Return the path of the checkpoint after a step, a file or folder, which may be gone."""
        return self.states_path / self._states().get(step, str(step))

    def digest_at(self, step: int, *, recorded: bool = False) -> str:
        """Return the digest of the metrics up to a saved state, of this attempt and of those that it resumed from.

        Args:
            step: of the saved state.
            recorded: whether they are in recorded.jsonl, not in metrics.jsonl.

        Raises:
            CorruptError: they have changed since it was saved.
        """
        path, (number, resumed_step) = self.recorded_path if recorded else self.metrics_path, self.resumed_from()
        parent = Attempt(self.run, number)
        has_state = number and resumed_step in parent.saved_steps()
        digest = parent.digest_at(resumed_step, recorded=recorded) if has_state else ""
        try:
            _, expected, size = self.state_path(step).name.split("-")
            data = read_file(path)[: int(size)] if int(size) else b""
            if hashlib.sha256(digest.encode() + data).hexdigest() == expected:
                return expected
        except (OSError, ValueError):
            pass
        raise CorruptError(f"{path}: changed since the state after step {step} was saved")

    # --- end ----------------------------------------------------------------------------------------------------------

    def record_failure(
        self,
        kind: Literal["error", "interrupted", "lost"],
        reason: str,
        details: str = "",
        exit_code: int | None = None,
    ) -> None:
        """Record why the attempt ended without a result, in one line for people; the first reason stands.

        Args:
            kind: only `ettsweep retry` retries an `error`; `interrupted` attempts resume by themselves, as do `lost`
                ones, up to `MAX_LOST_ATTEMPTS` in a row.
            reason: one line for people.
            details: a traceback, or empty.
            exit_code: of a command that has failed.
        """
        failure: Json = {"kind": kind, "reason": reason, "details": details}
        if exit_code is not None:
            failure["exit_code"] = exit_code
        self.record("stopped" if kind == "interrupted" else "failed", failure)

    def failure(self) -> Json | None:
        """Return why the attempt ended; None if it finished, is still running, or was killed."""
        return next(iter(read_events(self.events_path, "stopped", "failed")), None)

    def mark_retried(self) -> None:
        """From now on, ignore how the attempt ended, and treat an owner of unknown liveness as dead."""
        write_atomic(self.retried_path, "")

    def is_retried(self) -> bool:
        """`True` if `ettsweep retry` was called after this attempt."""
        return self.retried_path.exists()

    def mark_lost(self) -> None:
        """Record that the owner is dead, which cannot be seen from every machine."""
        write_atomic(self.lost_path, "")

    def is_given_up(self) -> bool:
        """`True` if its owner counts as dead, even if its process seems alive."""
        return self.lost_path.exists() or self.is_retried()

    def log(self, line: str) -> None:
        """Append a line to log.txt."""
        append_text(self.log_path, line)

    def log_text(self) -> str:
        """Return the log of the attempt, the output of its command, and `log_footer`."""
        try:
            text = read_file(self.log_path).decode(errors="replace")
        except FileNotFoundError:
            text = NOTHING_LOGGED
        except OSError as error:
            text = f"(its log cannot be read: {error.strerror})\n"
        with contextlib.suppress(OSError):
            output = as_on_screen(read_file(self.output_path).decode(errors="replace"))
            text += output if output.endswith("\n") or not output else f"{output}\n"
        return text + self.log_footer()

    def log_footer(self) -> str:
        """Return the lines below the log: skipped samples, and the reason for a failure."""
        left_out = "".join(f"left out: {sample}\n" for sample in sorted(self.skipped_samples()))
        failure = self.failure()
        return left_out + (f"ended: {failure.get('reason')}\n" if failure else "")
