"""One finding of the doctor, and what its parts share."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ettsweep.errors import first_line

CheckState = Literal["ok", "warning", "absent", "failed"]


@dataclass(frozen=True)
class DoctorCheck:
    """One row.

    Attributes:
        state: `absent` is what not everyone needs; `warning` what works, but not as one may expect; with a `failed` one
            nothing can be trained.
    """

    what: str
    state: CheckState
    detail: str


def check(what: str, look: Callable[[], str], otherwise: CheckState = "failed") -> DoctorCheck:
    try:
        return DoctorCheck(what, "ok", look())
    except Exception as error:  # a doctor reports whatever is wrong
        return DoctorCheck(what, otherwise, first_line(error))


@cache
def torch_facts() -> dict[str, str]:
    code = (
        "import json, torch; g = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())];"
        "print(json.dumps({'version': torch.__version__, 'devices': ', '.join(g),"
        " 'cpu': torch.backends.cpu.get_cpu_capability(), 'gpu': torch.version.cuda or torch.version.hip or ''}))"
    )
    facts = json.loads(_said_by(code, "cannot be imported"))
    assert isinstance(facts, dict)
    return facts


def compiler(device: str) -> str:
    """Return what came of compiling a toy block for a device.

    Raises:
        RuntimeError: it cannot be done.
    """
    code = (
        "import time, torch; from ettsweep.trainer.models.compiler import obstacle; began_s = time.perf_counter();"
        f"why = obstacle(torch.device({device!r})); print(why or f'{{time.perf_counter() - began_s:.1f}} s', bool(why))"
    )
    result, _, failed = _said_by(code, "cannot be started").rpartition(" ")
    if failed == "True":
        raise RuntimeError(result)
    return f"compiles a toy block for {device} in {result}"


def _said_by(code: str, otherwise: str) -> str:
    """Return the last line that a program prints, in a process of its own: a broken torch breaks that alone."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1] if process.stderr.strip() else otherwise)
    return process.stdout.splitlines()[-1]


def existing(results: Path) -> Path:
    return results if results.exists() else results.resolve().parent
