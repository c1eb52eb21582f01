"""A first grid file: the shipped grid for a model, with what fits the data and a comment for each key."""

import math
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ettsweep.config import parse_yaml, read_yaml
from ettsweep.errors import DataMissingError, InputError, unknown_name
from ettsweep.powers import power
from ettsweep.runs.spec import Recipe, TaskSpec
from ettsweep.shipped_files import shipped
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.strategies.strategy import carry_point, parse_strategy
from ettsweep.study.criterion import MARGINS
from ettsweep.study.grid_file import load_request, make_request, parse_range
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.models.registry import model_spec, named_models
from ettsweep.trainer.tasks.data_location import data_env, resolve
from ettsweep.trainer.tasks.images.image_data import guess
from ettsweep.trainer.tasks.registry import TASKS, check_data, check_fits, task_kind, task_spec
from ettsweep.trainer.tasks.text.corpus_manifest import is_corpus, read_manifest
from ettsweep.trainer.tasks.text.documents import is_text

GRIDS = {
    "vit-b16": "vit-b16",
    "vit-s16": "vit-b16",
    "vit-ti16": "vit-b16",
    "vit-cifar10": "vit-cifar10",
    "vit-cifar100": "vit-cifar100",
    "vit-digits": "vit-digits",
    "bart-large": "bart-large",
    "r2c2": "r2c2",
    "encdec-tiny": "encdec-pydoc",
    "encdec-small": "encdec-pydoc",
}
"""The shipped grid that a template for a model starts from."""

PROPOSALS: dict[str, tuple[tuple[float, str], ...]] = {
    "digits": ((0, "vit-digits"),),
    "imagenet": ((5e5, "vit-b16"), (5e4, "vit-s16"), (0, "vit-ti16")),
    "cifar10": ((0, "vit-cifar10"),),
    "cifar100": ((0, "vit-cifar100"),),
    "pydoc": ((0, "encdec-tiny"),),
    "text": ((1e9, "bart-large"), (1e7, "encdec-small"), (0, "encdec-tiny")),
}
"""The model that is proposed for a task with so many images or tokens to train on, or more; the first, without data."""

BATCHES = 10
"""Of an epoch, at least: few images get smaller batches than those of the shipped grid."""

HEAD = (
    "# Written by `ettsweep init`. `ettsweep grid --grid FILE` trains it; with --dry-run, it prints the plan.",
    "# There, --set key=value sets any field of recipe, model and task: --set batch_size=32 --set model.depth=2",
)

COMMENTS = {
    "model": "{models}; or kind and fields of your own",
    "task": "{tasks}; or kind and fields of your own",
    "data": "where the data are; else --data or {variable} says it",
    "recipe": "what all runs share; another recipe makes other runs",
    "batch_size": "samples of a step, of all devices together",
    "precision": "fp32, tf32, bf16, or fp16 with loss scaling",
    "optimizer": "adamw or sgd, or kind and fields of it",
    "schedule": "epochs and warmup_epochs, or total_steps and warmup_steps; decay is cosine or linear",
    "centre": "where the search starts; what is not stated is mapped from what is",
    "lr": "log2 from the centre, multiples of the step; or fixed",
    "wd": "the same",
    "strategies": "of standard, ntk, hybrid, mup, or s=0.25 for any number from 0 to 1",
    "seeds": "to begin with: a race adds more where they decide",
    "criterion": "by how much a neighbour of the optimum may be better; also rule: bound or paper, confidence: 0.95",
}
"""What is said of each key."""


def propose(model: str | None = None, task: str | None = None, data: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return a name for a grid file for a model, a task or data, and what it says; what is not given is proposed.

    Data decide classes, vocabulary and numbers of samples, as far as a glance tells.

    Raises:
        InputError: there is no such model or task, or they do not go together.
        DataMissingError: there are no such data, or they are not the task's.
    """
    if model is not None and model not in GRIDS:
        raise unknown_name("model", model, GRIDS)
    data = resolve(data) if data else None
    if task is None and data:
        task = _task_of(data)
    chosen = None if task is None else task_spec(task)
    if chosen and data and task_kind(chosen).packaged:
        raise InputError(f"--data: task {task} has its data from a package, and reads no other")
    size = _size(chosen, data) if chosen and data else math.inf
    name = model or next(name for least, name in PROPOSALS[task or "digits"] if size >= least)
    grid = read_yaml(path := shipped("grids") / f"{GRIDS[name]}.yaml")
    base = load_request(path).recipe
    spec = base.task if chosen is None or task == base.task.kind else chosen
    wanted = model_spec(name)
    check_fits(spec, wanted, 2)
    if data:
        spec, wanted = task_kind(spec).fitted(spec, wanted, data)
        check_data(spec, wanted, data)
        task_kind(spec).check_counts(spec, wanted, data)
    recipe = {"precision": "fp32", "optimizer": "adamw", **grid["recipe"]}
    if samples := task_kind(spec).train_size:
        recipe["batch_size"] = min(recipe["batch_size"], 2 ** int(math.log2(max(2, samples(spec) / BATCHES))))
    fields = spec.model_dump(exclude_defaults=True, exclude={"kind"})
    own = {"kind": wanted.kind} | wanted.model_dump(exclude_defaults=True)
    return name if spec.kind in name else f"{name}-{spec.kind}", {
        "model": name if wanted == model_spec(name) else own,
        "task": {"kind": spec.kind} | fields if fields else spec.kind,
        **({} if task_kind(spec).packaged else {"data": data}),
        "recipe": {key: recipe[key] for key in ("batch_size", "precision", "optimizer", "schedule")},
        **{
            key: _carried(grid[key], key.removeprefix("centre_"), base, wanted.width)
            for key in grid
            if key.startswith("centre")
        },
        **{key: grid[key] for key in ("lr", "wd", "strategies", "seeds")},
        "criterion": grid.get("criterion", {"margin": f"{100 * MARGINS[task_kind(spec).score.metric]:g}%"}),
    }


def _task_of(data: str) -> str:
    """Return the task that data look like, at a glance.

    Raises:
        DataMissingError: they are not there, or are text that has not been tokenised.
    """
    path = Path(data)
    if is_corpus(path):
        return "text"
    if not (path.exists() or data.startswith("hfds/")):
        raise DataMissingError(f"--data: {path} does not exist")
    names = os.listdir(path) if path.is_dir() else [path.name]
    sides = [name for name in names if name.startswith(("train", "data")) and (path / name).is_dir()]  # of images
    if not sides and any(".parquet" not in name and is_text(name) for name in names):
        tokenise = f"`ettsweep data text --input {shlex.quote(str(path))} --out DIR`"
        raise DataMissingError(f"--data: {path} holds text: {tokenise} makes token shards of it, for --data DIR")
    return guess(data)


def _size(task: TaskSpec, data: str) -> float:
    """Return how many images or tokens there are to train on; of images, as far as a glance tells."""
    check_data(task, None, data)
    if task_kind(task).sample == "text":
        return read_manifest(Path(data)).train.tokens
    fitted, _ = task_kind(task).fitted(task, model_spec(PROPOSALS[task.kind][0][1]), data)
    samples = task_kind(task).train_size
    return samples(fitted) if samples else math.inf


def _carried(centres: Mapping[str, Any], key: str, base: Recipe, width: int) -> dict[str, Any]:
    """Return centres as theory carries them from the width of a recipe to another, there as powers of two.

    `key` is the optimizer that they are of; any other is that of the recipe.
    """
    if width == base.model.width:
        return dict(centres)
    factors = OPTIMIZERS.get(key, OPTIMIZERS[base.optimizer.kind]).factors
    carried = {}
    for name, at in centres.items():
        s = parse_strategy(name)
        point = carry_point(float(at["lr"]), float(at["wd"]), (s, base.model.width), (s, width), factors)
        carried[name] = {
            axis: power(2.0 ** round(math.log2(value))) for axis, value in zip(("lr", "wd"), point, strict=True)
        }
    return carried


def parse_axis(text: str, option: str) -> object:
    """Return an axis that is given as on the command line as a grid file has it.

    Raises:
        InputError: it is no range.
    """
    axis = parse_range(text, option)
    return {"range": [axis["low"], axis["high"]], "step": axis["step"]} if isinstance(axis, dict) else axis


def write_template(grid: Mapping[str, Any], path: Path) -> tuple[str, SweepSpec]:
    """Return what a grid says as the text of a file that is to lie at a path, and the request that it makes.

    Raises:
        InputError: all that is wrong with it.
    """
    kind = grid["task"] if isinstance(grid["task"], str) else grid["task"]["kind"]
    words = {
        "models": ", ".join(n for n, of in named_models().items() if not TASKS[kind].misfits(task_spec(kind), of, 2)),
        "tasks": ", ".join(name for name in TASKS if TASKS[name].sample == TASKS[kind].sample),
        "variable": data_env(kind),
    }
    text = "\n".join([*HEAD, *_lines(grid, words), ""])
    return text, make_request(parse_yaml(text, str(path)), path)


def _lines(grid: Mapping[str, Any], words: Mapping[str, str], indent: str = "") -> Iterator[str]:
    """Yield a line for each key, its comment beside it where there is room; recipe and centres are blocks of keys."""
    for key, value in grid.items():
        said = COMMENTS.get(key, "" if indent else f"the same for --set optimizer={key.removeprefix('centre_')}")
        comment = f"# {said.format(**words)}" if said else ""
        block = isinstance(value, Mapping) and (key in ("task", "recipe") or key.startswith("centre"))
        line = f"{indent}{key}:" if block else f"{indent}{key}: {_flow(value)}"
        line = "# data: PATH" if (key, value) == ("data", None) else line
        beside = f"{line:<38}  {comment}".rstrip()
        yield from [beside] if len(beside) <= 120 else [f"{indent}{comment}", line]
        yield from _lines(value, words, "  ") if block else ()


def _flow(value: object) -> str:
    """Return a value as YAML in a line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").strip()
