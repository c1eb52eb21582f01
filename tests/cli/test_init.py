"""`ettsweep init`: that what it writes loads, plans and trains, that data decide what is proposed, and what it refuses."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from support.commandline import Call, ettsweep, status, write_grid
from support.pictures import CLASSES, COUNTS, pictures, write_folders
from support.texts import TOPICS, small_tokenizer

from ettsweep.doctor.grid_template import PROPOSED_MODELS, SHIPPED_GRIDS
from ettsweep.study.criterion import resolve_criterion
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.models.registry import named_models
from ettsweep.trainer.tasks.registry import TASKS, task_kind, task_spec

SHIPPED = Path(__file__).parents[2] / "grids"

FEW = ("--strategy", "ntk", "--lr-range", "0:1", "--wd-range", "fixed")
SMALL = [f"model.{field}" for field in ("width=8", "depth=1", "heads=2")]


def trained(grid: Path, results: Path, *sets: str) -> list[float]:
    """Train what a grid asks for with one seed, to its end; return the best scores."""
    options = [token for value in sets for token in ("--set", value)]
    ettsweep(
        *("grid", "--grid", grid, "--follow", "--results", results, "--launch-set", "slots=1", "--seeds", "0"), *options
    )
    rows = status(results).values()
    assert {row["state"] for row in rows} == {"done"}
    return [row["best_score"] for row in rows]


def written(call: Call, folder: Path, *options: object) -> Path:
    """Return the file that is written with some options."""
    call("init", "--out", "mine.yaml", "--force", *options)
    return folder / "mine.yaml"


def test_all_models_and_tasks_have_a_proposal() -> None:
    assert list(SHIPPED_GRIDS) == list(named_models())
    assert list(PROPOSED_MODELS) == list(TASKS)
    others = {"gpt2-muon"}  # of models that have a grid: `init` starts from that
    assert {path.stem for path in SHIPPED.glob("*.yaml")} == {*SHIPPED_GRIDS.values(), *others}


@pytest.mark.parametrize("task", TASKS)
def test_the_template_for_each_task_is_one_that_grid_takes(task: str, call: Call, tmp_path: Path) -> None:
    err = call("init", "--task", task, "--out", "mine.yaml").err
    assert load_sweep_spec(tmp_path / "mine.yaml").recipe.task.kind == task_spec(task).kind
    plan = ("grid", "--grid", "mine.yaml", "--dry-run")
    if not TASKS[task].data_kind(task_spec(task)):
        assert "`ettsweep grid --grid mine.yaml --dry-run` prints the plan" in err
    else:
        assert "`ettsweep grid --grid mine.yaml --data PATH --dry-run` prints the plan" in err
        assert "--data" in call("grid", "--grid", "mine.yaml", code=1).err
    if TASKS[task].sample == "text" and task != "pydoc":  # whose runs are bound to the text at hand
        assert "no text given; pass --data DIR" in call(*plan, code=1).err
    else:
        assert "sweep mine would be created" in call(*plan).err


@pytest.mark.parametrize("model", named_models())
def test_the_template_for_each_model_makes_the_runs_of_its_shipped_grid(model: str, call: Call, tmp_path: Path) -> None:
    grid = SHIPPED / f"{SHIPPED_GRIDS[model]}.yaml"
    path = written(call, tmp_path, "--model", model)
    result, shipped = load_sweep_spec(path), load_sweep_spec(grid)
    if f"model: {model}" in grid.read_text():
        assert result.specs() == shipped.specs()
        criteria = [resolve_criterion([sweep_spec.criterion]) for sweep_spec in (result, shipped)]
        assert not criteria[0].differing_fields(criteria[1], task_kind(result.recipe.task).metric)
    else:
        assert result.recipe.model == named_models()[model]
    assert max(map(len, path.read_text().splitlines())) <= 120


def test_each_key_has_a_comment_and_all_choices_are_named(call: Call, tmp_path: Path) -> None:
    lines = written(call, tmp_path, "--task", "digits").read_text().splitlines()
    for before, line in pairwise(lines):
        if not line.startswith("#") and "{lr:" not in line:  # a centre, whose key has one
            assert "#" in line or before.lstrip().startswith("#"), line
    for token in (
        *(name for name, kind in TASKS.items() if kind.sample == "image"),
        *("tf32", "bf16", "sgd", "linear", "fixed", "s=0.25", "paper"),
    ):
        assert token in "".join(lines)


def test_another_width_starts_where_theory_carries_the_centre(call: Call, tmp_path: Path) -> None:
    """From 768 to 384 channels, the standard lr rises by 2, and wd falls by 2: from 1e-3 and 0.8, to powers of two."""
    centres = load_sweep_spec(written(call, tmp_path, "--model", "vit-s16")).centres
    assert (centres["standard"].lr, centres["standard"].wd) == (2.0**-9, 2.0**-1)
    sgd = load_sweep_spec(written(call, tmp_path, "--model", "encdec-small"), (), ["optimizer=sgd"]).centres
    assert sgd["standard"].lr == 8.0, "with sgd the standard lr is that of maximal update at any width"
    assert sgd["ntk"].lr == 2 * 128.0


def test_options_fill_it_in(call: Call, tmp_path: Path) -> None:
    options = ("--strategy", "ntk", "--strategy", "s=0.1", "--lr-range=-2:1", "--wd-range=-1:1:0.5")
    path = written(call, tmp_path, "--model", "vit-digits", *options)
    sweep_spec = load_sweep_spec(path)
    assert list(sweep_spec.centres) == ["ntk", "s=0.1"]
    assert sweep_spec.lr.offsets() == [-2, -1, 0, 1]
    assert sweep_spec.wd.offsets() == [-1, -0.5, 0, 0.5, 1]
    assert load_sweep_spec(written(call, tmp_path, "--wd-range", "fixed")).wd.fixed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--task digitz", "unknown task 'digitz'; did you mean 'digits'?"),
        ("--model vit-s61", "unknown model 'vit-s61'; did you mean 'vit-s16'?"),
        ("--task text --model vit-b16", "task text needs a model that reads a source, such as kind encdec, got vit"),
        ("--task digits --model vit-b16", "task digits has 8, got 224"),
        ("--strategy mpu", "unknown strategy 'mpu'; did you mean 'mup'?"),
        ("--strategy ntk --strategy s=0", "strategy ntk is given twice"),
        ("--lr-range 1:0", "--lr-range: empty range: 1 is above 0"),
        ("--lr-range wide", "--lr-range: low:high, low:high:step or fixed is expected"),
        ("--wd-range=-1:1:0.3", "-1 is no multiple of the step 0.3"),
        ("--data . --task digits", "--data: task digits has its data from a package"),
        ("--out .", "--out: . is a folder; name a file in it, such as vit-digits.yaml"),
        ("--out no-sweep:.yaml", "--out 'no-sweep:'"),
        ("--out 0123456789ab.yaml", "--out 0123456789ab: that could be a run's id"),
        ("--out mine.ya*ml", "--out 'mine.ya*ml'"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(
    options: str, message: str, call: Call, tmp_path: Path
) -> None:
    assert message in " ".join(call("init", *options.split(), code=2).err.split())
    assert not list(tmp_path.iterdir())


def test_data_that_are_not_there_or_are_others_are_refused(call: Call, tmp_path: Path) -> None:
    assert "nowhere does not exist" in call("init", "--data", "nowhere", code=1).err
    write_folders(tmp_path / "few")
    assert "3 classes, the model has 10" in call("init", "--task", "cifar10", "--data", "few", code=1).err
    (tmp_path / "few" / "words.txt").write_text("n01443537 goldfish")
    assert "3 classes" in call("init", "--data", "few", "--task", "cifar10", code=1).err
    assert "holds text" not in call("init", "--data", "few", "--out", "few/grid.yaml").err
    shutil.rmtree(tmp_path / "few")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl.gz").touch()
    for text in ("corpus", "corpus/a.jsonl.gz"):
        err = call("init", "--data", text, code=1).err
        assert f"{text} holds text: `ettsweep data text --input {tmp_path / text} --out DIR` makes token shards" in err
    shutil.rmtree(tmp_path / "corpus")
    err = call("init", "--task", "text", "--data", "nowhere", code=1).err
    assert "`ettsweep data text --input FILES --out DIR` creates one" in err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_written_over_only_when_that_is_said(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    assert "mine.yaml exists already: --force overwrites it" in call("init", "--out", path, code=2).err
    assert path.read_text() == "kept"
    call("init", "--out", path, "--force")
    assert load_sweep_spec(path).recipe == load_sweep_spec(SHIPPED / "vit-digits.yaml").recipe
    assert "wrote vit-digits.yaml" in call("init").err
    assert "vit-digits.yaml exists already" in call("init", code=2).err


def test_a_folder_that_is_not_there_is_told(call: Call) -> None:
    assert "choose another folder with --out" in call("init", "--out", "none/mine.yaml", code=1).err


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_digits_trains(call: Call, results: Path, tmp_path: Path) -> None:
    path = written(call, tmp_path, "--task", "digits", *FEW)
    scores = trained(path, results)
    assert len(scores) == 2
    assert all(0 < score < 1 for score in scores)  # ln(10) is 2.30


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_images_of_ones_own_fits_them_and_trains(call: Call, results: Path, tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data")
    path = written(call, tmp_path, "--data", data, *FEW)
    recipe = load_sweep_spec(path).recipe
    fields = recipe.model_dump()
    assert recipe.model.width == named_models()["vit-mini"].width, "so few images have the smallest model"
    assert fields["model"]["classes"] == len(CLASSES)
    assert (fields["task"]["train_size"], fields["task"]["val_size"]) == tuple(
        n * len(CLASSES) for n in COUNTS.values()
    )
    assert recipe.batch_size == 2  # a tenth of 36 images, as a power of two
    assert load_sweep_spec(path).data == str(data)
    sets = ["model.image_size=32", "precision=fp32", "batch_size=12", "schedule.epochs=1", "schedule.warmup_epochs=0"]
    assert len(trained(path, results, *SMALL, *sets)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("process", "warm")
def test_few_images_in_class_folders_get_a_recipe_that_a_cpu_trains(call: Call, results: Path, tmp_path: Path) -> None:
    files = {name.removeprefix("train/"): image for name, image in pictures(counts={"train": 40}).items()}
    write_folders(tmp_path / "pets", files)
    # The advice of a plan without a split is the command that makes one.
    write_grid(tmp_path / "own.yaml", model={"width": 8, "depth": 1, "heads": 2, "patch_size": 8, "image_size": 32, "classes": 3},
        task={"kind": "images", "train_size": 96, "val_size": 24, "resize": 32})  # fmt: skip
    refusal = call("grid", "--grid", "own.yaml", "--data", "pets", "--results", results, code=1).err
    assert f"`ettsweep init --data {tmp_path / 'pets'}" in refusal
    err = call("init", "--data", "pets").err
    assert "pets has no validation images: 24 of its 120 images are held out, the same ones in every run" in err
    text = (tmp_path / "vit-mini-images.yaml").read_text()
    assert "kind: images" in text
    assert "split_seed: 0" in text
    sweep_spec = load_sweep_spec(tmp_path / "vit-mini-images.yaml")
    recipe = sweep_spec.recipe
    assert (recipe.precision, recipe.batch_size, recipe.model.model_dump()["classes"]) == ("fp32", 8, 3)
    # On 24 images, an accuracy of one half has a standard error of 10 points.
    assert resolve_criterion([sweep_spec.criterion]).margin_for(task_kind(recipe.task).metric) == 0.1
    assert "can be decoded" in call("doctor", "--grid", "vit-mini-images.yaml", "--results", results).out
    sets = ["model.image_size=32", "schedule.epochs=1", "schedule.warmup_epochs=0", "schedule.eval_every_epochs=1"]
    options = ("--strategy", "ntk", "--lr-range", "0:0", "--wd-range", "fixed")
    assert (
        "1 run would be submitted"
        in call("grid", "--grid", "vit-mini-images.yaml", *options, "--seeds", 0, "--dry-run").err
    )
    path = written(call, tmp_path, "--data", "pets", *options)
    assert len(trained(path, results, *SMALL, *sets)) == 1


@pytest.mark.usefixtures("process", "warm")
def test_what_is_written_for_text_of_ones_own_fits_it_and_trains(
    call: Call, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(small_tokenizer().to_json())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TOPICS))
    call("data", "text", "--input", "a.jsonl", "--out", "out", "--tokenizer", "tokenizer", "--val-fraction", 0.1)
    path = written(call, tmp_path, "--data", "out", *FEW)
    sweep_spec = load_sweep_spec(path)
    assert sweep_spec.recipe.model_dump()["model"]["vocabulary"] == 408
    assert sweep_spec.data == str(tmp_path / "out")
    assert "sweep mine would be created" in call("grid", "--grid", "mine.yaml", "--dry-run").err
    sets = (*SMALL, "batch_size=4", "schedule.total_steps=6", "schedule.warmup_steps=0", "schedule.eval_every=3")
    assert len(trained(path, results, *sets)) == 2


@pytest.mark.parametrize(
    ("images", "model"),
    [(20, "vit-mini"), (6_000, "vit-ti16"), pytest.param(50_000, "vit-s16", marks=pytest.mark.slow)],
)
def test_more_images_have_a_larger_model(images: int, model: str, call: Call, tmp_path: Path) -> None:
    """Images are counted by the names of their files."""
    for side in ("train", "val"):
        for k in range(2):
            (folder := tmp_path / "data" / side / f"class{k}").mkdir(parents=True)
            for number in range(images // 2 if side == "train" else 1):
                (folder / f"{number}.png").touch()
    assert f"wrote {model}-images.yaml" in call("init", "--data", "data").err
    recipe = load_sweep_spec(tmp_path / f"{model}-images.yaml").recipe
    assert recipe.model == named_models()[model].model_copy(update={"classes": 2})
    assert recipe.model_dump()["task"]["train_size"] == images


def test_images_that_no_glance_counts_are_taken_for_imagenet(call: Call, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for side in ("train", "val"):
        (tmp_path / "data" / f"{side}.tar").touch()
    recipe = load_sweep_spec(written(call, tmp_path, "--data", tmp_path / "data")).recipe
    assert recipe == load_sweep_spec(SHIPPED / "vit-b16.yaml").recipe


@pytest.mark.parametrize(("command", "code"), [("grid", 0), ("search", 1)])
def test_a_plan_says_that_it_takes_the_file_that_init_wrote(command: str, code: int, call: Call) -> None:
    plan = (command, "--model", "vit-digits", "--strategy", "ntk", "--dry-run")
    assert f"grid file: {SHIPPED / 'vit-digits.yaml'}, which ettsweep ships\n" in call(*plan, code=code).err
    call("init", "--model", "vit-digits")
    line = "grid file: vit-digits.yaml; it takes precedence over the shipped vit-digits.yaml\n"
    assert line in call(*plan, code=code).err
    short = ("--set", "schedule.total_steps=3", "--set", "schedule.warmup_steps=1", "--set", "model.width=8")
    assert line in call("train", "--model", "vit-digits", *short).err
    assert line in call("doctor", "--model", "vit-digits").err
