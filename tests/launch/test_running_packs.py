"""Which runs train together, by the processes that have claimed them."""

from dataclasses import replace

import pytest

from ettsweep.launch.running_packs import describe_pack, describe_states, pack_sizes
from ettsweep.processes import Process, process_identity
from ettsweep.runs.state import State, Status

ONE = process_identity()
OTHER, THIRD = replace(ONE, pid=1), replace(ONE, boot_id="of another machine")


def trained_by(*workers: Process | None) -> dict[str, Status]:
    return {f"run{n}": Status(State.RUNNING, worker=worker, slot="cpu-0") for n, worker in enumerate(workers)}


def test_a_pack_is_of_one_process() -> None:
    statuses = trained_by(ONE, OTHER, ONE, THIRD, None, None)
    statuses["run6"] = Status(State.DONE, worker=ONE)
    assert pack_sizes(statuses) == {"run0": 2, "run1": 1, "run2": 2, "run3": 1, "run4": 1, "run5": 1}


def test_the_name_of_a_pack_tells_where_it_is() -> None:
    (status,) = trained_by(ONE).values()
    assert [describe_pack(status, size) for size in (1, 2)] == ["", "2 on cpu-0"]
    assert describe_pack(replace(status, slot=""), 2) == f"2 on process {ONE.pid}", "earlier versions claimed without"


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ([ONE], "1 running"),
        ([ONE, OTHER, None], "3 running"),
        ([ONE, ONE], "2 running in 1 pack"),
        ([ONE, ONE, OTHER, OTHER, OTHER], "5 running in 2 packs"),
        ([ONE, ONE, OTHER, THIRD, THIRD, THIRD], "6 running (5 in 2 packs)"),
    ],
)
def test_packs_are_counted_beside_the_runs(workers: list[Process], message: str) -> None:
    statuses = trained_by(*workers) | {"a": Status(State.QUEUED), "b": Status(State.DONE)}
    assert describe_states(statuses) == ["1 done", "1 queued", message]
    assert describe_states({}) == []
