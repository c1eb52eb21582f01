"""Run folders: the files through which planner and workers communicate; only `runs/` writes them, except for log.txt.

A results folder holds sweeps/<name>.yaml, the requested sweeps; jobs/<submission>/; code/<digest>/, code snapshots; and

    runs/<run id>/
      spec.json             the RunSpec, written first
      cancel.json           a request to stop by `ettsweep cancel`, obeyed at the next step, removed by `retry`
      attempts/0001/        the first attempt; then 0002/ and so on
        claim.json          the owner; there as soon as the folder is
        events.jsonl        events, in order: `started` (code version of the owner; of a command its words, folder and
                            versions), `resumed` (attempt and step), `execution` (devices, kernels and other causes of
                            different last bits), `skipped` (an unreadable sample), `facts` (of a Transformer: entries
                            of the result from its program), `ended` (of a command: exit code, first step, peak of
                            memory, leftovers, how it stopped), `stopped` or `failed` (the reason for ending without a
                            result)
        events-1.jsonl      samples that process 1 of the run has skipped
        recorded.jsonl      of a command: lines that it appends to ETTSWEEP_METRICS; until the run is done
        stop                a request to stop
        heartbeat           a counter that the owner increments
        metrics.jsonl       a line for each step, and one for each evaluation after its step; until the run is done
        timings.jsonl       progress and elapsed seconds
        log.txt             the worker's log of the run
        output.txt          the output of its program
        states/             the newest checkpoint of `Run.save`, a file or folder; its name is the step, the SHA-256 of
                            the metrics up to it, and their size: 20-9f86...-1234
      attempts/0001.out       the out/ of a command from which the next attempt did not resume
      attempts/0001.retried   `retry` was called after attempt 1
      attempts/0001.lost      the owner of attempt 1 is known to be dead
      out/                  files of a function or a command, the same in all attempts
      metrics.jsonl         the stitched metrics of all attempts, written with the result
      result.json           written last, once: its presence means finished

An attempt's folder is renamed into place with its claim inside, so creating, claiming and taking over are one atomic
operation. An attempt writes only into its own folder, so a superseded owner cannot do harm; the one that finishes a run
removes the metrics of all. Whole files are written under a temporary name, synced and renamed; metrics and events are
appended, and a truncated last line is ignored. Programs in any language write recorded.jsonl, output.txt and states,
and look at stop, so these are separate files: no reader must take the log for a metric. No run has a lock: there are
only exclusive creation and rename, which are atomic on NFS too.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import (
    Json,
    PathBelow,
    dumps,
    loads_fast,
    parse_object,
    read_file,
    read_json,
    read_lines,
    storage_errors,
    sync,
    sync_names,
    write_atomic,
)
from ettsweep.ownership import trusts_group
from ettsweep.processes import process_identity
from ettsweep.runs.attempt import Attempt, TimeSpent
from ettsweep.runs.spec import RunSpec, kind_of, validated_spec
from ettsweep.runs.state import (
    Liveness,
    LocalLiveness,
    State,
    Status,
    finished_status,
    unfinished_status,
)
from ettsweep.schema import canonical, fields_outside_id


def sweeps_dir(results: Path) -> Path:
    """Return the folder of named sweeps."""
    return results / "sweeps"


def jobs_dir(results: Path) -> Path:
    """Return the folder of submissions."""
    return results / "jobs"


def code_dir(results: Path) -> Path:
    """Return the folder of code snapshots."""
    return results / "code"


def runs_dir(results: Path) -> Path:
    """Return the folder of run folders."""
    return results / "runs"


SPEC_REMEDY = "repeat the command that requested the run, which rewrites it"


def is_run_id(name: str) -> bool:
    """`True` if `name` has the form of a run id: 12 hex digits. Check before making a path of user input."""
    return _RUN_ID.fullmatch(name) is not None


_RUN_ID = re.compile("[0-9a-f]{12}")


def read_spec(path: Path) -> RunSpec:
    """Read a RunSpec from a JSON file such as spec.json.

    Raises:
        InputError: the file is missing or is not a valid spec.
    """
    try:
        return validated_spec(read_json(path), str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except CorruptError as error:
        raise InputError(str(error)) from None


def _checksum(result: Json) -> str | None:
    """Return the checksum of result.json, which reveals edits by hand; None if the content is not canonical JSON."""
    try:
        return hashlib.sha256(canonical(result).encode()).hexdigest()
    except ValueError:  # NaN or infinity, which ettsweep never writes
        return None


TRIAL_PREFIX = ".try-"
"""Prefix of folders of trials, whose subfolders are results folders."""

TRIAL_OWNER = "owner.json"
"""File in it with the process of the trial."""


class RunDir:
    """The folder of one run, named after its id."""

    spec_path = PathBelow("spec.json")
    cancel_path = PathBelow("cancel.json")
    attempts_path = PathBelow("attempts")
    metrics_path = PathBelow("metrics.jsonl")
    result_path = PathBelow("result.json")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @classmethod
    def create(cls, results: Path, spec: RunSpec) -> "RunDir":
        """Create the folder and its spec.json if missing; rewrite a damaged or moved one."""
        run = cls(runs_dir(results) / spec.run_id)
        with storage_errors(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        try:
            existing = run.spec()
            outside = fields_outside_id(type(spec))
            # Such as the code's folder, which may have moved.
            is_current = all(getattr(existing, name) == getattr(spec, name) for name in outside)
        except CorruptError:
            is_current = False
        if not is_current:
            write_atomic(run.spec_path, spec.model_dump_json(indent=1) + "\n")
        return run

    def spec(self) -> RunSpec:
        """Read spec.json.

        Raises:
            CorruptError: it is missing, unreadable, or its id is not the folder's name.
        """
        return self.spec_from(self.spec_data())

    def spec_data(self) -> Json:
        """Return the content of spec.json, unchecked.

        Raises:
            CorruptError: it is missing or unreadable.
        """
        try:
            return read_json(self.spec_path)
        except FileNotFoundError:
            raise CorruptError(f"{self.spec_path}: is missing; {SPEC_REMEDY}") from None
        except CorruptError as error:
            raise CorruptError(f"{error}; {SPEC_REMEDY}") from None

    def spec_from(self, data: Json) -> RunSpec:
        """Return the spec of spec.json.

        Raises:
            CorruptError: it is not a spec, or its id is not the folder's name.
        """
        try:
            spec = validated_spec(data, str(self.spec_path))
        except InputError as error:
            raise CorruptError(f"{error}; the file was edited or is of another version; {SPEC_REMEDY}") from None
        if spec.run_id != self.id:
            raise CorruptError(
                f"{self.spec_path}: describes run {spec.run_id}, not {self.id}: it was edited by hand; {SPEC_REMEDY} "
                f"(another run is made by `ettsweep train --set` or a grid file)"
            )
        return spec

    def result(self) -> Json | None:
        """Read result.json; None while the run is unfinished.

        Raises:
            CorruptError: it is truncated or was edited.
        """
        try:
            return self.result_from(read_file(self.result_path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptError(f"{self.result_path}: cannot be read: {error.strerror}; {self._remedy}") from None

    def result_from(self, data: bytes) -> Json:
        """Return the result of result.json.

        Raises:
            CorruptError: it is truncated or was edited.
        """
        try:
            result = parse_object(self.result_path, data)
        except CorruptError as error:
            raise CorruptError(f"{error}; {self._remedy}") from None
        checksum = result.pop("sha256", None)
        # A result copied from another run's folder has a valid checksum, but another id.
        if checksum is None or checksum != _checksum(result) or result.get("run") != self.id:
            raise CorruptError(f"{self.result_path}: not the result that run {self.id} wrote; {self._remedy}")
        return result

    @property
    def _remedy(self) -> str:
        return f"`ettsweep retry {self.id}` trains it again"

    def attempt_numbers(self) -> list[int]:
        """Return the numbers of all attempts, ascending."""
        try:
            names = os.listdir(self.attempts_path)
        except OSError:
            return []
        return sorted(int(n) for n in names if re.fullmatch(r"[0-9]{1,9}", n))

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with this number, which need not exist."""
        return Attempt(self.path, number)

    def latest_attempt(self) -> Attempt | None:
        """Return the newest attempt; None before the first."""
        numbers = self.attempt_numbers()
        return self.attempt(numbers[-1]) if numbers else None

    def claim(self, details: Json, after: int) -> Attempt | None:
        """Create the attempt after number `after`, and become the owner of the run.

        Args:
            details: fields of claim.json beside the process: device, versions, job, ...
            after: number of the last attempt, which has ended; 0 for a new run.

        Returns:
            The attempt, or None if another process claimed it first.

        Raises:
            StorageError: the folder cannot be written.
        """
        attempt, token = self.attempt(after + 1), uuid.uuid4().hex
        temporary = self.attempts_path / f".{token}.tmp"
        with storage_errors(temporary):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            try:
                content = {**details, "token": token, "process": process_identity().to_json()}
                claim = temporary / attempt.claim_path.name
                claim.write_text(dumps(content), encoding="utf-8")
                sync(claim)
                # Of several claimants one succeeds: a rename onto a folder that is not empty fails.
                temporary.rename(attempt.path)
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                # NFS may report an error for a rename that it carried out, since it sent the request twice: the token
                # tells whose claim is in place.
                is_ours = attempt.path.exists() and attempt.claim().get("token") == token
                if not is_ours and (error.errno in (errno.EEXIST, errno.ENOTEMPTY) or attempt.path.exists()):
                    return None  # file systems report different error numbers
                if not is_ours:
                    raise
        return attempt

    def finish(self, result: Json, history: Iterable[Json]) -> bool:
        """Write the stitched metrics, then the result, and remove the metrics of its attempts.

        Returns:
            `False` if the run was already finished.
        """
        if self.result_path.exists():
            return False
        # Metrics first: readers check them against the digest in result.json.
        text = "".join(dumps(line) + "\n" for line in history)
        write_atomic(self.metrics_path, text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        content = {"run": self.id, **result, "metrics_sha256": digest}
        content["sha256"] = _checksum(content)
        text = json.dumps(content, allow_nan=False, indent=1) + "\n"
        is_first = write_atomic(self.result_path, text, exclusive=True)
        with contextlib.suppress(OSError):  # `clean` removes them too
            self._remove_copies()
        return is_first

    def _remove_copies(self) -> None:
        """Remove the metrics of a finished run from its attempts."""
        sync_names(self.path)  # first, or a crash of the machine might lose result and metrics
        for number in self.attempt_numbers():
            for path in self.attempt(number).metrics_copies():
                path.unlink()

    def history(self, result: Json | None = None) -> list[Json]:
        """Return the metrics of a finished run, one mapping a line; its result is read unless given.

        Raises:
            CorruptError: metrics.jsonl is unreadable or has changed since the result was written.
        """
        data = self.metrics_data(result)
        try:
            # Parsed as one array: ten times as fast as line by line.
            lines: list[Json] = loads_fast(b"[" + b",".join(data.splitlines()) + b"]")
        except ValueError as error:
            raise CorruptError(f"{self.metrics_path}: not JSON: {error}; {self._remedy}") from error
        return lines

    def metrics_data(self, result: Json | None = None) -> bytes:
        """Return the metrics of a finished run as in the file, after a check of result and metrics.

        Args:
            result: if it was read and checked before; None to read it.

        Raises:
            CorruptError: a file is unreadable or has changed since the run finished.
        """
        result = self.result() if result is None else result
        try:
            data = read_file(self.metrics_path)
        except OSError as error:
            raise CorruptError(f"{self.metrics_path}: cannot be read: {error.strerror}; {self._remedy}") from error
        if result is not None and hashlib.sha256(data).hexdigest() != result.get("metrics_sha256"):
            raise CorruptError(f"{self.metrics_path}: changed since the run finished; {self._remedy}")
        return data

    def evaluations(self, column: str) -> list[Json]:
        """Return the lines of metrics.jsonl so far that have a metric, in order."""
        if self.result_path.exists():
            return read_lines(self.metrics_path, holding=f'"{column}"'.encode())
        latest = self.latest_attempt()
        lines = latest.evaluations(column) if latest else []
        # If it has finished meanwhile, its attempts have no metrics.
        return self.evaluations(column) if not lines and self.result_path.exists() else lines

    def cancel(self) -> None:
        """Request that the run stop at its next step, now or when it trains again."""
        write_atomic(self.cancel_path, dumps({"process": process_identity().to_json()}))

    def give_up(self, number: int) -> None:
        """Leave the run to another owner: that of attempt `number` is dead, which a worker could not see itself."""
        attempt = self.attempt(number)
        if number and not attempt.failure() and attempt.liveness() == "unknown":
            with storage_errors(self.path):
                attempt.mark_lost()

    def retry(self) -> None:
        """Make the run trainable again: undo a cancellation, ignore failures, delete a damaged result.

        The caller makes sure that it does not train: an owner of unknown liveness counts as dead from now on.
        """
        with storage_errors(self.path):
            self.cancel_path.unlink(missing_ok=True)
            try:
                if self.result() is not None:
                    self.history()
                    return  # finished and intact: training again would be identical
            except CorruptError:
                for path in (self.result_path, self.metrics_path):
                    path.unlink(missing_ok=True)
                self._set_out_aside()
            for number in self.attempt_numbers():
                self.attempt(number).mark_retried()

    def _set_out_aside(self) -> None:
        """Have the run start over: a checkpoint of its own in out/ would resume without the earlier metrics."""
        out, number = self.path / "out", max(self.attempt_numbers(), default=0)
        if number and out.is_dir() and not out.is_symlink() and any(out.iterdir()):
            out.rename(self.attempt(number).path.with_name(f"{number:04d}.out"))

    def status(self, liveness: Liveness | None = None) -> Status:
        """Derive the status; without `liveness`, only from processes of this machine.

        A run with a corrupt file is `failed`.
        """
        return self.status_and_result(liveness)[0]

    def status_and_result(self, liveness: Liveness | None = None) -> tuple[Status, Json | None]:
        """Return the status, and the result if the run is finished, from one read of result.json."""
        try:
            result = self.result()
        except CorruptError as error:
            latest = self.latest_attempt()
            return Status(State.FAILED, str(error), latest.progress() if latest else 0.0), None
        if result is None:
            status = self._unfinished(liveness or LocalLiveness())
            # The scheduler may take seconds. A run that finished meanwhile would look interrupted: read again.
            return self.status_and_result(liveness) if self.result_path.exists() else (status, None)
        return finished_status(result), result

    def _unfinished(self, liveness: Liveness) -> Status:
        attempts = [self.attempt(number) for number in reversed(self.attempt_numbers())]
        status = unfinished_status(self.id, attempts, self.cancel_path, liveness)
        return replace(status, attempt=attempts[0].number if attempts else 0)


# --- results ----------------------------------------------------------------------------------------------------------

MAX_SEEN = 20
"""Most names of metrics in a message."""

RECORDED = "recorded"
"""Entry of the result of own code: how many values each metric has."""

TRUSTED_GROUP = "trusted_group"
"""Entry of the result of a run whose worker had --trust-group."""


def recorded_counts(result: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Return how many values each metric of a finished run has; None if that was not recorded."""
    counts = (result or {}).get(RECORDED)
    return counts if isinstance(counts, dict) and all(isinstance(each, int) for each in counts.values()) else None


def make_result(
    spec: RunSpec, history: Sequence[Json], step: int, attempt: Attempt, spent: TimeSpent, *, diverged: bool
) -> Json:
    """Return the entries of result.json on status, scores, spikes, steps and cost.

    Args:
        spec: the run.
        history: lines of its metrics.jsonl, from all attempts.
        step: the last one, or the one at which it diverged.
        attempt: its last one.
        spent: time over all attempts.
        diverged: whether it diverged: then it has no score.

    Raises:
        InputError: it ended, and recorded no score.
    """
    from ettsweep.runs.spikes import count_spikes  # numpy, which reads the number of threads when it is imported

    result: Json = {"status": "diverged" if diverged else "done", **kind_of(spec).summary(spec, history, diverged)}
    result["score"] = None if diverged else result[spec.info.metric.name]
    if result["score"] is None and not diverged:
        raise InputError(_no_score_reason(spec, history))
    if diverged:
        result["diverged_step"] = step
    if spec.info.stop_signal:  # the program keeps them itself
        result["resumed_step"] = attempt.resumed_from()[1]
    return {
        **result,
        **count_spikes(history, spec),
        "steps": step,
        "wall_s": spent.wall_s,
        "device_s": spent.device_s,
        "steps_per_s": step / max(spent.wall_s, 1e-9),
        "corrupt_images": len(attempt.skipped_samples()),
        "attempts": attempt.number,
        **({TRUSTED_GROUP: True} if trusts_group() else {}),
    }


def _no_score_reason(spec: RunSpec, history: Sequence[Json]) -> str:
    metric = spec.info.metric
    seen = list(dict.fromkeys(name for line in history for name in line if name != "step"))
    names = ", ".join(seen[:MAX_SEEN]) + (", ..." if len(seen) > MAX_SEEN else "")
    at = f" at step {metric.take}" if isinstance(metric.take, int) else ""
    recorded = f"the run recorded {names}" if seen else "the run recorded nothing"
    return f"no score: {metric.column} is missing{at}; {recorded}"
