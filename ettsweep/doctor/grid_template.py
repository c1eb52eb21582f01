"""Commented grid files to begin with, for a shipped model or a user's command."""

import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template

import yaml

from ettsweep.config import parse_yaml
from ettsweep.console import format_count
from ettsweep.doctor.command_words import OwnCommand, joined
from ettsweep.errors import InputError
from ettsweep.kinds.transformer import as_transformer
from ettsweep.powers import format_power
from ettsweep.readers.looking import looks
from ettsweep.runs.score_spec import usual_mode
from ettsweep.shipped_files import shipped
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.strategies.strategy import parse_strategy, transfer_point
from ettsweep.study.grid_file import load_sweep_spec, make_sweep_spec
from ettsweep.trainer.models.registry import ARCHITECTURES, model_spec

SHIPPED_GRIDS = {name: entry.grids.get(name, name) for entry in ARCHITECTURES.values() for name in entry.presets}
"""Shipped grids to make templates of, by model."""

COMMAND_TEMPLATE = Template(
    r"""
# Written by `ettsweep init --command`. `ettsweep try FILE` checks the program, `ettsweep grid FILE` trains it.
# docs/own-code.md has all keys of run, docs/readers.md those of a reader.
run:
  # No shell reads it; each run has its own {lr}, {wd}, {seed} and folder {out}.
  command: $command
$more
  # code: [conf.yaml]                   # further files whose changes make new runs
  # try: --max-steps 50                 # words that make a run short, for `ettsweep try`
  # steps: 5000                         # number of the last step, for progress and time left
  # resume: {checkpoint: '{out}/step-(?P<step>\d+)\.pt', add: '--resume {checkpoint}'}  # else from the start
${vary}centre: $centre
lr: $lr                                 # log2 from the centre, multiples of the step; or fixed
wd: $wd
seeds: $seeds                           # at first; ettsweep adds more where they narrow the bound
criterion: {margin: 2%}                 # how much better a neighbour may be; also rule, confidence
""".lstrip()
)

TODO = {
    "seed": "TODO: {seed} is missing: add an option that sets it, or write `seeds: none`",
    "reader": "reader: jsonl                       # `ettsweep read FOLDER` lists the metrics of each reader",
    "score": "TODO: the metric to compare, such as score: {name: val_loss, mode: min}",
}
"""Lines for missing values."""

MISSING = {
    "seed": "no seed in the command: add an option, such as --seed {seed}, or write `seeds: none` for one run a point "
    "and no bound",
    "wd": "no wd in the command: to search it too, add an option for it",
    "out": "no output folder in the command: add an option with {out}, or runs may overwrite each other's files",
}
"""Advice on missing placeholders of a command."""


# --- models that ship -------------------------------------------------------------------------------------------------


def model_template(model: str, path: Path) -> tuple[str, list[str]]:
    """Return the shipped grid for a model, and lines of advice; write nothing.

    Other models get the grid of a model of their kind, with the centre for their width.

    Raises:
        InputError: the model is unknown.
    """
    base = model if model in SHIPPED_GRIDS else "vit-digits"
    width = model_spec(model, like=base).width
    shipped_path = shipped("grids") / f"{SHIPPED_GRIDS[base]}.yaml"
    text, recipe = shipped_path.read_text(encoding="utf-8"), as_transformer(load_sweep_spec(shipped_path).recipe)
    assert recipe is not None
    if model_spec(model, like=base) != recipe.model:
        text = re.sub(r"(?m)^model: .*$", f"model: {model}", text)
        blocks = re.split(r"(?m)^(?=centre)", text)
        text = "".join(_mapped_centres(block, recipe.optimizer.kind, recipe.model.width, width) for block in blocks)
        text = f"# The shipped grid for {recipe.info.labels.model}, with the centre for the width of {model}.\n{text}"
    sweep_spec = make_sweep_spec(parse_yaml(text, str(path)), path)
    file = shlex.quote(str(path)) + (" --data PATH" if recipe.info.data_kind else "")
    runs, steps = len(sweep_spec.specs()), sweep_spec.recipe.info.steps or 0
    return text, [
        f"wrote {path}: {format_count(runs, 'run')} of {format_count(steps, 'step')} to begin with",
        f"`ettsweep grid {file} --dry-run` prints the plan, `ettsweep grid {file}` trains it",
    ]


def _mapped_centres(block: str, optimizer: str, base_width: int, width: int) -> str:
    """Return a block of centres for another width, in powers of two; any other text as it is."""
    if (head := re.match(r"centre(?:_(\w+))?:", block)) is None:
        return block
    # Optimizers scale differently with the width.
    factors = OPTIMIZERS[head[1] or optimizer].factor_rule

    def mapped(line: re.Match[str]) -> str:
        s = parse_strategy(line[1])
        point = transfer_point(float(line[2]), float(line[3]), (s, base_width), (s, width), factors)
        lr, wd = (format_power(2.0 ** round(math.log2(value))) for value in point)
        return f"  {line[1]}: {{lr: {lr}, wd: {wd}}}"

    return re.sub(r"(?m)^  (\S+): \{lr: (\S+), wd: (\S+)\}.*$", mapped, block)


# --- a user's own command ---------------------------------------------------------------------------------------------


def command_template(command: OwnCommand, path: Path) -> tuple[str, list[str]]:
    """Return the text of a grid file for a command, and lines of advice; write nothing.

    Raises:
        InputError: all problems of the command.
    """
    if not path.parent.is_dir():
        raise InputError(f"--out: there is no folder {path.parent}")
    reader, score = _find_metrics(command)
    lacks = [name for name in MISSING if name not in command.placeholders]
    workdir = os.path.relpath(Path.cwd(), path.parent.resolve())
    stated = {"workdir": workdir if workdir != "." else "", "env": dict(command.env), "reader": reader, "score": score}
    more = [f"  {key}: {_one_line_yaml(value)}" for key, value in stated.items() if value]
    more += [f"  # {line}" for name, line in TODO.items() if (not stated[name] if name in stated else name in lacks)]
    axes = {name: _axis(command.numbers[name]) for name in ("lr", "wd") if name in command.numbers}
    seeds = sorted({max(0, int(seed)) for seed in command.numbers.get("seed", (0,))})
    values = {
        "command": joined(command.words),
        "centre": {name: centre for name, (centre, _) in axes.items()},
        "lr": axes["lr"][1],
        "wd": axes["wd"][1] if "wd" in axes else "fixed",
        "seeds": seeds if len(seeds) > 1 else [seeds[0] + count for count in range(3)],
    }
    text = COMMAND_TEMPLATE.substitute(
        {name: _one_line_yaml(value) for name, value in values.items()},
        more="\n".join(more),
        vary=f"vary: {_one_line_yaml(dict(command.vary))}\n" if command.vary else "",
    )
    # Check all else before these are known.
    stand_ins = {"score": {"name": "val_loss", "mode": "min"}} | ({"uses": "env"} if "seed" in lacks else {})
    data = parse_yaml(text, str(path))
    runs = len(make_sweep_spec(data | {"run": stand_ins | data["run"]}, path).specs())
    notes = [f"wrote {path}: {format_count(runs, 'run')} to begin with", *(MISSING[name] for name in lacks)]
    if reader and score:
        notes.append(f"reader {reader} finds {score['name']} in {command.out}")
    if not score:
        notes.append(f"no score: set it in {path}; `ettsweep read FOLDER` lists the metrics of a run of yours")
    if 0 in command.numbers.get("wd", ()):
        notes.append("wd 0 has no log2: wd is fixed unless you set another value")
    first, file = f"fill in each TODO of {path}, then " if "TODO" in text else "", shlex.quote(str(path))
    notes.append(f"{first}`ettsweep try {file}` checks the program, `ettsweep grid {file}` trains the grid")
    return text, notes


def _find_metrics(command: OwnCommand) -> tuple[str | None, dict[str, str] | None]:
    """Return a reader that finds a validation metric in a user's run, and that metric as the score.

    Of several, prefer a loss. Keep a score that the command states.
    """
    score = dict(command.score) if command.score else None
    for look in looks(Path(command.out)) if command.out and Path(command.out).is_dir() else ():
        names = sorted(look.metrics.keys() - look.conflicts.keys(), key=len) if not look.problem else []
        if score and score["name"] in names:
            return look.reader.name, score
        modes = {name: usual_mode(name) for name in names if "val" in name.lower()}
        for mode in ("min", "max") if not score else ():
            if fitting := [name for name in modes if modes[name] == mode]:
                return look.reader.name, {"name": min(fitting, key=lambda name: "loss" not in name), "mode": mode}
    return None, score


def _axis(numbers: Sequence[float]) -> tuple[str | float, object]:
    """Return centre and range of lr or wd: around one number, or over all numbers, in steps of a factor of 2."""
    positive = [number for number in numbers if number > 0]
    if not positive:
        return 0, "fixed"
    low, high = math.log2(min(positive)), math.log2(max(positive))
    if low == high:
        power = format_power(positive[0])
        return power if "^" in power else positive[0], {"range": [-2, 2], "step": 1}
    middle = round((low + high) / 2)
    # Round: on some machines, log2 of a power of two is not a whole number.
    bounds = [math.floor(round(low - middle, 9)), math.ceil(round(high - middle, 9))]
    return f"2^{middle}", {"range": bounds, "step": 1}


def _one_line_yaml(value: object) -> str:
    # safe_dump ends a scalar with a document end marker.
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").strip()
