"""Workers that train ensembles: which runs they take, and what stops, kills and other workers do to them."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commandline import (
    GRID,
    assert_as_if_undisturbed,
    assert_close_to_undisturbed,
    ettsweep,
    runs_in,
    write_grid,
)
from support.made_runs import CPU, MakeSpec, result_of
from support.slots import end_stopped, owner, stopped_at_checkpoint, wait_for_results

from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.launch.submissions import Submission
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State
from ettsweep.trainer.settings import TrainerSettings
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.training import memory
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.run import environment
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.worker.signals import POLL_S
from ettsweep.worker.trainer_runner import TrainerWork
from ettsweep.worker.worker import Worker

RECIPE = {"batch_size": 32, "schedule": {"total_steps": 100, "warmup_steps": 4, "eval_every": 25}}

Ask = Callable[..., Any]
Held = Callable[[], tuple[list[RunDir], int]]


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

    def wait() -> tuple[list[RunDir], int]:
        for saved in (1, 2, 3):  # one after the other
            worker = owner(stopped_at_checkpoint(results))
            runs = [run for run in runs_in(results) if run.attempt_numbers() and run.attempt(1).has_checkpoint()]
            assert len(runs) == saved
            if saved < 3:
                os.kill(worker, signal.SIGCONT)
        return runs, worker

    return wait


def ensemble_of(run: RunDir) -> int:
    latest = run.latest_attempt()
    assert latest is not None
    return int(latest.execution().get("ensemble", 1))


# --- real workers -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process", "warm")
class TestWorkers:
    def test_an_ensemble_is_of_one_process_and_its_runs_are_close_to_runs_alone(self, grid: Ask, results: Path) -> None:
        grid(runs=4, recipe=GRID["recipe"])
        runs = wait_for_results(results, 4)
        assert sorted(map(ensemble_of, runs)) == [1, 3, 3, 3]
        assert len({owner(run.attempt(1)) for run in runs}) == 1
        for run in runs:
            (assert_close_to_undisturbed if ensemble_of(run) > 1 else assert_as_if_undisturbed)(run)
            assert run.attempt(1).read_heartbeat()
            assert result_of(run)["environment"]["code"] == run.attempt(1).provenance()["code"]

    def test_one_run_is_cancelled_and_the_others_go_on(self, grid: Ask, results: Path, held_ensemble: Held) -> None:
        grid()
        runs, worker = held_ensemble()
        assert "1 run cancelled" in ettsweep("cancel", runs[1].id, "--results", results).stderr
        time.sleep(POLL_S)  # it looks at its next step, however lately it has looked
        os.kill(worker, signal.SIGCONT)
        for run in wait_for_results(results, 2):
            assert_close_to_undisturbed(run)
        assert runs[1].status().state is State.CANCELLED
        assert runs[1].attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_an_ensemble_that_is_ended_resumes_alone_or_in_another(
        self, grid: Ask, results: Path, held_ensemble: Held, number: signal.Signals
    ) -> None:
        grid()
        _, worker = held_ensemble()
        end_stopped(worker, number)
        if number == signal.SIGTERM:
            reasons = [run.attempt(1).failure() for run in runs_in(results)]
            assert reasons == [{"kind": "interrupted", "reason": "terminated", "details": ""}] * 3
        grid("trainer.ensemble=2")
        for run in wait_for_results(results, 3):
            attempt, step = run.attempt(2).resumed_from()
            assert attempt == 1
            assert step == 25 if number == signal.SIGKILL else step >= 25
            assert_close_to_undisturbed(run)


# --- which runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def make_work(results: Path) -> Callable[..., TrainerWork]:
    """Return a function that makes the work of a worker in this process, one of so many, as if its device were ready."""

    def make(runs: list[RunDir], workers: int = 1, **settings: Any) -> TrainerWork:
        slots = [{"name": f"cpu-{number}"} for number in range(workers)]
        devices_per_run = settings.pop("devices_per_run", 1)
        profile = LocalProfile(trainer=TrainerSettings(**settings), devices_per_run=devices_per_run)
        plain = profile.model_dump(mode="json")
        submission = Submission(results / "jobs" / "a", "local", (), plain, None, "", {}, slots, "", "", "")
        stop_source: Any = SimpleNamespace(stop_reason="", record_stop=lambda stop: None)
        stop_source.make_poll = lambda *_: lambda: None
        worker = Worker(submission, Slot("cpu-0", "cpu", None, 1), runs, stop_source)
        return TrainerWork(worker.work_list(), SINGLE_PROCESS, CPU, environment(CPU))

    return make


def companions(work: TrainerWork, runs: list[RunDir]) -> tuple[list[str], str]:
    attempts, remark = work._claim_companions(runs[0], runs[1:], RuntimeSettings())
    return [attempt.run.name for attempt in attempts], remark


def test_companions_are_waiting_runs_of_one_recipe(
    make_spec: MakeSpec, results: Path, make_work: Callable[..., TrainerWork]
) -> None:
    alike = [{}, {"lr": 0.3}, {"seed": 9}, {"strategy": {"s": 1.0}}, {"wd": 0.7}, {"lr": 0.9}, {"lr": 0.8}]
    others = [{"batch_size": 20}, {"schedule": {"eval_every": 4}}, {"model": {"width": 16}}, {"precision": "bf16"}]
    runs = [RunDir.create(results, make_spec(**changes)) for changes in (*alike, *others)]
    runs[4].finish({"status": "done"}, [])
    runs[5].spec_path.write_text("{")
    runs[6].cancel()
    assert companions(make_work(runs, ensemble=8), runs) == ([run.id for run in runs[1:4]], "")


def test_seeds_are_not_mixed_where_batches_are_loaded(
    make_spec: MakeSpec, results: Path, make_work: Callable[..., TrainerWork], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ImageNetTask(train_size=60, val_size=30)
    specs = [make_spec(lr=lr, seed=seed).model_copy(update={"task": task}) for lr, seed in ((1, 0), (1, 1), (2, 0))]
    runs = [RunDir.create(results, spec) for spec in specs]
    assert companions(make_work(runs, ensemble=8), runs) == ([runs[2].id], "")


def test_other_workers_keep_their_part(
    make_spec: MakeSpec, results: Path, make_work: Callable[..., TrainerWork]
) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr)) for lr in range(1, 10)]
    assert companions(make_work(runs, 2, ensemble=3), runs)[0] == [run.id for run in runs[1:3]]
    rest = runs[3:]
    assert companions(make_work(rest, 2, ensemble=8), rest)[0] == [run.id for run in rest[1:3]]
    assert runs[6].claim({}, after=0)
    last = runs[7:]
    assert companions(make_work(last, 2, ensemble=8), last)[0] == []


def test_a_run_that_trains_alone_says_why(
    make_spec: MakeSpec, results: Path, make_work: Callable[..., TrainerWork], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {"kind": "encdec", "width": 8, "depth": 1, "heads": 2, "vocabulary": 64, "tokens": 16}
    runs = [RunDir.create(results, make_spec(lr=lr)) for lr in (1, 2)]
    spec = make_spec()
    texts = [
        RunDir.create(results, type(spec).model_validate(spec.model_dump() | {"model": text, "lr": lr}))  # type: ignore[attr-defined]
        for lr in (1, 2)
    ]
    assert companions(make_work(runs, ensemble=1), runs) == ([], "")
    together = make_work(runs, ensemble=8, devices_per_run=2)
    assert companions(together, runs) == ([], "trains alone: an ensemble is of runs on one device each")
    kind = "trains alone: models of kind encdec cannot train in an ensemble"
    assert companions(make_work(texts, ensemble=8), texts) == ([], kind)
    none = "trains alone: no other run of its recipe waits for this worker"
    assert companions(make_work(runs[:1], ensemble=8), runs[:1]) == ([], none)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    assert companions(make_work(runs, ensemble=8), runs)[1].startswith("trains alone: no two such runs fit")


def test_runs_train_in_ensembles_of_their_recipe_and_the_log_says_so(
    make_spec: MakeSpec, results: Path, make_work: Callable[..., TrainerWork]
) -> None:
    shapes = ((8, 0.5), (16, 0.5), (8, 0.25), (24, 0.5))
    runs = [RunDir.create(results, make_spec(model={"width": width}, lr=lr)) for width, lr in shapes]
    make_work(runs, ensemble=8).train()
    assert list(map(ensemble_of, runs)) == [2, 1, 2, 1]
    logs = [run.attempt(1).log_text() for run in runs]
    assert ["trains in a stack of 2 runs" in log for log in logs] == [True, False, True, False]
    assert ["trains alone: no other run" in log for log in logs] == [False, True, False, True]
    torch.set_num_threads(1)


def test_a_long_list_is_not_looked_through_for_each_ensemble(
    make_spec: MakeSpec, results: Path, make_work: Callable[..., TrainerWork], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr, seed=seed)) for lr in range(1, 51) for seed in (0, 1, 2)]
    work, looks, sizes = make_work(runs, ensemble=10), list[str](), list[int]()

    def finish(work: TrainerWork, attempts: list[Any], settings: RuntimeSettings) -> list[None]:
        sizes.append(len(attempts))
        for attempt in attempts:
            RunDir(attempt.run).finish({"status": "done"}, [])
        return [None] * len(attempts)

    status = RunDir.status
    monkeypatch.setattr(TrainerWork, "_train_together", finish)
    monkeypatch.setattr(RunDir, "status", lambda run, *rest: (looks.append(run.id), status(run, *rest))[1])
    work.train()
    assert sizes == [10] * 15
    assert len(looks) < 5 * len(runs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["trainer.ensemble=0"], "trainer.ensemble: "),
        (["trainer.ensemble=auto"], "trainer.ensemble: "),
        (["trainer.ensemble=8", "trainer.compile=true"], "ensemble: 8 excludes compile: true; drop one of the two"),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, results: Path, options: list[str], message: str) -> None:
    path = write_grid(tmp_path / "grid.yaml")
    launch = [word for option in options for word in ("--launch-set", option)]
    assert message in ettsweep("grid", path, "--results", results, *launch, code=2).stderr
