"""Runs in programs, as a worker trains them: a disk that is full, an owner that is superseded, odd endings."""

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.claims import claimed
from support.claims import train as record_steps
from support.fake import FAKE, FakeRecipe
from support.states import save_state

from ettsweep.errors import StorageError
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.runs import spec as run_spec
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import LocalLiveness, State, StopReason
from ettsweep.worker.program import Programs
from ettsweep.worker.signals import SIGNALS, StopSource
from ettsweep.worker.training import train_together
from ettsweep.worker.work_list import WorkList, made_progress

SCRIPTED = Path(__file__).parents[1] / "support" / "scripted.py"

pytestmark = pytest.mark.usefixtures("process")


class Scripted(FakeRecipe):
    """A run that does what a test says: a function of `support/scripted.py`, and its arguments."""

    @property
    def function(self) -> str:
        return f"support.scripted:{SCRIPT[-1][0]}"

    @property
    def arguments(self) -> dict[str, Any]:
        return SCRIPT[-1][1]

    @property
    def module_path(self) -> Path:
        return SCRIPTED


SCRIPTED_KIND = replace(FAKE, schema=Scripted)

SCRIPT: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(run_spec.KINDS, "fake", f"{__name__}:SCRIPTED_KIND")
    run_spec.kind_named.cache_clear()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    run_spec.kind_named.cache_clear()
    SCRIPT.clear()


def train(
    results: Path, function: str, programs: Programs | None = None, seed: int = 0, **arguments: Any
) -> tuple[RunDir, Attempt, StopReason | None]:
    """Train a run by a function, in its next attempt."""
    SCRIPT.append((function, arguments))
    run = RunDir.create(
        results, RunSpec.of(Scripted(last_step=100), StrategySpec(s=None), {"lr": 0.5, "wd": 0.5}, seed)
    )
    numbers = run.attempt_numbers()
    attempt = run.claim({}, after=numbers[-1] if numbers else 0)
    assert attempt is not None
    slot, profile = Slot("cpu-0", "cpu", None, 1), LocalProfile(devices="cpu")
    work = WorkList([run], slot, profile, {}, StopSource(), LocalLiveness(), {})
    with contextlib.nullcontext(programs) if programs else contextlib.closing(Programs()) as programs:
        (stop,) = train_together([(run, attempt)], work, programs)
    return run, attempt, stop


def test_a_run_on_a_full_disk_fails_or_its_worker_says_so_and_it_goes_on_exactly(
    small_disk: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = small_disk("256k")
    try:
        run, _, _ = train(disk, "fill", ballast=str(disk / "ballast"))
    except StorageError as error:
        said = str(error)
    else:  # the reason may have a place at the end of a block
        said = run.status().reason
    assert "the disk is full" in said
    (disk / "ballast").unlink()
    run, attempt, _ = train(disk, "count_to")
    assert attempt.resumed_from() == (1, 20)
    alone, _, _ = train(tmp_path, "count_to")
    assert run.metrics_path.read_bytes() == alone.metrics_path.read_bytes()


@pytest.mark.parametrize("writer", ["a folder", "as torch says it"])
def test_a_state_that_fills_the_disk_is_removed_so_that_the_reason_can_be_told(
    small_disk: Callable[[str], Path], writer: str
) -> None:
    disk = small_disk("256k")
    run, attempt, _ = train(disk, "save_much", writer=writer)
    assert run.status().state is State.FAILED
    assert "the disk is full" in run.status().reason
    assert list(attempt.states_path.iterdir()) == [attempt.state_path(20)]
    run.retry()
    _, second, _ = train(disk, "count_to", last=30)
    assert second.resumed_from() == (1, 20)


def test_a_superseded_run_stops_and_leaves_the_result_to_its_new_owner(results: Path) -> None:
    run, first, stop = train(results, "lose_the_run")
    assert stop is StopReason.SUPERSEDED
    assert run.result() is None
    newer = run.attempt(2)
    assert [path for path in newer.path.rglob("*") if path.is_file()] == [newer.claim_path]
    assert first.failure() == {"kind": "interrupted", "reason": "superseded", "details": ""}


def test_a_state_that_cannot_be_written_leaves_the_one_before(results: Path) -> None:
    run, attempt, _ = train(results, "fail_in_a_save")
    assert run.status().state is State.FAILED
    assert run.status().reason == "RuntimeError: out of ideas"
    assert attempt.saved_steps() == [10]
    run.retry()
    _, second, _ = train(results, "count_to")
    assert second.resumed_from() == (1, 10)
    assert run.result() is not None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("back", "the last one was 2, and steps must not decrease"),
        ("text", "log(..., loss='low'): a number is expected"),
        ("names", "more than 50 names of metrics"),
        ("no save", "write created no file or"),
        ("late", "the state after step 10 is saved: log, then save"),
    ],
)
def test_what_a_run_does_wrong_is_its_failure(results: Path, how: str, message: str) -> None:
    run, _, _ = train(results, "go_wrong", how=how)
    assert run.status().state is State.FAILED
    assert message in run.status().reason


def test_a_progress_bar_is_kept_as_seen_at_last(results: Path) -> None:
    _, attempt, _ = train(results, "show_progress")
    assert attempt.log_text().count("of 20000") == 1
    assert "19999 of 20000" in attempt.log_text()


def test_an_attempt_that_got_further_than_all_before_has_made_progress(results: Path, spec: RunSpec) -> None:
    """Also where the number of steps is unknown: else a job that is requeued would be given up after some lives."""
    run = RunDir.create(results, spec)
    for last_step, has_progress in ((4, True), (4, False), (5, True)):
        attempt = claimed(run)
        record_steps(attempt, 1, last_step)
        assert made_progress(attempt) is has_progress
    save_state(attempt, 5)
    resumed = claimed(run)
    resumed.record_resume(3, 5)
    assert not made_progress(resumed)
    save_state(resumed, 6)
    assert made_progress(resumed)


@pytest.mark.parametrize("reason", ["KeyboardInterrupt", "it called sys.exit(3)"])
def test_a_function_that_ends_by_whatever_it_raises_has_failed(results: Path, reason: str) -> None:
    run, attempt, stop = train(results, "end_by", reason=reason)
    assert (run.status().state, run.status().reason, stop) == (State.FAILED, reason, None), "its worker goes on"
    assert attempt.history(every_step=False) == [{"step": 1, "loss": 1.0, "val_loss": 1.0}]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exits", "exit code 5"),
        ("crashes", "exit code -11, SIGSEGV"),
        ("leaves", "its process exited with code 0 before the run ended"),
    ],
)
def test_one_that_takes_its_process_with_it_has_failed_and_the_next_run_gets_another(
    results: Path, how: str, reason: str
) -> None:
    with contextlib.closing(Programs()) as programs:
        run, _, _ = train(results, "crash", programs, how=how)
        assert run.status().state is State.FAILED
        assert run.status().reason.startswith(reason)
        other, _, _ = train(results, "count_to", programs, seed=1)
        assert other.result() is not None


@pytest.mark.slow
def test_runs_share_a_process_but_for_what_one_has_left_there(results: Path) -> None:
    def pid(function: str, seed: int, **arguments: str) -> int:
        run, attempt, _ = train(results, function, programs, seed, **arguments)
        assert (run.result() is not None) == (arguments.get("what") != "a failure")
        found = re.search(r"^pid (\d+)$", attempt.log_text(), re.MULTILINE)
        assert found
        return int(found[1])

    with contextlib.closing(Programs()) as programs:
        assert pid("pid_of", 0) == pid("pid_of", 1)
        before = pid("leave_behind", 2, what="nothing")
        assert pid("leave_behind", 3, what="nothing") == before
        for seed, what in enumerate(("a folder", "an orphan", "a failure"), 10):
            before = pid("leave_behind", seed, what=what)
            assert pid("leave_behind", 100 + seed, what="nothing") != before, what
        before = pid("leave_behind", 20, what="a variable")
        assert pid("leave_behind", 21, what="nothing") == before, "it is taken back"


def test_a_run_with_handlers_of_its_own_that_ends_early_is_not_finished(results: Path) -> None:
    run, attempt, stop = train(results, "heed_by_itself")
    assert (run.result(), stop) == (None, StopReason.TERMINATED)
    assert attempt.failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
