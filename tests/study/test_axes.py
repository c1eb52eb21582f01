"""Axes of any name: their values, neighbours and ids, in grid files of commands and of shipped models."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ettsweep.errors import InputError
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec, family_of
from ettsweep.schema import digest, identity
from ettsweep.study import grid_file
from ettsweep.study.compatibility import sweep_differences
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import Axis, neighbours
from ettsweep.study.score_table import axis_of
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import StudiesByFamily, extend_sweep, load_sweep_store

COMMAND = {
    "command": "python train.py --lr {lr} --batch {batch} --seed {seed} --out {out}",
    "reader": "jsonl",
    "score": {"name": "val_loss", "mode": "min"},
}
AXES = {"lr": {"centre": 0.25, "range": [-1, 1]}, "batch": {"values": [32, 64, 128]}}

VIT = {
    "model": "vit-digits",
    "task": "digits",
    "recipe": {"batch_size": 64, "schedule": {"total_steps": 240, "warmup_steps": 24, "eval_every": 12}},
    "centre": {"standard": {"wd": 0.5}},
    "strategies": ["standard"],
    "axes": {"lr": {"centre": 0.25, "range": [-1, 0]}, "schedule.warmup_steps": {"values": [0, 12, 24]}},
}

Write = Callable[..., Path]


@pytest.fixture
def grid(tmp_path: Path) -> Write:
    """Return a function that writes a grid file."""
    (tmp_path / "train.py").write_text("")

    def write(content: dict[str, object] | None = None, **changes: object) -> Path:
        path = tmp_path / "g.yaml"
        path.write_text(
            yaml.safe_dump(
                {**({"run": COMMAND, "axes": AXES} if content is None else content), **changes}, sort_keys=False
            )
        )
        return path

    return write


def only(path: Path) -> Study:
    (study,) = load_sweep_spec(path).studies()
    return study


# --- values and neighbours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1.0, 0.25])
def test_steps_of_a_linear_axis_add(step: float) -> None:
    axis = Axis(low=-2 * step, high=step, step=step, scale="linear")
    assert axis.grid(3.0) == pytest.approx([3 - 2 * step, 3 - step, 3, 3 + step])
    assert axis.shifted(3.0, 2) == 3 + 2 * step
    assert axis.distance(3 + 3 * step, 3.0) == pytest.approx(3)


def test_a_linear_list_goes_on_by_its_mean_step() -> None:
    axis = Axis.of([0.1, 0.2, 0.4], scale="linear")
    assert (axis.shifted(0.4, 1), axis.shifted(0.1, -1)) == (0.55, pytest.approx(0.0, abs=0.06))
    assert axis.grid(axis.centre or 0.0) == [0.1, 0.2, 0.4]


def test_zero_is_a_step_below_the_smallest_value_and_nothing_is_below_it() -> None:
    axes = {"lr": Axis(low=-1, high=1), "wd": Axis.of([0.0, 0.1, 0.3])}
    assert axes["wd"].grid(axes["wd"].centre or 0.0) == [0.0, 0.1, 0.3]
    smallest = {tuple(point) for point in neighbours(Point.of(lr=1.0, wd=0.1), axes)}
    assert smallest == {(2.0, 0.1), (0.5, 0.1), (1.0, 0.3), (1.0, 0.0), (2.0, 0.0), (0.5, 0.3)}
    at_zero = {tuple(point) for point in neighbours(Point.of(lr=1.0, wd=0.0), axes)}
    assert at_zero == {(2.0, 0.0), (0.5, 0.0), (1.0, 0.1), (0.5, 0.1)}


def test_axes_that_are_traded_the_same_way_have_the_other_diagonals() -> None:
    axes = {"lr": Axis(low=-1, high=1), "batch": Axis(low=-1, high=1, whole=True, trade="same")}
    around = {tuple(point) for point in neighbours(Point.of(lr=1.0, batch=64), axes)}
    assert around == {(2.0, 64), (0.5, 64), (1.0, 128), (1.0, 32), (2.0, 128), (0.5, 32)}


def test_whole_numbers_end_at_one() -> None:
    axes = {"depth": Axis(low=0, high=1, whole=True)}
    assert neighbours(Point.of(depth=1), axes) == [Point.of(depth=2)]


@pytest.mark.parametrize("trade", ["opposite", "same"])
def test_neighbours_touch_on_the_map(grid: Write, trade: str) -> None:
    study = only(grid(axes={**AXES, "batch": {"values": [32, 64, 128], "trade": trade}}))
    cells = [study.cell(point, study.centre) for point in neighbours(study.centre, study.axes)]
    # On a hexagonal lattice with unit vectors 60 degrees apart, i² + ij + j² is a squared distance.
    assert [i * i + i * j + j * j for i, j in filter(None, cells)] == [1] * 6


# --- commands -------------------------------------------------------------------------------------------------------


def test_runs_of_a_command_have_the_values_and_their_ids_the_logs_or_exact_numbers(grid: Write) -> None:
    study = only(grid(axes={**AXES, "batch": {"values": [32, 64]}}))
    assert [*study.axes] == ["lr", "batch"]
    assert sorted({(spec.lr, spec.axes["batch"]) for spec in study.specs()}) == [
        (lr, batch) for lr in (0.125, 0.25, 0.5) for batch in (32, 64)
    ]
    spec = study.specs()[-1]
    family = {k: v for k, v in identity(spec).items() if k not in ("lr", "wd", "axes", "seed")}
    expected = {"log2_lr": math.log2(spec.lr), "log2_wd": None, "batch": 64, "seed": spec.seed}
    assert spec.run_id == digest(family | expected)
    momentum = {"centre": 0.5, "range": [-1, 0]}
    changed = {**COMMAND, "command": str(COMMAND["command"]).replace("{batch}", "{momentum}")}
    spec = only(grid(run=changed, axes={"lr": AXES["lr"], "momentum": momentum})).base
    family = {k: v for k, v in identity(spec).items() if k not in ("lr", "wd", "axes", "seed")}
    assert spec.run_id == digest(family | {"log2_lr": -2.0, "log2_wd": None, "log2_momentum": -1.0, "seed": spec.seed})


def test_the_short_form_is_that_of_lr_and_wd(grid: Write) -> None:
    """Ids are those of `lr:` and `wd:` with `centre:`."""
    run = {**COMMAND, "command": "python train.py --lr {lr} --wd {wd} --seed {seed}", "reader": None}
    short = only(grid(run=run, axes=None, lr={"range": [-1, 1]}, wd=[0.1, 0.2], centre={"lr": 0.25}))
    stated = only(grid(run=run, axes={"lr": AXES["lr"], "wd": [0.1, 0.2]}))
    assert {spec.run_id for spec in short.specs()} == {spec.run_id for spec in stated.specs()}


def test_lr_need_not_be_an_axis(grid: Write, tmp_path: Path) -> None:
    run = {**COMMAND, "command": "python train.py --momentum {momentum} --batch {batch} --seed {seed}"}
    study = only(grid(run=run, axes={"momentum": [0.8, 0.9], "batch": [32, 64]}))
    assert [*study.axes] == ["momentum", "batch"]
    assert {tuple(point) for point in study.grid_points} == {(a, b) for a in (0.8, 0.9) for b in (32, 64)}
    extend_sweep(tmp_path, "w", load_sweep_spec(tmp_path / "g.yaml"))
    (sweep,) = load_sweep_store(tmp_path).sweeps.values()
    assert sweep.studies[0].family == study.family


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({**AXES, "wd": [0.1, 0.2]}, "axes: lr, wd, batch: one or two are searched together; `vary:` makes"),
        ({**AXES, "batch": {"values": ["small", "large"]}}, "these are names; `vary:` makes a lattice for each"),
        ({**AXES, "batch": [64]}, "axes.batch: values: two or more different numbers of at least 0"),
        ({**AXES, "batch": [64, 64, 128]}, "axes.batch: values: two or more different numbers of at least 0"),
        ({**AXES, "batch": {"center": 64, "range": [-1, 1]}}, "axes.batch: center: unknown key; did you mean centre?"),
        ({**AXES, "batch": {"centre": 64, "range": [-1, 1], "step": 0.5, "whole": True}}, "is not whole; use longer"),
        ({**AXES, "batch": {"centre": 64, "rnage": [-1, 1]}}, "axes.batch: a list of values, or {centre: 64, range:"),
        ({**AXES, "seed": [1, 2]}, "axes.seed: {seed} is a placeholder of each run, and no axis"),
        ({**AXES, "width": [1, 2]}, "one or two are searched together"),
        ({"lr": AXES["lr"], "width": [1, 2]}, "there is no placeholder {batch}"),
        ({"lr": {"range": [-1, 1]}, "batch": [32, 64]}, "axes.lr: centre is missing"),
        ({**AXES, "batch": {"values": [32, 64], "trade": "none"}}, "trade: opposite or same is expected, got 'none'"),
        ({**AXES, "batch": {"values": [32, 64], "scale": "root"}}, "scale: log or linear is expected, got 'root'"),
        ([], "axes: names with ranges or values are expected"),
    ],
)  # fmt: skip
def test_a_wrong_axis_is_refused(grid: Write, axes: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_sweep_spec(grid(axes=axes))


# --- shipped models -------------------------------------------------------------------------------------------------


def test_an_axis_of_a_model_is_a_field_of_its_recipe(grid: Write) -> None:
    study = only(grid(VIT))
    assert {spec.value("schedule.warmup_steps") for spec in study.specs()} == {0, 12, 24}
    plain = {**VIT, "axes": None, "centre": {"standard": {"lr": 0.25, "wd": 0.5}}, "lr": {"range": [-1, 0]}}
    usual = only(grid({**plain, "wd": "fixed"}))
    at_24 = {spec.run_id for spec in study.specs() if spec.value("schedule.warmup_steps") == 24}
    assert at_24 == {spec.run_id for spec in usual.specs()}, "the id is that of a run with that field"


def test_a_run_belongs_to_the_families_of_all_sweeps_that_it_fits(grid: Write) -> None:
    study = only(grid(VIT))
    usual = only(grid({**VIT, "axes": {"lr": {"centre": 0.25, "range": [-1, 0]}}, "wd": "fixed"}))
    studies = StudiesByFamily([study, usual])
    runs: dict[float, RunSpec] = {spec.value("schedule.warmup_steps"): spec for spec in study.specs()}
    assert studies.of(runs[24]) == [study, usual]
    assert studies.of(runs[12]) == [study]
    assert family_of(runs[12], study.axes) == family_of(runs[24], study.axes) == study.family
    assert runs[12].family_id != runs[24].family_id == usual.family


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ({"schedule.warmup": [1, 2]}, "the recipe has no number of that name; did you mean schedule.warmup_steps?"),
        ({"schedule.decay": [1, 2]}, "the recipe has no number of that name"),
        ({"schedule.warmup_steps": [12.5, 25]}, "axes.schedule.warmup_steps: 12.5 is not whole"),
        ({"schedule.warmup_steps": [12, 1200]}, "axes.schedule.warmup_steps"),
    ],
)
def test_an_axis_that_is_no_number_of_the_recipe_is_refused(grid: Write, axis: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_sweep_spec(grid(VIT, axes={"lr": AXES["lr"], **axis}))


@pytest.mark.parametrize("axis", [Axis.of([64, 96, 128], whole=True), Axis.of([3, 5, 6, 11], whole=True)])
def test_values_beyond_a_list_of_whole_numbers_are_on_the_lattice(axis: Axis) -> None:
    steps = [-1, 0, 1, 2, 3, 4, 5, 6]
    values = [axis.shifted(axis.values[0], k) for k in steps]
    assert all(value == round(value) for value in values)
    for k, value in zip(steps, values, strict=True):
        assert axis.distance(value, axis.values[0]) == k
        assert axis.shifted(value, 1) == axis.shifted(axis.values[0], k + 1)
        assert axis.is_on_lattice(axis.values[0], value)


def test_even_steps_of_whole_numbers_stay_on_their_lattice(grid: Write) -> None:
    batch = only(grid(axes={"lr": AXES["lr"], "batch": {"centre": 100, "range": [-2, 1], "whole": True}})).axes["batch"]
    assert batch.grid(100) == [25, 50, 100, 200]
    below = batch.shifted(25, -1)
    assert (below, batch.shifted(below, 1)) == (12, 25)


def test_a_linear_list_has_values_of_any_size(grid: Write) -> None:
    study = only(grid(axes={"lr": AXES["lr"], "batch": {"values": [0, 1000, 2000], "scale": "linear"}}))
    axis = study.axes["batch"]
    assert [axis.shifted(1000, k) for k in (-1, 1, 2)] == [0, 2000, 3000]
    assert [axis.reaches(0, k) for k in (-1, 1)] == [False, True]
    assert Axis.of([0, 10], scale="linear").shifted(10, 1) == 20
    assert Axis.of([1000, 1001], scale="linear").distance(1e9, 1000) == 1e9 - 1000


def test_no_neighbour_is_beyond_the_limits_of_a_field(grid: Write) -> None:
    axes = {"lr": {"centre": 0.25, "range": [-1, 0]}, "optimizer.beta2": {"values": [0.9, 0.95, 0.99]}}
    study = only(grid({**VIT, "axes": axes}))
    values = {
        point["optimizer.beta2"] for point in neighbours(Point({"lr": 0.25, "optimizer.beta2": 0.99}), study.axes)
    }
    assert values == {0.95, 0.99}
    stated = {"values": [0.9, 0.95, 0.99], "most": 0.999}
    assert not only(grid(axes={"lr": AXES["lr"], "batch": stated})).axes["batch"].reaches(0.99, 1)


def test_a_list_of_lr_or_wd_may_have_zero_and_a_trade(grid: Write) -> None:
    content = {key: value for key, value in VIT.items() if key != "centre"}
    axes = {"lr": {"values": [0.1, 0.2, 0.4], "trade": "same"}, "wd": [0, 0.1, 0.2]}
    study = only(grid({**content, "axes": axes}))
    assert {spec.value("wd") for spec in study.specs()} == {0.0, 0.1, 0.2}
    assert Point.of(lr=0.4, wd=0.2) in neighbours(Point.of(lr=0.2, wd=0.1), study.axes)
    assert len(neighbours(Point.of(lr=0.2, wd=0.0), study.axes)) == 4


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"batch": {"centre": 64, "range": [-1, 1], "step": "x"}}, "axes.batch: range: [low, high], as offsets"),
        ({"batch": {"centre": 64, "range": [-1.5, 1]}}, "axes.batch: range: -1.5 is no multiple of the step 1"),
        ({"batch": {"values": 5}}, "axes.batch: values: a list is expected, got 5"),
        ({"lr": {"values": None}}, "axes.lr: values: a list is expected, got None"),
        ({"batch": {"values": [1, 2], "centre": 1}}, "axes.batch: centre: a list of values has none"),
        ({"lr": {"values": [1, 2], "scale": "linear"}}, "axes.lr: scale: lr has a log scale"),
        ({"batch": {"values": [0.9, 1.1], "most": 1}}, "axes.batch: 1.1 is above 1"),
        ({"a.b": [1, 2], "a_b": [1, 2]}, "a.b and a_b: runs have both as ETTSWEEP_A_B; rename one"),
    ],
)  # fmt: skip
def test_a_wrong_form_of_an_axis_is_refused(grid: Write, axes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        only(grid(axes=axes if "a.b" in axes else {**AXES, **axes}))


def test_a_centre_may_stand_beside_the_axes(grid: Write) -> None:
    axes = {"lr": {"range": [-1, 0]}, "schedule.warmup_steps": [0, 12]}
    study = only(grid(VIT, centre={"standard": {"lr": 0.5, "wd": 0.5}}, axes=axes))
    assert {point["lr"] for point in study.grid_points} == {0.25, 0.5}


def test_a_centre_is_stated_once(grid: Write) -> None:
    with pytest.raises(InputError, match=re.escape("centre: lr has its centre under `axes:` too; write it once")):
        only(grid({**VIT, "centre": {"standard": {"lr": 0.5, "wd": 0.5}}}))


def test_a_file_of_a_run_may_have_the_values_of_further_axes(grid: Write, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("batch: 1\n")
    files = {"{out}/c.yaml": {"from": "c.yaml", "set": {"batch": "{batch}"}}}
    command = "python train.py --lr {lr} --config {out}/c.yaml --seed {seed}"
    assert len(only(grid(run={**COMMAND, "command": command, "files": files})).specs()) == 9


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ({"centre": 1, "range": [0, 1e9], "step": 1e-3, "scale": "linear"}, "more than 1,000,000 steps"),
        ({"centre": 1, "range": [0, 9000], "scale": "linear"}, r"27,003 runs"),
    ],
)
def test_a_range_has_a_limit(
    grid: Write, monkeypatch: pytest.MonkeyPatch, axis: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(grid_file, "MAX_RUNS", 20_000)
    with pytest.raises(InputError, match=message):
        load_sweep_spec(grid(axes={"lr": AXES["lr"], "batch": axis}))


def test_a_level_of_zero_lies_a_step_below_the_others_and_zero_of_a_linear_axis_at_itself(grid: Write) -> None:
    assert Axis.of([0.0, 0.125, 0.25]).place(0.0) == -4
    assert Axis.of([0.0, 0.1, 0.2], scale="linear").place(0.0) == 0
    study = only(grid(axes={"lr": AXES["lr"], "batch": {"values": [0, 1, 2], "scale": "linear"}}))
    centre, zero = Point.of(lr=0.25, batch=1), Point.of(lr=0.25, batch=0)
    assert study.cell(zero, centre) == (0, -1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": "linear"}, "scale of batch is log there, linear here"),
        ({"trade": "same"}, "trade of batch is opposite there, same here"),
        ({"most": 256}, "most of batch is None there, 256.0 here"),
    ],
)
def test_an_axis_of_a_sweep_stays_as_it_is(grid: Write, change: dict[str, object], message: str) -> None:
    batch = {"centre": 64, "range": [-1, 1]}
    before = load_sweep_spec(grid(axes={"lr": AXES["lr"], "batch": batch}))
    now = load_sweep_spec(grid(axes={"lr": AXES["lr"], "batch": {**batch, **change}}))
    assert message in sweep_differences([before], now).values()


def test_a_linear_range_may_end_at_zero(grid: Write) -> None:
    axis = {"centre": 0.3, "range": [-0.3, 0.1], "step": 0.1, "scale": "linear"}
    study = only(grid(axes={"lr": AXES["lr"], "batch": axis}))
    assert sorted({point["batch"] for point in study.grid_points}) == [0, 0.1, 0.2, 0.3, 0.4]
    from_zero = {"centre": 0, "range": [0, 0.3], "step": 0.1, "scale": "linear"}
    assert len(only(grid(axes={"lr": AXES["lr"], "batch": from_zero})).grid_points) == 12


def test_a_typed_value_of_a_linear_axis_is_on_the_lattice_or_refused(grid: Write) -> None:
    axes = {"lr": AXES["lr"], "batch": {"centre": 1000, "range": [-2, 2], "scale": "linear"}}
    state = evaluate(only(grid(axes=axes)), [])
    assert state.resolve_point(Point.of(lr=0.25, batch=1001))["batch"] == 1001
    for value in (1001.4, 1004.9):
        with pytest.raises(InputError, match="is no point of"):
            state.resolve_point(Point.of(lr=0.25, batch=value))


def test_a_range_of_a_linear_axis_is_given_in_its_own_values(grid: Write) -> None:
    axes = {"lr": AXES["lr"], "batch": {"centre": 1000, "range": [-500, 500], "step": 500, "scale": "linear"}}
    (study,) = load_sweep_spec(grid(axes=axes), ranges={"batch": "-1000:1000"}).studies()
    assert {point["batch"] for point in study.grid_points} == {0, 500, 1000, 1500, 2000}


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0, 0.1, 0.2], "linear"),
        ([64, 96, 128], "linear"),
        ([0.99, 0.992, 0.994], "linear"),
        ([64, 128, 256], "log"),
        ([1, 3, 10], "log"),
        ([1, 2], "log"),
    ],
)
def test_the_values_of_a_table_are_linear_where_they_differ_by_equal_steps(values: list[float], scale: str) -> None:
    axis, _ = axis_of("batch", values)
    assert (axis.scale, axis_of("lr", [1, 2, 3])[0].scale) == (scale, "log")


def test_a_misspelt_block_is_answered_with_its_name(grid: Write) -> None:
    with pytest.raises(InputError, match=r"axis: unknown key; did you mean axes\?"):
        load_sweep_spec(grid({"run": COMMAND, "axis": AXES}))
