"""Workers that train ensembles: which runs they take, and what stops, kills and other workers do to them."""

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commandline import (
    assert_close_to_undisturbed,
    ettsweep,
    runs_in,
    wait_for,
    write_grid,
)
from support.here import train_once
from support.made_runs import MakeSpec, result_of
from support.slots import end_stopped, holding_on, owner, stopped_at_checkpoint, wait_for_results

from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.launch.trainer_settings import TrainerSettings
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import LocalLiveness, State
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.worker.work_list import WorkList

RECIPE = {"batch_size": 32, "schedule": {"total_steps": 100, "warmup_steps": 4, "eval_every": 25}}

Ask = Callable[..., Any]
Held = Callable[..., tuple[list[RunDir], int]]
Alone = Callable[[RunSpec], RunDir]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Return what trains a run alone in this process, once for all tests."""

    @functools.cache
    def train(spec: RunSpec) -> RunDir:
        run = RunDir.create(tmp_path_factory.mktemp("alone"), spec)
        train_once(run, RuntimeSettings())
        return run

    return train


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that asks for some runs, in ensembles of three."""

    def ask(*launch: str, runs: int = 3, **grid: Any) -> Any:
        lr = {"range": [-7, runs - 8]}  # small enough that rounding does not grow
        path = write_grid(tmp_path / "grid.yaml", **{"recipe": RECIPE, "lr": lr} | grid)
        options = ["slots=1", "threads=1", "checkpoint_every_steps=25", *(launch or ("trainer.ensemble=3",))]
        options_kept = [section for option in options for section in ("--launch-set", option)]
        return ettsweep("grid", path, "--results", results, *options_kept)

    return ask


@pytest.fixture
def held_ensemble(results: Path, hold_runs: Callable[[int], None]) -> Held:
    """Have an ensemble of three hold with a checkpoint of each; return a function that waits for it."""
    hold_runs(3)

    def wait(count: int = 3) -> tuple[list[RunDir], int]:
        for saved in range(1, count + 1):  # one after the other
            worker = owner(stopped_at_checkpoint(results))
            runs = [run for run in runs_in(results) if run.attempt_numbers() and run.attempt(1).saved_steps()]
            assert len(runs) == saved
            if saved < count:
                os.kill(worker, signal.SIGCONT)
        return runs, worker

    return wait


# --- real workers -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process", "warm")
class TestWorkers:
    @pytest.mark.slow
    def test_one_run_is_cancelled_another_diverges_and_the_last_goes_on(
        self, grid: Ask, results: Path, held_ensemble: Held, alone: Alone
    ) -> None:
        centre = {"standard": {"lr": 2.0**-8, "wd": 0.25}}
        grid(lr={"range": [-40, 40], "step": 40}, centre=centre)
        held, worker = held_ensemble(2)
        runs = sorted(held, key=lambda run: -run.spec().lr)
        wild = [run for run in runs_in(results) if run.id not in {each.id for each in runs}]
        with holding_on():  # its few steps take less time than the worker to look
            assert "1 run cancelled" in ettsweep("cancel", runs[1].id, "--results", results).stderr
            os.kill(worker, signal.SIGCONT)
            wait_for(runs[1].attempt(1).stop_path.exists, "the run to be told")
        wait_for_results(results, 2)
        assert_close_to_undisturbed(runs[0], alone)
        assert [result_of(run)["status"] for run in wild] == ["diverged"]
        assert runs[1].status().state is State.CANCELLED
        assert runs[1].attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}

    @pytest.mark.slow
    def test_an_ensemble_that_is_killed_resumes_alone_or_in_another(
        self, grid: Ask, results: Path, held_ensemble: Held, alone: Alone
    ) -> None:
        grid()
        runs, worker = held_ensemble()
        assert [owner(run.attempt(1)) for run in runs] == [worker] * 3
        assert [run.attempt(1).execution()["ensemble"] for run in runs] == [3] * 3
        end_stopped(worker, signal.SIGKILL)
        grid("trainer.ensemble=2")
        for run in wait_for_results(results, 3):
            assert run.attempt(2).resumed_from() == (1, 25)
            assert_close_to_undisturbed(run, alone)


# --- which runs -------------------------------------------------------------------------------------------------------


def work_of(runs: list[RunDir], profile: LocalProfile, workers: int = 1) -> WorkList:
    source: Any = SimpleNamespace(stop_reason="", record_stop=lambda stop: None)
    return WorkList(runs, Slot("cpu-0", "cpu", None, 1), profile, {}, source, LocalLiveness(), {}, workers=workers)


def companions(runs: list[RunDir], workers: int = 1, devices_per_run: int = 1, **settings: Any) -> list[str]:
    """Return the runs that are claimed with the first, by one of so many workers."""
    profile = LocalProfile(trainer=TrainerSettings(**settings), devices_per_run=devices_per_run)
    work = work_of(runs, profile, workers)
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


def test_seeds_are_not_mixed_where_batches_are_loaded(
    make_spec: MakeSpec, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
