"""Run folders whose attempts are claimed, trained and lost by hand."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from ettsweep.files import dumps
from ettsweep.processes import Life, Process, boot_id
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import LocalLiveness, Owner, State, Status
from support.commandline import PATIENCE_S


def claimed(run: RunDir, owner: Process | None = None) -> Attempt:
    """Claim the next attempt, in the name of another process if one is given."""
    attempt = run.claim({"device": "cpu"}, after=max(run.attempt_numbers(), default=0))
    assert attempt is not None
    if owner is not None:
        (attempt.path / "claim.json").write_text(dumps({"process": owner.to_json()}))
    return attempt


def dead_process() -> Process:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return Process(socket.gethostname(), boot_id(), child.pid, "1")


def train(attempt: Attempt, first: int, last: int, tag: str = "") -> None:
    """Append the metrics of some steps, with an evaluation every fourth step."""
    lines: list[dict[str, Any]] = []
    for step in range(first, last + 1):
        lines.append({"step": step, "loss": 1 / step, "by": tag})
        if step % 4 == 0:
            lines.append({"step": step, "val_loss": 2 / step, "by": tag})
    attempt.append(attempt.metrics_path, lines)


def finished(run: RunDir, **result: object) -> RunDir:
    claimed(run)
    assert run.finish({"status": "done", "score": 0.5} | result, [{"step": 1, "loss": 0.5}])
    return run


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


def python(script: str, *arguments: object) -> str:
    """Run a script in another process, since this one may have threads, and return what it prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


class StubLiveness(LocalLiveness):
    """A liveness that answers as a test wants for every run, or asks this machine."""

    def __init__(self, *queued: str, life: Life | None = None, job_status: Status | None = None) -> None:
        self.queued, self.life, self.answer = queued, life, job_status

    def owner(self, attempt: Attempt) -> Owner:
        return Owner(self.life, "n1") if self.life else super().owner(attempt)

    def job_status(self, run_id: str) -> Status | None:
        return Status(State.QUEUED) if run_id in self.queued else self.answer


def state(run: RunDir, *queued: str) -> tuple[State, str]:
    status = run.status(StubLiveness(*queued))
    return status.state, status.reason
