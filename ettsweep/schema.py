"""Schemas: frozen, strict models; what is wrong with data that do not fit; digests of those that do."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
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

from ettsweep.errors import InputError


@dataclass(frozen=True)
class OmitFromIdAt:
    """Mark a field added after the first release: at `value` it is left out of the id, so old runs keep theirs.

    Usage: `new_field: Annotated[float, OmitAt(0.0)] = 0.0`.
    """

    value: object


class StrictModel(BaseModel):
    """Base of all schemas: immutable, strictly typed, unknown keys refused, finite floats only."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def expect(description: str, fits: Callable[[Any], bool]) -> BeforeValidator:
    """Check a field of several types up front: pydantic would report each member of the union."""

    def check(value: object) -> object:
        if not fits(value):
            raise ValueError(f"{description} is expected, got {value!r}")
        return value

    return BeforeValidator(check)


@dataclass(frozen=True)
class Registered:
    """Find the schema of a value by its `kind`, among the entries of a table.

    Attributes:
        table: the table's `module:name`, which is imported when the first value is judged: it may be in a layer above.
            Each entry has its schema as `spec`.
        default: the kind of a mapping that states none.
    """

    table: str
    default: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return WrapValidator(self._build).__get_pydantic_core_schema__(source, handler)

    def schema(self, value: object) -> type[BaseModel] | None:
        """Return the schema of a value; None where it is of no kind that there is."""
        kind = value.get("kind", self.default) if isinstance(value, dict) else value
        entry = resolve_name(self.table).get(kind) if isinstance(kind, str) else None
        return None if entry is None else entry.spec

    def _build(self, value: object, as_it_is: ValidatorFunctionWrapHandler) -> object:
        """Accept an instance, a mapping, and `sgd` for `{kind: sgd}`."""
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
            raise ValueError(f"unknown kind {str(value['kind'])!r}; known: {', '.join(map(repr, table))}")
        fields = {name for entry in table.values() for name in entry.spec.model_fields}
        wrong: list[InitErrorDetails] = [{"type": "missing", "loc": ("kind",), "input": value}]
        for key in value.keys() - fields:
            wrong.append({"type": "extra_forbidden", "loc": (str(key),), "input": value[key]})
        raise ValidationError.from_exception_data("kind", wrong)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


ListOfOne = BeforeValidator(_listed)
"""Lets a word or a number stand for a list of it alone."""


def is_whole(value: object, least: int) -> bool:
    """Say whether a value is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def identity(model: BaseModel) -> dict[str, object]:
    """Return the fields that enter an id: all of them, but those at their `OmitAt` value."""
    fields: dict[str, object] = {}
    for name, left_out in _identity_fields(type(model)):
        value = getattr(model, name)
        if left_out and value in left_out:
            continue
        if isinstance(value, float):
            value += 0.0  # -0.0 becomes 0.0
        fields[name] = identity(value) if isinstance(value, BaseModel) else value
    return fields


@cache
def _identity_fields(schema: type[BaseModel]) -> list[tuple[str, list[object]]]:
    """Return each field's name with the values at which it is left out of an id."""
    return [
        (name, [mark.value for mark in info.metadata if isinstance(mark, OmitFromIdAt)])
        for name, info in schema.model_fields.items()
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
"""A key and those that it lies under, the outermost first."""


def validate(schema: type[Schema], data: object, where: str, also: Iterable[Key] = ()) -> Schema:
    """Check plain data from a file or the command line against a schema.

    `also` are keys that have a meaning there or elsewhere: one of them may be meant by an unknown one.

    Raises:
        InputError: all problems at once, one a line: `where: key: what is wrong`.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise InputError.of(problems(error, where, list(dict.fromkeys([*keys_of(schema, data), *also])))) from None


def problems(error: ValidationError, where: str, known: Sequence[Key] = ()) -> list[str]:
    """Return one line per problem that pydantic found; unknown keys first, and not what is missing for their sake."""
    errors = error.errors(include_url=False)
    # pydantic leaves out what it refuses, and then finds the rest too short.
    refused = {e["loc"][:-1] for e in errors}
    told = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in refused)]
    meant: list[Key] = []
    unknown = []
    for e in told:
        if e["type"] == "extra_forbidden":
            key = tuple(map(str, e["loc"]))
            near = nearest_keys(key, e["input"], known)
            beside = dict.fromkeys(k[-1] for k in known if k[:-1] == key[:-1])
            hint = f"; known: {', '.join(beside)}" if beside else ""
            if near:
                hint = f"; did you mean {' or '.join(_told(k, dotted='.' in key[-1]) for k in near)}?"
            inner = {k[-1] for k in near} & set(e["input"] if isinstance(e["input"], dict) else ())
            shown = (*key, *inner) if len(inner) == 1 else key  # what stands under the key is known, and not the key
            unknown.append(f"{where}: {'.'.join(shown)}: unknown key{hint}")
            meant += near
    rest = [e for e in told if e["type"] != "extra_forbidden" and not (e["type"] == "missing" and e["loc"] in meant)]
    return [*unknown, *(f"{where}: {_problem(dict(e), known)}" for e in rest)]


def _told(key: Key, *, dotted: bool) -> str:
    """Return a key for people; to whoever wrote dots in a file, where one of them says under what it stands."""
    return f"{key[-1]} under {'.'.join(key[:-1])}" if dotted and key[1:] else ".".join(key)


def _problem(e: dict[str, Any], known: Sequence[Key]) -> str:
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
            fields = dict.fromkeys(k[-1] for k in known if k[:-1] == tuple(map(str, e["loc"])))
            few = 0 < len(fields) <= 3
            form = f"{{{', '.join(f'{name}: ...' for name in fields)}}}" if few else "a mapping of keys to values"
            return f"{at}{form} is expected, got {e['input']!r}"
        case _:
            message = e["msg"][0].lower() + e["msg"][1:]
            return f"{at}{message}, got {e['input']!r}"


def keys_of(schema: type[BaseModel], data: object) -> Iterator[Key]:
    """Yield all keys that a schema knows, and those of its parts; the data say of which kinds these are."""
    values = data if isinstance(data, dict) else {}
    for name, field in schema.model_fields.items():
        yield (name,)
        value = values.get(name)
        kinds = next((mark for mark in field.metadata if isinstance(mark, Registered)), None)
        if kinds:
            yield (name, "kind")
        part = kinds.schema(value or kinds.default) if kinds else field.annotation
        parts: dict[Key, object] = {(name,): value}
        if get_origin(part) is dict and isinstance(value, dict):  # of names that people give
            part, parts = get_args(part)[1], {(name, str(inner)): v for inner, v in value.items()}
        if isinstance(part, type) and issubclass(part, BaseModel):
            for above, v in parts.items():
                yield from ((*above, *key) for key in keys_of(part, v))


def nearest_keys(key: Key, value: object, known: Sequence[Key]) -> list[Key]:
    """Return the known keys that an unknown one may mean: one beside it, or elsewhere; best first, three at most.

    Where nothing is like it, what stands under it is looked at: of `recipe.batch_size` the second part may be meant.
    """
    from difflib import get_close_matches

    if "." in key[-1]:  # only --set has dots
        key = (*key[:-1], *key[-1].split("."))
        if key in known:
            return [key]
    elsewhere = [k for k in known if k[-1] == key[-1]]
    if elsewhere:
        return elsewhere[:3]
    beside = [k[-1] for k in known if k[:-1] == key[:-1]]
    if near := get_close_matches(key[-1], beside, n=1):
        return [(*key[:-1], near[0])]
    inner = [k for name in (value if isinstance(value, dict) else ()) for k in known if k[-1] == name]
    if inner:
        return inner[:3]
    far = get_close_matches(key[-1], {k[-1] for k in known}, n=1, cutoff=0.75)
    return [k for k in known if k[-1] in far][:3]
