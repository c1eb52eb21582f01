"""Template of a grid file: the shipped grid for a model, adapted to the data, with a comment for each key."""

import math
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ettsweep.config import parse_yaml, read_yaml
from ettsweep.console import format_count
from ettsweep.errors import DataMissingError, InputError
from ettsweep.powers import format_power
from ettsweep.runs.data_location import configured_data, data_env, resolve_data
from ettsweep.schema import Key
from ettsweep.shipped_files import shipped
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.strategies.strategy import parse_strategy, transfer_point
from ettsweep.study.criterion import default_margin
from ettsweep.study.grid_file import load_sweep_spec, make_sweep_spec, parse_range
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.models.registry import ARCHITECTURES, is_short_form, model_spec, named_models
from ettsweep.trainer.recipe import TransformerRecipe, as_transformer
from ettsweep.trainer.specs import TaskSpec, TextModel
from ettsweep.trainer.tasks.images.image_data import guess_task
from ettsweep.trainer.tasks.images.image_task import ImageTask
from ettsweep.trainer.tasks.registry import TASKS, check_compatible, check_data, task_kind, task_spec
from ettsweep.trainer.tasks.text.corpus_manifest import is_corpus, read_manifest
from ettsweep.trainer.tasks.text.documents import is_text_file

SHIPPED_GRIDS = {name: entry.grids.get(name, name) for entry in ARCHITECTURES.values() for name in entry.presets}
"""Shipped grid from which a template is made, by model."""

_IMAGE_MODELS = ((5e5, "vit-b16"), (5e4, "vit-s16"), (5e3, "vit-ti16"), (0, "vit-mini"))

_TEXT_MODELS = ((1e9, "bart-large"), (1e7, "encdec-small"), (0, "encdec-tiny"))

PROPOSED_MODELS: dict[str, tuple[tuple[float, str], ...]] = {
    "digits": ((0, "vit-digits"),),
    "images": _IMAGE_MODELS,
    "imagenet": _IMAGE_MODELS,
    "cifar10": ((0, "vit-cifar10"),),
    "cifar100": ((0, "vit-cifar100"),),
    "pydoc": ((0, "encdec-tiny"),),
    "text": _TEXT_MODELS,
    "denoise": _TEXT_MODELS,
    "next_token": ((1e7, "gpt2"), (0, "gpt-tiny")),
}
"""Models proposed for each task, largest first: (minimal number of training images or tokens, model)."""

MIN_BATCHES_PER_EPOCH = 10
"""Minimal number of batches in an epoch: small data sets get smaller batches than the shipped grid has."""

HEAD = (
    "# Written by `ettsweep init`. `ettsweep grid --grid FILE` trains it; with --dry-run, it only prints the plan.",
    "# Add --set key=value to override any field of recipe, model and task: --set batch_size=32 --set model.depth=2",
)

COMMENTS = {
    "model": "{models}; or a mapping of kind and fields",
    "task": "{tasks}; or a mapping of kind and fields",
    "data": "path of the data; or set --data or {variable}",
    "split_seed": "chooses the val_size images that are held out, the same ones in every run",
    "recipe": "shared by all runs; a run with another recipe is another run",
    "batch_size": "samples per step, over all devices",
    "precision": "fp32, tf32, bf16, or fp16 with loss scaling",
    "optimizer": "adamw, sgd or muon, or a mapping of kind and fields",
    "schedule": "epochs and warmup_epochs, or total_steps and warmup_steps; decay is cosine, linear or wsd",
    "centre": "centre of the ranges; strategies without one get it mapped from another's",
    "lr": "log2 from the centre, multiples of the step; or fixed",
    "wd": "the same",
    "strategies": "any of standard, ntk, hybrid, mup, or s=0.25 for any number from 0 to 1",
    "seeds": "the first seeds; more are added to the runs that decide the verdict",
    "criterion": "by how much a neighbour of the optimum may be better; also rule: bound or paper, confidence: 0.95",
}
"""Comment for each key of the template."""


def propose_grid(
    model: str | None = None, task: str | None = None, data: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return name and content of a grid file for a model, a task or data; choose those that are not given.

    The number of classes, the vocabulary and the number of samples come from the data, without reading all of them.

    Raises:
        InputError: there is no such model or task, or they do not fit together.
        DataMissingError: the data do not exist, or do not fit the task.
    """
    if model is not None and not is_short_form(model):
        model_spec(model)  # an unknown name fails here, before the data are read
    data = resolve_data(data) if data else None
    if task is None and data:
        task = _guess_task(data, model)
    stated_task = None if task is None else task_spec(task)
    if stated_task and data and not task_kind(stated_task).data_kind(stated_task):
        raise InputError(f"--data: task {task} has its data from a package, and reads no other")
    size = _training_samples(stated_task, data) if stated_task and data else math.inf
    # The last entry of each task has the minimum 0, so that one always fits.
    base_name = next(name for min_size, name in PROPOSED_MODELS[task or "digits"] if size >= min_size)
    base_name = model if model in SHIPPED_GRIDS else base_name
    name = model or base_name
    grid = read_yaml(path := shipped("grids") / f"{SHIPPED_GRIDS[base_name]}.yaml")
    base = as_transformer(load_sweep_spec(path).recipe)
    # The shipped grid may set fields of its task, which the plain name would lose.
    grid_task = base.task
    if stated_task and (stated_task.kind, _data_kind(stated_task)) != (base.task.kind, _data_kind(base.task)):
        grid_task = stated_task
    grid_model = model_spec(name, like=base_name)
    check_compatible(grid_task, grid_model, 2)  # 2: the smallest batch size that is proposed below
    if data:
        grid_task, grid_model = task_kind(grid_task).fit_to_data(grid_task, grid_model, data)
        check_data(grid_task, grid_model, data)
        task_kind(grid_task).check_counts(grid_task, grid_model, data)
    kind = task_kind(grid_task)
    recipe = {"precision": "fp32", "optimizer": "adamw", **grid["recipe"]}
    if samples := kind.train_size:
        # The largest power of two that leaves `MIN_BATCHES_PER_EPOCH` batches.
        recipe["batch_size"] = min(
            recipe["batch_size"], 2 ** int(math.log2(max(2, samples(grid_task) / MIN_BATCHES_PER_EPOCH)))
        )
    task_fields = grid_task.model_dump(exclude_defaults=True, exclude={"kind"})
    model_fields = {"kind": grid_model.kind} | grid_model.model_dump(exclude_defaults=True)
    # vit-digits, but vit-b16-imagenet: the name says which task it is for.
    return name if grid_task.name in name else f"{name}-{grid_task.name}", {
        "model": name if grid_model == model_spec(name) else model_fields,
        "task": {"kind": grid_task.name} | task_fields if task_fields else grid_task.name,
        **({"data": data} if kind.data_kind(grid_task) else {}),
        "recipe": {key: recipe[key] for key in ("batch_size", "precision", "optimizer", "schedule")},
        **{
            key: _transfer_centres(grid[key], key.removeprefix("centre_"), base, grid_model.width)
            for key in grid
            if key.startswith("centre")
        },
        **{key: grid[key] for key in ("lr", "wd", "strategies", "seeds")},
        "criterion": _criterion(grid, grid_task, is_fitted=data is not None),
    }


def _criterion(grid: Mapping[str, Any], task: TaskSpec, *, is_fitted: bool) -> object:
    """Return the criterion of the shipped grid; for accuracies on images at hand, one that fits their number."""
    metric = task_kind(task).metric
    if is_fitted and metric.mode == "max" and isinstance(task, ImageTask) and task.classes is None:
        # The largest standard error of an accuracy on so many images, to one digit; on ImageNet's 50,000, 0.2%.
        return {"margin": f"{float(f'{50 / math.sqrt(task.val_size):.1g}'):g}%"}
    return grid.get("criterion", {"margin": f"{100 * default_margin(metric):g}%"})


def _data_kind(task: TaskSpec) -> str:
    return task_kind(task).data_kind(task)


def _guess_task(data: str, model: str | None) -> str:
    """Guess the task from the names of the files, and of text from what the model does.

    Raises:
        DataMissingError: the data do not exist, or are text that is not tokenised.
    """
    path = Path(data)
    if is_corpus(path):  # a folder of token shards, made by `ettsweep data text`
        reader = named_models().get(model or "")
        return "text" if not isinstance(reader, TextModel) or reader.reads_source else "next_token"
    if not (path.exists() or data.startswith("hfds/")):
        raise DataMissingError(f"--data: {path} does not exist")
    names = os.listdir(path) if path.is_dir() else [path.name]
    image_folders = [name for name in names if name.startswith(("train", "data")) and (path / name).is_dir()]
    if not image_folders and any(".parquet" not in name and is_text_file(name) for name in names):
        tokenise = f"`ettsweep data text --input {shlex.quote(str(path))} --out DIR`"
        raise DataMissingError(f"--data: {path} holds text: {tokenise} makes token shards of it, for --data DIR")
    return guess_task(data)


def _training_samples(task: TaskSpec, data: str) -> float:
    """Return the number of training images or tokens; inf for images that cannot be counted quickly."""
    if task_kind(task).sample == "text":
        check_data(task, None, data)
        return read_manifest(Path(data)).train.tokens
    fitted, _ = task_kind(task).fit_to_data(task, model_spec(PROPOSED_MODELS[task.kind][0][1]), data)
    samples = task_kind(task).train_size
    return samples(fitted) if samples else math.inf


def _transfer_centres(centres: Mapping[str, Any], key: str, base: TransformerRecipe, width: int) -> dict[str, Any]:
    """Return centres transferred from the recipe's width to another `width`, rounded to powers of two.

    `key` names their optimizer; the key `centre` stands for the recipe's.
    """
    if width == base.model.width:
        return dict(centres)
    # Optimizers scale differently with the width: the centres of each need its own factors.
    factors = OPTIMIZERS.get(key, OPTIMIZERS[base.optimizer.kind]).factor_rule
    transferred = {}
    for name, centre in centres.items():
        s = parse_strategy(name)
        point = transfer_point(float(centre["lr"]), float(centre["wd"]), (s, base.model.width), (s, width), factors)
        transferred[name] = {
            axis: format_power(2.0 ** round(math.log2(value))) for axis, value in zip(("lr", "wd"), point, strict=True)
        }
    return transferred


def parse_axis(text: str, option: str) -> object:
    """Convert a range from the command line into the form of a grid file.

    Raises:
        InputError: it is not a range.
    """
    axis = parse_range(text, option)
    return {"range": [axis["low"], axis["high"]], "step": axis["step"]} if isinstance(axis, dict) else axis


def render_template(grid: Mapping[str, Any], path: Path, options: Mapping[Key, str]) -> tuple[str, SweepSpec]:
    """Return the text of the grid file, with comments, and the SweepSpec that it resolves to; write nothing.

    Args:
        grid: content of the file.
        path: where it is going to be written, for error messages.
        options: options as typed, by the keys of the file that they set, for error messages.

    Raises:
        InputError: all problems of the content.
    """
    kind = grid["task"] if isinstance(grid["task"], str) else grid["task"]["kind"]
    choices = {
        "models": ", ".join(
            n for n, of in named_models().items() if not TASKS[kind].incompatibilities(task_spec(kind), of, 2)
        ),
        "tasks": ", ".join(name for name in TASKS if TASKS[name].sample == TASKS[kind].sample),
        "variable": data_env(_data_kind(task_spec(kind))),
    }
    text = "\n".join([*HEAD, *_lines(grid, choices), ""])
    # Parsed from the text, not from `grid`: what is returned is what the file says.
    return text, make_sweep_spec(parse_yaml(text, str(path)), path, options=options)


def next_commands(sweep_spec: SweepSpec, path: Path, data: str | None) -> list[str]:
    """Return a line for each thing to know and do, once a grid file is written for these data."""
    recipe, lines = as_transformer(sweep_spec.recipe), list[str]()
    runs = len(sweep_spec.specs())
    lines.append(f"wrote {path}: {format_count(runs, 'run')} of {format_count(recipe.steps, 'step')} to begin with")
    task = recipe.task
    if isinstance(task, ImageTask) and task.split_seed is not None:
        lines.append(
            f"{data} has no validation images: {task.val_size} of its {task.train_size + task.val_size} "
            f"images are held out, the same ones in every run; split_seed, val_size and train_size in {path} set which"
        )
    options = f"--grid {shlex.quote(str(path))}"  # the printed commands can be pasted
    if kind := recipe.data_kind:
        options += "" if configured_data(kind, sweep_spec.data) else " --data PATH"
        not_read = ": init has not read them" if data and not Path(data).exists() else ""
        lines.append(f"`ettsweep doctor {options}` checks the data{not_read}")
    lines.append(f"`ettsweep grid {options} --dry-run` prints the plan, `ettsweep grid {options}` trains it")
    return lines


def _lines(grid: Mapping[str, Any], choices: Mapping[str, str], indent: str = "") -> Iterator[str]:
    """Yield the lines of a grid file: comments to the right if they fit into 120 columns, else above."""
    for key, value in grid.items():
        template = COMMENTS.get(key, "" if indent else f"the same for --set optimizer={key.removeprefix('centre_')}")
        comment = f"# {template.format(**choices)}" if template else ""
        is_block = isinstance(value, Mapping) and (key in ("task", "recipe") or key.startswith("centre"))
        line = f"{indent}{key}:" if is_block else f"{indent}{key}: {one_line_yaml(value)}"
        # Commented out, so that --data and the variable apply until a path is filled in.
        line = "# data: PATH" if (key, value) == ("data", None) else line
        yield from with_comment(line, comment)
        yield from _lines(value, choices, "  ") if is_block else ()


def with_comment(line: str, comment: str) -> list[str]:
    """Return a line of a grid file with its comment, which begins with #: to the right if that fits, else above."""
    commented = f"{line:<38}  {comment}".rstrip()
    indent = line[: len(line) - len(line.lstrip())]
    return [commented] if len(commented) <= 120 else [f"{indent}{comment}", line]


def one_line_yaml(value: object) -> str:
    """Return a value as YAML on one line."""
    # safe_dump ends a scalar with a document end marker.
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").strip()
