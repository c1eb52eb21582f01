"""What people write: YAML, read safely, and key=value."""

import contextlib
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ettsweep.errors import InputError

HIDDEN = "***"
"""Stands for the value of an environment variable, which may be a secret, where one is shown or kept."""

# --- reading --------------------------------------------------------------------------------------------------------


_FLOAT = ("tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))
"""1e-3, which YAML 1.1 takes for a text."""


def _with_rules(base: Any) -> Any:
    """Return a safe loader in which 1e-3 is a float, as everyone but YAML 1.1 means it, and a repeated key an error."""

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    continue  # an error of its own, below
                if key in seen:
                    words = f"key {key!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, words, key_node.start_mark)
                seen.add(key)
            return super().construct_mapping(node, deep=deep)

        def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
            """Leave 4:00:00 the text that it is; YAML 1.1 makes it 14400."""
            text = str(self.construct_scalar(node))
            return text if ":" in text else super().construct_yaml_int(node)

        def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
            text = str(self.construct_scalar(node))
            return text if ":" in text else super().construct_yaml_float(node)

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    Loader.add_implicit_resolver(*_FLOAT)
    return Loader


_LOADER = _with_rules(yaml.SafeLoader)
_FAST = _with_rules(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
"""The same by libyaml, where there is one, in a fifth of the time; the other has better words for what is wrong."""


DEEPEST, MOST = 100, 1_000_000
"""Levels and values that a file may have: an older libyaml has no bound, and a deep file ends the process there."""


def _check_extent(text: str, where: str, loader: type) -> None:
    """Refuse what is nested beyond reason, or grows beyond it by its aliases (&name, *name)."""
    known = dict[str, int]()
    within = list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=loader):
        at = f"{where}: line {event.start_mark.line + 1}" if event.start_mark else where
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, 1))
            if len(within) > DEEPEST:
                raise InputError(f"{at}: nested too deeply")
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in within):
                raise InputError(f"{at}: an alias stands within what it repeats")
            name, values = None, known.get(str(event.anchor), 0)
        elif isinstance(event, yaml.ScalarEvent):
            name, values = event.anchor, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, values = within.pop()
        else:
            continue
        if name:
            known[name] = values
        if within:
            above, so_far = within.pop()
            within.append((above, so_far + values))
        if values > MOST:
            raise InputError(f"{at}: more than {MOST:,} values, aliases counted")


def _load(text: str, where: str, loader: type) -> Any:
    """Check how far a text goes before it is built: a newer libyaml refuses a deep one, the other loader recurses."""
    _check_extent(text, where, loader)
    return yaml.load(text, Loader=loader)


UNREADABLE = (ValueError, KeyError, IndexError, AttributeError, TypeError)
"""What yaml raises for a value that is not of the type that its form or its tag (!!int) says."""


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML safely; an InputError has the line."""
    try:
        with contextlib.suppress(yaml.YAMLError, *UNREADABLE):
            return _load(text, where, _FAST)
        return _load(text, where, _LOADER)
    except UNREADABLE:
        told = "a date, a number or a value with !! is none; put quotes around what is meant"
        raise InputError(f"{where}: {told}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = str(getattr(error, "problem", None) or error)
        # A password with *, & or ! in front is one of these to YAML.
        problem = re.sub(r"(alias|anchor|tag|handle) '.*'", r"\1", problem)
        raise InputError(f"{where}:{line} {problem}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        InputError: it does not exist, cannot be read, or is no YAML mapping.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of keys to values is expected")
    return data


class _Dumper(yaml.SafeDumper):
    """Puts quotes around what the loader would take for a number."""


_Dumper.add_implicit_resolver(*_FLOAT)


def dump_yaml(data: Any) -> str:
    """Return data as YAML that is read back as it was."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False))


NAME = r"[^\W\d]\w*"


def split_override(
    override: str, option: str = "--set", example: str = "model.width=64", keys: str = rf"{NAME}(\.{NAME})*"
) -> tuple[str, Any]:
    """Split `key=value`; the value is read as YAML, so that numbers, true and null are what they look like.

    `keys` is the pattern of the keys that can be; option and example are for the message.
    """
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(keys, key):
        raise InputError(f"{option} {hidden(override)}: key=value is expected, such as {example}")
    return key, parse_yaml(text, f"{option} {hidden(override)}")


def hidden(override: str) -> str:
    """Return `key=value`, or an option with it, as it may be shown and kept: without a variable's value."""
    found = re.match(r"\s*(--[a-z-]+=)?[\w.]*\benvironment\b[^\s:=]*", override)
    return f"{found[0]}={HIDDEN}" if found and found.end() < len(override) else override


def with_sets(where: str, overrides: Sequence[str], option: str = "--set") -> str:
    """Return where data are from, with what an option has set in them."""
    return f"{where} with {option} {' '.join(map(hidden, overrides))}" if overrides else where


def parse_numbers(text: str | None, option: str, example: str) -> list[int]:
    """Parse whole numbers with commas between them; there are none where nothing is given."""
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: whole numbers with commas are expected, such as {example}, got {text!r}") from None
