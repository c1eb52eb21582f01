"""Check a SLURM cluster, its limits, and the resources of a launch profile. Nothing is submitted."""

import os
import pwd
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from ettsweep.console import format_count, format_minutes
from ettsweep.doctor import inventory
from ettsweep.doctor.checks import DoctorCheck, existing_folder, run_check, torch_facts
from ettsweep.errors import SlurmUnavailableError
from ettsweep.launch import slurm_api
from ettsweep.launch.liveness import NO_ANSWER
from ettsweep.launch.slurm import Array, SlurmProfile, placeholder_folder


def examine_cluster(results: Path, profile: SlurmProfile) -> list[DoctorCheck]:
    """Return checks of the cluster and of a profile."""
    try:
        config, partitions, nodes = slurm_api.configuration(), inventory.partitions(), inventory.nodes()
    except SlurmUnavailableError as error:
        return [DoctorCheck("cluster", "failed", f"{NO_ANSWER}: {error}")]
    cluster = (
        f"{config.get('ClusterName', '?')}, SLURM {config.get('SLURM_VERSION', '?')}, {config.get('SLURM_CONF', '')}"
    )
    rows = [DoctorCheck("cluster", "ok", cluster)]
    rows += [_partition_row(partition, partitions, nodes, config) for partition in partitions]
    rows += [_limits_row(config), _preemption_row(config)]
    rows += _accounting_rows(config)
    sbatch_row = run_check("sbatch --test-only", lambda: _test_submission(results, profile))
    rows += _profile_rows(profile, partitions, nodes, has_start_time=" to start at " in sbatch_row.detail)
    rows += [
        row for row in (_warning_time_row(profile, config), _gpu_torch_row(profile), _shared_folder_row(results)) if row
    ]
    return [*rows, sbatch_row]


def _partition_row(
    partition: inventory.Partition,
    partitions: Sequence[inventory.Partition],
    nodes: Sequence[inventory.Node],
    config: dict[str, str],
) -> DoctorCheck:
    partition_nodes = [node for node in nodes if node.partition == partition.name]
    # Partitions of a higher tier that share nodes preempt jobs.
    node_names = {node.name for node in partition_nodes}
    sharing_partitions = {node.partition for node in nodes if node.name in node_names}
    preempting = [
        other.name for other in partitions if other.tier > partition.tier and other.name in sharing_partitions
    ]
    kinds = Counter(
        f"{format_count(node.cpus, 'CPU')}, {node.mem_mb / 1024:.1f} GiB"
        + (f", {format_count(node.gpus, 'GPU')}" if node.gpus else "")
        for node in partition_nodes
    )
    broken = sum(node.is_broken for node in partition_nodes)
    max_limit = "no time limit" if partition.max_min is None else f"at most {format_minutes(partition.max_min)}"
    default_limit = "" if partition.default_min is None else f", {format_minutes(partition.default_min)} by default"
    state = partition.state.lower()
    facts = [
        state + (": jobs wait until that changes" if state == "down" else ""),
        " + ".join(f"{format_count(number, 'node')} with {kind}" for kind, number in kinds.items()) or "no nodes",
        f"{broken} of them down or drained" if broken else "",
        max_limit + default_limit,
        _describe_preemption(partition, preempting, config),
    ]
    name = f"partition {partition.name}" + (" (default)" if partition.is_default else "")
    is_usable = partition.state == "UP" and broken < len(partition_nodes)
    return DoctorCheck(name, "ok" if is_usable else "warning", "; ".join(filter(None, facts)))


def _describe_preemption(partition: inventory.Partition, preempting: Sequence[str], config: dict[str, str]) -> str:
    """Return a text on the preemption of jobs of a partition.

    Args:
        partition: the partition.
        preempting: names of partitions of a higher tier that share nodes with it.
        config: SLURM's configuration.
    """
    mode = partition.preempt_mode
    kind = config.get("PreemptType", "preempt/none")
    if mode == "OFF" or kind == "preempt/none":
        return "never preempted"
    fate = "then requeued" if "REQUEUE" in mode else "then cancelled" if "CANCEL" in mode else f"then {mode.lower()}"
    fate += f" after {partition.grace_s} s of grace" if partition.grace_s else " at once"
    if kind != "preempt/partition_prio":
        return f"preempted by {kind.removeprefix('preempt/')}, {fate}"
    return f"preempted by {', '.join(preempting)}, {fate}" if preempting else "never preempted"


def _limits_row(config: dict[str, str]) -> DoctorCheck:
    facts = [
        f"{config.get('MaxArraySize', '?')} tasks an array (MaxArraySize; more runs become several arrays)",
        f"{config.get('MaxJobCount', '?')} jobs in all (MaxJobCount)",
        f"{config.get('KillWait', '?')} from TERM to KILL (KillWait)",
        f"JobRequeue {config.get('JobRequeue', '?')} (ettsweep asks for --requeue itself)",
    ]
    return DoctorCheck("limits", "ok", "; ".join(facts))


def _preemption_row(config: dict[str, str]) -> DoctorCheck:
    kind = config.get("PreemptType", "preempt/none").removeprefix("preempt/")
    if kind == "none":
        return DoctorCheck("preemption", "ok", "none on this cluster")
    if "preempt_send_user_signal" in config.get("SlurmctldParameters", ""):
        warning = "jobs get their own warning signal first (preempt_send_user_signal)"
    else:
        warning = "jobs get SIGTERM only (no preempt_send_user_signal)"
    return DoctorCheck("preemption", "ok", f"{kind}, {config.get('PreemptMode', '?')}; {warning}; runs save at either")


ACCOUNT_FIELDS = ("account", "partition", "qos", "defaultqos", "maxjobs", "maxsubmit", "maxwall")
QOS_FIELDS = ("name", "maxjobspu", "maxsubmitpu", "maxwall", "gracetime", "preempt")


def _accounting_rows(config: dict[str, str]) -> list[DoctorCheck]:
    """Return checks of the accounting, and of the limits of the user's accounts and QOS."""
    age = config.get("MinJobAge", "300 sec")
    consequence = f"reasons of ended jobs are lost once SLURM forgets them (MinJobAge, {age}); all else works"
    if config.get("AccountingStorageType", "").endswith(("/none", "(null)")):
        return [DoctorCheck("accounting", "absent", f"off: {consequence}")]
    user = _user()
    try:
        slurm_api.run_command("sacct", "-n", "-P", "-X", "-S", "now", "-o", "JobID")
        accounts = inventory.accounting("assoc", "where", f"user={user}", fields=ACCOUNT_FIELDS)
        qualities = inventory.accounting("qos", fields=QOS_FIELDS)
    except SlurmUnavailableError as error:
        return [DoctorCheck("accounting", "absent", f"does not answer ({error}): {consequence}")]
    rows = [DoctorCheck("accounting", "ok", "sacct answers")]
    for account in accounts:
        partition = f" in partition {account['partition']}" if account.get("partition") else ""
        limits = _describe_limits(
            account, {"maxjobs": "jobs at a time", "maxsubmit": "jobs submitted", "maxwall": "a job"}
        )
        default = f" (default {account['defaultqos']})" if account.get("defaultqos") else ""
        detail = f"of {user}{partition}; QOS {account.get('qos') or 'none'}{default}; {limits}"
        rows.append(DoctorCheck(f"account {account['account']}", "ok", detail))
    user_qualities = {name for account in accounts for name in account.get("qos", "").split(",")}
    for quality in qualities:
        if user_qualities and quality["name"] not in user_qualities:
            continue
        limits = _describe_limits(
            quality, {"maxjobspu": "jobs at a time", "maxsubmitpu": "jobs submitted", "maxwall": "a job"}
        )
        preempts = f"; preempts QOS {quality['preempt']}" if quality.get("preempt") else ""
        rows.append(DoctorCheck(f"qos {quality['name']}", "ok", limits + preempts))
    return rows


def _describe_limits(row: dict[str, str], labels: dict[str, str]) -> str:
    """Return the limits of an account or QOS, in words; `labels` gives the unit of each limit."""
    limits = ", ".join(f"{row[key]} {label}" for key, label in labels.items() if row.get(key))
    return f"at most {limits}" if limits else "no limits of its own"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers may run under a user id without a name
        return str(os.getuid())


def _test_submission(results: Path, profile: SlurmProfile) -> str:
    """Return the answer of `sbatch --test-only` to an array of one run."""
    return slurm_api.expected_start(profile.script(placeholder_folder(results), Array(), "ettsweep-doctor"))


# --- what a profile would get ---------------------------------------------------------------------------------------


def _profile_rows(
    profile: SlurmProfile,
    partitions: Sequence[inventory.Partition],
    nodes: Sequence[inventory.Node],
    *,
    has_start_time: bool,
) -> list[DoctorCheck]:
    """Return limits that `sbatch --test-only` does not check, and reasons of a missing start time."""
    requested = profile.partition or os.environ.get("SBATCH_PARTITION")
    names = requested.split(",") if requested else [p.name for p in partitions if p.is_default]
    rows = _time_limit_rows(profile, [p for p in partitions if p.name in names])
    nodes_by_name = {node.name: node for node in nodes if node.partition in names}
    if has_start_time or not nodes_by_name:  # a start time means that the nodes can meet all requests
        return rows
    return rows + _unmet_requests(profile, list(nodes_by_name.values()), ", ".join(names))


def _time_limit_rows(profile: SlurmProfile, chosen: Sequence[inventory.Partition]) -> list[DoctorCheck]:
    """Return a row if no partition allows the time limit.

    Without EnforcePartLimits, SLURM accepts a job above the limit of its partition and never starts it.
    """
    limits = {p.name: p.max_min for p in chosen if p.max_min is not None and p.max_min < profile.time_min}
    if len(limits) < len(chosen) or not limits:  # one partition that allows it is enough
        return []
    limit_text = ", ".join(f"partition {name} allows {format_minutes(limit)}" for name, limit in limits.items())
    max_min = max(limits.values())
    hint = f"time_min={int(max_min)}" if max_min >= 1 else "another partition"
    detail = f"{profile.time_min}: {limit_text}; SLURM would accept the job and never start it; set {hint}"
    return [DoctorCheck("time_min", "warning" if profile.qos else "failed", detail)]  # a QOS may lift the limit


def _unmet_requests(profile: SlurmProfile, nodes: Sequence[inventory.Node], partition_names: str) -> list[DoctorCheck]:
    """Return the requests of a job that no node can meet: sbatch has one message for all of them."""
    cpus, mem_mb = profile.workers * profile.cpus, round(1024 * (profile.mem_gb or 0))
    max_cpus, max_mb, max_gpus = (max(getattr(node, field) for node in nodes) for field in ("cpus", "mem_mb", "gpus"))
    times = f" x {profile.workers} GPUs" if profile.workers > 1 else ""
    hint = "" if max_gpus else "; gpus=0 trains on the CPU"
    # First each request by itself: the message names the option to change.
    failures = [
        DoctorCheck(option, "failed", f"{request}: no node of {partition_names} has more than {maximum}")
        for option, is_unmet, request, maximum in (
            ("cpus", cpus > max_cpus, f"{profile.cpus}{times}", f"{max_cpus}"),
            ("mem_gb", mem_mb > max_mb, f"{profile.mem_gb or 0:g}", f"{max_mb / 1024:.1f}"),
            ("gpus", profile.gpus > max_gpus, f"{profile.gpus}", f"{max_gpus}{hint}"),
        )
        if is_unmet
    ]
    if failures:
        return failures
    fitting_nodes = [n for n in nodes if n.cpus >= cpus and n.mem_mb >= mem_mb and n.gpus >= profile.gpus]
    if len(fitting_nodes) < profile.nodes:
        verb = "has" if len(fitting_nodes) == 1 else "have"
        nodes_text = f"{format_count(len(fitting_nodes), 'node')} of {partition_names} {verb}"
        detail = f"{profile.nodes}: {nodes_text} enough resources for a job"
        return [DoctorCheck("nodes", "failed", detail)]
    # The job waits until broken nodes return, which is not a failure.
    if sum(not n.is_broken for n in fitting_nodes) < profile.nodes:
        return [
            DoctorCheck(
                "nodes", "warning", f"all large enough nodes of {partition_names} are down or drained: jobs wait"
            )
        ]
    return []


def _warning_time_row(profile: SlurmProfile, config: dict[str, str]) -> DoctorCheck | None:
    # KillWait, such as `30 sec`, is the time from SIGTERM to SIGKILL of jobs without a warning.
    kill_wait = config.get("KillWait", "").split()
    wait_s = int(kill_wait[0]) if kill_wait and kill_wait[0].isdigit() else 0
    if profile.warn_s > wait_s:
        return None
    comparison = f"{profile.warn_s} s before the end is not above KillWait ({wait_s} s), which each job has anyway"
    return DoctorCheck("warn_s", "warning", f"{comparison}: too short for some checkpoints; 120 is usual")


def _gpu_torch_row(profile: SlurmProfile) -> DoctorCheck | None:
    if not profile.gpus or profile.python:
        return None
    try:
        facts = torch_facts()
    except Exception:  # the row `torch` reports it
        return None
    if facts["gpu"]:
        return None
    detail = f"{profile.gpus}, but torch {facts['version']} has no GPU support: runs would fail"
    return DoctorCheck("gpus", "warning", detail)


LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "squashfs"}
"""File systems of local disks, which other nodes see only if they are exported."""

NODE_LOCAL_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Folders that are usually local to each node."""


def _shared_folder_row(results: Path) -> DoctorCheck | None:
    """Return a row on the file system of the results folder, which nodes must see under the same path."""
    folder = existing_folder(results).resolve()
    kind, mount = file_system(folder)
    if not kind:
        return None
    # Each node has its own such folder under the same path.
    if kind in ("tmpfs", "ramfs") or any(folder.is_relative_to(path) for path in NODE_LOCAL_FOLDERS):
        detail = f"{folder} ({kind} at {mount}): each node has its own; jobs would not find it"
        return DoctorCheck("shared folder", "warning", detail)
    if kind in LOCAL_FILE_SYSTEMS:
        detail = f"{folder} ({kind} at {mount}) is a local disk: check that nodes see it under this path"
        return DoctorCheck("shared folder", "warning", detail)
    return DoctorCheck("shared folder", "ok", f"{folder} ({kind} at {mount}); nodes must see it under this path")


def file_system(folder: Path) -> tuple[str, str]:
    """Return the type and mount point of a folder's file system, both empty if unknown."""
    match = "", ""
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return match
    for mount in mounts:  # a later mount hides an earlier one at the same mount point
        if folder.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= len(match[1]):
            match = mount.fstype, mount.mountpoint
    return match
