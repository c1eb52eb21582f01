"""Transformers of the built-in trainer: facts for planner and views, and checks."""

from collections.abc import Sequence
from pathlib import Path

from ettsweep.config import options_by_key
from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.kinds.schedule_check import check_schedule
from ettsweep.kinds.transformer_block import recipe_problems, resolve_recipe
from ettsweep.runs.spec import Block, Kind, Labels, Place, Recipe, RecipeInfo, RunSpec
from ettsweep.schema import Source, locating
from ettsweep.strategies.optimizers import SgdSpec, factor_rule
from ettsweep.trainer.models.model_cost import check_size
from ettsweep.trainer.models.parameter_scales import check_matrices
from ettsweep.trainer.models.registry import model_name, model_spec, short_form
from ettsweep.trainer.recipe import TransformerRecipe, TransformerRun
from ettsweep.trainer.specs import EPOCH_KEYS, TextModel
from ettsweep.trainer.tasks.registry import (
    bind_to_data,
    check_compatible,
    check_data,
    located_data,
    steps_per_epoch,
    task_kind,
    task_spec,
)

TRIAL_STEPS = 100
"""Steps of a run of `ettsweep try`: enough for some checkpoints, even of a large model."""


def _info(recipe: TransformerRecipe) -> RecipeInfo:
    model, task, optimizer, schedule = recipe.model, recipe.task, recipe.optimizer, recipe.schedule
    kind, corpus, name = task_kind(task), getattr(task, "corpus", None) or "", model_name(model)
    own = {"pydoc": "task=text", "next_token": "task.text=tokens"}.get(task.kind)
    hint = f"; for your own text: --set {own}" if own else ""
    return RecipeInfo(
        metric=kind.metric,
        labels=Labels(name, task.kind, corpus, optimizer.kind, recipe.precision),
        short_name=short_form(model),
        width=model.width,
        factor_rule=factor_rule(optimizer),
        steps=schedule.last_step,
        eval_every=schedule.eval_every,
        warmup_steps=schedule.warmup_steps,
        records_every_step=True,
        steps_per_epoch=None if kind.train_size is None else steps_per_epoch(task, recipe.batch_size),
        # Padding of sources and targets depends on the data; windows of decoders are full.
        tokens_per_step=recipe.batch_size * model.tokens
        if isinstance(model, TextModel) and not model.reads_source
        else None,
        samples_name=f"{kind.sample}s",
        # torch adds the decay to SGD's gradient. Adam and Muon decay apart from their averages.
        momentum_gain=1 / (1 - optimizer.momentum) if isinstance(optimizer, SgdSpec) else 1.0,
        data_kind=kind.data_kind(task),
        no_data_reason=f"task {task.kind} has its data from a package and reads no other{hint}",
    )


def _read(block: Block, overrides: Sequence[str], location: str, folder: Path) -> TransformerRecipe:
    recipe = resolve_recipe(block, overrides, location)
    with locating(Source(location, options_by_key(overrides))):
        check_matrices(recipe.model, recipe.optimizer)
        check_size(recipe.model, recipe.optimizer)
        check_compatible(recipe.task, recipe.model, recipe.batch_size)
    return recipe


def _check(recipe: TransformerRecipe, place: Place) -> list[str]:
    problems = []
    if recipe.batch_size < place.devices:
        problems.append(f"devices_per_run: {place.devices} devices cannot share a batch of {recipe.batch_size}")
    try:
        check_size(recipe.model, recipe.optimizer, place.memory_bytes, place.owner)
    except InputError as error:
        problems.append(str(error))
    return problems


def _check_data(recipe: TransformerRecipe, data: str | None, count: bool) -> None:
    check_data(recipe.task, recipe.model, data)
    if count:
        task_kind(recipe.task).check_counts(recipe.task, recipe.model, located_data(recipe.task, data))


def _for_trial(recipe: TransformerRecipe) -> TransformerRecipe:
    schedule, quarter = recipe.schedule, TRIAL_STEPS // 4
    if schedule.last_step <= TRIAL_STEPS:
        return recipe
    changes = {
        "total_steps": TRIAL_STEPS,
        "stop_step": None,
        "warmup_steps": min(schedule.warmup_steps, quarter),
        "eval_every": min(schedule.eval_every, quarter),
    }
    return recipe.model_copy(update={"schedule": schedule.model_copy(update=changes)})


def _summary(recipe: TransformerRecipe, history: Sequence[Json], diverged: bool) -> Json:
    evaluations = [line for line in history if "val_loss" in line]
    result: Json = {}
    for name, select in (("accuracy", max), ("loss", min), ("bits", min), ("bits_per_byte", min)):
        if name == "bits_per_byte" and not any(f"val_{name}" in line for line in evaluations):
            continue  # only of text, and missing in old runs
        values = [line.get(f"val_{name}") for line in evaluations]
        result[f"best_{name}"] = select((value for value in values if value is not None), default=None)
        result[f"final_{name}"] = values[-1] if values and not diverged else None
    return result


TRANSFORMER = Kind(
    schema=TransformerRecipe,
    info=_info,
    read=_read,
    problems=recipe_problems,
    extra_keys=EPOCH_KEYS,
    check_name=lambda field, name: model_spec(name) if field == "model" else task_spec(name),
    check_axes=lambda recipe, values, strategies: check_schedule(recipe.schedule, values["lr"]),
    check=_check,
    check_data=_check_data,
    bind=lambda recipe, data: recipe.model_copy(update={"task": bind_to_data(recipe.task, data)}),
    for_trial=_for_trial,
    summary=_summary,
)


def as_transformer(recipe: Recipe) -> TransformerRecipe | None:
    """Return a recipe of the built-in trainer; None for one of another kind."""
    return recipe if isinstance(recipe, TransformerRecipe) else None


def transformer_run(spec: RunSpec) -> TransformerRun | None:
    """Return a run of the built-in trainer; None for one of another kind."""
    return spec if isinstance(spec, TransformerRun) else None
