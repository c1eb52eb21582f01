"""With how many threads of the CPU a run is trained: as many as before, as a profile says, or as a trial finds fastest."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.made_runs import CPU, MakeSpec, result_of

from ettsweep.runs.folder import RunDir
from ettsweep.training import execution, threads
from ettsweep.training.distributed import ALONE
from ettsweep.training.ensemble.pack import Pack
from ettsweep.training.execution import Execution, settled
from ettsweep.training.run import train_run
from ettsweep.training.threads import fastest_threads
from ettsweep.training.trainer import Trainer


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    threads.fastest_threads.cache_clear()
    yield
    torch.set_num_threads(1)
    threads.fastest_threads.cache_clear()


def took(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> list[int]:
    """Have steps take so long with so many threads; return what takes the numbers of those that were tried."""
    now_s, tried = [0.0], list[int]()

    def step(*_: Any) -> None:
        tried.append(torch.get_num_threads())
        now_s[0] += seconds[tried[-1]] * (1 + len(tried) % 3)  # others use the machine too

    monkeypatch.setattr(Trainer, "train_step", step)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    return tried


@pytest.mark.parametrize(
    ("seconds", "most", "fastest"),
    [
        ({1: 1.0, 2: 1.1, 4: 3.0, 6: 9.0}, 6, 1),
        ({1: 4.0, 2: 2.0, 4: 1.0, 6: 2.0}, 6, 4),
        ({1: 1.05, 2: 1.0}, 2, 1),
        ({1: 3.0, 2: 1.0}, 2, 2),
    ],
)
def test_the_fewest_threads_that_are_about_as_fast_as_any_are_taken(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], most: int, fastest: int
) -> None:
    tried = took(monkeypatch, seconds)
    assert fastest_threads(make_spec().typical, most) == fastest
    assert set(tried) == seconds.keys()
    assert torch.get_num_threads() == 1, "as before"


def test_a_large_step_is_not_tried(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = took(monkeypatch, {})
    assert fastest_threads(make_spec(model={"width": 512, "depth": 12}).typical, 8) == 8
    assert fastest_threads(make_spec().typical, 1) == 1
    assert not tried


@pytest.mark.parametrize(
    ("asked", "before", "found"), [(None, {}, 2), (3, {"threads": 1}, 3), (None, {"threads": 1}, 1)]
)
def test_a_profile_or_what_a_run_had_before_comes_first(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, asked: int | None, before: Any, found: int
) -> None:
    monkeypatch.setattr(execution, "fastest_threads", lambda spec, most: most)
    how = Execution(threads=asked, most_threads=2)
    assert settled(make_spec(), CPU, how, ALONE, before, print).threads == found


def test_threads_that_this_machine_has_not_are_not_taken_over(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "cores", lambda: 4)
    how = Execution(most_threads=1)
    found = [settled(make_spec(), CPU, how, ALONE, {"threads": had}, print).threads for had in (4, 5)]
    assert found == [4, 1]


def test_a_run_is_trained_with_them_and_says_so(make_spec: MakeSpec, results: Any) -> None:
    run = RunDir.create(results, make_spec())
    attempt, seen = run.claim({}, after=0), set[int]()
    assert attempt is not None
    train_run(run, attempt, CPU, Execution(threads=2), lambda: seen.add(torch.get_num_threads()))
    assert seen == {2}
    assert attempt.execution()["threads"] == result_of(run)["environment"]["threads"] == 2


def test_a_pack_of_what_stacks_has_those_of_a_step_as_large_as_all_of_theirs(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    monkeypatch.setattr(execution, "fastest_threads", lambda spec, most: (asked.append(spec.batch_size), 2)[1])
    for size in (1, 5):
        Pack(CPU, size).settled(make_spec(), Execution(), ALONE, {}, print)
    assert asked == [32, 160]


def test_all_of_a_pack_have_those_of_the_first(make_spec: MakeSpec) -> None:
    pack, spec = Pack(CPU, 2), make_spec()
    how = [pack.settled(spec, Execution(most_threads=1), ALONE, {"threads": had}, print).threads for had in (2, 1)]
    assert how == [2, 2]
