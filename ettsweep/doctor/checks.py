"""A check of `ettsweep doctor`, and helpers that its parts share."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ettsweep.errors import short_message

CheckState = Literal["ok", "warning", "absent", "failed"]


@dataclass(frozen=True)
class DoctorCheck:
    """The result of one check: a row of the doctor's table.

    Attributes:
        name: what was checked.
        state: `ok`; `warning` if it works with a surprise; `absent` if it is missing and optional; `failed` if no run
            can train with it.
        detail: facts if it works, else the reason.
    """

    name: str
    state: CheckState
    detail: str


def run_check(name: str, probe: Callable[[], str], failure_state: CheckState = "failed") -> DoctorCheck:
    """Run a probe and return its text as an `ok` row, or its error as a row with state `failure_state`."""
    try:
        return DoctorCheck(name, "ok", probe())
    except Exception as error:  # report any error, and run the other checks
        return DoctorCheck(name, failure_state, short_message(error))


@cache  # importing torch takes seconds
def torch_facts() -> dict[str, str]:
    """Return PyTorch's `version`, GPU names as `devices`, `cpu` capability and CUDA or ROCm version as `gpu`.

    Raises:
        RuntimeError: torch cannot be imported.
    """
    code = (
        "import json, torch; g = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())];"
        "print(json.dumps({'version': torch.__version__, 'devices': ', '.join(g),"
        " 'cpu': torch.backends.cpu.get_cpu_capability(), 'gpu': torch.version.cuda or torch.version.hip or ''}))"
    )
    facts = json.loads(_run_python(code, "cannot be imported"))
    assert isinstance(facts, dict)
    return facts


def try_compiler(device: str) -> str:
    """Compile a toy block for a device, and return a text with the time.

    Raises:
        RuntimeError: it cannot be compiled.
    """
    code = (
        "import time, torch; from ettsweep.trainer.models.compiler import obstacle; began_s = time.perf_counter();"
        f"why = obstacle(torch.device({device!r})); print(why or f'{{time.perf_counter() - began_s:.1f}} s', bool(why))"
    )
    result, _, failed = _run_python(code, "cannot be started").rpartition(" ")
    if failed == "True":
        raise RuntimeError(result)
    return f"compiles a toy block for {device} in {result}"


def _run_python(code: str, fallback: str) -> str:
    """Return the last output line of Python code in a new process, safe from a broken torch."""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, encoding="utf-8", errors="replace"
    )
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1] if process.stderr.strip() else fallback)
    return process.stdout.splitlines()[-1]


def existing_folder(results: Path) -> Path:
    """Return the results folder, or its parent if it does not exist yet."""
    return results if results.exists() else results.resolve().parent
