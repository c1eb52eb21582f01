"""Run folders: where planner and worker meet; with their attempts' folders, only they are written here.

A results folder holds sweeps/<name>/, what was asked for; jobs/<submission>/; code/<digest>/, snapshots of code; and

    runs/<run id>/
      spec.json             written first
      cancel.json           asked for by `cancel`, obeyed at the next step boundary, removed by `retry`
      prune.json            why a pruner asked the same, and at which step; removed once the run is wanted
      attempts/0001/        of its first attempt; then come 0002/ and so on
        claim.json          who owns it; there as soon as the folder is
        provenance.json     where the code of the owner comes from
        execution.json      how it trains, as far as that can change the last bits of its numbers
        heartbeat           a counter of its owner
        resume.json         the earlier attempt, and its step, that this one went on from
        metrics.jsonl       the steps after that one
        timings.jsonl       how far it is, and how fast
        log.txt, skipped-0.txt: what it logged; the samples that a process of the run has left out
        checkpoint.pt       what another attempt goes on from
        failure.json        why it ended without a result
        retried             `retry` forgave how it ended
      metrics.jsonl         the whole stitched history, written with the result
      result.json           written last, once: its presence means finished

An attempt folder appears in one rename with its claim inside: that is the claim and the takeover at once. Whatever
an attempt writes lies in its own folder, so a superseded writer touches only its own files. Whole files are written
under a temporary name, synced and renamed; metrics are appended, and a cut last line is ignored. No locks: exclusive
creation and rename only, which hold on NFS too.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import Json, dumps, loads, read_json, read_lines, storage_errors, sync, write_atomic
from ettsweep.processes import Process, process
from ettsweep.runs.attempt import EVALUATION, Attempt
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, LocalLiveness, LostAttempt, RunFacts, State, Status, unfinished_status
from ettsweep.schema import canonical, validate


def sweeps_dir(results: Path) -> Path:
    """Return the folder of all that was asked for, by name."""
    return results / "sweeps"


def jobs_dir(results: Path) -> Path:
    """Return the folder of all submissions."""
    return results / "jobs"


def code_dir(results: Path) -> Path:
    """Return the folder of all snapshots."""
    return results / "code"


def runs_dir(results: Path) -> Path:
    """Return the folder of all runs."""
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
    """The folder of one run, named after its id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.spec_path = path / "spec.json"
        self.cancel_path = path / "cancel.json"
        self.prune_path = path / "prune.json"
        self.attempts_path = path / "attempts"
        self.metrics_path = path / "metrics.jsonl"
        self.result_path = path / "result.json"

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

    def ended_ns(self) -> int:
        """Return when the result was written, by the time of its file, which a copy may not keep; 0 without one."""
        try:
            return self.result_path.stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def _remedy(self) -> str:
        return f"`ettsweep retry {self.id}` trains it again"

    def numbers(self) -> list[int]:
        """Return the numbers of all attempts, lowest first."""
        try:
            names = os.listdir(self.attempts_path)
        except OSError:
            return []
        return sorted(int(n) for n in names if re.fullmatch(r"[0-9]{1,9}", n))

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with this number."""
        return Attempt(self.path, number)

    def latest(self) -> Attempt | None:
        """Return the highest attempt."""
        numbers = self.numbers()
        return self.attempt(numbers[-1]) if numbers else None

    def claim(self, info: Json, after: int) -> Attempt | None:
        """Create the attempt `after` those that are over, and so own the run; None where another process was faster.

        `info` is what claim.json says beside the process: device, versions, job id, ...

        Raises:
            StorageError: the folder cannot be written.
        """
        attempt, token = self.attempt(after + 1), uuid.uuid4().hex
        temporary = self.attempts_path / f".{token}.tmp"
        with storage_errors(temporary):
            temporary.mkdir(parents=True)
            try:
                content = {**info, "token": token, "process": process().to_json()}
                claim = temporary / attempt.claim_path.name
                claim.write_text(dumps(content))
                sync(claim)
                temporary.rename(attempt.path)  # fails on a folder that is not empty: the claim is inside it
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                # A retransmitted NFS rename can report a failure of what it did.
                mine = attempt.path.exists() and attempt.claim().get("token") == token
                if not mine and (error.errno in (errno.EEXIST, errno.ENOTEMPTY) or attempt.path.exists()):
                    return None  # some file systems have other words for it
                if not mine:
                    raise
        return attempt

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
        try:
            lines: list[Json] = loads(b"[" + b",".join(data.splitlines()) + b"]")  # at once: ten times as fast
        except ValueError as error:
            raise CorruptError(f"{self.metrics_path}: no JSON: {error}; {self._remedy}") from error
        return lines

    def evaluations(self) -> list[Json]:
        """Return the evaluations so far, first to last; a run without attempts has none."""
        if self.result_path.exists():
            return read_lines(self.metrics_path, holding=EVALUATION)
        latest = self.latest()
        return latest.evaluations() if latest else []

    def cancel(self) -> None:
        """Ask whoever trains the run, now or later, to stop at the next step boundary."""
        write_atomic(self.cancel_path, dumps({"process": process().to_json()}))

    def prune(self, step: int, reason: str) -> bool:
        """Ask whoever trains the run to stop at the next step boundary: at `step`, it seemed hopeless.

        Returns:
            False where it was asked before.
        """
        content = {"step": step, "reason": reason, "process": process().to_json()}
        return write_atomic(self.prune_path, dumps(content), exclusive=True)

    def pruned(self) -> str | None:
        """Return at which step, and why, a pruner asked for that; None where none did."""
        try:
            told = read_json(self.prune_path)
        except FileNotFoundError:
            return None
        except CorruptError as error:
            return str(error)
        return f"at step {told.get('step')}: {told.get('reason')}"

    def unprune(self) -> None:
        """Have a pruned run count as interrupted, so that it goes on from its checkpoint, to its end."""
        with storage_errors(self.path):
            self.prune_path.unlink(missing_ok=True)

    def retry(self) -> None:
        """Remove what keeps the run from being trained: a cancellation, a pruning, failures, an unreadable result.

        The caller knows that nobody trains it: an attempt whose owner cannot be asked is given up.
        """
        self.unprune()
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
                self.attempt(number).forgive()

    def status(self, liveness: Liveness | None = None) -> Status:
        """Derive the state, by default from the processes of this machine alone; a corrupt file is a failure."""
        return self.look(liveness)[0]

    def look(self, liveness: Liveness | None = None) -> tuple[Status, Json | None]:
        """Return the status, and with it the result of a finished run, from one look at its file."""
        try:
            result = self.result()
        except CorruptError as error:
            latest = self.latest()
            return Status(State.FAILED, str(error), latest.progress() if latest else 0.0), None
        if result is None:
            status = self._unfinished(liveness)
            # To ask may take seconds, in which it may finish and its job end: that is no interruption.
            return self.look(liveness) if self.result_path.exists() else (status, None)
        reason = f"at step {result['diverged_step']}" if result["status"] == "diverged" else ""
        return Status(State(result["status"]), reason, 1.0), result

    def _unfinished(self, liveness: Liveness | None) -> Status:
        asked = liveness or LocalLiveness()
        attempts = [self.attempt(number) for number in reversed(self.numbers())]
        return unfinished_status(
            self.id,
            self._facts(attempts[0] if attempts else None),
            owner=lambda: asked.owner(attempts[0]),
            lost=_lost(attempts),
            prospect=lambda: asked.job_status(self.id),
        )

    def _facts(self, latest: Attempt | None) -> RunFacts:
        if latest is None:
            return RunFacts(cancelled=self.cancel_path.exists(), pruned=self.pruned())
        failure, pace, claim = latest.failure(), latest.pace(), latest.claim()
        return RunFacts(
            attempted=True,
            failure=failure,
            retried=latest.retried(),
            progress=pace.progress,
            left_s=pace.left_s,
            slot_left_s=pace.slot_left_s,
            cancelled=self.cancel_path.exists(),  # after the failure: who obeys it writes one
            pruned=self.pruned(),
            job=latest.job_id(),
            worker=Process.from_json(claim.get("process")),
            slot=str(claim.get("slot") or ""),
        )


def _lost(attempts: Sequence[Attempt]) -> Iterator[LostAttempt]:
    """Yield attempts, given the latest first, back to one that was not lost; none where the latest got further."""
    if attempts and attempts[0].has_checkpoint():
        return
    for attempt in attempts:
        failure = attempt.failure()
        if (failure and failure.get("kind") != "lost") or attempt.retried():
            return
        yield LostAttempt(attempt.resumed_from()[1], attempt.requeued())
