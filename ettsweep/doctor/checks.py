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
        return Check(what, otherwise, first_line(error))


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
