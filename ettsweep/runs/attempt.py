"""An attempt: one owner's try at a run. Only its owner writes into its folder, so a superseded one disturbs nobody."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from ettsweep.errors import CorruptError
from ettsweep.files import (
    Json,
    dumps,
    first_line,
    json_or_empty,
    last_line,
    number,
    read_json,
    read_lines,
    storage_errors,
    sync,
    write_atomic,
)
from ettsweep.processes import Life, Process

EVALUATION = b'"val_'
"""What the lines of evaluations in metrics.jsonl have, and those of steps have not."""

NOTHING_LOGGED = "(it logged nothing)\n"


class TimeSpent(NamedTuple):
    """Seconds that have gone by for a run, and seconds of devices that it has had: fewer where runs share one."""

    wall_s: float
    device_s: float


NOTHING = TimeSpent(0.0, 0.0)


class AttemptProgress(NamedTuple):
    """How far a run is, as a share of its steps, and how long the rest takes, where there is a rate.

    Attributes:
        left_s: seconds that go by until it is finished.
        slot_left_s: those of its worker that it takes: a part where the worker trains others beside it.
    """

    progress: float
    left_s: float | None = None
    slot_left_s: float | None = None


def share_had(first: Json, last: Json) -> float:
    """Return which part of its worker's seconds a run had between two lines of timings: all, unless it was packed."""
    wall_s, device_s = (
        (number(last.get(name)) or 0.0) - (number(first.get(name)) or 0.0) for name in ("wall_s", "device_s")
    )
    return device_s / wall_s if 0 < device_s < wall_s else 1.0  # of several devices a run has all


class Attempt:
    """One owner's try at a run, numbered from 1, in a folder of its own; `runs.folder` says what its files are."""

    def __init__(self, run: Path, number: int) -> None:
        self.run = run
        self.number = number
        self.path = run / "attempts" / f"{number:04d}"
        self.claim_path = self.path / "claim.json"
        self.provenance_path = self.path / "provenance.json"
        self.execution_path = self.path / "execution.json"
        self.heartbeat_path = self.path / "heartbeat"
        self.resume_path = self.path / "resume.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.timings_path = self.path / "timings.jsonl"
        self.log_path = self.path / "log.txt"
        self.checkpoint_path = self.path / "checkpoint.pt"
        self.failure_path = self.path / "failure.json"
        self.retried_path = self.path / "retried"

    # --- its owner --------------------------------------------------------------------------------------------------

    def claim(self) -> Json:
        """Return claim.json, which says who owns the attempt; empty where it cannot be read."""
        return json_or_empty(self.claim_path)

    def owner(self) -> Process | None:
        """Return the process that owns the attempt; None where its claim cannot be read."""
        return Process.from_json(self.claim().get("process"))

    def host(self) -> str:
        """Return the machine of the owner."""
        owner = self.owner()
        return owner.host if owner else "an unreadable claim"

    def liveness(self) -> Life:
        """Say whether the process of the owner lives, as far as it can be seen from here."""
        if owner := self.owner():
            return owner.liveness()
        # It was in the folder before the folder was there: where it is not, it cannot be seen from here yet.
        return "dead" if self.claim_path.exists() else "unknown"

    def job(self) -> Json:
        """Return what the claim says of the scheduler's job that made it; empty where none did."""
        job = self.claim().get("job")
        return job if isinstance(job, dict) else {}

    def job_id(self) -> str:
        """Return the scheduler's id of the job that made the claim, or nothing."""
        return str(self.job().get("id", ""))

    def requeued(self) -> bool:
        """Say whether the next attempt is the same job's, started again: the scheduler ended this one, not the run."""
        job, then = self.job(), self.next().job()
        same = (job.get("cluster"), job.get("id")) == (then.get("cluster"), then.get("id"))
        return bool(job) and same and job.get("restart") != then.get("restart")

    def next(self) -> "Attempt":
        """Return the attempt that comes, or would come, after this one."""
        return Attempt(self.run, self.number + 1)

    def superseded(self) -> bool:
        """Say whether another owner has taken the run over."""
        return self.next().path.exists()

    def beat(self, count: int) -> None:
        """Show that the owner lives: a counter in a file of one size, written in place.

        A new file would be seen late by clients of a network file system that cache the folder; an old one is
        looked at again whenever it is opened.
        """
        descriptor = os.open(self.heartbeat_path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(descriptor, b"%20d\n" % count, 0)
        finally:
            os.close(descriptor)

    def heartbeat_s(self) -> float | None:
        """Return the seconds between beats that the owner promised; None where it promised none."""
        interval_s = number(self.claim().get("heartbeat_s"))
        return interval_s if interval_s and interval_s > 0 else None

    def heartbeat(self) -> str:
        """Return the counter as it stands; empty before the first beat."""
        try:
            return self.heartbeat_path.read_text()
        except (OSError, ValueError):
            return ""

    # --- how it trains ----------------------------------------------------------------------------------------------

    def record_provenance(self, data: Json) -> None:
        """Record where the code of the owner comes from, see `provenance.provenance`."""
        write_atomic(self.provenance_path, json.dumps(data, indent=1) + "\n")

    def provenance(self) -> Json:
        """Return what was recorded of it; empty where that cannot be read."""
        return json_or_empty(self.provenance_path)

    def record_execution(self, data: Json) -> None:
        """Record how the attempt trains, as far as that can change the last bits of its numbers."""
        write_atomic(self.execution_path, dumps(data))

    def execution(self) -> Json:
        """Return what was recorded of it; empty where that cannot be read."""
        return json_or_empty(self.execution_path)

    # --- its lineage, and what it measures --------------------------------------------------------------------------

    def resume_from(self, attempt: int, step: int) -> None:
        """Record the checkpoint that this attempt goes on from."""
        write_atomic(self.resume_path, dumps({"attempt": attempt, "step": step}))

    def resumed_from(self) -> tuple[int, int]:
        """Return (attempt, step) that this one went on from; (0, 0) for a fresh start."""
        data = json_or_empty(self.resume_path)
        attempt, step = data.get("attempt"), data.get("step")
        if isinstance(attempt, int) and isinstance(step, int) and 0 < attempt < self.number:
            return attempt, step
        return 0, 0

    def parent(self) -> "Attempt | None":
        """Return the attempt that this one went on from; None for a fresh start."""
        number, _ = self.resumed_from()
        return Attempt(self.run, number) if number else None

    def append(self, path: Path, lines: Iterable[Json]) -> None:
        """Append lines to metrics.jsonl or timings.jsonl, in one write."""
        text = "".join(dumps(line) + "\n" for line in lines)
        with storage_errors(path), path.open("a") as file:
            file.write(text)

    def history(self, until: int | None = None) -> list[Json]:
        """Return the metrics along the lineage of this attempt, up to and including step `until`.

        Raises:
            CorruptError: steps are missing, because a file was cut or edited.
        """
        number, step = self.resumed_from()
        lines = Attempt(self.run, number).history(step if until is None else min(step, until)) if number else []
        lines += [line for line in read_lines(self.metrics_path) if until is None or line.get("step", 0) <= until]
        steps = [line["step"] for line in lines if "loss" in line]
        last = len(steps) if until is None else until
        if steps != list(range(1, last + 1)):
            raise CorruptError(f"{self.metrics_path}: steps are missing before step {last}")
        return lines

    def evaluations(self) -> list[Json]:
        """Return the evaluations along its lineage, first to last; the many lines of steps are not parsed."""
        number, step = self.resumed_from()
        before = Attempt(self.run, number).evaluations() if number else []
        kept = [line for line in before if line.get("step", 0) <= step]
        return kept + read_lines(self.metrics_path, holding=EVALUATION)

    def spent(self, until: int | None = None) -> TimeSpent:
        """Return what its lineage has spent, as far as it has been drained, or by a step."""
        if until is None:
            line = last_line(self.timings_path)
        else:
            lines = [line for line in read_lines(self.timings_path) if line.get("step", 0) <= until]
            line = lines[-1] if lines else None
        wall_s = number((line or {}).get("wall_s"))
        if line is None or wall_s is None:
            parent = self.parent()
            return parent.spent(until) if parent else NOTHING
        device_s = number(line.get("device_s"))
        if device_s is None:  # written when a run had its devices for itself
            device_s = wall_s * (number(self.execution().get("processes")) or 1.0)
        return TimeSpent(wall_s, device_s)

    def progress(self) -> float:
        """Return the share of steps done, 0 to 1."""
        return self.pace().progress

    def pace(self) -> AttemptProgress:
        """Return how far the run is, and how long the rest takes at the rate so far.

        The share is that of the last line that was written, in this attempt or in the one that it went on from. The
        rate is that since the first line of this one: before that, starting took a part of the time.
        """
        for path in (self.timings_path, self.metrics_path):
            first, last = first_line(path) or {}, last_line(path) or {}
            progress, wall_s = number(last.get("progress")), number(last.get("wall_s"))
            if progress is not None and 0 <= progress <= 1:
                before, before_s = number(first.get("progress")), number(first.get("wall_s"))
                if before is None or before_s is None or wall_s is None or not before < progress:
                    return AttemptProgress(progress)
                left_s = (wall_s - before_s) * (1 - progress) / (progress - before)
                if not 0 <= left_s < math.inf:
                    return AttemptProgress(progress)
                return AttemptProgress(progress, left_s, left_s * share_had(first, last))
        parent = self.parent()
        return AttemptProgress(parent.progress() if parent else 0.0)

    def record_skipped(self, rank: int, text: str) -> None:
        """Add a sample that one process of the run has left out, and why."""
        with storage_errors(self.path), (self.path / f"skipped-{rank}.txt").open("a") as file:
            file.write(text + "\n")

    def skipped(self) -> list[str]:
        """Return the samples that were left out along the lineage of this attempt, by any process, each once."""
        parent = self.parent()
        found = dict.fromkeys(parent.skipped() if parent else [])
        for path in sorted(self.path.glob("skipped-*.txt")):
            with contextlib.suppress(OSError):
                found |= dict.fromkeys(path.read_text(errors="replace").splitlines())
        return list(found)

    # --- its checkpoint ---------------------------------------------------------------------------------------------

    def has_checkpoint(self) -> bool:
        """Say whether the attempt has saved a checkpoint."""
        return self.checkpoint_path.exists()

    def save_checkpoint(self, write: Callable[[Path], None]) -> None:
        """Replace checkpoint.pt by what `write` writes; the metrics up to it are on disk first."""
        if self.metrics_path.exists():
            sync(self.metrics_path)
        write_atomic(self.checkpoint_path, write)

    # --- its end ----------------------------------------------------------------------------------------------------

    def fail(self, kind: Literal["error", "interrupted", "lost"], reason: str, details: str = "") -> None:
        """Record why the attempt ended without a result, for people, on one line; the first reason stands.

        An `error` is not retried by itself, and what is `lost` not for ever.
        """
        text = dumps({"kind": kind, "reason": reason, "details": details})
        write_atomic(self.failure_path, text, exclusive=True)

    def failure(self) -> Json | None:
        """Return failure.json, or None where the attempt ended otherwise or not at all."""
        try:
            return read_json(self.failure_path)
        except FileNotFoundError:
            return None
        except CorruptError as error:
            return {"kind": "error", "reason": str(error)}

    def forgive(self) -> None:
        """Have how the attempt ended count no more; one whose owner cannot be asked is given up."""
        self.retried_path.touch()

    def retried(self) -> bool:
        """Say whether `retry` forgave how this attempt ended."""
        return self.retried_path.exists()

    def log(self) -> str:
        """Return what the attempt logged, and why it ended where it ended badly."""
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            text = NOTHING_LOGGED
        return text + self.ending()

    def ending(self) -> str:
        """Return what stands below the log: samples that were left out, and why it ended where it ended badly."""
        left_out = "".join(f"left out: {sample}\n" for sample in sorted(self.skipped()))
        failure = self.failure()
        return left_out + (f"ended: {failure.get('reason')}\n" if failure else "")
