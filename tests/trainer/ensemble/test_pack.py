"""Runs in a pack have the numbers, files and ends of runs alone, whatever becomes of the others."""

import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from support.made_runs import (
    CPU,
    Poll,
    Train,
    Undisturbed,
    curve,
    decoder_run,
    never,
    numbers,
    result_of,
    stop_at,
    text_run,
)

from bench.waves import CLASSES, write_images
from ettsweep.errors import DataMissingError, StorageError
from ettsweep.files import read_lines
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import State
from ettsweep.runs.stop import StopReason
from ettsweep.trainer.ensemble import stack
from ettsweep.trainer.ensemble.pack import Pack
from ettsweep.trainer.ensemble.stack import Stack, StackTrial
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.tasks.images import chunks
from ettsweep.trainer.tasks.images.digits import Digits
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.training.coroutine import RunCoroutine
from ettsweep.trainer.training.run import ClaimedRun, environment, prepare, training_coroutine
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import Trainer
from ettsweep.worker.signals import SIGNALS, StopSource

MakeSpec = Callable[..., RunSpec]


class TrainPack(Protocol):
    """Claim the next attempt at each run, train them in one pack, and return the run folders."""

    def __call__(
        self, specs: Sequence[RunSpec], polls: Sequence[Poll] = (), folder: Path | None = None, **how: Any
    ) -> list[RunDir]: ...


@pytest.fixture
def pack(results: Path) -> TrainPack:
    """Return what trains specs together below `results`, or below another folder."""

    def train(
        specs: Sequence[RunSpec], polls: Sequence[Poll] = (), folder: Path | None = None, **how: Any
    ) -> list[RunDir]:
        runs = [RunDir.create(folder or results, spec) for spec in specs]
        together, members = Pack(CPU, len(runs)), []
        for number, run in enumerate(runs):
            attempt = run.claim(environment(CPU), after=max(run.attempt_numbers(), default=0))
            assert attempt is not None
            members.append(training_coroutine(claimed(run, attempt, polls[number] if polls else never, how), together))
        together.train(members)
        return runs

    return train


def begun(run: RunDir, together: Pack) -> RunCoroutine:
    attempt = run.claim(environment(CPU), after=max(run.attempt_numbers(), default=0))
    assert attempt is not None
    return training_coroutine(claimed(run, attempt, never, {}), together)


def claimed(run: RunDir, attempt: Attempt, poll: Poll, mode: dict[str, Any]) -> ClaimedRun:
    return ClaimedRun(run, attempt, CPU, RuntimeSettings(**mode), lambda: poll(attempt))


@pytest.fixture
def specs(make_spec: MakeSpec) -> list[RunSpec]:
    """Return runs that differ in learning rate, decay and strategy alone."""
    return [
        make_spec(lr=lr, wd=wd, strategy={"s": s})
        for lr, wd, s in ((0.5, 0.1, None), (0.25, 0.0, 0.0), (1.0, 0.5, 1.0))
    ]


def test_members_have_the_numbers_of_single_runs(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec]
) -> None:
    runs = pack(specs)
    assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in specs]
    assert len({run.metrics_path.read_bytes() for run in runs}) == 3
    assert {result_of(run)["execution"]["pack"] for run in runs} == {3}
    assert "trains in a pack with 2 other runs" in runs[1].attempt(1).log_text()


def test_members_with_other_seeds_schedules_and_batches_go_through_their_own(
    pack: TrainPack, undisturbed: Undisturbed, make_spec: MakeSpec
) -> None:
    changes = ({}, {"seed": 7}, {"batch_size": 20}, {"schedule": {"eval_every": 5}}, {"task": {"train_size": 500}})
    others = [make_spec(**change) for change in changes]
    runs = pack(others)
    assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in others]


@pytest.mark.slow
def test_micro_batches_are_those_of_single_runs(pack: TrainPack, specs: list[RunSpec], results: Path) -> None:
    specs_kept = [run for spec in specs for run in pack([spec], folder=results / "alone", micro_batch=12)]
    assert list(map(numbers, pack(specs, micro_batch=12))) == list(map(numbers, specs_kept))


@pytest.mark.parametrize(
    "make",
    [pytest.param(text_run, marks=pytest.mark.slow, id="encoder-decoder"), pytest.param(decoder_run, id="decoder")],
)
def test_members_draw_their_own_dropout(pack: TrainPack, undisturbed: Undisturbed, make: MakeSpec) -> None:
    base = make()
    texts = [base, base.with_point(0.5, 0.0, 3), base.with_point(0.5, 1e-3, 4)]
    assert [numbers(run) for run in pack(texts)] == [undisturbed(spec) for spec in texts]


def test_who_was_begun_with_other_micro_batches_goes_on_with_them(
    pack: TrainPack, specs: list[RunSpec], results: Path
) -> None:
    expected = [*pack(specs[:1], folder=results / "alone", micro_batch=12), *pack(specs[1:2], folder=results / "alone")]
    pack(specs[:1], [stop_at(5)], micro_batch=12)
    pack(specs[1:2], [stop_at(5)])
    assert list(map(numbers, pack(specs[:2]))) == list(map(numbers, expected))


# --- leaving --------------------------------------------------------------------------------------------------------


def test_a_member_that_diverges_leaves_the_others_as_they_are(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec], make_spec: MakeSpec
) -> None:
    wild = make_spec(lr=1e30, strategy={"s": None})
    first, removed, last = pack([specs[0], wild, specs[1]])
    assert result_of(removed)["status"] == "diverged"
    assert numbers(removed)[0] == undisturbed(wild)[0]
    assert [numbers(first), numbers(last)] == [undisturbed(specs[0]), undisturbed(specs[1])]


def test_members_that_are_stopped_go_on_alone_and_those_begun_alone_in_a_pack(
    pack: TrainPack, train: Train, undisturbed: Undisturbed, specs: list[RunSpec]
) -> None:
    begun = train(specs[1], poll=stop_at(5))
    runs = pack(specs, [stop_at(7, StopReason.CANCELLED), never, stop_at(11, StopReason.OUT_OF_TIME)])
    assert [run.status().state for run in runs] == [State.INTERRUPTED, State.DONE, State.INTERRUPTED]
    assert begun.attempt(2).resumed_from() == (1, 5)
    train(specs[0])
    (last,) = pack([specs[2]])
    assert (runs[0].attempt(2).resumed_from(), last.attempt(2).resumed_from()) == ((1, 7), (1, 11))
    assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in specs]
    assert "pack" not in result_of(runs[0])["execution"], "as it was trained last"


def test_a_signal_within_a_round_stops_all_at_one_step(specs: list[RunSpec], results: Path) -> None:
    """Else they would go on with two loaders."""
    together = Pack(CPU, 3)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    stop_source = StopSource()
    members, attempts = list[RunCoroutine](), list[Attempt]()

    def poll_of(attempt: Attempt) -> Callable[[], StopReason | None]:
        poll = stop_source.make_poll(attempt, lambda: together.rounds)

        def asked() -> StopReason | None:
            answer = poll()
            if attempt is attempts[1] and together.rounds == 6:
                os.kill(os.getpid(), signal.SIGUSR2)
            return answer

        return asked

    try:
        for spec in specs:
            run = RunDir.create(results, spec)
            attempt = run.claim(environment(CPU), after=0)
            assert attempt is not None
            attempts.append(attempt)
            members.append(
                training_coroutine(ClaimedRun(run, attempt, CPU, RuntimeSettings(), poll_of(attempt)), together)
            )
        assert together.train(members) == [StopReason.OUT_OF_TIME] * 3
    finally:
        for number, on_signal in handlers.items():
            signal.signal(number, on_signal)
    assert all("stopped at step 7:" in logged(RunDir(attempt.run)) for attempt in attempts)


def test_a_member_that_is_taken_over_leaves_and_saves_nothing(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec]
) -> None:
    def taken_over(attempt: Attempt) -> StopReason | None:
        if len(read_lines(attempt.metrics_path)) > 8 and not attempt.is_superseded():
            RunDir(attempt.run).claim(environment(CPU), after=1)
        return StopReason.SUPERSEDED if attempt.is_superseded() else None

    runs = pack(specs, [never, taken_over, never])
    assert runs[1].attempt(1).failure() == {"kind": "interrupted", "reason": "superseded", "details": ""}
    assert not runs[1].attempt(1).has_checkpoint()
    assert [numbers(run) for run in (runs[0], runs[2])] == [undisturbed(spec) for spec in (specs[0], specs[2])]


@pytest.mark.parametrize("function", ["train_step", "measure", "metrics"])
def test_a_member_that_raises_fails_alone(
    pack: TrainPack,
    undisturbed: Undisturbed,
    specs: list[RunSpec],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
) -> None:
    expected = [undisturbed(spec) for spec in specs]
    getattr_result = getattr(Trainer, function)

    def broken(trainer: Trainer, *rest: object) -> object:
        if trainer.spec == specs[1] and trainer.step >= 8:
            raise ZeroDivisionError("a bug of this run alone")
        return getattr_result(trainer, *rest)

    monkeypatch.setattr(Trainer, function, broken)
    first, failed, last = pack(specs)
    assert failed.status().state is State.FAILED
    failure = failed.attempt(1).failure()
    assert failure is not None
    assert "a bug of this run alone" in failure["reason"]
    assert "in broken" in failure["details"], "the traceback says where"
    assert [numbers(first), numbers(last)] == [expected[0], expected[2]]


@pytest.mark.parametrize("function", ["batches", "validation"])
def test_data_that_cannot_be_read_fail_all_who_need_them(
    pack: TrainPack, specs: list[RunSpec], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def gone(task: Digits, *_: object) -> Any:
        if task._seed == specs[0].seed:
            raise DataMissingError("digits.csv.gz: cannot be read")
        return getattr_result(task, *_)

    getattr_result = getattr(Digits, function)
    monkeypatch.setattr(Digits, function, gone)
    *failed, other = pack([*specs, make_spec(seed=9)])
    assert {run.status().state for run in failed} == {State.FAILED}
    assert {run.status().reason for run in failed} == {"digits.csv.gz: cannot be read"}
    assert other.status().state is State.DONE


def test_a_failure_that_cannot_be_recorded_is_raised_once_the_others_have_ended(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [undisturbed(spec) for spec in specs]
    append, write = Attempt.append, Attempt.record_failure

    def full(attempt: Attempt, *rest: Any) -> None:
        if attempt.run.name == specs[1].run_id:
            raise StorageError(f"{attempt.path}: no space left on device")
        (append if len(rest) == 2 else write)(attempt, *rest)

    monkeypatch.setattr(Attempt, "append", full)
    monkeypatch.setattr(Attempt, "record_failure", full)
    with pytest.raises(StorageError, match=f"{specs[1].run_id}.*no space left"):
        pack(specs)
    runs = [RunDir.create(results, spec) for spec in specs]
    assert [numbers(runs[0]), numbers(runs[2])] == [expected[0], expected[2]]
    assert runs[1].result() is None


def test_an_interruption_ends_all(pack: TrainPack, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    closed = list[RunLogger]()
    monkeypatch.setattr(RunLogger, "close", lambda record: closed.append(record))
    monkeypatch.setattr(Trainer, "train_step", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        pack(specs)
    assert raised.traceback, "which holds on to all that was there"
    assert len(closed) == 3


# --- what they share ------------------------------------------------------------------------------------------------


def test_members_share_the_seconds_that_go_by(
    pack: TrainPack, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four leave after two fifths: not even then is a second counted twice, or that of one as a fourth."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # while one is being finished, seconds go by for nobody
    short = [make_spec(seed=seed, schedule={"stop_step": 10}) for seed in (1, 2, 3)]
    runs = pack([make_spec(), *short])
    results = list(map(result_of, runs))
    assert 0.75 < sum(result["device_s"] for result in results) / results[0]["wall_s"] <= 1.0
    assert all(0.2 < result["device_s"] / result["wall_s"] < 0.3 for result in results[1:])
    attempt = runs[0].attempt(1)
    assert (
        attempt.time_spent().device_s == read_lines(attempt.timings_path)[-1]["device_s"] < attempt.time_spent().wall_s
    )


@pytest.fixture
def photos(tmp_path: Path) -> RunSpec:
    """Return a run on JPEG files with Mixup, two of which are damaged; their folder is `tmp_path / "data"`."""
    write_images(tmp_path / "data", {"train": 60, "val": 30}, 40)
    for section, label in (("train", 1), ("val", 2)):
        path = tmp_path / "data" / section / f"n{label:02}" / "0.jpg"
        path.write_bytes(path.read_bytes()[:300])
    return TransformerRun(
        model=VitSpec(width=16, heads=2, depth=1, image_size=32, patch_size=8, classes=CLASSES),
        task=ImageNetTask(train_size=60, val_size=30, resize=36, mixup_chunk=8),
        schedule=ScheduleSpec(total_steps=6, warmup_steps=2, eval_every=3),
        batch_size=20,
        strategy=StrategySpec(s=None),
        lr=0.001,
        wd=0.1,
        seed=1,
    )


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_members_share_one_loader_and_each_names_damaged_images(
    pack: TrainPack,
    photos: RunSpec,
    results: Path,
    tmp_path: Path,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapping = {"data": str(tmp_path / "data"), "loader_workers": workers}
    points = [photos, photos.with_point(0.002, 0.0, 1), photos.with_point(0.004, 0.1, 1)]
    read = list[int]()
    decode = chunks.decode
    monkeypatch.setattr(chunks, "decode", lambda *given: (read.append(1), decode(*given))[1])
    points_kept = [run for spec in points for run in pack([spec], folder=results / "alone", **mapping)]
    for_all = len(read)
    runs = pack(points, **mapping)
    assert list(map(numbers, runs)) == list(map(numbers, points_kept))
    if not workers:
        assert len(read) - for_all == for_all / 3 > 0, "each image is decoded once for all"
    names = ["n01/0.jpg", "n02/0.jpg"]
    for run in runs:
        skipped = run.attempt(1).skipped_samples()
        assert len(skipped) == result_of(run)["corrupt_images"] == len(names)
        assert all(any(name in line for line in skipped) for name in names)


def test_a_loader_ends_with_the_last_who_needs_it(
    pack: TrainPack, specs: list[RunSpec], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, ended = Digits.batches, dict[int, int]()

    def watched(task: Digits, first_step: int) -> Any:
        step = 0
        try:
            for step, batch in enumerate(batches(task, first_step), 1):  # noqa: B007
                yield batch
        finally:
            ended[task._seed] = step

    monkeypatch.setattr(Digits, "batches", watched)
    short = make_spec(seed=9, schedule={"stop_step": 10})
    observed = list[dict[int, int]]()

    def look(attempt: Attempt) -> None:
        observed.append(dict(ended))

    pack([*specs, short], [look, never, never, never])
    assert ended == {specs[0].seed: 24, 9: 10}
    assert observed[-1] == {9: 10}, "and not with the pack"


def test_metrics_and_timings_are_files_of_each(pack: TrainPack, specs: list[RunSpec]) -> None:
    for run in pack(specs):
        data = json.loads((run.attempt(1).path / "execution.json").read_text())
        assert data["pack"] == 3
        assert [line["step"] for line in read_lines(run.attempt(1).timings_path)][-1] == 24


# --- stacks ---------------------------------------------------------------------------------------------------------


def logged(run: RunDir) -> str:
    return run.attempt(max(run.attempt_numbers())).log_text()


@pytest.fixture(autouse=True)
def _in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack nobody, fast as that may be, and know of no trial of another test."""
    monkeypatch.setattr(stack, "MIN_SPEEDUP", math.inf)
    monkeypatch.setattr(stack, "_DECISIONS", {})


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack members however small they are."""
    monkeypatch.setattr(stack, "MIN_SPEEDUP", 0.0)


@pytest.mark.usefixtures("always")
def test_stacked_members_have_the_numbers_of_single_runs_too(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec], make_spec: MakeSpec
) -> None:
    """Of several seeds."""
    members = [*specs, make_spec(seed=7, lr=0.125)]
    for run, spec in zip(pack(members), members, strict=True):
        assert numbers(run) == undisturbed(spec)
        assert "trains in a stack of 4, which computes gradients" in logged(run)
        assert result_of(run)["execution"]["pack_mode"] == "exact"


@pytest.fixture
def fast(results: Path) -> TrainPack:
    """Return what trains specs in one pack whose stacks need not be exact."""

    def train(
        specs: Sequence[RunSpec], polls: Sequence[Poll] = (), folder: Path | None = None, **how: Any
    ) -> list[RunDir]:
        runs = [RunDir.create(folder or results, spec) for spec in specs]
        together = Pack(CPU, len(runs), "fast")
        together.train([begun(run, together) for run in runs])
        return runs

    return train


def assert_close(runs: Sequence[RunDir], expected: Sequence[tuple[bytes, object]]) -> None:
    """The metrics of a fast stack, whose members are updated at once, are those of runs alone within rounding."""
    for run, (metrics, _) in zip(runs, expected, strict=True):
        lines = [json.loads(line) for line in metrics.splitlines()]
        assert run.history() == [pytest.approx(line, rel=1e-5) for line in lines]


@pytest.mark.usefixtures("always")
def test_evaluations_in_a_stack_are_those_of_runs_alone(
    fast: TrainPack, undisturbed: Undisturbed, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of members of another seed, which go through the same slices by a task of their own, and of ghosts."""
    monkeypatch.setattr(stack, "EVALUATION_DEVICES", ("cpu",))
    calls = list[int]()
    outputs = Stack.outputs

    def counted(stack: Stack, batches: Any) -> Any:
        calls.append(len(batches))
        return outputs(stack, batches)

    monkeypatch.setattr(Stack, "outputs", counted)
    short = make_spec(lr=0.7, schedule={"stop_step": 10})
    members = [make_spec(lr=0.5), make_spec(seed=7, lr=0.125), make_spec(seed=7, lr=0.25), short]
    expected = [undisturbed(spec) for spec in members]
    assert not calls
    assert_close(fast(members), expected)
    slices = len(list(prepare(members[0], CPU).task.validation()))
    evaluations = len([line for line in expected[0][0].splitlines() if b"val_loss" in line])
    assert calls == [4] * slices * evaluations, "all at once"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_evaluations_that_have_to_be_exact_or_gain_nothing_go_member_by_member(
    pack: TrainPack, fast: TrainPack, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    if mode == "exact":
        monkeypatch.setattr(stack, "EVALUATION_DEVICES", ("cpu",))
    calls = list[Stack]()
    monkeypatch.setattr(Stack, "outputs", lambda stack, batches: calls.append(stack))
    runs = (pack if mode == "exact" else fast)(specs)
    assert not calls
    assert "a stack of 3" in logged(runs[0])
    assert {run.status().state for run in runs} == {State.DONE}


@pytest.mark.usefixtures("always")
def test_who_cannot_evaluate_fails_alone(
    fast: TrainPack, undisturbed: Undisturbed, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [make_spec(lr=lr) for lr in (0.5, 0.25, 0.125)]  # small enough that rounding does not grow
    expected = [undisturbed(spec) for spec in specs]
    outputs, calls = Stack.outputs, list[int]()

    def broken(stack: Stack, batches: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise ZeroDivisionError("a bug of stacks")
        return outputs(stack, batches)

    single = Trainer.outputs

    def broken_too(trainer: Trainer, batch: Any) -> Any:
        if trainer.spec == specs[1] and trainer.step > 8:
            raise ZeroDivisionError("a bug of this run alone")
        return single(trainer, batch)

    monkeypatch.setattr(stack, "EVALUATION_DEVICES", ("cpu",))
    monkeypatch.setattr(Stack, "outputs", broken)
    monkeypatch.setattr(Trainer, "outputs", broken_too)
    runs = fast(specs)
    assert len(calls) == 4
    assert "is evaluated without a stack: a stack of 3 fails, ZeroDivisionError: a bug of stacks" in logged(runs[0])
    assert runs[1].status().state is State.FAILED
    assert_close([runs[k] for k in (0, 2)], [expected[k] for k in (0, 2)])


@pytest.mark.usefixtures("always")
def test_a_fast_stack_without_one_adamw_updates_run_by_run(
    fast: TrainPack, undisturbed: Undisturbed, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of runs alone, since a CPU finds those of their gradients."""
    monkeypatch.delattr(Stack, "update")
    members = [make_spec(lr=lr, optimizer={"kind": "sgd", "momentum": 0.9}) for lr in (0.5, 0.25)]
    runs = fast(members)
    assert "a stack of 2" in logged(runs[0])
    assert list(map(numbers, runs)) == list(map(undisturbed, members))


@pytest.mark.usefixtures("always")
def test_an_update_of_a_stack_that_fails_fails_all_of_its_runs(
    fast: TrainPack, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken amid its parameters, a step can neither be ended nor be taken again."""
    update, calls = Stack.update, list[int]()

    def broken(stack: Stack, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise ZeroDivisionError("a bug of stacks")
        return update(stack, *arguments)

    monkeypatch.setattr(Stack, "update", broken)
    runs = fast(specs)
    assert len(calls) == 4
    for run in runs:
        assert run.status().state is State.FAILED
        assert "ZeroDivisionError: a bug of stacks" in logged(run)


@pytest.mark.usefixtures("always")
def test_a_stacked_member_is_stopped_and_goes_on_alone_and_the_other_way_round(
    pack: TrainPack, train: Train, undisturbed: Undisturbed, specs: list[RunSpec]
) -> None:
    train(specs[1], poll=stop_at(5))
    runs = pack(specs, [stop_at(7), never, stop_at(11)])
    assert "a stack of 3" in logged(runs[1])
    train(specs[0])
    pack([specs[2]])
    assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in specs]
    checkpoint = runs[0].attempt(1).checkpoint_path.stat().st_size
    st_size = train(specs[0].with_point(0.5, 0.1, 5), poll=stop_at(7)).attempt(1).checkpoint_path.stat().st_size
    assert checkpoint == st_size, "not the whole stack"


@pytest.mark.usefixtures("always")
def test_a_stacked_member_that_raises_or_diverges_leaves_the_others_as_they_are(
    pack: TrainPack,
    undisturbed: Undisturbed,
    specs: list[RunSpec],
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wild = make_spec(lr=1e30, strategy={"s": None})
    members = [*specs, wild, make_spec(seed=5)]
    expected = [undisturbed(spec) for spec in members]
    update = Trainer.update

    def broken(trainer: Trainer, lr: float) -> object:
        if trainer.spec == specs[1] and trainer.step >= 8:
            raise ZeroDivisionError("a bug of this run alone")
        return update(trainer, lr)

    monkeypatch.setattr(Trainer, "update", broken)
    runs = pack(members)
    assert runs[1].status().state is State.FAILED
    assert result_of(runs[3])["status"] == "diverged"
    assert [numbers(runs[k]) for k in (0, 2, 4)] == [expected[k] for k in (0, 2, 4)]
    assert "a stack of 5" in logged(runs[0])


@pytest.mark.usefixtures("always")
def test_free_places_are_given_to_more_runs_while_there_are_any(
    undisturbed: Undisturbed, specs: list[RunSpec], make_spec: MakeSpec, results: Path
) -> None:
    short = make_spec(seed=4, schedule={"stop_step": 10})
    waiting = [specs[0], specs[1].with_point(0.3, 0.2, specs[1].seed)]
    together, requested = Pack(CPU, 3), list[int]()

    def begin(spec: RunSpec) -> RunCoroutine:
        return begun(RunDir.create(results, spec), together)

    def more(free: int) -> list[RunCoroutine]:
        requested.append(free)
        return [begin(waiting.pop()) for _ in range(min(free, len(waiting)))]

    together.train(list(map(begin, (short, specs[1], specs[2]))), more)
    everyone = [short, *specs, specs[1].with_point(0.3, 0.2, specs[1].seed)]
    assert [numbers(RunDir.create(results, spec)) for spec in everyone] == [undisturbed(s) for s in everyone]
    assert requested[0] == 1
    assert not waiting


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("only", "tried"), [(None, [5, 2]), (5, [5]), (4, []), (0, [])])
def test_stacks_of_other_sizes_are_tried_where_all_are_and_members_are_as_if_alone(
    undisturbed: Undisturbed,
    specs: list[RunSpec],
    make_spec: MakeSpec,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    only: int | None,
    tried: list[int],
) -> None:
    """Three of five leave."""
    sizes, trial = list[int](), stack.run_trial
    monkeypatch.setattr(
        stack, "run_trial", lambda made, given: (sizes.append(len(made.trainers)), trial(made, given))[1]
    )
    members = [*specs[:2], *(make_spec(seed=seed, schedule={"stop_step": 10}) for seed in (4, 5, 6))]
    runs, together = [RunDir.create(results, spec) for spec in members], Pack(CPU, 5, stack_size=only)
    together.train([begun(run, together) for run in runs])
    assert sizes == tried
    assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in members]
    assert ("a stack of 2 is not worth a trial" in logged(runs[0])) == (only == 5)
    assert ("without a stack" in logged(runs[0])) == (only in (4, 5))


def test_what_a_trial_says_holds_for_as_many_threads_and_micro_batches(
    pack: TrainPack, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    """Kernels add in another order on others."""
    attempted = list[int]()
    stack_trial = StackTrial(exact=True, speedup=0.5)
    monkeypatch.setattr(stack, "run_trial", lambda made, given: (attempted.append(len(made.trainers)), stack_trial)[1])
    for number, (settings, trials) in enumerate((({}, 1), ({}, 1), ({"micro_batch": 12}, 2), ({"threads": 2}, 3))):
        pack(specs, folder=results / str(number), **settings)
        assert len(attempted) == trials
    torch.set_num_threads(1)


def test_a_stack_that_is_not_exact_or_does_not_pay_is_not_used_and_the_log_says_so(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    for result, reason in (
        (StackTrial(exact=False, speedup=9.0), "in a stack of 3 the last bits of gradients differ"),
        (StackTrial(exact=True, speedup=0.5), "a stack of 3 computes gradients 0.50 times as fast"),
        (
            StackTrial(exact=True, speedup=9.0, relative_error=0.02),
            "in a stack of 3 gradients are off by 0.02 of their norm",
        ),
    ):
        monkeypatch.setattr(stack, "run_trial", lambda *_: result)  # noqa: B023
        monkeypatch.setattr(stack, "_DECISIONS", {})
        runs = pack(specs, folder=results / reason)
        assert f"trains without a stack: {reason}" in logged(runs[0])
        assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in specs]


@pytest.mark.usefixtures("always")
def test_members_of_a_stack_that_fails_go_on_in_turn(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients, calls = Stack.gradients, list[int]()

    def full(stack: Stack, batches: Any) -> Any:
        calls.append(1)
        if len(calls) > 9:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        return gradients(stack, batches)

    monkeypatch.setattr(Stack, "gradients", full)
    runs = pack(specs)
    assert len(calls) == 10
    assert "trains without a stack: a stack of 3 fails, OutOfMemoryError" in logged(runs[2])
    assert [numbers(run) for run in runs] == [undisturbed(spec) for spec in specs]


def test_a_trial_that_fails_half_way_leaves_no_gradients_behind(
    pack: TrainPack, undisturbed: Undisturbed, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [undisturbed(spec) for spec in specs]
    complete, calls = Trainer.add_gradients, list[int]()

    def full(trainer: Trainer, batches: Any) -> torch.Tensor:
        loss = complete(trainer, batches)
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        return loss

    monkeypatch.setattr(Trainer, "add_gradients", full)
    runs = pack(specs)
    assert "a stack of 3 fails, OutOfMemoryError" in logged(runs[0])
    assert list(map(numbers, runs)) == expected


@pytest.mark.usefixtures("always")
def test_a_fast_stack_is_recorded_and_mixing_it_is_told(
    fast: TrainPack, train: Train, undisturbed: Undisturbed, make_spec: MakeSpec
) -> None:
    """In bf16 a CPU rounds otherwise in a stack."""
    specs = [make_spec(lr=lr, precision="bf16") for lr in (0.25, 0.125)]
    train(specs[0], poll=stop_at(5))
    runs = fast(specs)
    for run, spec in zip(runs, specs, strict=True):
        result, metrics = result_of(run), undisturbed(spec)[0]
        assert isinstance(metrics, bytes)
        assert result["execution"] | {"pack": 2, "pack_mode": "fast"} == result["execution"]
        assert "trains in a stack of 2, which computes gradients" in logged(run)
        loads = [json.loads(line) for line in metrics.splitlines()]
        first = [line["loss"] for line in loads if "loss" in line][:8]
        assert curve(run)[:8] == pytest.approx(first, rel=2e-2), "later rounding grows"
        assert curve(run) != [line["loss"] for line in loads if "loss" in line]
    assert "pack_mode was exact, is fast: metrics may differ in the last bits" in logged(runs[0])
    assert "pack_mode" not in logged(runs[1])
