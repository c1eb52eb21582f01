"""Find lr, wd, seed and the output folder in the words of a command."""

import ast
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ettsweep.config import read_yaml
from ettsweep.errors import InputError
from ettsweep.kinds.template import PLACEHOLDERS, names_in, parse, split_words
from ettsweep.runs.score_spec import usual_mode

NAMES = {
    "lr": ("lr", "learning_rate", "base_lr"),
    "wd": ("wd", "weight_decay"),
    "seed": ("seed", "random_seed", "rng_seed", "manual_seed", "seed_everything"),
    "out": (
        *("out", "out_dir", "outdir", "output", "output_dir", "save", "save_dir", "run_dir", "hydra.run.dir"),
        *("work_dir", "workdir", "log_dir", "logdir", "default_root_dir", "dump_folder"),
    ),
}
"""Names of options by placeholder; dotted names may end with them."""

_OPTION = re.compile(r"(?s)([-+]*[A-Za-z_][\w.-]*)=(.*)")
"""--name=value, or name=value as for Hydra."""

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

_ENVIRONMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")

NO_LR = (
    "--command: has no number of lr, such as `--lr 3e-4`, `--learning-rate=3e-4` or `optim.lr=3e-4`; if a file or the "
    "code sets it, see `files` and `uses: env` in docs/own-code.md"
)


@dataclass(frozen=True)
class OwnCommand:
    """A command with placeholders in place of its values.

    Attributes:
        words: with {lr}, {wd}, {seed} and {out} for their values, and other braces doubled.
        numbers: the values of lr, wd and seed; several of a sweep file.
        out: the folder in place of {out}; None without one.
        env: variables that stood before the command.
        score: metric and mode, if a sweep file states them.
        vary: further parameters of a sweep file that have several values.
    """

    words: tuple[str, ...]
    numbers: Mapping[str, Sequence[float]]
    out: str | None
    env: Mapping[str, str]
    score: Mapping[str, str] | None
    vary: Mapping[str, Sequence[str | int | float]] = field(default_factory=dict)

    @property
    def placeholders(self) -> set[str]:
        """Names of the placeholders of its words."""
        return names_in(self.words, (*PLACEHOLDERS, *self.vary))

    @property
    def name(self) -> str:
        """One word for it, for the name of a file."""
        scripts = [Path(word).stem for word in self.words if word.endswith((".py", ".sh"))]
        modules = [word for flag, word in zip(self.words, self.words[1:], strict=False) if flag == "-m"]
        return [*scripts, *(module.rpartition(".")[2] for module in modules), Path(self.words[0]).name][0]


def read_command(text: str) -> OwnCommand:
    """Find lr, wd, seed and the output folder in a command, or in a sweep file of Weights & Biases.

    Args:
        text: the command as typed in a shell, or the name of a YAML file.

    Raises:
        InputError: it needs a shell, has no number of lr, or has several values instead of one.
    """
    try:
        words = split_words(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"--command: {error}") from None
    numbers, score, vary = dict[str, Sequence[float]](), None, dict[str, Sequence[str | int | float]]()
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        words, numbers, vary, score = _sweep_file(read_yaml(Path(words[0])), words[0])
    env = dict[str, str]()
    while words and (variable := _ENVIRONMENT.fullmatch(words[0])):
        env[variable[1]] = _escaped(variable[2])
        words = words[1:]
    if not words:
        raise InputError(f"--command: a program and its arguments are expected, got {text!r}")
    replaced, found = list[str](), dict[str, dict[str, str | float]]()  # the values by their text in the command
    for name, sign, value in _options(words):
        placeholder, place = _placeholder_of(name), _escaped(value, tuple(vary))
        if placeholder and (known := _value(placeholder, value)) is not None:
            found.setdefault(placeholder, {})[name + sign + value] = known
            is_file = placeholder == "out" and value != known
            place = f"{{out}}/{_escaped(Path(value).name)}" if is_file else f"{{{placeholder}}}"
        replaced += [name, place] if sign == " " else [name + sign + place]
    for placeholder, values in found.items():
        if len(set(values.values())) > 1:
            raise InputError(
                f"--command: {' and '.join(values)} would all be {{{placeholder}}}; keep one in the command, and add "
                f"the others to the new file, such as {'{lr*0.1}' if placeholder == 'lr' else '{out}/more'}"
            )
    single = {name: next(iter(values.values())) for name, values in found.items()}
    numbers |= {name: (value,) for name, value in single.items() if isinstance(value, float)}
    if "lr" not in numbers and (options := _lr_options(words)):
        raise InputError(f"--command: has no number of lr; add one of the program's options {', '.join(options)}")
    _check_numbers(numbers, names_in(replaced, (*PLACEHOLDERS, *vary)))
    out = single.get("out")
    return OwnCommand(tuple(replaced), numbers, None if out is None else str(out), env, score, vary)


def joined(words: Sequence[str]) -> str:
    """Return the words as one text for a shell; placeholders need no quotes."""
    return " ".join(word if re.fullmatch(r"[\w@%+=:,./{}\[\]-]+", word) else shlex.quote(word) for word in words)


def _check_numbers(numbers: Mapping[str, Sequence[float]], placeholders: set[str]) -> None:
    if "lr" not in numbers:
        raise InputError(NO_LR)
    if "wd" in placeholders and "wd" not in numbers:
        raise InputError("--command: replace {wd} by the number at which the search begins")
    if min(numbers["lr"]) <= 0:
        raise InputError(f"--command: lr: a positive number is expected, got {min(numbers['lr']):g}")
    if min(numbers.get("wd", (0,))) < 0:
        raise InputError(f"--command: wd: a number from 0 on is expected, got {min(numbers['wd']):g}")


def _options(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, sign, value) of each option that has a value, ("", "", word) for all other words."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if option := _OPTION.fullmatch(word):
            yield option[1], "=", option[2]
        elif word.startswith("-") and _placeholder_of(word) and rest and not rest[0].startswith("-"):
            yield word, " ", rest.pop(0)
        else:
            yield "", "", word


def _placeholder_of(option: str) -> str | None:
    name = option.lstrip("-+").lower().replace("-", "_")
    last = name.rpartition(".")[2]
    return next((each for each, names in NAMES.items() if name in names or last in names), None)


def _value(placeholder: str, text: str) -> str | float | None:
    """Return the number or folder that a placeholder can replace; None for other values."""
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if placeholder != "out":
        return number if math.isfinite(number) else None
    if not math.isnan(number) or "{" in text or text.lower() in ("", "true", "false"):  # --save 100: now and then
        return None
    path = Path(text)
    is_file = re.fullmatch(r"\.[A-Za-z]\w*", path.suffix) and not path.is_dir()
    return str(path.parent) if is_file else text


def _lr_options(words: Sequence[str]) -> list[str]:
    """Return the options of a Python program that look like lr, with their defaults, from its source."""
    paths = [word if word.endswith(".py") else f"{word.replace('.', '/')}.py" for word in words]  # or after -m
    found = dict[str, str]()
    for path in map(Path, paths):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if function.startswith("DEFINE_"):  # absl: its second argument is the default
                names, defaults = [f"--{name}" for name in names[:1]], call.args[1:2]
            elif function.lower() in ("add_argument", "option"):
                defaults = [keyword.value for keyword in call.keywords if keyword.arg == "default"]
            else:
                continue
            for name in names:
                parts = re.split(r"[^a-z]+", name.lower())
                if name.startswith("--") and ("lr" in parts or {"learning", "rate"} <= {*parts}):
                    value = defaults[0].value if defaults and isinstance(defaults[0], ast.Constant) else None
                    found[name] = f"`{name} {value}`" if isinstance(value, int | float) else f"`{name}`"
    return [found[name] for name in found if _placeholder_of(name) == "lr"] or list(found.values())


def _escaped(word: str, further: tuple[str, ...] = ()) -> str:
    """Return a word with doubled braces, unless it has placeholders."""
    try:
        parse(word, (*PLACEHOLDERS, *further))
    except ValueError:
        return word.replace("{", "{{").replace("}", "}}")
    return word


# --- sweep files of Weights & Biases ----------------------------------------------------------------------------------


def _sweep_file(
    data: Mapping[str, Any], file: str
) -> tuple[list[str], dict[str, Sequence[float]], dict[str, Sequence[str | int | float]], dict[str, str] | None]:
    """Return the command of a sweep file of Weights & Biases, ranges, variants, and metric and mode.

    Raises:
        InputError: it is not such a file, or has features that a command lacks.
    """
    parameters, command = data.get("parameters"), data.get("command", ["${interpreter}", "${program}", "${args}"])
    is_list = isinstance(command, list) and all(isinstance(each, str) for each in command)
    if not (isinstance(parameters, dict) and is_list and data.keys() & {"program", "command"}):
        raise InputError(
            f"{file}: not a sweep file of Weights & Biases, with program and parameters; or pass a command, such as "
            "--command 'python train.py --lr 3e-4'"
        )
    arguments, numbers = list[str](), dict[str, Sequence[float]]()
    vary = dict[str, Sequence[str | int | float]]()
    for name, parameter in parameters.items():
        values, placeholder = _parameter(f"{file}: parameters: {name}", parameter), _placeholder_of(str(name))
        if len(values) == 1:
            arguments.append(f"{name}={values[0]}")
        elif placeholder in ("lr", "wd", "seed") and all(isinstance(each, int | float) for each in values):
            numbers[placeholder] = values
            arguments.append(f"{name}={{{placeholder}}}")
        elif "values" in parameter:
            plain = re.sub(r"[^\w.]", "_", str(name))
            vary[plain] = [str(each) if isinstance(each, bool) else each for each in values]
            arguments.append(f"{name}={{{plain}}}")
        else:
            raise InputError(f"{file}: parameters: {name} has a range; list its values, and each has a lattice")
    meanings = {
        "${env}": [],
        "${interpreter}": ["python"],
        "${program}": [str(data.get("program", ""))],
        "${args}": [f"--{argument}" for argument in arguments],
        "${args_no_hyphens}": arguments,
    }
    words = [word for each in command for word in meanings.get(each, [each])]
    if unknown := [word for word in words if "${" in word or not word]:
        raise InputError(f"{file}: command: {unknown[0] or '${program}'} is unknown; pass the command itself")
    metric = data.get("metric")
    if not (isinstance(metric, dict) and "name" in metric):
        return words, numbers, vary, None
    name, mode = str(metric["name"]), "max" if metric.get("goal") == "maximize" else "min"
    return words, numbers, vary, {"name": name, "mode": mode if usual_mode(name) in (mode, None) else f"{mode}!"}


def _parameter(location: str, parameter: object) -> list[Any]:
    """Return the values of a parameter: one, several, or the ends of a range."""
    fields = parameter if isinstance(parameter, dict) else {}
    values = [fields["value"]] if "value" in fields else fields.get("values", [fields.get("min"), fields.get("max")])
    if (
        not isinstance(values, list)
        or not values
        or any(each is None or isinstance(each, dict | list) for each in values)
    ):
        raise InputError(f"{location}: value, values, or min and max are expected, got {parameter!r}")
    if fields.get("distribution") in ("log_uniform", "q_log_uniform"):
        try:
            return [math.exp(value) for value in values]  # the ends are exponents
        except (TypeError, OverflowError):
            raise InputError(f"{location}: exponents are expected, got {parameter!r}") from None
    return values
