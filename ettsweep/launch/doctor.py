"""What works here, and what a launch profile would get on a SLURM cluster: one row a check, each found out by trying.

Nothing is submitted, and nothing stays behind.
"""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ettsweep.errors import EttsweepError, StorageError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.profiles import AnyProfile, LocalProfile, SlurmProfile, load_profile
from ettsweep.resources import shipped
from ettsweep.sweep.gridfile import load_request
from ettsweep.tasks.registry import TASKS, check_data

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


def examine(results: Path, profile: str, launch_set: Sequence[str] = (), needs_data: bool = False) -> list[Check]:
    """Return all checks.

    Args:
        results: the results folder, which need not exist.
        profile: name or file of the launch profile.
        launch_set: `key=value` for its fields.
        needs_data: whether a data set that is not there is a failure.
    """
    loaded, row = _profile(profile, launch_set)
    on_slurm = isinstance(loaded, SlurmProfile)
    rows = [
        _check("python", lambda: sys.version.split()[0]),
        _check("torch", _torch),
        row,
        _check(f"results {results}", lambda: _writable(results)),
        _check("grids", _grids),
        _check("timm", lambda: _version("timm"), "absent"),
    ]
    rows += [
        _check(f"data {name}", _data(name), "failed" if needs_data or name == "digits" else "absent") for name in TASKS
    ]
    rows.append(_check("slurm", _slurm, "failed" if on_slurm else "absent"))
    if isinstance(loaded, SlurmProfile) and rows[-1].state == "ok":
        try:
            rows += _cluster(results, loaded)
        except Exception as error:  # what this SLURM prints is not what others do
            rows.append(Check("cluster", "failed", f"its answers cannot be read: {error!r}"))
    return rows


def _check(what: str, look: Callable[[], str], otherwise: CheckState = "failed") -> Check:
    try:
        return Check(what, "ok", look())
    except Exception as error:  # a doctor reports whatever is wrong
        text = str(error).splitlines()
        return Check(what, otherwise, text[0] if text else type(error).__name__)


# --- this machine ---------------------------------------------------------------------------------------------------


def _torch() -> str:
    facts = _torch_facts()
    return "; ".join([facts["version"], facts["devices"] or "CPU only", facts["cpu"]])


@cache
def _torch_facts() -> dict[str, str]:
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


def _profile(name: str, launch_set: Sequence[str]) -> tuple[AnyProfile | None, Check]:
    """Return the profile, None where it is not valid, and what it asks for."""
    what = f"profile {name}"
    try:
        loaded = load_profile(name, launch_set)
    except EttsweepError as error:
        return None, Check(what, "failed", "; ".join(str(error).splitlines()))
    return loaded, _check(what, lambda: _slots(loaded) if isinstance(loaded, LocalProfile) else _job(loaded))


def _slots(profile: LocalProfile) -> str:
    slots = profile.resolve()
    return f"{len(slots)} slots: {', '.join(slot.name for slot in slots)}; {slots[0].threads} threads each"


def _job(profile: SlurmProfile) -> str:
    """Say what a job asks for."""
    per_node = [_count(profile.workers * profile.cpus, "CPU")]
    if profile.gpus:
        per_node.append(_count(profile.gpus, "GPU"))
    per_node.append("the site's memory" if profile.mem_gb is None else f"{profile.mem_gb:g} GiB")
    told = [
        f"a job: {_count(profile.nodes, 'node')} with {', '.join(per_node)}; {_span(profile.time_min)}",
        f"runs a job: {profile.runs_per_job}",
        f"starts {profile.python or sys.executable}, which the nodes must have (only a job can tell)",
    ]
    return "; ".join(told)


def _writable(results: Path) -> str:
    folder = _existing(results)
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


def _existing(results: Path) -> Path:
    return results if results.exists() else results.resolve().parent


def _grids() -> str:
    paths = sorted({*Path("grids").glob("*.yaml"), *shipped("grids").glob("*.yaml")})
    for path in paths:
        load_request(path)
    return f"{len(paths)} valid: {', '.join(dict.fromkeys(path.stem for path in paths))}"


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _data(name: str) -> Callable[[], str]:
    def look() -> str:
        check_data(TASKS[name])
        if name == "digits":
            return f"comes with scikit-learn {_version('scikit-learn')}"
        return "found"

    return look


def _slurm() -> str:
    if shutil.which("sbatch") is None:
        raise EttsweepError("sbatch is not on the PATH")
    return slurm.ask("sinfo", "--version").strip()


# --- a SLURM cluster ------------------------------------------------------------------------------------------------


def _cluster(results: Path, profile: SlurmProfile) -> list[Check]:
    """Say what the cluster has, and what the profile would get."""
    try:
        config, partitions, nodes = slurm.configuration(), slurm.partitions(), slurm.nodes()
    except slurm.NoAnswerError as error:
        return [Check("cluster", "failed", f"SLURM does not answer: {error}")]
    told = f"{config.get('ClusterName', '?')}, SLURM {config.get('SLURM_VERSION', '?')}, {config.get('SLURM_CONF', '')}"
    rows = [Check("cluster", "ok", told)]
    rows += [_partition(partition, partitions, nodes, config) for partition in partitions]
    rows += [_limits(config), _preemption(config)]
    rows += _accounting(config)
    rows += _judged(results, profile, partitions, nodes, config)
    rows.append(_check("sbatch --test-only", lambda: _would_start(results, profile)))
    return rows


def _partition(
    partition: slurm.Partition,
    partitions: Sequence[slurm.Partition],
    nodes: Sequence[slurm.Node],
    config: dict[str, str],
) -> Check:
    own = [node for node in nodes if node.partition == partition.name]
    kinds: dict[str, int] = {}
    for node in own:
        gpus = f", {_count(node.gpus, 'GPU')}" if node.gpus else ""
        kind = f"{_count(node.cpus, 'CPU')}, {node.mem_mb / 1024:.1f} GiB{gpus}"
        kinds[kind] = kinds.get(kind, 0) + 1
    broken = sum(node.broken for node in own)
    longest = "no time limit" if partition.max_min is None else f"at most {_span(partition.max_min)}"
    without = "" if partition.default_min is None else f", {_span(partition.default_min)} if none is asked for"
    told = [
        partition.fields.get("State", "UP").lower(),
        " + ".join(f"{_count(count, 'node')} with {kind}" for kind, count in kinds.items()) or "no nodes",
        f"{broken} of them down or drained" if broken else "",
        longest + without,
        _preempted_by(partition, partitions, nodes, config),
    ]
    name = f"partition {partition.name}" + (" (default)" if partition.default else "")
    return Check(name, "ok" if partition.up and broken < len(own) else "warning", "; ".join(filter(None, told)))


def _preempted_by(
    partition: slurm.Partition,
    partitions: Sequence[slurm.Partition],
    nodes: Sequence[slurm.Node],
    config: dict[str, str],
) -> str:
    how = partition.fields.get("PreemptMode", "OFF").upper()
    kind = config.get("PreemptType", "preempt/none")
    if how == "OFF" or kind == "preempt/none":
        return "never preempted"
    then = "then requeued" if "REQUEUE" in how else "then cancelled" if "CANCEL" in how else f"then {how.lower()}"
    then += f" after {partition.grace_s} s of grace" if partition.grace_s else " at once"
    if kind != "preempt/partition_prio":
        return f"preempted by {kind.removeprefix('preempt/')}, {then}"
    mine = {node.name for node in nodes if node.partition == partition.name}
    others = [
        other.name
        for other in partitions
        if other.tier > partition.tier and mine & {node.name for node in nodes if node.partition == other.name}
    ]
    return f"preempted by {', '.join(others)}, {then}" if others else "never preempted"


def _limits(config: dict[str, str]) -> Check:
    told = [
        f"{config.get('MaxArraySize', '?')} tasks an array (MaxArraySize; more runs become several arrays)",
        f"{config.get('MaxJobCount', '?')} jobs in all (MaxJobCount)",
        f"{config.get('KillWait', '?')} from TERM to KILL (KillWait)",
        f"JobRequeue {config.get('JobRequeue', '?')} (ettsweep asks for --requeue itself)",
    ]
    return Check("limits", "ok", "; ".join(told))


def _preemption(config: dict[str, str]) -> Check:
    kind = config.get("PreemptType", "preempt/none").removeprefix("preempt/")
    if kind == "none":
        return Check("preemption", "ok", "none on this cluster")
    if "preempt_send_user_signal" in config.get("SlurmctldParameters", ""):
        warned = "jobs are warned with their own signal before (preempt_send_user_signal)"
    else:
        warned = "jobs are told by TERM alone (no preempt_send_user_signal)"
    return Check("preemption", "ok", f"{kind}, {config.get('PreemptMode', '?')}; {warned}; runs save at either")


def _accounting(config: dict[str, str]) -> list[Check]:
    """Say whether the accounting answers, and what it lets the user do."""
    age = config.get("MinJobAge", "300 sec")
    lost = f"why a job ended is not known once SLURM forgets it (MinJobAge, {age}); all else works"
    if config.get("AccountingStorageType", "").endswith(("/none", "(null)")):
        return [Check("accounting", "absent", f"off: {lost}")]
    user = _user()
    try:
        slurm.ask("sacct", "-n", "-P", "-X", "-S", "now", "-o", "JobID")
        accounts, qualities = slurm.accounts(user), slurm.qualities()
    except slurm.NoAnswerError as error:
        return [Check("accounting", "absent", f"does not answer ({error}): {lost}")]
    rows = [Check("accounting", "ok", "sacct answers")]
    for account in accounts:
        where = f" in partition {account['partition']}" if account.get("partition") else ""
        limits = _given(account, {"maxjobs": "jobs at a time", "maxsubmit": "jobs submitted", "maxwall": "a job"})
        default = f" (default {account['defaultqos']})" if account.get("defaultqos") else ""
        told = f"of {user}{where}; QOS {account.get('qos') or 'none'}{default}; {limits}"
        rows.append(Check(f"account {account['account']}", "ok", told))
    mine = {name for account in accounts for name in account.get("qos", "").split(",")}
    for quality in qualities:
        if mine and quality["name"] not in mine:
            continue
        limits = _given(quality, {"maxjobspu": "jobs at a time", "maxsubmitpu": "jobs submitted", "maxwall": "a job"})
        preempts = f"; preempts QOS {quality['preempt']}" if quality.get("preempt") else ""
        rows.append(Check(f"qos {quality['name']}", "ok", limits + preempts))
    return rows


def _given(row: dict[str, str], words: dict[str, str]) -> str:
    """Return the limits of an account or a QOS, in words."""
    limits = ", ".join(f"{row[key]} {word}" for key, word in words.items() if row.get(key))
    return f"at most {limits}" if limits else "no limits of its own"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _would_start(results: Path, profile: SlurmProfile) -> str:
    """Return sbatch's own words on an array of one run."""
    from ettsweep.launch.executors import ArrayExecutor
    from ettsweep.launch.submit import would_start

    folder = results.resolve() / "jobs" / "XXXXXXXX"
    return would_start(ArrayExecutor(folder, profile, "ettsweep-doctor", 1, 1, None).script())


# --- what a profile would get ---------------------------------------------------------------------------------------


def _judged(
    results: Path,
    profile: SlurmProfile,
    partitions: Sequence[slurm.Partition],
    nodes: Sequence[slurm.Node],
    config: dict[str, str],
) -> list[Check]:
    """Return what sbatch does not say, or says in words that leave one guessing."""
    asked = profile.partition or os.environ.get("SBATCH_PARTITION")
    names = asked.split(",") if asked else [p.name for p in partitions if p.default]
    chosen = [p for p in partitions if p.name in names]
    rows = [_time(profile, chosen), _down(chosen)] if chosen else []
    own = {node.name: node for node in nodes if node.partition in names}
    rows += _sizes(profile, list(own.values()), ", ".join(names)) if own else []
    rows += [_warning(profile, config), _gpu_torch(profile), _shared(results)]
    return [row for row in rows if row is not None]


def _time(profile: SlurmProfile, chosen: Sequence[slurm.Partition]) -> Check | None:
    """SLURM accepts a job above the limit of its partition, unless EnforcePartLimits is set, and never starts it."""
    limits = {p.name: p.max_min for p in chosen if p.max_min is not None and p.max_min < profile.time_min}
    if len(limits) < len(chosen) or not limits:
        return None
    told = ", ".join(f"partition {name} allows {_span(limit)}" for name, limit in limits.items())
    longest = max(limits.values())
    hint = f"time_min={int(longest)}" if longest >= 1 else "another partition"
    detail = f"{profile.time_min}: {told}; SLURM takes such a job and never starts it; what would work: {hint}"
    return Check("time_min", "warning" if profile.qos else "failed", detail)  # a QOS may lift the limit


def _down(chosen: Sequence[slurm.Partition]) -> Check | None:
    if any(p.up for p in chosen):
        return None
    told = ", ".join(f"{p.name} is {p.fields.get('State', '').lower()}" for p in chosen)
    return Check("partition", "warning", f"{told}: jobs wait until that changes")


def _sizes(profile: SlurmProfile, nodes: Sequence[slurm.Node], where: str) -> list[Check]:
    """Compare what a job asks for on a node with what the nodes have."""
    cpus, mem_mb = profile.workers * profile.cpus, round(1024 * (profile.mem_gb or 0))
    rows = []
    most = max(node.cpus for node in nodes)
    if cpus > most:
        times = f" x {profile.workers} GPUs" if profile.workers > 1 else ""
        rows.append(Check("cpus", "failed", f"{profile.cpus}{times}: no node of {where} has more than {most}"))
    most = max(node.mem_mb for node in nodes)
    if mem_mb > most:
        rows.append(
            Check("mem_gb", "failed", f"{profile.mem_gb:g}: no node of {where} has more than {most / 1024:.1f}")
        )
    most = max(node.gpus for node in nodes)
    if profile.gpus > most:
        hint = "; gpus=0 trains on the CPU" if not most else ""
        rows.append(Check("gpus", "failed", f"{profile.gpus}: no node of {where} has more than {most}{hint}"))
    if rows:
        return rows
    fit = [n for n in nodes if n.cpus >= cpus and n.mem_mb >= mem_mb and n.gpus >= profile.gpus]
    if len(fit) < profile.nodes:
        detail = f"{profile.nodes}: {len(fit)} nodes of {where} have all that a job asks for on each"
        return [Check("nodes", "failed", detail)]
    if sum(not n.broken for n in fit) < profile.nodes:
        return [Check("nodes", "warning", f"those of {where} that are large enough are down or drained: jobs wait")]
    return []


def _warning(profile: SlurmProfile, config: dict[str, str]) -> Check | None:
    words = config.get("KillWait", "").split()
    wait_s = int(words[0]) if words and words[0].isdigit() else 0
    if profile.warn_s > wait_s:
        return None
    told = f"{profile.warn_s} s before the end is no longer than what KillWait leaves anyway ({wait_s} s)"
    return Check("warn_s", "warning", f"{told}: a checkpoint may not be written in time; 120 is usual")


def _gpu_torch(profile: SlurmProfile) -> Check | None:
    if not profile.gpus or profile.python:
        return None
    try:
        facts = _torch_facts()
    except Exception:  # its own row says so
        return None
    if facts["gpu"]:
        return None
    return Check(
        "gpus", "warning", f"{profile.gpus}, but torch {facts['version']} is built without GPUs: runs would fail"
    )


NO_NETWORK = {
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "bcachefs",
    "overlay",
    "tmpfs",
    "ramfs",
    "squashfs",
}
"""File systems of one machine."""

OF_EACH_NODE = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Folders that each node has for itself."""


def _shared(results: Path) -> Check | None:
    """Say what the results folder lies on: nodes must see it under the same path."""
    folder = _existing(results).resolve()
    kind, mount = file_system(folder)
    if not kind:
        return None
    if kind in ("tmpfs", "ramfs") or any(folder.is_relative_to(place) for place in OF_EACH_NODE):
        return Check(
            "shared folder",
            "warning",
            f"{folder} ({kind} at {mount}): each node has its own, so jobs would not find it",
        )
    if kind in NO_NETWORK:
        detail = f"{folder} ({kind} at {mount}) is a disk of this machine: do nodes see it under this path?"
        return Check("shared folder", "warning", detail)
    return Check("shared folder", "ok", f"{folder} ({kind} at {mount}); nodes must see it under this path")


def file_system(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> tuple[str, str]:
    """Return the type of the file system of a folder, and where it is mounted; empty where that cannot be known."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return "", ""
    found = "", ""
    for line in lines:  # a later one covers an earlier one at the same place
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), before.split()[4])  # a space is \040
        if folder.is_relative_to(mount) and len(mount) >= len(found[1]):
            found = after.split()[0], mount
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _span(minutes: float) -> str:
    """Return a time as people say it."""
    for unit, size in (("days", 1440), ("h", 60)):
        if minutes >= 2 * size or (minutes >= size and minutes % size == 0):
            return f"{minutes / size:.4g} {unit}"
    return f"{minutes:.4g} min"
