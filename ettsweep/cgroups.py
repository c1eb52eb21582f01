"""Limits of control groups on this process: CPU time and memory, of its own group and all groups above it.

Containers, systemd and SLURM limit processes by them, in version 1, version 2 or both at once. Their files are
documented in Linux's admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst and scheduler/sched-bwc.rst.
"""

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def cpu_quota(root: Path = ROOT) -> float:
    """Return how many cores this process may keep busy, such as 0.5; infinite without a quota.

    Args:
        root: folder that holds `proc` and `sys`.
    """
    return min(map(_group_quota, _groups("cpu", root)), default=math.inf)


def memory_limit(root: Path = ROOT) -> float:
    """Return the memory in bytes that this process shares with its groups, or infinity."""
    return min(map(_group_memory, _groups("memory", root)), default=math.inf)


def free_memory(root: Path = ROOT) -> float:
    """Return the bytes left of the memory limit, or infinity without one."""
    return min((_group_memory(group) - _used_memory(group) for group in _groups("memory", root)), default=math.inf)


def out_of_memory_kills(root: Path = ROOT) -> int:
    """Return how many processes of this process's group the kernel has killed for want of memory."""
    for group in _groups("memory", root):
        for line in (_read(group / "memory.events") or _read(group / "memory.oom_control")).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _group_quota(group: Path) -> float:
    version_1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    match _read(group / "cpu.max").split() or [word for name in version_1 for word in _read(group / name).split()]:
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):  # no quota is `max`, or -1
            return int(quota) / int(period)
    return math.inf


def _group_memory(group: Path) -> float:
    # A process above memory.high hardly moves: it counts as a limit too.
    limits = (_read(group / name).strip() for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
    return min((int(limit) for limit in limits if limit.isdigit()), default=math.inf)


def _used_memory(group: Path) -> int:
    used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
    facts = dict(line.split(" ", 1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    # Cached pages count, but the kernel drops them when memory is short.
    cached = facts.get("total_inactive_file", facts.get("inactive_file", "0"))
    return max(0, int(used or 0) - int(cached))


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of those above it, wherever they are mounted.

    In a namespace of control groups, and in most containers, the highest of them is the container's own.
    """
    names: dict[str, str] = {}  # by controller; version 2 has one hierarchy for all, without a name
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        names |= dict.fromkeys(controllers.split(","), name)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        kind, *_, options = source.split()
        if kind == "cgroup2":
            hierarchy = ""
        elif kind == "cgroup" and controller in options.split(","):
            hierarchy = controller
        else:
            continue
        if hierarchy in names:
            top, mount_point = mount.split()[3:5]
            folder = root / mount_point.lstrip("/")
            below = _relative(names[hierarchy], top)
            yield from (folder / part for part in (below, *below.parents))


def _relative(name: str, top: str) -> PurePosixPath:
    """Return a group's path below the mounted group; the latter itself if the group lies elsewhere."""
    path = PurePosixPath(name)
    is_below = path.is_relative_to(top) and ".." not in path.parts
    return path.relative_to(top) if is_below else PurePosixPath(".")


def _read(path: Path) -> str:
    """Return the text of a file; empty if it is missing, or not readable by this user."""
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, UnicodeDecodeError):
        return ""
