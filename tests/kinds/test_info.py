"""What planner and views read of a recipe: of each kind, kept with a recipe, and never that of another one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ettsweep.runs.point import Point
from ettsweep.runs.spec import BUILT_IN, Recipe, RunSpec, StrategySpec, kind_named, kind_of
from ettsweep.shipped_files import shipped
from ettsweep.study.grid_file import load_sweep_spec

SCORE = {"name": "err", "mode": "min"}
COMMAND = {
    "command": "true {lr} {seed}",
    "score": SCORE,
    "steps": 30,
    "code": "*.py",
    "try": "--short",
    "data": "a.txt",
}
FUNCTION = {"function": "train:main", "score": SCORE, "steps": 30, "with": {"depth": 2}, "try": {"depth": 1}}


@pytest.fixture(params=["command", "function", BUILT_IN])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Recipe:
    (tmp_path / "a.txt").write_text("data")
    (tmp_path / "train.py").write_text("def main(run, depth):\n    pass\n")
    if request.param == BUILT_IN:
        return load_sweep_spec(shipped("grids") / "vit-digits.yaml").recipe
    block: dict[str, Any] = {"command": COMMAND, "function": FUNCTION}[request.param]
    read: Recipe = kind_named(request.param).read(block, (), "run", tmp_path)
    return read


def test_what_is_kept_of_a_recipe_is_no_part_of_it(recipe: Recipe) -> None:
    fresh = recipe.model_copy(update={"spikes": recipe.spikes})
    before = recipe.model_dump(), dict(recipe)
    assert recipe.info is recipe.info
    assert (recipe.model_dump(), dict(recipe)) == before
    assert fresh == recipe
    assert kind_of(recipe).schema.model_validate(recipe.model_dump()) == recipe


def test_a_changed_recipe_has_its_own_info(recipe: Recipe) -> None:
    assert recipe.info.steps
    shorter = kind_of(recipe).for_trial(recipe)
    assert shorter.info.key != recipe.info.key
    if code := recipe.info.code:
        moved = replace(code, digest="other", copy="copy", folder=Path("/elsewhere"))
        assert kind_of(recipe).with_code(recipe, moved).info.code == moved
        assert recipe.info.code == code


def test_runs_of_a_family_share_what_is_known_of_them(recipe: Recipe) -> None:
    spec = RunSpec.of(recipe, StrategySpec(s=None), {"lr": 0.5, "wd": 0.25}, 0)
    assert spec.with_point(Point.of(lr=0.25, wd=0.5), 1).info is spec.info == recipe.info
