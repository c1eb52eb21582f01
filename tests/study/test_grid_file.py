import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ettsweep import config
from ettsweep.config import parse_yaml
from ettsweep.errors import InputError, ValuesAsRangeError
from ettsweep.shipped_files import shipped
from ettsweep.strategies.optimizers import SgdSpec
from ettsweep.study.grid_file import find_grid, grid_note, load_sweep_spec
from ettsweep.study.lattice import PLACEHOLDER_CENTRE, Centre

GRID = """\
model: vit-digits
task: digits
recipe:
  batch_size: 64
  schedule: {total_steps: 240, warmup_steps: 24, decay: cosine, eval_every: 12}
centre:
  standard: {lr: 0.0078125, wd: 0.5}
lr: {range: [-1, 1], step: 1}
wd: {range: [-1, 0], step: 0.5}
strategies: [standard]
seeds: [3, 5]
centre_sgd: {mup: {lr: 2.0, wd: 0.125}}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a grid file, beside which the test runs, so that messages name it shortly."""
    monkeypatch.chdir(tmp_path)
    path = Path("g.yaml")
    path.write_text(GRID)
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        load_sweep_spec(path, **options)
    return str(error.value)


# --- what a grid file becomes ---------------------------------------------------------------------------------------


def test_a_grid_becomes_one_run_for_each_point_and_seed(path: Path) -> None:
    specs = load_sweep_spec(path).specs()
    assert len(specs) == 3 * 3 * 2
    assert {spec.lr for spec in specs} == {2.0**-8, 2.0**-7, 2.0**-6}
    assert {math.log2(spec.wd) for spec in specs} == {-2.0, -1.5, -1.0}
    assert {spec.seed for spec in specs} == {3, 5}
    assert len({spec.run_id for spec in specs}) == len(specs)
    assert len({spec.family_id for spec in specs}) == 1
    assert [spec.seed for spec in specs[:4]] == [3, 5, 3, 5]  # whole points finish early


def test_names_become_numbers_and_every_default(path: Path) -> None:
    spec = load_sweep_spec(path).specs()[0]
    assert (spec.model.width, spec.model.heads, spec.model.classes) == (32, 4, 10)
    assert spec.task.kind == "digits"
    assert spec.strategy.s is None
    assert (spec.optimizer.kind, spec.precision) == ("adamw", "fp32")


def test_an_architecture_may_stand_for_a_model_name(path: Path) -> None:
    specs_result = load_sweep_spec(path).specs()
    change(
        path,
        "model: vit-digits",
        "model: {width: 32, depth: 2, heads: 4, patch_size: 4, image_size: 8, channels: 1, classes: 10}",
    )
    change(path, "task: digits", "task: {kind: digits, train_size: 797}")
    assert load_sweep_spec(path).specs() == specs_result


def test_low_and_high_may_stand_for_a_range(path: Path) -> None:
    change(path, "lr: {range: [-1, 1], step: 1}", "lr: {low: -2, high: 0}")
    assert load_sweep_spec(path).lr.offsets() == [-2, -1, 0]


def test_a_fixed_axis_has_one_value(path: Path) -> None:
    change(path, "wd: {range: [-1, 0], step: 0.5}", "wd: fixed")
    change(path, "wd: 0.5}", "wd: 0}")
    assert {spec.wd for spec in load_sweep_spec(path).specs()} == {0.0}


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1e-3", "1.e-3", "1.0e-03", "0.001", ".1e-2"])
def test_scientific_notation_is_a_float(path: Path, text: str) -> None:
    change(path, "lr: 0.0078125", f"lr: {text}")
    assert load_sweep_spec(path).centres["standard"].lr == 0.001


def test_a_centre_may_be_given_in_powers_of_two(path: Path) -> None:
    change(path, "{lr: 0.0078125, wd: 0.5}", "{lr: 2^-7, wd: 2^1.5}")
    assert load_sweep_spec(path).centres["standard"] == Centre(lr=2.0**-7, wd=2.0**1.5)
    assert load_sweep_spec(path, overrides=["centre.standard.lr=2^-3"]).centres["standard"].lr == 0.125
    assert "centre.standard.lr: input should be a valid number, got '2^x'" in refusal(
        path, overrides=["centre.standard.lr=2^x"]
    )


@pytest.mark.parametrize("text", ["e3", "1e", "1e-", "0x1e-3", "v1e3", "1e3x"])
def test_what_only_resembles_a_float_stays_text(text: str) -> None:
    assert parse_yaml(text, "here") == text


LAUGHS = "".join(f"l{i}: &l{i} [{f'*l{i - 1}, *l{i - 1}' if i else '1'}]\n" for i in range(40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "line 1: nested too deeply"),
        ("\n- " * 2 + "- " * 100_000 + "x", "line 3: nested too deeply"),
        ("a: 1\nb: &b [1, {c: *b}]", "line 2: an alias stands within what it repeats"),
        (LAUGHS, "line 20: more than 1,000,000 values, aliases counted"),
    ],
)
def test_a_file_without_end_is_refused_at_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"here: {message}"):
        parse_yaml(text, "here")


MERGES = """
first: &first {lr: 1, wd: 2}
second: &second {<<: *first, lr: 3}
third: &third {<<: {<<: *second, lr: 4, s: 5}, wd: 6}
fourth: {<<: [*third, *first], s: 7}
fifth: {lr: 8, <<: *third}
"<<": 9
"""


@pytest.mark.parametrize("loader", ["fast", "slow"])
def test_merge_keys_stand_for_what_they_name_and_own_keys_override(
    loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loader == "slow":  # the one without libyaml
        monkeypatch.setattr(config, "_FAST", config._LOADER)
    assert parse_yaml(MERGES, "here") == {
        "first": {"lr": 1, "wd": 2},
        "second": {"lr": 3, "wd": 2},
        "third": {"lr": 4, "wd": 6, "s": 5},
        "fourth": {"lr": 4, "wd": 6, "s": 7},
        "fifth": {"lr": 8, "wd": 6, "s": 5},
        "<<": 9,
    }
    for text, message in {
        "a: &a {lr: 1}\nb: {<<: *a, wd: 2, wd: 3}": "line 2: key 'wd' is given twice",
        "a: &a {lr: 1, lr: 1}\nb: {<<: *a}": "line 1: key 'lr' is given twice",
        "a: &a {lr: 1}\nb: {<<: *a, <<: *a}": "line 2: key '<<' is given twice; `<<: [*a, *b]` merges several mappings",
        "a: {<<: 3}": "line 1: <<: *name is expected, where name is of a mapping",
        "a: {<<: {[1]: 2}}": "line 1: found unhashable key",
    }.items():
        with pytest.raises(InputError) as error:
            parse_yaml(text, "here")
        assert str(error.value) == f"here: {message}"


def test_a_grid_file_may_merge_what_it_has_said_before(path: Path) -> None:
    change(path, "lr: {range: [-1, 1], step: 1}", "lr: &axis {range: [-1, 1], step: 1}")
    change(path, "wd: {range: [-1, 0], step: 0.5}", "wd: {<<: *axis, step: 0.5}")
    sweep_spec = load_sweep_spec(path)
    assert (sweep_spec.lr.offsets(), sweep_spec.wd.offsets()) == ([-1, 0, 1], [-1, -0.5, 0, 0.5, 1])


def test_one_strategy_is_a_list_of_one(path: Path) -> None:
    change(path, "strategies: [standard]", "strategies: ntk")
    assert list(load_sweep_spec(path).centres) == ["ntk"]


@pytest.mark.parametrize(("number", "seeds"), [(3, (0, 1, 2)), (2, (0, 1)), (1, (0,)), (0, (0,))])
def test_a_number_of_seeds_means_the_first_ones(path: Path, number: int, seeds: tuple[int, ...]) -> None:
    assert load_sweep_spec(path, seeds=number).seeds == seeds
    change(path, "seeds: [3, 5]", f"seeds: {number}")
    assert load_sweep_spec(path).seeds == seeds


def test_a_number_that_is_rather_a_seed_is_refused(path: Path) -> None:
    change(path, "seeds: [3, 5]", "seeds: 1337")
    assert "seeds: 1337 would mean 1337 seeds; for seed 1337 alone write [1337]" in refusal(path)


@pytest.mark.parametrize("held", ["{fixed: 0.1}", "0.1", "{value: 1e-1}", "{fixed: 2^-3}", "{fixed: 0}"])
def test_a_value_that_is_not_searched_is_answered_with_where_it_belongs(path: Path, held: str) -> None:
    change(path, "wd: {range: [-1, 0], step: 0.5}", f"wd: {held}")
    assert re.search(r"wd: to hold it at \S+, write `wd: fixed`, and wd: \S+ under `centre:`$", refusal(path))


@pytest.mark.parametrize("text", ["!!bool maybe", "!!timestamp maybe", "!!int ''", "!!float ''", "2024-12-50"])
def test_a_value_that_is_not_what_its_tag_or_form_says_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="here: a date, a number or a value with !! is none"):
        parse_yaml(text, "here")


# --- centres --------------------------------------------------------------------------------------------------------


def test_a_stated_centre_wins_over_the_map() -> None:
    centres = load_sweep_spec(shipped("grids") / "vit-b16.yaml").centres
    assert (centres["standard"].lr, centres["standard"].wd) == (1e-3, 0.8)
    assert (centres["ntk"].lr, centres["ntk"].wd) == (20, 4e-5)  # the map gives (21.28, 3.76e-5)


def test_the_family_is_mapped_from_its_own_stated_centre() -> None:
    centres = load_sweep_spec(shipped("grids") / "vit-b16.yaml").centres
    n = 768
    assert centres["hybrid"].lr == pytest.approx(20 * n**-0.25)
    assert centres["hybrid"].wd == pytest.approx(4e-5 * n**0.25)
    assert centres["mup"].lr == pytest.approx(20 * n**-0.5)
    assert centres["mup"].wd == pytest.approx(4e-5 * n**0.5)
    assert (round(centres["hybrid"].lr, 2), round(centres["hybrid"].wd, 5)) == (3.80, 2.1e-4)
    assert (round(centres["mup"].lr, 3), round(centres["mup"].wd, 4)) == (0.722, 1.1e-3)


def test_all_are_mapped_from_standard_where_only_that_is_stated(path: Path) -> None:
    centres = load_sweep_spec(path, ["ntk", "hybrid", "mup", "s=0.25"]).centres
    for name, exponent in {"ntk": 1.5, "hybrid": 1.25, "mup": 1.0, "s=0.25": 1.375}.items():
        assert centres[name].lr == pytest.approx(2.0**-7 * 32**exponent)
        assert centres[name].wd == pytest.approx(0.5 / 32**exponent)


def test_a_centre_stated_under_another_name_of_the_strategy_is_found(path: Path) -> None:
    change(path, "  standard:", "  s=0.5: {lr: 7.0, wd: 0.25}\n  standard:")
    centre = load_sweep_spec(path, ["hybrid"]).centres["hybrid"]
    assert (centre.lr, centre.wd) == (7.0, 0.25)


def test_a_strategy_has_one_name(path: Path) -> None:
    sweep_spec = load_sweep_spec(path, ["s=0", "s=0.5", "s=1", "s=0.25"])
    assert list(sweep_spec.centres) == ["ntk", "hybrid", "mup", "s=0.25"]
    assert [study.strategy for study in sweep_spec.studies()] == ["ntk", "hybrid", "mup", "s=0.25"]
    assert load_sweep_spec(path, ["s=1.0"]) == load_sweep_spec(path, ["mup"])
    assert (
        refusal(path, strategies=["mup", "s=1"])
        == "--strategy mup --strategy s=1: strategies: strategy mup is given twice"
    )


def test_a_centre_mapped_out_of_range_is_refused(path: Path) -> None:
    change(path, "lr: 0.0078125", "lr: 1e30")
    assert refusal(path, strategies=["ntk"]).startswith(
        "g.yaml: the centre mapped to ntk: lr: a number between 1e-30 and 1e30 is expected"
    )


def test_a_centre_at_the_ends_of_the_range_is_legal(path: Path) -> None:
    change(path, "{lr: 0.0078125, wd: 0.5}", "{lr: 1e-30, wd: 1e30}")
    centre = load_sweep_spec(path).centres["standard"]
    assert (centre.lr, centre.wd) == (1e-30, 1e30)
    change(path, "wd: 1e30}", "wd: 0.0}")
    assert load_sweep_spec(path, wd_range="fixed").centres["standard"].wd == 0


def test_the_map_goes_by_the_exponents_of_the_optimizer(path: Path) -> None:
    centre = load_sweep_spec(path, ["ntk"], ["optimizer=sgd"]).centres["ntk"]
    assert (centre.lr, centre.wd) == (2.0 * 32, 0.125 / 32)


# --- centres of another optimizer -----------------------------------------------------------------------------------

OTHERS = "centre_sgd: {mup: {lr: 2.0, wd: 0.125}}"


def test_a_centre_of_another_optimizer_is_no_start_for_the_one_that_is_set(path: Path) -> None:
    change(path, OTHERS, "")
    for sets in (["optimizer=sgd"], ["optimizer.kind=sgd"], ["optimizer={kind: sgd, momentum: 0.9}"]):
        assert refusal(path, overrides=sets) == (
            f"g.yaml with --set {sets[0]}: no centre for sgd: `centre` is for adamw, whose lr differ by "
            "orders of magnitude; give centre_sgd in the file, or --set 'centre_sgd={standard: {lr: LR, wd: WD}}'"
        )
    assert load_sweep_spec(path, overrides=["optimizer=adamw"]) == load_sweep_spec(path)


def test_the_centre_is_that_of_the_optimizer_in_the_recipe(path: Path) -> None:
    change(path, "  batch_size: 64", "  batch_size: 64\n  optimizer: sgd")
    assert (
        refusal(path) == "g.yaml: centre is already for sgd, the recipe's optimizer; "
        "remove centre_sgd or change the recipe's optimizer"
    )
    change(path, OTHERS, "centre_adamw: {standard: {lr: 0.25, wd: 0.125}}")
    assert load_sweep_spec(path).centres["standard"].lr == 2.0**-7
    assert load_sweep_spec(path, overrides=["optimizer=adamw"]).centres["standard"].lr == 0.25


@pytest.mark.parametrize(
    ("sets", "lr", "wd"),
    [
        (["centre_sgd={ntk: {lr: 3.0, wd: 0.5}}"], 3.0, 0.5),
        (["centre_sgd.ntk={lr: 3.0, wd: 0.5}"], 3.0, 0.5),
        (["centre_sgd.mup.lr=1.0"], 32.0, 0.125 / 32),
        (["centre={ntk: {lr: 3.0, wd: 0.5}}"], 64.0, 0.125 / 32),
    ],
)
def test_centres_can_be_set_too(path: Path, sets: list[str], lr: float, wd: float) -> None:
    """The last of them is that of AdamW, which is not asked for."""
    centre = load_sweep_spec(path, ["ntk"], ["optimizer=sgd", *sets]).centres["ntk"]
    assert (centre.lr, centre.wd) == (lr, wd)
    assert load_sweep_spec(path, ["ntk"], ["centre={ntk: {lr: 3.0, wd: 0.5}}"]).centres["ntk"].lr == 3.0


def test_what_is_set_for_a_centre_is_checked(path: Path) -> None:
    expected = "--set centre_sgd.mup.lr=-1: centre_sgd.mup.lr: input should be greater than 0, got -1"
    assert refusal(path, overrides=["batch_size=8", "centre_sgd.mup.lr=-1"]) == expected
    expected = "--set centre_lion.mup.lr=1: centre_lion: unknown key; did you mean centre_muon?"
    assert refusal(path, overrides=["centre_lion.mup.lr=1"]) == expected


def test_a_given_start_needs_no_centre(path: Path) -> None:
    change(path, OTHERS, "")
    for start in (Centre(lr=3.0, wd=0.25), PLACEHOLDER_CENTRE):
        sweep_spec = load_sweep_spec(path, ["ntk", "s=.25"], ["optimizer=sgd"], start=start)
        assert sweep_spec.centres == dict.fromkeys(("ntk", "s=0.25"), start)
        assert sweep_spec.studies()[1].spec_at().lr == start.lr


# --- options --------------------------------------------------------------------------------------------------------


def test_options_win_over_the_file(path: Path) -> None:
    sweep_spec = load_sweep_spec(path, ["ntk"], [], "-2:0:0.5", "fixed", [7])
    assert list(sweep_spec.centres) == ["ntk"]
    assert sweep_spec.lr.offsets() == [-2, -1.5, -1, -0.5, 0]
    assert sweep_spec.wd.fixed
    assert sweep_spec.seeds == (7,)


def test_a_range_without_a_step_keeps_that_of_the_file(path: Path) -> None:
    assert load_sweep_spec(path, wd_range="-1:1").wd.step == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:-1", "--lr-range: empty range: 1 is above -1"),
        ("-1:1:0", "--lr-range=-1:1:0: lr.step: input should be greater than or equal to 0.0009765625, got 0.0"),
        ("0:2000", "--lr-range: low and high from -64 to 64 are expected, got '0:2000'"),
        ("nan:1", "--lr-range: low and high from -64 to 64 are expected, got 'nan:1'"),
        *(
            (text, "--lr-range: low:high, low:high:step or fixed is expected (log2 from the centre), got " + repr(text))
            for text in ("1", "a:b", "1:2:3:4", "", "Fixed")
        ),
    ],
)
def test_a_bad_range_option_is_refused(path: Path, text: str, message: str) -> None:
    assert refusal(path, lr_range=text) == message


def test_set_reaches_any_field_of_the_recipe(path: Path) -> None:
    overrides = ["model.width=64", "schedule.decay=linear", "optimizer.eps=1e-6", "precision=bf16"]
    recipe = load_sweep_spec(path, overrides=[*overrides, "optimizer.clip_norm=null"]).recipe
    assert recipe.model.width == 64
    assert recipe.model.depth == 2
    assert recipe.schedule.decay == "linear"
    assert recipe.schedule.total_steps == 240
    assert recipe.optimizer.eps == 1e-6  # type: ignore[union-attr]
    assert recipe.precision == "bf16"


def test_the_last_of_two_settings_counts(path: Path) -> None:
    assert load_sweep_spec(path, overrides=["batch_size=8", "batch_size=16"]).recipe.batch_size == 16


@pytest.mark.parametrize("overrides", [["optimizer=sgd"], ["optimizer.kind=sgd"], ["optimizer={kind: sgd}"]])
def test_the_optimizer_can_be_set_by_name(path: Path, overrides: list[str]) -> None:
    assert load_sweep_spec(path, overrides=overrides).recipe.optimizer == SgdSpec()


def test_an_optimizer_set_by_name_takes_further_settings(path: Path) -> None:
    sweep_spec = load_sweep_spec(path, overrides=["optimizer=sgd", "optimizer.momentum=0.9"])
    assert sweep_spec.recipe.optimizer == SgdSpec(momentum=0.9)


def test_the_mlp_factor_can_be_set_and_enters_the_family(path: Path) -> None:
    plain = load_sweep_spec(path, ["ntk"]).studies()[0]
    included = load_sweep_spec(path, ["ntk"], ["strategy.mlp_factor=include"]).studies()[0]
    assert plain.base.strategy.mlp_factor == "ignore"
    assert included.base.strategy.mlp_factor == "include"
    assert plain.family != included.family


def test_the_mlp_factor_changes_nothing_under_standard(path: Path) -> None:
    plain = load_sweep_spec(path).studies()[0]
    included = load_sweep_spec(path, overrides=["strategy.mlp_factor=include"]).studies()[0]
    assert plain.family == included.family
    assert plain.base.run_id == included.base.run_id


def test_stopping_at_the_last_step_is_not_stopping(path: Path) -> None:
    plain = load_sweep_spec(path).specs()
    assert load_sweep_spec(path, overrides=["schedule.stop_step=240"]).specs() == plain
    stopped = load_sweep_spec(path, overrides=["schedule.stop_step=120"]).specs()
    assert not {spec.run_id for spec in stopped} & {spec.run_id for spec in plain}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.widht=64", "model.widht: unknown key; did you mean model.width?"),
        ("model.width=62", "model: width 62 is not divisible by heads 4; nearest width: 60, 64"),
        ("model.width=wide", "model.width: input should be a valid integer, got 'wide'"),
        ("optimizer=sdg", "optimizer: unknown kind 'sdg'; did you mean 'sgd'? Known: adamw, muon, sgd"),
        (
            "optimizer.momentum=0.9",
            "optimizer.momentum: unknown key; known: kind, beta1, beta2, eps, clip_norm, decay_pe",
        ),
        ("precision=fp8", "precision: input should be 'fp32', 'tf32', 'bf16' or 'fp16', got 'fp8'"),
        ("batch_size=0", "batch_size: input should be greater than or equal to 1, got 0"),
        ("witdh=64", "witdh: unknown key; did you mean model.width?"),
        ("batchsize=64", "batchsize: unknown key; did you mean batch_size?"),
        ("epoch=3", "epoch: unknown key; did you mean schedule.epochs?"),
        ("schedule.epoch=3", "schedule.epoch: unknown key; did you mean schedule.epochs?"),
        ("recipe.batch_size=64", "recipe.batch_size: unknown key; did you mean batch_size?"),
        ("reciepe.batch_size=64", "reciepe.batch_size: unknown key; did you mean batch_size?"),
        ("reciepe=64", "reciepe: unknown key; known: spikes, model, task, optimizer, schedule, batch_size, precision"),
        ("modle.width=64", "modle: unknown key; did you mean model?"),
    ],
)
def test_set_cannot_get_past_the_schema(path: Path, override: str, message: str) -> None:
    assert refusal(path, overrides=[override]).removeprefix("g.yaml with ") == f"--set {override}: {message}"


@pytest.mark.parametrize("override", ["batch_size", "=3", "a b=3", "model..width=3", ""])
def test_set_without_key_and_value_is_refused(path: Path, override: str) -> None:
    assert refusal(path, overrides=[override]) == (f"--set {override}: key=value is expected, such as model.width=64")


@pytest.mark.parametrize(
    ("override", "option"),
    [
        *(("lr=1", "--lr-range"), ("wd.low=1", "--wd-range"), ("seed=1", "--seeds"), ("seeds=0", "--seeds")),
        *(("strategy=ntk", "--strategy"), ("strategy.s=0.5", "--strategy"), ("strategies=ntk", "--strategy")),
        *(("strateges=ntk", "--strategy"), ("sees=0", "--seeds")),
    ],
)
def test_what_is_not_of_the_recipe_has_its_own_option(path: Path, override: str, option: str) -> None:
    key = override.partition("=")[0]
    assert refusal(path, overrides=[override]) == f"--set {override}: {key} is not a field of the recipe; use {option}"


def test_a_bad_mlp_factor_is_refused(path: Path) -> None:
    expected = "--set strategy.mlp_factor=half: mlp_factor: input should be 'ignore' or 'include', got 'half'"
    assert refusal(path, overrides=["strategy.mlp_factor=half"]) == expected


@pytest.mark.parametrize(
    ("model", "given", "message", "steps"),
    [
        ("vit-digits", "epochs=2", "warmup_steps 24 must be below epochs 2 (24 steps); --set schedule.warmup_epochs=0.2", 2),
        ("vit-digits", "epochs=0.5", "warmup_steps 24 must be below epochs 0.5 (6 steps); --set schedule.warmup_epochs=0.05", 1),
        ("vit-digits", "total_steps=20", "warmup_steps 24 must be below total_steps 20; --set schedule.warmup_steps=2", 2),
        ("vit-b16", "epochs=15", "warmup_epochs 20 (6240 steps) must be below epochs 15 (4680 steps); --set schedule.warmup_epochs=1", 312),
        ("vit-b16", "total_steps=9", "warmup_epochs 20 (6240 steps) must be below total_steps 9; --set schedule.warmup_steps=0", 0),
    ],
)  # fmt: skip
def test_a_run_shorter_than_the_warmup_of_the_file_is_told_what_to_set(
    model: str, given: str, message: str, steps: int
) -> None:
    grid = shipped("grids") / f"{model}.yaml"
    expected = f"--set schedule.{given}: schedule: {message} keeps the share that the file has"
    assert refusal(grid, overrides=[f"schedule.{given}"]) == expected
    cure = message.partition("--set ")[2]
    assert load_sweep_spec(grid, overrides=[f"schedule.{given}", cure]).recipe.schedule.warmup_steps == steps


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("schedule.warmup_epochs=20", "warmup_epochs 20 (240 steps) must be below epochs 20 (240 steps)"),
        ("schedule.warmup_steps=240", "warmup_steps 240 must be below epochs 20 (240 steps)"),
        ("schedule.stop_epoch=21", "stop_epoch 21 (252 steps) is beyond epochs 20 (240 steps)"),
        ("schedule.eval_every_epochs=0.01", "eval_every_epochs: at least one step is expected, which is 0.0833 epochs, got 0.01"),
        ("schedule.epochs=0", "epochs: at least one step is expected, which is 0.0833 epochs, got 0"),
        ("schedule.epochs=many", "epochs: a number of epochs is expected, got 'many'"),
    ],
)  # fmt: skip
def test_a_mistake_in_epochs_is_answered_in_epochs(path: Path, given: str, message: str) -> None:
    change(path, "total_steps: 240, warmup_steps: 24", "epochs: 20, warmup_epochs: 2")
    source, _, problem = refusal(path, overrides=[given]).partition(": schedule")
    assert source.removeprefix("g.yaml with ") == f"--set {given}"
    assert problem[1:].strip() == message


def test_a_mistake_in_epochs_of_the_file_is_answered_in_epochs(path: Path) -> None:
    change(path, "total_steps: 240, warmup_steps: 24", "epochs: 20, warmup_epochs: 20")
    expected = "g.yaml: schedule: warmup_epochs 20 (240 steps) must be below epochs 20 (240 steps)"
    assert refusal(path) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_range": "-1:1:0.3"}, "--lr-range=-1:1:0.3: lr: -1 is no multiple of the step 0.3; nearest: -1.2, -0.9"),
        ({"wd_range": "-1:1:0.3"}, "--wd-range=-1:1:0.3: wd: -1 is no multiple of the step 0.3; nearest: -1.2, -0.9"),
        ({"seeds": [0, 0]}, "--seeds=0,0: seeds: [0, 0] repeats a seed"),
        ({"seeds": [0, -1]}, "--seeds=0,-1: seeds.1: input should be greater than or equal to 0, got -1"),
        ({"overrides": ["batch_size=800"]}, "--set batch_size=800: batch_size: 800 is more than the 797 training images"),
        ({"overrides": ["batch_size=8", "task=cifar10"]}, "g.yaml with --set batch_size=8 --set task=cifar10: model.channels: task cifar10 has 3, got 1"),
        ({"overrides": ["batch_size=8", "batch_size=x"]}, "--set batch_size=x: batch_size: input should be a valid integer, got 'x'"),
        ({"overrides": ["precision=FP32"]}, "--set precision=FP32: precision: input should be 'fp32', 'tf32', 'bf16' or 'fp16', got 'FP32'; did you mean 'fp32'?"),
        ({"overrides": ["schedule.stop_step=300"]}, "g.yaml with --set schedule.stop_step=300: schedule: stop_step 300 is beyond total_steps 240"),
    ],
)  # fmt: skip
def test_a_value_of_an_option_is_refused_with_the_option(path: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(path, **options) == message


def test_a_mistake_in_the_file_is_refused_with_the_file_whatever_the_options(path: Path) -> None:
    change(path, "batch_size: 64", "batch_size: none")
    expected = "g.yaml: batch_size: input should be a valid integer, got 'none'"
    assert refusal(path, overrides=["model.depth=3"], lr_range="-1:1", seeds=[0]) == expected


@pytest.mark.parametrize("size", ["width=100000000", "depth=1000000000000", "mlp_ratio=1000000000000"])
def test_a_model_that_no_machine_could_hold_is_refused(path: Path, size: str) -> None:
    refusal_result = refusal(path, overrides=[f"model.{size}"])
    assert refusal_result.startswith(f"g.yaml with --set model.{size}: model: width ")
    assert refusal_result.endswith(" GiB with gradients and adamw state: more than the 4,194,304 GiB of any machine")


def test_more_runs_than_commands_could_list_are_refused(path: Path) -> None:
    refusal_result = refusal(path, lr_range="-64:64:0.0009765625", wd_range="-64:63:1")
    assert refusal_result.startswith(
        f"g.yaml with --lr-range=-64:64:0.0009765625 --wd-range=-64:63:1: the grid has {131_073 * 128 * 2:,} runs, the limit is 1,000,000"
    )


def test_epochs_are_of_the_samples_that_are_set(path: Path) -> None:
    change(path, "total_steps: 240, warmup_steps: 24", "epochs: 20, warmup_epochs: 5")
    change(path, "eval_every: 12", "eval_every_epochs: 1")
    schedule = load_sweep_spec(path).recipe.schedule
    assert (schedule.total_steps, schedule.warmup_steps, schedule.eval_every) == (240, 60, 12)
    fewer = load_sweep_spec(path, overrides=["task.samples=191"]).recipe.schedule
    assert (fewer.total_steps, fewer.warmup_steps) == (2 * 20, 2 * 5), "two steps of 64 are 128"


# --- bad files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds:", "sedes:", "g.yaml: sedes: unknown key; did you mean seeds?"),
        ("batch_size: 64", "batch_size: 64\n  batchsize: 64", "g.yaml: batchsize: unknown key; did you mean batch_size?"),
        ("step: 1}", "stpe: 1}", "g.yaml: lr.stpe: unknown key; did you mean lr.step?"),
        ("  batch_size: 64\n", "", "g.yaml: batch_size: is required"),
        ("lr: {range: [-1, 1], step: 1}\n", "", "g.yaml: lr: is required"),
        ("batch_size: 64", "batch_size: '64'", "g.yaml: batch_size: input should be a valid integer, got '64'"),
        ("batch_size: 64", "batch_size: 64.5", "g.yaml: batch_size: input should be a valid integer, got 64.5"),
        ("lr: 0.0078125", "lr: yes", "g.yaml: centre.standard.lr: input should be a valid number, got True"),
        ("lr: 0.0078125", "lr: -1", "g.yaml: centre.standard.lr: input should be greater than 0, got -1"),
        ("lr: 0.0078125", "lr: 0", "g.yaml: centre.standard.lr: input should be greater than 0, got 0"),
        ("lr: 0.0078125", "lr: .nan", "g.yaml: centre.standard.lr: input should be a finite number, got nan"),
        ("lr: 0.0078125", "lr: 1e-40", "g.yaml: centre.standard.lr: a number between 1e-30 and 1e30 is expected, got 1e-40"),
        ("wd: 0.5}", "wd: 1e31}", "g.yaml: centre.standard.wd: a number between 1e-30 and 1e30 is expected, got 1e+31"),
        ("strategies: [standard]", "strategies: [ntk, s=0]", "g.yaml: strategies: strategy ntk is given twice"),
        ("  standard:", "  ntk: {lr: 1.0, wd: 1.0}\n  s=0: {lr: 1.0, wd: 1.0}\n  standard:", "g.yaml: strategy ntk is given twice"),
        ("lr: 0.0078125", "lr: 1e31", "g.yaml: centre.standard.lr: a number between 1e-30 and 1e30 is expected, got 1e+31"),
        ("wd: 0.5}", "wd: 1e-31}", "g.yaml: centre.standard.wd: a number between 1e-30 and 1e30 is expected, got 1e-31"),
        ("seeds: [3, 5]", "seeds: [2147483648]", "g.yaml: seeds.0: input should be less than or equal to 2147483647, got 2147483648"),
        ("step: 1}", "step: 65}", "g.yaml: lr.step: input should be less than or equal to 64, got 65"),
        ("wd: 0.5}", "wd: -1}", "g.yaml: centre.standard.wd: input should be greater than or equal to 0, got -1"),
        ("wd: 0.5}", "wd: 0}", "g.yaml: centre: wd 0 has no log2; give a positive wd, or `wd: fixed`"),
        ("  standard: {lr: 0.0078125, wd: 0.5}", "  {}", "g.yaml: centre: at least one strategy with lr and wd is needed"),
        ("lr: 2.0", "lr: -2.0", "g.yaml: centre_sgd.mup.lr: input should be greater than 0, got -2.0"),
        ("lr: 2.0", "rl: 2.0, lr: 1.0", "g.yaml: centre_sgd.mup.rl: unknown key; known: lr, wd"),
        ("wd: 0.125", "wd: 0", "g.yaml: centre_sgd: wd 0 has no log2; give a positive wd, or `wd: fixed`"),
        ("{mup: {", "{s=1: {lr: 1.0, wd: 1.0}, mup: {", "g.yaml: strategy mup is given twice"),
        ("centre_sgd:", "centre_lion:", "g.yaml: centre_lion: unknown key; did you mean centre_muon?"),
        ("recipe:", "reciepe:", "g.yaml: reciepe: unknown key; did you mean recipe?"),
        ("  batch_size: 64", "  batchsize: 64", "g.yaml: batchsize: unknown key; did you mean batch_size?"),
        ("total_steps: 240", "epoch: 20", "g.yaml: schedule.epoch: unknown key; did you mean schedule.epochs?\n"
         "g.yaml: schedule.total_steps: is required"),
        ("seeds: [3, 5]", "batch_size: 64", "g.yaml: batch_size: unknown key; did you mean recipe.batch_size?"),
        ("seeds: [3, 5]", "recipe.batch_size: 4", "g.yaml: recipe.batch_size: unknown key; did you mean batch_size under recipe?"),
        ("seeds: [3, 5]", "recip.batch_size: 4", "g.yaml: recip.batch_size: unknown key; did you mean batch_size under recipe?"),
        ("seeds: [3, 5]", "epoch: 64", "g.yaml: epoch: unknown key; did you mean recipe.schedule.epochs?"),
        ("  batch_size: 64", "  batch_size: 64\n  seeds: 3", "g.yaml: recipe: seeds belongs beside the recipe, not in it"),
        ("task: digits", "task: {knd: digits}", "g.yaml: task.knd: unknown key; did you mean task.kind?"),
        ("[-1, 0], step: 0.5", "[-1, 1], step: 0.7", "g.yaml: wd: -1 is no multiple of the step 0.7; nearest: -1.4, -0.7"),
        ("[-1, 1], step: 1", "[-1.5, 1], step: 1", "g.yaml: lr: -1.5 is no multiple of the step 1; nearest: -2, -1"),
        ("centre_sgd:", "centre_adamw:", "g.yaml: centre is already for adamw, the recipe's optimizer; remove centre_adamw or change the recipe's optimizer"),
        ("[-1, 1]", "[1, -1]", "g.yaml: lr: empty range: 1 is above -1"),
        ("[-1, 1]", "[-0.8, -0.2]", "g.yaml: lr: no multiple of the step 1 between -0.8 and -0.2"),
        ("[-1, 1]", "[-1]", "g.yaml: lr: range: [low, high] from -64 to 64 is expected, got [-1]"),
        ("[-1, 1]", "[-2000, 0]", "g.yaml: lr: range: [low, high] from -64 to 64 is expected, got [-2000, 0]"),
        ("lr: {range: [-1, 1], step: 1}", "lr: [-1, 1]", "g.yaml: lr: {range: [-1, 1], step: 1} or fixed is expected, got [-1, 1]"),
        ("  standard: {lr: 0.0078125, wd: 0.5}", "  standard: 3", "g.yaml: centre.standard: {lr: ..., wd: ...} is expected, got 3"),
        ("step: 1}", "step: 0}", "g.yaml: lr.step: input should be greater than or equal to 0.0009765625, got 0"),
        ("seeds: [3, 5]", "seeds: [3, 3]", "g.yaml: seeds: [3, 3] repeats a seed"),
        ("strategies: [standard]", "strategies: [s=2]", "g.yaml: strategies: strategy 's=2': s must be a number from 0 to 1, such as s=0.25"),
        ("warmup_steps: 24", "warmup_steps: 240", "g.yaml: schedule: warmup_steps 240 must be below total_steps 240"),
        ("batch_size: 64", "batch_size: 800", "g.yaml: batch_size: 800 is more than the 797 training images"),
        ("task: digits", "task: {kind: mnist}", "g.yaml: task: unknown kind 'mnist'. Known: cifar10, cifar100, denoise, digits, imagenet, images, next_token, pydoc, text"),
        ("decay: cosine", "decay: cosin", "g.yaml: schedule.decay: input should be 'cosine', 'linear' or 'wsd', got 'cosin'; did you mean 'cosine'?"),
        ("lr: {range: [-1, 1], step: 1}", "lr: {range: [-1, 1]", "g.yaml: line 9: expected ',' or '}', but got '<scalar>'"),
        ("seeds: [3, 5]", "strategies: [ntk]", "g.yaml: line 11: key 'strategies' is given twice"),
        ("wd: 0.5}", "wd: 0.5, lr: 1.0}", "g.yaml: line 7: key 'lr' is given twice"),
        ("seeds: [3, 5]", "? [a, b]\n: 1", "g.yaml: line 11: found unhashable key"),
        ("seeds: [3, 5]", "x: !!python/name:os.system ''", "g.yaml: line 11: could not determine a constructor for the tag"),
    ],
)  # fmt: skip
def test_a_bad_grid_file_is_refused_with_its_place(path: Path, old: str, new: str, message: str) -> None:
    change(path, old, new)
    assert refusal(path) == message


@pytest.mark.parametrize(
    ("old", "new", "start"),
    [
        ("model: vit-digits", "model: vit-digit", "g.yaml: model: unknown model 'vit-digit'; did you mean 'vit-digits'? Known: "),
        ("task: digits", "task: digit", "g.yaml: task: unknown task 'digit'; did you mean 'digits'? Known: "),
        ("strategies: [standard]", "strategies: [nkt]", "g.yaml: strategies: unknown strategy 'nkt'; did you mean 'ntk'? Known: "),
        ("  standard:", "  standrad:", "g.yaml: unknown strategy 'standrad'; did you mean 'standard'? Known: "),
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_the_nearest(path: Path, old: str, new: str, start: str) -> None:
    change(path, old, new)
    assert refusal(path).startswith(start)


def test_all_problems_are_told_at_once(path: Path) -> None:
    change(path, "[-1, 1]", "[1, -1]")
    change(path, "lr: 0.0078125", "lr: -1")
    change(path, "seeds:", "sedes:")
    assert len(refusal(path).splitlines()) == 3


def test_what_is_wrong_with_the_recipe_is_told_with_the_rest_of_the_file(path: Path) -> None:
    change(path, "task: digits", "task: digitz")
    change(path, "batch_size: 64", "batch_size: 0")
    change(path, "total_steps: 240", "total_steps: 0")
    change(path, "seeds: [3, 5]", "seeds: [-1]")
    keys = [line.split(": ")[1] for line in refusal(path).splitlines()]
    assert sorted(keys) == ["batch_size", "schedule.total_steps", "seeds.0", "task"]
    assert len(refusal(path, overrides=["batch_size=32", "schedule.epochs=5"]).splitlines()) == 2


def test_heads_must_divide_the_width(path: Path) -> None:
    architecture = "{width: 100, depth: 1, heads: 12, patch_size: 4, image_size: 8, channels: 1, classes: 10}"
    change(path, "vit-digits", architecture)
    assert refusal(path) == "g.yaml: model: width 100 is not divisible by heads 12; nearest width: 96, 108"


def test_a_model_must_fit_the_task(path: Path) -> None:
    change(path, "vit-digits", "vit-b16")
    assert refusal(path).splitlines() == [
        "g.yaml: model.image_size: task digits has 8, got 224",
        "g.yaml: model.channels: task digits has 1, got 3",
        "g.yaml: model.classes: task digits has 10, got 1000",
    ]


@pytest.mark.parametrize("text", ["", "- a\n", "3", "just words"])
def test_a_file_that_is_no_mapping_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    assert refusal(path) == "g.yaml: a mapping of keys to values is expected"


def test_a_file_that_is_not_there_or_not_text_is_refused(path: Path) -> None:
    assert refusal(Path("other.yaml")) == "other.yaml: no such file"
    assert refusal(Path()).startswith(".: cannot be read: ")
    path.write_bytes(b"model: \xff")
    assert refusal(path) == "g.yaml: cannot be read: line 1 is not UTF-8; save the file as UTF-8"
    path.write_bytes(b"\x00")
    assert refusal(path).startswith("g.yaml: ")


# --- ranges in values of lr and wd ------------------------------------------------------------------------------------

CENTRE_TEXT = "a range is in log2 steps from the centre (lr 2^-7 (0.0078125) under standard), multiples of 1; "


@pytest.mark.parametrize(
    ("text", "exact", "nearest"),
    [  # of the centre 2^-7: log2(0.0001) is -13.288, log2(0.01) is -6.644
        ("1e-4:1e-2", "-6.3:0.4", "-6:0"),
        ("1e-2:1e-4", "-6.3:0.4", "-6:0"),
        ("2^-13:2^-7", "-6.0:0.0", "-6:0"),
        ("2^1:2^3", "8.0:10.0", "8:10"),
        ("100:1000", "13.6:17.0", "14:17"),
        ("1e-4:1e-2:0.5", "-6.3:0.4:0.5", "-6.5:0.5:0.5"),
        ("1e-30:1", "-92.7:7.0", "-64:7"),
    ],
)
def test_a_range_in_values_is_explained_in_steps(text: str, exact: str, nearest: str, path: Path) -> None:
    with pytest.raises(ValuesAsRangeError) as error:
        load_sweep_spec(path, lr_range=text)
    message = str(error.value)
    assert message.startswith(
        f"--lr-range={text}: {CENTRE_TEXT}".replace("of 1;", "of 0.5;" if "0.5" in text else "of 1;")
    )
    assert message.endswith(f" is --lr-range={exact}, nearest --lr-range={nearest}")
    assert error.value.options == {"--lr-range": nearest}
    assert load_sweep_spec(path, lr_range=nearest).specs()


def test_ranges_in_values_are_explained_in_a_file_and_for_both_axes(path: Path) -> None:
    change(path, "lr: {range: [-1, 1], step: 1}", "lr: {range: [1e-4, 1e-2], step: 1}")
    with pytest.raises(ValuesAsRangeError) as error:
        load_sweep_spec(path, wd_range="0.125:1")
    assert str(error.value).splitlines() == [
        f"g.yaml: lr: {CENTRE_TEXT}lr from 0.0001 to 0.01 is [-6.3, 0.4], nearest [-6, 0]",
        "--wd-range=0.125:1: a range is in log2 steps from the centre (wd 2^-1 (0.5) under standard), multiples of 0.5; "
        "wd from 0.125 to 1 is --wd-range=-2.0:1.0, nearest --wd-range=-2:1",
    ]
    assert error.value.options == {"--wd-range": "-2:1"}
    change(path, "[1e-4, 1e-2]", "[2^-13, 2^-7]")
    assert refusal(path).endswith("is [-6.0, 0.0], nearest [-6, 0]")


def test_a_range_in_values_is_measured_from_the_centre_in_use(path: Path) -> None:
    mapped = load_sweep_spec(path, ["mup"], ["optimizer=sgd"]).centres["mup"].lr
    text = f"{mapped / 8}:{mapped * 1.9}"
    assert refusal(path, strategies=["mup"], overrides=["optimizer=sgd"], lr_range=text).endswith(
        "--lr-range=-3.0:0.9, nearest --lr-range=-3:1"
    )
    assert "nearest --lr-range=-7:-1" in refusal(path, overrides=["centre.standard.lr=1.0"], lr_range="0.01:0.4")


def test_beside_other_problems_a_range_in_values_is_one_of_them(path: Path) -> None:
    assert refusal(path, overrides=["batchsize=3"], lr_range="1e-4:1e-2").splitlines() == [
        "--lr-range=1e-4:1e-2: lr: no multiple of the step 1 between 0.0001 and 0.01",
        "--set batchsize=3: batchsize: unknown key; did you mean batch_size?",
    ]
    change(path, "standard: {lr: 0.0078125, wd: 0.5}", "standard: {lr: 0.0078125, wd: 0}")
    assert "wd: 0.3 is no multiple of the step 0.5" in refusal(path, wd_range="0.3:0.5"), "no steps lead from 0"


# --- finding a grid -------------------------------------------------------------------------------------------------


def test_a_grid_of_ones_own_wins_over_the_shipped_one(path: Path) -> None:
    Path("grids").mkdir()
    rename_result = path.rename("grids/mine.yaml")
    assert find_grid("vit-digits") == rename_result
    assert find_grid("vit-b16") == shipped("grids") / "vit-b16.yaml"


def test_what_init_writes_wins_over_the_shipped_grid(path: Path) -> None:
    path.rename("vit-digits.yaml")
    Path("compose.yaml").write_text("model: vit-b16  # of another program\nservices: [train]\n")
    Path("broken.yaml").write_text("model: [vit-digits\n")
    os.mkfifo("pipe.yaml")
    assert find_grid("vit-digits") == Path("vit-digits.yaml")
    assert find_grid("vit-b16") == shipped("grids") / "vit-b16.yaml"


def test_one_of_ones_own_grids_in_either_folder_is_chosen_by_hand(path: Path) -> None:
    Path("grids").mkdir()
    Path("grids/link.yaml").symlink_to(path.absolute())
    assert find_grid("vit-digits").samefile(path), "it is one file"
    Path("grids/mine.yaml").write_text(path.read_text())
    with pytest.raises(InputError, match=r"^several grids are for vit-digits: .*, grids/mine\.yaml; give one of them"):
        find_grid("vit-digits")


def test_the_grids_of_a_checkout_are_the_shipped_ones_wherever_a_command_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("grids").symlink_to(shipped("grids"))
    assert find_grid("vit-digits") == path
    monkeypatch.chdir(shipped("grids"))
    assert find_grid("vit-digits") == shipped("grids") / "vit-digits.yaml"


def test_a_broken_grid_beside_is_no_reason_for_the_shipped_one(path: Path) -> None:
    change(path, "seeds: [3, 5]", "seeds: [3, 5")
    with pytest.raises(InputError, match=r"^g\.yaml: line "):
        find_grid("vit-digits")


def test_a_line_says_which_grid_is_used(path: Path) -> None:
    assert (
        grid_note(find_grid("vit-b16"), "vit-b16")
        == f"grid file: {shipped('grids') / 'vit-b16.yaml'}, which ettsweep ships"
    )
    assert grid_note(path, None) == "grid file: g.yaml"
    assert grid_note(path, "vit-digits") == "grid file: g.yaml; it takes precedence over the shipped vit-digits.yaml"
    assert grid_note(path, "vit-s16") == "grid file: g.yaml", "no grid is shipped for it"


def test_several_grids_for_a_model_are_listed(path: Path) -> None:
    Path("grids").mkdir()
    path.rename("grids/a.yaml")
    Path("grids/b.yaml").write_text(GRID)
    with pytest.raises(InputError) as error:
        find_grid("vit-digits")
    assert str(error.value) == ("several grids are for vit-digits: grids/a.yaml, grids/b.yaml; give one of them")


def test_of_several_grids_for_a_model_the_one_of_its_name_is_taken(path: Path) -> None:
    Path("grids").mkdir()
    named = path.rename("vit-digits.yaml")
    Path("grids/vit-digits-long.yaml").write_text(GRID)
    assert find_grid("vit-digits") == named
    assert find_grid("vit-digits-long") == Path("grids/vit-digits-long.yaml"), "no model has that name"
    note = "grid file: vit-digits.yaml; it takes precedence over the shipped vit-digits.yaml"
    assert grid_note(named, "vit-digits") == note


def test_a_grid_of_ones_own_wins_over_the_shipped_one_of_its_name(path: Path) -> None:
    own = path.rename("gpt2-muon.yaml")
    assert find_grid("gpt2-muon") == own
    assert (
        grid_note(own, "gpt2-muon") == "grid file: gpt2-muon.yaml; it takes precedence over the shipped gpt2-muon.yaml"
    )
    own.unlink()
    assert find_grid("gpt2") == shipped("grids") / "gpt2.yaml"


def test_a_file_that_has_a_models_name_and_is_for_another_is_not_the_models(path: Path) -> None:
    path.rename("vit-b16.yaml")
    assert find_grid("vit-b16") == shipped("grids") / "vit-b16.yaml"


def test_a_broken_grid_of_ones_own_hides_no_other(path: Path) -> None:
    Path("grids").mkdir()
    path.rename("grids/mine.yaml")
    Path("grids/other.yaml").write_text("model: [vit-digits\n")
    for model in ("vit-digits", "vit-b16"):
        with pytest.raises(InputError, match=r"^grids/other\.yaml: line 2: "):
            find_grid(model)


def test_a_model_without_a_grid_says_what_to_do(path: Path) -> None:
    assert path.exists()
    with pytest.raises(InputError, match="has `model: vit-ti16`; `ettsweep init --model vit-ti16` writes one"):
        find_grid("vit-ti16")
    with pytest.raises(InputError, match="unknown model 'vit-digit'; did you mean 'vit-digits'"):
        find_grid("vit-digit")


@pytest.mark.parametrize("path", sorted(shipped("grids").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_grids_are_valid_and_found_by_their_name_and_their_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_sweep_spec(path).specs()
    assert find_grid(path.stem) == path
    model = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
    assert (find_grid(model) == path) == (path.stem != "gpt2-muon")
    assert grid_note(path, path.stem) == f"grid file: {path}, which ettsweep ships"


# --- a single run ---------------------------------------------------------------------------------------------------


def test_a_run_is_the_centre_where_nothing_else_is_asked(path: Path) -> None:
    study = load_sweep_spec(path).studies()[0]
    assert study.spec_at() == study.base
    run = study.spec_at(lr=0.25, wd=0.0, seed=9)
    assert (run.lr, run.wd, run.seed, run.family_id) == (0.25, 0.0, 9, study.family)


def test_a_run_with_an_impossible_value_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="--lr: input should be greater than 0, got -1"):
        load_sweep_spec(path).studies()[0].spec_at(lr=-1.0)


# --- epochs ---------------------------------------------------------------------------------------------------------


def test_the_papers_schedule_is_300_epochs_of_312_steps() -> None:
    schedule = load_sweep_spec(shipped("grids") / "vit-b16.yaml").recipe.schedule
    assert (schedule.total_steps, schedule.warmup_steps, schedule.eval_every) == (93_600, 6_240, 312)


def test_epochs_follow_the_batch_size() -> None:
    schedule = load_sweep_spec(shipped("grids") / "vit-b16.yaml", overrides=["batch_size=1024"]).recipe.schedule
    assert schedule.eval_every == 1_281_167 // 1024
    assert schedule.total_steps == 300 * schedule.eval_every


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["schedule.epochs=90"], 90 * 312),
        (["schedule.total_steps=7000"], 7000),
        (["schedule.total_steps=7000", "schedule.epochs=50"], 50 * 312),
        (["schedule.epochs=50", "schedule.total_steps=7000"], 7000),
        (["schedule.epochs=22.5"], 7020),
    ],
)
def test_the_last_word_about_the_length_counts(overrides: list[str], steps: int) -> None:
    recipe = load_sweep_spec(shipped("grids") / "vit-b16.yaml", overrides=overrides).recipe
    assert recipe.schedule.total_steps == steps


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.epochs=many", "schedule.epochs: a number of epochs is expected, got 'many'"),
        ("schedule.warmup_epochs=-1", "schedule.warmup_epochs: a number of epochs is expected, got -1"),
        ("schedule.epochs=true", "schedule.epochs: a number of epochs is expected, got True"),
    ],
)
def test_what_is_no_number_of_epochs_is_refused(override: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_sweep_spec(shipped("grids") / "vit-b16.yaml", overrides=[override])


def test_a_file_gives_its_length_in_epochs_or_in_steps(tmp_path: Path) -> None:
    text = (shipped("grids") / "vit-b16.yaml").read_text().replace("epochs: 300,", "epochs: 300, total_steps: 5,", 1)
    (tmp_path / "g.yaml").write_text(text)
    with pytest.raises(InputError, match="epochs and total_steps set the same value; give one of them"):
        load_sweep_spec(tmp_path / "g.yaml")
