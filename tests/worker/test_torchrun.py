"""Real commands whose runs are each trained by two processes below torchrun: killed, told to end, or cancelled.

Whatever happens to either process, a run that is finished has the bits of one that two processes trained in peace.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commandline import alive, end_workers, ettsweep, runs_in, status, wait_for, write_grid
from support.own_code import result_of
from support.slots import owner, wait_for_results

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State
from ettsweep.worker.program import processes_of

pytestmark = [
    pytest.mark.skipif(not Path("/proc/locks").exists(), reason="looks at processes through Linux's /proc"),
    pytest.mark.usefixtures("process"),
    pytest.mark.slow,
]

RECIPE = {"batch_size": 33, "schedule": {"total_steps": 100, "warmup_steps": 4, "eval_every": 50}}
SETS = ("devices=cpu", "slots=2", "devices_per_run=2", "threads=1", "checkpoint_every_steps=25")
UNREADABLE = """import sys, lean, registering, os
if "ettsweep.trainer" in sys.orig_argv and os.environ.get("RANK") == "1":
    from ettsweep.trainer.tasks.images.digits import Digits
    def unreadable(*_): raise OSError("this node's disk is broken")
    Digits.validation = unreadable
"""

HOLD = """import os, sys, lean, registering, time
if "ettsweep.trainer" in sys.orig_argv and os.environ.get("RANK") == "0":
    from ettsweep.run import Run
    saving = Run.saving
    def holding(run, step):
        save = saving(run, step)
        def save_and_hold(write):
            save(write)
            while os.path.exists(os.environ["TEST_HOLDS"]):
                time.sleep(0.01)
        return save_and_hold
    Run.saving = holding
"""

Submit = Callable[..., RunDir]


@pytest.fixture
def submit(tmp_path: Path, results: Path) -> Iterator[Submit]:
    """Return what asks for a run that two processes train; one that nothing happens to has a folder of its own."""

    def submit(folder: Path = results, *launch: str, **changes: Any) -> RunDir:
        path = write_grid(tmp_path / "grid.yaml", **{"recipe": RECIPE, "lr": {"range": [0, 0]}} | changes)
        words = [word for setting in (*SETS, "trainer.micro_batch=9", *launch) for word in ("--launch-set", setting)]
        ettsweep("grid", path, "--results", folder, *words)
        (run,) = runs_in(folder)
        return run

    yield submit
    end_workers(tmp_path / "calm")


def at_work(run: RunDir, number: int) -> tuple[Attempt, list[int]]:
    """Return an attempt that has saved a state of its own, and the ranks that train it."""
    attempt = run.attempt(number)
    wait_for(lambda: attempt.path.exists() and attempt.saved_steps(), f"a state of attempt {number}")
    ranks = dict[int, int]()
    for pid in processes_of(str((run.path / "out").resolve())):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks |= {int(text.removeprefix(b"RANK=")): pid for text in variables if text.startswith(b"RANK=")}
    assert sorted(ranks) == [0, 1]
    return attempt, [ranks[0], ranks[1]]


def put_first(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes run some code before anything else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")


def wait_until_gone(run: RunDir, *pids: int) -> None:
    """Wait until processes have ended, and all that trained the run."""
    out = str((run.path / "out").resolve())
    wait_for(lambda: not any(map(alive, pids)) and not processes_of(out), "their end")


def test_whoever_is_told_to_end_or_killed_the_run_goes_on_bit_for_bit(
    submit: Submit, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process holds wherever it saves, until it is let go."""
    holds = tmp_path / "holds"
    monkeypatch.setenv("TEST_HOLDS", str(holds))
    put_first(tmp_path / "site", HOLD, monkeypatch)
    calm = submit(tmp_path / "calm", "trainer.sharded=true")
    wait_for_results(tmp_path / "calm", 1)
    holds.touch()
    run = submit(results, "trainer.sharded=true")
    attempt, _ = at_work(run, 1)
    os.kill(owner(attempt), signal.SIGTERM)
    wait_for(attempt.stop_path.exists, "the worker to tell")
    holds.unlink()
    wait_until_gone(run, owner(attempt))
    wait_for(lambda: status(results)[run.id]["state"] == "interrupted", "the job to end")
    holds.touch()
    submit(results, "trainer.sharded=true")
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
    attempt, ranks = at_work(run, 2)
    last = run.attempt(1).history(every_step=False)[-1]["step"]
    assert attempt.resumed_from() == (1, last), "no step is lost that was taken"
    worker = owner(attempt)
    os.kill(ranks[1], signal.SIGKILL)
    wait_for(run.attempt(3).path.exists, "the next attempt")
    holds.unlink()
    assert owner(run.attempt(3)) == worker, "it lives on"
    failure = attempt.failure() or {}
    assert failure["kind"] == "lost"
    assert "SIGKILL" in failure["reason"]
    wait_for_results(results, 1)
    wait_until_gone(run, worker)
    assert run.attempt_numbers() == [1, 2, 3]
    steps = [run.attempt(number).resumed_from()[1] for number in run.attempt_numbers()]
    assert steps == sorted(set(steps)), "each gets further"
    assert run.metrics_path.read_bytes() == calm.metrics_path.read_bytes()
    result, expected = result_of(run), result_of(calm)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert (result["execution"]["processes"], result["execution"]["sharded"]) == (2, True)
    assert expected["device_s"] == pytest.approx(2 * expected["wall_s"], rel=1e-3)
    lines = calm.history()
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 101)), "one process writes"
    assert "Warning" not in calm.attempt(1).log_text()


def test_what_one_process_alone_cannot_do_is_the_runs_failure(
    submit: Submit, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_first(tmp_path / "site", UNREADABLE, monkeypatch)
    run = submit(recipe=RECIPE | {"schedule": {"total_steps": 40, "warmup_steps": 4, "eval_every": 5}})
    wait_for(lambda: run.status().state is State.FAILED, "the failure")
    wait_until_gone(run)
    assert (run.attempt_numbers(), run.status().reason) == ([1], "exit code 1: OSError: this node's disk is broken")
