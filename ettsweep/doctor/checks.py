"""One finding of the doctor, and what its parts share."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

CheckState = Literal["ok", "warning", "absent", "failed"]


@dataclass(frozen=True)
class Check:
    """One row.

    Attributes:
        state: `absent` is what not everyone needs; `warning` what works, but not as one may expect; with a `failed` one
            nothing can be trained.
    """

    what: str
    state: CheckState
    detail: str


def check(what: str, look: Callable[[], str], otherwise: CheckState = "failed") -> Check:
    try:
        return Check(what, "ok", look())
    except Exception as error:  # a doctor reports whatever is wrong
        text = str(error).splitlines()
        return Check(what, otherwise, text[0] if text else type(error).__name__)


@cache
def torch_facts() -> dict[str, str]:
    # In a process of its own: a broken torch must not take the report down with it.
    code = (
        "import json, torch; g = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())];"
        "print(json.dumps({'version': torch.__version__, 'devices': ', '.join(g),"
        " 'cpu': torch.backends.cpu.get_cpu_capability(), 'gpu': torch.version.cuda or torch.version.hip or ''}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "cannot be imported")
    facts = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(facts, dict)
    return facts


def existing(results: Path) -> Path:
    return results if results.exists() else results.resolve().parent


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def span(minutes: float) -> str:
    """Return a time as people say it."""
    for unit, size in (("days", 1440), ("h", 60)):
        if minutes >= 2 * size or (minutes >= size and minutes % size == 0):
            return f"{minutes / size:.4g} {unit}"
    return f"{minutes:.4g} min"


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function that shows a person how far it is; no thread, since processes are forked beside it."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bars:
        bar = bars.add_task(what, total=total)

        def advance(count: int) -> None:
            bars.update(bar, advance=count, refresh=True)

        yield advance
