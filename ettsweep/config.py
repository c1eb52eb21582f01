"""Configuration as people write it: YAML, read safely, and key=value overrides."""

import contextlib
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ettsweep.errors import InputError
from ettsweep.files import read_file

HIDDEN_VALUE = "***"
"""Shown and stored instead of the value of an environment variable, which may be a secret."""

# --- reading --------------------------------------------------------------------------------------------------------


_FLOAT = ("tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))
"""Floats such as 1e-3, which YAML 1.1 reads as text."""


MERGE_TAG = "tag:yaml.org,2002:merge"
MERGE_KEY = object()
"""Stands for the key `<<` among the keys of a mapping."""


def _mapping_error(message: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _with_rules(base: Any) -> Any:
    """Return a safe loader that reads 1e-3 as a float, refuses duplicate keys, and merges mappings."""

    class Loader(base):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._flattened_nodes = set[int]()

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Replace merge keys (`<<: *name`): the mapping's own keys come first, then those of the first source.

            PyYAML accepts keys given twice, and some of its versions prefer the last source.
            """
            if id(node) in self._flattened_nodes:
                return
            self._flattened_nodes.add(id(node))
            pairs, sources = dict[Hashable, Any](), list[yaml.Node]()
            for pair in node.value:
                key = self._key(pair[0])
                if key in pairs:
                    hint = "; `<<: [*a, *b]` merges several mappings" if key is MERGE_KEY else ""
                    raise _mapping_error(f"key {pair[0].value!r} is given twice{hint}", pair[0])
                pairs[key] = pair
            if merge := pairs.pop(MERGE_KEY, None):
                sources = merge[1].value if isinstance(merge[1], yaml.SequenceNode) else [merge[1]]
            for source in sources:
                if not isinstance(source, yaml.MappingNode):
                    raise _mapping_error("<<: *name is expected, where name is of a mapping", source)
                self.flatten_mapping(source)
                for pair in source.value:
                    pairs.setdefault(self._key(pair[0]), pair)
            node.value = list(pairs.values())

        def _key(self, node: yaml.Node) -> Hashable:
            if node.tag == MERGE_TAG:
                return MERGE_KEY
            key = self.construct_object(node, deep=True)
            return key if isinstance(key, Hashable) else id(node)  # the base class raises its own error for it

        def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
            """Keep 4:00:00 as text: YAML 1.1 reads it in base 60, as 14400."""
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
"""The same on libyaml, if PyYAML has it: five times as fast, with poorer messages."""


MAX_DEPTH, MAX_VALUES = 100, 1_000_000
"""Limits of a file: older versions of libyaml have none, and a deeply nested file crashes the process."""


def _check_extent(text: str, source: str, loader: type) -> None:
    """Refuse a file that is nested too deeply, or that aliases (&name, *name) blow up."""
    anchor_values = dict[str, int]()
    open_collections = list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=loader):
        at = f"{source}: line {event.start_mark.line + 1}" if event.start_mark else source
        if isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, 1))
            if len(open_collections) > MAX_DEPTH:
                raise InputError(f"{at}: nested too deeply")
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in open_collections):
                raise InputError(f"{at}: an alias contains itself")
            name, values = None, anchor_values.get(str(event.anchor), 0)
        elif isinstance(event, yaml.ScalarEvent):
            name, values = event.anchor, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, values = open_collections.pop()
        else:
            continue
        if name:
            anchor_values[name] = values
        if open_collections:
            above, so_far = open_collections.pop()
            open_collections.append((above, so_far + values))
        if values > MAX_VALUES:
            raise InputError(f"{at}: more than {MAX_VALUES:,} values, aliases counted")


def _load(text: str, source: str, loader: type) -> Any:
    """Load YAML after checking its limits, since building a deep document overflows the stack."""
    _check_extent(text, source, loader)
    return yaml.load(text, Loader=loader)


UNREADABLE = (ValueError, KeyError, IndexError, AttributeError, TypeError)
"""Errors of PyYAML for values that do not fit their form or tag (!!int)."""


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML safely.

    Raises:
        InputError: it is not valid YAML; the message has the line.
    """
    try:
        with contextlib.suppress(yaml.YAMLError, *UNREADABLE):
            return _load(text, source, _FAST)
        return _load(text, source, _LOADER)
    except UNREADABLE:
        message = "a date, number or value with !! is not valid; put quotes around it"
        raise InputError(f"{source}: {message}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = str(getattr(error, "problem", None) or error)
        # A password that begins with *, & or ! is an alias, anchor or tag to YAML: do not print it.
        problem = re.sub(r"(alias|anchor|tag|handle) '.*'", r"\1", problem)
        raise InputError(f"{source}:{line} {problem}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        InputError: it does not exist, cannot be read, or is not a YAML mapping.
    """
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: cannot be read: line {line} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of keys to values is expected")
    return data


class _Dumper(yaml.SafeDumper):
    """Quotes texts that the loader would read as numbers."""


_Dumper.add_implicit_resolver(*_FLOAT)


def dump_yaml(data: Any) -> str:
    """Return data as YAML that loads to equal data."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False))


NAME = r"[^\W\d]\w*"


def split_override(
    override: str, option: str = "--set", example: str = "model.width=64", keys: str = rf"{NAME}(\.{NAME})*"
) -> tuple[str, Any]:
    """Split `key=value` and parse the value as YAML, which gives 1, true and null their types.

    Args:
        override: as typed.
        option: for messages.
        example: for messages.
        keys: regular expression that the key must match.
    """
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(keys, key):
        raise InputError(f"{option} {hide_secrets(override)}: key=value is expected, such as {example}")
    return key, parse_yaml(text, f"{option} {hide_secrets(override)}")


def hide_secrets(override: str) -> str:
    """Return `key=value`, or an option with it, with the value of an environment variable masked."""
    match = re.match(r"\s*(--[a-z-]+=)?[\w.]*\benvironment\b[^\s:=]*", override)
    return f"{match[0]}={HIDDEN_VALUE}" if match and match.end() < len(override) else override


def options_by_key(overrides: Sequence[str], option: str = "--set") -> dict[tuple[str, ...], str]:
    """Return overrides as typed, by the keys that they set, for the `Source` of messages."""
    options: dict[tuple[str, ...], str] = {}
    for override in overrides:
        key = tuple(override.partition("=")[0].split("."))
        options.pop(key, None)  # the last of several counts
        options[key] = f"{option} {hide_secrets(override)}"
    return options


def parse_integers(text: str | None, option: str, example: str) -> list[int]:
    """Parse whole numbers separated by commas; None means none."""
    try:
        return [] if text is None else [int(field) for field in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: whole numbers with commas are expected, such as {example}, got {text!r}") from None


def set_nested(data: dict[str, Any], key: str, value: object) -> None:
    """Set the value of a dotted key in nested plain data, in place."""
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            # `optimizer: sgd` is short for `optimizer: {kind: sgd}`.
            inner = data[parent] = {"kind": inner} if isinstance(inner, str) else {}
        data = inner
    data[last] = value
