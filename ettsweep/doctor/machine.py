"""Check this machine and a launch profile, a row for each check.

It submits nothing and leaves no files.
"""

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.doctor.checks import DoctorCheck, existing_folder, run_check, torch_facts, try_compiler
from ettsweep.doctor.cluster import examine_cluster
from ettsweep.errors import CorruptError, EttsweepError, InputError, StorageError
from ettsweep.files import folder_names, storage_errors, write_atomic
from ettsweep.kinds.transformer import transformer_run
from ettsweep.launch import slurm_api
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.profile import AnyProfile, load_profile
from ettsweep.processes import GIB, count_cores, machine_bytes, memory_bytes
from ettsweep.runs.folder import RunDir, is_run_id, runs_dir
from ettsweep.shipped_files import own_grids, shipped_grids
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.device import prepare_device
from ettsweep.trainer.models.model_cost import checkpoint_bytes
from ettsweep.trainer.models.registry import model_name
from ettsweep.trainer.specs import TaskSpec
from ettsweep.trainer.tasks.registry import TASKS, check_data, located_data, task_kind, task_spec


def examine(
    results: Path, profile: str, launch_set: Sequence[str], required: tuple[TaskSpec, str] | None = None
) -> list[DoctorCheck]:
    """Return all checks of this machine and, for a SLURM profile, of the cluster.

    Args:
        results: the results folder.
        profile: name of a launch profile, or its file.
        launch_set: `KEY=VALUE` changes to the profile.
        required: task and location of a data set that must exist; others may be absent.
    """
    loaded, row = _load_profile(profile, launch_set)
    cluster_profile = loaded if loaded and loaded.kind == "slurm" else None
    rows = [
        run_check("python", lambda: sys.version.split()[0]),
        run_check("machine", _describe_machine),
        run_check("torch", _describe_torch),
        row,
        *_compiler_rows(loaded),
        run_check(f"results {results}", lambda: _check_writable(results)),
        run_check("runs", lambda: _check_runs(results)),
        run_check("grids", _check_grids),
        run_check("timm", lambda: version("timm"), "absent"),
    ]
    for name, entry in TASKS.items():
        task, data = task_spec(name), None
        kind = entry.data_kind(task)
        if task.kind != name or kind not in ("", name):  # another name of the same data, or another task on them
            continue
        if required and kind and task_kind(required[0]).data_kind(required[0]) == kind:
            task, data = required
        # Packaged data must exist; users need other data only to train on them.
        is_required = not kind or data is not None
        rows.append(
            run_check(f"data {task.name}", partial(_check_data, task, data), "failed" if is_required else "absent")
        )
    rows.append(run_check("slurm", _slurm_version, "failed" if cluster_profile else "absent"))
    if cluster_profile and rows[-1].state == "ok":
        try:
            rows += examine_cluster(results, cluster_profile)
        except Exception as error:  # versions and sites of SLURM print in different formats
            rows.append(DoctorCheck("cluster", "failed", f"cannot parse its answers: {error!r}"))
    return rows


def _describe_machine() -> str:
    """Return a text on cores and memory of processes here, with their limits."""
    memory, machine = memory_bytes() / GIB, machine_bytes() / GIB
    limited = f": cgroup limit of {machine:.1f}" if memory < machine else ""
    return f"{count_cores()}; {memory:.1f} GiB of memory{limited}"


def _describe_torch() -> str:
    facts = torch_facts()
    return "; ".join([facts["version"], facts["devices"] or "CPU only", facts["cpu"]])


def _compiler_rows(profile: AnyProfile | None) -> Iterator[DoctorCheck]:
    """Yield a check of `torch.compile`, if runs use it here: on a GPU, or by the profile."""
    try:
        has_gpu = bool(torch_facts()["devices"])
        gpu = has_gpu and not (profile and profile.run_devices().kind == "cpu")
    except (RuntimeError, InputError):
        return  # the row `torch`, or that of the profile, reports it
    is_requested = profile is not None and profile.trainer.compile is True
    if gpu:
        yield run_check("compiler", partial(try_compiler, "cuda"), "failed" if is_requested else "warning")
    elif is_requested:
        yield run_check("compiler", partial(try_compiler, "cpu"))


def _load_profile(name: str, launch_set: Sequence[str]) -> tuple[AnyProfile | None, DoctorCheck]:
    """Return the profile, None if it is invalid, and a row on its requests."""
    row_name = f"profile {name}"
    try:
        loaded = load_profile(name, launch_set)
    except EttsweepError as error:
        return None, DoctorCheck(row_name, "failed", "; ".join(str(error).splitlines()))
    return loaded, run_check(row_name, loaded.describe)


def _check_writable(results: Path) -> str:
    folder = existing_folder(results)
    with storage_errors(folder):
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        # Claims need hard links, which some network and FUSE file systems lack.
        probe, link = folder / f".ettsweep-doctor-{os.getpid()}", folder / f".ettsweep-doctor-{os.getpid()}.link"
        write_atomic(probe, "")
        try:
            link.hardlink_to(probe)
        except OSError as error:
            raise StorageError(f"{folder} has no hard links ({error.strerror}); pass another --results") from error
        finally:
            link.unlink(missing_ok=True)
            probe.unlink()
    return f"writable, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free"


def _check_runs(results: Path) -> str:
    """Read all finished runs from disk, without a cache, and return their number.

    Raises:
        CorruptError: files of some have changed since they finished.
    """
    damaged, count = list[str](), 0
    for run in (RunDir(runs_dir(results) / name) for name in folder_names(runs_dir(results)) if is_run_id(name)):
        try:
            if run.result() is not None:
                count += 1
                run.spec()
                run.metrics_data()
        except CorruptError as error:
            damaged.append(str(error))
    if damaged:
        raise CorruptError(f"{format_count(len(damaged), 'run')} with damaged files; the first: {damaged[0]}")
    return f"{format_count(count, 'finished run')}, unchanged"


def _check_grids() -> str:
    paths = [*own_grids(), *shipped_grids()]
    for path in paths:
        load_sweep_spec(path)
    return f"{len(paths)} valid: {', '.join(dict.fromkeys(path.stem for path in paths))}"


def _check_data(task: TaskSpec, data: str | None) -> str:
    check_data(task, data=data)
    return task_kind(task).describe_data(task, located_data(task, data))


def _slurm_version() -> str:
    if shutil.which("sbatch") is None:
        raise EttsweepError("sbatch is not on the PATH")
    return slurm_api.run_command("sinfo", "--version").strip()


# --- checkpoints ----------------------------------------------------------------------------------------------------


def examine_saving(results: Path, sweep_spec: SweepSpec, name: str, launch_set: Sequence[str]) -> Iterator[DoctorCheck]:
    """Yield a check that a SLURM job has time to save a grid's model after its warning, except for small models."""
    if (spec := transformer_run(sweep_spec.studies()[0].base)) is None:
        return
    try:
        profile = load_profile(name, launch_set)
    except EttsweepError:
        return  # `examine` reports it
    warning_s, n_bytes = profile.warning_s(), checkpoint_bytes(spec.model, spec.optimizer)
    if warning_s is None or n_bytes < SMALL_BYTES:
        return
    row_name = f"checkpoint {model_name(spec.model)}"
    try:
        bytes_per_s = _write_bytes_per_s(existing_folder(results))
    except EttsweepError as error:
        yield DoctorCheck(row_name, "warning", f"cannot measure the time to write it: {error}")
        return
    takes_s = n_bytes / bytes_per_s
    duration = (
        f"{n_bytes / GIB:.1f} GiB take about {takes_s:.0f} s, at {bytes_per_s / 1e6:.0f} MB/s of a short write here"
    )
    if takes_s <= warning_s:
        yield DoctorCheck(row_name, "ok", f"{duration}; jobs get a warning {warning_s} s before their end")
    else:
        remedy = f"pass --launch-set warn_s={math.ceil(2 * takes_s)}"
        yield DoctorCheck(
            row_name, "warning", f"{duration}, but jobs get a warning {warning_s} s before their end; {remedy}"
        )


SMALL_BYTES = 2**28
"""Size in bytes below which checkpoints take a second or so, and need no check."""


def _write_bytes_per_s(folder: Path) -> float:
    """Return the speed of writing and syncing a file in a folder, in bytes per second."""
    probe, data = folder / f".ettsweep-doctor-{os.getpid()}", os.urandom(2**26)
    try:
        began_s = time.perf_counter()
        write_atomic(probe, data)
        return len(data) / (time.perf_counter() - began_s)
    finally:
        with contextlib.suppress(OSError):  # an unwritable folder may also fail here
            probe.unlink()


# --- memory ---------------------------------------------------------------------------------------------------------


def examine_fit(sweep_spec: SweepSpec, name: str, launch_set: Sequence[str]) -> Iterator[DoctorCheck]:
    """Yield the largest micro-batch of a grid's model that fits on a device, without and with checkpointing.

    With a SLURM profile, try the first device of this machine; from a login node, run it with srun.
    """
    base = sweep_spec.studies()[0].base
    if (spec := transformer_run(base)) is None:
        raise InputError(f"--fit needs a model of the built-in trainer; {base.info.labels.title} is not one")
    profile = load_profile(name, launch_set)
    slot = (profile.resolve_slots() or LocalProfile().resolve_slots())[0]
    device = prepare_device(slot.device, slot.gpu, slot.sharers, slot.threads)
    from ettsweep.trainer.training.distributed import ProcessGroup  # imports torch: only after the device is set
    from ettsweep.trainer.training.memory import largest_step
    from ettsweep.trainer.training.run import environment
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve_by_size

    group = ProcessGroup(world_size=profile.devices_per_run)
    requested = profile.trainer.sharded
    settings = RuntimeSettings(sharded=None if requested == "auto" else requested)
    sharded = bool(resolve_by_size(spec.model, settings, group).sharded)
    device_name = environment(device)["device_name"] if device.type == "cuda" else "this machine"
    local_batch = -(-spec.batch_size // group.world_size)  # round up: the largest share of a device
    sample, row_name = task_kind(spec.task).sample, f"fit {model_name(spec.model)} {spec.precision}"
    row_name += f", sharded over {group.world_size} devices" if sharded else ""
    for recompute in (False, True):
        option = " with trainer.activation_checkpointing=true" if recompute else ""
        step = largest_step(
            spec, device, group, recompute=recompute, sharded=sharded, steps=2
        )  # the first step is slower
        if step is None:
            yield DoctorCheck(row_name, "failed", f"a single {sample} does not fit on {device_name}{option}")
            continue
        memory = f"{step.memory_bytes / GIB:.1f} GiB of {device_name}" if step.memory_bytes else device_name
        speed = f"{step.samples_per_s:,.1f} {sample}s/s"
        setting = f"trainer.micro_batch={step.size} of {local_batch}{option}"
        yield DoctorCheck(row_name, "ok", f"{setting}: {memory}; {speed}")
