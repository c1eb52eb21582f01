"""Files for each run of a command: copies with replaced settings or texts."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from ettsweep.errors import InputError
from ettsweep.kinds.template import Value, rendered, rendered_value
from ettsweep.schema import StrictModel

Setting = str | int | float | bool | None

Syntax = Literal["json", "yaml", "toml"]


class RenderedFile(StrictModel):
    """A file for each run.

    Attributes:
        source: the original, relative to the grid file; `from:` in a grid file.
        set: values by dotted keys, of a file in YAML, JSON or TOML.
        replace: new texts by old ones, which must occur exactly once.
    """

    source: Annotated[str, Field(alias="from")]
    set: dict[str, Setting] = Field(default_factory=dict)
    replace: dict[str, str] = Field(default_factory=dict)

    model_config = ConfigDict(**StrictModel.model_config, populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.set) == bool(self.replace):
            raise ValueError(f"files: {self.source}: write either `set` or `replace`")
        if self.set and self.syntax is None:
            raise ValueError(f"files: {self.source}: `set` is for YAML, JSON and TOML; use `replace`")
        if self.syntax == "toml" and None in self.set.values():
            raise ValueError(f"files: {self.source}: TOML has no null; use `replace`")
        return self

    @property
    def syntax(self) -> Syntax | None:
        """The syntax of the file, by its suffix."""
        by_suffix: dict[str, Syntax] = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
        return by_suffix.get(Path(self.source).suffix.lower())

    def texts(self) -> Iterator[str]:
        """Yield the texts with placeholders."""
        yield from (value for value in self.set.values() if isinstance(value, str))
        yield from self.replace.values()

    def content(self, folder: Path, values: Mapping[str, Value]) -> str:
        """Return the content for a run.

        Raises:
            InputError: the source cannot be read, or does not have a text exactly once.
        """
        path = folder / self.source
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"files: {path}: cannot be read ({error})") from None
        if self.replace:
            return self._replaced(path, text, values)
        data = _parsed(path, text, self.syntax)
        for key, value in self.set.items():
            _set(data, path, key, rendered_value(value, values) if isinstance(value, str) else value)
        if self.syntax == "json":
            return json.dumps(data, indent=1, ensure_ascii=False) + "\n"  # paths like those of others
        if self.syntax == "toml":
            import tomlkit

            return tomlkit.dumps(data)
        import yaml

        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)

    def _replaced(self, path: Path, text: str, values: Mapping[str, Value]) -> str:
        for old, new in self.replace.items():
            if (found := text.count(old)) != 1:
                raise InputError(f"files: {path}: {old!r} must occur once, but occurs {found} times")
            text = text.replace(old, rendered(new, values))
        return text


def _parsed(path: Path, text: str, syntax: Syntax | None) -> dict[str, Any]:
    try:
        data: Any = _read(path, text, syntax)
    except ValueError as error:
        raise InputError(f"files: {path}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"files: {path}: is not a mapping")
    return data


def _read(path: Path, text: str, syntax: Syntax | None) -> Any:
    # Only YAML and TOML files need their libraries.
    if syntax == "json":
        return json.loads(text)
    if syntax == "toml":
        import tomlkit

        return tomlkit.parse(text)
    from ettsweep.config import read_yaml

    return read_yaml(path)


def _set(data: dict[str, Any], path: Path, key: str, value: Setting) -> None:
    """Set the value of a dotted key."""
    *parents, last = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise InputError(f"files: {path}: cannot set {key}, since {parent} is not a mapping")
    data[last] = value
