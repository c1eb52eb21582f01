"""What a SLURM cluster has, asked before a job is submitted: partitions, nodes, accounts, qualities of service."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.launch import slurm


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` tells of it, in SLURM's own words.

    Attributes:
        fields: all that is told, by key.
    """

    fields: dict[str, str]

    @property
    def name(self) -> str:
        """Its name."""
        return self.fields["PartitionName"]

    @property
    def default(self) -> bool:
        """Whether jobs go there that name no partition."""
        return self.fields.get("Default") == "YES"

    @property
    def up(self) -> bool:
        """Whether it starts jobs."""
        return self.fields.get("State", "UP") == "UP"

    @property
    def longest_min(self) -> float | None:
        """Longest time limit of a job in minutes; None where there is none, or it cannot be read."""
        return minutes(self.fields.get("MaxTime", ""))

    @property
    def default_min(self) -> float | None:
        """Time limit in minutes of a job that asks for none; None where that is the longest."""
        return minutes(self.fields.get("DefaultTime", ""))

    @property
    def grace_s(self) -> int:
        """Seconds that a preempted job is left before it is told to end."""
        return _number(self.fields.get("GraceTime", "")) or 0

    @property
    def tier(self) -> int:
        """Where partitions preempt each other, those of a higher tier do."""
        return _number(self.fields.get("PriorityTier", "")) or 0


@dataclass(frozen=True)
class Node:
    """A node as `sinfo` tells of it.

    Attributes:
        state: such as idle or down, without the marks that sinfo puts behind it.
    """

    name: str
    partition: str
    cpus: int
    mem_mb: int
    gpus: int
    state: str

    @property
    def broken(self) -> bool:
        """Whether it takes no jobs until someone mends it."""
        return self.state.startswith(("down", "drain", "fail", "error", "unknown"))


def minutes(text: str) -> float | None:
    """Return a time limit of SLURM's, such as 1-12:00:00 or 5:00, in minutes; None for one without end, or none."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, mins, seconds = [*numbers, 0, 0][:3]
        return 1440 * int(days) + 60 * hours + mins + seconds / 60
    if len(numbers) == 1:
        return float(numbers[0])
    hours, mins, seconds = numbers if len(numbers) == 3 else [0, *numbers]
    return 60 * hours + mins + seconds / 60


def _number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None


def partitions() -> list[Partition]:
    """Return the partitions that the user may see.

    Raises:
        NoAnswerError: the controller does not answer.
    """
    lines = slurm.ask("scontrol", "--oneliner", "show", "partition").splitlines()
    found = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines]
    return [Partition(fields) for fields in found if "PartitionName" in fields]


def nodes() -> list[Node]:
    """Return the nodes, once for each of their partitions.

    Raises:
        NoAnswerError: the controller does not answer.
    """
    found = []
    for line in slurm.ask("sinfo", "-h", "-N", "-o", "%N|%R|%c|%m|%G|%T").splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) < 6:
            continue
        name, partition, cpus, mem_mb, gres, state = parts[:6]
        gpus = sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)*?:(\d+)(?=[,(]|$)", gres))
        size = _number(cpus) or 0, _number(mem_mb) or 0
        found.append(Node(name, partition, *size, gpus, re.sub(r"[^a-z]+$", "", state.lower())))
    return found


ACCOUNT_FIELDS = ("account", "partition", "qos", "defaultqos", "maxjobs", "maxsubmit", "maxwall")
QOS_FIELDS = ("name", "maxjobspu", "maxsubmitpu", "maxwall", "gracetime", "preempt")


def accounts(user: str) -> list[dict[str, str]]:
    """Return the accounts that a user may charge, each with ACCOUNT_FIELDS; none where the site keeps no list.

    Raises:
        NoAnswerError: accounting is off, or its daemon does not answer.
    """
    return _table(ACCOUNT_FIELDS, "assoc", "where", f"user={user}")


def qualities() -> list[dict[str, str]]:
    """Return the qualities of service of the cluster, each with QOS_FIELDS.

    Raises:
        NoAnswerError: accounting is off, or its daemon does not answer.
    """
    return _table(QOS_FIELDS, "qos")


def _table(fields: Sequence[str], *what: str) -> list[dict[str, str]]:
    lines = slurm.ask("sacctmgr", "-n", "-P", "show", *what, f"format={','.join(fields)}").splitlines()
    return [dict(zip(fields, line.split("|"), strict=False)) for line in lines if "|" in line]
