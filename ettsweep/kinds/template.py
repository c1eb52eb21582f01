"""Placeholders of a command, such as {lr}, and their values as text."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ettsweep.errors import nearest_name
from ettsweep.runs.spec import RUN_PLACEHOLDERS, USUAL_AXES

PLACEHOLDERS = (*USUAL_AXES, *RUN_PLACEHOLDERS)
"""Placeholders of every run."""

_NUMBER = re.compile(r"\d+(\.\d*)?([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?")

Value = str | int | float


@dataclass(frozen=True)
class Placeholder:
    """A placeholder of a text: a name, and the factor of a product."""

    name: str
    factor: float = 1.0

    def value(self, values: Mapping[str, Value]) -> Value:
        """Return its value, a number for {lr}, {wd} and {seed}."""
        value = values[self.name]
        return value * self.factor if isinstance(value, float) else value


@cache
def parse(text: str, known: tuple[str, ...] = PLACEHOLDERS) -> tuple[str | Placeholder, ...]:
    """Return the parts of a text; `{{` and `}}` stand for braces.

    Raises:
        ValueError: a brace without a partner, or an unknown placeholder.
    """
    parts, plain, at = list[str | Placeholder](), "", 0
    while at < len(text):
        character, pair = text[at], text[at : at + 2]
        if pair in ("{{", "}}"):
            plain, at = plain + character, at + 2
        elif character == "{":
            end = text.find("}", at)
            if end < 0:
                raise ValueError(f"{text!r}: a brace is not closed; for a literal brace, write {{{{")
            parts += [*filter(None, [plain]), _placeholder(text[at + 1 : end], known)]
            plain, at = "", end + 1
        elif character == "}":
            raise ValueError(f"{text!r}: a brace is not opened; for a literal brace, write }}}}")
        else:
            plain, at = plain + character, at + 1
    return *parts, *filter(None, [plain])


def _placeholder(inside: str, known: tuple[str, ...]) -> Placeholder:
    name, *factors = (part.strip() for part in inside.split("*"))
    names = [part for part in (name, *factors) if not _NUMBER.fullmatch(part)]
    if factors and len(names) == 1 and names[0] in USUAL_AXES:
        factor = 1.0
        for part in (name, *factors):
            factor *= 1.0 if part == names[0] else float(part)
        return Placeholder(names[0], factor)
    if not factors and name in known:
        return Placeholder(name)
    if factors and len(names) == 1 and names[0] in known:
        raise ValueError(f"{{{inside}}}: only products of lr or wd with numbers work")
    near = nearest_name(inside, known)
    hint = f"; did you mean {{{near}}}?" if near else "."
    listed = ", ".join(f"{{{each}}}" for each in known)
    raise ValueError(
        f"there is no placeholder {{{inside}}}{hint} Known: {listed}, {{lr*0.1}}; for a literal brace, write {{{{"
    )


def names_in(texts: Iterable[str], known: Sequence[str] = PLACEHOLDERS) -> set[str]:
    """Return the names of all placeholders in some texts."""
    return {part.name for text in texts for part in parse(text, tuple(known)) if isinstance(part, Placeholder)}


def rendered(text: str, values: Mapping[str, Value]) -> str:
    """Return a text with its placeholders replaced."""
    parts = parse(text, tuple(values))
    return "".join(part if isinstance(part, str) else written(part.value(values)) for part in parts)


def rendered_value(text: str, values: Mapping[str, Value]) -> Value:
    """Return the value of a text that is one placeholder, as a number if possible; else the rendered text."""
    parts = parse(text, tuple(values))
    if len(parts) == 1 and isinstance(parts[0], Placeholder):
        return parts[0].value(values)
    return rendered(text, values)


def written(value: Value) -> str:
    """Return a value as text that all parsers read the same way: YAML needs a point in floats, and reads 1e-05 as a
    text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"


# --- words ------------------------------------------------------------------------------------------------------------

SHELL_ONLY = {
    "|": "a pipe",
    "&": "&",
    ";": ";",
    "<": "a redirection",
    ">": "a redirection",
    "$": "a variable",
    "`": "a substitution",
    "*": "a pattern",
    "~": "a home folder",
}
"""Characters that need a shell, outside of quotes."""


def split_words(command: str) -> list[str]:
    """Return the words of a command, split as by a shell.

    Raises:
        ValueError: a quote is not closed, or it needs a shell.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r}: {str(error).lower()}") from None
    if not words:
        raise ValueError("a command is expected, got nothing")
    if found := next(_shell_only(command), None):
        raise ValueError(
            f"{found} ({SHELL_ONLY[found]}) needs a shell; quote it, or write [bash, -o, pipefail, -c, "
            f"{_yaml_quoted(command)}]"
        )
    return words


def _shell_only(command: str) -> Iterator[str]:
    quote, before, inside, skip = "", " ", 0, False
    for character in command:
        if skip:
            skip = False
        elif character == "\\" and quote != "'":
            skip = True
        elif quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in "$`":
                yield character
        elif character in "'\"":
            quote = character
        elif character in "{}":
            inside = max(0, inside + (1 if character == "{" else -1))
        elif character == "~":
            if before.isspace():
                yield character
        elif character in SHELL_ONLY and not (inside and character == "*"):  # a product: {lr*0.1}
            yield character
        before = character


def _yaml_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
