"""Packs: runs that train together because one worker claimed them all."""

from collections import Counter
from collections.abc import Mapping
from itertools import chain

from ettsweep.console import format_count
from ettsweep.runs.index import count_states
from ettsweep.runs.state import State, Status


def pack_sizes(statuses: Mapping[str, Status]) -> dict[str, int]:
    """Return how many runs the worker of each running run trains at once; 1 if its worker is unknown."""
    running = {run: s.worker for run, s in statuses.items() if s.state is State.RUNNING}
    sizes = Counter(worker for worker in running.values() if worker)
    return {run: sizes[worker] if worker else 1 for run, worker in running.items()}


def describe_pack(status: Status, size: int) -> str:
    """Return size and slot of the pack that trains a run; empty if it trains alone."""
    return f"{size} on {status.slot or f'process {status.worker.pid}'}" if status.worker and size > 1 else ""


def describe_states(statuses: Mapping[str, Status], further: Mapping[State, int] | None = None) -> list[str]:
    """Return the number of runs in each state, and in how many packs the running ones train; `further` are added."""
    states = chain((s.state for s in statuses.values()), Counter(further or {}).elements())
    return [
        f"{number} {state}" + (_describe_packs(statuses) if state is State.RUNNING else "")
        for state, number in count_states(states).items()
    ]


def _describe_packs(statuses: Mapping[str, Status]) -> str:
    sizes = pack_sizes(statuses)
    packed = [run for run, size in sizes.items() if size > 1]
    packs = format_count(len({statuses[run].worker for run in packed}), "pack")
    if len(packed) == len(sizes):
        return f" in {packs}"
    return f" ({len(packed)} in {packs})" if packed else ""
