"""The inventory of a SLURM cluster: partitions, nodes, accounts and qualities of service (QOS)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.launch import slurm_api


@dataclass(frozen=True)
class Partition:
    """A partition, as reported by `scontrol show partition`.

    Attributes:
        is_default: whether jobs without a partition go there.
        state: UP if it starts jobs.
        max_min: longest time limit of a job; None if there is none, or it cannot be read.
        default_min: time limit of a job that requests none; None if that is the longest.
        preempt_mode: what happens to its preempted jobs; OFF if there are none.
        grace_s: seconds between preemption and the signal to end.
        tier: PriorityTier; partitions of a higher tier preempt those of a lower one.
    """

    name: str
    is_default: bool
    state: str
    max_min: float | None
    default_min: float | None
    preempt_mode: str
    grace_s: int
    tier: int


@dataclass(frozen=True)
class Node:
    """A node of a partition, as reported by `sinfo`; a broken one starts no jobs until an administrator repairs it."""

    name: str
    partition: str
    cpus: int
    mem_mb: int
    gpus: int
    is_broken: bool


def parse_minutes(text: str) -> float | None:
    """Return a time limit of SLURM, such as 1-12:00:00 or 5:00, in minutes; None if unlimited or not a time."""
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


def _parse_int(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def partitions() -> list[Partition]:
    """Return the partitions that the user can see.

    Raises:
        SlurmUnavailableError: the controller does not answer.
    """
    lines = slurm_api.run_command("scontrol", "--oneliner", "show", "partition").splitlines()
    records = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines]
    return [
        Partition(
            name=fields["PartitionName"],
            is_default=fields.get("Default") == "YES",
            state=fields.get("State", "UP"),
            max_min=parse_minutes(fields.get("MaxTime", "")),
            default_min=parse_minutes(fields.get("DefaultTime", "")),
            preempt_mode=fields.get("PreemptMode", "OFF").upper(),
            grace_s=_parse_int(fields.get("GraceTime", "")),
            tier=_parse_int(fields.get("PriorityTier", "")),
        )
        for fields in records
        if "PartitionName" in fields
    ]


def nodes() -> list[Node]:
    """Return all nodes, once per partition that they are in.

    Raises:
        SlurmUnavailableError: the controller does not answer.
    """
    rows = []
    for line in slurm_api.run_command("sinfo", "-h", "-N", "-o", "%N|%R|%c|%m|%G|%T").splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) < 6:  # a message between the rows
            continue
        name, partition, cpus, mem_mb, gres, state = columns[:6]
        # GRES such as gpu:a100:4(S:0-1),gpu:2: the last number before a bracket or comma is the count.
        gpus = sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)*?:(\d+)(?=[,(]|$)", gres))
        broken = state.lower().startswith(("down", "drain", "fail", "error", "unknown"))
        rows.append(Node(name, partition, _parse_int(cpus), _parse_int(mem_mb), gpus, broken))
    return rows


def accounting(*query: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Return rows of `sacctmgr show`; empty if the site keeps no such list.

    Args:
        query: what to show, such as `assoc where user=me` or `qos`, a word each.
        fields: names of the columns, which become the keys of the rows.

    Raises:
        SlurmUnavailableError: accounting is off, or its daemon does not answer.
    """
    lines = slurm_api.run_command("sacctmgr", "-n", "-P", "show", *query, f"format={','.join(fields)}").splitlines()
    return [dict(zip(fields, line.split("|"), strict=False)) for line in lines if "|" in line]
