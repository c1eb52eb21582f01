"""Runs that are trained by a call in this process: a disk that is full, an owner that is superseded, odd endings."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake import FAKE, FakeRecipe

from ettsweep.errors import StorageError
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.contract import KINDS, RunContext, kind_named
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import MAX_LOST_ATTEMPTS, LocalLiveness, State
from ettsweep.runs.stop import StopReason
from ettsweep.worker.in_process import train_attempt
from ettsweep.worker.signals import SIGNALS, StopSource
from ettsweep.worker.work_list import WorkList, made_progress

Then = Callable[[RunContext], None]


class Scripted(FakeRecipe):
    """A run that does what a test says."""


SCRIPTED = replace(FAKE, schema=Scripted)


SCRIPT: list[Then] = []


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(KINDS, "fake", f"{__name__}:SCRIPTED")
    monkeypatch.setattr(Scripted, "train", lambda self, run: SCRIPT[-1](run))
    kind_named.cache_clear()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    kind_named.cache_clear()
    SCRIPT.clear()


def train(results: Path, then: Then) -> tuple[RunDir, Attempt, StopReason | None]:
    """Train a run by a function, in its next attempt."""
    SCRIPT.append(then)
    run = RunDir.create(results, RunSpec.of(Scripted(last_step=100), StrategySpec(s=None), 0.5, 0.5, 0))
    numbers = run.attempt_numbers()
    attempt = run.claim({}, after=numbers[-1] if numbers else 0)
    assert attempt is not None
    slot, profile = Slot("cpu-0", "cpu", None, 1), LocalProfile(devices="cpu")
    work = WorkList([run], slot, profile, {}, StopSource(), LocalLiveness(), {})
    return run, attempt, train_attempt(run, attempt, work)


def count_to(last: int, every: int = 5) -> Then:
    """Return a run that counts, and saves how far it is now and then."""

    def counted(run: RunContext) -> None:
        state = int(run.resume_from.read_text()) if run.resume_from else 0
        assert state == run.resume_step
        for step in range(state + 1, last + 1):
            run.record(step, loss=1 / step, val_loss=1 / step)
            if step % every == 0:
                run.checkpoint(step, lambda path, step=step: path.write_text(str(step)))

    return counted


def test_a_run_on_a_full_disk_fails_or_its_worker_says_so_and_it_goes_on_exactly(
    small_disk: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = small_disk("256k")
    ballast = disk / "ballast"

    def fill(run: RunContext) -> None:
        count_to(20)(run)
        with pytest.raises(OSError), ballast.open("wb") as file:  # noqa: PT012
            while True:
                file.write(bytes(4096))
                file.flush()
        for step in range(21, 5000):
            run.record(step, loss=1 / step)

    with pytest.raises(StorageError, match="the disk is full"):
        train(disk, fill)
    ballast.unlink()
    run, attempt, _ = train(disk, count_to(100))
    assert attempt.resumed_from() == (1, 20)
    alone, _, _ = train(tmp_path, count_to(100))
    assert run.metrics_path.read_bytes() == alone.metrics_path.read_bytes()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(bytes(2**20)),
        lambda path: path.mkdir() or (path / "weights").write_bytes(bytes(2**20)),
        lambda path: torch_like_save(path),
    ],
    ids=["a file", "a folder", "by a library that says so in its own way"],
)
def test_a_state_that_fills_the_disk_is_removed_so_that_the_reason_can_be_told(
    small_disk: Callable[[str], Path], write: Callable[[Path], object]
) -> None:
    def fills(run: RunContext) -> None:
        count_to(20)(run)
        run.record(21, loss=1.0)
        run.checkpoint(21, write)

    disk = small_disk("256k")
    run, attempt, _ = train(disk, fills)
    assert run.status().state is State.FAILED
    assert "the disk is full" in run.status().reason
    assert sorted(path.name for path in attempt.states_path.iterdir()) == ["20", "20.sha256"]
    run.retry()
    _, second, _ = train(disk, count_to(30))
    assert second.resumed_from() == (1, 20)


def torch_like_save(path: Path) -> None:
    try:
        path.write_bytes(bytes(2**20))
    except OSError:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed") from None


def test_a_superseded_run_stops_and_leaves_the_result_to_its_new_owner(results: Path) -> None:
    newer: list[Attempt | None] = []

    def superseded(run: RunContext) -> None:
        count_to(10)(run)
        newer.append(RunDir(run.out.parent).claim({}, after=1))
        while True:
            run.record(11, loss=1.0)

    run, first, stop = train(results, superseded)
    assert stop is StopReason.SUPERSEDED
    assert run.result() is None
    assert newer[0] is not None
    before = {path: path.read_bytes() for path in newer[0].path.rglob("*") if path.is_file()}
    assert before.keys() == {newer[0].claim_path}
    assert first.failure() == {"kind": "interrupted", "reason": "superseded", "details": ""}


def test_a_state_that_cannot_be_written_leaves_the_one_before(results: Path) -> None:
    def half(path: Path) -> None:
        path.write_text("half of")
        raise RuntimeError("out of ideas")

    def fails(run: RunContext) -> None:
        count_to(10)(run)
        run.record(11, loss=1.0)
        run.checkpoint(11, half)

    run, attempt, _ = train(results, fails)
    assert run.status().state is State.FAILED
    assert run.status().reason == "RuntimeError: out of ideas"
    assert attempt.saved_steps() == [10]
    run.retry()
    _, second, _ = train(results, count_to(100))
    assert second.resumed_from() == (1, 10)
    assert run.result() is not None


def test_a_state_may_be_a_folder_and_earlier_ones_are_removed(results: Path) -> None:
    def folders(run: RunContext) -> None:
        for step in (1, 2, 3):
            run.record(step, loss=1.0, val_loss=1.0)
            run.checkpoint(step, lambda path, step=step: (path.mkdir(), (path / "weights").write_text(str(step))))

    _, attempt, _ = train(results, folders)
    assert attempt.saved_steps() == [3]
    assert (attempt.state_path(3) / "weights").read_text() == "3"
    assert sorted(path.name for path in attempt.states_path.iterdir()) == ["3", "3.sha256"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda run: run.record(0, loss=1.0), r"record\(step=0, ...\): steps count from 1, and the last one was 0"),
        (lambda run: (run.record(2, loss=1.0), run.record(1, loss=1.0)), "the last one was 2"),
        (lambda run: run.record(1.5, loss=1.0), "step: a whole number is expected, got 1.5"),
        (lambda run: run.record(1, loss="low"), "record(..., loss='low'): a number is expected"),
        (lambda run: run.record(1, **{f"m{k}": 1.0 for k in range(60)}), "more than 50 names of metrics were recorded"),
        (lambda run: (run.record(9, loss=1.0), run.checkpoint(8, lambda path: None)), "metrics of step 9 are recorded"),
        (lambda run: (run.record(9, loss=1.0), run.checkpoint(9, lambda path: None)), "write made neither a file nor"),
    ],
)
def test_what_a_run_does_wrong_is_its_failure(results: Path, wrong: Any, message: str) -> None:
    run, attempt, _ = train(results, wrong)
    assert run.status().state is State.FAILED
    failure = attempt.failure()
    assert failure is not None
    assert message.replace("\\", "") in failure["reason"]


def test_it_may_change_the_folder_and_print_what_it_likes(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def roams(run: RunContext) -> None:
        os.chdir("/")
        print("one\rtwo\nthree", end="")
        count_to(10)(run)

    monkeypatch.chdir(results.parent)
    run, attempt, _ = train(Path(results.name), roams)
    assert run.result() is not None
    assert "two\n" in attempt.log_text()
    assert "three" in attempt.log_text()


def test_dots_without_a_newline_cost_no_more_than_their_number(results: Path) -> None:
    def prints_dots(run: RunContext) -> None:
        start = time.process_time()
        for _ in range(300_000):
            print(".", end="")
        assert time.process_time() - start < 5, "each copied those before it: minutes"
        count_to(10)(run)

    run, attempt, _ = train(results, prints_dots)
    assert run.result() is not None, attempt.failure()
    assert "." * 300_000 in attempt.log_text()


def test_each_life_of_a_job_that_saves_a_later_state_has_made_progress(results: Path) -> None:
    """Also where the number of steps is unknown: else a job that is requeued would be given up after some lives."""

    def stopped_at(last: int) -> Then:
        def stopped(run: RunContext) -> None:
            count_to(last)(run)
            os.kill(os.getpid(), signal.SIGTERM)
            raise KeyboardInterrupt

        return stopped

    for last, further in ((10, True), (20, True), (20, False), (25, True)):
        _, attempt, stop = train(results, stopped_at(last))
        assert stop is StopReason.TERMINATED
        assert made_progress(attempt) == further


class Quits(BaseException):
    """No exception, as of libraries that end their tasks by one."""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (Quits("no more"), "Quits: no more"),
        (SystemExit(3), "it left with sys.exit(3)"),
        (SystemExit("no luck"), "it left with sys.exit('no luck')"),
    ],
)
def test_a_function_that_ends_by_whatever_it_raises_has_failed(results: Path, end: BaseException, reason: str) -> None:
    def ends(run: RunContext) -> None:
        run.record(1, loss=1.0, val_loss=1.0)
        raise end

    run, attempt, stop = train(results, ends)
    assert (run.status().state, run.status().reason, stop) == (State.FAILED, reason, None), "its worker goes on"
    assert attempt.history(every_step=False) == [{"step": 1, "loss": 1.0, "val_loss": 1.0}]


def test_a_run_that_terminates_its_own_worker_is_given_up_after_some_attempts(results: Path) -> None:
    def ends(run: RunContext) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        run.record(1, loss=1.0)

    for _ in range(MAX_LOST_ATTEMPTS):
        run, _, stop = train(results, ends)
        assert stop is StopReason.TERMINATED
    reason = f"{MAX_LOST_ATTEMPTS} attempts got no further: terminated; see `ettsweep logs {run.id}`"
    assert (run.status().state, run.status().reason) == (State.FAILED, reason)


def test_what_is_recorded_after_its_state_is_refused(results: Path) -> None:
    def late(run: RunContext) -> None:
        count_to(10)(run)
        run.record(10, val_loss=0.1)

    run, _, _ = train(results, late)
    assert "the state after step 10 is saved already" in run.status().reason


def test_a_run_that_is_whole_is_finished_although_it_was_told_to_stop(results: Path) -> None:
    def last(run: RunContext) -> None:
        count_to(99)(run)
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.stop
        run.record(100, loss=0.0, val_loss=0.0)

    run, _, stop = train(results, last)
    assert stop is None
    assert run.result() is not None


def test_a_run_with_handlers_of_its_own_that_ends_early_is_not_finished(results: Path) -> None:
    def own(run: RunContext) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        count_to(10)(run)

    run, attempt, stop = train(results, own)
    assert (run.result(), stop) == (None, StopReason.TERMINATED)
    assert attempt.failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}


def test_progress_bars_cost_nothing_and_old_streams_write_to_the_run_at_work(results: Path, tmp_path: Path) -> None:
    kept: list[Any] = []

    def bar(run: RunContext) -> None:
        import sys

        kept.append(kept[0] if kept else sys.stdout)
        for step in range(20_000):
            kept[-1].write(f"\r{step} of 20000")
        count_to(10)(run)

    for folder in (results, tmp_path / "second"):
        _, attempt, _ = train(folder, bar)
        assert attempt.log_text().count("of 20000") == 1
        assert "19999 of 20000" in attempt.log_text()
