"""What people write: YAML, read safely, and key=value."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ettsweep.errors import InputError

# --- reading --------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a float, as everyone but YAML 1.1 means it, and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # an error of its own, below
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        """Leave 4:00:00 the text that it is; YAML 1.1 makes it 14400."""
        text = str(self.construct_scalar(node))
        return text if ":" in text else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        text = str(self.construct_scalar(node))
        return text if ":" in text else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML safely; an InputError has the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise InputError(f"{where}:{line} {getattr(error, 'problem', None) or error}") from None


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


NAME = r"[^\W\d]\w*"


def split_override(
    override: str, option: str = "--set", example: str = "model.width=64", keys: str = rf"{NAME}(\.{NAME})*"
) -> tuple[str, Any]:
    """Split `key=value`; the value is read as YAML, so that numbers, true and null are what they look like.

    `keys` is the pattern of the keys that can be; option and example are for the message.
    """
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(keys, key):
        raise InputError(f"{option} {override}: key=value is expected, such as {example}")
    return key, parse_yaml(text, f"{option} {override}")


def parse_numbers(text: str | None, option: str, example: str) -> list[int]:
    """Parse whole numbers with commas between them; there are none where nothing is given."""
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: whole numbers with commas are expected, such as {example}, got {text!r}") from None
