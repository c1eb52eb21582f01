"""Grid file for a user's own command, with a comment for each key, and what is still missing in it."""

import contextlib
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ettsweep.config import parse_yaml
from ettsweep.console import format_count
from ettsweep.doctor.command_words import OwnCommand, joined
from ettsweep.doctor.grid_template import one_line_yaml, with_comment
from ettsweep.errors import InputError
from ettsweep.powers import format_power
from ettsweep.readers.looking import Look, looks
from ettsweep.readers.source import listed
from ettsweep.runs.score_spec import usual_mode
from ettsweep.schema import Key
from ettsweep.study.grid_file import make_sweep_spec

HEAD = (
    "# Written by `ettsweep init --command`. `ettsweep try FILE` tries it, `ettsweep grid --grid FILE` trains it.",
    "# docs/own-code.md has all keys of run, docs/readers.md those of a reader.",
)

COMMENTS = {
    "command": "split as by a shell, without one; each run has its own {lr}, {wd}, {seed} and folder {out}",
    "workdir": "where the command runs, relative to this file",
    "env": "environment variables",
    "reader": "what finds its metrics: a name of `ettsweep read`, or a regular expression",
    "score": "what verdicts compare; also take: best, last or {step: 5000}",
    "centre": "centre of the ranges",
    "lr": "log2 from the centre, multiples of the step; or fixed",
    "wd": "the same",
    "seeds": "the first seeds; more are added to the runs that decide the verdict",
    "criterion": "by how much a neighbour of the optimum may be better; also rule: bound or paper, confidence: 0.95",
}
"""Comment for each key of the template."""

OPTIONAL = (
    ("# code: [conf.yaml]", "# further files whose changes make new runs, such as those a framework reads by itself"),
    ("# try: --max-steps 50", "# words that make a run short, for `ettsweep try`"),
    ("# steps: 5000", "# number of the last step, for progress and time left"),
    (r"# resume: {checkpoint: '{out}/step-(?P<step>\d+)\.pt', add: '--resume {checkpoint}'}", "# else from the start"),
)
"""Lines with keys that init cannot know, commented out."""

MISSING = {
    "seed": "no seed in the command: add an option that sets it, and {seed} where its value stands; without, repeats "
    "are copies, and no bound can be had: `seeds: none` says so, and has one run a point",
    "wd": "no wd in the command: it stays as the program has it; to search it too, add an option that sets it to "
    "--command",
    "out": "no output folder in the command: add an option that sets it, with {out}; without, runs may write over "
    "each other's files, and readers do not find them",
}
"""What to do about placeholders that a command has not."""

MANY_RUNS = 300
"""Number of runs above which a sampler is proposed instead of the whole grid."""


@dataclass(frozen=True)
class Metrics:
    """What finds the metrics of a command, and which of them is its score.

    Attributes:
        reader: its name; None if none sees a score.
        score: metric and mode; None if it is unknown.
        seen: what readers see, in words; empty for nothing.
    """

    reader: str | None = None
    score: Mapping[str, str] | None = None
    seen: str = ""


def find_metrics(command: OwnCommand) -> Metrics:
    """Try all readers on the command's output folder if it is there, else on the current one unless it is large.

    The readers of trainers come first; of the metrics, a validation loss. Nothing is taken whose mode its name does not
    tell, unless the command states its score.
    """
    folder = Path(command.out or "") if _is_folder(command.out) else Path()
    is_tried = folder != Path() or _is_small(folder)
    usable = [each for each in looks(folder) if each.rows and not each.problem] if is_tried else []
    for each in usable:
        if score := _score_of(each, command.score):
            files = listed([str(folder / name) for name in each.files], 3)
            return Metrics(each.reader.name, score, f"reader {each.reader.name} sees {score['name']} in {files}")
    names = {name for each in usable for name in each.metrics}
    readers = ", ".join(each.reader.name for each in usable)
    seen = f"{readers} see {listed(sorted(names), 6)}" if names else ""
    return Metrics(None, command.score, seen)


def _is_folder(name: str | None) -> bool:
    try:
        return bool(name) and Path(name or "").is_dir()
    except OSError:  # such as a name that is too long
        return False


def _is_small(folder: Path) -> bool:
    """Whether all files below a folder are read in no time, whatever they are."""
    size = 0
    for count, path in enumerate(folder.rglob("*")):
        with contextlib.suppress(OSError):
            size += path.lstat().st_size
        if count > 1_000 or size > 20 * 2**20:
            return False
    return True


def _score_of(look: Look, stated: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the score among the metrics of a look: the stated one, else a validation loss, else one to maximise."""
    names = look.metrics.keys() - look.conflicts.keys()
    if stated:
        return stated if stated["name"] in names else None
    modes = {name: usual_mode(name) for name in names if "val" in name.lower()}
    ranked = sorted((mode != "min", "loss" not in name, len(name), name) for name, mode in modes.items() if mode)
    return {"name": ranked[0][-1], "mode": "max" if ranked[0][0] else "min"} if ranked else None


# --- the file ---------------------------------------------------------------------------------------------------------


def propose_axis(numbers: Iterable[float]) -> tuple[str | float, object]:
    """Return centre and range of lr or wd: the number itself, or the middle of a range, which is a power of two.

    The range covers all numbers, in steps of a factor of 2. Zero has no log2, and is left out if there are others.
    """
    positive = sorted(number for number in numbers if number > 0)
    if not positive:
        return 0, "fixed"
    low, high = math.log2(positive[0]), math.log2(positive[-1])
    if low == high:
        power = format_power(positive[0])
        return power if "^" in power else positive[0], {"range": [-2, 2], "step": 1}
    middle = round((low + high) / 2)
    # Rounded: log2 of a power of two is no whole number on every machine.
    bounds = [math.floor(round(low - middle, 9)), math.ceil(round(high - middle, 9))]
    return f"2^{middle}", {"range": bounds, "step": 1}


def propose_seeds(numbers: Iterable[float] = (0,)) -> list[int]:
    """Return the seeds of a list, or three from the one in the command on."""
    seeds = list(dict.fromkeys(max(0, int(number)) for number in numbers))
    return seeds if len(seeds) > 1 else [seeds[0] + count for count in range(3)]


def propose_command_grid(
    command: OwnCommand, metrics: Metrics, path: Path, axes: Mapping[str, object]
) -> dict[str, Any]:
    """Return the content of the grid file; arguments are those of `render_command_template`."""
    workdir = os.path.relpath(Path.cwd(), path.parent.resolve())
    optional = {"workdir": workdir if workdir != "." else None, "env": dict(command.env)}
    proposed = {name: propose_axis(command.numbers[name]) for name in ("lr", "wd") if name in command.numbers}
    ranges = {"wd": "fixed", **{name: axis for name, (_, axis) in proposed.items()}, **axes}
    return {
        "run": {
            "command": joined(command.words),
            **{key: value for key, value in optional.items() if value},
            "reader": metrics.reader,
            "score": dict(metrics.score) if metrics.score else None,
        },
        "centre": {name: centre for name, (centre, _) in proposed.items()},
        "lr": ranges["lr"],
        "wd": ranges["wd"],
        "seeds": propose_seeds(command.numbers.get("seed", (0,))),
        "criterion": {"margin": "2%"},
    }


def render_command_template(
    command: OwnCommand, metrics: Metrics, path: Path, axes: Mapping[str, object], options: Mapping[Key, str]
) -> tuple[str, int]:
    """Return the text of the grid file and its number of runs; write nothing.

    What is not known yet is a line that begins with `# TODO`.

    Args:
        command: with its placeholders.
        metrics: its reader and score, as far as they are known.
        path: where the file is going to be.
        axes: ranges of lr and wd that replace those proposed.
        options: options as typed, by the keys of the file that they set, for error messages.

    Raises:
        InputError: all other problems of the content.
    """
    if not path.parent.is_dir():
        raise InputError(f"--out: there is no folder {path.parent}")
    if axes.get("wd", "fixed") != "fixed" and "wd" not in command.numbers:
        raise InputError(f"--wd-range: {MISSING['wd']}")
    text = "\n".join([*HEAD, *_lines(propose_command_grid(command, metrics, path, axes), command, metrics), ""])
    data = parse_yaml(text, str(path))
    stand_ins: dict[str, object] = {
        "score": {"name": "val_loss", "mode": "min"}
    }  # all else is checked before it is known
    if "seed" not in command.placeholders:
        stand_ins["uses"] = "env"
    sweep_spec = make_sweep_spec(data | {"run": stand_ins | data["run"]}, path, options=options)
    return text, len(sweep_spec.specs())


def _lines(grid: Mapping[str, Any], command: OwnCommand, metrics: Metrics) -> Iterator[str]:
    """Yield the lines of the grid file."""
    yield "run:"
    if "seed" not in command.placeholders:
        yield "  # TODO: {seed} is missing: add an option that sets it, such as --seed {seed}, or say `seeds: none`"
    for key, value in grid["run"].items():
        if value is not None:
            yield from with_comment(f"  {key}: {one_line_yaml(value)}", f"# {COMMENTS[key]}")
        elif key == "reader":
            yield "  # `ettsweep read FOLDER` tells which readers see metrics; else the program says them itself"
            yield "  # reader: jsonl"
        else:
            seen = f": {metrics.seen}" if metrics.seen else ""
            yield f"  # TODO: the metric that verdicts compare{seen}"
            yield from with_comment("  # score: {name: val_loss, mode: min}", f"# {COMMENTS[key]}")
    for line, comment in OPTIONAL:
        yield from with_comment(f"  {line}", comment)
    for key, value in grid.items():
        if key != "run":
            yield from with_comment(f"{key}: {one_line_yaml(value)}", f"# {COMMENTS[key]}")


def notes(command: OwnCommand, metrics: Metrics, path: Path, runs: int) -> list[str]:
    """Return a line for each thing to know and do, once the file is written."""
    file = shlex.quote(str(path))
    lines = [f"wrote {path}: {format_count(runs, 'run')} to begin with"]
    if metrics.seen:
        lines.append(metrics.seen)
    lines += [text for name, text in MISSING.items() if name not in command.placeholders]
    if 0 in command.numbers.get("wd", ()):
        lines.append("wd 0 has no log2: it is fixed if there is no other; a positive number gives it a range")
    if metrics.reader is None:
        folder = shlex.quote(command.out) if command.out else "FOLDER"
        lines.append(
            f"no reader: the program says its metrics itself, see docs/own-code.md, or `ettsweep read {folder}`, after "
            "a run by hand, tells which readers see them"
        )
    if metrics.score is None:
        lines.append(f"no score: name it in {path}, such as score: {{name: val_loss, mode: min}}")
    if runs > MANY_RUNS:
        lines.append(
            f"many runs: --lr-range and --wd-range narrow them, `ettsweep search --grid {file}` picks among them"
        )
    is_ready = metrics.score and "seed" in command.placeholders
    first = "" if is_ready else f"fill in what {path} has as TODO; then "
    lines.append(
        f"{first}`ettsweep try {file}` sees in minutes whether seeds, checkpoints and signals work, "
        f"`ettsweep grid --grid {file}` trains it"
    )
    return lines
