"""Longer runs that go on from the plateau of shorter ones: the numbers are those of one that trained all of it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.made_runs import (
    CPU,
    MODERN,
    REL,
    MakeSpec,
    Train,
    Trained,
    Undisturbed,
    curve,
    decoder_run,
    never,
    numbers,
    result_of,
    stop_at,
)

from ettsweep.launch.cleanup import find_waste, remove
from ettsweep.launch.follow import continuation_note
from ettsweep.launch.reproduce import reproduce
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.study.plan import make_plan
from ettsweep.trainer.training.run import environment, train_run
from ettsweep.trainer.training.runtime_settings import RuntimeSettings

SHORT: dict[str, Any] = {"total_steps": 20, "warmup_steps": 4, "eval_every": 8, "decay": "wsd", "decay_share": 0.25}
LONG = SHORT | {"total_steps": 40}
CONTINUED = LONG | {"continues": {"total_steps": 20}}
KEPT = 15
SHARED = ("schedule", "optimizer", "strategy", "lr")
STILL_MODERN = MODERN.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})


@pytest.fixture
def short(make_spec: MakeSpec) -> RunSpec:
    return make_spec(schedule=SHORT)


@pytest.fixture
def continued(make_spec: MakeSpec) -> RunSpec:
    return make_spec(schedule=CONTINUED)


def kept_step(run: RunDir) -> int | None:
    """Return the first step that a run trained itself, less one."""
    latest = run.latest_attempt()
    assert latest is not None
    return latest.untrained_steps()


def test_id_holds_the_run_that_is_continued_and_its_step(make_spec: MakeSpec, short: RunSpec) -> None:
    spec = make_spec(schedule=CONTINUED)
    assert spec.continued == (short, KEPT)
    others = [
        make_spec(schedule=LONG),
        short,
        make_spec(schedule=LONG | {"continues": {"total_steps": 24}}),
        make_spec(schedule=LONG | {"continues": {"total_steps": 20, "stop_step": 12}}),
    ]
    assert len({each.run_id for each in [spec, *others]}) == 5
    assert others[-1].continued is not None
    assert others[-1].continued[1] == 12


def test_continued_run_equals_one_that_trained_all_of_it(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, short: RunSpec, continued: RunSpec
) -> None:
    train(short)
    run = train(continued)
    assert kept_step(run) == KEPT
    assert numbers(run) == undisturbed(make_spec(schedule=LONG))
    resumed = json.loads((run.path / "attempts/0001/resume.json").read_text())
    assert resumed == {"run": short.run_id, "attempt": 1, "step": KEPT}


def test_parent_that_was_stopped_in_its_plateau_is_continued_from_there(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec
) -> None:
    train(make_spec(schedule=SHORT | {"stop_step": 11}))
    run = train(make_spec(schedule=CONTINUED | {"continues": {"total_steps": 20, "stop_step": 11}}))
    assert kept_step(run) == 11
    assert numbers(run) == undisturbed(make_spec(schedule=LONG))


def test_continued_run_can_be_continued(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, short: RunSpec, continued: RunSpec
) -> None:
    train(short)
    train(continued)
    longest = LONG | {"total_steps": 48}
    run = train(make_spec(schedule=longest | {"continues": CONTINUED}))
    assert kept_step(run) == 30
    assert numbers(run) == undisturbed(make_spec(schedule=longest))


def test_run_whose_plateau_ends_where_it_begins_keeps_a_checkpoint_for_others(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, short: RunSpec
) -> None:
    """Its decay, of half of 30 steps, begins where the first run's does."""
    train(short)
    long = SHORT | {"total_steps": 30, "decay_share": 0.5}
    second = train(make_spec(schedule=long | {"continues": SHORT}))
    assert [attempt.number for attempt in second.kept_attempts()] == [1]
    third = train(make_spec(schedule=LONG | {"continues": long | {"continues": SHORT}}))
    assert third.attempt(1).continued_from() == (second.id, 1, KEPT)
    assert numbers(third) == undisturbed(make_spec(schedule=LONG))


def test_run_that_is_resumed_there_keeps_it_once(train: Train, make_spec: MakeSpec, short: RunSpec) -> None:
    train(short)
    spec = make_spec(schedule=SHORT | {"total_steps": 30, "decay_share": 0.5, "continues": SHORT})
    train(spec, None, stop_at(1))
    run = train(spec)
    assert run.attempt(2).resumed_from() == (1, KEPT + 1)
    assert [attempt.number for attempt in run.kept_attempts()] == [1]


def test_metric_loggers_have_what_it_inherits(
    make_spec: MakeSpec, train: Train, short: RunSpec, continued: RunSpec, results: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(short)
    run = RunDir.create(results, continued)
    for number, poll in enumerate([stop_at(3), never]):
        attempt = run.claim(environment(CPU), after=number)
        assert attempt is not None
        train_run(run, attempt, CPU, RuntimeSettings(sinks=("tensorboard",)), partial(poll, attempt))
    events = EventAccumulator(str(results / "tensorboard" / run.id), size_guidance={"scalars": 0})
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("loss")}
    assert losses == pytest.approx({line["step"]: line["loss"] for line in run.history() if "loss" in line})


@pytest.mark.slow
def test_reproduction_names_what_was_other_than_in_the_run_that_is_continued(
    train: Train, short: RunSpec, continued: RunSpec
) -> None:
    parent, run = train(short), train(continued)
    execution = parent.attempt(1).execution()
    parent.attempt(1).record_execution(execution | {"processes": 2})
    line = f"run {run.id} went on from run {parent.id} at step {KEPT} where processes was 2, is 1"
    assert f"{line}: no run from the start reproduces that" in reproduce(run, continued, run.result()).notes


@pytest.mark.parametrize(
    "sharded", [pytest.param(False, id="ddp"), pytest.param(True, marks=pytest.mark.slow, id="fsdp2")]
)
@pytest.mark.parametrize("decoder", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_continue_what_they_or_one_kept(
    train: Train, trained: Trained, make_spec: MakeSpec, tmp_path: Path, decoder: bool, sharded: bool
) -> None:
    """Of a decoder with Muon, too, which orthogonalises whole matrices of gathered momenta."""

    def spec(schedule: dict[str, Any]) -> RunSpec:
        made = make_spec(schedule=schedule, lr=0.05, optimizer={"kind": "muon"}, strategy={"s": 1.0})
        if not decoder:
            return made
        return decoder_run(model=STILL_MODERN, **{name: getattr(made, name) for name in SHARED})

    method = {"world": 2, "sharded": sharded}
    here, stop = method | {"folder": "here"}, {"rank": 1, "after": 6, "how": "stop"}
    (whole, _, _, run), ends = trained(
        (spec(LONG), method), (spec(SHORT), here), (spec(CONTINUED), here | stop), (spec(CONTINUED), here)
    )
    assert {end for trial in ends for end in trial} == {"ended"}
    assert run.attempt(1).continued_from() == (spec(SHORT).run_id, 1, KEPT)
    assert run.attempt(2).resumed_from() == (1, KEPT + 6)
    assert numbers(run) == numbers(whole)
    one = train(spec(SHORT), folder=tmp_path / "there")
    (other,), ends = trained((spec(CONTINUED), method | {"folder": "there"}))
    assert other.attempt(1).continued_from() == (one.id, 1, KEPT)
    assert curve(other) == pytest.approx(curve(whole), rel=100 * REL)
    assert "warning: processes was 1, is 2" in other.attempt(1).log_text()


@pytest.mark.parametrize("every_steps", [None, 5])
def test_stops_and_cleaning_between_cost_no_bit(
    train: Train,
    undisturbed: Undisturbed,
    make_spec: MakeSpec,
    results: Path,
    short: RunSpec,
    continued: RunSpec,
    every_steps: int | None,
) -> None:
    """The parent keeps its checkpoint in an attempt that another one finished."""
    train(short, every_steps, stop_at(17))
    parent = train(short)
    assert [parent.attempt(number).kept_path.exists() for number in (1, 2)] == [True, False]
    remove(find_waste(results))
    assert [attempt.number for attempt in parent.kept_attempts()] == [1]
    assert not parent.attempt(1).checkpoint_path.exists()
    assert not find_waste(results)
    train(continued, every_steps, stop_at(3))
    run = train(continued)
    assert run.attempt(2).resumed_from() == (1, KEPT + 3)
    assert run.attempt(1).untrained_steps() == run.attempt(2).untrained_steps() == KEPT
    assert numbers(run) == undisturbed(make_spec(schedule=LONG))


def test_attempt_that_is_killed_before_its_first_checkpoint_leaves_nothing_in_the_way(
    train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, short: RunSpec, continued: RunSpec, results: Path
) -> None:
    parent = train(short)
    run = RunDir.create(results, continued)
    attempt = run.claim(environment(CPU), after=0)
    assert attempt is not None
    attempt.append(attempt.metrics_path, parent.history()[:7])  # as a kill in the midst of taking over would leave it
    train(continued)
    assert kept_step(run) == KEPT
    assert numbers(run) == undisturbed(make_spec(schedule=LONG))


@pytest.mark.parametrize("damage", ["gone", "cut", "metrics"])
def test_without_a_usable_checkpoint_the_numbers_are_the_same_from_the_start(
    damage: str, train: Train, undisturbed: Undisturbed, make_spec: MakeSpec, short: RunSpec, continued: RunSpec
) -> None:
    parent = train(short)
    kept = parent.attempt(1).kept_path
    if damage == "gone":
        kept.unlink()
    elif damage == "cut":
        kept.write_bytes(kept.read_bytes()[:-100])
    else:
        parent.metrics_path.write_text(parent.metrics_path.read_text().replace("loss", "lost", 1))
    run = train(continued)
    assert kept_step(run) == 0
    assert f"run {short.run_id} has no usable checkpoint of step {KEPT}" in run.attempt(1).log_text()
    assert numbers(run) == undisturbed(make_spec(schedule=LONG))


def test_speed_counts_the_steps_that_it_trained(train: Train, short: RunSpec, continued: RunSpec) -> None:
    train(short)
    result = result_of(train(continued))
    assert result["steps"] == 40
    assert result["steps_per_s"] == pytest.approx((40 - KEPT) / result["wall_s"])


def test_plan_says_which_runs_will_train_from_the_start(
    train: Train, short: RunSpec, continued: RunSpec, results: Path
) -> None:
    def note() -> str:
        return continuation_note(results, make_plan([short, continued], load_run_index(results)))

    assert note().startswith("1 run of 2 will train from the start, with the same numbers")
    assert f"as of {short.run_id} at step {KEPT}" in note()
    train(short)
    assert note() == ""


def test_only_a_plateau_keeps_a_checkpoint(train: Train, spec: RunSpec) -> None:
    assert not train(spec, 5).kept_attempts()
