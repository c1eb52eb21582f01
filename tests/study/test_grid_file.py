import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ettsweep.config import parse_yaml
from ettsweep.errors import InputError, ValuesAsRangeError
from ettsweep.shipped_files import shipped
from ettsweep.strategies.optimizers import SgdSpec
from ettsweep.study.grid_file import find_grid, grid_note, load_sweep_spec

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


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), (".1e-2", 0.001), ("2^-7", 2.0**-7)])
def test_scientific_notation_and_powers_of_two_are_numbers(path: Path, text: str, value: float) -> None:
    change(path, "lr: 0.0078125", f"lr: {text}")
    assert load_sweep_spec(path).centres["standard"]["lr"] == value
    assert load_sweep_spec(path, overrides=[f"centre.standard.lr={text}"]).centres["standard"]["lr"] == value


LAUGHS = "".join(f"l{i}: &l{i} [{f'*l{i - 1}, *l{i - 1}' if i else '1'}]\n" for i in range(40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "line 1: nested too deeply"),
        ("a: 1\nb: &b [1, {c: *b}]", "line 2: an alias contains itself"),
        (LAUGHS, "line 20: more than 1,000,000 values, aliases counted"),
        ("!!bool maybe", "a date, number or value with !! is not valid"),
    ],
)
def test_a_file_without_end_or_with_a_false_tag_is_refused_at_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"here: {message}"):
        parse_yaml(text, "here")


def test_merge_keys_stand_for_what_they_name_and_own_keys_override() -> None:
    merged = parse_yaml("a: &a {lr: 1, wd: 2}\nb: {lr: 3, <<: *a}", "here")
    assert merged == {"a": {"lr": 1, "wd": 2}, "b": {"lr": 3, "wd": 2}}


def test_a_number_of_seeds_means_the_first_ones(path: Path) -> None:
    assert load_sweep_spec(path, seeds=3).seeds == (0, 1, 2)
    change(path, "seeds: [3, 5]", "seeds: 3")
    assert load_sweep_spec(path).seeds == (0, 1, 2)


def test_a_value_that_is_not_searched_is_answered_with_where_it_belongs(path: Path) -> None:
    change(path, "wd: {range: [-1, 0], step: 0.5}", "wd: 0.1")
    assert re.search(r"wd: to hold it at \S+, write `wd: fixed`, and wd: \S+ under `centre:`$", refusal(path))


# --- centres --------------------------------------------------------------------------------------------------------


def test_a_stated_centre_wins_over_the_map_and_the_family_is_mapped_from_its_own() -> None:
    centres = load_sweep_spec(shipped("grids") / "vit-b16.yaml").centres
    assert (centres["standard"]["lr"], centres["standard"]["wd"]) == (1e-3, 0.8)
    assert (centres["ntk"]["lr"], centres["ntk"]["wd"]) == (20, 4e-5)  # the map gives (21.28, 3.76e-5)
    for name, power in (("hybrid", 0.25), ("mup", 0.5)):
        assert (centres[name]["lr"], centres[name]["wd"]) == pytest.approx((20 * 768**-power, 4e-5 * 768**power))


def test_all_are_mapped_from_standard_where_only_that_is_stated(path: Path) -> None:
    centres = load_sweep_spec(path, ["ntk", "s=0.25"]).centres
    for name, exponent in {"ntk": 1.5, "s=0.25": 1.375}.items():
        assert centres[name] == pytest.approx({"lr": 2.0**-7 * 32**exponent, "wd": 0.5 / 32**exponent})


def test_the_map_goes_by_the_exponents_of_the_optimizer(path: Path) -> None:
    for setting, lr in (("optimizer=sgd", 2.0 * 32), ("centre_sgd.mup.lr=1.0", 32.0)):
        centre = load_sweep_spec(path, ["ntk"], ["optimizer=sgd", setting]).centres["ntk"]
        assert (centre["lr"], centre["wd"]) == (lr, 0.125 / 32)


# --- centres of another optimizer -----------------------------------------------------------------------------------

OTHERS = "centre_sgd: {mup: {lr: 2.0, wd: 0.125}}"


def test_a_centre_of_another_optimizer_is_no_start_for_the_one_that_is_set(path: Path) -> None:
    change(path, OTHERS, "")
    for override in ("optimizer=sgd", "optimizer={kind: sgd, momentum: 0.9}"):
        refused = refusal(path, overrides=[override])
        assert refused.startswith(f"g.yaml with --set {override}: no centre for sgd: `centre` is for adamw")
        assert refused.endswith("or --set 'centre_sgd={standard: {lr: LR, wd: WD}}'")
    assert load_sweep_spec(path, overrides=["optimizer=adamw"]) == load_sweep_spec(path)


def test_the_centre_is_that_of_the_optimizer_in_the_recipe(path: Path) -> None:
    change(path, "  batch_size: 64", "  batch_size: 64\n  optimizer: sgd")
    assert refusal(path).startswith("g.yaml: centre is already for sgd, the recipe's optimizer; remove centre_sgd")
    change(path, OTHERS, "centre_adamw: {standard: {lr: 0.25, wd: 0.125}}")
    assert load_sweep_spec(path).centres["standard"]["lr"] == 2.0**-7
    assert load_sweep_spec(path, overrides=["optimizer=adamw"]).centres["standard"]["lr"] == 0.25


# --- options --------------------------------------------------------------------------------------------------------


def test_options_win_over_the_file(path: Path) -> None:
    sweep_spec = load_sweep_spec(path, ["ntk"], [], {"lr": "-2:0:0.5", "wd": "fixed"}, [7])
    assert list(sweep_spec.centres) == ["ntk"]
    assert sweep_spec.axes["lr"].offsets() == [-2, -1.5, -1, -0.5, 0]
    assert sweep_spec.axes["wd"].fixed
    assert sweep_spec.seeds == (7,)
    assert load_sweep_spec(path, ranges={"wd": "-1:1"}).axes["wd"].step == 0.5, "that of the file"


def test_set_reaches_any_field_of_the_recipe(path: Path) -> None:
    overrides = ["model.width=64", "optimizer.eps=1e-6", "precision=fp16", "precision=bf16"]
    recipe = load_sweep_spec(path, overrides=overrides).recipe
    assert (recipe.model.width, recipe.model.depth) == (64, 2)
    assert recipe.optimizer.eps == 1e-6  # type: ignore[union-attr]
    assert recipe.precision == "bf16", "the last one counts"
    sgd = load_sweep_spec(path, overrides=["optimizer=sgd", "optimizer.momentum=0.5"]).recipe
    assert sgd.optimizer == SgdSpec(momentum=0.5)


def test_a_run_shorter_than_the_warmup_of_the_file_is_told_what_to_set() -> None:
    grid = shipped("grids") / "vit-b16.yaml"
    refused = refusal(grid, overrides=["schedule.epochs=15"])
    assert "warmup_epochs 20 (6240 steps) must be below epochs 15 (4680 steps); " in refused
    assert "pass --set schedule.warmup_epochs=1 for the file's share" in refused
    overrides = ["schedule.epochs=15", "schedule.warmup_epochs=1"]
    assert load_sweep_spec(grid, overrides=overrides).recipe.schedule.warmup_steps == 312


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranges": {"lr": "1:-1"}}, "--range lr: empty range: 1 is above -1"),
        ({"ranges": {"lr": "a:b"}}, "--range lr: low:high, low:high:step or fixed is expected (log2 from the centre)"),
        ({"ranges": {"lr": "-1:1:0.3"}}, "--range lr=-1:1:0.3: lr: -1 is no multiple of the step 0.3; nearest: -1.2, -0.9"),
        ({"ranges": {"lr": "-64:64:0.0009765625", "wd": "-64:63:1"}},
         f"g.yaml with --range lr=-64:64:0.0009765625 --range wd=-64:63:1: the grid has {131_073 * 128 * 2:,} runs"),
        ({"seeds": [0, 0]}, "--seeds=0,0: seeds: [0, 0] repeats a seed"),
        ({"overrides": ["batch_size=8", "task=cifar10"]},
         "g.yaml with --set batch_size=8 --set task=cifar10: model.channels: task cifar10 has 3, got 1"),
    ],
)  # fmt: skip
def test_a_value_of_an_option_is_refused_with_the_option(path: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(path, **options).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.widht=64", "model.widht: unknown key; did you mean model.width?"),
        ("model.width=62", "model: width 62 is not divisible by heads 4; nearest width: 60, 64"),
        ("optimizer=sdg", "optimizer: unknown kind 'sdg'; did you mean 'sgd'? Known: adamw, muon, sgd"),
        ("optimizer.momentum=0.9", "optimizer.momentum: unknown key; known: kind, beta1, beta2, "),
        ("epoch=3", "epoch: unknown key; did you mean schedule.epochs?"),
        ("batch_size", "key=value is expected, such as model.width=64"),
        ("wd.low=1", "wd.low is not a field of the recipe; use --range wd="),
        ("centre_sgd.mup.lr=-1", "centre_sgd.mup.lr: input should be greater than 0, got -1"),
        ("batch_size=800", "batch_size: 800 is more than the 797 training images"),
    ],
)
def test_a_setting_is_refused_with_what_was_set(path: Path, override: str, message: str) -> None:
    told = refusal(path, overrides=[override]).removeprefix("g.yaml with ")
    assert told.startswith(f"--set {override}: {message}")


def test_a_mistake_in_the_file_is_refused_with_the_file_whatever_the_options(path: Path) -> None:
    change(path, "batch_size: 64", "batch_size: none")
    expected = "g.yaml: batch_size: input should be a valid integer, got 'none'"
    assert refusal(path, overrides=["model.depth=3"], ranges={"lr": "-1:1"}, seeds=[0]) == expected


# --- bad files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds:", "sedes:", "sedes: unknown key; did you mean seeds?"),
        ("  batch_size: 64\n", "", "batch_size: is required"),
        ("lr: 0.0078125", "lr: yes", "centre.standard.lr: input should be a valid number, got True"),
        ("strategies: [standard]", "strategies: [ntk, s=0]", "strategies: strategy ntk is given twice"),
        ("wd: 0.5}", "wd: 0}", "centre: wd 0 has no log2; give a positive wd, or `wd: fixed`"),
        ("  standard: {lr: 0.0078125, wd: 0.5}", "  {}", "centre: at least one strategy with lr and wd is needed"),
        ("total_steps: 240", "epoch: 20", "schedule.epoch: unknown key; did you mean schedule.epochs?\n"
         "g.yaml: schedule.total_steps: is required"),
        ("seeds: [3, 5]", "batch_size: 64", "batch_size: unknown key; did you mean recipe.batch_size?"),
        ("  batch_size: 64", "  batch_size: 64\n  seeds: 3", "recipe: seeds belongs beside the recipe, not in it"),
        ("model: vit-digits", "model: vit-digit", "model: unknown model 'vit-digit'; did you mean 'vit-digits'?"),
        ("lr: {range: [-1, 1], step: 1}", "lr: {range: [-1, 1]", "line 9: expected ',' or '}', but got '<scalar>'"),
        ("seeds: [3, 5]", "strategies: [ntk]", "line 11: key 'strategies' is given twice"),
        ("seeds: [3, 5]", "x: !!python/name:os.system ''", "line 11: could not determine a constructor for the tag"),
    ],
)  # fmt: skip
def test_a_bad_grid_file_is_refused_with_its_place(path: Path, old: str, new: str, message: str) -> None:
    change(path, old, new)
    assert refusal(path).startswith(f"g.yaml: {message}")


def test_what_is_wrong_with_the_recipe_is_told_with_the_rest_of_the_file(path: Path) -> None:
    change(path, "task: digits", "task: digitz")
    change(path, "batch_size: 64", "batch_size: 0")
    change(path, "total_steps: 240", "total_steps: 0")
    change(path, "seeds: [3, 5]", "seeds: [-1]")
    keys = [line.split(": ")[1] for line in refusal(path).splitlines()]
    assert sorted(keys) == ["batch_size", "schedule.total_steps", "seeds.0", "task"]
    assert len(refusal(path, overrides=["batch_size=32", "schedule.epochs=5"]).splitlines()) == 2


def test_a_file_that_is_not_there_or_no_mapping_or_not_text_is_refused(path: Path) -> None:
    assert refusal(Path("other.yaml")) == "other.yaml: no such file"
    path.write_text("- a")
    assert refusal(path) == "g.yaml: a mapping of keys to values is expected"
    path.write_bytes(b"model: \xff")
    assert refusal(path) == "g.yaml: cannot be read: line 1 is not UTF-8; save the file as UTF-8"


def test_a_range_in_values_is_explained_in_steps(path: Path) -> None:
    """Of the centre 2^-7: log2(0.0001) is -13.288, log2(0.01) is -6.644."""
    with pytest.raises(ValuesAsRangeError) as error:
        load_sweep_spec(path, ranges={"lr": "1e-4:1e-2"})
    message = str(error.value)
    assert message.startswith("--range lr=1e-4:1e-2: a range is in log2 steps from the centre (lr 2^-7 (0.0078125)")
    assert message.endswith(" is --range lr=-6.3:0.4, nearest --range lr=-6:0")
    assert error.value.options == {"--range lr": "-6:0"}


# --- finding a grid -------------------------------------------------------------------------------------------------


def test_a_grid_of_ones_own_wins_over_the_shipped_one(path: Path) -> None:
    Path("grids").mkdir()
    own = path.rename("grids/mine.yaml")
    assert find_grid("vit-digits") == own
    assert find_grid("vit-b16") == shipped("grids") / "vit-b16.yaml"
    assert grid_note(own, None) == "grid file: grids/mine.yaml"
    taken = "grid file: grids/mine.yaml; it takes precedence over the shipped vit-digits.yaml"
    assert grid_note(own, "vit-digits") == taken


def test_a_file_beside_that_is_no_grid_or_one_of_another_model_hides_nothing(path: Path) -> None:
    path.rename("vit-b16.yaml")
    Path("compose.yaml").write_text("model: vit-b16  # of another program\nservices: [train]\n")
    os.mkfifo("pipe.yaml")
    assert find_grid("vit-digits") == Path("vit-b16.yaml"), "what a file is for counts, not its name"
    assert find_grid("vit-b16") == shipped("grids") / "vit-b16.yaml"


def test_of_several_grids_for_a_model_the_one_of_its_name_is_taken_or_one_is_chosen_by_hand(path: Path) -> None:
    Path("vit-digits-long.yaml").write_text(GRID)
    with pytest.raises(InputError, match=r"^several grids are for vit-digits: .*vit-digits-long\.yaml; give one"):
        find_grid("vit-digits")
    assert find_grid("vit-digits-long") == Path("vit-digits-long.yaml"), "no model has that name"
    named = path.rename("vit-digits.yaml")
    assert find_grid("vit-digits") == named


def test_a_broken_grid_of_ones_own_is_told(path: Path) -> None:
    change(path, "seeds: [3, 5]", "seeds: [3, 5")
    with pytest.raises(InputError, match=r"^g\.yaml: line "):
        find_grid("vit-digits")


def test_a_model_without_a_grid_says_what_to_do(path: Path) -> None:
    with pytest.raises(InputError, match="has `model: vit-ti16`; `ettsweep init --model vit-ti16` writes one"):
        find_grid("vit-ti16")
    with pytest.raises(InputError, match="unknown model 'vit-digit'; did you mean 'vit-digits'"):
        find_grid("vit-digit")


def test_shipped_grids_are_valid_and_found_by_their_name_and_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in shipped("grids").glob("*.yaml"):
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
    with pytest.raises(InputError, match="--lr: input should be greater than 0, got -1"):
        study.spec_at(lr=-1.0)


# --- epochs ---------------------------------------------------------------------------------------------------------


def test_the_papers_schedule_is_300_epochs_of_312_steps() -> None:
    schedule = load_sweep_spec(shipped("grids") / "vit-b16.yaml").recipe.schedule
    assert (schedule.total_steps, schedule.warmup_steps, schedule.eval_every) == (93_600, 6_240, 312)
    fewer = load_sweep_spec(shipped("grids") / "vit-b16.yaml", overrides=["batch_size=1024"]).recipe.schedule
    assert (fewer.total_steps, fewer.eval_every) == (300 * (1_281_167 // 1024), 1_281_167 // 1024)
