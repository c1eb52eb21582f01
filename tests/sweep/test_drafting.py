"""Grid files that are drafted: which shipped grid they start from, and what becomes of it."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from ettsweep.models.architectures import named_models
from ettsweep.sweep.drafting import NEAREST, Wish, draft, fitting_models, prepare, usual_model, usual_task
from ettsweep.sweep.gridfile import load_request
from ettsweep.tasks.kinds import TASKS

GRIDS = Path(__file__).parents[2] / "grids"
USUAL = Wish()
PAIRS = [(task, model) for task in TASKS for model in (*fitting_models(task), "64x3", "7x1", "4096x2")]


def runs(path: Path) -> set[str]:
    return {spec.run_id for spec in load_request(path).specs()}


def drafted(folder: Path, task: str, model: str, wish: Wish = USUAL) -> Path:
    ground = prepare(task, model)
    path = folder / f"{ground.name}.yaml"
    text, _ = draft(ground, wish, path)
    path.write_text(text)
    return path


def test_every_task_has_a_grid_to_start_from() -> None:
    assert NEAREST.keys() == TASKS.keys()
    for task, grids in NEAREST.items():
        for grid in grids:
            kind = load_request(GRIDS / f"{grid}.yaml").recipe.task.kind
            assert TASKS[kind].sample == TASKS[task].sample


@pytest.mark.parametrize(("task", "model"), PAIRS)
def test_every_task_and_model_makes_a_file_that_can_be_read(task: str, model: str, tmp_path: Path) -> None:
    path = drafted(tmp_path, task, model)
    request = load_request(path)
    assert request.recipe.task.kind == task
    assert request.specs()
    assert all(len(line) <= 120 for line in path.read_text().splitlines())


@pytest.mark.parametrize("grid", ["vit-digits", "vit-b16", "vit-cifar10", "encdec-pydoc"])
def test_the_model_of_a_shipped_grid_makes_its_runs(grid: str, tmp_path: Path) -> None:
    there = load_request(GRIDS / f"{grid}.yaml")
    model = str(yaml.safe_load((GRIDS / f"{grid}.yaml").read_text())["model"])
    path = drafted(tmp_path, there.recipe.task.kind, model)
    assert runs(path) == runs(GRIDS / f"{grid}.yaml")
    if there.criterion:
        assert load_request(path).criterion == there.criterion


def test_every_key_has_a_comment_and_all_choices_are_named(tmp_path: Path) -> None:
    text = drafted(tmp_path, "digits", "vit-digits").read_text()
    lines = text.splitlines()
    for before, line in pairwise(lines):
        if not line.startswith("#") and "{lr:" not in line:  # a centre, whose key has one
            assert "#" in line or before.lstrip().startswith("#"), line
    for word in ("imagenet", "cifar10", "tf32", "bf16", "sgd", "linear", "fixed", "s=0.25", "paper", "confidence"):
        assert word in text


def test_another_width_starts_where_theory_carries_the_centre(tmp_path: Path) -> None:
    """From 32 to 128 channels, the standard lr falls by 4, and wd rises by 4: its product is kept."""
    centres = load_request(drafted(tmp_path, "digits", "128x2")).centres
    assert (centres["standard"].lr, centres["standard"].wd) == (2.0**-9, 2.0)
    near = load_request(GRIDS / "vit-digits.yaml").centres["mup"]
    assert (centres["mup"].lr, centres["mup"].wd) == pytest.approx((near.lr, near.wd))


@pytest.mark.parametrize("model", ["7x3", "128x2"])
def test_another_width_starts_where_theory_carries_the_centre_of_another_optimizer(model: str, tmp_path: Path) -> None:
    """With sgd the standard lr is that of maximal update at any width, and wd too; the neural-tangent lr is not."""
    path = drafted(tmp_path, "digits", model)
    sgd, near = (load_request(grid, (), ["optimizer=sgd"]) for grid in (path, GRIDS / "vit-digits.yaml"))
    assert sgd.recipe.optimizer.kind == "sgd"
    for name in ("standard", "mup"):
        assert sgd.centres[name] == near.centres[name]
    width = sgd.recipe.model.width
    assert sgd.centres["ntk"].lr == 2.0 ** round(math.log2(near.centres["ntk"].lr * width / 32))
    assert "or sgd, which starts from centre_sgd" in path.read_text()


def test_an_optimizer_without_a_centre_is_said_to_need_one(tmp_path: Path) -> None:
    assert "or sgd, which needs a centre_sgd" in drafted(tmp_path, "text", "r2c2").read_text()


def test_a_very_short_run_ends_after_a_step(tmp_path: Path) -> None:
    schedule = load_request(drafted(tmp_path, "text", "r2c2", Wish(steps=3))).recipe.schedule
    assert (schedule.total_steps, schedule.stop_step) == (3, 1)


def test_of_several_grids_the_nearest_in_width_is_taken() -> None:
    for model, steps in (("64x2", 400), ("900x4", 200_000)):
        assert prepare("text", model).request.recipe.schedule.total_steps == steps


def test_a_run_of_another_length_keeps_the_shares(tmp_path: Path) -> None:
    schedule = load_request(drafted(tmp_path, "digits", "vit-digits", Wish(epochs=40))).recipe.schedule
    assert (schedule.total_steps, schedule.warmup_steps, schedule.eval_every) == (480, 48, 24)
    schedule = load_request(drafted(tmp_path, "digits", "vit-digits", Wish(steps=100))).recipe.schedule
    assert (schedule.total_steps, schedule.warmup_steps, schedule.eval_every) == (100, 10, 5)
    schedule = load_request(drafted(tmp_path, "text", "r2c2", Wish(steps=2000))).recipe.schedule
    assert (schedule.total_steps, schedule.warmup_steps, schedule.stop_step) == (2000, 50, 150)


def test_each_model_is_for_the_task_that_it_is_shipped_with() -> None:
    assert {model: usual_task(model) for model in named_models()} == {
        **{"vit-b16": "imagenet", "vit-s16": "imagenet", "vit-ti16": "imagenet", "vit-digits": "digits"},
        **{"vit-cifar10": "cifar10", "vit-cifar100": "cifar100"},
        **{"bart-large": "text", "r2c2": "text", "encdec-tiny": "pydoc", "encdec-small": "pydoc"},
    }
    assert usual_task("64x4") == "digits"
    assert usual_model("imagenet") == "vit-b16"
