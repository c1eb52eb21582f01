"""What works here, and what a launch profile would get on a SLURM cluster: one row a check, each found out by trying.

Nothing is submitted, and nothing stays behind.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ettsweep.doctor.checks import Check, check, existing, torch_facts
from ettsweep.doctor.cluster import examine_cluster, job
from ettsweep.errors import EttsweepError, StorageError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.profiles import AnyProfile, LocalProfile, SlurmProfile, load_profile
from ettsweep.resources import shipped
from ettsweep.sweep.gridfile import load_request
from ettsweep.tasks.data import said
from ettsweep.tasks.kinds import TASKS, check_data, task_spec


def examine(results: Path, profile: str, launch_set: Sequence[str], data: Mapping[str, str]) -> list[Check]:
    """Return all checks.

    Args:
        results: the results folder, which need not exist.
        profile: name or file of the launch profile.
        launch_set: `key=value` for its fields.
        data: where the data sets are that must be there, by kind of task.
    """
    loaded, row = _profile(profile, launch_set)
    on_slurm = isinstance(loaded, SlurmProfile)
    rows = [
        check("python", lambda: sys.version.split()[0]),
        check("torch", _torch),
        row,
        check(f"results {results}", lambda: _writable(results)),
        check("grids", _grids),
        check("timm", lambda: _version("timm"), "absent"),
    ]
    needed = [name for name, entry in TASKS.items() if entry.packaged or name in data]
    rows += [
        check(f"data {name}", _data(name, data.get(name)), "failed" if name in needed else "absent") for name in TASKS
    ]
    rows.append(check("slurm", _slurm, "failed" if on_slurm else "absent"))
    if isinstance(loaded, SlurmProfile) and rows[-1].state == "ok":
        try:
            rows += examine_cluster(results, loaded)
        except Exception as error:  # what this SLURM prints is not what others do
            rows.append(Check("cluster", "failed", f"its answers cannot be read: {error!r}"))
    return rows


def _torch() -> str:
    facts = torch_facts()
    return "; ".join([facts["version"], facts["devices"] or "CPU only", facts["cpu"]])


def _profile(name: str, launch_set: Sequence[str]) -> tuple[AnyProfile | None, Check]:
    """Return the profile, None where it is not valid, and what it asks for."""
    what = f"profile {name}"
    try:
        loaded = load_profile(name, launch_set)
    except EttsweepError as error:
        return None, Check(what, "failed", "; ".join(str(error).splitlines()))
    return loaded, check(what, lambda: _slots(loaded) if isinstance(loaded, LocalProfile) else job(loaded))


def _slots(profile: LocalProfile) -> str:
    slots = profile.resolve()
    return f"{len(slots)} slots: {', '.join(slot.name for slot in slots)}; {slots[0].threads} threads each"


def _writable(results: Path) -> str:
    folder = existing(results)
    with storage_errors(folder):
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        probe, link = folder / f".ettsweep-doctor-{os.getpid()}", folder / f".ettsweep-doctor-{os.getpid()}.link"
        write_atomic(probe, "")
        try:
            link.hardlink_to(probe)
        except OSError as error:
            raise StorageError(f"{folder}: has no hard links ({error.strerror}), which results need") from error
        finally:
            link.unlink(missing_ok=True)
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


def _data(name: str, data: str | None) -> Callable[[], str]:
    def look() -> str:
        task = task_spec(name)
        check_data(task, data=data)
        return TASKS[name].found(task, said(name, data))

    return look


def _slurm() -> str:
    if shutil.which("sbatch") is None:
        raise EttsweepError("sbatch is not on the PATH")
    return slurm.ask("sinfo", "--version").strip()
