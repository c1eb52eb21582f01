"""Schemas: frozen, strict models; what is wrong with data that do not fit; digests of those that do."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticKnownError

from ettsweep.errors import InputError


@dataclass(frozen=True)
class OmitAt:
    """Mark a field added after the first release: at `value` it is left out of the id, so old runs keep theirs.

    Usage: `new_field: Annotated[float, OmitAt(0.0)] = 0.0`.
    """

    value: object


class Frozen(BaseModel):
    """Base of all schemas: immutable, strictly typed, unknown keys refused, finite floats only."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def expect(description: str, fits: Callable[[Any], bool]) -> BeforeValidator:
    """Check a field of several types up front: pydantic would report each member of the union."""

    def check(value: object) -> object:
        if not fits(value):
            raise ValueError(f"{description} is expected, got {value!r}")
        return value

    return BeforeValidator(check)


def of_kind(table: str, default: str | None = None) -> WrapValidator:
    """Find the schema of a value by its `kind`, among the entries of a table.

    Args:
        table: the table's `module:name`, which is imported when the first value is judged: it may be in a layer above.
            Each entry has its schema as `spec`.
        default: the kind of a mapping that states none.
    """

    def build(value: object, as_it_is: ValidatorFunctionWrapHandler) -> object:
        """Accept an instance, a mapping, and `sgd` for `{kind: sgd}`."""
        if isinstance(value, BaseModel):
            return as_it_is(value)
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        kind = value.get("kind", default)
        if kind is None and "kind" not in value:
            raise ValidationError.from_exception_data("kind", [{"type": "missing", "loc": ("kind",), "input": value}])
        known = resolve_name(table)
        if not isinstance(kind, str) or kind not in known:
            raise ValueError(f"unknown kind {str(kind)!r}; known: {', '.join(map(repr, known))}")
        schema: type[BaseModel] = known[kind].spec
        return schema.model_validate({"kind": kind, **value})

    return WrapValidator(build)


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
        (name, [mark.value for mark in info.metadata if isinstance(mark, OmitAt)])
        for name, info in schema.model_fields.items()
    ]


def canonical(value: object) -> str:
    """Return the canonical JSON of plain data: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object, digits: int = 12) -> str:
    """Return the first hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:digits]


Schema = TypeVar("Schema", bound=BaseModel)


def validate(schema: type[Schema], data: object, where: str) -> Schema:
    """Check plain data from a file or the command line against a schema.

    Raises:
        InputError: all problems at once, one a line: `where: key: what is wrong`.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise InputError.of(problems(error, where)) from None


def problems(error: ValidationError, where: str) -> list[str]:
    """Return one line per problem that pydantic found."""
    errors = error.errors(include_url=False)
    # pydantic leaves out what it refuses, and then finds the rest too short.
    refused = {e["loc"][:-1] for e in errors}
    told = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in refused)]
    return [f"{where}: {_problem(dict(e))}" for e in told]


def _problem(e: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in e["loc"])
    at = f"{key}: " if key else ""
    match e["type"]:
        case "extra_forbidden":
            return f"{at}unknown key"
        case "missing":
            return f"{at}is required"
        case "too_short":
            return f"{at}must not be empty"
        case "value_error":
            return f"{at}{e['ctx']['error']}"
        case _:
            message = e["msg"][0].lower() + e["msg"][1:]
            return f"{at}{message}, got {e['input']!r}"
