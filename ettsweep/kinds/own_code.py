"""The common parts of recipes of functions and commands: score, code of a project, width."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model

from ettsweep.files import Json
from ettsweep.project_code import CodeRule, Patterns, as_code_rule
from ettsweep.runs.folder import RECORDED
from ettsweep.runs.score_spec import ScoreSpec, StatedScore
from ettsweep.runs.spec import Block, OwnCode, Recipe, RecipeInfo, override_block
from ettsweep.schema import NotInId, Positive, Source, StrictModel, validate


@dataclass(frozen=True)
class InFile:
    """Mark a field that a grid file states under another key, in another form, or not at all.

    Attributes:
        key: under `run:`; None if grid files do not have it.
        form: type in grid files, if it differs.
    """

    key: str | None
    form: Any = None


class OwnCodeRecipe(Recipe):
    """A recipe of a user's code.

    Attributes:
        score: of verdicts.
        last_step: number of the last step, if known.
        ends_early: whether a run may end before its last step, instead of failing.
        width, factors: for maps of lr and wd between strategies; without a width there is one strategy.
        code: digest of the code.
        trains_in: digest of the project's copy for runs: `code`, or equivalent code.
        code_rule: the files of the code.
        folder: of the grid file.
        keep: patterns of files in a run's `out` that `clean --outputs` keeps; None for all.
        snapshot: whether runs train in a copy of the project.
        seeds: `none` without a seed, for one run a point; beside `run:` in a grid file.
        inputs: names of further axes and of variants, beside `run:` in a grid file.
        usual_axes: which of lr and wd are axes, beside `run:` too; None for lr, and wd if it takes one.
    """

    score: Annotated[ScoreSpec, InFile("score", form=StatedScore)]
    last_step: Annotated[Positive | None, NotInId(), InFile("steps")] = None
    ends_early: Annotated[bool, NotInId()] = False
    width: Annotated[Positive | None, NotInId()] = None
    factors: Annotated[Literal["adamw", "sgd"], NotInId()] = "adamw"
    code: Annotated[str, InFile(None)] = ""
    trains_in: Annotated[str, NotInId(), InFile(None)] = ""
    code_rule: Annotated[CodeRule, BeforeValidator(as_code_rule), NotInId(), InFile("code")] = CodeRule()
    folder: Annotated[str, NotInId(), InFile(None)] = ""
    snapshot: Annotated[bool, NotInId()] = True
    keep: Annotated[Patterns | None, NotInId()] = None
    seeds: Annotated[Literal["none"] | None, NotInId()] = None
    inputs: Annotated[tuple[str, ...], NotInId(), InFile("_inputs"), Field(strict=False)] = ()
    usual_axes: Annotated[tuple[str, ...] | None, NotInId(), InFile("_usual_axes"), Field(strict=False)] = None


SomeRecipe = TypeVar("SomeRecipe", bound=OwnCodeRecipe)


@cache
def block_schema(recipe: type[OwnCodeRecipe]) -> type[StrictModel]:
    """Return the schema of the block `run:`, by the fields of a recipe."""
    fields: dict[str, Any] = {}
    for name, info in recipe.model_fields.items():
        mark = next((mark for mark in info.metadata if isinstance(mark, InFile)), InFile(name))
        if name in Recipe.model_fields or mark.key is None:
            continue
        default = ... if info.is_required() else info.get_default(call_default_factory=True)
        fields[name] = mark.form or info.rebuild_annotation(), Field(default, alias=mark.key)
    return create_model(f"{recipe.__name__}Block", __base__=StrictModel, **fields)


def read_stated(
    schema: type[SomeRecipe], block: Block, overrides: Sequence[str], location: str, folder: Path
) -> tuple[SomeRecipe, Source]:
    """Return the recipe of a grid file in a folder, and the sources of its values; see `Kind.read`."""
    data, source = override_block(block, overrides, location)
    stated = validate(block_schema(schema), data, source)
    return validate(schema, {**dict(stated), "folder": str(folder.resolve())}, source), source


# --- as planner and views know it -------------------------------------------------------------------------------------


def common_info(recipe: OwnCodeRecipe) -> dict[str, Any]:
    """Return the common fields of `RecipeInfo` of own code."""
    return {
        "metric": recipe.score.metric,
        "seeded": recipe.seeds is None,
        "width": recipe.width,
        "factor_rule": recipe.factors,
        "steps": recipe.last_step,
        "may_end_early": recipe.ends_early,
        "code": OwnCode(recipe.code, recipe.trains_in, Path(recipe.folder), recipe.code_rule, recipe.snapshot),
        "kept_outputs": recipe.keep,
    }


def with_code(recipe: SomeRecipe, code: OwnCode) -> SomeRecipe:
    """Return a recipe with other digests of code, or in another folder."""
    return recipe.model_copy(update={"code": code.digest, "trains_in": code.copy, "folder": str(code.folder)})


def summary(recipe: OwnCodeRecipe, history: Sequence[Json], diverged: bool) -> Json:
    """Return the score, and how many values each metric has."""
    names = Counter(name for line in history for name, value in line.items() if value is not None)
    recorded = {name: count for name, count in names.items() if name not in ("step", "nonfinite")}
    metric = recipe.score.metric
    return {metric.name: metric.score(history), RECORDED: recorded}


def early_end(info: RecipeInfo, history: Sequence[Json]) -> str:
    """Return a text if a run ended before its last step, with advice; empty if it did not, or may."""
    if info.steps is None or info.may_end_early or is_last(history, info.steps):
        return ""
    last = max((line["step"] for line in history), default=0)
    return f"ended at step {last} of {info.steps}; if runs may end early, set `ends_early: true` under `run:`"


def is_last(history: Sequence[Json], last_step: int) -> bool:
    """Whether metrics reach the last step: the next ones would come at it or later, unless steps count from 0."""
    steps: list[int] = sorted({line["step"] for line in history}) or [0]
    # Of the last few: evaluations may come between.
    every = max((after - before for before, after in pairwise(steps[-4:])), default=max(1, steps[-1]))
    return steps[-1] + every >= last_step


def folders_of(folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the folders of files, by names or patterns relative to a folder, without absolute ones."""
    fixed = (re.split(r"[*?\[]", name)[0] for name in names if not Path(name).is_absolute())
    return tuple(Path(os.path.normpath(folder / f"{name}_")).parent for name in fixed)
