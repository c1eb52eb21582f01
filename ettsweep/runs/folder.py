"""Run folders: the only module that names their files, writes them, and derives states from them.

    runs/<run id>/
      spec.json             written first
      cancel.json           asked for by `cancel`, obeyed at the next step boundary, removed by `retry`
      attempts/0001/        claim.json, provenance.json, execution.json, heartbeat, resume.json, metrics.jsonl,
                            timings.jsonl, log.txt, skipped-0.txt, failure.json, retried,
                            checkpoint.pt, or, of a sharded run, checkpoint-00000012/ with a file of each process and
                            checkpoint.json, written after it, which names the folder that counts
      metrics.jsonl         the whole stitched history, written with the result
      result.json           written last, once: its presence means finished

An attempt folder appears in one rename with its claim inside: that is the claim and the takeover at once. Whatever
an attempt writes lies in its own folder, so a superseded writer touches only its own files. Whole files are written
under a temporary name, synced and renamed; metrics are appended, and a cut last line is ignored. No locks: exclusive
creation and rename only, which hold on NFS too.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import Json, dumps, last_line, read_json, read_lines, storage_errors, sync, write_atomic
from ettsweep.processes import Life, Process, process
from ettsweep.schema import canonical, validate
from ettsweep.spec import RunSpec

MAX_LOST_ATTEMPTS = 6
"""Attempts in a row that may die without a word and without getting further; more is a failure, not bad luck."""


class State(StrEnum):
    """State of a run; derived from its folder whenever it is asked for, never stored."""

    MISSING = "missing"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def finished(self) -> bool:
        """Whether the run has its result; diverged is one, the worst."""
        return self in (State.DONE, State.DIVERGED)


@dataclass(frozen=True)
class Status:
    """State of a run, and what is known with it.

    Attributes:
        state: derived when it was asked for.
        reason: why it is in this state, for people.
        progress: share of the steps done, 0 to 1.
        where: node or host that trains it.
        job: the scheduler's id of the job that trains it, or will.
        left_s: seconds until it is finished, at the rate so far.
    """

    state: State
    reason: str = ""
    progress: float = 0.0
    where: str = ""
    job: str = ""
    left_s: float | None = None


@dataclass(frozen=True)
class Owner:
    """Whether the owner of an attempt lives; where it is, and why that cannot be said."""

    life: Life
    where: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Prospect:
    """What a run that nobody trains may hope for, as the newest job that lists it tells.

    Attributes:
        state: queued: a job will take it. unknown: that cannot be asked. cancelled, failed, interrupted: the job ended.
        reason: why, in the scheduler's words.
        job: the scheduler's id of the job.
    """

    state: State
    reason: str = ""
    job: str = ""


class Outlook(Protocol):
    """What is known of runs beyond their folders: whether owners live, and which jobs list a run."""

    def owner(self, attempt: "Attempt") -> Owner:
        """Say whether the owner of an attempt that has not ended lives."""

    def prospect(self, run_id: str) -> Prospect | None:
        """Return what the newest submission that lists a run says of it, or None where there is none."""


class ThisMachine:
    """The outlook without a look at submissions: processes of this machine."""

    def owner(self, attempt: "Attempt") -> Owner:
        """Say whether the process that made the claim lives."""
        return Owner(
            attempt.liveness(), attempt.host(), f"claimed on {attempt.host()}, which cannot be asked from here"
        )

    def prospect(self, run_id: str) -> Prospect | None:
        """Know of no submission."""
        return None


def runs_dir(results: Path) -> Path:
    """Return the folder of all runs of a results folder."""
    return results / "runs"


def is_run_id(name: str) -> bool:
    """Say whether `name` can be a run id: only then does it become a path."""
    return len(name) == 12 and all(c in "0123456789abcdef" for c in name)


def read_spec(path: Path) -> RunSpec:
    """Read the spec of any run from a file such as spec.json.

    Raises:
        InputError: there is none, or it describes no run.
    """
    try:
        return validate(RunSpec, read_json(path), str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except CorruptError as error:
        raise InputError(str(error)) from None


def _checksum(result: Json) -> str | None:
    """Return what result.json carries as proof that nobody edited it; None for what cannot be one."""
    try:
        return hashlib.sha256(canonical(result).encode()).hexdigest()
    except ValueError:
        return None


class RunDir:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @classmethod
    def create(cls, results: Path, spec: RunSpec) -> "RunDir":
        """Make the folder and its spec.json, or return the one that is there; a damaged spec.json is written anew."""
        run = cls(runs_dir(results) / spec.run_id)
        with storage_errors(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        try:
            run.spec()
        except CorruptError:
            write_atomic(run.spec_path, spec.model_dump_json(indent=1) + "\n")
        return run

    @property
    def spec_path(self) -> Path:
        """spec.json."""
        return self.path / "spec.json"

    @property
    def result_path(self) -> Path:
        """result.json."""
        return self.path / "result.json"

    @property
    def metrics_path(self) -> Path:
        """The stitched metrics.jsonl of a finished run."""
        return self.path / "metrics.jsonl"

    @property
    def cancel_path(self) -> Path:
        """cancel.json."""
        return self.path / "cancel.json"

    def spec(self) -> RunSpec:
        """Read the spec.

        Raises:
            CorruptError: it is missing, unreadable, or no longer the one that the folder is named after.
        """
        remedy = "the command that asked for the run writes it anew"
        try:
            spec = validate(RunSpec, read_json(self.spec_path), str(self.spec_path))
        except FileNotFoundError:
            raise CorruptError(f"{self.spec_path}: is missing; {remedy}") from None
        except CorruptError as error:
            raise CorruptError(f"{error}; {remedy}") from None
        except InputError as error:
            raise CorruptError(f"{error}; the file was edited or is of another version; {remedy}") from None
        if spec.run_id != self.id:
            raise CorruptError(
                f"{self.spec_path}: describes run {spec.run_id}, not {self.id}: it was edited by hand; {remedy} "
                f"(another run is made by `ettsweep train --set` or a grid file)"
            )
        return spec

    def result(self) -> Json | None:
        """Read the result; None while there is none.

        Raises:
            CorruptError: it is truncated or was edited into something else.
        """
        try:
            result = read_json(self.result_path)
        except FileNotFoundError:
            return None
        except CorruptError as error:
            raise CorruptError(f"{error}; {self._remedy}") from None
        proof = result.pop("sha256", None)
        if proof is None or proof != _checksum(result) or result.get("run") != self.id:
            raise CorruptError(f"{self.result_path}: not the result that run {self.id} wrote; {self._remedy}")
        return result

    @property
    def _remedy(self) -> str:
        return f"`ettsweep retry {self.id}` trains it again"

    def numbers(self) -> list[int]:
        """Return the numbers of all attempts, lowest first."""
        try:
            names = os.listdir(self.path / "attempts")
        except OSError:
            return []
        return sorted(int(n) for n in names if n.isdigit())

    def attempt(self, number: int) -> "Attempt":
        """Return the attempt with this number."""
        return Attempt(self, number)

    def latest(self) -> "Attempt | None":
        """Return the highest attempt."""
        numbers = self.numbers()
        return self.attempt(numbers[-1]) if numbers else None

    def claim(self, info: Json, after: int) -> "Attempt | None":
        """Create the next attempt, and with it own the run.

        Args:
            info: what claim.json says beside the process: device, versions, job id, ...
            after: highest attempt that the caller has seen, and knows to be over; 0 for none.

        Returns:
            The new attempt, or None where another process was faster.

        Raises:
            StorageError: the folder cannot be written.
        """
        attempts = self.path / "attempts"
        token = uuid.uuid4().hex
        temporary = attempts / f".{token}.tmp"
        target = attempts / f"{after + 1:04d}"
        with storage_errors(temporary):
            temporary.mkdir(parents=True)
            try:
                content = {**info, "token": token, "process": process().to_json()}
                (temporary / "claim.json").write_text(dumps(content))
                sync(temporary / "claim.json")
                temporary.rename(target)  # fails on a folder that is not empty: the claim is inside it
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                # A retransmitted NFS rename can report a failure of what it did.
                mine = target.exists() and Attempt(self, after + 1).claim().get("token") == token
                if not mine and (error.errno in (errno.EEXIST, errno.ENOTEMPTY) or target.exists()):
                    return None  # some file systems have other words for it
                if not mine:
                    raise
        return self.attempt(after + 1)

    def finish(self, result: Json, history: Iterable[Json]) -> bool:
        """Write the stitched metrics, then the result, once; False if the run was finished already."""
        if self.result_path.exists():
            return False
        text = "".join(dumps(line) + "\n" for line in history)
        write_atomic(self.metrics_path, text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        content = {"run": self.id, **result, "metrics_sha256": digest}
        content["sha256"] = _checksum(content)
        return write_atomic(self.result_path, json.dumps(content, allow_nan=False, indent=1) + "\n", exclusive=True)

    def history(self) -> list[Json]:
        """Return the metrics of a finished run.

        Raises:
            CorruptError: they are not those that the result was written with.
        """
        result = self.result()
        try:
            data = self.metrics_path.read_bytes()
        except OSError as error:
            raise CorruptError(f"{self.metrics_path}: cannot be read: {error.strerror}; {self._remedy}") from error
        if result is not None and hashlib.sha256(data).hexdigest() != result.get("metrics_sha256"):
            raise CorruptError(f"{self.metrics_path}: changed since the run finished; {self._remedy}")
        return [json.loads(line) for line in data.splitlines()]

    def cancel(self) -> None:
        """Ask whoever trains the run, now or later, to stop at the next step boundary."""
        write_atomic(self.cancel_path, dumps({"process": process().to_json()}))

    def retry(self) -> None:
        """Remove what keeps the run from being trained: a cancellation, failures, an unreadable result.

        The caller knows that nobody trains it: an attempt whose owner cannot be asked is given up.
        """
        with storage_errors(self.path):
            self.cancel_path.unlink(missing_ok=True)
            try:
                if self.result() is not None:
                    self.history()
                    return  # finished, and sound: the same numbers would come again
            except CorruptError:
                for path in (self.result_path, self.metrics_path):
                    path.unlink(missing_ok=True)
            for number in self.numbers():
                (self.attempt(number).path / "retried").touch()

    def status(self, outlook: Outlook | None = None) -> Status:
        """Derive the state.

        Args:
            outlook: what to ask about owners and submissions; by default the processes of this machine alone.

        Returns:
            Its state with all that is known; a corrupt file is a failure with the reason.
        """
        outlook = outlook or ThisMachine()
        try:
            result = self.result()
        except CorruptError as error:
            return Status(State.FAILED, str(error))
        if result is not None:
            reason = f"at step {result['diverged_step']}" if result["status"] == "diverged" else ""
            return Status(State(result["status"]), reason, 1.0)
        numbers = self.numbers()
        attempt = self.attempt(numbers[-1]) if numbers else None
        failure = attempt.failure() if attempt else None
        progress = attempt.progress() if attempt else 0.0
        cancelled = self.cancel_path.exists()
        if attempt and not failure and not attempt.retried():
            owner = outlook.owner(attempt)
            if owner.life == "alive":
                known = progress, owner.where, attempt.job_id(), attempt.left_s()
                return Status(State.RUNNING, "cancelling" if cancelled else "", *known)
            if owner.life == "unknown":
                return Status(State.UNKNOWN, owner.reason, progress, owner.where, attempt.job_id())
        if cancelled:
            return Status(State.CANCELLED, "", progress)
        if attempt and failure and failure.get("kind") == "error" and not attempt.retried():
            return Status(State.FAILED, str(failure.get("reason", "")), progress)
        if lost := self._lost_in_a_row(numbers):
            return Status(State.FAILED, f"{lost} attempts died without a word; see `ettsweep logs {self.id}`", progress)
        prospect = outlook.prospect(self.id) or Prospect(State.INTERRUPTED)
        if prospect.state is State.QUEUED:
            reason = "; ".join(filter(None, ["to be resumed" if attempt else "", prospect.reason]))
            return Status(State.QUEUED, reason, progress, job=prospect.job)
        if prospect.state is not State.INTERRUPTED and (attempt or prospect.state is not State.FAILED):
            return Status(prospect.state, prospect.reason, progress, job=prospect.job)
        if attempt:
            told = str(failure.get("reason", "")) if failure else ""
            return Status(State.INTERRUPTED, prospect.reason or told or "its worker died", progress, job=prospect.job)
        return Status(State.MISSING, prospect.reason, job=prospect.job)

    def _lost_in_a_row(self, numbers: list[int]) -> int:
        """Return how many attempts died at the same point, 0 below the limit."""
        if not numbers or self.attempt(numbers[-1]).has_checkpoint():
            return 0  # the last one got further
        lost = 0
        _, step = self.attempt(numbers[-1]).resumed_from()
        for number in reversed(numbers):
            attempt = self.attempt(number)
            told = (attempt.failure() or {"kind": "lost"}).get("kind") != "lost"
            if told or attempt.retried() or attempt.resumed_from()[1] != step:
                break
            lost += not attempt.requeued()
        return lost if lost >= MAX_LOST_ATTEMPTS else 0


class Attempt:
    """One owner's try at a run; only its owner writes into its folder."""

    def __init__(self, run: RunDir, number: int) -> None:
        self.run = run
        self.number = number
        self.path = run.path / "attempts" / f"{number:04d}"
        self._next = run.path / "attempts" / f"{number + 1:04d}"

    @property
    def checkpoint_path(self) -> Path:
        """checkpoint.pt, of a run that is not sharded."""
        return self.path / "checkpoint.pt"

    @property
    def parts_path(self) -> Path:
        """checkpoint.json, of a sharded run: which folder holds the processes' parts, and what they must be."""
        return self.path / "checkpoint.json"

    def parts_folder(self, step: int) -> Path:
        """Return the folder of what the processes of a sharded run save after a step."""
        return self.path / f"checkpoint-{step:08d}"

    def has_checkpoint(self) -> bool:
        """Say whether the attempt has saved a whole checkpoint."""
        return self.checkpoint_path.exists() or self.parts_path.exists()

    def checkpoints(self) -> list[Path]:
        """Return the files and folders of its checkpoint; none is whole without the first."""
        return [path for path in (self.checkpoint_path, self.parts_path) if path.exists()] + self._folders()

    def unfinished_checkpoints(self) -> list[Path]:
        """Return the folders of checkpoints that were being written, or removed, when the owner ended."""
        try:
            step = read_json(self.parts_path).get("step")
        except (CorruptError, FileNotFoundError):
            step = None
        return [path for path in self._folders() if not isinstance(step, int) or path != self.parts_folder(step)]

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.path.glob("checkpoint-*") if path.is_dir())

    @property
    def log_path(self) -> Path:
        """log.txt."""
        return self.path / "log.txt"

    @property
    def metrics_path(self) -> Path:
        """metrics.jsonl of this attempt: the steps after the one that it resumed from."""
        return self.path / "metrics.jsonl"

    @property
    def timings_path(self) -> Path:
        """timings.jsonl."""
        return self.path / "timings.jsonl"

    @property
    def provenance_path(self) -> Path:
        """provenance.json."""
        return self.path / "provenance.json"

    def record_provenance(self, data: Json) -> None:
        """Record where the code of the owner comes from, see `provenance.provenance`."""
        write_atomic(self.provenance_path, json.dumps(data, indent=1) + "\n")

    def provenance(self) -> Json:
        """Return provenance.json; empty where it cannot be read."""
        with contextlib.suppress(CorruptError, FileNotFoundError):
            return read_json(self.provenance_path)
        return {}

    def record_execution(self, data: Json) -> None:
        """Record how the attempt trains, as far as that can change the last bits of its numbers."""
        write_atomic(self.path / "execution.json", dumps(data))

    def execution(self) -> Json:
        """Return execution.json; empty where it cannot be read."""
        with contextlib.suppress(CorruptError, FileNotFoundError):
            return read_json(self.path / "execution.json")
        return {}

    def record_skipped(self, rank: int, text: str) -> None:
        """Add a sample that one process of the run has left out, and why."""
        with storage_errors(self.path), (self.path / f"skipped-{rank}.txt").open("a") as file:
            file.write(text + "\n")

    def skipped(self) -> list[str]:
        """Return the samples that were left out along the lineage of this attempt, by any process, each once."""
        parent, _ = self.resumed_from()
        found = dict.fromkeys(self.run.attempt(parent).skipped() if parent else [])
        for path in sorted(self.path.glob("skipped-*.txt")):
            with contextlib.suppress(OSError):
                found |= dict.fromkeys(path.read_text(errors="replace").splitlines())
        return list(found)

    def claim(self) -> Json:
        """Return claim.json; empty where it cannot be read."""
        with contextlib.suppress(CorruptError, FileNotFoundError):
            return read_json(self.path / "claim.json")
        return {}

    def host(self) -> str:
        """Return the machine of the owner."""
        owner = Process.from_json(self.claim().get("process"))
        return owner.host if owner else "an unreadable claim"

    def liveness(self) -> Life:
        """Say whether the process of the owner lives, as far as it can be seen from here."""
        owner = Process.from_json(self.claim().get("process"))
        return owner.liveness() if owner else "unknown" if self.hidden() else "dead"

    def hidden(self) -> bool:
        """Say whether the claim cannot be seen from here yet: it was in the folder before the folder was there."""
        return not (self.path / "claim.json").exists()

    def job(self) -> Json:
        """Return what the claim says of the scheduler's job that made it; empty where none did."""
        job = self.claim().get("job")
        return job if isinstance(job, dict) else {}

    def job_id(self) -> str:
        """Return the scheduler's id of the job that made the claim, or nothing."""
        return str(self.job().get("id", ""))

    def requeued(self) -> bool:
        """Say whether the next attempt is the same job's, started again: the scheduler ended this one, not the run."""
        job, then = self.job(), self.run.attempt(self.number + 1).job()
        same = (job.get("cluster"), job.get("id")) == (then.get("cluster"), then.get("id"))
        return bool(job) and same and job.get("restart") != then.get("restart")

    def beat(self, count: int) -> None:
        """Show that the owner lives: a counter in a file of one size, written in place.

        A new file would be seen late by clients of a network file system that cache the folder; an old one is
        looked at again whenever it is opened.
        """
        descriptor = os.open(self.path / "heartbeat", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(descriptor, b"%20d\n" % count, 0)
        finally:
            os.close(descriptor)

    def heartbeat_s(self) -> float | None:
        """Return the seconds between beats that the owner promised; None where it promised none."""
        interval_s = self.claim().get("heartbeat_s")
        return float(interval_s) if isinstance(interval_s, int | float) and interval_s > 0 else None

    def heartbeat(self) -> str:
        """Return the counter as it stands; empty before the first beat."""
        try:
            return (self.path / "heartbeat").read_text()
        except (OSError, ValueError):
            return ""

    def superseded(self) -> bool:
        """Say whether another owner has taken the run over."""
        return self._next.exists()

    def resumed_from(self) -> tuple[int, int]:
        """Return (attempt, step) that this one went on from; (0, 0) for a fresh start."""
        with contextlib.suppress(CorruptError, FileNotFoundError):
            data = read_json(self.path / "resume.json")
            attempt, step = data.get("attempt"), data.get("step")
            if isinstance(attempt, int) and isinstance(step, int) and 0 < attempt < self.number:
                return attempt, step
        return 0, 0

    def resume_from(self, attempt: int, step: int) -> None:
        """Record the checkpoint that this attempt goes on from."""
        write_atomic(self.path / "resume.json", dumps({"attempt": attempt, "step": step}))

    def history(self, until: int | None = None) -> list[Json]:
        """Return the metrics along the lineage of this attempt, up to and including step `until`.

        Raises:
            CorruptError: steps are missing, because a file was cut or edited.
        """
        parent, step = self.resumed_from()
        lines = self.run.attempt(parent).history(step if until is None else min(step, until)) if parent else []
        lines += [line for line in read_lines(self.metrics_path) if until is None or line.get("step", 0) <= until]
        steps = [line["step"] for line in lines if "loss" in line]
        last = len(steps) if until is None else until
        if steps != list(range(1, last + 1)):
            raise CorruptError(f"{self.metrics_path}: steps are missing before step {last}")
        return lines

    def append(self, path: Path, lines: Iterable[Json]) -> None:
        """Append lines to metrics.jsonl or timings.jsonl, in one write."""
        text = "".join(dumps(line) + "\n" for line in lines)
        with storage_errors(path), path.open("a") as file:
            file.write(text)

    def save_checkpoint(self, write: Callable[[Path], None]) -> None:
        """Replace checkpoint.pt by what `write` writes; the metrics up to it are on disk first."""
        self._sync_metrics()
        write_atomic(self.checkpoint_path, write)

    def save_parts(self, step: int, index: Json) -> None:
        """Have what all processes have written after a step count as the checkpoint, and remove the one before.

        Args:
            step: whose folder they have written, and synced.
            index: what checkpoint.json says of it.
        """
        self._sync_metrics()
        write_atomic(self.parts_path, dumps({"step": step, **index}))
        if self.superseded():
            return  # the next owner may be reading the one before
        for folder in self.unfinished_checkpoints():
            shutil.rmtree(folder, ignore_errors=True)

    def _sync_metrics(self) -> None:
        if self.metrics_path.exists():
            sync(self.metrics_path)

    def fail(self, kind: Literal["error", "interrupted", "lost"], reason: str, details: str = "") -> None:
        """Record why the attempt ended without a result; the first reason stands.

        Args:
            kind: `error` is not retried by itself, `lost` not for ever.
            reason: for people, on one line.
            details: such as a traceback.
        """
        text = dumps({"kind": kind, "reason": reason, "details": details})
        write_atomic(self.path / "failure.json", text, exclusive=True)

    def failure(self) -> Json | None:
        """Return failure.json, or None where the attempt ended otherwise or not at all."""
        try:
            return read_json(self.path / "failure.json")
        except FileNotFoundError:
            return None
        except CorruptError as error:
            return {"kind": "error", "reason": str(error)}

    def log(self) -> str:
        """Return what the attempt logged, and why it ended where it ended badly."""
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            text = "(it logged nothing)\n"
        skipped = sorted(set(self.skipped()))
        text += "".join(f"left out: {sample}\n" for sample in skipped)
        failure = self.failure()
        return text + (f"ended: {failure.get('reason')}\n" if failure else "")

    def retried(self) -> bool:
        """Say whether `retry` forgave how this attempt ended."""
        return (self.path / "retried").exists()

    def left_s(self) -> float | None:
        """Return the seconds until the run is finished, at the rate so far; None before there is one."""
        last = last_line(self.timings_path) or {}
        progress, wall_s = last.get("progress"), last.get("wall_s")
        if not (isinstance(progress, int | float) and isinstance(wall_s, int | float) and progress > 0):
            return None
        return float(wall_s * (1 - progress) / progress)

    def progress(self) -> float:
        """Return the share of steps done, from the last line that was written."""
        for path in (self.timings_path, self.metrics_path):
            last = last_line(path)
            if last and isinstance(last.get("progress"), int | float):
                return float(last["progress"])
        parent, _ = self.resumed_from()
        return self.run.attempt(parent).progress() if parent else 0.0
