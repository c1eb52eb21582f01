"""Workers that train ensembles: which runs they take, and what stops, kills and other workers do to them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commandline import assert_close_to_undisturbed, ettsweep, runs_in, wait_for, write_grid
from support.made_runs import MakeSpec, result_of
from support.slots import holding_on, owner, stopped_at_checkpoint, wait_for_results

from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.launch.trainer_settings import TrainerSettings
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import LocalLiveness, State
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.worker.work_list import WorkList

# --- real workers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("process", "warm")
def test_one_run_is_cancelled_another_diverges_and_the_last_goes_on(
    tmp_path: Path, results: Path, hold_runs: Callable[[int], None]
) -> None:
    hold_runs(2)
    recipe = {"batch_size": 32, "schedule": {"total_steps": 100, "warmup_steps": 4, "eval_every": 25}}
    centre = {"standard": {"lr": 2.0**-8, "wd": 0.25}}  # small enough that rounding does not grow
    path = write_grid(tmp_path / "grid.yaml", recipe=recipe, centre=centre, lr={"range": [-40, 40], "step": 40})
    options = ("slots=1", "threads=1", "checkpoint_every_steps=25", "trainer.ensemble=3")
    words = [word for option in options for word in ("--launch-set", option)]
    ettsweep("grid", path, "--results", results, *words)
    worker = owner(stopped_at_checkpoint(results))
    os.kill(worker, signal.SIGCONT)
    assert owner(stopped_at_checkpoint(results)) == worker
    lowest, centre_run, wild = sorted(runs_in(results), key=lambda run: run.spec().lr)
    assert [run.attempt(1).execution()["ensemble"] for run in (lowest, centre_run)] == [3, 3]
    with holding_on():  # its few steps take less time than the worker to look
        ettsweep("cancel", lowest.id, "--results", results)
        os.kill(worker, signal.SIGCONT)
        wait_for(lowest.attempt(1).stop_path.exists, "the run to be told")
    wait_for_results(results, 2)
    assert_close_to_undisturbed(centre_run)
    assert result_of(wild)["status"] == "diverged"
    assert lowest.status().state is State.CANCELLED
    assert lowest.attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}


# --- which runs -------------------------------------------------------------------------------------------------------


def companions(runs: list[RunDir], workers: int = 1, devices_per_run: int = 1, **settings: Any) -> list[str]:
    """Return the runs that are claimed with the first, by one of so many workers."""
    profile = LocalProfile(trainer=TrainerSettings(**settings), devices_per_run=devices_per_run)
    source: Any = SimpleNamespace(stop_reason="", record_stop=lambda stop: None)
    work = WorkList(runs, Slot("cpu-0", "cpu", None, 1), profile, {}, source, LocalLiveness(), {}, workers=workers)
    return [run.id for run, _ in work.claim_companions(runs[0], runs[1:])]


def test_companions_are_waiting_runs_of_one_recipe(make_spec: MakeSpec, results: Path) -> None:
    alike = [{}, {"lr": 0.3}, {"seed": 9}, {"strategy": {"s": 1.0}}, {"wd": 0.7}, {"lr": 0.9}, {"lr": 0.8}]
    others = [{"batch_size": 20}, {"schedule": {"eval_every": 4}}, {"model": {"width": 16}}, {"precision": "bf16"}]
    runs = [RunDir.create(results, make_spec(**changes)) for changes in (*alike, *others)]
    runs[4].finish({"status": "done"}, [])
    runs[5].spec_path.write_text("{")
    runs[6].cancel()
    assert companions(runs, ensemble=8, devices_per_run=2) == companions(runs, ensemble=1) == []
    assert companions(runs, ensemble=8) == [run.id for run in runs[1:4]]


def test_seeds_are_not_mixed_where_batches_are_loaded(make_spec: MakeSpec, results: Path) -> None:
    task = ImageNetTask(train_size=60, val_size=30)
    specs = [make_spec(lr=lr, seed=seed).model_copy(update={"task": task}) for lr, seed in ((1, 0), (1, 1), (2, 0))]
    runs = [RunDir.create(results, spec) for spec in specs]
    assert companions(runs, ensemble=8) == [runs[2].id]


def test_other_workers_keep_their_part(make_spec: MakeSpec, results: Path) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr)) for lr in range(1, 10)]
    assert companions(runs, 2, ensemble=3) == [run.id for run in runs[1:3]]
    rest = runs[3:]
    assert companions(rest, 2, ensemble=8) == [run.id for run in rest[1:3]]
    assert runs[6].claim({}, after=0)
    last = runs[7:]
    assert companions(last, 2, ensemble=8) == []
