"""Real workers that train several runs at once: which they take, and what stops, kills and other workers do to them."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commandline import (
    GRID,
    assert_as_if_undisturbed,
    ettsweep,
    runs_in,
    write_grid,
)
from support.made_runs import CPU, MakeSpec, result_of
from support.slots import end_stopped, owner, stopped_at_checkpoint, wait_for_results

from ettsweep.launch.profile import LocalProfile, Slot
from ettsweep.launch.submissions import Submission
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import LocalLiveness, State
from ettsweep.trainer.ensemble import stack
from ettsweep.trainer.ensemble.stack import StackDecision, StackShape
from ettsweep.trainer.settings import TrainerSettings
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.tasks.task import BatchShare
from ettsweep.trainer.training import memory
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.run import environment
from ettsweep.trainer.training.trainer import initial_network
from ettsweep.worker.packing import PackQueue, PackSize, RemainingRuns, pack_size, runs_for_largest_pack
from ettsweep.worker.signals import POLL_S
from ettsweep.worker.trainer_runner import NO_COMPANIONS, TrainerWork
from ettsweep.worker.worker import Worker

RECIPE = {"batch_size": 32, "schedule": {"total_steps": 100, "warmup_steps": 4, "eval_every": 25}}

Ask = Callable[..., Any]
Held = Callable[[], tuple[list[RunDir], int]]


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that asks for some runs, in packs of three."""

    def ask(*launch: str, runs: int = 3, **grid: Any) -> Any:
        path = write_grid(tmp_path / "grid.yaml", **{"recipe": RECIPE, "lr": {"range": [0, runs - 1]}} | grid)
        options = ["threads=1", "checkpoint_every_steps=25", *(launch or ("slots=1", "trainer.pack=3"))]
        options_kept = [section for option in options for section in ("--launch-set", option)]
        return ettsweep("grid", "--grid", path, "--results", results, *options_kept)

    return ask


@pytest.fixture
def held_pack(results: Path, hold_runs: Callable[[int], None]) -> Callable[[], tuple[list[RunDir], int]]:
    """Have a pack of three hold with a checkpoint of each; return what waits for that, and returns runs and worker."""
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


def pack_of(run: RunDir) -> int:
    latest = run.latest_attempt()
    assert latest is not None
    return int(latest.execution().get("pack", 1))


# --- real workers -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process", "warm")
class TestWorkers:
    def test_a_pack_is_of_one_process_and_its_runs_are_as_if_alone(self, grid: Ask, results: Path) -> None:
        grid(runs=4, recipe=GRID["recipe"])
        runs = wait_for_results(results, 4)
        assert sorted(map(pack_of, runs))[1:] == [3, 3, 3], "the last one comes into a place of a stack, or is alone"
        assert len({owner(run.attempt(1)) for run in runs}) == 1
        for run in runs:
            assert_as_if_undisturbed(run)
            assert run.attempt(1).read_heartbeat()
            assert result_of(run)["environment"]["code"] == run.attempt(1).provenance()["code"]
        stdout = ettsweep("show", runs[0].id, "--results", results).stdout
        assert "pack" in stdout

    def test_one_of_a_pack_is_cancelled_and_the_others_go_on(self, grid: Ask, results: Path, held_pack: Held) -> None:
        grid()
        runs, worker = held_pack()
        assert "1 run cancelled" in ettsweep("cancel", runs[1].id, "--results", results).stderr
        time.sleep(POLL_S)  # it looks at its next step, however lately it has looked
        os.kill(worker, signal.SIGCONT)
        for run in wait_for_results(results, 2):
            assert_as_if_undisturbed(run)
        assert runs[1].status().state is State.CANCELLED
        assert runs[1].attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_a_pack_that_is_ended_goes_on_exactly_alone_or_in_another(
        self, grid: Ask, results: Path, held_pack: Held, number: signal.Signals
    ) -> None:
        grid()
        _, worker = held_pack()
        end_stopped(worker, number)
        if number == signal.SIGTERM:
            reasons = [run.attempt(1).failure() for run in runs_in(results)]
            assert reasons == [{"kind": "interrupted", "reason": "terminated", "details": ""}] * 3
        grid("slots=1", "trainer.pack=2")
        for run in wait_for_results(results, 3):
            assert run.attempt(2).resumed_from()[0] == 1
            assert_as_if_undisturbed(run)

    def test_seeds_are_mixed_where_batches_lie_in_memory(self, grid: Ask, results: Path) -> None:
        grid("slots=1", "trainer.pack=9", runs=2, seeds=[0, 1], recipe=GRID["recipe"])
        assert [pack_of(run) for run in wait_for_results(results, 4)] == [4] * 4, (
            "digits lie in memory: seeds may differ"
        )


# --- which runs -------------------------------------------------------------------------------------------------------


def companions(runs: list[RunDir], spec: RunSpec) -> list[RunDir]:
    return list(RemainingRuns(runs, LocalLiveness()).companions(spec))


def test_companions_are_runs_of_one_recipe_those_of_the_same_seed_first(make_spec: MakeSpec, results: Path) -> None:
    base = make_spec()
    specs = [
        make_spec(seed=9),
        make_spec(lr=0.3),
        make_spec(batch_size=20, lr=0.4),
        make_spec(strategy={"s": 1.0}),
        make_spec(schedule={"eval_every": 4}),
    ]
    runs = [RunDir.create(results, spec) for spec in specs]
    broken = RunDir.create(results, make_spec(lr=0.7))
    broken.spec_path.write_text("{")
    assert companions([broken, *runs], base) == [runs[1], runs[3], runs[0]]


def test_seeds_are_not_mixed_where_batches_are_loaded(make_spec: MakeSpec, results: Path) -> None:
    task = ImageNetTask(train_size=60, val_size=30)
    base, same, other = (
        make_spec(lr=lr, seed=seed).model_copy(update={"task": task}) for lr, seed in ((0.1, 0), (0.2, 0), (0.1, 1))
    )
    runs = [RunDir.create(results, spec) for spec in (other, same)]
    assert companions(runs, base) == [runs[1]]


def with_settings(**settings: Any) -> LocalProfile:
    return LocalProfile(trainer=TrainerSettings(**settings))


def sizes(profile: LocalProfile, spec: Any, waiting: int, workers: int) -> tuple[int, str]:
    size, _, remark = pack_size(profile, spec, CPU, waiting, workers)
    return size, remark


def test_a_pack_is_as_large_as_asked_for_but_leaves_others_their_part(make_spec: MakeSpec) -> None:
    spec = make_spec()
    assert sizes(with_settings(pack=8), spec, 100, 2) == (8, "")
    assert sizes(with_settings(pack=8), spec, 9, 2) == (5, "")
    assert sizes(with_settings(pack=8), spec, 2, 2) == (1, "")
    assert sizes(with_settings(pack=1), spec, 100, 1) == (1, "")
    together = LocalProfile(trainer=TrainerSettings(pack=8), devices_per_run=2)
    assert sizes(together, spec, 100, 1) == (1, "")


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> dict[Any, StackDecision]:
    """Return what trials of this process have said, as yet nothing."""
    messages = dict[Any, StackDecision]()
    monkeypatch.setattr(stack, "_DECISIONS", messages)
    return messages


def test_auto_stacks_where_what_is_left_makes_up_for_a_trial(
    make_spec: MakeSpec, verdicts: dict[Any, StackDecision]
) -> None:
    long, profile = make_spec(schedule={"total_steps": 1000}), LocalProfile()
    assert pack_size(profile, long, CPU, 60, 2) == (8, 8, "")
    assert pack_size(profile, long, CPU, 10, 2) == (5, 5, ""), "of what is left for each"
    text = (
        "trains alone, without a stack: {} runs of {} steps are too few to pay for a trial; trainer.pack=K requests one"
    )
    assert pack_size(profile, long, CPU, 8, 2) == (1, 0, text.format(4, 1000))
    assert pack_size(profile, make_spec(schedule={"total_steps": 240}), CPU, 18, 1) == (1, 0, text.format(18, 240))
    assert pack_size(with_settings(pack=8), make_spec(), CPU, 18, 1) == (8, None, ""), "who asks for it gets one"
    loaded = make_spec().model_copy(update={"task": ImageNetTask(train_size=60, val_size=30)})
    message = "no stack: 18 runs of 24 steps are too few to pay for a trial; trainer.pack=K requests one"
    assert pack_size(profile, loaded, CPU, 18, 1) == (8, 0, message), "a loader is shared all the same"
    unlike = "trains alone, without a stack: the profile compiles blocks or checkpoints activations"
    assert pack_size(with_settings(compile=True), long, CPU, 60, 2) == (1, 0, unlike)


def test_auto_goes_by_a_trial_that_has_been(make_spec: MakeSpec, verdicts: dict[Any, StackDecision]) -> None:
    spec, profile, other = make_spec(), LocalProfile(), with_settings(pack_mode="fast")
    shape = StackShape(
        spec.model, spec.task, spec.precision, CPU, BatchShare(spec.batch_size, micro_batch=16), threads=1
    )
    verdicts[shape, 8, "exact"] = StackDecision(is_accepted=True, reason="is faster")
    assert pack_size(profile, spec, CPU, 18, 1) == (8, 8, ""), "however few they are"
    assert pack_size(profile, make_spec(seed=3, lr=9.0), CPU, 18, 1) == (8, 8, "")
    for unlike in (make_spec(batch_size=16), make_spec(model={"width": 16}), make_spec(precision="bf16")):
        assert pack_size(profile, unlike, CPU, 18, 1).size == 1
    assert pack_size(other, spec, CPU, 18, 1).size == 1
    verdicts[shape, 8, "exact"] = StackDecision(is_accepted=False, reason="the last bits differ")
    long = make_spec(schedule={"total_steps": 1000})
    for left in (60, 14):
        assert sizes(profile, long, left, 2) == (1, "trains alone, without a stack: the last bits differ")
    assert sizes(other, long, 60, 2) == (8, "")


def test_auto_stacks_on_a_gpu_where_bits_may_differ(
    make_spec: MakeSpec, verdicts: dict[Any, StackDecision], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2**36)
    spec, gpu = make_spec(schedule={"total_steps": 1000}), torch.device("cuda")
    assert pack_size(with_settings(pack_mode="fast"), spec, gpu, 70, 2) == (32, 32, "")
    text = "trains alone, without a stack: a GPU rounds differently in a stack; trainer.pack_mode=fast allows that"
    assert pack_size(LocalProfile(), spec, gpu, 70, 2) == (1, 0, text)


@pytest.mark.slow
def test_a_worker_makes_one_trial_for_all_of_its_packs(
    make_spec: MakeSpec,
    results: Path,
    make_worker: Callable[..., Worker],
    verdicts: dict[Any, StackDecision],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it says holds for the runs after those that it was made with."""
    monkeypatch.setattr("ettsweep.worker.packing.MIN_TRIAL_STEPS", 24 * 16)
    attempted, trial = list[int](), stack.run_trial
    for pays, packs in ((0.0, [8] * 16 + [1] * 3), (9.0, [8] * 8 + [1] * 11)):
        monkeypatch.setattr(stack, "MIN_SPEEDUP", pays)
        monkeypatch.setattr(
            stack, "run_trial", lambda made, given: (attempted.append(len(made.trainers)), trial(made, given))[1]
        )
        runs = [RunDir.create(results / str(pays), make_spec(lr=0.1 * k)) for k in range(1, 20)]
        worker = make_worker(runs, 1)
        worker.stop_source.make_poll = lambda *_: lambda: None
        trainer_work(worker).train()
        assert attempted == [8]
        assert list(map(pack_of, runs)) == packs
        assert ("trains without a stack" in runs[0].attempt(1).log_text()) == (pays > 1)
        assert ("a stack of 8 computes gradients" in runs[8].attempt(1).log_text()) == (pays > 1)
        attempted.clear()
        verdicts.clear()


def test_memory_bounds_a_pack_and_the_log_says_where_two_do_not_fit(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    state = 16 * sum(p.numel() for p in initial_network(spec, CPU).parameters())
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * 2 * 5 * state)
    assert sizes(with_settings(pack=32), spec, 64, 2) == (5, "")
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * 3 * state)
    size, note = sizes(with_settings(pack=32), spec, 64, 2)
    assert size == 1
    assert note.startswith("trains alone: of the 32 runs that could train at once")


@pytest.mark.parametrize("profile", [with_settings(pack=8), LocalProfile(), with_settings(pack_mode="fast")])
@pytest.mark.parametrize("steps", [24, 1000])
def test_beyond_enough_runs_a_pack_is_as_large_however_many_are_left(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, profile: LocalProfile, steps: int
) -> None:
    spec = make_spec(schedule={"total_steps": steps})
    left = 2 * runs_for_largest_pack(profile.settings(TrainerSettings), spec)
    assert pack_size(profile, spec, CPU, left, 2) == pack_size(profile, spec, CPU, 10 * left, 2)
    assert sizes(profile, spec, left, 2) == (8, "")


@pytest.fixture
def make_worker(results: Path) -> Callable[..., Worker]:
    """Return a function that makes a worker of a list, in this process, one of so many."""

    def make(runs: list[RunDir], workers: int, **settings: Any) -> Worker:
        slots = [{"name": f"cpu-{number}"} for number in range(workers)]
        plain = with_settings(**settings).model_dump(mode="json")
        submission = Submission(results / "jobs" / "a", "local", (), plain, None, "", {}, slots, "", "", "")
        stop_source: Any = SimpleNamespace(stop_reason="", record_stop=lambda stop: None)
        return Worker(submission, Slot("cpu-0", "cpu", None, 1), runs, stop_source)

    return make


def trainer_work(worker: Worker) -> TrainerWork:
    """Return the runs of a worker, as if its device were ready."""
    return TrainerWork(worker.work_list(), SINGLE_PROCESS, CPU, environment(CPU))


def test_what_others_have_nearly_trained_is_no_longer_of_their_part(
    make_spec: MakeSpec, results: Path, make_worker: Callable[..., Worker]
) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr)) for lr in range(1, 11)]
    for run, progress in zip(runs[:4], (0.75, 0.75, 1.0, 0.5), strict=True):
        attempt = run.claim({}, after=0)
        assert attempt is not None
        attempt.timings_path.write_text(json.dumps({"progress": progress}) + "\n")
    remaining = RemainingRuns(runs, LocalLiveness())
    assert remaining.count_left(99) == 6 + 0.25 + 0.25 + 0.5
    assert remaining.count_left(3) == 3


def test_a_long_list_is_not_looked_through_for_each_pack(
    make_spec: MakeSpec, results: Path, make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr, seed=seed)) for lr in range(1, 101) for seed in (0, 1, 2)]
    packs, looks = list[list[int]](), Counter[str]()

    def finish(attempts: list[Attempt], *_: object) -> list[None]:
        members = [RunDir(attempt.run) for attempt in attempts]
        packs.append([run.spec().seed for run in members])
        for run in members:
            run.finish({"status": "done"}, [])
        return [None] * len(members)

    def counted(name: str) -> None:
        method = getattr(RunDir, name)

        def look(run: RunDir, *arguments: object) -> Any:
            looks[name] += 1
            return method(run, *arguments)

        monkeypatch.setattr(RunDir, name, look)

    monkeypatch.setattr("ettsweep.worker.trainer_runner.train_attempts", finish)
    counted("status")
    counted("spec")
    trainer_work(make_worker(runs, 1, pack=10)).train()
    assert packs == [[seed] * 10 for seed in (0, 1, 2)] * 10
    assert looks["status"] < 10 * len(runs)
    assert looks["spec"] < 3 * len(runs)


def test_a_pack_is_a_part_of_what_waits_or_is_trained(
    make_spec: MakeSpec, results: Path, make_worker: Callable[..., Worker]
) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr)) for lr in range(1, 12)]
    for run in runs[:5]:
        run.finish({"status": "done"}, [])
    for run in runs[5:7]:
        assert run.claim({}, after=0)
    runs[7].cancel()
    work = trainer_work(make_worker(runs, 2, pack=8))
    pack_places = work.pack_queue(runs[6], RemainingRuns(runs, LocalLiveness()))
    assert (pack_places.size, pack_places.remark) == (3, "")
    assert [pack_places.next() for _ in range(4)] == [*runs[8:], None]


def test_a_run_that_no_other_is_like_trains_alone_and_its_log_says_why(
    make_spec: MakeSpec, results: Path, make_worker: Callable[..., Worker]
) -> None:
    shapes = ((8, 0.5), (16, 0.5), (8, 0.25), (24, 0.5))
    runs = [RunDir.create(results, make_spec(model={"width": width}, lr=lr)) for width, lr in shapes]
    worker = make_worker(runs, 1, pack=8)
    worker.stop_source.make_poll = lambda *_: lambda: None
    trainer_work(worker).train()
    assert list(map(pack_of, runs)) == [2, 1, 2, 1]
    logs = [run.attempt(1).log_text() for run in runs]
    assert [NO_COMPANIONS in log for log in logs] == [False, True, False, False], "the last one is all that is left"


@pytest.mark.parametrize(
    ("profile", "opening"),
    [({}, []), ({"pack_mode": "fast"}, ["trains alone"]), ({"pack": 1}, []), ({"pack": 8}, ["trains alone"])],
)
def test_why_a_run_trains_alone_comes_first_only_where_somebody_asked_for_a_pack(
    make_spec: MakeSpec, results: Path, make_worker: Callable[..., Worker], profile: dict[str, Any], opening: list[str]
) -> None:
    """Where packs are a matter of `auto`, the log says it in the end; where they are turned off, not at all."""
    runs = [RunDir.create(results, make_spec(model={"width": width})) for width in (8, 16)]
    worker = make_worker(runs, 1, **profile)
    worker.stop_source.make_poll = lambda *_: lambda: None
    trainer_work(worker).train()
    values = [line.partition("  ")[2] for line in runs[0].attempt(1).log_text().splitlines()]
    items = [line.partition(",")[0].partition(":")[0] for line in values]
    assert items[1 : 1 + len(opening)] == opening
    assert items.count("trains alone") == (profile != {"pack": 1})
    assert (items[-2] == "trains alone") == (profile == {})
    assert items[-1] == "finished"


def test_a_refill_leaves_other_workers_their_part(
    make_spec: MakeSpec, results: Path, make_worker: Callable[..., Worker]
) -> None:
    runs = [RunDir.create(results, make_spec(lr=lr)) for lr in range(1, 8)]
    assert runs[0].claim({}, after=0)
    worker, pack_places = (
        trainer_work(make_worker(runs, 2)),
        PackQueue(PackSize(9), RemainingRuns(runs, LocalLiveness()).companions(make_spec())),
    )
    values = [[attempt.run.name for attempt in worker.refill(pack_places, 4)] for _ in range(4)]
    ids = [run.id for run in runs]
    assert values == [ids[1:4], ids[4:6], ids[6:], []]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("trainer.pack=0", "trainer.pack: "),
        ("trainer.pack=few", "trainer.pack: "),
        ("trainer.pack_mode=slow", "trainer.pack_mode: "),
    ],
)
def test_bad_values_are_told(tmp_path: Path, results: Path, option: str, message: str) -> None:
    path = write_grid(tmp_path / "grid.yaml")
    error = ettsweep("grid", "--grid", path, "--results", results, "--launch-set", option, code=2).stderr
    assert message in error
    assert json.dumps(option.partition("=")[2]).strip('"') in error
