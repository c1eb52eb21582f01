"""What a SLURM cluster has, asked before a job is submitted: partitions, nodes, accounts, qualities of service."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.launch import slurm


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` tells of it.

    Attributes:
        default: whether jobs go there that name no partition.
        state: UP where it starts jobs.
        longest_min: longest time limit of a job; None where there is none, or it cannot be read.
        default_min: time limit of a job that asks for none; None where that is the longest.
        preempt_mode: what becomes of its jobs when another takes their place; OFF where none does.
        grace_s: what a preempted job is left before it is told to end.
        tier: where partitions preempt each other, those of a higher tier do.
    """

    name: str
    default: bool
    state: str
    longest_min: float | None
    default_min: float | None
    preempt_mode: str
    grace_s: int
    tier: int


@dataclass(frozen=True)
class Node:
    """A node as `sinfo` tells of it; `broken` where it takes no jobs until someone mends it."""

    name: str
    partition: str
    cpus: int
    mem_mb: int
    gpus: int
    broken: bool


def minutes(text: str) -> float | None:
    """Return a time limit of SLURM's, such as 1-12:00:00 or 5:00, in minutes; None for one without end, or none."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        return None
    days, *clock = match.groups()
    numbers = [int(number) for number in clock if number is not None]
    if days is not None:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, mins, seconds = [*numbers, 0, 0][:3]
    else:  # MM, MM:SS, HH:MM:SS
        hours, mins, seconds = numbers if len(numbers) == 3 else [0, *numbers, 0][:3]
    return 1440 * int(days or 0) + 60 * hours + mins + seconds / 60


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def partitions() -> list[Partition]:
    """Return the partitions that the user may see.

    Raises:
        NoAnswerError: the controller does not answer.
    """
    lines = slurm.ask("scontrol", "--oneliner", "show", "partition").splitlines()
    records = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines]
    return [
        Partition(
            name=fields["PartitionName"],
            default=fields.get("Default") == "YES",
            state=fields.get("State", "UP"),
            longest_min=minutes(fields.get("MaxTime", "")),
            default_min=minutes(fields.get("DefaultTime", "")),
            preempt_mode=fields.get("PreemptMode", "OFF").upper(),
            grace_s=_number(fields.get("GraceTime", "")),
            tier=_number(fields.get("PriorityTier", "")),
        )
        for fields in records
        if "PartitionName" in fields
    ]


def nodes() -> list[Node]:
    """Return the nodes, once for each of their partitions.

    Raises:
        NoAnswerError: the controller does not answer.
    """
    rows = []
    for line in slurm.ask("sinfo", "-h", "-N", "-o", "%N|%R|%c|%m|%G|%T").splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) < 6:
            continue
        name, partition, cpus, mem_mb, gres, state = columns[:6]
        gpus = sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)*?:(\d+)(?=[,(]|$)", gres))
        broken = state.lower().startswith(("down", "drain", "fail", "error", "unknown"))
        rows.append(Node(name, partition, _number(cpus), _number(mem_mb), gpus, broken))
    return rows


def accounting(*query: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Return what `sacctmgr show` tells of accounts or qualities of service; nothing where the site keeps no list.

    Raises:
        NoAnswerError: accounting is off, or its daemon does not answer.
    """
    lines = slurm.ask("sacctmgr", "-n", "-P", "show", *query, f"format={','.join(fields)}").splitlines()
    return [dict(zip(fields, line.split("|"), strict=False)) for line in lines if "|" in line]
