"""The words of a user's own command: which are lr, wd, seed and the folder that it writes to."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ettsweep.config import read_yaml
from ettsweep.errors import InputError
from ettsweep.runs.score_spec import usual_mode
from ettsweep.worker.command.template import names_in, parse, split_words

NAMES = {
    "lr": ("lr", "learning_rate", "base_lr"),
    "wd": ("wd", "weight_decay"),
    "seed": ("seed", "random_seed", "rng_seed", "manual_seed", "seed_everything"),
    "out": (
        *("out", "out_dir", "outdir", "output", "output_dir", "save", "save_dir", "run_dir", "hydra.run.dir"),
        *("default_root_dir", "dump_folder"),
    ),
}
"""Names of options by the placeholder that stands for their value; dotted names may end with them."""

_OPTION = re.compile(r"(?s)([-+]*[A-Za-z_][\w.-]*)(=|~(?=\w+\())(.*)")
"""--name=value, name=value as Hydra has it, or --name~prior(...) as Orion has it."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBERS = re.compile(rf"(\[)?\s*{_NUMBER}(?:\s*,\s*{_NUMBER})*\s*(?(1)\])")
_PRIOR = re.compile(r"(?:tag\(\s*log\s*,\s*)?(?:loguniform|uniform|interval|choices?)\((.*?)(?:,\s*\w+\s*=[^()]*)?\)+")
"""A range or a list as Orion and Hydra's sweepers write it: loguniform(1e-5, 1e-1, precision=3)."""

_ENVIRONMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")

NO_LR = (
    "--command: no number of lr in the command; `--lr 3e-4`, `--learning-rate=3e-4`, `optim.lr=3e-4` have one, and "
    "`--lr~'loguniform(1e-5, 1e-1)'` or `lr=1e-3,1e-2` a range; where it stands in a file or in the code, see `files` "
    "and `uses: env` in docs/own-code.md"
)


@dataclass(frozen=True)
class OwnCommand:
    """A command with placeholders in place of its values.

    Attributes:
        words: with {lr}, {wd}, {seed} and {out} where their values stood; braces that are no placeholders are doubled.
        numbers: what stood in place of {lr}, {wd} and {seed}: a number, several, or the ends of a range.
        out: the folder that stood in place of {out}; None for none.
        env: variables that stood before the command.
        score: metric and mode, where a sweep file states them.
    """

    words: tuple[str, ...]
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    out: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    score: Mapping[str, str] | None = None

    @property
    def placeholders(self) -> set[str]:
        """Names of the placeholders of its words."""
        return names_in(self.words)

    @property
    def name(self) -> str:
        """What it trains, in a word, for the name of a file."""
        scripts = [Path(word).stem for word in self.words if word.endswith((".py", ".sh"))]
        modules = [word for flag, word in zip(self.words, self.words[1:], strict=False) if flag == "-m"]
        return [*scripts, *(module.rpartition(".")[2] for module in modules), Path(self.words[0]).name][0]


def read_command(text: str) -> OwnCommand:
    """Find lr, wd, seed and the output folder in a command, or in a sweep file of Weights & Biases.

    Args:
        text: the command as one types it in a shell, or the name of a YAML file.

    Raises:
        InputError: it needs a shell, has no number of lr, or has several values where one is expected.
    """
    try:
        words = split_words(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"--command: {error}") from None
    score = None
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        words, score = sweep_file_words(read_yaml(Path(words[0])), words[0])
    env = dict[str, str]()
    while words and (variable := _ENVIRONMENT.fullmatch(words[0])):
        env[variable[1]] = _escaped(variable[2])
        words = words[1:]
    if not words or Path(words[0]).name == "orion":
        raise InputError(f"--command: the program and its arguments alone are expected, got {text!r}")
    return find_placeholders(_without_multirun(words), env, score)


def find_placeholders(
    words: Sequence[str], env: Mapping[str, str] | None = None, score: Mapping[str, str] | None = None
) -> OwnCommand:
    """Return a command of these words, with placeholders in place of lr, wd, seed and the output folder.

    Raises:
        InputError: there is no number of lr, several values are one placeholder's, or a range is of something else.
    """
    replaced = list[str]()
    found: dict[str, dict[str, Any]] = {}  # the value by its text in the command
    for name, sign, value in _options(words):
        placeholder = _placeholder_of(name)
        text, number = _with_placeholder(placeholder, value) if placeholder else (None, None)
        if placeholder and text:
            found.setdefault(placeholder, {})[f"{name}{sign}{value}"] = number
        elif sign == "~":
            raise InputError(
                f"--command: {name}~{value}: loguniform, uniform and choices of lr, wd and seed are understood; write "
                f"one value in its place, such as {name}=VALUE"
            )
        text = text or _escaped(value)
        is_two_words = sign == " " or (sign == "~" and name.startswith("-"))
        replaced += [name, text] if is_two_words else [f"{name}{sign.replace('~', '=')}{text}"]
    for placeholder, values in found.items():
        if len(set(values.values())) > 1:
            more = {"lr": "{lr*0.1}", "wd": "{wd*0.1}", "seed": "{seed}", "out": "{out}/more"}[placeholder]
            raise InputError(
                f"--command: {' and '.join(values)} would be {{{placeholder}}}; leave one in the command, and add the "
                f"others to the file that is written, such as {more}"
            )
    numbers = {name: next(iter(values.values())) for name, values in found.items()}
    out = numbers.pop("out", None)
    command = OwnCommand(tuple(replaced), numbers, out, env or {}, score)
    _check_numbers(command)
    return command


def _check_numbers(command: OwnCommand) -> None:
    if "lr" not in command.numbers:
        raise InputError(NO_LR)
    if "wd" in command.placeholders and "wd" not in command.numbers:
        raise InputError("--command: write the number of wd that the search begins with in place of {wd}")
    if min(command.numbers["lr"]) <= 0:
        raise InputError(f"--command: lr: a positive number is expected, got {min(command.numbers['lr']):g}")
    if min(command.numbers.get("wd", (0,))) < 0:
        raise InputError(f"--command: wd: a number from 0 on is expected, got {min(command.numbers['wd']):g}")


def _options(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, sign, value) of each option that has a value, ("", "", word) for all other words."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if option := _OPTION.fullmatch(word):
            yield option[1], option[2], option[3]
        elif word.startswith("-") and _placeholder_of(word) and rest and not rest[0].startswith("-"):
            yield word, " ", rest.pop(0)
        else:
            yield "", "", word


def _placeholder_of(option: str) -> str | None:
    name = option.lstrip("-+").lower().replace("-", "_")
    last = name.rpartition(".")[2]
    return next((each for each, names in NAMES.items() if name in names or last in names), None)


def _with_placeholder(placeholder: str, value: str) -> tuple[str | None, Any]:
    """Return a value with its placeholder, and what stood there; None twice if it is no value of that kind."""
    numbers = numbers_of(value)
    if placeholder != "out":
        # Of a list of one, the program wants the brackets.
        text = f"[{{{placeholder}}}]" if value.startswith("[") and len(numbers) == 1 else f"{{{placeholder}}}"
        return (text, numbers) if numbers else (None, None)
    if numbers or "{" in value or value.lower() in ("", "true", "false"):  # --save 100: now and then
        return None, None
    path = Path(value)
    if re.fullmatch(r"\.[A-Za-z]\w*", path.suffix) and not path.is_dir():  # a file, which belongs into the folder
        return f"{{out}}/{_escaped(path.name)}", str(path.parent)
    return "{out}", value


def numbers_of(text: str) -> tuple[float, ...]:
    """Return the numbers of `3e-4`, `[0.1, 0.01]`, `0.1,0.01` or `loguniform(1e-5, 1e-1)`; none of any other text."""
    prior = _PRIOR.fullmatch(text.strip())
    inside = prior[1] if prior else text.strip()
    numbers = tuple(map(float, re.findall(_NUMBER, inside))) if _NUMBERS.fullmatch(inside) else ()
    return numbers if all(map(math.isfinite, numbers)) else ()


def _escaped(word: str) -> str:
    """Return a word with its braces doubled, unless it has placeholders already."""
    try:
        parse(word)
    except ValueError:
        return word.replace("{", "{{").replace("}", "}}")
    return word


def _without_multirun(words: Sequence[str]) -> list[str]:
    """Return the words without those by which Hydra starts several runs; `-m` of Python is followed by no override."""
    return [
        word
        for word, following in zip(words, [*words[1:], "="], strict=True)
        if not (word == "--multirun" or (word == "-m" and "=" in following))
    ]


def joined(words: Sequence[str]) -> str:
    """Return the words as one text that is split into them again; placeholders need no quotes."""
    return " ".join(word if re.fullmatch(r"[\w@%+=:,./{}\[\]-]+", word) else shlex.quote(word) for word in words)


# --- sweep files of Weights & Biases ----------------------------------------------------------------------------------


def sweep_file_words(data: Mapping[str, Any], file: str) -> tuple[list[str], dict[str, str] | None]:
    """Return the command that a sweep file of Weights & Biases starts, and its metric and mode if it states them.

    Raises:
        InputError: it is none, or has what a command cannot say.
    """
    parameters, command = data.get("parameters"), data.get("command", ["${interpreter}", "${program}", "${args}"])
    is_list = isinstance(command, list) and all(isinstance(each, str) for each in command)
    if not (isinstance(parameters, dict) and is_list and data.keys() & {"program", "command"}):
        raise InputError(
            f"{file}: a sweep file of Weights & Biases is expected, with program and parameters; or write the "
            "command itself, such as --command 'python train.py --lr 3e-4'"
        )
    arguments = [f"{name}{_parameter(str(name), parameter, file)}" for name, parameter in parameters.items()]
    meanings = {
        "${env}": [],
        "${interpreter}": ["python"],
        "${program}": [str(data.get("program", ""))],
        "${args}": [f"--{argument}" for argument in arguments],
        "${args_no_hyphens}": arguments,
    }
    words = [word for each in command for word in meanings.get(each, [each])]
    if unknown := [word for word in words if "${" in word or not word]:
        raise InputError(f"{file}: command: {unknown[0] or '${program}'} is not understood; write the command itself")
    metric = data.get("metric")
    if not (isinstance(metric, dict) and "name" in metric):
        return words, None
    name, mode = str(metric["name"]), "max" if metric.get("goal") == "maximize" else "min"
    return words, {"name": name, "mode": mode if usual_mode(name) in (mode, None) else f"{mode}!"}


def _parameter(name: str, parameter: object, file: str) -> str:
    """Return what follows the name of a parameter: =3e-4, or the range or list that it is taken from."""
    fields = parameter if isinstance(parameter, dict) else {}
    if "value" in fields and not isinstance(fields["value"], dict | list):
        return f"={fields['value']}"
    values = fields.get("values", [fields.get("min"), fields.get("max")])
    if not isinstance(values, list) or any(value is None or isinstance(value, dict | list) for value in values):
        raise InputError(f"{file}: parameters: {name}: value, values, or min and max are expected, got {parameter!r}")
    if fields.get("distribution") in ("log_uniform", "q_log_uniform"):
        try:
            values = [math.exp(value) for value in values]  # the ends are exponents
        except (TypeError, OverflowError):
            raise InputError(f"{file}: parameters: {name}: exponents are expected, got {parameter!r}") from None
    if len(values) == 1:
        return f"={values[0]}"
    return f"~choices({', '.join(map(str, values))})"
