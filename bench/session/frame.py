"""A step of a session: items measured one after the other by a process of its own, which may die of any of them.

What each item gave is written at once, in one rename. One that fails, or takes too long, costs the step a new process and
its own result, nothing else; when the step's time is up, the rest is "not reached". Nothing here imports torch.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ettsweep.files import write_atomic

Json = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[2]

GRACE_S = 2.0
"""Seconds that a process has to end by itself."""

SAID_CHARS = 1500
"""Of what an item printed, the last that are kept."""


@dataclass(frozen=True)
class Item:
    """Something to measure: `function`, named as module:name, is called in the other process and returns rows.

    Attributes:
        limit_s: seconds after which it has failed.
        alone: it starts programs of its own, to which the other process must leave all of the device.
    """

    name: str
    function: str
    arguments: Json = field(default_factory=dict)
    limit_s: float = 150.0
    alone: bool = False


@dataclass(frozen=True)
class Step:
    """Items that are measured together, within so many seconds."""

    number: int
    name: str
    items: Sequence[Item]
    budget_s: float

    @property
    def file_name(self) -> str:
        return f"{self.number}-{self.name}.json"


FIRST = Item("environment", "bench.session.environment:facts")
"""Of every step: where it is measured, and what products reach there now."""


class Measurer:
    """The process that measures items; after a failure there is a new one, since CUDA may be broken in the old one."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: _Process | None = None
        self._holds_device = False

    def measure(self, item: Item, limit_s: float) -> Json:
        """Return state and what came of an item: rows, or a message."""
        began_s = time.monotonic()
        if item.alone and self._holds_device:
            self.end()
        self._holds_device = not item.alone
        process = self._process or self._start()
        offset = self._log.stat().st_size
        try:
            answer = process.ask(item, limit_s)
        except (OSError, EOFError, TimeoutError) as error:
            answer = {"state": "failed", "message": self._why(process, error, limit_s, offset)}
        if answer["state"] == "failed":
            self.end()
        return {**answer, "wall_s": round(time.monotonic() - began_s, 2), "said": self._said(offset)}

    def end(self) -> None:
        if self._process:
            self._process.kill()
        self._process = None

    def _start(self) -> "_Process":
        self._process = _Process(self._log)
        return self._process

    def _why(self, process: "_Process", error: Exception, limit_s: float, offset: int) -> str:
        if isinstance(error, TimeoutError):
            return f"took more than {limit_s:.0f} s"
        code = process.kill()
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        last = self._said(offset).splitlines()[-1:]
        return ": ".join([f"its process ended by {how}", *last])

    def _said(self, offset: int) -> str:
        return self._log.read_bytes()[offset:].decode(errors="replace")[-SAID_CHARS:].strip()


class _Process:
    """A child in a session of its own, so that it ends with all that it has started."""

    def __init__(self, log: Path) -> None:
        self._answers, writer = os.pipe()
        command = [sys.executable, "-u", "-m", "bench.session.child", str(writer)]
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, pass_fds=[writer], start_new_session=True
            )
        os.close(writer)

    def ask(self, item: Item, limit_s: float) -> Json:
        assert self._popen.stdin
        question = {"function": item.function, "arguments": item.arguments}
        self._popen.stdin.write(json.dumps(question).encode() + b"\n")
        self._popen.stdin.flush()
        deadline_s, line = time.monotonic() + limit_s, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(self._answers, 65536)
            if not part:
                raise EOFError
            line += part
        answer: Json = json.loads(line)
        return answer

    def kill(self) -> int:
        """End it; return its code where it ends by itself, else that of the signal."""
        assert self._popen.stdin
        with suppress(OSError):
            self._popen.stdin.close()  # which tells it to
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        return self._popen.wait()


@contextmanager
def measurer(log: Path) -> Iterator[Measurer]:
    """Give a measurer that ends with the body, also where this process is told to."""
    made = Measurer(log)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield made
    finally:
        made.end()
        signal.signal(signal.SIGTERM, before)


def take(step: Step, out: Path, log: Path, header: Json) -> Json:
    """Measure a step, and return its record, which lies in a file of its own from the start on."""
    began_s, items = time.monotonic(), [FIRST, *step.items]
    record: Json = {
        "step": step.number,
        "name": step.name,
        **header,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "budget_s": step.budget_s,
        "wall_s": 0.0,
        "environment": {},
        "items": [{"item": item.name, "state": "not reached"} for item in items],
    }
    write(out / step.file_name, record)
    with measurer(log) as made:
        for number, item in enumerate(items):
            left_s = step.budget_s - (time.monotonic() - began_s)
            if left_s <= 0:
                break
            print(f"  {item.name} ...", end="", flush=True)
            found = made.measure(item, min(left_s, item.limit_s))
            print(f"\r  {item.name}: {brief(found)} ({found['wall_s']:.0f} s)", flush=True)
            record["items"][number] |= found
            if item is FIRST and found["state"] == "done":
                record["environment"] = found["rows"][0]
            record["wall_s"] = round(time.monotonic() - began_s, 1)
            write(out / step.file_name, record)
    return record


def write(path: Path, record: Json) -> None:
    """Write a record whole, one item a line, so that it can be read by people and compared."""
    items = ",\n".join(f"  {json.dumps(item, allow_nan=False)}" for item in record["items"])
    head = json.dumps({key: value for key, value in record.items() if key != "items"}, indent=1, allow_nan=False)
    write_atomic(path, f'{head[:-2]},\n "items": [\n{items}\n ]\n}}\n')


def brief(found: Json) -> str:
    """Return what came of an item in a line."""
    if found["state"] != "done":
        return f"{found['state']}: {found.get('message', '')}".rstrip(": ")[:160]
    row = found["rows"][-1] if found["rows"] else {}
    cells = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if v is not None]
    return ", ".join(cells)[:160]
