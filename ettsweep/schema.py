"""Schemas: frozen, strict models; problems of data that do not fit; digests of data that do."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticKnownError

from ettsweep.errors import InputError, nearest_name, unknown_name
from ettsweep.files import expand_home


@dataclass(frozen=True)
class OmitFromIdAt:
    """Mark a field added after the first release: ids omit it at `value`, so old runs keep theirs.

    Usage: `new_field: Annotated[float, OmitFromIdAt(0.0)] = 0.0`.
    """

    value: object


@dataclass(frozen=True)
class NotInId:
    """Mark a field that is not part of run ids: it does not change the numbers of a run."""


class StrictModel(BaseModel):
    """Base of all schemas: immutable, strictly typed, no unknown keys, finite floats only."""

    # Built at first use: a command uses few schemas.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def expect(description: str, fits: Callable[[Any], bool]) -> BeforeValidator:
    """Return a validator for a field of several types, with one message: pydantic reports each member of a union."""

    def check(value: object) -> object:
        if not fits(value):
            raise ValueError(f"{description} is expected, got {value!r}")
        return value

    return BeforeValidator(check)


@dataclass(frozen=True)
class Registered:
    """Validate a field by the schema that its `kind` names in a registry.

    Attributes:
        table: the registry's `module:name`, imported when the first value is validated, since it may lie in a higher
            layer. Each entry has its schema as `spec`.
        default: the kind of a mapping without one.
    """

    table: str
    default: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return WrapValidator(self._build).__get_pydantic_core_schema__(source, handler)

    def schema(self, value: object) -> type[BaseModel] | None:
        """Return the schema that validates a value, or None if its kind is not registered."""
        kind = value.get("kind", self.default) if isinstance(value, dict) else value
        entry = resolve_name(self.table).get(kind) if isinstance(kind, str) else None
        return None if entry is None else entry.spec

    def _build(self, value: object, as_it_is: ValidatorFunctionWrapHandler) -> object:
        """Validate an instance, a mapping, or `sgd` as short for `{kind: sgd}`."""
        if isinstance(value, BaseModel):
            return as_it_is(value)
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        if schema := self.schema(value):
            return schema.model_validate({"kind": self.default, **value})
        table = resolve_name(self.table)
        if "kind" in value:
            raise ValueError(str(unknown_name("kind", str(value["kind"]), table)))
        fields = {name for entry in table.values() for name in entry.spec.model_fields}
        wrong: list[InitErrorDetails] = [{"type": "missing", "loc": ("kind",), "input": value}]
        for key in value.keys() - fields:
            wrong.append({"type": "extra_forbidden", "loc": (str(key),), "input": value[key]})
        raise ValidationError.from_exception_data("kind", wrong)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


ListOfOne = BeforeValidator(_as_list)
"""Accept a single word or number where a list is expected."""


def home_expanded(value: object) -> object:
    """Return a text with its leading `~` expanded, other values unchanged; a failure is an error of validation."""
    try:
        return expand_home(value) if isinstance(value, str) else value
    except InputError as error:
        raise ValueError(str(error)) from None  # pydantic reports it with the other problems


HomeExpanded = AfterValidator(home_expanded)
"""Expand a leading `~` or `~user` of a text that may be a path."""


def is_whole(value: object, minimum: int) -> bool:
    """Return whether a value is an integer, no bool, and not below a minimum."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[
    int | Literal["auto"],
    expect("a whole number of at least 1, or auto,", lambda v: v == "auto" or is_whole(v, 1)),
]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def identity(model: BaseModel) -> dict[str, object]:
    """Return the fields that enter an id: all but those at their `OmitFromIdAt` value."""
    fields: dict[str, object] = {}
    for name, left_out in _identity_fields(type(model)):
        value = getattr(model, name)
        if left_out and value in left_out:
            continue
        fields[name] = _plain(value)
    return fields


def without_omitted(model: BaseModel, data: dict[str, Any]) -> dict[str, Any]:
    """Return a model's fields as plain data without those at their `OmitFromIdAt` value: files match ids."""
    omitted = {
        name for name, left_out in _identity_fields(type(model)) if left_out and getattr(model, name) in left_out
    }
    return {name: value for name, value in data.items() if name not in omitted}


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return identity(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value + 0.0 if isinstance(value, float) else value  # -0.0 becomes 0.0


@cache
def fields_outside_id(schema: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of the fields that are marked `NotInId`."""
    fields = schema.model_fields.items()
    return tuple(name for name, info in fields if any(isinstance(mark, NotInId) for mark in info.metadata))


@cache
def _identity_fields(schema: type[BaseModel]) -> list[tuple[str, list[object]]]:
    """Return the values of each field at which ids omit it."""
    return [
        (name, [mark.value for mark in info.metadata if isinstance(mark, OmitFromIdAt)])
        for name, info in schema.model_fields.items()
        if not any(isinstance(mark, NotInId) for mark in info.metadata)
    ]


def canonical(value: object) -> str:
    """Return the canonical JSON of plain data: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object, digits: int = 12) -> str:
    """Return the first hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:digits]


# --- what is wrong with data ------------------------------------------------------------------------------------------

Schema = TypeVar("Schema", bound=BaseModel)

Key = tuple[str, ...]
"""A key and its parents, the outermost first."""


@dataclass(frozen=True)
class Source:
    """Source of data, for messages: a file, and the options that set some of its keys.

    Attributes:
        file: the file, or another name for keys that no option sets.
        options: options as typed, by the keys that they set, in order.
    """

    file: str
    options: Mapping[Key, str] = field(default_factory=dict)

    def of(self, key: Key, *, is_unknown: bool = False) -> str:
        """Return the option that sets a key, else the file with all options that set a part of the key.

        An unknown key with such parts (`is_unknown`) comes from the options alone.
        """
        setting = [option for k, option in self.options.items() if key[: len(k)] == k]
        if setting:
            return setting[-1]
        of_parts = [option for k, option in self.options.items() if k[: len(key)] == key]
        return " ".join(of_parts) if is_unknown and of_parts else self._file_with(of_parts)

    def located(self, problem: str) -> str:
        """Put the source before a problem that begins with its key, such as `model.heads: ...`.

        For other keys than those of the options, name the file with all options, which may be the cause.
        """
        key = re.match(r"[\w.]+(?=: )", problem)
        source = self.of(tuple(key[0].split("."))) if key else self.file
        return f"{self._file_with(self.options.values()) if source == self.file else source}: {problem}"

    def _file_with(self, options: Iterable[str]) -> str:
        return " ".join([self.file, *(["with", *options] if options else [])])


@contextmanager
def locating(source: Source) -> Iterator[None]:
    """Put the source of its key before each line of an InputError raised within."""
    try:
        yield
    except InputError as error:
        raise InputError.of(map(source.located, str(error).splitlines())) from None


def validate(schema: type[Schema], data: object, source: str | Source, extra_keys: Iterable[Key] = ()) -> Schema:
    """Validate plain data from a file or the command line.

    Args:
        schema: of the data.
        data: as YAML or JSON gave it.
        source: file or option, for messages.
        extra_keys: further keys to suggest for an unknown one.

    Raises:
        InputError: all problems at once, a line each: `source: key: problem`.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise InputError.of(
            problems(error, source, list(dict.fromkeys([*keys_of(schema, data), *extra_keys])))
        ) from None


def problems(error: ValidationError, source: str | Source, known_keys: Sequence[Key] = ()) -> list[str]:
    """Return a line for each problem of pydantic: unknown keys first, without the keys that they misspell."""
    source = Source(source) if isinstance(source, str) else source
    errors = error.errors(include_url=False)
    # A collection without its refused items is too short as well: hide that second error.
    refused = {e["loc"][:-1] for e in errors}
    errors_shown = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in refused)]
    intended: list[Key] = []
    lines = []
    for e in errors_shown:
        if e["type"] == "extra_forbidden":
            key = tuple(map(str, e["loc"]))
            near = nearest_keys(key, e["input"], known_keys)
            beside = dict.fromkeys(k[-1] for k in known_keys if k[:-1] == key[:-1])
            hint = f"; known: {', '.join(beside)}" if beside else ""
            if near:
                hint = f"; did you mean {' or '.join(_format_key(k, dotted='.' in key[-1]) for k in near)}?"
            inner = {k[-1] for k in near} & set(e["input"] if isinstance(e["input"], dict) else ())
            path = (*key, *inner) if len(inner) == 1 else key  # the inner key is valid, only its parent is not
            lines.append(f"{source.of(key, is_unknown=True)}: {'.'.join(path)}: unknown key{hint}")
            intended += near
    remaining = [
        e
        for e in errors_shown
        if e["type"] != "extra_forbidden" and not (e["type"] == "missing" and e["loc"] in intended)
    ]
    for e in remaining:
        option = source.of(tuple(map(str, e["loc"])))
        problem = _problem(dict(e), known_keys)
        # The option may have the name of the key: `--margin: ...`.
        lines.append(f"{option}: {problem.removeprefix(f'{option[2:]}: ')}")
    return lines


def _format_key(key: Key, *, dotted: bool) -> str:
    """Return `model.width`, or `width under model` if the user wrote dots in a file, where YAML does not split them."""
    return f"{key[-1]} under {'.'.join(key[:-1])}" if dotted and key[1:] else ".".join(key)


def _problem(e: dict[str, Any], known_keys: Sequence[Key]) -> str:
    key = ".".join(str(part) for part in e["loc"])
    at = f"{key}: " if key else ""
    match e["type"]:
        case "missing":
            return f"{at}is required"
        case "too_short":
            return f"{at}must not be empty"
        case "value_error":
            return f"{at}{e['ctx']['error']}"
        case "model_type" | "model_attributes_type" | "dict_type":
            fields = dict.fromkeys(k[-1] for k in known_keys if k[:-1] == tuple(map(str, e["loc"])))
            are_few = 0 < len(fields) <= 3
            form = f"{{{', '.join(f'{name}: ...' for name in fields)}}}" if are_few else "a mapping of keys to values"
            return f"{at}{form} is expected, got {e['input']!r}"
        case "literal_error":
            near = nearest_name(str(e["input"]), re.findall("'([^']*)'", e["ctx"]["expected"]))
            hint = f"; did you mean {near!r}?" if near else ""
            return f"{at}{_of_pydantic(e)}{hint}"
        case _:
            return f"{at}{_of_pydantic(e)}"


def _of_pydantic(e: dict[str, Any]) -> str:
    return f"{e['msg'][0].lower()}{e['msg'][1:]}, got {e['input']!r}"


def keys_of(schema: type[BaseModel], data: object) -> Iterator[Key]:
    """Yield all keys of a schema and of its nested schemas, of the kinds that the data name."""
    values = data if isinstance(data, dict) else {}
    for name, info in schema.model_fields.items():
        if get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1:
            continue  # never written by hand
        name = info.alias or name
        yield (name,)
        value = values.get(name)
        kinds = next((mark for mark in info.metadata if isinstance(mark, Registered)), None)
        if kinds:
            yield (name, "kind")
        inner_schema = kinds.schema(value or kinds.default) if kinds else info.annotation
        mappings: dict[Key, object] = {(name,): value}
        if get_origin(inner_schema) is dict and isinstance(value, dict):  # of names that people give
            inner_schema, mappings = get_args(inner_schema)[1], {(name, str(inner)): v for inner, v in value.items()}
        if isinstance(inner_schema, type) and issubclass(inner_schema, BaseModel):
            for above, v in mappings.items():
                yield from ((*above, *key) for key in keys_of(inner_schema, v))


def nearest_keys(key: Key, value: object, known_keys: Sequence[Key]) -> list[Key]:
    """Return up to three known keys that an unknown one may mean, best first.

    Searched in turn: the same name elsewhere, a similar name beside it, a key nested under it (`recipe.batch_size` for
    `batch_size`), a similar name anywhere.
    """
    from difflib import get_close_matches

    if "." in key[-1]:  # a key with dots comes from --set
        key = (*key[:-1], *key[-1].split("."))
        if key in known_keys:
            return [key]
    elsewhere = [k for k in known_keys if k[-1] == key[-1]]
    if elsewhere:
        return elsewhere[:3]
    beside = [k[-1] for k in known_keys if k[:-1] == key[:-1]]
    if near := get_close_matches(key[-1], beside, n=1):
        return [(*key[:-1], near[0])]
    inner = [k for name in (value if isinstance(value, dict) else ()) for k in known_keys if k[-1] == name]
    if inner:
        return inner[:3]
    similar = get_close_matches(key[-1], {k[-1] for k in known_keys}, n=1, cutoff=0.75)
    return [k for k in known_keys if k[-1] in similar][:3]
