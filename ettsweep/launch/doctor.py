"""What works here: one row a check, each found out by trying."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ettsweep.errors import EttsweepError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.launch.profiles import LocalProfile, load_profile
from ettsweep.resources import shipped
from ettsweep.sweep.gridfile import load_request
from ettsweep.tasks.registry import TASKS, check_data


@dataclass(frozen=True)
class Check:
    """One row: `ok` is None where something is absent that not everyone needs."""

    what: str
    ok: bool | None
    detail: str


def examine(results: Path, profile: str, needs_data: bool = False) -> list[Check]:
    """Return all checks; `needs_data`: whether a data set that is not there is a failure."""
    checks: list[tuple[str, Callable[[], str], bool]] = [
        ("python", lambda: sys.version.split()[0], True),
        ("torch", _torch, True),
        (f"profile {profile}", lambda: _slots(profile), True),
        (f"results {results}", lambda: _writable(results), True),
        ("grids", _grids, True),
        ("timm", lambda: _version("timm"), False),
        ("slurm", _slurm, False),
    ]
    checks += [(f"data {name}", _data(name), needs_data or name == "digits") for name in TASKS]
    return [_check(*check) for check in checks]


def _check(what: str, look: Callable[[], str], needed: bool) -> Check:
    try:
        return Check(what, True, look())
    except Exception as error:  # a doctor reports whatever is wrong
        text = str(error).splitlines()
        return Check(what, False if needed else None, text[0] if text else type(error).__name__)


def _torch() -> str:
    # In a process of its own: a broken torch must not take the report down with it.
    code = (
        "import torch; g = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())];"
        "print(torch.__version__, ', '.join(g) or 'CPU only', torch.backends.cpu.get_cpu_capability(), sep='; ')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "cannot be imported")
    return done.stdout.strip()


def _slots(profile: str) -> str:
    loaded = load_profile(profile)
    assert isinstance(loaded, LocalProfile)
    slots = loaded.resolve()
    return f"{len(slots)} slots: {', '.join(slot.name for slot in slots)}; {slots[0].threads} threads each"


def _writable(results: Path) -> str:
    folder = results if results.exists() else results.resolve().parent
    with storage_errors(folder):
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        probe = folder / ".ettsweep-doctor"
        write_atomic(probe, "")
        probe.unlink()
    return f"writable, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free"


def _grids() -> str:
    paths = sorted({*Path("grids").glob("*.yaml"), *shipped("grids").glob("*.yaml")})
    for path in paths:
        load_request(path)
    return f"{len(paths)} valid: {', '.join(dict.fromkeys(path.stem for path in paths))}"


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _slurm() -> str:
    if shutil.which("sbatch") is None:
        raise EttsweepError("sbatch is not on the PATH")
    done = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _data(name: str) -> Callable[[], str]:
    def look() -> str:
        check_data(TASKS[name])
        if name == "digits":
            return f"comes with scikit-learn {_version('scikit-learn')}"
        return "found"

    return look
