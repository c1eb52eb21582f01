"""Sweeps by name: what extends one and what is refused, and who writes at the same instant."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commandline import write_grid

from ettsweep.errors import CorruptError, InputError, SweepNameTakenError
from ettsweep.runs.point import Point
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Axis
from ettsweep.study.sweep import LaunchSettings, Suggestion, Sweep
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import (
    check_name,
    delete_sweep,
    extend_sweep,
    load_sweep_store,
    record_suggestions,
    sanitize_name,
)

Ask = Callable[..., SweepSpec]


@pytest.fixture
def make_sweep_spec(tmp_path: Path) -> Ask:
    """Return a function that makes a request of the small grid: three lr, wd fixed."""

    def make(*, changes: dict[str, object] | None = None, **options: object) -> SweepSpec:
        path = write_grid(tmp_path / "w8.yaml", **(changes or {}))
        return load_sweep_spec(path, **options)  # type: ignore[arg-type]

    return make


def only(results: Path) -> Sweep:
    (sweep,) = load_sweep_store(results).sweeps.values()
    return sweep


def test_no_two_sweeps_differ_in_case_alone(make_sweep_spec: Ask, results: Path) -> None:
    extend_sweep(results, "w8", make_sweep_spec())
    with pytest.raises(SweepNameTakenError, match=r"^there is a sweep w8: .*--name w8 extends it$"):
        extend_sweep(results, "W8", make_sweep_spec())


def test_what_was_asked_is_read_as_it_was_kept(make_sweep_spec: Ask, results: Path) -> None:
    sweep_spec = make_sweep_spec(
        strategies=["standard", "s=0.1"], overrides=["optimizer=sgd", "centre_sgd={standard: {lr: 1, wd: 0}}"]
    )
    extend_sweep(results, "w8", sweep_spec)
    sweep = only(results)
    assert (sweep.name, sweep.sweep_specs) == ("w8", (sweep_spec,))
    assert list(sweep.specs()) == sweep_spec.specs()
    assert load_sweep_store(results / "none").sweeps == {}


def test_a_search_has_started_where_its_first_proposal_says_while_its_ranges_stay(
    make_sweep_spec: Ask, results: Path
) -> None:
    """With another criterion the same search goes on, for this strategy alone."""

    def starts() -> list[Point | None]:
        return [study.start for study in only(results).studies]

    sweep_spec = make_sweep_spec(strategies=["standard", "mup"]).model_copy(update={"searched": True})
    extend_sweep(results, "w8", sweep_spec)
    first, second = {"lr": 0.5, "wd": 0.25}, {"lr": 0.25, "wd": 0.25}
    for point, start in ((first, first), (second, None)):
        suggestion = Suggestion(strategy="standard", sampler="surface", points=(point,), start=start)
        record_suggestions(results, "w8", [suggestion])
    extend_sweep(results, "w8", sweep_spec.model_copy(update={"criterion": CriterionOptions(confidence=0.9)}))
    assert starts() == [Point(first), None]
    wider = {"lr": Axis(low=-3, high=5), "wd": Axis(fixed=True)}
    extend_sweep(results, "w8", sweep_spec.model_copy(update={"axes": wider}))
    assert starts() == [None, None]


def test_points_strategies_and_seeds_extend_a_sweep(make_sweep_spec: Ask, results: Path) -> None:
    extend_sweep(results, "w8", make_sweep_spec(seeds=[0]))
    extend_sweep(results, "w8", make_sweep_spec(seeds=[1], ranges={"lr": "1:3"}))
    extend_sweep(results, "w8", make_sweep_spec(strategies=["mup"]))
    standard, mup = only(results).studies
    assert {study.sweep for study in (standard, mup)} == {"w8"}
    assert [study.strategy for study in (standard, mup)] == ["standard", "mup"]
    assert [point["lr"] for point in standard.grid_points] == [0.125, 0.25, 0.5, 1.0, 2.0]
    assert standard.seeds == mup.seeds == (0, 1), "seeds belong to the sweep"
    assert len(list(only(results).specs())) == 2 * (5 + 3)


def test_what_adds_nothing_leaves_no_file(make_sweep_spec: Ask, results: Path) -> None:
    extend_sweep(results, "w8", make_sweep_spec(seeds=[0, 1], strategies=["standard", "mup"]))
    extend_sweep(results, "w8", make_sweep_spec(ranges={"lr": "0:1"}, seeds=[1], strategies=["mup"]))
    assert len(only(results).entries) == 1


def test_another_place_to_train_is_remembered(make_sweep_spec: Ask, results: Path) -> None:
    first = make_sweep_spec()
    extend_sweep(results, "w8", first)
    elsewhere = LaunchSettings(overrides=("slots=1", "environment.TOKEN=secret"))
    extend_sweep(results, "w8", first, elsewhere)
    assert only(results).launch == LaunchSettings(overrides=("slots=1", "environment.TOKEN=***"))
    extend_sweep(results, "w8", make_sweep_spec(seeds=[1]))
    assert only(results).launch.overrides[0] == "slots=1", "until it is said otherwise"
    assert extend_sweep(results, "w8", first, elsewhere) == "", "a secret that is given again is no change"
    assert len(only(results).studies) == 1


@pytest.mark.parametrize(
    ("options", "message", "free"),
    [
        ({"overrides": ["batch_size=64"]}, "batch_size is 32 there, 64 here", "w8-batch_size-64"),
        ({"ranges": {"wd": "-1:1"}}, "wd is fixed there, searched here", "w8-wd-searched"),
        ({"ranges": {"lr": "-1:1:0.5"}}, "the step of lr is 1 there, 0.5 here", "w8-lr-step-0.5"),
        ({"overrides": ["centre.standard.lr=0.3"]}, "lr of standard is in steps of 1 in log2 from 2^-2 there, 0.3 here", "w8-lr-0.3"),
    ],
)  # fmt: skip
def test_another_question_is_refused_with_what_differs_and_a_free_name(
    make_sweep_spec: Ask, results: Path, options: dict[str, object], message: str, free: str
) -> None:
    extend_sweep(results, "w8", make_sweep_spec())
    with pytest.raises(SweepNameTakenError, match=re.escape(message)) as error:
        extend_sweep(results, "w8", make_sweep_spec(**options))
    assert (error.value.free, len(only(results).entries)) == (free, 1)
    extend_sweep(results, free, make_sweep_spec(**options))
    with pytest.raises(SweepNameTakenError) as error:
        extend_sweep(results, "w8", make_sweep_spec(**options))
    assert error.value.free == f"{free}-2"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a\n", "x" * 65, "é", "a.", "0123456789ab"])
def test_names_that_could_be_anything_else_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        check_name(name)
    assert check_name(sanitize_name(f"{name} grid"))


def at_once(results: Path, sweep_specs: list[SweepSpec]) -> int:
    """Have as many threads extend one sweep at one instant; return how many were refused."""
    barrier, refused = threading.Barrier(len(sweep_specs)), list[SweepNameTakenError]()

    def one(sweep_spec: SweepSpec) -> None:
        barrier.wait()
        try:
            extend_sweep(results, "w8", sweep_spec)
        except SweepNameTakenError as error:
            refused.append(error)

    threads = [threading.Thread(target=one, args=(sweep_spec,)) for sweep_spec in sweep_specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(refused)


def test_of_commands_at_the_same_instant_all_are_in_but_those_that_differ(make_sweep_spec: Ask, results: Path) -> None:
    assert at_once(results, [make_sweep_spec(seeds=[seed]) for seed in range(8)]) == 0
    assert sorted(only(results).studies[0].seeds) == list(range(8))
    assert len(only(results).entries) == 8
    delete_sweep(results, "w8")
    assert at_once(results, [make_sweep_spec(overrides=[f"batch_size={size}"]) for size in (16, 32, 64)]) == 2
    assert len(only(results).entries) == 1


@pytest.mark.parametrize("content", ["", "[", "- asked: 3", "\x00"])
def test_a_damaged_sweep_is_named_and_others_go_on(make_sweep_spec: Ask, results: Path, content: str) -> None:
    extend_sweep(results, "w8", make_sweep_spec())
    extend_sweep(results, "other", make_sweep_spec())
    path = results / "sweeps" / "w8.yaml"
    path.write_text(content)
    store = load_sweep_store(results)
    assert list(store.sweeps) == ["other"]
    assert str(path) in store.broken["w8"]
    with pytest.raises(CorruptError, match=re.escape(str(path))):
        store.select(["w8"])
    with pytest.raises(CorruptError, match=re.escape(str(path))):
        extend_sweep(results, "w8", make_sweep_spec(seeds=[7]))


def test_the_lock_of_a_command_that_was_killed_is_taken_over(make_sweep_spec: Ask, results: Path) -> None:
    extend_sweep(results, "w8", make_sweep_spec())
    lock = results / "sweeps" / ".w8.lock"
    killed = "import os, sys, filelock; held = filelock.SoftFileLock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed, str(lock)], check=False).returncode == -9
    assert lock.exists()
    assert extend_sweep(results, "w8", make_sweep_spec(seeds=[1])) == "extended sweep w8"
    assert not lock.exists()
